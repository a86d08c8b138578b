// Integer products of a tile's codes with activations: the part of the kernels that each instruction set does its
// own way. One step multiplies the codes of kLanes rows and 4 columns by the same 4 activations.
//
// Every step is exact, so sums of a group of 32 columns are the same integers on all instruction sets. Knows no
// scales.
#pragma once

#include "packed.h"
#include "vec.h"

namespace quire {

constexpr int kVectorsPerTile = kTile / kLanes;

// What is known of a group of activations beside its codes: x is about scale * code.
struct GroupOfX {
  float scale;
  float scaled_sum;  // scale * sum of the codes: what an offset is multiplied by
  int32_t sum_times_minus_8;
  int32_t sum_times_minus_128;
};

// DotU4 sums 4-bit codes times activations, DotU8 8-bit codes less 128. `correction` is -centre times the sum of the
// activations: it takes off what a centre, if left in the codes, has added.
#if defined(QUIRE_ISA_AVX2)

// 4-bit codes are the unsigned operand of maddubs. A pair of products is at most 2 * 15 * 127 = 3810, so int16 holds
// the 8 pairs that a lane sums over a group (30480), and one madd a group is enough.
struct DotU4 {
  using Sum = VectorOf<int16_t, 2 * kLanes>::type;
  struct Codes {
    vub u;
  };
  static Codes prepare(vub codes) { return {codes}; }
  static Sum start(int32_t) { return Sum{}; }
  static Sum step(Sum sum, Codes w, vb x) { return sum + (Sum)_mm256_maddubs_epi16((__m256i)w.u, (__m256i)x); }
  static vi finish(Sum sum, int32_t correction) {
    return (vi)_mm256_madd_epi16((__m256i)sum, _mm256_set1_epi16(1)) + correction;
  }
};

// 8-bit codes, as |w| times x with w's sign: |w| <= 128 and |x| <= 127, so a pair is at most 2 * 128 * 127 = 32512
// and int16 does not saturate; two pairs would.
struct DotU8 {
  using Sum = vi;
  struct Codes {
    vb magnitude;
    vb sign;
  };
  static Codes prepare(vub codes) {
    const __m256i w = (__m256i)(codes ^ 128);
    return {(vb)_mm256_abs_epi8(w), (vb)w};
  }
  static Sum start(int32_t) { return Sum{}; }
  static Sum step(Sum sum, Codes w, vb x) {
    const __m256i pairs =
        _mm256_maddubs_epi16((__m256i)w.magnitude, _mm256_sign_epi8((__m256i)x, (__m256i)w.sign));
    return sum + (vi)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  }
  static vi finish(Sum sum, int32_t) { return sum; }
};

#elif defined(QUIRE_ISA_AVX512VNNI) || defined(QUIRE_ISA_AVX2VNNI)

// One instruction a step, unsigned by signed; the sum begins with the correction.
struct DotU8 {
  using Sum = vi;
  struct Codes {
    vub u;
  };
  static Codes prepare(vub codes) { return {codes}; }
  static Sum start(int32_t correction) { return set1(correction); }
  static Sum step(Sum sum, Codes w, vb x) {
#if defined(QUIRE_ISA_AVX512VNNI)
    return (vi)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w.u, (__m512i)x);
#else
    return (vi)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)w.u, (__m256i)x);
#endif
  }
  static vi finish(Sum sum, int32_t) { return sum; }
};
using DotU4 = DotU8;

#else  // signed by signed: dot product instructions of NEON, or plain arithmetic

struct DotU4 {
  using Sum = vi;
  struct Codes {
    vb s;
  };
  static Codes prepare(vub codes) { return {(vb)codes}; }
  static Sum start(int32_t correction) { return set1(correction); }
  static Sum step(Sum sum, Codes w, vb x) { return dot_i8(sum, w.s, x); }
  static vi finish(Sum sum, int32_t) { return sum; }
};

struct DotU8 : DotU4 {
  static Codes prepare(vub codes) { return {(vb)(codes ^ 128)}; }
  static Sum start(int32_t) { return Sum{}; }
};

#endif

// Rows of activations that one pass over a tile serves: as many as the registers hold sums for.
#if defined(QUIRE_ISA_AVX512VNNI)
constexpr int kMaxPass = 8;
#elif defined(QUIRE_ISA_AVX2) || defined(QUIRE_ISA_AVX2VNNI)
constexpr int kMaxPass = 6;
#elif defined(QUIRE_ISA_NEON)
constexpr int kMaxPass = 4;
#else
constexpr int kMaxPass = 2;
#endif

}  // namespace quire
