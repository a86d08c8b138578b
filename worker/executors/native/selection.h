// Searches and sums over one row of numbers: the best, the largest k, those above a bound, the place of a draw.
//
// Knows arrays alone. Every result depends on the row's numbers only; sums are in float64, in one order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace quire {

struct Best {
  float value;  // NaN if there is one
  size_t index;
};

// The largest value and its lowest index.
Best find_best(const float* x, size_t count);

// A sum in float64, in 16 lanes.
double sum_of(const float* x, size_t count);

// Orders indices by falling value; among equals the lowest comes first.
struct LargestFirst {
  const float* values;
  bool operator()(int32_t a, int32_t b) const { return values[a] > values[b] || (values[a] == values[b] && a < b); }
};

// Collects ascending indices of the `count` largest values, count >= 1; among equals the lowest indices are kept.
void largest(const float* values, size_t size, size_t count, std::vector<int32_t>& indices);

// Collects ascending indices of the values that are not below `lowest`.
void collect(const std::vector<float>& values, float lowest, std::vector<int32_t>& indices);

// Returns the first index whose cumulative weight exceeds `draw` times the whole, never one of weight 0.
size_t inverse_cumulative(const std::vector<float>& weights, double draw, std::vector<double>& run_ends);

}  // namespace quire
