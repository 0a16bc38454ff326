#include "run/origin.h"

#include <nlohmann/json.hpp>

#include "kernels/rows.h"
#include "probes/recorder.h"

namespace wobble {
namespace {

bool is_parameter_part(const std::string& site) {
    for (const std::string part : {".weight", ".bias", ".examples"})
        if (site.ends_with(part)) return true;
    return false;
}

/// The row among the micro-batch's tokens that a place in a record belongs to; -1: to none. Most kernels work
/// on a row for each token; flat ones on rows of 4,096 numbers, whose place among all of them tells the
/// token.
int64_t token_row(const Record& r, int64_t row, int64_t column, int64_t tokens) {
    if (r.phase == Phase::Update || is_parameter_part(r.site) || row < 0) return -1;
    if (r.rows % tokens == 0 && row < tokens) return row;
    const int64_t values = r.moments().count + r.moments().nonfinite();
    const int64_t width = values / tokens;
    if (values % tokens != 0 || width == 0 || r.rows % flat_rows(tokens * width) != 0) return -1;
    const int64_t token = (row * flat_row + column) / width;
    return token < tokens ? token : -1;
}

/// The tensor beside a site: h.2.mlp.fc.weight of h.2.mlp.fc.
std::string parameter_of(const Record& r, const ParameterTable& table) {
    if (table.find(r.site)) return r.site;
    const std::string weight = r.site + ".weight";
    if (table.find(weight)) return weight;
    return r.site == "embedding" && table.find("wte.weight") ? "wte.weight"
           : r.site == "head" && table.find("wte.weight")    ? "wte.weight"
                                                             : "";
}

}  // namespace

Origin origin_of(const Record& r, int64_t row, int64_t column, int64_t micro, const BatchFacts& facts,
                 const ParameterTable& table) {
    const Moments& m = r.moments();
    Origin origin{.site = r.site,
                  .kernel = r.kernel,
                  .channel = r.channel,
                  .phase = r.phase,
                  .row = row,
                  .column = column,
                  .nonfinite = m.nonfinite(),
                  .values = m.count + m.nonfinite(),
                  .parameter = parameter_of(r, table),
                  .token = std::nullopt};
    const int64_t at = token_row(r, row, column, facts.sequences * facts.context);
    if (at < 0) return origin;
    const int64_t sequence = at / facts.context, position = at % facts.context,
                  index = micro * facts.sequences + sequence;
    if (index >= int64_t(facts.batch.provenance.size())) return origin;
    const Provenance& place = facts.batch.provenance[size_t(index)];
    origin.token = {.micro = micro,
                    .sequence = sequence,
                    .position = position,
                    .token = facts.batch.inputs[size_t(index * facts.context + position)],
                    .source = place.source,
                    .document = place.document,
                    .offset = place.offset + position,
                    .source_name = facts.data.source_name(place.source)};
    return origin;
}

std::string Origin::phrase() const {
    const auto n = [](int64_t number) { return std::to_string(number); };
    std::string text = site + " (" + phase_name(phase) + ", " + channel + " of " + kernel;
    if (row >= 0) text += ", row " + n(row);
    if (column >= 0) text += ", column " + n(column);
    if (nonfinite > 0) text += "; " + n(nonfinite) + " of " + n(values) + " values";
    text += ")";
    if (!parameter.empty() && parameter != site) text += ", which uses " + parameter;
    if (token) {
        text += "; the token at position " + n(token->position) + " of sequence " + n(token->sequence) +
                " of micro-batch " + n(token->micro) + ": document " + n(token->document) + ", offset " +
                n(token->offset) + " of " + token->source_name;
    }
    return text;
}

nlohmann::ordered_json Origin::json() const {
    nlohmann::ordered_json json = {{"site", site},       {"phase", phase_name(phase)}, {"kernel", kernel},
                                   {"channel", channel}, {"nonfinite", nonfinite},     {"values", values}};
    if (row >= 0) json["row"] = row;
    if (column >= 0) json["column"] = column;
    if (nonfinite == 0) json["value"] = value;
    if (!parameter.empty()) json["parameter"] = parameter;
    if (token) {
        json["micro"] = token->micro, json["sequence"] = token->sequence, json["position"] = token->position;
        json["token"] = token->token, json["source"] = token->source, json["document"] = token->document;
        json["offset"] = token->offset, json["source_name"] = token->source_name;
    }
    return json;
}

}  // namespace wobble
