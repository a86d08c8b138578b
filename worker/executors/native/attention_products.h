// The two products of attention as one kernel: a few rows of queries (or weights) by a panel of 16 keys (or 16
// columns of values), in groups along the sum as kv_page.h stores them.
//
// A row's bits do not depend on how many rows go together: floats are summed in order of the group, one fused
// multiply-add each; int8 numbers by int16 operands are summed exactly in int32.
#pragma once

#include <type_traits>

#include "kv_page.h"
#include "rounding.h"
#include "vec.h"

namespace quire {

using vpairs = VectorOf<int16_t, 2 * kLanes>::type;  // two int16 to an int32 lane

// Rows that one call multiplies at most: as many accumulators as the registers hold.
#if defined(QUIRE_ISA_AVX512VNNI)
constexpr int kMaxRows = 8;
#elif defined(QUIRE_ISA_PORTABLE)
constexpr int kMaxRows = 2;
#else
constexpr int kMaxRows = 4;
#endif

// acc + a0 b0 + a1 b1 in each int32 lane.
inline vi dot_pairs(vi acc, vpairs a, vpairs b) {
#if defined(QUIRE_ISA_AVX512VNNI)
  return (vi)_mm512_dpwssd_epi32((__m512i)acc, (__m512i)a, (__m512i)b);
#elif defined(QUIRE_ISA_AVX2VNNI)
  return (vi)_mm256_dpwssd_avx_epi32((__m256i)acc, (__m256i)a, (__m256i)b);
#elif defined(QUIRE_ISA_AVX2)
  return acc + (vi)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(QUIRE_ISA_NEON)
  const int32x4_t low = vmull_s16(vget_low_s16((int16x8_t)a), vget_low_s16((int16x8_t)b));
  const int32x4_t high = vmull_high_s16((int16x8_t)a, (int16x8_t)b);
  return acc + (vi)vpaddq_s32(low, high);
#else
  return acc + ((vi)a << 16 >> 16) * ((vi)b << 16 >> 16) + ((vi)a >> 16) * ((vi)b >> 16);
#endif
}

inline vpairs load_pairs(const int8_t* from) {
#if defined(QUIRE_ISA_AVX512VNNI)
  return (vpairs)_mm512_cvtepi8_epi16(load_as<__m256i>(from));
#elif defined(QUIRE_ISA_AVX2VNNI) || defined(QUIRE_ISA_AVX2)
  return (vpairs)_mm256_cvtepi8_epi16(load_as<__m128i>(from));
#else
  using Bytes = VectorOf<int8_t, 2 * kLanes>::type;
  return __builtin_convertvector(load_as<Bytes>(from), vpairs);
#endif
}
inline vpairs set1_pair(const int16_t* from) {
  int32_t word;
  std::memcpy(&word, from, sizeof word);
  return (vpairs)set1(word);
}

// What multiplies stored numbers of a format, and what the sums are made in.
template <QuireKvFormat kFormat>
using Operand = std::conditional_t<kFormat == QUIRE_KV_INT8, int16_t, float>;
template <QuireKvFormat kFormat>
using Sum = typename VectorOf<std::conditional_t<kFormat == QUIRE_KV_INT8, int32_t, float>, kLanes>::type;

// sums[r] += rows[r] x panel: `count` numbers of each row, which start `row_stride` apart. panel: groups of
// [16 columns][kGroup] items that start `group_stride` items apart. An odd bf16 count leaves the group's second
// number unread; int8 reads whole groups, so the row must hold a zero there.
template <QuireKvFormat kFormat, int kRows>
inline void multiply(const Operand<kFormat>* rows, int64_t row_stride, const typename KvItems<kFormat>::Item* panel,
                     int64_t group_stride, int count, Sum<kFormat> (&sums)[kRows][kPanelVectors]) {
  constexpr int kGroup = KvItems<kFormat>::kGroup;
  const auto step = [&](int i, auto is_whole) {
    for (int column = 0; column < kPanelVectors; ++column) {
      const auto* items = panel + column * kLanes * kGroup;
      if constexpr (kFormat == QUIRE_KV_INT8) {
        const vpairs b = load_pairs(items);
        for (int r = 0; r < kRows; ++r) {
          sums[r][column] = dot_pairs(sums[r][column], b, set1_pair(rows + r * row_stride + i));
        }
      } else if constexpr (kFormat == QUIRE_KV_BF16) {
        const vu words = load_as<vu>(items);
        const vf even = (vf)(words << 16), odd = (vf)(words & 0xffff0000u);
        for (int r = 0; r < kRows; ++r) {
          const float* a = rows + r * row_stride + i;
          sums[r][column] = fma(set1(a[0]), even, sums[r][column]);
          if (is_whole) sums[r][column] = fma(set1(a[1]), odd, sums[r][column]);
        }
      } else {
        const vf b = load(items);
        for (int r = 0; r < kRows; ++r) sums[r][column] = fma(set1(rows[r * row_stride + i]), b, sums[r][column]);
      }
    }
    panel += group_stride;
  };
  int i = 0;
  for (; i + kGroup <= count; i += kGroup) step(i, std::true_type{});
  if (i < count) step(i, std::bool_constant<kFormat == QUIRE_KV_INT8>{});
}

// Calls body(first, std::integral_constant<int, n>) for pieces of n <= kMaxRows rows that cover num_rows.
template <int kRows = kMaxRows, typename Body>
inline void for_rows(int num_rows, const Body& body, int first = 0) {
  for (; first + kRows <= num_rows; first += kRows) body(first, std::integral_constant<int, kRows>{});
  if constexpr (kRows > 1) for_rows<kRows - 1>(num_rows, body, first);
}

}  // namespace quire
