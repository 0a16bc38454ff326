// What the model reads: sequences of T tokens and the tokens that follow them, in an order fixed by the seed.
//
// A dataset is one source or a weighted mixture of sources. Which sequence stands at which index is computed
// from (seed, index) alone: nothing is remembered between reads, so the order is the same however it is cut
// into batches, and a run that resumes needs only the next index.
//
//   One source     epoch e visits its n sequences in a permuted order of its own; index i is position i mod n
//   of epoch i / n. A mixture      every block of 1000 sequences holds a fixed number of each source (its
//   weight, by largest remainder), in
//                  an order that is permuted anew in each block. Each source goes through its own epochs at
//                  its own pace.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace wobble {

class Source;

/// Where the first input token of a sequence came from.
struct Provenance {
    int source = 0;        ///< which of the mixture, in the order of the specification
    int64_t document = 0;  ///< counted over the whole source, whatever part of it is read
    int64_t offset = 0;    ///< in tokens inside that document

    bool operator==(const Provenance&) const = default;
};

/// Which part of every source is read. Train and HeldOut are disjoint and together are All.
enum class Part { All, Train, HeldOut };

struct DatasetOptions {
    int context = 64;  ///< T, tokens in a sequence
    int vocab =
        0;  ///< tokens: ids must be below it (0: 50257; Llama-3 shards 128256); other kinds have their own
    uint64_t seed = 0;      ///< the order, and what synthetic sources draw
    double holdout = 0;     ///< share of every source kept for evaluation, in [0, 1)
    Part part = Part::All;  ///< HeldOut needs holdout > 0
};

class Dataset {
  public:
    /// Opens SPEC, one or more terms joined by '+', each with an optional weight
    /// ("0.8*text:a.txt+0.2*text:b.txt"; the weights are normalised):
    ///
    ///   text:GLOB[?split=LINE]            bytes, V = 256; a file, or the text between lines equal to LINE,
    ///   is a document,
    ///                                     and is followed by a byte 0
    ///   tokens:GLOB[?eot=ID|none]         llm.c shards (uint16, and the uint32 ones of Llama 3) or raw
    ///   uint16 synthetic:markov[?order=K&vocab=V&seed=S&temperature=X]
    ///                                     a Markov chain of known entropy (data/markov.h)
    ///
    /// The files that match GLOB are read in the order of their names. Throws UserError for a specification,
    /// a file or an option that cannot be used, and for a part that holds fewer than T + 1 tokens.
    static Dataset open(const std::string& spec, const DatasetOptions& options);

    /// V: every token is in [0, V). For a mixture, the largest of its sources.
    int vocab() const;
    /// T.
    int context() const { return options_.context; }
    /// The sum of the sequences of all sources: the number of reads after which as many sequences have been
    /// read as the selected part holds. With one source that is each of them exactly once; in a mixture,
    /// sources with more weight than size have been read more than once by then, others not yet entirely.
    /// Synthetic sources, which have no end, count with a nominal 2^20 tokens.
    int64_t sequences_per_epoch() const;
    /// Tokens in the selected part of all sources.
    int64_t tokens() const;
    int sources() const { return static_cast<int>(entries_.size()); }
    /// The term of the specification, without its weight.
    const std::string& source_name(int source) const;
    /// A line per source for people: tokens, documents, sequences, weight, entropy rate.
    std::string describe() const;
    /// The lowest mean loss that any model can reach, in nats per token at this context, or nothing when it
    /// is not known exactly: it is known for one synthetic source.
    std::optional<double> loss_floor() const;

    /// Fills inputs [T] and targets [T]; targets[t] follows inputs[t]. Where a source ends inside a sequence,
    /// the rest is padding: input 0 and target -1, which has no loss. Every token of the part but its first
    /// is a target exactly once in each epoch of its source. A pure function of (seed, index); may be called
    /// by several threads at once. index is
    /// >= 0 and has no upper bound: epochs follow each other.
    Provenance read(int64_t index, int32_t* inputs, int32_t* targets) const;

  private:
    struct Entry {
        std::shared_ptr<const Source> source;
        std::string name;
        double weight = 0;       // share of the mixture
        int64_t slots = 0;       // sequences in each block of a mixture
        int64_t first_slot = 0;  // sum of the slots of those before
    };

    DatasetOptions options_;
    std::vector<Entry> entries_;
};

}  // namespace wobble
