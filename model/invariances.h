// What the model's invariances say of its gradients: part of the text of Gpt<T>, compiled with layers.h.
#pragma once

#include "kernels/identities.h"
#include "model/gpt.h"
#include "probes/launch.h"

namespace wobble {

/// Attention's logits do not change when the queries of the heads that share keys are scaled up and these
/// keys down, nor its output when values are scaled up and the heads' rows of the projection down. So, over
/// such a group, <W_Q, dW_Q> = <W_K, dW_K> and <W_V, dW_V> = <W_O, dW_O>, biases included (but not that of
/// the projection, which no head owns).
template <class T>
void Gpt<T>::weight_identities(Context& context) {
    if (!context.recorder) return;
    const int64_t C = config_.channels, H = config_.heads, K = config_.key_heads(), D = config_.head_size();
    const int64_t width = config_.qkv_width(), parts = H + 2 * K;
    struct Dots {
        std::vector<double> values, sizes;
    };
    const auto dots = [&](const Site& site, const T* w, const A* dw, int64_t rows, int64_t columns,
                          int64_t height, int64_t block_width) {
        const size_t blocks = size_t(rows / height * (columns / block_width));
        Dots d{std::vector<double>(blocks), std::vector<double>(blocks)};
        launch(context, int64_t(blocks),
               BlockDots<T>{.x = w,
                            .y = dw,
                            .dots = d.values.data(),
                            .sizes = d.sizes.data(),
                            .C = columns,
                            .height = height,
                            .width = block_width},
               site);
        return d;
    };
    for (int64_t l = 0; l < config_.layers; ++l) {
        const SelfAttention<T>& a = blocks_[size_t(l)].attention;
        const Site qkv{"attn.qkv", int(l), Phase::Backward}, proj{"attn.proj", int(l), Phase::Backward};
        if (context.recorder->tier(qkv) != Tier::Full) continue;
        const auto of = [&](const Site& site, const Tensor& tensor, int64_t rows, int64_t columns,
                            int64_t height, int64_t block_width) {
            return dots(site, tensor.weight, tensor.gradient, rows, columns, height, block_width);
        };
        const Dots matrix = of(qkv.of(".weight"), a.qkv.weight, C, width, C, D);
        const Dots bias = a.qkv.bias
                              ? of(qkv.of(".bias"), a.qkv.bias, 1, width, 1, D)
                              : Dots{std::vector<double>(size_t(parts)), std::vector<double>(size_t(parts))};
        const Dots out = of(proj.of(".weight"), a.proj.weight, C, C, D, C);
        ResidualTally query_key, value_out;
        for (int64_t k = 0; k < K; ++k) {
            const auto part = [&](int64_t head, const std::vector<double> Dots::*what) {
                return (matrix.*what)[size_t(head)] + (bias.*what)[size_t(head)];
            };
            const auto group = [&](auto&& of_head) {
                double sum = 0;
                for (int64_t h = k * H / K; h < (k + 1) * H / K; ++h) sum += of_head(h);
                return sum;
            };
            const auto queries = [&](const std::vector<double> Dots::*what) {
                return group([&](int64_t h) { return part(h, what); });
            };
            const auto outputs = [&](const std::vector<double> Dots::*what) {
                return group([&](int64_t h) { return (out.*what)[size_t(h)]; });
            };
            query_key.add(k, queries(&Dots::values) - part(H + k, &Dots::values),
                          queries(&Dots::sizes) + part(H + k, &Dots::sizes));
            value_out.add(k, part(H + K + k, &Dots::values) - outputs(&Dots::values),
                          part(H + K + k, &Dots::sizes) + outputs(&Dots::sizes));
        }
        // A norm of queries and keys makes each of the two vanish, but for what epsilon makes of it.
        if (config_.qk_norm == QkNorm::None)
            context.recorder->record(qkv, BlockDots<T>::name, "<Wq, dWq> = <Wk, dWk>", query_key);
        // Where layers share values, no layer's are its own.
        if (config_.value_residual == 0)
            context.recorder->record(proj, BlockDots<T>::name, "<Wv, dWv> = <Wo, dWo>", value_out);
    }
}

}  // namespace wobble
