#include "bench/measure.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <string>

namespace wobble::bench {

namespace {

double wall_seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double processor_seconds() {
    timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

/// The value a share `at` of the way through sorted values.
double quantile(const std::vector<double>& sorted, double at) {
    const double place = at * double(sorted.size() - 1);
    const size_t below = size_t(place), above = std::min(below + 1, sorted.size() - 1);
    return sorted[below] + (place - double(below)) * (sorted[above] - sorted[below]);
}

}  // namespace

Turns measure_in_turns(const std::vector<std::function<void()>>& variants, const Effort& effort) {
    Turns turns{std::vector<Rounds>(variants.size()), 1};
    if (effort.before_round) effort.before_round();
    // The first call waits for memory to be handed out.
    for (size_t v = 0; v < (effort.least_rounds > 1 ? variants.size() : 1); ++v) variants[v]();
    if (effort.sample_seconds > 0) {
        const double begin = wall_seconds();
        int64_t calls = 0;
        for (; wall_seconds() - begin < effort.sample_seconds; ++calls) {
            variants[0]();
            if (effort.finish) effort.finish();
        }
        turns.calls = calls;
    }
    const double begin = wall_seconds();
    for (int round = 0; round < effort.least_rounds || wall_seconds() - begin < effort.seconds; ++round) {
        if (effort.before_round) effort.before_round();
        for (size_t i = 0; i < variants.size(); ++i) {
            const size_t v = (i + size_t(round)) % variants.size();
            const double wall = wall_seconds(), processor = processor_seconds();
            for (int64_t call = 0; call < turns.calls; ++call) variants[v]();
            if (effort.finish) effort.finish();
            turns.variants[v].wall.push_back((wall_seconds() - wall) / double(turns.calls));
            turns.variants[v].processor.push_back((processor_seconds() - processor) / double(turns.calls));
        }
    }
    return turns;
}

Middle middle(std::vector<double> values) {
    if (values.empty()) return {NAN, NAN, NAN};
    std::sort(values.begin(), values.end());
    return {quantile(values, 0.5), quantile(values, 0.25), quantile(values, 0.75)};
}

OtherWork::OtherWork() : begin_(spent()) {}

OtherWork::Spent OtherWork::spent() {
    // cpu user nice system idle iowait irq softirq steal, in clock ticks (man 5 proc)
    std::ifstream stat("/proc/stat");
    std::string cpu;
    double ticks[8] = {}, all = 0;
    stat >> cpu;
    for (double& t : ticks) stat >> t, all += t;
    if (!stat) all = NAN;
    const double idle = ticks[3] + ticks[4], second = double(sysconf(_SC_CLK_TCK));
    return {(all - idle) / second, all / second, processor_seconds()};
}

double OtherWork::share() const {
    const Spent now = spent();
    const double others = now.busy - begin_.busy - (now.by_this_process - begin_.by_this_process);
    return std::max(0.0, others) / (now.all - begin_.all);
}

std::vector<double> paired_overheads(const std::vector<double>& costs, const std::vector<double>& base) {
    std::vector<double> overheads;
    for (size_t i = 0; i < costs.size(); ++i) overheads.push_back(costs[i] / base[i] - 1);
    return overheads;
}

}  // namespace wobble::bench
