# make            build ./train (with nvcc where it is found, with g++ alone otherwise)
# make demo       data, a two-minute training, evaluation, a sample, a report
# make tests      build the tests of make test, without running them
# make test-simt  the CUDA kernels where there is no GPU, each CUDA thread a fiber; part of make test
# make test       every test;  SANITIZE=1 runs them under the address and undefined-behaviour sanitizers
# make bench-peers  tokens/s, memory and share of the machine's peak beside PyTorch's;  PYTHON=... as below
# make test-report  the report of made runs in a headless Chromium
# make kernels-report  registers, shared memory and spills of every CUDA kernel, for REPORT_ARCHS="80 90 100"
# make bench      what kernels and whole steps take, bare and watched;  PYTHON=... an interpreter with PyTorch, to be timed too
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
# vectorise; they change no result. -ffp-contract=off (-fmad=false): the compiler must not choose, kernel by kernel, where
# to fuse a product with a sum, since a probe could change its mind; `fused` in kernels/pack.h says where.
# GCC tunes for 256-bit vectors unless told otherwise.
# -Wno-restrict: GCC 12 sees overlaps in its own std::string that are not there (GCC bug 105329); with sanitizers on,
# uninitialised memory in its own std::regex (GCC bug 105562).
WARNINGS := -Wall -Wextra -Wshadow -Wconversion -Werror -Wno-restrict
MACHINE  := -march=native $(if $(filter x86_64,$(shell uname -m)),-mprefer-vector-width=512)
OPTIMISE := -O3
ifeq ($(DEBUG),1)
OPTIMISE := -Og -g
endif
ifeq ($(SANITIZE),1)
WARNINGS += -Wno-maybe-uninitialized
OPTIMISE := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
endif
HOST     := $(OPTIMISE) $(MACHINE) -ffp-contract=off -fno-math-errno -fno-trapping-math -Wno-psabi -fopenmp
INCLUDE  := -I.
CXXFLAGS  = -std=c++20 $(HOST) $(WARNINGS) $(INCLUDE)
LDLIBS   := -lsqlite3 -lz -lcpp-httplib -lpthread -ldl -lrt

# CUDA_ARCHS: the compute capabilities compiled for; others that come later are served by PTX of the last.
CUDA_ARCHS ?= $(or $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d . | grep -x '[0-9]*' | sort -u),90)
comma := ,
gencode   = $(foreach a,$(1),-gencode arch=compute_$(a)$(comma)code=sm_$(a)) \
            $(foreach a,$(lastword $(1)),-gencode arch=compute_$(a)$(comma)code=compute_$(a))
NVCCFLAGS = -std=c++20 -O3 -fmad=false -Wno-deprecated-gpu-targets -Werror all-warnings -diag-suppress 1675 -Xptxas -v \
            -Xcompiler '$(HOST) -Wall -Wextra -Wshadow -Werror -Wno-restrict' $(INCLUDE)
# What ptxas says of each kernel is kept for kernels-report.
keep_log  = 2> $(1) || { grep -v '^ptxas info\|bytes stack frame' $(1) >&2; exit 1; }

ifeq ($(CUDA),1)
LINK       = $(NVCC) -Xcompiler '$(HOST)'
LDLIBS    += -lcublasLt
COMPILE_CU = $(NVCC) $(NVCCFLAGS) $(call gencode,$(CUDA_ARCHS)) -MD -MP -MF $(@:.o=.d) -c $< -o $@ $(call keep_log,$(@:.o=.ptxas))
else
LINK       = $(CXX) $(HOST)
COMPILE_CU = $(CXX) -x c++ $(CXXFLAGS) -MMD -MP -c $< -o $@
endif

# ---------------------------------------------------------------------------------------------------------- sources
LIB_SRC  := $(wildcard $(foreach d,kernels model optim data probes probes/detectors report run bench,$(d)/*.cu $(d)/*.cpp))
TEST_SRC := $(wildcard test/*.cu test/*.cpp)
object    = $(patsubst %,$(OBJ)/%.o,$(1))
LIB_OBJ  := $(call object,$(LIB_SRC))
TEST_OBJ := $(call object,$(TEST_SRC))

# ----------------------------------------------------------------------------------------------------- dependencies
# $(call need,CHECK,PACKAGES) installs PACKAGES where the command CHECK fails, or prints the command that does.
define need
@{ $(1); } >/dev/null 2>&1 || { \
  if [ $$(id -u) = 0 ]; then root=; else root=sudo; fi; \
  if command -v apt-get >/dev/null && { [ -z "$$root" ] || command -v sudo >/dev/null; }; then \
    echo "install $(2)"; \
    $$root apt-get -qq update && \
    $$root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $(2) >/dev/null; \
  else \
    echo "make: packages are missing; on Debian or Ubuntu: sudo apt-get install $(2)" >&2; exit 1; \
  fi; }
endef
hash := \#
headers = printf '%s\n' $(foreach h,$(1),'$(hash)if !__has_include(<$(h)>)' '$(hash)error' '$(hash)endif') | $(CXX) -x c++ -fopenmp -E -

DYGRAPHS       ?= /usr/share/javascript/dygraphs
BUILD_PACKAGES := g++ libsqlite3-dev libcli11-dev nlohmann-json3-dev librandom123-dev zlib1g-dev libcpp-httplib-dev libjs-dygraphs
BUILD_HEADERS  := omp.h sqlite3.h CLI/CLI.hpp nlohmann/json.hpp Random123/philox.h zlib.h httplib.h

.PHONY: build-packages test-packages simt-packages report-packages demo-packages
build-packages: ; $(call need,$(call headers,$(BUILD_HEADERS)) && [ -e $(DYGRAPHS)/dygraph.min.js ],$(BUILD_PACKAGES))
test-packages: build-packages ; $(call need,$(call headers,gtest/gtest.h),libgtest-dev)
simt-packages: test-packages ; $(call need,$(call headers,boost/context/fiber.hpp),libboost-context-dev)
report-packages: build-packages ; $(call need,command -v chromium || command -v chromium-browser || command -v google-chrome,chromium)
# The demo goes on without them, with other text.
demo-packages: ; -$(call need,command -v bible && ls /usr/share/games/fortunes/literature,bible-kjv fortunes)

# --------------------------------------------------------------------------------------------------------- programs
.PHONY: train tests demo test test-simt test-report kernels-report bench bench-peers format clean
train: build-packages
	@$(MAKE) -j$(JOBS) $(OBJ)/train
	@mkdir -p $(BIN) && { [ $(OBJ)/train -ef $(BIN)/train ] || ln -f $(OBJ)/train $(BIN)/train; }

$(OBJ)/train: $(OBJ)/train.cu.o $(LIB_OBJ)
	@echo "link    $@"
	@$(LINK) $^ $(LDLIBS) -o $@

tests: test-packages
	@$(MAKE) -j$(JOBS) $(OBJ)/test/tests

$(OBJ)/test/tests: $(TEST_OBJ) $(LIB_OBJ)
	@echo "link    $@"
	@$(LINK) $^ -lgtest -lgtest_main $(LDLIBS) -o $@

# CUDA where there is no GPU: files that launch kernels, compiled against the software machine of test/simt. What
# that finds wrong is thrown from where it happens, a forbidden access to memory too. Other objects are shared.
SIMT       := $(OBJ)/simt
SIMT_FLAGS  = $(subst -O3,-O1,$(CXXFLAGS)) -fnon-call-exceptions -Itest/simt -DWOBBLE_SIMT
SIMT_CU    := $(filter-out model/gpt_float64.cu,$(wildcard kernels/*.cu probes/*.cu model/*.cu optim/*.cu run/*.cu test/cases_*.cu test/simt/*.cu))
SIMT_CPP   := $(wildcard test/simt/*.cpp)
SHARED_CPP := $(filter-out bench/% run/command_line.cpp,$(filter %.cpp,$(LIB_SRC))) \
              $(addprefix test/,kernel_cases.cpp kernels.cpp kernel_probes.cpp tallies.cpp buffers.cpp reference.cpp)
$(SIMT)/tests: $(patsubst %,$(SIMT)/%.o,$(SIMT_CU) $(SIMT_CPP)) $(call object,$(SHARED_CPP))
	@echo "link    $@"
	@$(CXX) $(HOST) $^ -lgtest -lgtest_main -lboost_context $(LDLIBS) -o $@

$(SIMT)/%.cu.o: %.cu Makefile
	@mkdir -p $(@D)
	@echo "compile $< for the software machine"
	@$(CXX) -x c++ $(SIMT_FLAGS) -MMD -MP -c $< -o $@

$(SIMT)/%.cpp.o: %.cpp Makefile
	@mkdir -p $(@D)
	@echo "compile $< for the software machine"
	@$(CXX) $(SIMT_FLAGS) -MMD -MP -c $< -o $@

# The worked example of the README, done: test/example_norm/l4norm.h and its line in a copy of model/norms.h, and
# what depends on that table compiled against the copy, for the CPU.
EXAMPLE     := $(OBJ)/example_norm
EXAMPLE_OBJ := $(addprefix $(EXAMPLE)/,model/norms.cpp.o $(patsubst %,%.o,$(wildcard model/gpt_*.cu)))
$(EXAMPLE)/tests: $(EXAMPLE_OBJ) $(call object,test/example_norm/l4norm.cu test/family.cu) \
    $(filter-out $(patsubst $(EXAMPLE)/%,$(OBJ)/%,$(EXAMPLE_OBJ)),$(LIB_OBJ))
	@echo "link    $@"
	@$(LINK) $^ -lgtest -lgtest_main $(LDLIBS) -o $@

$(EXAMPLE)/model/norms.h: model/norms.h
	@mkdir -p $(@D)
	@sed -e 's|^#include "model/config.h"|#include "test/example_norm/l4norm.h"\n&|' \
	    -e 's|^    visit(ByRule<DynamicTanh>());|&\n    visit(ByRule<L4Norm>());|' $< > $@
$(EXAMPLE_OBJ): $(EXAMPLE)/model/norms.h
$(EXAMPLE_OBJ): INCLUDE := -I$(EXAMPLE) -I.

$(EXAMPLE)/%.cu.o: %.cu Makefile
	@mkdir -p $(@D)
	@echo "compile $< with one more norm"
	@$(CXX) -x c++ $(CXXFLAGS) -MMD -MP -c $< -o $@

$(EXAMPLE)/%.cpp.o: %.cpp Makefile
	@mkdir -p $(@D)
	@echo "compile $< with one more norm"
	@$(CXX) $(CXXFLAGS) -MMD -MP -c $< -o $@

# Product and attention for those instruction sets of this machine's family that it has.
has          = $(shell grep -qw $(1) /proc/cpuinfo 2>/dev/null && echo $(2))
SETS        := $(if $(filter x86_64,$(shell uname -m)),x86-64 $(call has,avx2,x86-64-v3) $(call has,avx512vl,x86-64-v4))
SET_PROGRAMS := $(SETS:%=$(OBJ)/instruction_sets/%)
$(SET_PROGRAMS): $(OBJ)/instruction_sets/%: test/instruction_sets/blocks.cpp Makefile
	@mkdir -p $(@D)
	@echo "compile $< for $*"
	@$(CXX) $(subst $(MACHINE),-march=$*,$(CXXFLAGS)) -MMD -MP -MT $@ -MF $@.d $< -o $@

$(OBJ)/%.cu.o: %.cu Makefile
	@mkdir -p $(@D)
	@echo "compile $<"
	@$(COMPILE_CU)

$(OBJ)/%.cpp.o: %.cpp Makefile
	@mkdir -p $(@D)
	@echo "compile $<"
	@$(CXX) $(CXXFLAGS) -MMD -MP -c $< -o $@

# The page of the report and dygraphs, where the distribution has it, are inside the program.
$(OBJ)/report/assets.cpp.o: CXXFLAGS += -DDYGRAPHS='"$(DYGRAPHS)"'
$(OBJ)/report/assets.cpp.o: $(wildcard report/*.html report/*.css report/*.js)

-include $(shell find $(OBJ) -name '*.d' 2>/dev/null)

# ------------------------------------------------------------------------------------------------------ test, bench
# The last line says how many tests passed and failed, on the CPU and on the software machine.
passed = total=$$(grep -m1 -o '"tests": *[0-9]*' $(1) | tr -dc 0-9); \
         failed=$$(grep -m1 -o '"failures": *[0-9]*' $(1) | tr -dc 0-9); \
         all=$$((all + total)); wrong=$$((wrong + failed))

test: simt-packages
	@$(MAKE) -j$(JOBS) $(OBJ)/test/tests $(OBJ)/example_norm/tests $(OBJ)/train $(SET_PROGRAMS) $(SIMT)/tests
	@GOMP_SPINCOUNT=1000 WOBBLE_TRAIN=$(abspath $(OBJ)/train) WOBBLE_EXAMPLE_NORM=$(abspath $(OBJ)/example_norm/tests) \
	WOBBLE_INSTRUCTION_SETS='$(abspath $(SET_PROGRAMS))' \
	$(OBJ)/test/tests --gtest_brief=1 --gtest_output=json:$(OBJ)/test/results.json; status=$$?; \
	$(MAKE) test-simt || status=1; \
	all=0; wrong=0; for results in $(OBJ)/test/results.json $(SIMT)/*.json; do $(call passed,$$results); done; \
	echo "$$((all - wrong)) passed, $$wrong failed"; exit $$status

# What a person does with the report, in a headless Chromium that Python's standard library drives. Pictures and numbers
# are left beside the other products.
test-report: train report-packages
	@$(PYTHON) test/report/browser.py $(abspath $(BIN)/train) $(BUILD)/report

# The CUDA kernels, rows by warps and rows by blocks, on the software machine, two processes at a time; what does not
# depend on the team (attention has its own) is in one of them. Every kernel that the program holds must have run.
BY_WARPS  := Table/Kernels.*:Table/WatchedKernels.Give*:Table/WatchedKernels.Have*:Table/KernelsWith*attention*blocks*-*StayInside*
BY_BLOCKS := *SoftwareMachine*:Table/Kernels.*:Table/WatchedKernels.Give*-*StayInside*:*/attention_*
NO_MATTER := Table/KernelsWith*-*/attention_*
test-simt: simt-packages
	@$(MAKE) -j$(JOBS) $(SIMT)/tests
	@rm -f $(SIMT)/*.json $(SIMT)/*.ran
	@run() { WOBBLE_TEST_DEVICE=cuda WOBBLE_TEST_TEAM=$$2 WOBBLE_SIMT_COVERAGE=$(SIMT)/$$1.ran $(SIMT)/tests --gtest_brief=1 \
	    --gtest_filter="$$3" --gtest_output=json:$(SIMT)/$$1.json; }; \
	run warps warp '$(BY_WARPS)' & warps=$$!; status=0; \
	run blocks block '$(BY_BLOCKS)' || status=1; run rest warp '$(NO_MATTER)' || status=1; \
	wait $$warps && exit $$status
	@sh test/simt/coverage.sh $(SIMT)/tests $(SIMT)/*.ran

# Registers, shared memory, stack and spills of every CUDA kernel, for each of REPORT_ARCHS; fails where one spills or
# uses local memory. Where a disassembler is at hand, attention's must hold tensor-core instructions too.
# What the program is built for anyway is not compiled again.
REPORT_ARCHS ?= 80 90 100
KERNEL_SRC   := $(filter-out %_float64.cu,$(filter kernels/%.cu probes/%.cu model/%.cu optim/%.cu run/%.cu,$(LIB_SRC)))
report_of     = $(if $(and $(filter 1,$(CUDA)),$(filter $(1),$(CUDA_ARCHS))),$(OBJ),$(BUILD)/kernels/sm_$(1))/$(2)
REPORTS       = $(sort $(foreach a,$(REPORT_ARCHS),$(foreach s,$(KERNEL_SRC),$(call report_of,$(a),$(s).ptxas))))
FLASH        := probes/attention_bfloat16.cu
kernels-report: build-packages
	@[ -n '$(NVCC)' ] || { echo "kernels-report did not run: nvcc is not here; put the CUDA toolkit's bin into PATH" >&2; exit 2; }
	@$(MAKE) -j$(JOBS) $(REPORTS)
	@cat $(REPORTS) | c++filt | awk -f bench/kernels_report.awk
	@if command -v cuobjdump > /dev/null; then \
	    $(foreach a,$(REPORT_ARCHS),n=$$(cuobjdump -sass -arch sm_$(a) $(call report_of,$(a),$(FLASH).o) | grep -c HMMA); \
	    echo "sm_$(a): $$n tensor-core instructions in $(FLASH)"; [ $$n -gt 0 ] || exit 1;) \
	else echo "no cuobjdump: $(FLASH) was not searched for tensor-core instructions"; fi

$(OBJ)/%.cu.ptxas: $(OBJ)/%.cu.o ;

# Device code alone.
define REPORT_RULE
$(BUILD)/kernels/sm_$(1)/%.cu.ptxas: %.cu Makefile
	@mkdir -p $$(@D)
	@echo "compile $$< for sm_$(1)"
	@$(NVCC) $$(NVCCFLAGS) $$(call gencode,$(1)) -MD -MP -MT $$@ -MF $$(@:.ptxas=.d) -fatbin $$< -o $$(@:.ptxas=.o) $$(call keep_log,$$@)
endef
$(foreach a,$(REPORT_ARCHS),$(eval $(call REPORT_RULE,$(a))))
-include $(shell find $(BUILD)/kernels -name '*.d' 2>/dev/null)

# Every number is in bench.json too, beside the other products.
PYTHON ?= python3

bench: train
	@PYTHON='$(PYTHON)' $(BIN)/train bench --json $(BUILD)/bench.json
	@echo "every number: $(BUILD)/bench.json"

# Beside PyTorch, in turns. PYTHON names an interpreter that has it.
bench-peers: train
	@command -v '$(PYTHON)' > /dev/null || { echo "bench-peers did not run: $(PYTHON) is not here; PYTHON=... names an interpreter that has PyTorch"; exit 2; }
	@'$(PYTHON)' bench/peers/compare.py --train $(BIN)/train --json $(BUILD)/bench_peers.json
	@echo "every number: $(BUILD)/bench_peers.json"

# ------------------------------------------------------------------------------------------------------------- demo
DEMO_TEXT := $(BUILD)/demo_text
DEMO_RUNS := $(if $(filter .,$(PLAIN_BIN)),runs,$(BUILD)/runs)

demo: train demo-packages
	@sh data/make_demo_text.sh $(DEMO_TEXT)
	@run=$(DEMO_RUNS)/demo; n=2; while [ -e $$run ]; do run=$(DEMO_RUNS)/demo-$$n; n=$$((n + 1)); done; \
	set -e; echo; \
	$(BIN)/train --run $$run --data 'text:$(DEMO_TEXT)/kjv.txt?split=%' --holdout 0.05 \
	    --val 'fortunes=text:$(DEMO_TEXT)/fortunes.txt?split=%' \
	    --layers 4 --heads 4 --channels 128 --context 64 --batch 12 --steps 3000 --eval-every 1000 \
	    --probes full --probe-every 50 --ring 0; \
	echo; echo "Evaluated on all of the held-out text:"; \
	$(BIN)/train eval $$run --eval-sequences 0; \
	echo; echo "A sample:"; echo; \
	$(BIN)/train sample $$run --prompt "In the beginning" --tokens 400; \
	echo; echo "The run is in $$run: config.toml, run.db, checkpoints/."; \
	echo "More text:       $(BIN)/train sample $$run --prompt 'And God said'"; \
	echo "Its loss curve:  sqlite3 $$run/run.db 'select step, loss from steps where step % 100 = 0'"; \
	echo; echo "What happened in it:"; $(BIN)/train report $$run -o $$run/report.html

# ------------------------------------------------------------------------------------------------------ housekeeping
format:
	clang-format -i $$(git ls-files '*.cu' '*.cpp' '*.h' 'report/*.js')

clean:
	rm -rf $(BUILD)/cpu* $(BUILD)/cuda* $(BUILD)/kernels $(BUILD)/report $(PLAIN_BIN)/train
