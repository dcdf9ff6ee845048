// trace/math.h: the definition of every pointwise function, one IEEE operation after another.
//
// The interpreter calls these; an emitter mirrors them a vector at a time. So there are no branches, tables or loops:
// only + - * / fma sqrt, rounding to integers, comparisons with a select, integer operations on the bit pattern and
// conversions. Every operation rounds once (compile with -ffp-contract=off); fma is fused where it is written and
// nowhere else. A select keeps a NaN because the comparison with it is false: the order of its operands matters.
// docs/semantics.md has the error bounds.
#ifndef TJ_TRACE_MATH_H
#define TJ_TRACE_MATH_H
#include <math.h>

#include "../lib/base.h"
#include "../lib/coefs.h"

static inline uint32_t tj_f32_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}
static inline float tj_bits_f32(uint32_t u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}
static inline uint64_t tj_f64_bits(double x) {
    uint64_t u;
    memcpy(&u, &x, 8);
    return u;
}
static inline double tj_bits_f64(uint64_t u) {
    double x;
    memcpy(&x, &u, 8);
    return x;
}
static inline float tj_abs_f32(float x) { return tj_bits_f32(tj_f32_bits(x) & 0x7fffffffu); }
static inline double tj_abs_f64(double x) { return tj_bits_f64(tj_f64_bits(x) & 0x7fffffffffffffffull); }

// ---- low precision: to nearest, ties to even; NaN stays NaN (quiet, the top of the payload kept) -------------------

// Branches are allowed here: emitters have instructions for it (vcvtps2ph) or fptrunc. All give these bits.
static inline uint16_t tj_f32_to_f16(float x) {
    uint32_t u = tj_f32_bits(x), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u | (a >> 13 & 0x3ffu));
    }
    if (a >= 0x47800000u) { // 65536 and above; [65520, 65536) carries into the exponent of infinity below
        return (uint16_t)(sign | 0x7c00u);
    }
    if (a < 0x38800000u) { // below 2^-14: the sum with 0.5 rounds to multiples of 2^-24
        return (uint16_t)(sign | (tj_f32_bits(tj_bits_f32(a) + 0.5f) - 0x3f000000u));
    }
    return (uint16_t)(sign | ((a - 0x38000000u + 0xfffu + (a >> 13 & 1u)) >> 13));
}
static inline float tj_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, a = h & 0x7fffu;
    if (a >= 0x7c00u) {
        return tj_bits_f32(sign | 0x7f800000u | (a > 0x7c00u ? 0x400000u : 0u) | (a & 0x3ffu) << 13);
    }
    if (a < 0x400u) {
        return tj_bits_f32(sign | tj_f32_bits((float)a * 0x1p-24f));
    }
    return tj_bits_f32(sign | ((a << 13) + 0x38000000u));
}
static inline uint16_t tj_f32_to_bf16(float x) {
    uint32_t u = tj_f32_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)(u >> 16 | 0x40u);
    }
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}
static inline float tj_bf16_to_f32(uint16_t h) { return tj_bits_f32((uint32_t)h << 16); }

// ---- exp -----------------------------------------------------------------------------------------------------------

// e^(a + lo) = p * s1 * s2 for a in [-170, 89] and a tiny lo. s1 and s2 are normal powers of two, p is in [0.7, 1.5],
// so p * s1 is exact and the second product rounds once, to a subnormal or infinity where that is the result (an
// emitter that has it may use one scalef by n). NaN: p is NaN, s1 and s2 are some powers of two.
struct tj_exp_parts {
    float p, s1, s2;
};
static inline struct tj_exp_parts tj_exp_split(float a, float lo) {
    float t = fmaf(a, TJ_LOG2E, TJ_EXP_MAGIC);
    float n = t - TJ_EXP_MAGIC; // nearest integer to a log2 e
    float r = fmaf(n, -TJ_LN2_HI, a);
    r = fmaf(n, -TJ_LN2_LO, r);
    r = r + lo; // left out by an emitter when lo is 0: adding +0 to r changes -0 only, and p not at all
    float p = fmaf(TJ_EXP_C4, r, TJ_EXP_C3);
    p = fmaf(p, r, TJ_EXP_C2);
    p = fmaf(p, r, TJ_EXP_C1);
    p = fmaf(p, r, TJ_EXP_C0);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    uint32_t b = tj_f32_bits(t); // 0x4b400000 + 254 + n
    uint32_t h = b >> 1;         // 0x25a00000 + 127 + floor(n / 2)
    struct tj_exp_parts e = {p, tj_bits_f32(h << 23), tj_bits_f32((b - h) << 23)};
    return e;
}
static inline float tj_exp_f32(float x) {
    float a = x > TJ_EXP_HI ? TJ_EXP_HI : x;
    a = a < TJ_EXP_LO ? TJ_EXP_LO : a;
    struct tj_exp_parts e = tj_exp_split(a, 0.0f);
    return e.p * e.s1 * e.s2;
}

// ---- log -----------------------------------------------------------------------------------------------------------

// f^3 (C0 + f (C1 + ...)): what log(1 + f) has beyond f - f^2/2.
static inline float tj_log_tail(float f, float s) {
    float p = fmaf(TJ_LOG_C7, f, TJ_LOG_C6);
    p = fmaf(p, f, TJ_LOG_C5);
    p = fmaf(p, f, TJ_LOG_C4);
    p = fmaf(p, f, TJ_LOG_C3);
    p = fmaf(p, f, TJ_LOG_C2);
    p = fmaf(p, f, TJ_LOG_C1);
    p = fmaf(p, f, TJ_LOG_C0);
    return p * f * s;
}
static inline float tj_log_f32(float x) {
    bool tiny = x < 0x1p-126f; // also negative x, whose result is replaced below
    float xs = x * 0x1p23f;
    float xn = tiny ? xs : x;
    float e0 = tiny ? -23.0f : 0.0f;
    uint32_t b = tj_f32_bits(xn) - TJ_SQRTHALF_BITS;
    float e = (float)((int32_t)b >> 23) + e0;                  // arithmetic shift
    float m = tj_bits_f32((b & 0x7fffffu) + TJ_SQRTHALF_BITS); // [sqrt(1/2), sqrt 2)
    float f = m - 1.0f;
    float s = f * f;
    float y = tj_log_tail(f, s);
    y = fmaf(e, TJ_LN2_LO, y);
    y = fmaf(-0.5f, s, y);
    y = f + y;
    y = fmaf(e, TJ_LN2_HI, y);
    y = x < INFINITY ? y : x; // inf and NaN (whose comparison is false) are their own logarithm
    y = x < 0.0f ? NAN : y;
    return x == 0.0f ? -INFINITY : y;
}
// log(1 + t) for t in [0, 1].
static inline float tj_log1p_small(float t) {
    bool big = t > TJ_SQRT2M1;
    float h = (t - 1.0f) * 0.5f; // (1 + t)/2 - 1
    float f = big ? h : t;
    float k = big ? 1.0f : 0.0f;
    float s = f * f;
    float y = tj_log_tail(f, s);
    y = fmaf(k, TJ_LN2_LO, y);
    y = fmaf(-0.5f, s, y);
    y = f + y;
    return fmaf(k, TJ_LN2_HI, y);
}

// ---- tanh, sigmoid and what is made of them ------------------------------------------------------------------------

// e^a for a in [-80, 80]: one scale.
static inline float tj_exp_mid(float a) {
    float t = fmaf(a, TJ_LOG2E, TJ_EXP_MAGIC1);
    float n = t - TJ_EXP_MAGIC1;
    float r = fmaf(n, -TJ_LN2_HI, a);
    r = fmaf(n, -TJ_LN2_LO, r);
    float p = fmaf(TJ_EXP_C4, r, TJ_EXP_C3);
    p = fmaf(p, r, TJ_EXP_C2);
    p = fmaf(p, r, TJ_EXP_C1);
    p = fmaf(p, r, TJ_EXP_C0);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    return p * tj_bits_f32(tj_f32_bits(t) << 23);
}
// Of |x|: odd polynomial near 0, else 1 - 2/(e^2a + 1); then the sign of x, which keeps -0.
static inline float tj_tanh_f32(float x) {
    float z = tj_abs_f32(x);
    float s = z * z;
    float p = fmaf(TJ_TANH_C4, s, TJ_TANH_C3);
    p = fmaf(p, s, TJ_TANH_C2);
    p = fmaf(p, s, TJ_TANH_C1);
    p = fmaf(p, s, TJ_TANH_C0);
    p = p * s;
    float small = fmaf(p, z, z);
    float a = z > TJ_TANH_MAX ? TJ_TANH_MAX : z;
    float e = tj_exp_mid(a + a);
    float large = 1.0f - 2.0f / (e + 1.0f);
    float y = z < TJ_TANH_SPLIT ? small : large;
    return tj_bits_f32(tj_f32_bits(y) | (tj_f32_bits(x) & 0x80000000u));
}
// With e = e^-|x|: z = 1/(1+e), or e z for negative x; neither overflows. z gets back what 1+e lost: 1-z is exact.
static inline float tj_sigmoid_f32(float x) {
    float a = tj_abs_f32(x);
    a = a > -TJ_EXP_LO ? -TJ_EXP_LO : a;
    struct tj_exp_parts k = tj_exp_split(-a, 0.0f);
    float e = k.p * k.s1 * k.s2;
    float z = 1.0f / (1.0f + e);
    float d = fmaf(-z, e, 1.0f - z);
    z = fmaf(z, d, z);
    float y = e * z;
    return x < 0.0f ? y : z;
}
// With a = |x| and e = e^-v: max(x, 0) - a e/(1+e). The scale of e is applied last, so that the tail keeps its digits
// where e itself is subnormal. a is bounded: the tail of -inf is -0.
static inline float tj_silu_tail(float x, float a, float v, float vlo) {
    struct tj_exp_parts k = tj_exp_split(-v, -vlo);
    float e = k.p * k.s1 * k.s2;
    float q = (a * k.p) / (1.0f + e);
    q = q * k.s1 * k.s2;
    float base = x < 0.0f ? -0.0f : x; // -0 stays -0: -0 - 0
    return base - q;
}
static inline float tj_silu_f32(float x) {
    float a = tj_abs_f32(x);
    a = a > TJ_SILU_MAX ? TJ_SILU_MAX : a;
    return tj_silu_tail(x, a, a, 0.0f);
}
// x sigmoid(v), v = x (C1 + C3 x^2) = 2 sqrt(2/pi) (x + 0.044715 x^3), with v in two parts: in the tail the error of v
// is the relative error of the result.
static inline float tj_gelu_tanh_f32(float x) {
    float a = tj_abs_f32(x);
    a = a > TJ_GELU_TANH_MAX ? TJ_GELU_TANH_MAX : a;
    float h = a * a;
    float hl = fmaf(a, a, -h);
    float w = fmaf(TJ_GELUT_C3, h, TJ_GELUT_C1);
    float d = w - TJ_GELUT_C1;           // exact
    float wl = fmaf(TJ_GELUT_C3, h, -d); // what w lost
    wl = fmaf(TJ_GELUT_C3, hl, wl);
    wl = fmaf(TJ_GELUT_C3L, h, wl);
    wl = wl + TJ_GELUT_C1L;
    float v = a * w;
    float vl = fmaf(a, w, -v);
    vl = fmaf(a, wl, vl);
    return tj_silu_tail(x, a, v, vl);
}

// ---- erf, gelu -----------------------------------------------------------------------------------------------------

static inline float tj_erf_f32(float x) {
    float s = x * x;
    float p = fmaf(TJ_ERF_A5, s, TJ_ERF_A4);
    p = fmaf(p, s, TJ_ERF_A3);
    p = fmaf(p, s, TJ_ERF_A2);
    p = fmaf(p, s, TJ_ERF_A1);
    p = fmaf(p, s, TJ_ERF_A0);
    float small = fmaf(x, p, x);
    float z = tj_abs_f32(x);
    float a = z > TJ_ERF_MAX ? TJ_ERF_MAX : z;
    float g = fmaf(TJ_ERF_B5, a, TJ_ERF_B4);
    g = fmaf(g, a, TJ_ERF_B3);
    g = fmaf(g, a, TJ_ERF_B2);
    g = fmaf(g, a, TJ_ERF_B1);
    g = fmaf(g, a, TJ_ERF_B0);
    g = fmaf(-a, g, -a);
    float large = 1.0f - tj_exp_mid(g);
    large = tj_bits_f32(tj_f32_bits(large) | (tj_f32_bits(x) & 0x80000000u));
    return z < TJ_ERF_SPLIT ? small : large;
}
// With a = |x| and q = erfc(a / sqrt 2) / 2 = e^(-a^2/2) R(a): max(x, 0) - a q. a^2/2 is in two parts.
static inline float tj_gelu_f32(float x) {
    float a = tj_abs_f32(x);
    a = a > TJ_GELU_MAX ? TJ_GELU_MAX : a;
    float h = a * a;
    float hl = fmaf(a, a, -h);
    struct tj_exp_parts k = tj_exp_split(-0.5f * h, -0.5f * hl);
    float t = 1.0f / fmaf(a, TJ_GELU_K, 1.0f);
    float w = a * t;
    float p = fmaf(TJ_GELU_R9, w, TJ_GELU_R8);
    p = fmaf(p, w, TJ_GELU_R7);
    p = fmaf(p, w, TJ_GELU_R6);
    p = fmaf(p, w, TJ_GELU_R5);
    p = fmaf(p, w, TJ_GELU_R4);
    p = fmaf(p, w, TJ_GELU_R3);
    p = fmaf(p, w, TJ_GELU_R2);
    p = fmaf(p, w, TJ_GELU_R1);
    p = fmaf(p, w, TJ_GELU_R0);
    float q = (p * w) * k.p;
    q = q * k.s1 * k.s2;
    float base = x < 0.0f ? -0.0f : x;
    return base - q;
}
// x beta > threshold ? x : log(1 + e^y)/beta, y = x beta, as (max(y, 0) + log(1 + e^-|y|)) / beta.
static inline float tj_softplus_f32(float x, float beta, float threshold) {
    float y = x * beta;
    float a = tj_abs_f32(y);
    a = a > -TJ_EXP_LO ? -TJ_EXP_LO : a;
    struct tj_exp_parts k = tj_exp_split(-a, 0.0f);
    float e = k.p * k.s1 * k.s2;
    float base = y < 0.0f ? 0.0f : y;
    float r = (base + tj_log1p_small(e)) / beta;
    return y > threshold ? x : r;
}

// ---- sin, cos ------------------------------------------------------------------------------------------------------

// |x| = n pi/2 + r: r, and n mod 4 in the low bits of q.
struct tj_trig {
    float r;
    uint32_t q;
};
// z < TJ_TRIG_MAX: pi/2 in three parts; the first fma is exact.
static inline struct tj_trig tj_trig_fast(float z) {
    float t = fmaf(z, TJ_2_PI, TJ_TRIG_MAGIC);
    float n = t - TJ_TRIG_MAGIC;
    float r = fmaf(n, -TJ_PIO2_1, z);
    r = fmaf(n, -TJ_PIO2_2, r);
    r = fmaf(n, -TJ_PIO2_3, r);
    struct tj_trig o = {r, tj_f32_bits(t)};
    return o;
}
// Any z >= TJ_TRIG_MAX: z * 2/pi mod 4 in integers (Payne and Hanek), 62 bits after the point. inf and NaN give NaN.
// For smaller z it gives nonsense without harm. An emitter may skip it when no lane needs it.
static inline struct tj_trig tj_trig_slow(float z) {
    static const uint32_t words[8] = TJ_2_PI_WORDS;
    uint32_t b = tj_f32_bits(z);
    uint32_t e = (b >> 23) - 126u;     // 18..128
    uint32_t m = b << 8 | 0x80000000u; // mantissa, its top bit worth 2^(e-1)
    uint32_t i = e >> 5;               // first word that counts: 0..4
    uint32_t sh = e & 31u;
    uint64_t w0 = words[i & 7u], w1 = words[(i + 1u) & 7u], w2 = words[(i + 2u) & 7u], w3 = words[(i + 3u) & 7u];
    uint64_t hi = ((w0 << 32 | w1) << sh) >> 32; // 96 bits of 2/pi from bit e on
    uint64_t mid = ((w1 << 32 | w2) << sh) >> 32;
    uint64_t lo = ((w2 << 32 | w3) << sh) >> 32;
    uint64_t p = (m * lo >> 32) + m * mid + (m * hi << 32); // mod 2^64; the point is below the two top bits
    uint64_t half = p + 0x2000000000000000ull;
    uint32_t q = (uint32_t)(half >> 62); // nearest quadrant
    int64_t f = (int64_t)(p << 2);       // what is left, in 2^-64 quadrants, signed by the wrap
    float r = (float)((double)f * TJ_PIO2_M64);
    r = z < INFINITY ? r : z - z;
    struct tj_trig o = {r, q};
    return o;
}
static inline struct tj_trig tj_trig_reduce(float z) {
    struct tj_trig fast = tj_trig_fast(z), slow = tj_trig_slow(z);
    bool small = z < TJ_TRIG_MAX;
    struct tj_trig o = {small ? fast.r : slow.r, small ? fast.q : slow.q};
    return o;
}
// sin r where bit 0 of q is 0, else cos r; negated where bit 1 is 1.
static inline float tj_trig_poly(float r, uint32_t q, uint32_t sign) {
    float s = r * r;
    float a = fmaf(TJ_SIN_C2, s, TJ_SIN_C1);
    a = fmaf(a, s, TJ_SIN_C0);
    float rs = r * s;
    a = fmaf(a, rs, r);
    float c = fmaf(TJ_COS_C2, s, TJ_COS_C1);
    c = fmaf(c, s, TJ_COS_C0);
    c = fmaf(c, s, -0.5f);
    c = fmaf(c, s, 1.0f);
    float y = (q & 1u) == 0u ? a : c;
    return tj_bits_f32(tj_f32_bits(y) ^ (q & 2u) << 30 ^ sign);
}
// sin x = sign(x) sin |x|, which keeps -0.
static inline float tj_sin_f32(float x) {
    struct tj_trig t = tj_trig_reduce(tj_abs_f32(x));
    return tj_trig_poly(t.r, t.q, tj_f32_bits(x) & 0x80000000u);
}
static inline float tj_cos_f32(float x) {
    struct tj_trig t = tj_trig_reduce(tj_abs_f32(x));
    return tj_trig_poly(t.r, t.q + 1u, 0u);
}

// ---- pow -----------------------------------------------------------------------------------------------------------

// |x|^y = 2^(y log2 |x|) in f64, rounded once to f32; then C's special cases.
static inline float tj_pow_f32(float x, float y) {
    float z = tj_abs_f32(x);
    double xd = (double)z;
    uint64_t b = tj_f64_bits(xd) - TJ_SQRTHALF_BITS64;
    uint64_t eb = (b + (2048ull << 52)) >> 52; // e + 2048 in 12 bits
    double e = tj_bits_f64(eb | 0x4330000000000000ull) - (0x1p52 + 2048.0);
    double m = tj_bits_f64((b & 0xfffffffffffffull) + TJ_SQRTHALF_BITS64); // [sqrt(1/2), sqrt 2)
    double s = (m - 1.0) / (m + 1.0);
    double u = s * s;
    double l = fma(TJ_POW_L5, u, TJ_POW_L4);
    l = fma(l, u, TJ_POW_L3);
    l = fma(l, u, TJ_POW_L2);
    l = fma(l, u, TJ_POW_L1);
    l = fma(l, u, TJ_POW_L0);
    l = fma(l, s, e);           // log2 |x|
    l = xd < INFINITY ? l : xd; // inf; NaN
    l = xd == 0.0 ? -INFINITY : l;
    double t = (double)y * l;
    t = t > TJ_POW_MAX ? TJ_POW_MAX : t;
    t = t < -TJ_POW_MAX ? -TJ_POW_MAX : t;
    double k = t + TJ_POW_MAGIC;
    double n = k - TJ_POW_MAGIC;
    double f = t - n;
    double p = fma(TJ_POW_E7, f, TJ_POW_E6);
    p = fma(p, f, TJ_POW_E5);
    p = fma(p, f, TJ_POW_E4);
    p = fma(p, f, TJ_POW_E3);
    p = fma(p, f, TJ_POW_E2);
    p = fma(p, f, TJ_POW_E1);
    p = fma(p, f, TJ_POW_E0);
    float r = (float)(p * tj_bits_f64(tj_f64_bits(k) << 52)); // subnormals and overflow round here, once
    bool whole = truncf(y) == y;
    float yh = y * 0.5f;
    bool odd = whole && truncf(yh) != yh;
    uint32_t sign = odd ? tj_f32_bits(x) & 0x80000000u : 0u;
    r = tj_bits_f32(tj_f32_bits(r) | sign);
    bool undefined = x < 0.0f && z < INFINITY && !whole && y == y;
    r = undefined ? NAN : r;
    bool one = y == 0.0f || x == 1.0f || (x == -1.0f && tj_abs_f32(y) == INFINITY);
    return one ? 1.0f : r;
}

// ---- f64: the C library's functions, the rest composed the same way in every tier ----------------------------------

static inline double tj_sigmoid_f64(double x) {
    double e = exp(-tj_abs_f64(x));
    double num = x < 0.0 ? e : 1.0;
    return num / (1.0 + e);
}
static inline double tj_silu_f64(double x) {
    double a = x < -760.0 ? -760.0 : x; // -inf gives -0
    return a * tj_sigmoid_f64(a);
}
static inline double tj_gelu_f64(double x) {
    double a = x < -40.0 ? -40.0 : x;
    return (a * 0.5) * (1.0 + erf(a * 0x1.6a09e667f3bcdp-1));
}
static inline double tj_gelu_tanh_f64(double x) {
    double a = x < -40.0 ? -40.0 : x;
    double h = a * a;
    double v = a * (TJ_GELUT64_C1 + TJ_GELUT64_C3 * h);
    return a * tj_sigmoid_f64(v);
}
static inline double tj_softplus_f64(double x, double beta, double threshold) {
    double y = x * beta;
    double base = y < 0.0 ? 0.0 : y;
    double r = (base + log1p(exp(-tj_abs_f64(y)))) / beta;
    return y > threshold ? x : r;
}

// ---- arithmetic where C leaves a choice ----------------------------------------------------------------------------

// The larger; NaN if either is; of equal ones the bits are and-ed (or-ed): +0 over -0.
static inline float tj_max_f32(float a, float b) {
    float r = a > b ? a : b;
    r = a == b ? tj_bits_f32(tj_f32_bits(a) & tj_f32_bits(b)) : r;
    return a != a ? a : r;
}
static inline float tj_min_f32(float a, float b) {
    float r = a < b ? a : b;
    r = a == b ? tj_bits_f32(tj_f32_bits(a) | tj_f32_bits(b)) : r;
    return a != a ? a : r;
}
static inline double tj_max_f64(double a, double b) {
    double r = a > b ? a : b;
    r = a == b ? tj_bits_f64(tj_f64_bits(a) & tj_f64_bits(b)) : r;
    return a != a ? a : r;
}
static inline double tj_min_f64(double a, double b) {
    double r = a < b ? a : b;
    r = a == b ? tj_bits_f64(tj_f64_bits(a) | tj_f64_bits(b)) : r;
    return a != a ? a : r;
}
// clamp: tj_min(tj_max(x, lo), hi), then NaN where hi was NaN: tj_min keeps it. relu: -0 gives +0, NaN stays.
static inline float tj_relu_f32(float x) { return x <= 0.0f ? 0.0f : x; }
static inline double tj_relu_f64(double x) { return x <= 0.0 ? 0.0 : x; }
// -1, 0, 1; NaN and both zeros give +0.
static inline float tj_sign_f32(float x) { return x > 0.0f ? 1.0f : (x < 0.0f ? -1.0f : 0.0f); }
static inline double tj_sign_f64(double x) { return x > 0.0 ? 1.0 : (x < 0.0 ? -1.0 : 0.0); }
// x - trunc(x); the difference of equals is +0, also for -0 and negative integers. inf: NaN.
static inline float tj_frac_f32(float x) { return x - truncf(x); }
static inline double tj_frac_f64(double x) { return x - trunc(x); }
// Sign of b: fmod's result, moved by b when it is not 0 and has the other sign. A zero result has the sign of a.
static inline float tj_remainder_f32(float a, float b) {
    float m = fmodf(a, b);
    float moved = m + b;
    bool differ = (m < 0.0f) != (b < 0.0f);
    return m != 0.0f && differ ? moved : m;
}
static inline double tj_remainder_f64(double a, double b) {
    double m = fmod(a, b);
    double moved = m + b;
    bool differ = (m < 0.0) != (b < 0.0);
    return m != 0.0 && differ ? moved : m;
}
// As Python's //: from the exact remainder, so that a quotient just under an integer does not round up to it. b == 0:
// a/b.
static inline float tj_floor_divide_f32(float a, float b) {
    float q = a / b;
    float m = fmodf(a, b);
    float d = (a - m) / b;
    bool down = m != 0.0f && (m < 0.0f) != (b < 0.0f);
    d = down ? d - 1.0f : d;
    float f = floorf(d);
    f = d - f > 0.5f ? f + 1.0f : f;
    float zero = tj_bits_f32(tj_f32_bits(q) & 0x80000000u);
    f = d == 0.0f ? zero : f;
    return b == 0.0f ? q : f;
}
static inline double tj_floor_divide_f64(double a, double b) {
    double q = a / b;
    double m = fmod(a, b);
    double d = (a - m) / b;
    bool down = m != 0.0 && (m < 0.0) != (b < 0.0);
    d = down ? d - 1.0 : d;
    double f = floor(d);
    f = d - f > 0.5 ? f + 1.0 : f;
    double zero = tj_bits_f64(tj_f64_bits(q) & 0x8000000000000000ull);
    f = d == 0.0 ? zero : f;
    return b == 0.0 ? q : f;
}
// Integers, as int64 (narrower ones are computed there and wrap when stored). Callers handle b == 0.
static inline int64_t tj_floor_divide_i64(int64_t a, int64_t b) {
    int64_t q = b == -1 ? (int64_t)(0u - (uint64_t)a) : a / b;
    int64_t m = b == -1 ? 0 : a % b;
    return m != 0 && (m < 0) != (b < 0) ? q - 1 : q;
}
static inline int64_t tj_remainder_i64(int64_t a, int64_t b) {
    int64_t m = b == -1 ? 0 : a % b;
    return m != 0 && (m < 0) != (b < 0) ? m + b : m;
}
static inline int64_t tj_fmod_i64(int64_t a, int64_t b) { return b == -1 ? 0 : a % b; }
// Base to a non-negative exponent by squaring, wrapping: low bit of the exponent first, 63 steps at most.
static inline int64_t tj_pow_i64(int64_t base, int64_t exponent) {
    uint64_t r = 1, b = (uint64_t)base;
    for (uint64_t e = (uint64_t)exponent; e; e >>= 1) {
        r = e & 1u ? r * b : r;
        b = b * b;
    }
    return (int64_t)r;
}

// ---- casts ---------------------------------------------------------------------------------------------------------

// Float to integer: toward zero, saturated, NaN gives 0 (LLVM's fptosi.sat, fptoui.sat). f32 widens to f64 exactly.
static inline int64_t tj_f64_to_i64(double x) {
    if (x != x) {
        return 0;
    }
    return x >= 0x1p63 ? INT64_MAX : (x < -0x1p63 ? INT64_MIN : (int64_t)x);
}
static inline int32_t tj_f64_to_i32(double x) {
    if (x != x) {
        return 0;
    }
    return x >= 0x1p31 ? INT32_MAX : (x < -0x1p31 ? INT32_MIN : (int32_t)x);
}
static inline uint8_t tj_f64_to_u8(double x) {
    if (x != x) {
        return 0;
    }
    return x >= 256.0 ? 255 : (x < 0.0 ? 0 : (uint8_t)x);
}
#endif
