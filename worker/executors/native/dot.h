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
  int32_t start_u4;  // DotU4::start_of the sum, for codes that are centred
  int32_t start_u8;
};

// DotU4 sums 4-bit codes times activations, DotU8 8-bit codes less 128. A sum starts from 0, or for centred 4-bit
// codes (and always for DotU8) from start_of the activations' sum: less what the centre, left in the codes, adds.
#if defined(QUIRE_ISA_AVX2)

// Keeps the compiler from adding products in trees, for which it has too few registers.
template <typename V>
inline void keep_order(V& sum) {
  asm("" : "+x"(sum));
}

// 4-bit codes are the unsigned operand of maddubs. A pair of products is at most 2 * 15 * 127 = 3810, so int16
// holds the 8 pairs that a lane sums over a group (30480), and one madd a group is enough.
struct DotU4 {
  using Sum = VectorOf<int16_t, 2 * kLanes>::type;
  struct Codes {
    vub u;
  };
  static Codes prepare(vub codes) { return {codes}; }
  // Half of -8 * sum in both int16 of a lane: the final halves are within 30480 as well, and wrapping is undone.
  static int32_t start_of(int32_t sum) {
    const auto half = static_cast<uint16_t>(-4 * sum);
    return static_cast<int32_t>(half | static_cast<uint32_t>(half) << 16);
  }
  static Sum start(int32_t from) { return (Sum)set1(from); }
  static Sum step(Sum sum, Codes w, vb x) {
    sum += (Sum)_mm256_maddubs_epi16((__m256i)w.u, (__m256i)x);
    keep_order(sum);
    return sum;
  }
  static vi finish(Sum sum) { return (vi)_mm256_madd_epi16((__m256i)sum, _mm256_set1_epi16(1)); }
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
  static int32_t start_of(int32_t) { return 0; }
  static Sum start(int32_t) { return Sum{}; }
  static Sum step(Sum sum, Codes w, vb x) {
    const __m256i pairs =
        _mm256_maddubs_epi16((__m256i)w.magnitude, _mm256_sign_epi8((__m256i)x, (__m256i)w.sign));
    sum += (vi)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    keep_order(sum);
    return sum;
  }
  static vi finish(Sum sum) { return sum; }
};

#elif defined(QUIRE_ISA_AVX512VNNI) || defined(QUIRE_ISA_AVX2VNNI)

// One instruction a step, unsigned by signed.
struct DotU8 {
  using Sum = vi;
  struct Codes {
    vub u;
  };
  static Codes prepare(vub codes) { return {codes}; }
  static int32_t start_of(int32_t sum) { return -128 * sum; }
  static Sum start(int32_t from) { return set1(from); }
  static Sum step(Sum sum, Codes w, vb x) {
#if defined(QUIRE_ISA_AVX512VNNI)
    return (vi)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w.u, (__m512i)x);
#else
    return (vi)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)w.u, (__m256i)x);
#endif
  }
  static vi finish(Sum sum) { return sum; }
};
struct DotU4 : DotU8 {
  static int32_t start_of(int32_t sum) { return -8 * sum; }
};

#else  // signed by signed: dot product instructions of NEON, or plain arithmetic

struct DotU4 {
  using Sum = vi;
  struct Codes {
    vb s;
  };
  static Codes prepare(vub codes) { return {(vb)codes}; }
  static int32_t start_of(int32_t sum) { return -8 * sum; }
  static Sum start(int32_t from) { return set1(from); }
  static Sum step(Sum sum, Codes w, vb x) { return dot_i8(sum, w.s, x); }
  static vi finish(Sum sum) { return sum; }
};

struct DotU8 : DotU4 {
  static Codes prepare(vub codes) { return {(vb)(codes ^ 128)}; }
  static int32_t start_of(int32_t) { return 0; }
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
