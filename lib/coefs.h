// lib/coefs.h: numbers that the interpreter and the emitters share: polynomial coefficients, reduction blocks, limits.
//
// trace/math.h is the definition that uses the coefficients; an emitter mirrors it operation by operation. They are
// minimax fits (relative error of the function), each coefficient rounded to the type before the next ones were fitted.
#ifndef TJ_LIB_COEFS_H
#define TJ_LIB_COEFS_H

// ---- order of accumulation -----------------------------------------------------------------------------------------

// Reductions: element i goes to partial i mod 64 of block i / 4096 (docs/semantics.md).
#define TJ_RED_PARTIALS 64
#define TJ_RED_BLOCK 4096
// Contractions: an output element is one fma chain over ascending k; a k longer than this is cut into blocks of this
// many, each a chain of its own that starts at 0, whose results are added in ascending order. Long enough that most
// layers are one block, short enough that a panel of B stays in the second cache.
#define TJ_KBLOCK 1024
// Attention: e^x of a score's distance to the largest, in f32: below this (log 2^-126) the weight is 0.
#define TJ_WEIGHT_LOW -87.33654f

// ---- exp: e^a = 2^n e^r, r = a - n ln 2, |r| <= ln 2 / 2 -----------------------------------------------------------

#define TJ_LOG2E 0x1.715476p+0f
#define TJ_LN2_HI 0x1.62e430p-1f
#define TJ_LN2_LO -0x1.05c610p-29f
// 1.5 * 2^23 + 254: added, it leaves n + 254 in the low bits of the mantissa; n halved twice then has the bias of two
// powers of two: see tj_exp_split.
#define TJ_EXP_MAGIC 0x1.8001fcp+23f
// 1.5 * 2^23 + 127: the low bits hold n with the bias of one power of two.
#define TJ_EXP_MAGIC1 0x1.8000fep+23f
#define TJ_EXP_HI 89.0f   // e^89 overflows
#define TJ_EXP_LO -104.0f // e^-104 is less than half of the smallest subnormal
// e^r = 1 + r (1 + r (C0 + r (C1 + ...)))
#define TJ_EXP_C0 0x1.fffffcp-2f
#define TJ_EXP_C1 0x1.555492p-3f
#define TJ_EXP_C2 0x1.5558b2p-5f
#define TJ_EXP_C3 0x1.123994p-7f
#define TJ_EXP_C4 0x1.6a4b44p-10f
// a < TJ_TANH_SPLIT: tanh x = x + x s (T0 + s (T1 + ...)), s = x^2
#define TJ_TANH_SPLIT 0x1.2p-1f
#define TJ_TANH_MAX 10.0f // tanh rounds to 1 from 9.02 on
#define TJ_TANH_C0 -0x1.555548p-2f
#define TJ_TANH_C1 0x1.110c62p-3f
#define TJ_TANH_C2 -0x1.b906eap-5f
#define TJ_TANH_C3 0x1.581e7ep-6f
#define TJ_TANH_C4 -0x1.94a92ep-8f
#define TJ_SILU_MAX 120.0f
#define TJ_GELU_TANH_MAX 11.0f
#define TJ_GELU_MAX 15.0f

// ---- log: x = 2^e m, m in [sqrt(1/2), sqrt 2), f = m - 1, log m = f - f^2/2 + f^3 (C0 + f (C1 + ...)) --------------

#define TJ_SQRTHALF_BITS 0x3f3504f3u // the f32 nearest to sqrt(1/2)
#define TJ_LOG_C0 0x1.555554p-2f
#define TJ_LOG_C1 -0x1.000226p-2f
#define TJ_LOG_C2 0x1.99a01ap-3f
#define TJ_LOG_C3 -0x1.547288p-3f
#define TJ_LOG_C4 0x1.22d96ep-3f
#define TJ_LOG_C5 -0x1.0d82a4p-3f
#define TJ_LOG_C6 0x1.055ce8p-3f
#define TJ_LOG_C7 -0x1.38c2a6p-4f
#define TJ_SQRT2M1 0x1.a8279ap-2f // sqrt 2 - 1

// ---- sin, cos: |x| = n pi/2 + r ------------------------------------------------------------------------------------

#define TJ_TRIG_MAX 0x1p17f // from here on the reduction is done in integers
#define TJ_2_PI 0x1.45f306p-1f
#define TJ_TRIG_MAGIC 0x1.8p+23f
#define TJ_PIO2_1 0x1.921fb6p+0f
#define TJ_PIO2_2 -0x1.777a5cp-25f
#define TJ_PIO2_3 -0x1.ee59dap-50f
#define TJ_PIO2_M64 0x1.921fb54442d18p-64 // pi/2 * 2^-64
// 2/pi * 2^-2 in words of 32 bits, most significant first, after a word of zeros
#define TJ_2_PI_WORDS                                                                                                  \
    { 0u, 0x28be60dbu, 0x9391054au, 0x7f09d5f4u, 0x7d4d3770u, 0x36d8a566u, 0x4f10e410u, 0x7f9458eau }
// sin r = r + r s (S0 + s (S1 + s S2)), cos r = 1 - s/2 + s^2 (C0 + s (C1 + s C2)), s = r^2
#define TJ_SIN_C0 -0x1.555544p-3f
#define TJ_SIN_C1 0x1.1106c6p-7f
#define TJ_SIN_C2 -0x1.991c20p-13f
#define TJ_COS_C0 0x1.55554ap-5f
#define TJ_COS_C1 -0x1.6c0c26p-10f
#define TJ_COS_C2 0x1.99e714p-16f

// ---- erf -----------------------------------------------------------------------------------------------------------

// |x| < TJ_ERF_SPLIT: erf x = x + x (A0 + s (A1 + ...)), s = x^2
#define TJ_ERF_SPLIT 0x1.dcp-1f
#define TJ_ERF_A0 0x1.06eba6p-3f
#define TJ_ERF_A1 -0x1.8126e2p-2f
#define TJ_ERF_A2 0x1.ce1986p-4f
#define TJ_ERF_A3 -0x1.b67c04p-6f
#define TJ_ERF_A4 0x1.46d9e2p-8f
#define TJ_ERF_A5 -0x1.38741cp-11f
// else: erf a = 1 - exp(-(a + a (B0 + a (B1 + ...))))
#define TJ_ERF_MAX 4.0f
#define TJ_ERF_B0 0x1.07328ap-3f
#define TJ_ERF_B1 0x1.457cdep-1f
#define TJ_ERF_B2 0x1.af271ep-4f
#define TJ_ERF_B3 -0x1.7707c8p-6f
#define TJ_ERF_B4 0x1.a56532p-9f
#define TJ_ERF_B5 -0x1.c0c5a2p-13f

// ---- gelu: erfc(a / sqrt 2) / 2 = e^(-a^2/2) t (R0 + w (R1 + ...)), t = 1 / (1 + a K), w = a t ---------------------

#define TJ_GELU_K 0x1.9p-2f
#define TJ_GELU_R0 0x1p-1f
#define TJ_GELU_R1 -0x1.a108c8p-3f
#define TJ_GELU_R2 0x1.df3b54p-7f
#define TJ_GELU_R3 0x1.d3d00cp-8f
#define TJ_GELU_R4 0x1.d78820p-13f
#define TJ_GELU_R5 -0x1.07ac1cp-11f
#define TJ_GELU_R6 0x1.005b24p-13f
#define TJ_GELU_R7 -0x1.0ed988p-13f
#define TJ_GELU_R8 0x1.b0a182p-15f
#define TJ_GELU_R9 -0x1.a0b566p-18f
// gelu by tanh: 2 sqrt(2/pi) (x + 0.044715 x^3) = x (C1 + C3 x^2), both in two parts. C1 is a multiple of 2^-20, so
// that the sum minus C1 is exact for |x| <= TJ_GELU_TANH_MAX.
#define TJ_GELUT_C1 0x1.988450p+0f
#define TJ_GELUT_C1L 0x1.9ea1b2p-23f
#define TJ_GELUT_C3 0x1.2444f2p-4f
#define TJ_GELUT_C3L 0x1.49b16ap-29f
#define TJ_GELUT64_C1 0x1.9884533d43651p+0
#define TJ_GELUT64_C3 0x1.2444f2a4d8b4bp-4

// ---- pow: f64 arithmetic. log2 m = s (L0 + u (L1 + ...)), s = (m-1)/(m+1), u = s^2; 2^f = E0 + f (E1 + ...) --------

#define TJ_SQRTHALF_BITS64 0x3fe6a09e667f3bcdull
#define TJ_POW_L0 0x1.71547652b8251p+1
#define TJ_POW_L1 0x1.ec709dc53cb8ap-1
#define TJ_POW_L2 0x1.2776c292d1895p-1
#define TJ_POW_L3 0x1.a61a2f23bef3fp-2
#define TJ_POW_L4 0x1.4795478b44a02p-2
#define TJ_POW_L5 0x1.21b1be004d362p-2
#define TJ_POW_E0 0x1.ffffffffab9afp-1
#define TJ_POW_E1 0x1.62e42ff116c55p-1
#define TJ_POW_E2 0x1.ebfbe0a4f2ea8p-3
#define TJ_POW_E3 0x1.c6b08aae4c606p-5
#define TJ_POW_E4 0x1.3b29dc146ea35p-7
#define TJ_POW_E5 0x1.5d8a7112ac0f1p-10
#define TJ_POW_E6 0x1.446a43c4bd7d0p-13
#define TJ_POW_E7 0x1.fe174b600a37bp-17
#define TJ_POW_MAX 200.0                   // exponents of two beyond which f32 overflows or vanishes
#define TJ_POW_MAGIC 0x1.80000000003ffp+52 // 1.5 * 2^52 + 1023

#endif
