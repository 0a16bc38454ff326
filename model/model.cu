#include "model/gpt.h"
#include "model/model.h"

namespace wobble {

std::unique_ptr<Model<float>> make_model(const ModelConfig& config, Precision precision, int64_t batch,
                                         bool training) {
    if (precision != Precision::Float32) {
        return std::make_unique<Gpt<bf16>>(config, batch, training,
                                           precision == Precision::Bfloat16Stochastic);
    }
    return std::make_unique<Gpt<float>>(config, batch, training);
}

}  // namespace wobble
