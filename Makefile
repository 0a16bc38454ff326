# make            build ./train (with nvcc where it is found, with g++ alone otherwise)
# make demo       data, a two-minute training, evaluation, a sample
# make test       every test;  SANITIZE=1 runs them under the address and undefined-behaviour sanitizers
# make bench      kernel and step timings
# make format     lay the sources out with clang-format
# make clean      remove what was built
#
# BUILD=DIR puts every product, train included, elsewhere (the source tree may be read-only).
# CUDA=0|1 overrides whether nvcc is used; DEBUG=1 compiles for a debugger; JOBS=N limits parallel compilation.

MAKEFLAGS += --no-print-directory --no-builtin-rules
.DELETE_ON_ERROR:
.SECONDARY:
.DEFAULT_GOAL := train

NVCC     := $(shell command -v nvcc 2>/dev/null)
CUDA     ?= $(if $(NVCC),1,0)
SANITIZE ?= 0
DEBUG    ?= 0
JOBS     ?= $(shell nproc 2>/dev/null || echo 2)
CXX      := g++

# ---------------------------------------------------------------------------------------------- where products go
ifeq ($(origin BUILD),undefined)
BUILD := build
PLAIN_BIN := .
else
PLAIN_BIN := $(BUILD)
endif
VARIANT := $(if $(filter 1,$(CUDA)),cuda,cpu)$(if $(filter 1,$(SANITIZE)),-sanitize)$(if $(filter 1,$(DEBUG)),-debug)
BIN     := $(if $(filter 1,$(SANITIZE) $(DEBUG)),$(BUILD)/$(VARIANT),$(PLAIN_BIN))
OBJ     := $(BUILD)/$(VARIANT)

# ------------------------------------------------------------------------------------------------------------ flags
# Never -ffast-math: NaN must stay visible. -fno-math-errno and -fno-trapping-math only let selects and rounding
# vectorise; they change no result. GCC tunes for 256-bit vectors unless told otherwise.
# -Wno-restrict: GCC 12 sees overlaps in its own std::string that are not there (GCC bug 105329).
WARNINGS := -Wall -Wextra -Wshadow -Wconversion -Werror -Wno-restrict
MACHINE  := -march=native $(if $(filter x86_64,$(shell uname -m)),-mprefer-vector-width=512)
OPTIMISE := -O3
ifeq ($(DEBUG),1)
OPTIMISE := -Og -g
endif
ifeq ($(SANITIZE),1)
OPTIMISE := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
endif
HOST     := $(OPTIMISE) $(MACHINE) -fno-math-errno -fno-trapping-math -Wno-psabi -fopenmp
CXXFLAGS := -std=c++20 $(HOST) $(WARNINGS) -I.
LDLIBS   := -lsqlite3 -lz -lpthread -ldl -lrt

# CUDA_ARCHS: the compute capabilities compiled for.
CUDA_ARCHS ?= 90
empty :=
comma := ,
space := $(empty) $(empty)
NVCCFLAGS = -std=c++20 -O3 -Wno-deprecated-gpu-targets -diag-suppress 1675 $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a)$(comma)code=sm_$(a)) \
            -Xcompiler '$(HOST) -Wall -Wextra -Wshadow -Werror' -I.

ifeq ($(CUDA),1)
LINK       = $(NVCC) -Xcompiler '$(HOST)'
COMPILE_CU = $(NVCC) $(NVCCFLAGS) -MD -MP -MF $(@:.o=.d) -c $< -o $@
else
LINK       = $(CXX) $(HOST)
COMPILE_CU = $(CXX) -x c++ $(CXXFLAGS) -MMD -MP -c $< -o $@
endif

# ---------------------------------------------------------------------------------------------------------- sources
LIB_SRC  := $(wildcard $(foreach d,kernels model optim data probes run,$(d)/*.cu $(d)/*.cpp))
TEST_SRC := $(wildcard test/*.cu test/*.cpp)
object    = $(patsubst %,$(OBJ)/%.o,$(1))
LIB_OBJ  := $(call object,$(LIB_SRC))
TEST_OBJ := $(call object,$(TEST_SRC))

# --------------------------------------------------------------------------------------------------------- programs
.PHONY: train demo test bench format clean deps test-deps demo-deps
train: deps
	@$(MAKE) -j$(JOBS) $(BIN)/train

$(BIN)/train: $(OBJ)/train.cu.o $(LIB_OBJ)
	@echo "link    $@"
	@$(LINK) $^ $(LDLIBS) -o $@

$(OBJ)/test/tests: $(TEST_OBJ) $(LIB_OBJ)
	@echo "link    $@"
	@$(LINK) $^ -lgtest -lgtest_main $(LDLIBS) -o $@

$(OBJ)/%.cu.o: %.cu Makefile
	@mkdir -p $(@D)
	@echo "compile $<"
	@$(COMPILE_CU)

$(OBJ)/%.cpp.o: %.cpp Makefile
	@mkdir -p $(@D)
	@echo "compile $<"
	@$(CXX) $(CXXFLAGS) -MMD -MP -c $< -o $@

-include $(shell find $(OBJ) -name '*.d' 2>/dev/null)

test: test-deps
	@$(MAKE) -j$(JOBS) $(OBJ)/test/tests $(BIN)/train
	@WOBBLE_TRAIN=$(BIN)/train $(OBJ)/test/tests --gtest_brief=1

# ----------------------------------------------------------------------------------------------------- dependencies
deps: ; @true
test-deps: ; @true

format:
	clang-format -i $$(git ls-files '*.cu' '*.cpp' '*.h')

clean:
	rm -rf $(BUILD)/cpu* $(BUILD)/cuda* $(PLAIN_BIN)/train
