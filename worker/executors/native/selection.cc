#include "selection.h"

#include <algorithm>
#include <limits>

#include "vec.h"

namespace quire {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr size_t kRun = 256;
constexpr int kSums = 16;
constexpr size_t kBlock = 64;
constexpr size_t kSearched = 1024;

// The largest value, or NaN if there is one.
float largest_value(const float* x, size_t count) {
  constexpr size_t kStep = 2 * kLanes;
  vf best[2] = {set1(-kInfinity), set1(-kInfinity)};
  vi is_nan = {};
  size_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    const vf a = load(x + i), b = load(x + i + kLanes);
    best[0] = max(a, best[0]);
    best[1] = max(b, best[1]);
    is_nan |= (a != a) | (b != b);
  }
  float found = max_lanes(max(best[0], best[1]));
  // A lane of all ones is -1.
  bool has_nan = max_lanes(-is_nan) != 0;
  for (; i < count; ++i) {
    found = std::max(found, x[i]);
    has_nan = has_nan || x[i] != x[i];
  }
  return has_nan ? std::numeric_limits<float>::quiet_NaN() : found;
}

// Keeps the `count` best of `indices`, in no order.
void keep_best(const float* values, size_t count, std::vector<int32_t>& indices) {
  if (indices.size() <= count) return;
  std::nth_element(indices.begin(), indices.begin() + static_cast<int64_t>(count) - 1, indices.end(),
                   LargestFirst{values});
  indices.resize(count);
}

}  // namespace

Best find_best(const float* x, size_t count) {
  Best best{-kInfinity, 0};
  size_t first = 0;
  for (size_t i = 0; i < count; i += kSearched) {
    const float value = largest_value(x + i, std::min(kSearched, count - i));
    if (value != value) return {value, 0};
    if (value > best.value) {
      best.value = value;
      first = i;
    }
  }
  best.index = static_cast<size_t>(std::find(x + first, x + count, best.value) - x);
  return best;
}

double sum_of(const float* x, size_t count) {
  double lanes[kSums] = {};
  size_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (int lane = 0; lane < kSums; ++lane) lanes[lane] += x[i + lane];
  }
  for (int lane = 0; i + lane < count; ++lane) lanes[lane] += x[i + lane];
  for (int half = kSums / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

// Once enough have been seen, a block without anything above the worst of them is passed over.
void largest(const float* values, size_t size, size_t count, std::vector<int32_t>& indices) {
  indices.clear();
  const size_t room = count + std::max<size_t>(count, 1024);
  float threshold = -kInfinity;
  bool is_full = false;
  for (size_t first = 0; first < size; first += kBlock) {
    const size_t last = std::min(size, first + kBlock);
    if (is_full && !(largest_value(values + first, last - first) > threshold)) continue;
    for (size_t i = first; i < last; ++i) {
      if (!is_full || values[i] > threshold) indices.push_back(static_cast<int32_t>(i));
    }
    if (indices.size() >= room) {
      keep_best(values, count, indices);
      threshold = values[indices[count - 1]];
      is_full = true;
    }
  }
  keep_best(values, count, indices);
  std::sort(indices.begin(), indices.end());
}

void collect(const std::vector<float>& values, float lowest, std::vector<int32_t>& indices) {
  indices.clear();
  for (size_t first = 0; first < values.size(); first += kBlock) {
    const size_t last = std::min(values.size(), first + kBlock);
    if (largest_value(values.data() + first, last - first) < lowest) continue;
    for (size_t i = first; i < last; ++i) {
      if (values[i] >= lowest) indices.push_back(static_cast<int32_t>(i));
    }
  }
}

// Adds up runs of 256 first, then goes through one of them weight by weight.
size_t inverse_cumulative(const std::vector<float>& weights, double draw, std::vector<double>& run_ends) {
  run_ends.clear();
  double sum = 0;
  for (size_t first = 0; first < weights.size(); first += kRun) {
    sum += sum_of(weights.data() + first, std::min(kRun, weights.size() - first));
    run_ends.push_back(sum);
  }
  const double target = draw * sum;
  const auto found = std::upper_bound(run_ends.begin(), run_ends.end(), target);
  const size_t run = std::min(static_cast<size_t>(found - run_ends.begin()), run_ends.size() - 1);
  const double rest = target - (run > 0 ? run_ends[run - 1] : 0.0);
  const size_t first = run * kRun, last = std::min(weights.size(), first + kRun);
  double inside = 0;
  size_t drawn = first;
  for (size_t i = first; i < last; ++i) {
    inside += weights[i];
    // Rounding may put the target behind the last weight; an id of weight 0 must not be drawn for it.
    if (weights[i] > 0) drawn = i;
    if (inside > rest) break;
  }
  return drawn;
}

}  // namespace quire
