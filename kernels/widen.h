// kernels/widen.h: eight 16-bit floats as f32, in vectors of gcc and clang; exact, the bits of trace/math.h.
#ifndef TJ_KERNELS_WIDEN_H
#define TJ_KERNELS_WIDEN_H
#include "contract_impl.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define TJ_HAS_WIDE 1
#define TJ_WIDE __attribute__((target("avx2,f16c"))) // code for processors of the AVX2 level
#else
#define TJ_HAS_WIDE 0
#define TJ_WIDE
#endif
#define TJ_ALWAYS static inline __attribute__((always_inline))

typedef float tj_wide8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint32_t tj_word8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint16_t tj_half8 __attribute__((vector_size(16), aligned(2), may_alias));

TJ_ALWAYS void tj_load8_f32(tj_wide8 *x, const float *p) { *x = *(const tj_wide8 *)p; }

TJ_ALWAYS void tj_load8_bf16(tj_wide8 *x, const uint16_t *p) {
    *x = (tj_wide8)(__builtin_convertvector(*(const tj_half8 *)p, tj_word8) << 16);
}

// Scaling by 2^112 moves the exponent and makes subnormals normal; infinities and NaN get their exponent back.
TJ_ALWAYS void tj_load8_f16(tj_wide8 *x, const uint16_t *p) {
    tj_word8 h = __builtin_convertvector(*(const tj_half8 *)p, tj_word8);
    tj_word8 sign = (h & 0x8000) << 16, m = (h & 0x7fff) << 13;
    tj_word8 f = (tj_word8)((tj_wide8)m * 0x1p112f);
    tj_word8 special = (tj_word8)(m >= 0x7c00u << 13), nan = (tj_word8)(m > 0x7c00u << 13);
    f |= special & (m | 0x7f800000u | (nan & 0x400000u));
    *x = (tj_wide8)(f | sign);
}

// The same in instructions of the AVX2 level, which compilers don't find.
#if TJ_HAS_WIDE
TJ_WIDE TJ_ALWAYS void tj_load8_bf16w(tj_wide8 *x, const uint16_t *p) {
    *x = (tj_wide8)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)), 16);
}
TJ_WIDE TJ_ALWAYS void tj_load8_f16w(tj_wide8 *x, const uint16_t *p) {
    *x = (tj_wide8)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
#else
#define tj_load8_bf16w tj_load8_bf16
#define tj_load8_f16w tj_load8_f16
#endif
#endif
