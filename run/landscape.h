// How the objective of one batch looks around the weights: along the last update, and in the steepest
// directions. Every look puts the weights back as they were, to the bit.
#pragma once

#include <vector>

#include "data/batch.h"
#include "model/gpt.h"
#include "optim/optimizer.h"
#include "probes/observation.h"

namespace wobble {

class Landscape {
  public:
    /// `sequences` of the batch are a micro-batch of the model.
    Landscape(Context& context, Model<float>& model, int64_t sequences)
        : context_(context), model_(model), sequences_(sequences) {}

    /// Before an update: the weights that it starts from.
    void remember_weights();
    /// Mean objective (see `Model::objective`) of the batch, per target, at the weights as they are.
    double objective(const Batch& batch);

    /// After the update from the remembered weights with learning rate `lr`, before which the batch had the
    /// objective `start`: the critical sharpness, "sharpness.critical" (NaN when it did not come back up),
    /// beside "sharpness.edge" = 2 / lr.
    std::vector<MeasureRow> critical_sharpness(const Batch& batch, double lr, double start);

    /// The Hessian's largest eigenvalue, "hessian.largest", and that of P^-1/2 H P^-1/2 with Adam's P = √v̂ +
    /// ε, "hessian.preconditioned", beside its edge of stability. Overwrites the gradients. `v`, `bias2`: the
    /// optimizer's second moments and their bias correction after the update.
    std::vector<MeasureRow> hessian(const Batch& batch, const float* v, double bias2,
                                    const AdamWSettings& settings, double lr);

  private:
    void gradient(const Batch& batch);

    Context& context_;
    Model<float>& model_;
    int64_t sequences_;
    std::vector<float> before_;                              // [buffer_size]
    double last_alpha_ = 1;                                  // where the last crossing was found
    std::vector<float> steepest_, steepest_preconditioned_;  // the last eigenvectors, to start from
};

}  // namespace wobble
