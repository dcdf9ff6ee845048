// kernels/axpy.c: a few rows times rows of b that are read where they are: no panel is packed that only they would
// read.
#include "../trace/math.h"
#include "widen.h"

#if TJ_HAS_WIDE
#define FUSED __attribute__((target("avx2,f16c,fma")))
enum { STRIP = 1024 }; // columns whose sums and rows of b stay in the first cache

// Columns [j0, j1) of one row, STEPS of k: sums are loaded and stored once for all of them.
#define STEPS_ROW(type, load, one)                                                                                     \
    int64_t j = j0;                                                                                                    \
    for (; j + 8 <= j1; j += 8) {                                                                                      \
        tj_wide8 sum = {0}, y;                                                                                         \
        if (x->chain) {                                                                                                \
            tj_load8_f32(&sum, c + j);                                                                                 \
        }                                                                                                              \
        _Pragma("GCC unroll 8") for (int k = 0; k < TJ_AXPY_STEPS; k++) {                                              \
            load(&y, b + k * x->ldb + j);                                                                              \
            sum = (tj_wide8)_mm256_fmadd_ps((__m256)av[k], (__m256)y, (__m256)sum);                                    \
        }                                                                                                              \
        *(tj_wide8 *)(c + j) = sum;                                                                                    \
    }                                                                                                                  \
    for (; j < j1; j++) {                                                                                              \
        float sum = x->chain ? c[j] : 0;                                                                               \
        for (int k = 0; k < TJ_AXPY_STEPS; k++) {                                                                      \
            sum = __builtin_fmaf(a[k], one(b[k * x->ldb + j]), sum);                                                   \
        }                                                                                                              \
        c[j] = sum;                                                                                                    \
    }

// Fewer steps: what is left of k.
#define REST_ROW(type, load, one)                                                                                      \
    for (int64_t j = j0; j < j1; j++) {                                                                                \
        float sum = x->chain ? c[j] : 0;                                                                               \
        for (int64_t k = 0; k < x->k; k++) {                                                                           \
            sum = __builtin_fmaf(a[k], one(b[k * x->ldb + j]), sum);                                                   \
        }                                                                                                              \
        c[j] = sum;                                                                                                    \
    }

#define AXPY(name, type, load, one)                                                                                    \
    FUSED static void name(const struct tj_axpy *x) {                                                                  \
        const type *b = x->b;                                                                                          \
        for (int64_t j0 = 0; j0 < x->cols; j0 += STRIP) {                                                              \
            const int64_t j1 = j0 + STRIP < x->cols ? j0 + STRIP : x->cols;                                            \
            for (int64_t m = 0; m < x->rows; m++) {                                                                    \
                const float *a = x->a + m * x->lda;                                                                    \
                float *c = x->c + m * x->ldc;                                                                          \
                if (x->k == TJ_AXPY_STEPS) {                                                                           \
                    tj_wide8 av[TJ_AXPY_STEPS];                                                                        \
                    _Pragma("GCC unroll 8") for (int k = 0; k < TJ_AXPY_STEPS; k++) {                                  \
                        av[k] = (tj_wide8)_mm256_set1_ps(a[k]);                                                        \
                    }                                                                                                  \
                    STEPS_ROW(type, load, one)                                                                         \
                } else {                                                                                               \
                    REST_ROW(type, load, one)                                                                          \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    }

#define SAME(v) (v)
AXPY(axpy_f32, float, tj_load8_f32, SAME)
AXPY(axpy_f16, uint16_t, tj_load8_f16w, tj_f16_to_f32)
AXPY(axpy_bf16, uint16_t, tj_load8_bf16w, tj_bf16_to_f32)

bool tj_axpy_works(const struct tj_contract *c) { return c->wide && c->dtype == TRACE_F32; }

void tj_axpy(const struct tj_axpy *x) {
    (x->dtype == TRACE_F16 ? axpy_f16 : x->dtype == TRACE_BF16 ? axpy_bf16 : axpy_f32)(x);
}
#else
bool tj_axpy_works(const struct tj_contract *c) {
    (void)c;
    return false;
}
void tj_axpy(const struct tj_axpy *x) { (void)x; }
#endif
