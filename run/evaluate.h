// Loss on held-out data, and what a command needs to load a trained model.
#pragma once

#include <string>
#include <vector>

#include "data/dataset.h"
#include "model/checkpoint.h"
#include "model/model.h"
#include "run/command_line.h"

namespace wobble {

struct HeldOut {
    std::string name;
    Dataset data;
};

struct Evaluation {
    double loss;  // mean over the targets, in nats
    int64_t tokens;
    double seconds;
};

/// The --val sets of the options or, without any, the part that --holdout keeps back. `vocab` is that of the
/// model.
std::vector<HeldOut> open_held_out(const Options& options, int vocab);

/// Mean loss over the first `sequences` sequences of the data (0: all of them), `batch` at a time.
Evaluation evaluate(Context& context, Model<float>& model, const Dataset& data, int64_t batch,
                    int64_t sequences);

/// Reads the tensors of the table, their names behind `prefix`, into a buffer for all of them in the device's
/// memory.
void read_tensors(const SafetensorsFile& file, const std::string& prefix, const ParameterTable& table,
                  Device device, float* buffer);

/// Reads the weights out of a checkpoint's file into the model.
void load_weights(const SafetensorsFile& file, Context& context, Model<float>& model);

/// Device and threads as the options ask.
Context make_context(const Options& options);
/// Which device that is, as a phrase, where a person might wonder: empty for a CPU that was asked for or that
/// this build knows alone.
std::string where(const Options& options, const Context& context);
/// The same as a line on stderr, for commands that print nothing else about themselves.
void note_where(const Options& options, const Context& context);

/// A trained model out of a run's checkpoint, for up to `batch` sequences at a time.
struct Trained {
    Options options;
    int64_t step;
    Context context;
    std::unique_ptr<Model<float>> model;
};
Trained load_trained(const std::string& run, int64_t checkpoint, int64_t threads, int64_t batch);

/// ./train eval: writes the losses to standard output.
void run_evaluation(const Command& command);

/// ./train sample: writes the text to standard output as it comes.
void run_sampling(const Command& command);

}  // namespace wobble
