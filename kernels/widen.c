// kernels/widen.c: 16-bit floats to f32, exactly: runs of elements, for operands that tiles read as f32.
#include "widen.h"

#define RUN(name, attr, load)                                                                                          \
    attr static void name(float *dst, const uint16_t *src, int64_t n) {                                                \
        int64_t i = 0;                                                                                                 \
        tj_wide8 x;                                                                                                    \
        for (; i + 8 <= n; i += 8) {                                                                                   \
            load(&x, src + i);                                                                                         \
            memcpy(dst + i, &x, sizeof x);                                                                             \
        }                                                                                                              \
        if (i < n) {                                                                                                   \
            uint16_t rest[8] = {0};                                                                                    \
            memcpy(rest, src + i, (size_t)(n - i) * sizeof *src);                                                      \
            load(&x, rest);                                                                                            \
            memcpy(dst + i, &x, (size_t)(n - i) * sizeof *dst);                                                        \
        }                                                                                                              \
    }

RUN(bf16_run, , tj_load8_bf16)
RUN(f16_run, , tj_load8_f16)
#if TJ_HAS_WIDE
RUN(bf16_run_wide, TJ_WIDE, tj_load8_bf16w)
RUN(f16_run_wide, TJ_WIDE, tj_load8_f16w)
#else
#define bf16_run_wide bf16_run
#define f16_run_wide f16_run
#endif

void tj_widen(float *dst, const void *src, int64_t n, uint8_t dtype, bool wide) {
    if (dtype == TRACE_F16) {
        (TJ_HAS_WIDE && wide ? f16_run_wide : f16_run)(dst, src, n);
    } else {
        (TJ_HAS_WIDE && wide ? bf16_run_wide : bf16_run)(dst, src, n);
    }
}
