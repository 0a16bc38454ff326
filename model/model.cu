#include "model/gpt.h"
#include "model/model.h"

namespace wobble {

std::unique_ptr<Model<float>> make_model(const ModelConfig& config, Precision precision, int64_t batch,
                                         bool training, Device device) {
    if (precision != Precision::Float32) {
        return std::make_unique<Gpt<bf16>>(config, batch, training, device,
                                           precision == Precision::Bfloat16Stochastic);
    }
    return std::make_unique<Gpt<float>>(config, batch, training, device);
}

std::vector<Memory::Section> plan_model(const ModelConfig& config, Precision precision, int64_t batch,
                                        bool training, Device device) {
    return precision == Precision::Float32 ? Gpt<float>::plan(config, batch, training, device)
                                           : Gpt<bf16>::plan(config, batch, training, device);
}

void draw_weights(Context& context, Model<float>& model, uint64_t seed) {
    if (model.device() == Device::Cpu) {
        initialise(model.table(), seed, model.weights());
    } else {
        std::vector<float> drawn(size_t(model.table().buffer_size));
        initialise(model.table(), seed, drawn.data());
        copy_in(model.device(), model.weights(), drawn.data(), model.table().buffer_size);
    }
    model.weights_changed(context);
}

}  // namespace wobble
