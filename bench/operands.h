// Memory for the operands of one kernel case, filled with ordinary numbers.
#pragma once

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <vector>

#include "kernels/pack.h"
#include "model/memory.h"

namespace wobble::bench {

/// Everything handed out lives as long as the Operands, each on huge pages of its own where the system grants
/// them. The same calls in the same order give the same numbers.
class Operands {
  public:
    /// All of them lie in this device's memory.
    explicit Operands(Device device) : device_(device) {}

    /// Near enough to normal with this deviation and mean.
    template <class T>
    T* normal(int64_t n, double deviation = 1, double mean = 0) {
        return made<T>(n, [&](T* values) { draw(values, n, deviation, mean); });
    }
    /// Squares of such numbers.
    template <class T>
    T* squares(int64_t n, double deviation) {
        return made<T>(n, [&](T* values) {
            draw(values, n, deviation, 0);
            for (int64_t i = 0; i < n; ++i) values[i] = T(values[i] * values[i]);
        });
    }
    /// Uniform in [0, below).
    int32_t* indices(int64_t n, int64_t below) { return copy(host_indices(n, below)); }
    std::vector<int32_t> host_indices(int64_t n, int64_t below) {
        std::vector<int32_t> values(static_cast<size_t>(n));
        for (int32_t& value : values) value = int32_t(next() % uint64_t(below));
        return values;
    }
    template <class T>
    T* copy(const std::vector<T>& from) {
        T* values = room<T>(int64_t(from.size()));
        copy_in(device_, values, from.data(), int64_t(from.size()));
        return values;
    }
    /// For results.
    template <class T>
    T* room(int64_t n) {
        T* values = nullptr;
        blocks_.emplace_back().plan(device_, [&](Memory& memory) { values = memory.take<T>(n); });
        return values;
    }
    /// For what a kernel adds to, so that it would grow without bound: zero again after each `reset`.
    template <class T>
    T* sums(int64_t n) {
        T* values = room<T>(n);
        resets_.push_back([=, this] { clear(device_, values, n); });
        return values;
    }
    void reset() {
        for (const auto& one : resets_) one();
    }

  private:
    /// `make(values)` fills n of them in the host's memory.
    template <class T, class Make>
    T* made(int64_t n, Make make) {
        T* const values = room<T>(n);
        if (device_ == Device::Cpu) {
            make(values);
        } else {
            std::vector<T> on_host(static_cast<size_t>(n));
            make(on_host.data());
            copy_in(device_, values, on_host.data(), n);
        }
        return values;
    }
    template <class T>
    void draw(T* values, int64_t n, double deviation, double mean) {
        for (int64_t i = 0; i < n; ++i) {
            // The sum of four uniform numbers of 16 bits has deviation 1 / sqrt(3).
            const uint64_t bits = next();
            double sum = 0;
            for (int part = 0; part < 64; part += 16) sum += double(bits >> part & 0xffff) / 65536 - 0.5;
            const double value = mean + deviation * std::sqrt(3.0) * sum;
            if constexpr (std::is_same_v<T, bf16>) values[i] = bf16(float(value));
            else values[i] = T(value);
        }
    }
    /// SplitMix64 (Steele, Lea & Flood 2014).
    uint64_t next() {
        uint64_t z = state_ += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        return z ^ z >> 31;
    }

    Device device_;
    uint64_t state_ = 1;
    std::deque<Memory> blocks_;
    std::vector<std::function<void()>> resets_;
};

}  // namespace wobble::bench
