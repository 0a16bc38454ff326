// Detectors of what probes see inside the model.
#include <algorithm>
#include <cmath>

#include "probes/detectors/detectors.h"
#include "probes/detectors/words.h"

namespace wobble {
namespace {

/// Logits of attention that grow without bound: softmax saturates, and its gradient dies or, in bf16, loses
/// its digits (Dehghani et al. 2023; Wortsman et al. 2023).
class AttentionLogits : public Detector {
  public:
    AttentionLogits() : Detector("attention logits", 1) {}

  private:
    void watch(const Evidence& e) override {
        for (const HeadRow& h : e.seen.heads) {
            const std::string site = h.site + " head " + std::to_string(h.head);
            const double now = recent(site, h.abs_logit, 4);
            if (!std::isfinite(now)) continue;
            double& least = number(site, now);
            least = std::min(least, now);
            const bool far = now > 1000;
            if (!far && (now < 100 || now < 4 * least)) continue;
            raise(far ? Severity::Alarm : Severity::Warning, site, least, now,
                  "attention logits of " + site + " reach " + number_text(now) + "; the least so far were " +
                      number_text(least));
        }
    }
};

/// Heads of a layer that all look at a single key, and did not before (Zhai et al. 2023).
class EntropyCollapse : public Detector {
  public:
    EntropyCollapse() : Detector("entropy collapse", 1) {}

  private:
    void watch(const Evidence& e) override {
        struct Layer {
            double entropy = 0, saturated = 0, heads = 0;
        };
        std::map<std::string, Layer> layers;
        for (const HeadRow& h : e.seen.heads) {
            Layer& layer = layers[h.site];
            layer.entropy += h.entropy, layer.saturated += h.saturated, layer.heads += 1;
        }
        for (const auto& [site, layer] : layers) {
            const double now = recent(site, layer.entropy / layer.heads, 4);
            if (!std::isfinite(now)) continue;
            double& most = number(site, now);
            most = std::max(most, now);
            const double saturated = layer.saturated / layer.heads;
            if (now > 0.05 * most || saturated < 0.5) continue;
            raise(saturated > 0.9 ? Severity::Alarm : Severity::Warning, site, most, now,
                  "attention of " + site + " has collapsed: mean entropy " + number_text(now) +
                      " nats, once " + number_text(most) + "; " + number_text(100 * saturated) +
                      " % of queries see one key alone");
        }
    }
};

/// The logits' normaliser drifts away from where softmax began (PaLM's z-loss is against it: Chowdhery et al.
/// 2022).
class LogZ : public Detector {
  public:
    LogZ() : Detector("log Z drift", 1) {}

  private:
    void watch(const Evidence& e) override {
        for (const Record& r : e.seen.records) {
            if (std::string(r.channel) != "log_z" || r.moments().count == 0) continue;
            const double now = recent(r.site, r.moments().mean, 8);
            const double away = std::fabs(now - std::log(e.facts.vocab));
            if (!(away > 30)) continue;
            raise(away > 100 ? Severity::Alarm : Severity::Warning, r.site, std::log(e.facts.vocab), now,
                  "log Z has drifted to " + number_text(now) + "; log V is " +
                      number_text(std::log(e.facts.vocab)));
        }
    }
};

/// A residual stream that grows from layer to layer, or over the run, far beyond the rest.
class ResidualGrowth : public Detector {
  public:
    ResidualGrowth() : Detector("residual growth", 1) {}

  private:
    void watch(const Evidence& e) override {
        for (const StreamRow& s : e.seen.streams) {
            const double now = recent(s.site, s.stream_rms, 4);
            if (!(now > 0)) continue;
            const double first = number(s.site, now), times = now / first;
            if (times > 100 && now > 10) {
                raise(times > 1e4 ? Severity::Alarm : Severity::Warning, s.site, first, now,
                      "the residual stream before " + s.site + " has an RMS of " + number_text(now) + ", " +
                          number_text(times) + " times what it began with");
            }
        }
        if (e.seen.streams.empty()) return;
        // By depth: an embedding may begin small, so from the second branch on.
        const auto& streams = e.seen.streams;
        const double second = streams[std::min<size_t>(1, streams.size() - 1)].stream_rms;
        const StreamRow& last = streams.back();
        if (last.stream_rms > 1000 * second && second > 0) {
            raise(Severity::Warning, last.site, second, last.stream_rms,
                  "the residual stream grows " + number_text(last.stream_rms / second) +
                      " times from the first layer to the last");
        }
    }
};

/// Channels after an activation that no row of the batch turns on.
class DeadUnits : public Detector {
  public:
    DeadUnits() : Detector("dead units", 1) {}

  private:
    void watch(const Evidence& e) override {
        for (const ChannelRow& c : e.seen.channels) {
            if (c.phase != Phase::Forward || !c.site.ends_with("mlp.act")) continue;
            const double now = recent(c.site, c.dead, 4);
            if (!(now > 0.5)) continue;
            raise(now > 0.9 ? Severity::Alarm : Severity::Warning, c.site, 0, now,
                  number_text(100 * now) + " % of the units of " + c.site + " are zero in every row");
        }
    }
};

/// Values that the format which holds them rounds to zero or beyond its largest.
class Range : public Detector {
  public:
    Range() : Detector("range", 2) {}

  private:
    void watch(const Evidence& e) override {
        for (const Record& r : e.seen.records) {
            const Moments& m = r.moments();
            if (m.count == 0) continue;
            const std::string site = r.site + " " + phase_name(r.phase) + " " + r.channel;
            const double tiny = double(m.subnormals) / double(m.count);
            if (tiny > 0.01) {
                raise(tiny > 0.5 ? Severity::Warning : Severity::Note, site, 0, tiny,
                      number_text(100 * tiny) + " % of " + site + " are subnormal: they lose digits");
            }
            const double largest = std::max(m.max, -m.min);
            // Training does not lead there: neither squares nor products of such numbers can be held.
            if (largest > 1e30) {
                raise(Severity::Alarm, site, 3.4e38, largest,
                      site + " reaches " + number_text(largest) + ", near the largest number there is");
            }
        }
    }
};

/// What exact arithmetic would make zero is not near it: rounding has taken over, or a kernel is wrong.
class Identities : public Detector {
  public:
    Identities() : Detector("identity residuals", 1) {}

  private:
    void watch(const Evidence& e) override {
        for (const ResidualRow& r : e.seen.residuals) {
            if (!(r.scale > 0)) continue;
            const double share = r.value / r.scale;
            const std::string key = r.site + " " + r.kernel + " " + r.identity;
            const History::Verdict v =
                history(key, {.window = 32, .least = 8, .spreads = 12, .smallest = 0.2}).take(share);
            const double bound = e.facts.bf16 ? 0.05 : 1e-4;
            if (share < bound && !(v.out && share > 20 * v.usual && share > bound / 100)) continue;
            raise(share > 10 * bound ? Severity::Alarm : Severity::Warning, r.site, v.usual, share,
                  r.identity + " of " + r.site + " should be 0 and is " + number_text(share) +
                      " of what it is made of",
                  as_json({{"worst", r.worst}, {"row", double(r.worst_row)}, {"spreads", v.spreads}}));
        }
    }
};

/// Tokens whose loss is far beyond the largest of other steps, and where in the data they stand.
class TokenOutliers : public Detector {
  public:
    TokenOutliers() : Detector("token loss", 1) {}

  private:
    void watch(const Evidence& e) override {
        if (e.seen.largest_losses.empty()) return;
        const TokenRow& t = e.seen.largest_losses[0];
        const History::Verdict v =
            history("largest", {.window = 64, .least = 16, .spreads = 8, .smallest = 0.1}).take(t.loss);
        if (!v.out || t.loss < 2 * v.usual) return;
        raise(
            t.loss > 4 * v.usual ? Severity::Warning : Severity::Note, "loss", v.usual, t.loss,
            "token " + std::to_string(t.token) + " has a loss of " + number_text(t.loss) +
                " nats; the largest of a step is usually " + number_text(v.usual) + ". It is token " +
                std::to_string(t.offset) + " of document " + std::to_string(t.document) + " of source " +
                std::to_string(t.source),
            as_json({{"micro", double(t.micro)}, {"row", double(t.row)}, {"position", double(t.position)}}));
    }
};

}  // namespace

std::vector<std::unique_ptr<Detector>> detectors_of_activations() {
    std::vector<std::unique_ptr<Detector>> all;
    all.push_back(std::make_unique<AttentionLogits>());
    all.push_back(std::make_unique<EntropyCollapse>());
    all.push_back(std::make_unique<LogZ>());
    all.push_back(std::make_unique<ResidualGrowth>());
    all.push_back(std::make_unique<DeadUnits>());
    all.push_back(std::make_unique<Range>());
    all.push_back(std::make_unique<Identities>());
    all.push_back(std::make_unique<TokenOutliers>());
    return all;
}

}  // namespace wobble
