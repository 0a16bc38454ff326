// Numbers whose statistics are of interest.
#pragma once

#include <random>
#include <vector>

#include "probes/statistics.h"

namespace wobble {

template <class T>
using Values = std::vector<T>;

template <class T>
Values<T> normal(int n, double mean, double deviation) {
    std::mt19937_64 generator(7);
    std::normal_distribution<double> distribution(mean, deviation);
    Values<T> values;
    for (int i = 0; i < n; ++i) values.push_back(T(distribution(generator)));
    return values;
}
template <class T>
Values<T> exponential_from(int n, double start) {
    std::mt19937_64 generator(8);
    std::exponential_distribution<double> distribution;
    Values<T> values;
    for (int i = 0; i < n; ++i) values.push_back(T(start + distribution(generator)));
    return values;
}
template <class T>
Values<T> alternating(int n, T a, T b) {
    Values<T> values;
    for (int i = 0; i < n; ++i) values.push_back(i % 2 ? b : a);
    return values;
}

template <class T>
Values<T> joined(const std::vector<Values<T>>& parts) {
    Values<T> all;
    for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
}

template <class T>
Moments one_by_one(const Values<T>& values, size_t begin = 0, size_t end = SIZE_MAX) {
    Moments m;
    for (size_t i = begin; i < std::min(end, values.size()); ++i)
        m.add(double(values[i]), 0, int64_t(i), double(std::numeric_limits<T>::min()));
    return m;
}

}  // namespace wobble
