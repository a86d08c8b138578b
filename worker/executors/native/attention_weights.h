// From the scores of one row and one block of keys to the weights of their values.
//
// Knows one row: what it sees of the block is a range of columns. What lies outside, its scales too, may be anything.
#pragma once

#include "attention_products.h"
#include "attention_state.h"
#include "rounding.h"

namespace quire {

constexpr int kBlock = 128;  // keys whose weights are formed together
constexpr float kLog2E = 1.44269504f;

// Columns [first, last) of a block.
struct KeyRange {
  int first, last;
  bool is_empty() const { return first >= last; }
};

// One row's share of a block. scores: [kBlock], which become the weights; columns [begin, end) are written, whole
// panels, zeros outside the range. tail: the largest score and the total weight of the row's state.
class RowWeights {
 public:
  RowWeights(float* scores, KeyRange range, int begin, int end) : scores_(scores), range_(range), begin_(begin), end_(end) {}

  // Returns the largest score so far.
  float find_largest(float soft_cap, const float* tail) {
    vf top = set1(-std::numeric_limits<float>::infinity());
    each_vector([&](int, int, int column) { top = max(see(column, soft_cap), top); });
    return std::max(tail[0], max_lanes(top));
  }

  // Weighs by 2^score, relative to the largest score so far. Returns the factor on what the row had before, and sets
  // the heaviest weight. scales: [panel] of 16 floats each that the weights are multiplied by, or null.
  float weigh(float largest, float* tail, const float* const* scales, float& heaviest_one) {
    vf total = {}, heaviest = {};
    each_vector([&](int panel, int inside, int column) {
      vf weight = exp2_falling(load(scores_ + column) - largest);
      total += weight;
      if (scales != nullptr) {
        weight = weight > 0.0f ? weight * load(scales[panel] + inside) : vf{};
        heaviest = max(weight, heaviest);
      }
      store(scores_ + column, weight);
    });
    heaviest_one = scales != nullptr ? max_lanes(heaviest) : 1.0f;
    const float keep = exp2_falling(tail[0] - largest);
    tail[0] = largest;
    tail[1] = tail[1] * keep + sum_lanes(total);
    return keep;
  }

  void clear() { std::fill(scores_ + begin_, scores_ + end_, 0.0f); }

  // Writes the weights rounded to int16, the heaviest as 32767. Returns what one of those units is worth.
  float round(float heaviest, int16_t* weights) const {
    const bool is_zero = !(heaviest > 1e-30f);
    const float inverse = is_zero ? 0.0f : kInt16Max / heaviest;
    for (int i = begin_; i < end_; i += kPanel) {
      vf x[kPanelVectors];
      for (int j = 0; j < kPanelVectors; ++j) x[j] = load(scores_ + i + j * kLanes) * inverse;
      store_int16(weights + i, x);
    }
    return is_zero ? 0.0f : heaviest / kInt16Max;
  }

 private:
  template <typename Body>
  void each_vector(const Body& body) const {
    for (int panel = begin_ / kPanel; panel < end_ / kPanel; ++panel) {
      for (int inside = 0; inside < kPanel; inside += kLanes) body(panel, inside, panel * kPanel + inside);
    }
  }

  // Scores of kLanes keys as the row sees them, kept as such: capped, and minus infinity outside its range.
  vf see(int column, float soft_cap) {
    vf x = load(scores_ + column);
    const bool is_inside = column >= range_.first && column + kLanes <= range_.last;
    if (is_inside && soft_cap <= 0) return x;
    if (soft_cap > 0) x = tanh(x / soft_cap) * (soft_cap * kLog2E);
    if (!is_inside) {
      vi index;
      for (int lane = 0; lane < kLanes; ++lane) index[lane] = column + lane;
      const vf hidden = set1(-std::numeric_limits<float>::infinity());
      x = (index >= range_.first) & (index < range_.last) ? x : hidden;
    }
    store(scores_ + column, x);
    return x;
  }

  float* scores_;
  KeyRange range_;
  int begin_, end_;
};

}  // namespace quire
