// Everything a training run holds, and the four things done to it: a step, an evaluation, a checkpoint, a
// resume.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/batch.h"
#include "kernels/graph.h"
#include "model/checkpoint.h"
#include "model/model.h"
#include "optim/optimizer.h"
#include "probes/detectors/detectors.h"
#include "probes/run_db.h"
#include "run/evaluate.h"
#include "run/landscape.h"
#include "run/observer.h"
#include "run/options.h"
#include "run/run_directory.h"

namespace wobble {

/// The part of --data that is trained on.
Dataset open_training_data(const Options& options);

class Trainer {
  public:
    /// Opens the data and builds the model; nothing is written. UserError when they do not fit together.
    explicit Trainer(const Options& options);

    /// Goes back to the newest whole checkpoint of `run`, or stays at step 0 when there is none yet. Returns
    /// sentences about damaged checkpoints that were passed over.
    std::vector<std::string> resume(const std::string& run);

    /// Reads the step's batch, and updates the weights.
    StepRow step();
    /// The batch of the last step, for the record.
    std::vector<BatchRow> batch_rows() const;
    /// After a step that was not finite: where that began, as a phrase.
    const std::string& nonfinite_origin() const { return origin_; }

    /// What was seen in the last step, which is handed over; empty when it was not to be recorded.
    Observation take_observation() { return std::move(observation_); }
    /// What detectors found in the last step, the most severe first.
    const std::vector<Event>& events() const { return events_; }
    /// The moments of the last steps, which are handed over.
    RingDump take_ring() { return observer_.take_ring(); }

    std::vector<EvalRow> evaluate();
    void write_checkpoint(const std::string& run, int keep);

    int64_t steps_done() const { return step_; }
    const Dataset& data() const { return data_; }
    /// Lines for people about the model and its data.
    std::string describe() const;
    int64_t parameter_count() const { return model_->table().count(); }

  private:
    void gradients(const Batch& batch, Observer* observer);
    HostCopy<float> on_host(const float* buffer) const {
        return {context_.device, buffer, model_->table().buffer_size};
    }
    std::string find_origin();
    void look_around(Observation& seen, double lr);
    std::vector<TensorView> views(const std::string& prefix, const float* buffer) const;

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
    Batch batch_;
    double objective_ = 0;  // what the last gradients were those of, per target
    Observation observation_;
    std::vector<Event> events_;
    std::string origin_;

    // What the next step depends on besides weights and moments. Random numbers need no state: they are
    // functions of the seeds and of these counters.
    int64_t step_ = 0;    // optimizer steps done
    int64_t tokens_ = 0;  // targets trained on
    int64_t cursor_ = 0;  // next sequence of the data
};

}  // namespace wobble
