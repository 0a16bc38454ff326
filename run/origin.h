// Where something went wrong: the kernel's output that shows it first, and what stands behind that number in
// the data and in the model.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "data/batch.h"
#include "model/parameters.h"
#include "probes/observation.h"

namespace wobble {

struct Origin {
    std::string site, kernel, channel;
    Phase phase = Phase::Forward;
    int64_t row = -1, column = -1;      // as the kernel counts them; -1: not known
    int64_t nonfinite = 0, values = 0;  // of the values that were seen, so many are not finite
    double value = 0;                   // what stood there, where it was finite
    std::string parameter =
        {};  // the tensor that the numbers passed through, or whose gradient or update they are

    /// The token whose number it is, where a row belongs to one.
    struct Token {
        int64_t micro, sequence, position;  // micro-batch of the step, row of the micro-batch, token of it
        int32_t token;                      // that is read there
        int source;
        int64_t document, offset;  // of the token
        std::string source_name;
    };
    std::optional<Token> token = std::nullopt;

    /// "h.2.mlp.fc (forward, output of product, row 3, column 0; 1 of 8192 values), sequence 0, …"
    std::string phrase() const;
    nlohmann::ordered_json json() const;
};

/// The shape of a micro-batch, and what was read in a step.
struct BatchFacts {
    const Batch& batch;
    const Dataset& data;
    int64_t sequences, context;  // of a micro-batch
};

/// Of a number in a record: `row` and `column` as its kernel counts them.
Origin origin_of(const Record& record, int64_t row, int64_t column, int64_t micro, const BatchFacts& facts,
                 const ParameterTable& table);

}  // namespace wobble
