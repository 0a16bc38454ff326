// What the model's invariances say of its gradients: part of the text of Gpt<T>, compiled with layers.h.
#pragma once

#include "kernels/identities.h"
#include "model/gpt.h"
#include "probes/launch.h"

namespace wobble {

/// Attention's logits do not change when a head's queries are scaled up and its keys down, nor its output
/// when its values are scaled up and its rows of the projection down. So <W_Q, dW_Q> = <W_K, dW_K> and <W_V,
/// dW_V> = <W_O, dW_O>, biases included (but not that of the projection, which no head owns).
template <class T>
void Gpt<T>::weight_identities(Context& context) {
    if (!context.recorder) return;
    const int64_t C = config_.channels, H = config_.heads, D = config_.head_size();
    struct Dots {
        std::vector<double> values, sizes;
    };
    const auto dots = [&](const Site& site, const T* w, const A* dw, int64_t rows, int64_t columns,
                          int64_t height, int64_t width) {
        const size_t blocks = size_t(rows / height * (columns / width));
        Dots d{std::vector<double>(blocks), std::vector<double>(blocks)};
        launch(context, int64_t(blocks),
               BlockDots<T>{.x = w,
                            .y = dw,
                            .dots = d.values.data(),
                            .sizes = d.sizes.data(),
                            .C = columns,
                            .height = height,
                            .width = width},
               site);
        return d;
    };
    for (int64_t l = 0; l < config_.layers; ++l) {
        const SelfAttention<T>& a = blocks_[size_t(l)].attention;
        const Site qkv{"attn.qkv", int(l), Phase::Backward}, proj{"attn.proj", int(l), Phase::Backward};
        if (context.recorder->tier(qkv) != Tier::Full) continue;
        const auto of = [&](const Site& site, const Tensor& tensor, int64_t rows, int64_t columns,
                            int64_t height, int64_t width) {
            return dots(site, tensor.weight, tensor.gradient, rows, columns, height, width);
        };
        const Dots matrix = of(qkv.of(".weight"), a.qkv.weight, C, 3 * C, C, D);
        const Dots bias = a.qkv.bias
                              ? of(qkv.of(".bias"), a.qkv.bias, 1, 3 * C, 1, D)
                              : Dots{std::vector<double>(size_t(3 * H)), std::vector<double>(size_t(3 * H))};
        const Dots out = of(proj.of(".weight"), a.proj.weight, C, C, D, C);
        ResidualTally query_key, value_out;
        for (int64_t h = 0; h < H; ++h) {
            const auto part = [&](int64_t p, const std::vector<double> Dots::*of_what) {
                const size_t i = size_t(p * H + h);
                return (matrix.*of_what)[i] + (bias.*of_what)[i];
            };
            query_key.add(h, part(0, &Dots::values) - part(1, &Dots::values),
                          part(0, &Dots::sizes) + part(1, &Dots::sizes));
            value_out.add(h, part(2, &Dots::values) - out.values[size_t(h)],
                          part(2, &Dots::sizes) + out.sizes[size_t(h)]);
        }
        // A norm of queries and keys makes each of the two vanish, but for what epsilon makes of it.
        if (config_.qk_norm == QkNorm::None)
            context.recorder->record(qkv, BlockDots<T>::name, "<Wq, dWq> = <Wk, dWk>", query_key);
        context.recorder->record(proj, BlockDots<T>::name, "<Wv, dWv> = <Wo, dWo>", value_out);
    }
}

}  // namespace wobble
