// tests/test_math.c: error bounds and special values of the functions of trace/math.h, against the C library in f64.
//
// Every 499th float; TJ_MATH_STEP=1 in the environment takes them all, and wants CK_DEFAULT_TIMEOUT=0 beside it.
#include <math.h>

#include "../trace/math.h"
#include "tj_test.h"

static uint32_t step_of(void) {
    const char *s = getenv("TJ_MATH_STEP");
    long n = s ? strtol(s, NULL, 10) : 0;
    return n > 0 && n < 1 << 30 ? (uint32_t)n : 499;
}

// Distance in units of the last place of a float of want's size.
static double ulps(float got, double want) {
    if (want != want || got != got) {
        return (want != want) == (got != got) ? 0.0 : INFINITY;
    }
    if (isinf(got) || isinf((float)want)) {
        return got == (float)want ? 0.0 : INFINITY;
    }
    int e;
    double a = fabs(want);
    (void)frexp(a < 0x1p-126 ? 0x1p-126 : a, &e);
    return fabs((double)got - want) / ldexp(1.0, e - 24);
}

static double ref_sigmoid(double x) { return x < 0.0 ? exp(x) / (1.0 + exp(x)) : 1.0 / (1.0 + exp(-x)); }
static double ref_silu(double x) { return x < -1000.0 ? -0.0 : x * ref_sigmoid(x); }
static double ref_gelu(double x) { return x < -1000.0 ? -0.0 : x * 0.5 * erfc(-x * 0x1.6a09e667f3bcdp-1); }
static double ref_gelu_tanh(double x) {
    long double v = (long double)x * (1.5957691216057307117598L + 0.0713548162726002487756L * ((long double)x * x));
    if (fabsl(v) > 1000.0L) {
        return x > 0.0 ? x : -0.0;
    }
    return (double)(x >= 0.0 ? (long double)x / (1.0L + expl(-v)) : (long double)x * expl(v) / (1.0L + expl(v)));
}
static double ref_softplus(double x) { return x > 20.0 ? x : (x > 0.0 ? x + log1p(exp(-x)) : log1p(exp(x))); }
static float softplus(float x) { return tj_softplus_f32(x, 1.0f, 20.0f); }

// The bounds that docs/semantics.md states.
static const struct {
    const char *name;
    float (*fn)(float);
    double (*ref)(double);
    double bound;
} functions[] = {
    {"exp", tj_exp_f32, exp, 0.9},
    {"log", tj_log_f32, log, 0.9},
    {"sin", tj_sin_f32, sin, 1.6},
    {"cos", tj_cos_f32, cos, 1.6},
    {"tanh", tj_tanh_f32, tanh, 1.6},
    {"erf", tj_erf_f32, erf, 1.1},
    {"sigmoid", tj_sigmoid_f32, ref_sigmoid, 2.0},
    {"silu", tj_silu_f32, ref_silu, 3.2},
    {"gelu", tj_gelu_f32, ref_gelu, 4.1},
    {"gelu_tanh", tj_gelu_tanh_f32, ref_gelu_tanh, 3.2},
    {"softplus", softplus, ref_softplus, 2.0},
};

static void sweep(size_t k) {
    double worst = 0.0;
    float where = 0.0f;
    uint32_t step = step_of();
    for (uint64_t u = 0; u <= UINT32_MAX; u += step) {
        float x = tj_bits_f32((uint32_t)u), got = functions[k].fn(x);
        double want = functions[k].ref((double)x), e = ulps(got, want);
        if (e > worst) {
            worst = e;
            where = x;
        }
        // the sign of a result is right, that of zero included (an assertion that holds is slow, too)
        if (want == want && !signbit(got) != !signbit(want)) {
            ck_abort_msg("%s(%a) is %a, not %a", functions[k].name, (double)x, (double)got, want);
        }
    }
    if (getenv("TJ_MATH_PRINT")) {
        printf("%-10s %.3f ulp at %a\n", functions[k].name, worst, (double)where);
    }
    ck_assert_msg(worst <= functions[k].bound, "%s: %.3f ulp at %a, bound %.1f", functions[k].name, worst,
                  (double)where, functions[k].bound);
}

START_TEST(sweep_exp) { sweep(0); }
END_TEST
START_TEST(sweep_log) { sweep(1); }
END_TEST
START_TEST(sweep_sin) { sweep(2); }
END_TEST
START_TEST(sweep_cos) { sweep(3); }
END_TEST
START_TEST(sweep_tanh) { sweep(4); }
END_TEST
START_TEST(sweep_erf) { sweep(5); }
END_TEST
START_TEST(sweep_sigmoid) { sweep(6); }
END_TEST
START_TEST(sweep_silu) { sweep(7); }
END_TEST
START_TEST(sweep_gelu) { sweep(8); }
END_TEST
START_TEST(sweep_gelu_tanh) { sweep(9); }
END_TEST
START_TEST(sweep_softplus) { sweep(10); }
END_TEST

START_TEST(special) {
    for (size_t k = 0; k < TJ_COUNT(functions); k++) {
        ck_assert_msg(isnan(functions[k].fn(NAN)), "%s(NaN)", functions[k].name);
        ck_assert_msg(isnan(functions[k].fn(-NAN)), "%s(-NaN)", functions[k].name);
    }
    ck_assert(tj_exp_f32(INFINITY) == INFINITY && tj_exp_f32(-INFINITY) == 0.0f && tj_exp_f32(-0.0f) == 1.0f);
    ck_assert(tj_exp_f32(-103.9f) == 0x1p-149f && tj_exp_f32(-104.0f) == 0.0f && tj_exp_f32(88.73f) == INFINITY);
    ck_assert(tj_log_f32(0.0f) == -INFINITY && tj_log_f32(-0.0f) == -INFINITY && isnan(tj_log_f32(-1.0f)));
    ck_assert(isnan(tj_log_f32(-INFINITY)) && tj_log_f32(INFINITY) == INFINITY && tj_log_f32(1.0f) == 0.0f);
    ck_assert(isnan(tj_sin_f32(INFINITY)) && isnan(tj_cos_f32(-INFINITY)));
    ck_assert(signbit(tj_sin_f32(-0.0f)) && signbit(tj_tanh_f32(-0.0f)) && signbit(tj_erf_f32(-0.0f)));
    ck_assert(signbit(tj_silu_f32(-0.0f)) && signbit(tj_gelu_f32(-0.0f)) && signbit(tj_gelu_tanh_f32(-0.0f)));
    ck_assert(tj_silu_f32(-INFINITY) == 0.0f && tj_gelu_f32(-INFINITY) == 0.0f && tj_gelu_tanh_f32(-INFINITY) == 0.0f);
    ck_assert(tj_silu_f32(INFINITY) == INFINITY && tj_gelu_f32(INFINITY) == INFINITY);
    ck_assert(tj_gelu_tanh_f32(INFINITY) == INFINITY && tj_gelu_tanh_f32(3e38f) == 3e38f);
    ck_assert(tj_sigmoid_f32(-INFINITY) == 0.0f && tj_sigmoid_f32(INFINITY) == 1.0f);
    ck_assert(tj_sin_f32(0x1p-149f) == 0x1p-149f && tj_tanh_f32(-0x1p-149f) == -0x1p-149f);
    ck_assert(tj_erf_f32(INFINITY) == 1.0f && tj_tanh_f32(-INFINITY) == -1.0f);
    ck_assert(tj_softplus_f32(INFINITY, 1.0f, 20.0f) == INFINITY && tj_softplus_f32(-INFINITY, 1.0f, 20.0f) == 0.0f);
    ck_assert(tj_softplus_f32(100.0f, 5.0f, 1000.0f) == 100.0f); // e^500 overflows, the result doesn't
}
END_TEST

START_TEST(power) {
    uint64_t s = 88172645463325252u;
    double worst = 0.0;
    for (int i = 0; i < 4000000; i++) {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        float x = tj_bits_f32((uint32_t)s), y = tj_bits_f32((uint32_t)(s >> 32));
        if (i & 1) { // results all over the range of floats
            x = tj_abs_f32(x);
            y = (float)(((double)(s >> 32) * 0x1p-32 * 300.0 - 150.0) / log2((double)x));
        }
        float got = tj_pow_f32(x, y);
        double want = pow((double)x, (double)y), e = ulps(got, want);
        worst = e > worst ? e : worst;
        if (e > 0.51 || (want == want && !signbit(got) != !signbit(want))) {
            ck_abort_msg("pow(%a, %a) is %a, not %a", (double)x, (double)y, (double)got, want);
        }
    }
    static const float v[] = {NAN,          INFINITY,    -INFINITY, 0.0f,        -0.0f, 1.0f,  -1.0f,
                              2.0f,         -2.0f,       3.0f,      -3.0f,       0.5f,  -0.5f, 0x1p-149f,
                              -0x1p-149f,   3.4e38f,     -3.4e38f,  16777215.0f, 1.5f,  -1.5f, 16777217.0f,
                              -16777215.0f, 33554432.0f, -1e30f,    -0.25f};
    for (size_t i = 0; i < TJ_COUNT(v); i++) {
        for (size_t j = 0; j < TJ_COUNT(v); j++) {
            float got = tj_pow_f32(v[i], v[j]);
            double want = pow((double)v[i], (double)v[j]);
            ck_assert_msg(ulps(got, want) <= 0.51 && (want != want || !signbit(got) == !signbit(want)),
                          "pow(%g, %g) is %g, not %g", (double)v[i], (double)v[j], (double)got, want);
        }
    }
}
END_TEST

START_TEST(low_precision) {
    unsigned bad = 0;
    for (uint32_t h = 0; h <= 0xffffu; h++) { // every value comes back; NaN gets quiet
        uint16_t f = tj_f32_to_f16(tj_f16_to_f32((uint16_t)h)), b = tj_f32_to_bf16(tj_bf16_to_f32((uint16_t)h));
        bool fnan = (h & 0x7fffu) > 0x7c00u, bnan = (h & 0x7fffu) > 0x7f80u;
        bad += f != (fnan ? (h | 0x200u) : h);
        bad += b != (bnan ? (h | 0x40u) : h);
        bad += (isnan(tj_f16_to_f32((uint16_t)h)) != 0) != fnan;
    }
    // between each two neighbours: below, at and above the middle
    for (uint32_t h = 0; h < 0x7bffu; h++) {
        float lo = tj_f16_to_f32((uint16_t)h), hi = tj_f16_to_f32((uint16_t)(h + 1)), mid = (lo + hi) * 0.5f;
        bad += tj_f32_to_f16(mid) != h + (h & 1u);
        bad += tj_f32_to_f16(nextafterf(mid, 0.0f)) != h;
        bad += tj_f32_to_f16(-nextafterf(mid, INFINITY)) != (0x8000u | (h + 1));
    }
    ck_assert_uint_eq(tj_f32_to_f16(65519.996f), 0x7bffu);
    ck_assert_uint_eq(tj_f32_to_f16(65520.0f), 0x7c00u);
    ck_assert_uint_eq(tj_f32_to_f16(INFINITY), 0x7c00u);
    ck_assert_uint_eq(tj_f32_to_f16(0x1p-25f), 0);
    ck_assert_uint_eq(tj_f32_to_f16(0x1.000002p-25f), 1);
    for (uint32_t h = 0; h < 0x7f7fu; h++) {
        float lo = tj_bf16_to_f32((uint16_t)h), mid = tj_bits_f32(h << 16 | 0x8000u);
        bad += !(lo <= mid) || tj_f32_to_bf16(mid) != h + (h & 1u);
        bad += tj_f32_to_bf16(tj_bits_f32(h << 16 | 0x7fffu)) != h;
        bad += tj_f32_to_bf16(tj_bits_f32(h << 16 | 0x8001u)) != h + 1;
    }
    ck_assert_uint_eq(bad, 0);
    ck_assert_uint_eq(tj_f32_to_bf16(3.4e38f), 0x7f80u);
}
END_TEST

START_TEST(division) {
    ck_assert(tj_floor_divide_f32(1.0f, -INFINITY) == -1.0f && tj_floor_divide_f32(-1.0f, INFINITY) == -1.0f);
    ck_assert(isnan(tj_floor_divide_f32(INFINITY, 3.0f)) && tj_floor_divide_f32(3.0f, INFINITY) == 0.0f);
    ck_assert(tj_floor_divide_f32(1.0f, 0.0f) == INFINITY && isnan(tj_floor_divide_f32(0.0f, 0.0f)));
    ck_assert(tj_floor_divide_f32(-7.0f, 2.0f) == -4.0f && tj_floor_divide_f64(1.0, 0.1) == 9.0);
    ck_assert(tj_remainder_f32(-2.0f, 7.0f) == 5.0f && tj_remainder_f32(7.0f, -3.0f) == -2.0f);
    ck_assert(tj_remainder_f64(-7.0, 3.0) == 2.0 && isnan(tj_remainder_f64(1.0, 0.0)));
    ck_assert_int_eq(tj_floor_divide_i64(-7, 2), -4);
    ck_assert_int_eq(tj_floor_divide_i64(INT64_MIN, -1), INT64_MIN);
    ck_assert_int_eq(tj_remainder_i64(-7, 2), 1);
    ck_assert_int_eq(tj_remainder_i64(7, -2), -1);
    ck_assert_int_eq(tj_remainder_i64(INT64_MIN, -1), 0);
    ck_assert_int_eq(tj_fmod_i64(-7, 2), -1);
    ck_assert_int_eq(tj_pow_i64(3, 4), 81);
    ck_assert_int_eq(tj_pow_i64(2, 64), 0);
    ck_assert_int_eq(tj_pow_i64(-1, INT64_MAX), -1);
    ck_assert_int_eq(tj_f64_to_i32(NAN), 0);
    ck_assert_int_eq(tj_f64_to_i32(3e9), INT32_MAX);
    ck_assert_int_eq(tj_f64_to_i64(-1e30), INT64_MIN);
    ck_assert_int_eq(tj_f64_to_u8(255.9), 255);
    ck_assert_int_eq(tj_f64_to_u8(-0.5), 0);
    ck_assert_int_eq(tj_f64_to_u8(300.0), 255);
    ck_assert(!signbit(tj_max_f32(-0.0f, 0.0f)) && signbit(tj_min_f32(0.0f, -0.0f)));
    ck_assert(isnan(tj_max_f32(NAN, 1.0f)) && isnan(tj_max_f32(1.0f, NAN)) && isnan(tj_min_f64(1.0, (double)NAN)));
    ck_assert(!signbit(tj_relu_f32(-0.0f)) && isnan(tj_relu_f32(NAN)) && tj_sign_f32(NAN) == 0.0f);
    ck_assert(!signbit(tj_frac_f32(-0.0f)) && !signbit(tj_frac_f32(-3.0f)));
}
END_TEST

TJ_TEST_MAIN("math", sweep_exp, sweep_log, sweep_sin, sweep_cos, sweep_tanh, sweep_erf, sweep_sigmoid, sweep_silu,
             sweep_gelu, sweep_gelu_tanh, sweep_softplus, special, power, low_precision, division)
