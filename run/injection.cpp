#include "run/injection.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <set>

#include "kernels/error.h"
#include "run/nearest.h"

namespace wobble {
namespace {

[[noreturn]] void refuse(const std::string& text, const std::string& found_and_expected) {
    throw UserError("--inject '" + text + "': " + found_and_expected);
}

constexpr const char* example = "; write for example 'nan@step=50,site=h.2.mlp.fc,row=3'";

int64_t whole(const std::string& text, const std::string& key, const std::string& value, int64_t least,
              int64_t most) {
    int64_t number = 0;
    const auto result = std::from_chars(value.data(), value.data() + value.size(), number);
    if (result.ec != std::errc() || result.ptr != value.data() + value.size() || number < least ||
        number > most) {
        refuse(text, key + "=" + value + " is no such number; expected a whole number of at least " +
                         std::to_string(least) +
                         (most < INT64_MAX ? " and at most " + std::to_string(most) : std::string()) +
                         example);
    }
    return number;
}

Change parse_change(const std::string& text, const std::string& kind) {
    if (kind == "nan") return Change(NAN);
    if (kind == "inf") return Change(INFINITY);
    if (kind == "-inf") return Change(-INFINITY);
    if (kind == "bitflip") return Change(Change::Flip, 30);  // the highest bit of the exponent
    if (kind.starts_with("scale=")) {
        const std::string factor = kind.substr(6);
        char* end = nullptr;
        const double x = std::strtod(factor.c_str(), &end);
        if (factor.empty() || *end != 0) refuse(text, "scale=" + factor + " is no number" + example);
        return Change(Change::Scale, x);
    }
    refuse(text, "'" + kind + "' is no fault; expected nan, inf, -inf, bitflip or scale=X" + example);
}

Phase parse_phase(const std::string& text, const std::string& word) {
    for (const Phase phase : {Phase::Forward, Phase::Backward, Phase::Update})
        if (word == phase_name(phase)) return phase;
    refuse(text, "phase=" + word + " is none; expected forward, backward or update");
}

/// The text's parts between separators.
std::vector<std::string> split(const std::string& text, char separator) {
    std::vector<std::string> parts;
    for (size_t at = 0; at <= text.size();) {
        const size_t end = std::min(text.find(separator, at), text.size());
        parts.push_back(text.substr(at, end - at));
        at = end + 1;
    }
    return parts;
}

bool is_at(const Record& r, const Injection& i) {
    return r.site == i.site && r.phase == i.phase && (i.kernel.empty() || i.kernel == r.kernel) &&
           (i.channel.empty() || i.channel == r.channel);
}

}  // namespace

InjectionOrder parse_injection(const std::string& text) {
    const size_t at = text.find('@');
    if (at == std::string::npos)
        refuse(text, std::string("found no '@'; expected FAULT@step=N,site=NAME") + example);
    InjectionOrder order{.text = text, .injection = {}};
    Injection& i = order.injection;
    i.change = parse_change(text, text.substr(0, at));
    std::optional<int64_t> row, column, bit;
    for (const std::string& part : split(text.substr(at + 1), ',')) {
        const size_t equals = part.find('=');
        const std::string key = part.substr(0, equals),
                          value = equals == std::string::npos ? "" : part.substr(equals + 1);
        const auto number = [&](int64_t least, int64_t most = INT64_MAX) {
            return whole(text, key, value, least, most);
        };
        if (key == "step") order.step = number(1);
        else if (key == "site") i.site = value;
        else if (key == "phase") i.phase = parse_phase(text, value), order.any_phase = false;
        else if (key == "kernel") i.kernel = value;
        else if (key == "channel") i.channel = value;
        else if (key == "row") row = number(0);
        else if (key == "column") column = number(0);
        else if (key == "micro") i.micro = number(0);
        else if (key == "bit" && i.change.kind == Change::Flip) bit = number(0, 31);
        else
            refuse(text, "'" + part +
                             "' is not understood; expected step, site, phase, row, column, micro, kernel or "
                             "channel, and bit for a bitflip" +
                             example);
    }
    if (order.step == 0)
        refuse(text, std::string("found no step; expected step=N, the first is 1") + example);
    if (i.site.empty()) refuse(text, std::string("found no site; expected site=NAME") + example);
    const bool all = i.change.kind == Change::Scale;  // one number alone would hardly be felt
    i.column = column.value_or(all ? Fault::every : 0);
    i.row = row.value_or(all ? Fault::every : 0);
    if (bit) i.change.by = double(*bit);
    return order;
}

void complete(InjectionOrder& order, const std::vector<Record>& records) {
    Injection& i = order.injection;
    std::set<std::string> names;
    const Record* found = nullptr;
    for (const Phase phase : {Phase::Forward, Phase::Backward, Phase::Update}) {
        if (order.any_phase ? found != nullptr : phase != i.phase) continue;
        const Injection wanted{i.site, phase, i.kernel, i.channel, 0, 0, {}};
        for (const Record& r : records) {
            if (r.phase == phase) names.insert(r.site);
            // The last kernel's first channel.
            if (is_at(r, wanted) && (!found || std::string(found->kernel) != r.kernel)) found = &r;
        }
    }
    if (!found) {
        const std::string close = nearest(i.site, {names.begin(), names.end()});
        refuse(order.text, "a step shows nothing of site " + i.site +
                               (order.any_phase ? "" : std::string(" in phase ") + phase_name(i.phase)) +
                               (i.kernel.empty() ? "" : " and kernel " + i.kernel) +
                               (i.channel.empty() ? "" : " and channel " + i.channel) +
                               (close.empty() || close == i.site
                                    ? "; table sites of a run with --probes moments lists what there is"
                                    : "; did you mean " + close + "?"));
    }
    i.phase = found->phase, i.kernel = found->kernel, i.channel = found->channel;
}

void check_that_it_hits(const InjectionOrder& order, const std::vector<Record>& records) {
    for (const Record& r : records)
        if (is_at(r, order.injection) && r.moments().nonfinite() > 0) return;
    for (const Record& r : records) {
        if (!is_at(r, order.injection)) continue;
        const int64_t values = r.moments().count, rows = std::max<int64_t>(r.rows, 1);
        refuse(order.text, "row " + std::to_string(order.injection.row) + ", column " +
                               std::to_string(order.injection.column) + " of micro-batch " +
                               std::to_string(order.injection.micro) + " is not there; " +
                               order.injection.site + " has " + std::to_string(values) + " values in " +
                               std::to_string(rows) + " rows a step; choose a place inside");
    }
}

}  // namespace wobble
