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
    double* next = dots_;
    // Σ w · dw of each block of a tensor, and Σ |w · dw|, behind one another in the device's memory.
    const auto dots = [&](const Site& site, const Tensor& tensor, int64_t rows, int64_t columns,
                          int64_t height, int64_t block_width) {
        const int64_t blocks = rows / height * (columns / block_width);
        double* const values = std::exchange(next, next + 2 * blocks);
        launch(context, blocks,
               BlockDots<T>{.x = tensor.weight,
                            .y = tensor.gradient,
                            .dots = values,
                            .sizes = values + blocks,
                            .C = columns,
                            .height = height,
                            .width = block_width},
               site);
        return values - dots_;
    };
    for (int64_t l = 0; l < config_.layers; ++l) {
        const SelfAttention<T>& a = blocks_[size_t(l)].attention;
        const Site qkv{"attn.qkv", int(l), Phase::Backward}, proj{"attn.proj", int(l), Phase::Backward};
        if (context.recorder->tier(qkv) != Tier::Full) continue;
        const int64_t matrix = dots(qkv.of(".weight"), a.qkv.weight, C, width, C, D);
        const int64_t bias = a.qkv.bias ? dots(qkv.of(".bias"), a.qkv.bias, 1, width, 1, D) : -1;
        const int64_t out = dots(proj.of(".weight"), a.proj.weight, C, C, D, C);
        context.recorder->later([=, this, end = next - dots_, recorder = context.recorder] {
            const HostCopy<double> all(device(), dots_, end);
            ResidualTally query_key, value_out;
            for (int64_t k = 0; k < K; ++k) {
                // Of the values, or of the sizes: of one head of qkv, or of the heads that share a key head.
                const auto part = [&](int64_t head, bool sizes) {
                    const int64_t at = head + (sizes ? parts : 0);
                    return all[matrix + at] + (bias < 0 ? 0 : all[bias + at]);
                };
                const auto group = [&](auto&& of_head) {
                    double sum = 0;
                    for (int64_t h = k * H / K; h < (k + 1) * H / K; ++h) sum += of_head(h);
                    return sum;
                };
                const auto queries = [&](bool sizes) {
                    return group([&](int64_t h) { return part(h, sizes); });
                };
                const auto outputs = [&](bool sizes) {
                    return group([&](int64_t h) { return all[out + h + (sizes ? H : 0)]; });
                };
                query_key.add(k, queries(false) - part(H + k, false), queries(true) + part(H + k, true));
                value_out.add(k, part(H + K + k, false) - outputs(false),
                              part(H + K + k, true) + outputs(true));
            }
            // A norm of queries and keys makes each of the two vanish, but for what epsilon makes of it.
            if (config_.qk_norm == QkNorm::None)
                recorder->record(qkv, BlockDots<T>::name, "<Wq, dWq> = <Wk, dWk>", query_key);
            // Where layers share values, no layer's are its own.
            if (config_.value_residual == 0)
                recorder->record(proj, BlockDots<T>::name, "<Wv, dWv> = <Wo, dWo>", value_out);
        });
    }
}

}  // namespace wobble
