// Force-included (-include) before vec.h on a machine without AVX512 or VNNI: their instructions become SIMDe's
// portable code, so that those kernels' arithmetic can be checked anywhere. Knows nothing of the kernels.
#pragma once

#define QUIRE_UNROLL

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

// What SIMDe 0.7 lacks: AVX-VNNI's own names, and a few conversions.
#define _mm256_dpbusd_avx_epi32 simde_mm256_dpbusd_epi32
#define _mm256_dpwssd_avx_epi32 simde_mm256_dpwssd_epi32
#undef _mm512_cvtph_ps
#define _mm512_cvtph_ps quire_emulated_cvtph_ps
#define _mm512_cvtepu16_epi32 quire_emulated_widen<uint16_t>
#undef _mm512_cvtepi8_epi32
#undef _mm512_cvtepi32_epi8
#define _mm512_cvtepi32_epi8 quire_emulated_low_bytes
#define _mm512_cvtepi8_epi32 quire_emulated_widen<int8_t>

inline simde__m512 quire_emulated_cvtph_ps(simde__m256i halves) {
  simde__m128i half[2];
  simde__m256 wide[2];
  simde__m512 all;
  simde_memcpy(half, &halves, sizeof half);
  for (int i = 0; i < 2; ++i) wide[i] = simde_mm256_cvtph_ps(half[i]);
  simde_memcpy(&all, wide, sizeof all);
  return all;
}

template <typename Narrow, typename From>
simde__m512i quire_emulated_widen(From packed) {
  Narrow narrow[16];
  int32_t wide[16];
  simde__m512i all;
  simde_memcpy(narrow, &packed, sizeof narrow);
  for (int i = 0; i < 16; ++i) wide[i] = narrow[i];
  simde_memcpy(&all, wide, sizeof all);
  return all;
}

inline simde__m128i quire_emulated_low_bytes(simde__m512i lanes) {
  int32_t wide[16];
  int8_t narrow[16];
  simde__m128i packed;
  simde_memcpy(wide, &lanes, sizeof wide);
  for (int i = 0; i < 16; ++i) narrow[i] = static_cast<int8_t>(wide[i]);
  simde_memcpy(&packed, narrow, sizeof packed);
  return packed;
}
