// Attention on CUDA: in tiles where the head's size allows it and there are queries to fill them, by rows
// otherwise.
#pragma once

#include "kernels/flash_backward.h"
#include "kernels/flash_forward.h"

#ifdef WOBBLE_CUDA

namespace wobble {

template <class T>
template <class Run>
void AttentionForward<T>::on_cuda(const Context&, bool, Run&& run) const {
    // A few queries, as when a token is added to a cache, would leave most of a tile empty.
    const bool in_tiles = shape.queries >= 16 && with_flash_size<T>(shape.head_size, [&](auto size) {
                              const FlashForward<T, size()> kernel{*this};
                              run(kernel.blocks(), kernel);
                          });
    if (!in_tiles) run(shape.rows(), *this);
}

template <class T>
template <class Run>
void AttentionBackward<T>::on_cuda(const Context&, bool, Run&& run) const {
    const AttentionBackwardQuery<T> by_query{.qkv = qkv,
                                             .out = out,
                                             .dout = dout,
                                             .lse = lse,
                                             .delta = delta,
                                             .dqkv = dqkv,
                                             .shape = shape,
                                             .options = options,
                                             .sinks = sinks,
                                             .dsinks = dsinks};
    const AttentionBackwardKey<T> by_key{.qkv = qkv,
                                         .dout = dout,
                                         .lse = lse,
                                         .delta = delta,
                                         .dqkv = dqkv,
                                         .shape = shape,
                                         .options = options};
    const bool in_tiles = with_flash_size<T>(shape.head_size, [&](auto size) {
        const FlashBackwardQuery<T, size()> queries{by_query};
        const FlashBackwardKey<T, size()> keys{by_key};
        run(queries.blocks(), queries);
        run(keys.blocks(), keys);
    });
    if (in_tiles) return;
    run(shape.rows(), by_query);
    run(shape.key_rows(), by_key);
}

}  // namespace wobble

#endif
