#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <utility>

#include "run/machine.h"

namespace wobble {

int usable_cores() {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 1;
    std::set<std::pair<int, int>> cores;  // (package, core): hyper-threads share one
    int logical = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (!CPU_ISSET(cpu, &allowed)) continue;
        ++logical;
        const std::string topology = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
        int package = 0, core = cpu;
        std::ifstream(topology + "physical_package_id") >> package;
        if (!(std::ifstream(topology + "core_id") >> core)) core = cpu;
        cores.insert({package, core});
    }
    int count = std::min(logical, int(cores.size()));
    std::string quota;
    double period = 0;
    if (std::ifstream("/sys/fs/cgroup/cpu.max") >> quota >> period && quota != "max" && period > 0) {
        count = std::min(count, int(std::stod(quota) / period + 0.5));
    }
    return std::max(1, count);
}

void sleep_while_waiting(char** argv) {
    if (std::getenv("GOMP_SPINCOUNT") || std::getenv("OMP_WAIT_POLICY")) return;
    setenv("GOMP_SPINCOUNT", "1000", 1);  // about a microsecond
    execv("/proc/self/exe", argv);
    // Where that is not possible, the program goes on as it is.
}

#define WOBBLE_TEXT_OF(x) #x
#define WOBBLE_TEXT(x) WOBBLE_TEXT_OF(x)

const char* build_description() {
    return ""
#ifdef __CUDACC__
           "nvcc " WOBBLE_TEXT(__CUDACC_VER_MAJOR__) "." WOBBLE_TEXT(__CUDACC_VER_MINOR__) " over "
#endif
           "g++ " __VERSION__
#ifdef __CUDACC__
           ", CUDA kernels compiled in"
#else
           ", CPU only"
#endif
#if defined(__AVX512F__)
           ", AVX-512"
#elif defined(__AVX2__)
           ", AVX2"
#else
           ", generic vectors"
#endif
#ifdef __SANITIZE_ADDRESS__
           ", sanitized"
#endif
        ;
}

bool built_for_cuda() {
#if defined(__CUDACC__) || defined(WOBBLE_SIMT)
    return true;
#else
    return false;
#endif
}

}  // namespace wobble
