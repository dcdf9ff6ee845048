// kernels/softmax.c: rows of attention in vectors: softmax of scores; scores and mixed values of single queries.
//
// The softmax's sum runs over 32 partials (element i to partial i mod 32) that join by halving, whatever the processor:
// the same bits at every feature level. Only the vector instructions differ, so the code is compiled once more for
// AVX2. A weight of -0 marks a key that isn't seen: it adds nothing to a sum, and its value isn't multiplied.
#include <math.h>

#include "../trace/math.h"
#include "widen.h"

enum { LANES = 8, VECS = 4 };
typedef tj_wide8 vf;
typedef int32_t vi __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

#define SPLAT(x) ((vf){(x), (x), (x), (x), (x), (x), (x), (x)})

TJ_ALWAYS void select_into(vf *to, const vf *from, const vi *where) {
    *to = (vf)(((vi)*to & ~*where) | ((vi)*from & *where));
}

// *x = e^*x for x <= 0: 2^n e^r with r = x - n ln 2; below 2^-126 it is 0, of -inf -0. NaN stays.
TJ_ALWAYS void exp_down(vf *x) {
    const vf magic = SPLAT(12582912.0f); // adding it rounds to an integer, kept in the low bits
    vf a = *x, zero = SPLAT(0.0f), low = SPLAT(TJ_WEIGHT_LOW), none = SPLAT(-0.0f), unseen = SPLAT(-INFINITY);
    vi under = a < low, out = a == unseen;
    vf nothing = (vf)(out & (vi)none);
    select_into(&a, &zero, &under);
    vf n = a * SPLAT(0x1.715476p+0f) + magic;
    vi bits = (vi)n;
    n -= magic;
    vf r = a - n * SPLAT(0x1.62e4p-1f); // ln 2 in two parts: n times the first is exact
    r -= n * SPLAT(0x1.7f7d1cp-20f);
    vf q = SPLAT(1.98412698e-4f);
    q = q * r + SPLAT(1.38888889e-3f);
    q = q * r + SPLAT(8.33333333e-3f);
    q = q * r + SPLAT(4.16666667e-2f);
    q = q * r + SPLAT(1.66666667e-1f);
    q = q * r + SPLAT(0.5f);
    q = q * r * r + r + SPLAT(1.0f);
    vi scale = (bits - (int32_t)0x4B400000 + 127) << 23;
    *x = q * (vf)scale;
    select_into(x, &nothing, &under);
}

// Eight partials by halving.
TJ_ALWAYS float join(const vf *s) {
    typedef float v4 __attribute__((vector_size(16)));
    v4 a = __builtin_shufflevector(*s, *s, 0, 1, 2, 3) + __builtin_shufflevector(*s, *s, 4, 5, 6, 7);
    a += __builtin_shufflevector(a, a, 2, 3, 2, 3);
    return a[0] + a[1];
}

TJ_ALWAYS float row_f32(const struct tj_softmax_row *r) {
    float *x = r->x;
    const int64_t n = r->n;
    const float hidden = -INFINITY;
    int64_t i = 0;
    float top = hidden;
    // Scale and mask.
    if (!r->mask) {
        vf s = SPLAT(r->scale), m = SPLAT(hidden);
        for (; i + LANES <= n; i += LANES) {
            vf v = *(vf *)(x + i) * s;
            vi more = v > m;
            *(vf *)(x + i) = v;
            select_into(&m, &v, &more);
        }
        for (int l = 0; l < LANES; l++) {
            top = m[l] > top ? m[l] : top;
        }
    }
    for (; i < n; i++) {
        float v = x[i] * r->scale;
        if (r->mask && r->mask_dtype == TRACE_BOOL) {
            v = r->mask[i * r->smask] ? v : hidden;
        } else if (r->mask) {
            float m = ((const float *)(const void *)r->mask)[i * r->smask];
            v = m == hidden ? hidden : v + m; // whatever the score is
        }
        x[i] = v;
        top = v > top ? v : top;
    }
    if (top == hidden) { // everything hidden, or nothing but NaN
        bool nan = false;
        for (i = 0; i < n; i++) {
            nan |= x[i] != x[i];
            x[i] = 0;
        }
        return nan ? NAN : 0;
    }
    vf sum[VECS] = {SPLAT(0.0f), SPLAT(0.0f), SPLAT(0.0f), SPLAT(0.0f)}, m = SPLAT(top);
    for (i = 0; i + LANES * VECS <= n; i += LANES * VECS) {
        for (int v = 0; v < VECS; v++) {
            vf e = *(vf *)(x + i + v * LANES) - m;
            exp_down(&e);
            *(vf *)(x + i + v * LANES) = e;
            sum[v] += e;
        }
    }
    if (i < n) {
        float rest[LANES * VECS];
        for (int l = 0; l < LANES * VECS; l++) {
            rest[l] = i + l < n ? x[i + l] : hidden;
        }
        for (int v = 0; v < VECS; v++) {
            vf e = *(vf *)(rest + v * LANES) - m;
            exp_down(&e);
            *(vf *)(rest + v * LANES) = e;
            sum[v] += e;
        }
        memcpy(x + i, rest, (size_t)(n - i) * sizeof *x);
    }
    vf s = (sum[0] + sum[2]) + (sum[1] + sum[3]);
    return join(&s);
}

// x[j] = sum over i of q[i] * k_j[i], rows of k ldk elements apart: 32 partials, joined as above. Eight elements of k
// at p come by load(&v, p), one by one(*p): the same bits for every dtype as for f32 of the same values.
#define UNROLL _Pragma("GCC unroll 8") // accumulators have to be registers
#define DOTS_ARGS float *x, const float *q, const void *keys, int64_t ldk, int64_t n, int64_t e
#define DOTS(name, attr, type, load, one)                                                                              \
    attr static void name(DOTS_ARGS) {                                                                                 \
        const type *k = keys;                                                                                          \
        for (int64_t j = 0; j < n; j++, k += ldk) {                                                                    \
            vf sum[VECS] = {SPLAT(0.0f), SPLAT(0.0f), SPLAT(0.0f), SPLAT(0.0f)}, y;                                    \
            int64_t i = 0;                                                                                             \
            for (; i + LANES * VECS <= e; i += LANES * VECS) {                                                         \
                UNROLL                                                                                                 \
                for (int v = 0; v < VECS; v++) {                                                                       \
                    load(&y, k + i + v * LANES);                                                                       \
                    sum[v] += *(const vf *)(q + i + v * LANES) * y;                                                    \
                }                                                                                                      \
            }                                                                                                          \
            for (; i + LANES <= e; i += LANES) {                                                                       \
                load(&y, k + i);                                                                                       \
                sum[0] += *(const vf *)(q + i) * y;                                                                    \
            }                                                                                                          \
            vf s = (sum[0] + sum[2]) + (sum[1] + sum[3]);                                                              \
            float p = join(&s);                                                                                        \
            for (; i < e; i++) {                                                                                       \
                p += q[i] * one(k[i]);                                                                                 \
            }                                                                                                          \
            x[j] = p;                                                                                                  \
        }                                                                                                              \
    }

// y[c] = sum over ascending j of p[j] * v_j[c], of keys that are seen.
#define MIX_ARGS float *y, const float *p, const void *values, int64_t ldv, int64_t n, int64_t ev
#define MIX(name, attr, type, load, one)                                                                               \
    attr static void name(MIX_ARGS) {                                                                                  \
        enum { WIDE = 8 };                                                                                             \
        const type *v = values;                                                                                        \
        int64_t c = 0;                                                                                                 \
        for (; c + LANES * WIDE <= ev; c += LANES * WIDE) {                                                            \
            vf sum[WIDE], x;                                                                                           \
            UNROLL                                                                                                     \
            for (int w = 0; w < WIDE; w++) {                                                                           \
                sum[w] = SPLAT(0.0f);                                                                                  \
            }                                                                                                          \
            for (int64_t j = 0; j < n; j++) {                                                                          \
                if (tj_unseen_f32(p[j])) {                                                                             \
                    continue;                                                                                          \
                }                                                                                                      \
                vf pj = SPLAT(p[j]);                                                                                   \
                UNROLL                                                                                                 \
                for (int w = 0; w < WIDE; w++) {                                                                       \
                    load(&x, v + j * ldv + c + w * LANES);                                                             \
                    sum[w] += pj * x;                                                                                  \
                }                                                                                                      \
            }                                                                                                          \
            UNROLL                                                                                                     \
            for (int w = 0; w < WIDE; w++) {                                                                           \
                *(vf *)(y + c + w * LANES) = sum[w];                                                                   \
            }                                                                                                          \
        }                                                                                                              \
        for (; c + LANES <= ev; c += LANES) {                                                                          \
            vf sum = SPLAT(0.0f), x;                                                                                   \
            for (int64_t j = 0; j < n; j++) {                                                                          \
                if (!tj_unseen_f32(p[j])) {                                                                            \
                    load(&x, v + j * ldv + c);                                                                         \
                    sum += SPLAT(p[j]) * x;                                                                            \
                }                                                                                                      \
            }                                                                                                          \
            *(vf *)(y + c) = sum;                                                                                      \
        }                                                                                                              \
        for (; c < ev; c++) {                                                                                          \
            float sum = 0;                                                                                             \
            for (int64_t j = 0; j < n; j++) {                                                                          \
                sum += tj_unseen_f32(p[j]) ? 0 : p[j] * one(v[j * ldv + c]);                                           \
            }                                                                                                          \
            y[c] = sum;                                                                                                \
        }                                                                                                              \
    }

// For each dtype, once for the build's level and once for AVX2.
#define SAME(x) (x)
DOTS(dots_f32, , float, tj_load8_f32, SAME)
DOTS(dots_f16, , uint16_t, tj_load8_f16, tj_f16_to_f32)
DOTS(dots_bf16, , uint16_t, tj_load8_bf16, tj_bf16_to_f32)
MIX(mix_f32, , float, tj_load8_f32, SAME)
MIX(mix_f16, , uint16_t, tj_load8_f16, tj_f16_to_f32)
MIX(mix_bf16, , uint16_t, tj_load8_bf16, tj_bf16_to_f32)

#if TJ_HAS_WIDE
TJ_WIDE static float row_wide(const struct tj_softmax_row *r) { return row_f32(r); }
DOTS(dots_f32_wide, TJ_WIDE, float, tj_load8_f32, SAME)
DOTS(dots_f16_wide, TJ_WIDE, uint16_t, tj_load8_f16w, tj_f16_to_f32)
DOTS(dots_bf16_wide, TJ_WIDE, uint16_t, tj_load8_bf16w, tj_bf16_to_f32)
MIX(mix_f32_wide, TJ_WIDE, float, tj_load8_f32, SAME)
MIX(mix_f16_wide, TJ_WIDE, uint16_t, tj_load8_f16w, tj_f16_to_f32)
MIX(mix_bf16_wide, TJ_WIDE, uint16_t, tj_load8_bf16w, tj_bf16_to_f32)
#else
#define row_wide row_f32
#define dots_f32_wide dots_f32
#define dots_f16_wide dots_f16
#define dots_bf16_wide dots_bf16
#define mix_f32_wide mix_f32
#define mix_f16_wide mix_f16
#define mix_bf16_wide mix_bf16
#endif

float tj_softmax_f32(const struct tj_softmax_row *r, bool wide) { return wide ? row_wide(r) : row_f32(r); }

void tj_dots(DOTS_ARGS, uint8_t dtype, bool wide) {
    void (*run)(DOTS_ARGS) = dtype == TRACE_F16    ? (wide ? dots_f16_wide : dots_f16)
                             : dtype == TRACE_BF16 ? (wide ? dots_bf16_wide : dots_bf16)
                                                   : (wide ? dots_f32_wide : dots_f32);
    run(x, q, keys, ldk, n, e);
}

void tj_mix(MIX_ARGS, uint8_t dtype, bool wide) {
    void (*run)(MIX_ARGS) = dtype == TRACE_F16    ? (wide ? mix_f16_wide : mix_f16)
                            : dtype == TRACE_BF16 ? (wide ? mix_bf16_wide : mix_bf16)
                                                  : (wide ? mix_f32_wide : mix_f32);
    run(y, p, values, ldv, n, ev);
}
