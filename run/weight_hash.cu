#include <bit>
#include <cstdio>
#include <vector>

#include "kernels/fingerprint.h"
#include "kernels/run.h"
#include "probes/launch.h"
#include "run/weight_hash.h"

namespace wobble {
namespace {

/// Takes one more number into a hash; their order counts. The finaliser of MurmurHash3 for 64 bits.
uint64_t with(uint64_t hash, uint64_t number) {
    uint64_t x = hash ^ (number + 0x9e3779b97f4a7c15u + (hash << 6));
    x = (x ^ x >> 33) * 0xff51afd7ed558ccdu;
    x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53u;
    return x ^ x >> 33;
}

}  // namespace

WeightHash::WeightHash(int64_t n, Device device) : n_(n) {
    memory_.plan(device, [this](Memory& memory) {
        memory.begin("hash of the weights");
        partials_ = memory.take<double>(flat_rows(n_));
    });
}

void WeightHash::launch(Context& context, const float* weights) {
    run_bare(context, flat_rows(n_), Fingerprint{.x = weights, .partials = partials_, .n = n_});
}

uint64_t WeightHash::value() const {
    uint64_t hash = uint64_t(n_);
    const HostCopy<double> partials(memory_.device(), partials_, flat_rows(n_));
    for (int64_t i = 0; i < flat_rows(n_); ++i)
        hash = with(hash, std::bit_cast<uint64_t>(partials.data()[i]));
    return hash;
}

uint64_t hash_of(const Batch& batch) {
    uint64_t hash = batch.inputs.size();
    for (const std::vector<int32_t>* tokens : {&batch.inputs, &batch.targets}) {
        for (const int32_t token : *tokens) hash = with(hash, uint64_t(uint32_t(token)));
    }
    return hash;
}

std::string hexadecimal(uint64_t hash) {
    char text[17];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
    return text;
}

}  // namespace wobble
