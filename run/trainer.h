// Everything a training run holds, and the four things done to it: a step, an evaluation, a checkpoint, a
// resume.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/batch.h"
#include "kernels/graph.h"
#include "model/model.h"
#include "optim/optimizer.h"
#include "probes/detectors/detectors.h"
#include "probes/run_db.h"
#include "run/evaluate.h"
#include "run/injection.h"
#include "run/landscape.h"
#include "run/observer.h"
#include "run/options.h"
#include "run/origin.h"
#include "run/snapshot.h"
#include "run/weight_hash.h"

namespace wobble {

/// The part of --data that is trained on.
Dataset open_training_data(const Options& options);

class Trainer {
  public:
    /// Opens the data and builds the model; nothing is written. UserError when they do not fit together, or
    /// when there is nothing where a fault was ordered.
    explicit Trainer(const Options& options);

    /// Goes back to the newest whole checkpoint of `run`, or stays at step 0 when there is none yet. Returns
    /// sentences about damaged checkpoints that were passed over.
    std::vector<std::string> resume(const std::string& run);

    /// Reads the step's batch, and updates the weights. Where loss, gradient or weights are not finite,
    /// the first such step raises an event that says where that began.
    StepRow step();
    /// The batch of the last step, and for the record where it came from.
    const Batch& batch() const { return batch_; }
    std::vector<BatchRow> batch_rows() const;
    /// Where the last step's trouble began; empty when it was finite, or is when it is repeated.
    const std::optional<Origin>& origin() const { return origin_; }

    /// What was seen in the last step, which is handed over; empty when it was not to be recorded.
    Observation take_observation() { return std::move(observation_); }
    /// What detectors found in the last step, the most severe first.
    const std::vector<Event>& events() const { return events_; }
    /// The moments of the last steps, which are handed over.
    RingDump take_ring() { return observer_.take_ring(); }

    std::vector<EvalRow> evaluate();
    void write_checkpoint(const std::string& run, int keep, const char* folder = "checkpoints");
    /// Fills `snapshot`, whose memory is used again; and goes back to one.
    void take_snapshot(Snapshot& snapshot);
    void restore(const Snapshot& snapshot);
    /// Steps before this one are not looked at, whatever --probes says.
    void observe_from(int64_t step) { observer_.begin_at(step); }
    /// The place of the largest number, by magnitude, that the step to come shows in a record of it, which
    /// is not taken; nothing when its kernel keeps no matrix.
    std::optional<Origin> find_largest(const Record& record);
    uint64_t weights_hash();
    /// False when the last update made weights that are not finite.
    bool weights_are_finite() const { return weights_finite_; }

    int64_t steps_done() const { return at_.step; }
    const ParameterTable& table() const { return model_->table(); }
    Device device() const { return context_.device; }
    const Dataset& data() const { return data_; }
    /// Lines for people about the model and its data.
    std::string describe() const;
    int64_t parameter_count() const { return model_->table().count(); }

  private:
    /// After each micro-batch `stop` may end it.
    void gradients(const Batch& batch, Observer* observer,
                   const std::function<bool(int64_t micro)>& stop = nullptr);
    HostCopy<float> on_host(const float* buffer) const {
        return {context_.device, buffer, model_->table().buffer_size};
    }
    void try_injections();
    std::vector<Injection> injections_of(int64_t step) const;
    std::optional<Origin> find_origin();
    std::optional<Origin> find_weight();
    Origin place(const Record& record, int64_t row, int64_t column, int64_t micro) const;
    Event not_finite(const StepRow& row, const std::string& gradient) const;
    void look_around(Observation& seen, double lr);

    Options options_;
    Dataset data_;
    std::vector<HeldOut> held_out_;
    Context context_;
    std::unique_ptr<Model<float>> model_;
    Optimizer<float> optimizer_;
    Schedule schedule_;
    Observer observer_;
    Detectors detectors_;
    Graphs graphs_;
    Landscape landscape_;
    WeightHash hash_;
    std::vector<InjectionOrder> injections_;
    Batch batch_;
    double objective_ = 0;  // what the last gradients were those of, per target
    Observation observation_;
    std::vector<Event> events_;
    std::optional<Origin> origin_;
    bool was_finite_ = true, weights_finite_ = true;
    Counters at_;  // what the next step depends on besides weights and moments
};

}  // namespace wobble
