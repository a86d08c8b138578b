// Vectors of floats and bytes for one instruction set, chosen by one macro of the build:
// QUIRE_ISA_AVX512VNNI, QUIRE_ISA_AVX2VNNI, QUIRE_ISA_AVX2, QUIRE_ISA_NEON (with dot product), QUIRE_ISA_PORTABLE.
//
// Everything above this file is written once, over `vf` (kLanes floats) and `vi` (kLanes int32), with the
// compiler's own vector operators: + - * / < ? : & | << >>. A lane's bits depend on that lane's operands alone, so
// an element comes out the same wherever it stands in an array; tails go through load_part and store_part, never
// through another formula. Build with -ffp-contract=off: a product is fused only where fma() says so. Knows no
// tensors.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(QUIRE_ISA_NEON)
#include <arm_neon.h>
#elif !defined(QUIRE_ISA_PORTABLE)
#include <immintrin.h>
#endif

// Before a loop over an array of vectors, so that the array is registers. (Emulated, it would only take compilers
// long.)
#ifndef QUIRE_UNROLL
#define QUIRE_UNROLL _Pragma("GCC unroll 16")
#endif

namespace quire {

#if defined(QUIRE_ISA_AVX512VNNI)
constexpr int kLanes = 16;
constexpr const char* kInstructionSet = "avx512vnni";
#elif defined(QUIRE_ISA_AVX2VNNI)
constexpr int kLanes = 8;
constexpr const char* kInstructionSet = "avx2vnni";
#elif defined(QUIRE_ISA_AVX2)
constexpr int kLanes = 8;
constexpr const char* kInstructionSet = "avx2";
#elif defined(QUIRE_ISA_NEON)
constexpr int kLanes = 4;
constexpr const char* kInstructionSet = "neon";
#elif defined(QUIRE_ISA_PORTABLE)
constexpr int kLanes = 4;
constexpr const char* kInstructionSet = "portable";
#else
#error "define one QUIRE_ISA_ macro"
#endif
constexpr int kVectorBytes = 4 * kLanes;

template <typename T, int N>
struct VectorOf {
  typedef T type __attribute__((vector_size(sizeof(T) * N), may_alias));
};
using vf = VectorOf<float, kLanes>::type;
using vi = VectorOf<int32_t, kLanes>::type;
using vu = VectorOf<uint32_t, kLanes>::type;
using vb = VectorOf<int8_t, 4 * kLanes>::type;    // bytes, four to an int32 lane
using vub = VectorOf<uint8_t, 4 * kLanes>::type;

// Reads and writes at any alignment.
template <typename V>
inline V load_as(const void* from) {
  V v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
template <typename V>
inline void store_as(void* to, V v) {
  std::memcpy(to, &v, sizeof v);
}
inline vf load(const float* from) { return load_as<vf>(from); }
inline void store(float* to, vf v) { store_as(to, v); }

// The first n < kLanes elements; the other lanes are zero, and are not written.
inline vf load_part(const float* from, int n) {
  vf v = {};
  std::memcpy(&v, from, n * sizeof(float));
  return v;
}
inline void store_part(float* to, vf v, int n) { std::memcpy(to, &v, n * sizeof(float)); }

inline vf set1(float x) { return x - vf{}; }
inline vi set1(int32_t x) { return x - vi{}; }
inline vi bits_of(vf v) { return (vi)v; }
inline vf floats_of_bits(vi v) { return (vf)v; }
inline vf to_float(vi v) { return __builtin_convertvector(v, vf); }

// Four bytes, repeated in every lane.
inline vb set1_bytes(const int8_t* from) {
  int32_t word;
  std::memcpy(&word, from, sizeof word);
  return (vb)set1(word);
}

// a * b + c; rounded once, but by the portable build (a call per element would be its cost).
inline vf fma(vf a, vf b, vf c) {
#if defined(QUIRE_ISA_AVX512VNNI)
  return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(QUIRE_ISA_AVX2VNNI) || defined(QUIRE_ISA_AVX2)
  return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(QUIRE_ISA_NEON)
  return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

// The larger one per lane; b where either is NaN, or where both are zero.
#if defined(QUIRE_ISA_AVX512VNNI)
inline vf max(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }
inline vf min(vf a, vf b) { return (vf)_mm512_min_ps((__m512)a, (__m512)b); }
#elif defined(QUIRE_ISA_AVX2VNNI) || defined(QUIRE_ISA_AVX2)
inline vf max(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
inline vf min(vf a, vf b) { return (vf)_mm256_min_ps((__m256)a, (__m256)b); }
#else
inline vf max(vf a, vf b) { return a > b ? a : b; }
inline vf min(vf a, vf b) { return a < b ? a : b; }
#endif
inline vi max(vi a, vi b) { return a > b ? a : b; }
inline vf abs(vf v) { return (vf)((vi)v & 0x7fffffff); }

// Reductions over the lanes: halves are folded onto each other until one lane is left.
template <typename T, typename Fold>
inline T fold_lanes(typename VectorOf<T, kLanes>::type v, Fold fold) {
#if defined(QUIRE_ISA_AVX512VNNI)
  typename VectorOf<T, 8>::type a, b;
  std::memcpy(&a, &v, 32);
  std::memcpy(&b, reinterpret_cast<const char*>(&v) + 32, 32);
  auto eight = fold(a, b);
#else
  auto eight = v;
#endif
  typename VectorOf<T, 4>::type four;
  std::memcpy(&four, &eight, 16);
  if (kLanes > 4) {
    typename VectorOf<T, 4>::type high;
    std::memcpy(&high, reinterpret_cast<const char*>(&eight) + sizeof(eight) - 16, 16);
    four = fold(four, high);
  }
  // Vectors all the way: single lanes would go through other registers.
  using Four = typename VectorOf<T, 4>::type;
  const Four two = fold(four, Four{four[2], four[3], four[0], four[1]});
  return fold(two, Four{two[1], two[0], two[3], two[2]})[0];
}
inline float sum_lanes(vf v) {
  return fold_lanes<float>(v, [](auto a, auto b) { return a + b; });
}
inline int32_t sum_lanes(vi v) {
  return fold_lanes<int32_t>(v, [](auto a, auto b) { return a + b; });
}
inline float max_lanes(vf v) {
  return fold_lanes<float>(v, [](auto a, auto b) { return a > b ? a : b; });
}
inline int32_t max_lanes(vi v) {
  return fold_lanes<int32_t>(v, [](auto a, auto b) { return a > b ? a : b; });
}

// The nearest integer, ties to even, for |v| < 2^22: as a float, and as an int32. (Adding 1.5 * 2^23 leaves no
// bits below one; anything larger, or NaN, gives a meaningless integer.)
constexpr float kRoundMagic = 12582912.0f;
inline vf round_even(vf v) { return (v + kRoundMagic) - kRoundMagic; }
inline vi round_to_int(vf v) { return (vi)(v + kRoundMagic) - 0x4b400000; }

// Narrow formats, kLanes elements from `from`. (Left to themselves, compilers convert bytes lane by lane.)
inline vf load_bf16(const uint16_t* from) {
#if defined(QUIRE_ISA_AVX512VNNI)
  return (vf)((vu)_mm512_cvtepu16_epi32(load_as<__m256i>(from)) << 16);
#elif defined(QUIRE_ISA_AVX2VNNI) || defined(QUIRE_ISA_AVX2)
  return (vf)((vu)_mm256_cvtepu16_epi32(load_as<__m128i>(from)) << 16);
#else
  using Half = VectorOf<uint16_t, kLanes>::type;
  return (vf)(__builtin_convertvector(load_as<Half>(from), vu) << 16);
#endif
}
inline vf load_f16(const uint16_t* from) {
#if defined(QUIRE_ISA_AVX512VNNI)
  return (vf)_mm512_cvtph_ps(load_as<__m256i>(from));
#elif defined(QUIRE_ISA_AVX2VNNI) || defined(QUIRE_ISA_AVX2)
  return (vf)_mm256_cvtph_ps(load_as<__m128i>(from));
#elif defined(QUIRE_ISA_NEON)
  return (vf)vcvt_f32_f16(load_as<float16x4_t>(from));
#else
  using Half = VectorOf<uint16_t, kLanes>::type;
  const vu half = __builtin_convertvector(load_as<Half>(from), vu);
  const vu magnitude = (half & 0x7fff) << 13;
  const vu finite = (vu)((vf)magnitude * 0x1p112f);  // moves the exponent's bias; subnormals come out right too
  const vu wide = magnitude >= (0x7c00u << 13) ? (magnitude | 0x7f800000u) : finite;
  return (vf)(wide | (half & 0x8000) << 16);
#endif
}
// Rounds to nearest, ties to even; a NaN stays one.
inline void store_bf16(uint16_t* to, vf v) {
  using Half = VectorOf<uint16_t, kLanes>::type;
  const vu bits = (vu)v;
  const vu rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const vu quiet = (bits >> 16) | 0x40;
  store_as(to, __builtin_convertvector(v == v ? rounded : quiet, Half));
}
inline vf load_i8(const int8_t* from) {
#if defined(QUIRE_ISA_AVX512VNNI)
  return to_float((vi)_mm512_cvtepi8_epi32(load_as<__m128i>(from)));
#elif defined(QUIRE_ISA_AVX2VNNI) || defined(QUIRE_ISA_AVX2)
  return to_float((vi)_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(load_as<int64_t>(from))));
#elif defined(QUIRE_ISA_NEON)
  const int8x8_t bytes = vreinterpret_s8_s32(vdup_n_s32(load_as<int32_t>(from)));
  return to_float((vi)vmovl_s16(vget_low_s16(vmovl_s8(bytes))));
#else
  using Bytes = VectorOf<int8_t, kLanes>::type;
  return to_float(__builtin_convertvector(load_as<Bytes>(from), vi));
#endif
}
// The low byte of each lane.
inline void store_i8(int8_t* to, vi v) {
#if defined(QUIRE_ISA_AVX512VNNI)
  store_as(to, _mm512_cvtepi32_epi8((__m512i)v));
#elif defined(QUIRE_ISA_AVX2VNNI) || defined(QUIRE_ISA_AVX2)
  const __m256i first = _mm256_set1_epi32(0x0c080400);
  const __m256i four = _mm256_shuffle_epi8((__m256i)v, first);
  const __m128i low = _mm256_castsi256_si128(four), high = _mm256_extracti128_si256(four, 1);
  store_as(to, _mm_cvtsi128_si64(_mm_unpacklo_epi32(low, high)));
#elif defined(QUIRE_ISA_NEON)
  const int16x4_t half = vmovn_s32((int32x4_t)v);
  vst1_lane_s32(reinterpret_cast<int32_t*>(to), vreinterpret_s32_s8(vmovn_s16(vcombine_s16(half, half))), 0);
#else
  using Bytes = VectorOf<int8_t, kLanes>::type;
  store_as(to, __builtin_convertvector(v, Bytes));
#endif
}

// acc + a0 b0 + a1 b1 + a2 b2 + a3 b3 in each int32 lane, exactly, for b in [-127, 127].
inline vi dot_i8(vi acc, vb a, vb b) {
#if defined(QUIRE_ISA_AVX512VNNI)
  // The instruction takes unsigned by signed: a + 128 goes in, 128 b comes off again.
  const __m512i off = _mm512_set1_epi8(-128);
  const __m512i sum = _mm512_dpbusd_epi32((__m512i)acc, _mm512_xor_si512((__m512i)a, off), (__m512i)b);
  return (vi)sum - (vi)_mm512_dpbusd_epi32(_mm512_setzero_si512(), off, (__m512i)b);
#elif defined(QUIRE_ISA_AVX2VNNI)
  return (vi)_mm256_dpbusd_avx_epi32((__m256i)acc, _mm256_abs_epi8((__m256i)a),
                                     _mm256_sign_epi8((__m256i)b, (__m256i)a));
#elif defined(QUIRE_ISA_AVX2)
  // |a| <= 128 and |b| <= 127: a pair is at most 2 * 128 * 127 = 32512, so int16 does not saturate.
  const __m256i pairs =
      _mm256_maddubs_epi16(_mm256_abs_epi8((__m256i)a), _mm256_sign_epi8((__m256i)b, (__m256i)a));
  return acc + (vi)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#elif defined(QUIRE_ISA_NEON)
  return (vi)vdotq_s32((int32x4_t)acc, (int8x16_t)a, (int8x16_t)b);
#else
  for (int byte = 0; byte < 4; ++byte) {
    acc += ((vi)a << (24 - 8 * byte) >> 24) * ((vi)b << (24 - 8 * byte) >> 24);
  }
  return acc;
#endif
}

// e^x within 1.3 units in the last place for x in [-87.3, 88.3]; 0 below, infinity above, NaN for NaN.
// Source: Cephes expf: x = n ln 2 + r, a polynomial in r, and n added to the exponent.
inline vf exp(vf x) {
  const vf clamped = max(set1(-87.3f), min(set1(88.3f), x));  // lets a NaN through
  const vf scaled = clamped * 1.44269504f + kRoundMagic;
  const vf n = scaled - kRoundMagic;
  const vf r = fma(n, set1(2.12194440e-4f), fma(n, set1(-0.693359375f), clamped));
  vf p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = fma(p, r * r, r + 1.0f);
  const vf power = (vf)(((vi)scaled - 0x4b400000 + 127) << 23);
  const vf y = x < set1(-87.3f) ? vf{} : p * power;
  return x > set1(88.3f) ? set1(__builtin_inff()) : y;
}

// Within 1e-7 of tanh x.
inline vf tanh(vf x) {
  const vf e = exp(abs(x) * -2.0f);
  const vf magnitude = (1.0f - e) / (1.0f + e);
  return (vf)((vi)magnitude | ((vi)x & (int32_t)0x80000000));
}

// x / (1 + e^-x).
inline vf silu(vf x) { return x / (1.0f + exp(-x)); }

}  // namespace quire
