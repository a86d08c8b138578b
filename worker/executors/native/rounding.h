// Rows of floats as integers with one scale: what int8 keys, values, queries and weights become.
//
// Knows one row. Integers cannot say NaN, so the scale of a row with a number that is not finite is NaN.
#pragma once

#include "kv_page.h"
#include "vec.h"

namespace quire {

constexpr int kMaxHeadDim = 256;
constexpr int kPanelVectors = kPanel / kLanes;
constexpr float kInt16Max = 32767.0f;
constexpr float kInt8Max = 127.0f;

// Rounds 16 floats within int16 to the nearest, ties to even.
inline void store_int16(int16_t* to, const vf (&x)[kPanelVectors]) {
#if defined(QUIRE_ISA_AVX2VNNI) || defined(QUIRE_ISA_AVX2)
  const __m256i packed = _mm256_packs_epi32(_mm256_cvtps_epi32((__m256)x[0]), _mm256_cvtps_epi32((__m256)x[1]));
  store_as(to, _mm256_permute4x64_epi64(packed, 0xd8));
#else
  using Halves = VectorOf<int16_t, kLanes>::type;
  for (int i = 0; i < kPanelVectors; ++i) {
    store_as(to + i * kLanes, __builtin_convertvector(round_to_int(x[i]), Halves));
  }
#endif
}

// Rounds x: [count] so that its largest magnitude becomes `unit`, at most kInt16Max. Returns the scale, 0 for zeros.
// out: [count rounded up to 16], zeros behind the row. count: up to kMaxHeadDim.
inline float round_row(const float* x, int count, float unit, int16_t* out) {
  float padded[kMaxHeadDim];
  const int columns = (count + kPanel - 1) / kPanel * kPanel;
  std::memset(padded + columns - kPanel, 0, sizeof(float) * kPanel);
  std::memcpy(padded, x, count * sizeof(float));
  vf top = {}, difference = {};
  for (int i = 0; i < columns; i += kLanes) {
    const vf v = load(padded + i);
    top = max(abs(v), top);
    difference += v - v;
  }
  const float largest = max_lanes(top);
  const bool is_zero = !(largest > 1e-30f);
  const float inverse = is_zero ? 0.0f : unit / largest;
  for (int i = 0; i < columns; i += kPanel) {
    vf v[kPanelVectors];
    for (int j = 0; j < kPanelVectors; ++j) {
      // A NaN becomes -unit: the scale tells.
      v[j] = min(max(load(padded + i + j * kLanes) * inverse, set1(-unit)), set1(unit));
    }
    store_int16(out + i, v);
  }
  return (is_zero ? 0.0f : largest / unit) + sum_lanes(difference);
}

}  // namespace quire
