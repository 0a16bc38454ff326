// Where documents lie in a source, and which of them belong to the part that is read.
//
// A source's documents are laid end to end; a position counts tokens from its beginning. The training and the
// held-out part are each a stream of their own, and its positions are translated to positions of the whole
// here.
//
//   Many documents   (at least 2 / holdout) whole documents are held out, evenly spread: document d where
//                    floor((d + 1) f) > floor(d f), f = holdout. So floor(d f) of the documents before d are
//                    held out, and a prefix sum over the held-out documents alone gives the position of any
//                    document in either part.
//   Few documents    the last floor(N f) of the N tokens are held out.
#pragma once

#include <cstdint>
#include <vector>

#include "data/dataset.h"

namespace wobble {

class Documents {
  public:
    /// A token of the part, seen from the whole source.
    struct Place {
        int64_t position;  ///< in the whole source
        int64_t document;  ///< index in the whole source
        int64_t offset;    ///< in tokens, inside the document
        int64_t
            left;  ///< tokens from here to the end of the document, this one included; all are in the part
    };

    /// `starts` [documents + 1] holds the position at which each document begins, increasing strictly from 0,
    /// and last the number of tokens of the source. Memory: 8 bytes a document, 8 more for each held-out one.
    Documents(std::vector<int64_t> starts, double holdout, Part part);

    /// Tokens in the part.
    int64_t tokens() const { return tokens_; }
    /// Documents with a token in the part.
    int64_t documents() const;
    /// The token at `position` of the part, 0 <= position < tokens().
    Place locate(int64_t position) const;

  private:
    int64_t all_documents() const { return static_cast<int64_t>(starts_.size()) - 1; }
    int64_t held_out_before(int64_t document) const;
    int64_t part_start(int64_t document) const;

    std::vector<int64_t> starts_;
    double holdout_;
    Part part_;
    bool whole_documents_;           // held out by document, not by the tail
    int64_t tail_ = 0;               // position at which a held-out tail begins
    std::vector<int64_t> held_out_;  // [held-out documents + 1] tokens in those before
    int64_t tokens_ = 0;
};

}  // namespace wobble
