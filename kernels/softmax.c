// kernels/softmax.c: rows of attention in vectors: softmax of scores; scores and mixed values of single queries.
//
// The softmax's sum runs over 32 partials (element i to partial i mod 32) that join by halving, whatever the processor:
// the same bits at every feature level. Only the vector instructions differ, so the code is compiled once more for
// AVX2. A weight of -0 marks a key that isn't seen: it adds nothing to a sum, and its value isn't multiplied.
#include "contract_impl.h"

#include <math.h>

enum { LANES = 8, VECS = 4 };
typedef float vf __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

#define ALWAYS static inline __attribute__((always_inline))
#define SPLAT(x) ((vf){(x), (x), (x), (x), (x), (x), (x), (x)})

ALWAYS void select_into(vf *to, const vf *from, const vi *where) {
    *to = (vf)(((vi)*to & ~*where) | ((vi)*from & *where));
}

// *x = e^*x for x <= 0: 2^n e^r with r = x - n ln 2; below 2^-126 it is 0, of -inf -0. NaN stays.
ALWAYS void exp_down(vf *x) {
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

ALWAYS float row_f32(const struct tj_softmax_row *r) {
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
    float p[LANES];
    memcpy(p, &s, sizeof p);
    for (int half = LANES / 2; half; half /= 2) {
        for (int l = 0; l < half; l++) {
            p[l] += p[l + half];
        }
    }
    return p[0];
}

// x[j] = sum over i of q[i] * k_j[i], rows of k ldk elements apart: 32 partials, joined as above.
ALWAYS void dots(float *x, const float *q, const float *k, int64_t ldk, int64_t n, int64_t e) {
    for (int64_t j = 0; j < n; j++, k += ldk) {
        vf sum[VECS] = {SPLAT(0.0f), SPLAT(0.0f), SPLAT(0.0f), SPLAT(0.0f)};
        int64_t i = 0;
        for (; i + LANES * VECS <= e; i += LANES * VECS) {
            for (int v = 0; v < VECS; v++) {
                sum[v] += *(const vf *)(q + i + v * LANES) * *(const vf *)(k + i + v * LANES);
            }
        }
        for (; i + LANES <= e; i += LANES) {
            sum[0] += *(const vf *)(q + i) * *(const vf *)(k + i);
        }
        vf s = (sum[0] + sum[2]) + (sum[1] + sum[3]);
        float p[LANES];
        memcpy(p, &s, sizeof p);
        for (int half = LANES / 2; half; half /= 2) {
            for (int l = 0; l < half; l++) {
                p[l] += p[l + half];
            }
        }
        for (; i < e; i++) {
            p[0] += q[i] * k[i];
        }
        x[j] = p[0];
    }
}

// y[c] = sum over ascending j of p[j] * v_j[c], of keys that are seen.
ALWAYS void mix(float *y, const float *p, const float *v, int64_t ldv, int64_t n, int64_t ev) {
    enum { WIDE = 8 };
    int64_t c = 0;
    for (; c + LANES * WIDE <= ev; c += LANES * WIDE) {
        vf sum[WIDE];
        for (int w = 0; w < WIDE; w++) {
            sum[w] = SPLAT(0.0f);
        }
        for (int64_t j = 0; j < n; j++) {
            if (tj_unseen_f32(p[j])) {
                continue;
            }
            vf pj = SPLAT(p[j]);
            for (int w = 0; w < WIDE; w++) {
                sum[w] += pj * *(const vf *)(v + j * ldv + c + w * LANES);
            }
        }
        for (int w = 0; w < WIDE; w++) {
            *(vf *)(y + c + w * LANES) = sum[w];
        }
    }
    for (; c + LANES <= ev; c += LANES) {
        vf sum = SPLAT(0.0f);
        for (int64_t j = 0; j < n; j++) {
            if (!tj_unseen_f32(p[j])) {
                sum += SPLAT(p[j]) * *(const vf *)(v + j * ldv + c);
            }
        }
        *(vf *)(y + c) = sum;
    }
    for (; c < ev; c++) {
        float sum = 0;
        for (int64_t j = 0; j < n; j++) {
            sum += tj_unseen_f32(p[j]) ? 0 : p[j] * v[j * ldv + c];
        }
        y[c] = sum;
    }
}

#define DOTS_ARGS float *x, const float *q, const float *k, int64_t ldk, int64_t n, int64_t e
#define MIX_ARGS float *y, const float *p, const float *v, int64_t ldv, int64_t n, int64_t ev

#if defined(__x86_64__)
#define AVX2 __attribute__((target("avx2")))
AVX2 static float row_avx2(const struct tj_softmax_row *r) { return row_f32(r); }
AVX2 static void dots_avx2(DOTS_ARGS) { dots(x, q, k, ldk, n, e); }
AVX2 static void mix_avx2(MIX_ARGS) { mix(y, p, v, ldv, n, ev); }
#define HAS_WIDE 1
#else
#define row_avx2 row_f32
#define dots_avx2 dots
#define mix_avx2 mix
#define HAS_WIDE 0
#endif

float tj_softmax_f32(const struct tj_softmax_row *r, bool wide) {
    if (HAS_WIDE && wide) {
        return row_avx2(r);
    }
    return row_f32(r);
}

void tj_dots_f32(DOTS_ARGS, bool wide) {
    if (HAS_WIDE && wide) {
        dots_avx2(x, q, k, ldk, n, e);
    } else {
        dots(x, q, k, ldk, n, e);
    }
}

void tj_mix_f32(MIX_ARGS, bool wide) {
    if (HAS_WIDE && wide) {
        mix_avx2(y, p, v, ldv, n, ev);
    } else {
        mix(y, p, v, ldv, n, ev);
    }
}
