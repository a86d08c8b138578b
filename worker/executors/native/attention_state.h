// What a row of attention knows after some of its keys, and how two such states become one.
//
// A state is [head_dim rounded up to 16] weighted sums of values, then the largest score and the total weight.
// Scores are logarithms to base 2. Knows nothing of keys or of where states lie.
#pragma once

#include <algorithm>
#include <limits>

#include "kv_page.h"
#include "vec.h"

namespace quire {

constexpr int kStateTail = 16;  // floats behind the sums: the largest score, the total weight, padding

inline int state_sums(int head_dim) { return (head_dim + kPanel - 1) / kPanel * kPanel; }
inline int state_floats(int head_dim) { return state_sums(head_dim) + kStateTail; }

// 2^x for x <= 0, within 2e-7 of it: 1 for 0, exactly 0 from -127 down, NaN for NaN.
// Source: x = n + r; a polynomial in r, fitted for the least relative error on [-1/2, 1/2]; n as the exponent.
inline vf exp2_falling(vf x) {
  const vf clamped = max(set1(-127.0f), x);  // lets a NaN through
  const vf scaled = clamped + kRoundMagic;
  const vf r = clamped - (scaled - kRoundMagic);
  vf p = set1(1.326472731307149e-3f);
  p = fma(p, r, set1(9.671512991189957e-3f));
  p = fma(p, r, set1(5.550733581185341e-2f));
  p = fma(p, r, set1(2.4022242426872253e-1f));
  p = fma(p, r, set1(6.931470036506653e-1f));
  p = fma(p, r, set1(1.0f));
  // The magic number's own bits leave by the shift. n = -127 gives an exponent of 0, which is the number 0.
  const vf power = (vf)(((vi)scaled << 23) + (127 << 23));
  return p * power;
}
inline float exp2_falling(float x) { return exp2_falling(set1(x))[0]; }

// The state of a row that has seen no key.
inline void clear_state(float* state, int sums) {
  std::fill(state, state + sums + 2, 0.0f);
  state[sums] = -std::numeric_limits<float>::infinity();
}

// Adds what the row learned from later keys. If it saw none of them, nothing changes.
inline void fold_state(float* state, const float* later, int sums) {
  if (later[sums + 1] == 0.0f) return;
  const float top = std::max(state[sums], later[sums]);
  const float keep = exp2_falling(state[sums] - top), gain = exp2_falling(later[sums] - top);
  state[sums] = top;
  state[sums + 1] = state[sums + 1] * keep + later[sums + 1] * gain;
  for (int i = 0; i < sums; i += kLanes) store(state + i, load(state + i) * keep + load(later + i) * gain);
}

// Where panel `index` of 16 columns begins. Where head_dim is no multiple of 16 the last one overlaps the one
// before, and both hold the same bits.
inline int panel_column(int index, int head_dim) { return std::min(index * kPanel, head_dim - kPanel); }

inline void write_output(const float* state, int head_dim, float* out) {
  const int sums = state_sums(head_dim);
  for (int i = 0; i < sums; i += kLanes) {
    const int column = panel_column(i / kPanel, head_dim) + i % kPanel;
    store(out + column, load(state + i) / state[sums + 1]);
  }
}

}  // namespace quire
