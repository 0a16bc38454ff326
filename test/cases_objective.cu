// Kernel cases of what the classifier can minimise besides the loss, and of capped logits.
#include <algorithm>
#include <cmath>

#include "kernels/classifier.h"
#include "kernels/softcap.h"
#include "probes/launch.h"
#include "test/naive.h"

namespace wobble::test {

namespace {

constexpr double scale = 0.25;  // a power of two, so that it rounds alike everywhere

struct Options {
    const char* name;
    double z_loss = 0, smoothing = 0, softcap = 0;
};

template <class T>
T capped_logit(T raw, const Options& o) {
    return o.softcap == 0 ? raw : T(o.softcap) * std::tanh(raw / T(o.softcap));
}

/// Losses, objectives and the gradient of what went into the cap, from logits that have come out of it;
/// `log_z` and the sums of dz besides.
template <class T>
struct Classified {
    std::vector<T> losses, objectives, dlogits, log_z, sums, sizes;
};
template <class T>
Classified<T> classify(const std::vector<T>& z, const Values& targets, int64_t V, const Options& o) {
    const int64_t rows = int64_t(targets.size());
    Classified<T> result;
    for (int64_t r = 0; r < rows; ++r) {
        const T* row = z.data() + r * V;
        const int64_t target = int64_t(targets[size_t(r)]);
        T maximum = -std::numeric_limits<T>::infinity(), sum = 0, below = 0;
        for (int64_t v = 0; v < V; ++v) maximum = row[v] > maximum ? row[v] : maximum;
        for (int64_t v = 0; v < V; ++v) sum += std::exp(row[v] - maximum);
        const T log_z = maximum + std::log(sum);
        for (int64_t v = 0; v < V && o.smoothing != 0; ++v) below += (log_z - row[v]) / T(V);
        const T loss = target < 0 ? T(0) : log_z - row[target];
        result.log_z.push_back(log_z);
        result.losses.push_back(loss);
        result.objectives.push_back(target < 0 ? T(0)
                                               : (1 - T(o.smoothing)) * loss + T(o.smoothing) * below +
                                                     T(o.z_loss) * log_z * log_z);
        T total = 0, size = 0;
        for (int64_t v = 0; v < V; ++v) {
            const T p = std::exp(row[v] - maximum) / sum * (1 + 2 * T(o.z_loss) * log_z);
            const T wanted = (v == target ? 1 - T(o.smoothing) : T(0)) + T(o.smoothing) / T(V);
            const T dz = target < 0 ? T(0) : (p - wanted) * T(scale);
            const T share = o.softcap == 0 ? T(0) : row[v] / T(o.softcap);
            total += dz, size += target < 0 ? T(0) : (std::abs(p) + wanted) * T(scale);
            result.dlogits.push_back(dz * (1 - share * share));
        }
        result.sums.push_back(target < 0 ? T(0) : total - 2 * T(o.z_loss) * log_z * T(scale));
        result.sizes.push_back(target < 0 ? T(0) : size + std::abs(2 * T(o.z_loss) * log_z * T(scale)));
    }
    return result;
}

// --------------------------------------------------------------------------------------------- the objective
KernelCase objective(int64_t rows, int64_t V, const Options& o, bool in_place) {
    KernelCase c;
    c.name =
        label(std::string(in_place ? "objective_in_place_" : "objective_") + o.name, "rows", rows, "V", V);
    c.terms = V + 16;
    if (!in_place && o.softcap == 0) c.forward = c.name;
    c.loss_weight = scale;
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        Values logits = random_values(seed + "logits", rows * V, 3);
        for (double& z : logits) z = double(float(capped_logit(z, o)));
        Values targets = random_indices(seed + "targets", rows, V);
        for (int64_t r = 1; r < rows; r += 4) targets[r] = -1;
        std::vector<Operand> operands{in("targets", targets, Kind::Index), out("losses", rows, Kind::Sum),
                                      out("objectives", rows, Kind::Sum)};
        operands.push_back(in_place ? in_out("dlogits", logits) : in("logits", logits));
        if (!in_place) operands.push_back(out("dlogits", rows * V));
        return operands;
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        using A = Accumulator<E>;
        launch(context, rows,
               SoftmaxCrossEntropy<E>{.logits = at.get<E>(in_place ? "dlogits" : "logits"),
                                      .targets = at.get<int32_t>("targets"),
                                      .losses = at.get<A>("losses"),
                                      .dlogits = at.get<E>("dlogits"),
                                      .V = V,
                                      .scale = A(scale),
                                      .z_loss = A(o.z_loss),
                                      .label_smoothing = A(o.smoothing),
                                      .softcap = A(o.softcap),
                                      .objectives = at.get<A>("objectives")},
               {"case"});
    });
    const auto all = [=](const Named& given, auto zero) {
        return classify(naive::as<decltype(zero)>(given, {"logits", "dlogits"}), given.at("targets"), V, o);
    };
    const auto named = [=](const Named& given, auto zero) -> Named {
        const auto found = all(given, zero);
        return {{"losses", naive::back(found.losses)},
                {"objectives", naive::back(found.objectives)},
                {"dlogits", naive::back(found.dlogits)}};
    };
    c.reference = [=](const Named& given) -> Named {
        Named result = named(given, double{});
        const double logits = largest_magnitude(any_of(given, {"logits", "dlogits"}));
        result["|losses|"] = {std::max(logits, std::log(double(V)))};
        result["|objectives|"] = {result["|losses|"][0] + 2 * largest_magnitude(result.at("objectives"))};
        const Classified<double> found = all(given, double{});
        // 2 c log Z · p and what softcap takes off; log Z errs in proportion to itself.
        result["|dlogits|"] = {scale * (1 + 2 * o.z_loss * largest_magnitude(found.log_z))};
        return result;
    };
    set_naive(c, named);
    const double roundings = 4 + std::sqrt(double(V));
    const auto of_rows = [=](auto f) {
        return [=](const Named& before, const Named&) {
            Values seen;
            const Values z = any_of(before, {"logits", "dlogits"});
            for (int64_t r = 0; r < rows; ++r) seen.push_back(f(z.data() + r * V));
            return seen;
        };
    };
    const auto largest = [=](const double* z) {
        double most = -INFINITY;
        for (int64_t v = 0; v < V; ++v) most = z[v] > most ? z[v] : most;
        return most;
    };
    const auto counted = [](const char* name) {
        return [=](const Named& before, const Named& after) {
            Values values;
            for (size_t r = 0; r < after.at(name).size(); ++r)
                if (before.at("targets")[r] >= 0) values.push_back(after.at(name)[r]);
            return values;
        };
    };
    c.observed = {
        {"loss", counted("losses")},
        {"log_z", [=](const Named& before, const Named&) { return all(before, double{}).log_z; }, roundings},
        sees("gradient", "dlogits"),
        {"max_logit", of_rows(largest)},
        {"mean_logit", of_rows([=](const double* z) {
             double sum = 0;
             for (int64_t v = 0; v < V; ++v) sum += z[v] / double(V);
             return sum;
         }),
         roundings,
         [](const Named& before, const Named&) {
             return largest_magnitude(any_of(before, {"logits", "dlogits"}));
         }},
        {"top_probability", of_rows([=](const double* z) {
             const double most = largest(z);
             double sum = 0;
             for (int64_t v = 0; v < V; ++v) sum += std::exp(z[v] - most);
             return 1 / sum;
         }),
         8 + roundings},
        {"objective", counted("objectives")}};
    c.identities = [=](const Named& before) -> std::vector<ObservedIdentity> {
        ObservedIdentity sum{"softmax_cross_entropy", "sum dlogits", {}, {}, {}};
        const Classified<double> found = all(before, double{});
        sum.residuals = found.sums, sum.scales = found.sizes;
        for (double size : found.sizes) sum.uncertainties.push_back((8 + roundings) * size);
        return {sum};
    };
    return c;
}

// --------------------------------------------------------------------------------------------- capped logits
KernelCase cap(int64_t rows, int64_t V, const Options& o) {
    KernelCase c;
    c.name = label("logit_softcap", "rows", rows, "V", V);
    c.terms = 8;
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        return {in_out("logits", random_values(seed + "logits", rows * V, 3))};
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        launch(context, rows,
               LogitSoftcap<E>{.logits = at.get<E>("logits"), .V = V, .cap = Accumulator<E>(o.softcap)},
               {"case"});
    });
    const auto all = [=](const Named& given, auto zero) -> Named {
        auto z = naive::as<decltype(zero)>(given, {"logits"});
        for (auto& value : z) value = capped_logit(value, o);
        return {{"logits", naive::back(z)}};
    };
    c.reference = [=](const Named& given) { return all(given, double{}); };
    set_naive(c, all);
    c.observed = {sees("output", "logits")};
    return c;
}

}  // namespace

void add_objective_cases(std::vector<KernelCase>& table) {
    const Options capped{.name = "capped", .softcap = 8};
    const Options options[] = {{.name = "z_loss", .z_loss = 0x1p-6},
                               {.name = "smoothed", .smoothing = 0.125},
                               capped,
                               {.name = "all", .z_loss = 0x1p-6, .smoothing = 0.125, .softcap = 8}};
    for (const Options& o : options) {
        for (bool in_place : {false, true}) {
            table.push_back(objective(17, 67, o, in_place));
            table.push_back(objective(5, 256, o, in_place));  // in packs
        }
        table.push_back(objective(3, 2, o, false));
    }
    for (int64_t V : {1, 23, 257, 256}) table.push_back(cap(5, V, capped));
}

}  // namespace wobble::test
