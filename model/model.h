// A model as those see it who train, evaluate or measure it: whatever its weights and activations are stored
// in, it has master weights and gradients in A.
#pragma once

#include <memory>

#include "kernels/context.h"
#include "model/memory.h"
#include "model/parameters.h"

namespace wobble {

template <class A>
class Model {
  public:
    Model(const ModelConfig& config) : config_((check(config), config)), table_(config) {}
    virtual ~Model() = default;

    const ModelConfig& config() const { return config_; }
    const ParameterTable& table() const { return table_; }
    virtual Device device() const = 0;
    /// Master weights and gradients [table().buffer_size] in the device's memory; the gradients are the sum
    /// over micro-batches.
    A* weights() { return weights_; }
    A* gradients() { return gradients_; }
    /// To be called when somebody has written to weights(): what is stored narrower follows them.
    virtual void weights_changed(Context& context) = 0;
    virtual size_t bytes() const = 0;

    /// Each row's loss, in nats; a target of -1 has none. `scale` is what a loss counts in the gradient,
    /// 1 / (targets in the whole step) for a mean; 0 when no backward follows. tokens, targets: [batch,
    /// sequence], in the host's memory. On CUDA nobody waits: `loss` does.
    ///
    /// Where a backward follows, the gradient is written to gradients() or, if `accumulate`, added to them.
    /// The head's is made here, while its logits are there.
    virtual void forward(Context& context, const int32_t* tokens, const int32_t* targets, int64_t batch,
                         int64_t sequence, double scale, bool accumulate = false) = 0;
    /// Σ over the rows of the last forward that did not accumulate, and of those after it: of their losses,
    /// and of what the gradient is that of, the loss and what z-loss and label smoothing make of it. Waits
    /// for them.
    virtual double loss() = 0;
    virtual double objective() = 0;
    /// The first of these in the device's memory.
    const double* loss_on_device() const { return totals_; }

    /// The rest of the gradient of the last forward.
    virtual void backward(Context& context) = 0;

    /// Where the recorder looks at attention's weights at tier full: the identities that tie their gradients
    /// (the whole step's, after its last backward) to the weights.
    virtual void weight_identities(Context& context) = 0;

    /// The logits of one more token at `position` of a single sequence [V]. Keys and values of the positions
    /// before it are the ones that `append` left behind; position 0 starts afresh.
    virtual const A* append(Context& context, int32_t token, int64_t position) = 0;

    /// Losses of the last forward, row by row [batch · sequence], in the device's memory.
    const A* losses() const { return losses_; }
    /// The residual stream behind the last block in the last forward [batch · sequence, C].
    virtual std::vector<A> stream() const = 0;

  protected:
    ModelConfig config_;
    ParameterTable table_;
    A *weights_ = nullptr, *gradients_ = nullptr, *losses_ = nullptr;
    double* totals_ = nullptr;  // [2]: of losses, of objectives
};

/// Memory for up to `batch` sequences of up to config.context tokens at a time. Without `training`, nothing
/// is held for backward.
std::unique_ptr<Model<float>> make_model(const ModelConfig& config, Precision precision, int64_t batch,
                                         bool training, Device device = Device::Cpu);

/// The memory that such a model takes, by section, worked out without taking it.
std::vector<Memory::Section> plan_model(const ModelConfig& config, Precision precision, int64_t batch,
                                        bool training, Device device);

/// All weights drawn from the seed (parameters.h), on whatever device they lie.
void draw_weights(Context& context, Model<float>& model, uint64_t seed);

}  // namespace wobble
