// Sequences of stored documents: how a stream of tokens is cut, and in which order the pieces are visited.
#include "data/source.h"

#include <algorithm>

#include "data/permutation.h"
#include "kernels/error.h"

namespace wobble {

namespace {

const char* part_name(Part part) {
    return part == Part::All ? "" : part == Part::Train ? "training part " : "held-out part ";
}

}  // namespace

StoredSource::StoredSource(const std::string& name, int number, const DatasetOptions& options,
                           Documents documents)
    : options_(options), number_(number), documents_(std::move(documents)) {
    const int64_t found = documents_.tokens();
    if (found > options.context) return;
    const std::string held = name + ": " + part_name(options.part) + "holds " + std::to_string(found) +
                             (found == 1 ? " token" : " tokens");
    if (found < 2) throw UserError(held + "; expected at least 2; add data or change the held-out share");
    throw UserError(held + "; a sequence of T = " + std::to_string(options.context) + " needs " +
                    std::to_string(options.context + int64_t{1}) + "; use --context " +
                    std::to_string(found - 1) + " or less, or add data");
}

int64_t StoredSource::sequences() const {
    return (documents_.tokens() - 1 + options_.context - 1) / options_.context;
}

std::string StoredSource::describe() const {
    return std::string(part_name(options_.part)) + std::to_string(documents_.tokens()) + " tokens in " +
           std::to_string(documents_.documents()) +
           (documents_.documents() == 1 ? " document" : " documents");
}

Provenance StoredSource::read(int64_t visit, int32_t* inputs, int32_t* targets) const {
    const int64_t n = sequences();
    const Permutation order(n, options_.seed, Purpose::Order, static_cast<uint32_t>(number_), visit / n);
    const int64_t T = options_.context;
    const int64_t start = order(visit % n) * T;
    const int64_t count = std::min(T, documents_.tokens() - 1 - start);  // how many tokens have a successor

    copy_part(start, count, inputs);
    std::copy(inputs + 1, inputs + count, targets);
    copy_part(start + count, 1, targets + count - 1);
    std::fill(inputs + count, inputs + T, 0);
    std::fill(targets + count, targets + T, -1);

    const Documents::Place place = documents_.locate(start);
    return {.source = 0, .document = place.document, .offset = place.offset};
}

void StoredSource::copy_part(int64_t position, int64_t count, int32_t* out) const {
    while (count > 0) {
        const Documents::Place place = documents_.locate(position);
        const int64_t run = std::min(count, place.left);
        copy(place.position, run, out);
        position += run;
        count -= run;
        out += run;
    }
}

}  // namespace wobble
