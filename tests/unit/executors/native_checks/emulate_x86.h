// Force-included (-include) before vec.h on a machine without AVX512 or VNNI: their instructions become SIMDe's
// portable code, so that those kernels' arithmetic can be checked anywhere. Knows nothing of the kernels.
#pragma once

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

// What SIMDe 0.7 lacks: AVX-VNNI's own names, and the wide conversion from half precision.
#define _mm256_dpbusd_avx_epi32 simde_mm256_dpbusd_epi32
#undef _mm512_cvtph_ps
#define _mm512_cvtph_ps quire_emulated_cvtph_ps

inline simde__m512 quire_emulated_cvtph_ps(simde__m256i halves) {
  simde__m128i half[2];
  simde__m256 wide[2];
  simde__m512 all;
  simde_memcpy(half, &halves, sizeof half);
  for (int i = 0; i < 2; ++i) wide[i] = simde_mm256_cvtph_ps(half[i]);
  simde_memcpy(&all, wide, sizeof all);
  return all;
}
