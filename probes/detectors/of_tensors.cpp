// Detectors of what the optimizer sees: gradients, second moments and updates of each tensor.
#include <algorithm>
#include <cmath>

#include "probes/detectors/detectors.h"
#include "probes/detectors/words.h"

namespace wobble {
namespace {

/// A gradient far larger than the second moment remembers: the update of AdamW is then too long (StableAdamW,
/// Wortsman et al. 2023: RMS_t of 2.3 and more comes before loss spikes).
class RmsT : public Detector {
  public:
    RmsT() : Detector("rms_t", 1) {}

  private:
    void watch(const Evidence& e) override {
        for (const TensorRow& t : e.seen.tensors) {
            const History::Verdict v =
                history(t.name, {.window = 64, .least = 16, .spreads = 8, .smallest = 0.05}).take(t.rms_t);
            if (!v.out || t.rms_t < 2.3) continue;
            raise(t.rms_t > 10 ? Severity::Warning : Severity::Note, t.name, v.usual, t.rms_t,
                  "the gradient of " + t.name + " is " + number_text(t.rms_t) +
                      " times what its second moment expects; usual is " + number_text(v.usual),
                  as_json({{"spreads", v.spreads}}));
        }
    }
};

/// A tensor moves by far more than before, for its size.
class UpdateNorm : public Detector {
  public:
    UpdateNorm() : Detector("update norm", 1) {}

  private:
    void watch(const Evidence& e) override {
        if (!(e.step.lr > 0)) return;
        for (const TensorRow& t : e.seen.tensors) {
            // A schedule is no news.
            const double x = t.update_ratio / e.step.lr;
            if (!(t.update_ratio > 0) || !std::isfinite(t.update_ratio))
                continue;  // weights of zero, at first
            const History::Verdict v =
                history(t.name, {.window = 64, .least = 16, .spreads = 10, .smallest = 0.05}).take(x);
            if (!v.out || x < 4 * v.usual) continue;
            raise(x < 10 * v.usual ? Severity::Note : Severity::Warning, t.name, v.usual * e.step.lr,
                  t.update_ratio,
                  t.name + " moves by " + number_text(t.update_ratio) + " of its norm in a step, " +
                      number_text(x / v.usual) + " times as much as before at this learning rate",
                  as_json({{"spreads", v.spreads}, {"lr", e.step.lr}}));
        }
    }
};

/// Gradients that vanish or explode from layer to layer: those of the same tensor, at both ends.
class DepthOfGradients : public Detector {
  public:
    DepthOfGradients() : Detector("gradients by depth", 1) {}

  private:
    void watch(const Evidence& e) override {
        std::map<std::string, std::pair<double, double>> by_kind;  // first and last layer
        for (const TensorRow& t : e.seen.tensors) {
            int layer = 0, length = 0;
            if (std::sscanf(t.name.c_str(), "h.%d.%n", &layer, &length) != 1 || !(t.grad_rms > 0)) continue;
            if (!t.name.ends_with(".weight")) continue;
            auto& [first, last] =
                by_kind.try_emplace(t.name.substr(size_t(length)), t.grad_rms, 0).first->second;
            last = t.grad_rms;
        }
        for (const auto& [kind, ends] : by_kind) {
            if (!(ends.second > 0)) continue;
            const double ratio = ends.first / ends.second, away = std::max(ratio, 1 / ratio);
            const double usual = recent(kind, away, 8);  // a single step is no trend
            if (!(usual > 1000)) continue;
            raise(usual > 1e5 ? Severity::Alarm : Severity::Warning, "h.*." + kind, 1, ratio,
                  "gradients of " + kind + (ratio < 1 ? " vanish" : " explode") +
                      " towards the first layer: " + number_text(ratio) + " times those of the last");
        }
    }
};

}  // namespace

std::vector<std::unique_ptr<Detector>> detectors_of_tensors() {
    std::vector<std::unique_ptr<Detector>> all;
    all.push_back(std::make_unique<RmsT>());
    all.push_back(std::make_unique<UpdateNorm>());
    all.push_back(std::make_unique<DepthOfGradients>());
    return all;
}

}  // namespace wobble
