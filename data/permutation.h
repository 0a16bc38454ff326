// A random order of n things that takes no memory: position i of epoch e is computed when it is asked for.
//
// A Feistel network permutes pairs (left, right) of h-bit halves whatever its round function is, because each
// round can be undone: (left, right) -> (right, left ^ F(right)). It permutes 4^h numbers; with the smallest
// h for which 4^h >= n, a result outside [0, n) is fed through again until one lies inside ("cycle walking":
// Black and Rogaway, "Ciphers with arbitrary finite domains", 2002). That keeps it a bijection of [0, n) and
// takes fewer than 4 passes on average.
#pragma once

#include <bit>
#include <cassert>
#include <cstdint>

#include "data/random.h"

namespace wobble {

/// A bijection of [0, n), a pure function of (seed, purpose, stream, epoch). n from 1 to 2^62; stream below
/// 2^20.
class Permutation {
  public:
    Permutation(int64_t n, uint64_t seed, Purpose purpose, uint32_t stream, int64_t epoch)
        : n_(static_cast<uint64_t>(n)),
          half_bits_((static_cast<int>(std::bit_width(n_ - 1)) + 1) / 2),
          seed_(seed),
          purpose_(purpose),
          stream_(stream),
          epoch_(static_cast<uint64_t>(epoch)) {
        assert(n >= 1 && half_bits_ <= 31);
    }

    /// Where position i goes, 0 <= i < n.
    int64_t operator()(int64_t i) const {
        uint64_t value = static_cast<uint64_t>(i);
        do {
            value = pass(value);
        } while (value >= n_);
        return static_cast<int64_t>(value);
    }

  private:
    // Four rounds make a strong pseudo-random permutation of large domains (Luby and Rackoff, 1988). Short
    // halves, of which small n have only a bit or two, need more.
    static constexpr uint32_t kRounds = 8;

    uint64_t pass(uint64_t value) const {
        const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
        uint64_t left = value >> half_bits_;
        uint64_t right = value & mask;
        for (uint32_t round = 0; round < kRounds; ++round) {
            const uint32_t block = static_cast<uint32_t>(right);
            const uint64_t noise = random_words(seed_, purpose_, stream_ * 16 + round, epoch_, block)[0];
            const uint64_t next = left ^ (noise & mask);
            left = right;
            right = next;
        }
        return left << half_bits_ | right;
    }

    uint64_t n_;
    int half_bits_;
    uint64_t seed_;
    Purpose purpose_;
    uint32_t stream_;
    uint64_t epoch_;
};

}  // namespace wobble
