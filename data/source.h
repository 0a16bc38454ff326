// One source of sequences: what a Dataset mixes. Text and token files are stored documents, read epoch after
// epoch in permuted orders; a synthetic source makes each sequence when it is asked for.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "data/dataset.h"
#include "data/documents.h"
#include "data/spec.h"

namespace wobble {

class Source {
  public:
    virtual ~Source() = default;
    /// V: every token is in [0, V).
    virtual int vocab() const = 0;
    /// Sequences in an epoch of the selected part; nominal for a source without end.
    virtual int64_t sequences() const = 0;
    /// Tokens in the selected part; nominal for a source without end.
    virtual int64_t tokens() const = 0;
    /// One clause for people, such as "1,189 documents, 4,404,000 tokens".
    virtual std::string describe() const = 0;
    /// See Dataset::loss_floor.
    virtual std::optional<double> loss_floor() const { return std::nullopt; }
    /// The sequence that this source gives on its `visit`-th visit; as Dataset::read, with Provenance::source
    /// left 0.
    virtual Provenance read(int64_t visit, int32_t* inputs, int32_t* targets) const = 0;
};

/// Documents in memory or in files, laid end to end. A derived class says what the tokens are.
///
/// Sequence k of a part of N tokens has the inputs [kT, kT + T) and the targets [kT + 1, kT + T + 1), cut off
/// at N: so there are ceil((N - 1) / T) of them, and every token but the first is a target once.
class StoredSource : public Source {
  public:
    /// `number` is the place of this source in the mixture: equal sources have different orders. Throws
    /// UserError where the selected part holds fewer than T + 1 tokens; `name` is what messages call the
    /// source.
    StoredSource(const std::string& name, int number, const DatasetOptions& options, Documents documents);

    int64_t sequences() const override;
    int64_t tokens() const override { return documents_.tokens(); }
    std::string describe() const override;
    Provenance read(int64_t visit, int32_t* inputs, int32_t* targets) const override;

  protected:
    /// Copies `count` tokens from `position`, counted over the whole source, to out.
    virtual void copy(int64_t position, int64_t count, int32_t* out) const = 0;

  private:
    void copy_part(int64_t position, int64_t count, int32_t* out) const;

    DatasetOptions options_;
    int number_;
    Documents documents_;
};

/// Openers of the three kinds. Each throws UserError for options it does not know and files it cannot use.
std::shared_ptr<const Source> open_text(const Term& term, int number, const DatasetOptions& options);
std::shared_ptr<const Source> open_tokens(const Term& term, int number, const DatasetOptions& options);
std::shared_ptr<const Source> open_synthetic(const Term& term, int number, const DatasetOptions& options);

}  // namespace wobble
