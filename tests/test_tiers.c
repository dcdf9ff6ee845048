// tests/test_tiers.c: exact ops over boundary values: compiled, not simplified, op by op and interpreted give the same
// bits.
//
// All values of bool, u8, f16 and bf16; of the wider dtypes minimum, maximum, powers of two and their neighbours,
// halves, signed zeros, subnormals, infinities, NaN. Casts are compared with conversions written here, too. Any NaN
// equals any NaN. `make test` takes a sample; TIERS_FULL=1 all pairs of ops and all chains of three casts.
#include "op_call.h"
#include "tj_test.h"

typedef trace_tensor T;
enum { DTYPES = 8, MAX_OUT = 16, TIERS = 4, NARROW = 65536 };
static const char *const tier_env[TIERS] = {"jit", "", "simplify", "fuse,epilogue"};
static const char *const tier_name[TIERS] = {"interpreter", "compiled", "not simplified", "op by op"};
static const char *const dtype_name[DTYPES] = {"bool", "u8", "i32", "i64", "f16", "bf16", "f32", "f64"};
static trace_context *contexts[TIERS];

static bool full(void) { return getenv("TIERS_FULL") != NULL; }
static bool is_float(int d) { return d >= TRACE_F16; }

static void open_tiers(void) {
    for (int i = 0; i < TIERS; i++) {
        ck_assert(setenv("TRACEJIT_NO", tier_env[i], 1) == 0);
        trace_context_options o = {.size = sizeof o, .on_event = tj_test_quiet};
        ck_assert_msg(trace_context_create(&o, &contexts[i]) == TRACE_OK, "%s", trace_last_error(NULL));
    }
}
static void close_tiers(void) {
    for (int i = 0; i < TIERS; i++)
        trace_context_release(contexts[i]);
}

// ---- values ---------------------------------------------------------------------------------------------------------

struct values {
    int dtype;
    size_t n;
    unsigned char *data;
};

static void put_int(struct values *v, int64_t x) {
    if (v->dtype == TRACE_I32)
        ((int32_t *)(void *)v->data)[v->n++] = (int32_t)(uint32_t)(uint64_t)x;
    else
        ((int64_t *)(void *)v->data)[v->n++] = x;
}

static void put_float(struct values *v, double x) {
    if (v->dtype == TRACE_F32)
        ((float *)(void *)v->data)[v->n++] = (float)x;
    else
        ((double *)(void *)v->data)[v->n++] = x;
}

static void put_bits(struct values *v, uint64_t sign_exponent, uint64_t payload) {
    uint32_t w = (uint32_t)(sign_exponent >> 32 & 0xFF800000u) | (uint32_t)payload;
    if (v->dtype == TRACE_F32)
        memcpy((float *)(void *)v->data + v->n++, &w, 4);
    else {
        uint64_t x = sign_exponent | payload << 29;
        memcpy((double *)(void *)v->data + v->n++, &x, 8);
    }
}

// few: at most a hundred, for pairs of values.
static struct values values_of(int d, bool few) {
    struct values v = {.dtype = d, .data = calloc(NARROW + 64, 8)};
    ck_assert_ptr_nonnull(v.data);
    static const uint16_t halves[] = {0,      0x8000, 1,      0x8001, 0x3FF,  0x400,  0x8400, 0x3800, 0x3C00, 0xBC00,
                                      0x3C01, 0x3E00, 0xBE00, 0x4000, 0x4100, 0xC100, 0x4200, 0x4248, 0x5BF8, 0x5C00,
                                      0x5C01, 0x6400, 0x6401, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7C01, 0x7E00, 0xFE01},
                          brains[] = {0,      0x8000, 1,      0x8001, 0x7F,   0x80,   0x8080, 0x3F00, 0x3F80, 0xBF80,
                                      0x3F81, 0x3FC0, 0xBFC0, 0x4000, 0x4020, 0xC020, 0x4049, 0x437F, 0x4380, 0x4381,
                                      0x4F00, 0xCF00, 0x5F00, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7F81, 0x7FC0, 0xFFC1};
    switch (d) {
    case TRACE_BOOL:
        for (; v.n < 2; v.n++)
            v.data[v.n] = (unsigned char)v.n;
        break;
    case TRACE_U8:
        for (unsigned x = 0; x < 256; x += few && x > 3 && x < 252 ? 31 : 1)
            v.data[v.n++] = (unsigned char)x;
        break;
    case TRACE_F16:
    case TRACE_BF16:
        for (; v.n < (few ? TJ_COUNT(halves) : NARROW); v.n++)
            ((uint16_t *)(void *)v.data)[v.n] = few ? (d == TRACE_F16 ? halves[v.n] : brains[v.n]) : (uint16_t)v.n;
        break;
    case TRACE_I32:
    case TRACE_I64: {
        int top = d == TRACE_I32 ? 32 : 64, step = few ? 9 : 1;
        for (int64_t x = -3; x <= 3; x++)
            put_int(&v, x);
        for (int p = 2; p < top; p += step)
            for (int64_t off = -1; off <= 1; off++) {
                put_int(&v, (int64_t)((UINT64_C(1) << p) + (uint64_t)off));
                put_int(&v, (int64_t)(0 - (UINT64_C(1) << p) + (uint64_t)off));
            }
        put_int(&v, d == TRACE_I32 ? INT32_MIN : INT64_MIN);
        put_int(&v, d == TRACE_I32 ? INT32_MAX : INT64_MAX);
        static const int64_t odd[] = {7, -7, 10, 100, 255, 256, 300, -300, 65504, 65519, 65520, 16777217, 33554433};
        for (size_t i = 0; i < TJ_COUNT(odd); i++)
            put_int(&v, odd[i]);
        break;
    }
    default: {
        bool wide = d == TRACE_F64;
        int low = wide ? -1074 : -149, high = wide ? 1023 : 127;
        static const double odd[] = {0,
                                     -0.0,
                                     0.5,
                                     -0.5,
                                     1.5,
                                     2.5,
                                     -2.5,
                                     3.5,
                                     0.1,
                                     3,
                                     -3,
                                     7.25,
                                     0.99999,
                                     254.5,
                                     255.5,
                                     256.5,
                                     -0.75,
                                     300,
                                     2147483647.0,
                                     2147483648.0,
                                     -2147483648.0,
                                     -2147483649.0,
                                     4294967296.0,
                                     65504,
                                     65519,
                                     65520,
                                     65535,
                                     9223372036854775807.0,
                                     -9223372036854775808.0,
                                     18446744073709551616.0,
                                     0x1.001p0,
                                     0x1.003p0,
                                     0x1.0020000001p0,
                                     0x1.000001p0,
                                     0x1.00000100000001p0,
                                     88.8,
                                     -87.4,
                                     -104.5,
                                     20,
                                     89.5};
        for (size_t i = 0; i < TJ_COUNT(odd); i++)
            put_float(&v, odd[i]);
        for (int e = low; e <= high; e += few ? 61 : e > -30 && e < 70 ? 1 : 7)
            for (int k = 0; k < (few ? 2 : 6); k++) {
                static const double around[] = {1, -1, 1 + 0x1p-23, 1 - 0x1p-24, 1 + 0x1p-52, -1 - 0x1p-11};
                put_float(&v, ldexp(around[k], e));
            }
        for (int s = 0; s < 2; s++) {
            uint64_t inf = UINT64_C(0x7FF0000000000000) | (s ? UINT64_C(1) << 63 : 0);
            put_bits(&v, inf, 0);
            put_bits(&v, inf, 1);        // a signalling NaN
            put_bits(&v, inf, 0x400000); // quiet
            put_bits(&v, inf, 0x7FFFFF); // all of the payload
            put_float(&v, (s ? -1 : 1) * (wide ? 0x1.fffffffffffffp1023 : 0x1.fffffep127));
            put_float(&v, (s ? -1 : 1) * (wide ? 0x1p-1022 : 0x1p-126));
        }
        break;
    }
    }
    return v;
}

// All pairs of two lists, and some more so that there is a tail after whole vectors.
static void pairs(const struct values *a, const struct values *b, struct values *x, struct values *y) {
    size_t ea = op_dtype_size((enum trace_dtype)a->dtype), eb = op_dtype_size((enum trace_dtype)b->dtype);
    size_t n = a->n * b->n;
    *x = (struct values){a->dtype, 0, malloc((n + 8) * ea)};
    *y = (struct values){b->dtype, 0, malloc((n + 8) * eb)};
    ck_assert(x->data && y->data);
    for (size_t i = 0; i < n + 7; i++) {
        memcpy(x->data + i * ea, a->data + i / b->n % a->n * ea, ea);
        memcpy(y->data + i * eb, b->data + i % b->n * eb, eb);
    }
    x->n = y->n = n + 7;
}

static uint64_t bits_at(const unsigned char *p, size_t i, size_t size) {
    uint64_t x = 0;
    memcpy(&x, p + i * size, size);
    return x;
}

static bool is_nan(int d, uint64_t x) {
    switch (d) {
    case TRACE_F16: return (x & 0x7FFF) > 0x7C00;
    case TRACE_BF16: return (x & 0x7FFF) > 0x7F80;
    case TRACE_F32: return (x & 0x7FFFFFFF) > 0x7F800000;
    case TRACE_F64: return (x & INT64_MAX) > UINT64_C(0x7FF0000000000000);
    default: return false;
    }
}

// ---- running --------------------------------------------------------------------------------------------------------

struct result {
    size_t n;
    struct {
        int dtype;
        size_t count;
        unsigned char *data;
    } out[MAX_OUT];
};
typedef size_t body_fn(T *const *in, T **out, const int *arg);

static void run_tier(int tier, body_fn *body, const struct values *in, size_t nin, const int *arg, bool strided,
                     struct result *r) {
    trace_context *c = contexts[tier];
    trace_region *g;
    T *x[3], *whole[3], *out[MAX_OUT] = {0};
    ck_assert(trace_region_create(c, "tiers", NULL, &g) == TRACE_OK);
    for (size_t i = 0; i < nin; i++) {
        size_t e = op_dtype_size((enum trace_dtype)in[i].dtype);
        if (strided) { // every third element of a memory full of another value
            unsigned char *wide = malloc(in[i].n * 3 * e);
            ck_assert_ptr_nonnull(wide);
            memset(wide, 1, in[i].n * 3 * e);
            for (size_t k = 0; k < in[i].n; k++)
                memcpy(wide + k * 3 * e, in[i].data + k * e, e);
            whole[i] = trace_from(c, (enum trace_dtype)in[i].dtype, wide, TRACE_DIMS((int64_t)in[i].n, 3));
            free(wide);
            x[i] = trace_select(whole[i], 1, 0);
        } else {
            x[i] = trace_from(c, (enum trace_dtype)in[i].dtype, in[i].data, TRACE_DIMS((int64_t)in[i].n));
            whole[i] = trace_retain(x[i]);
        }
        ck_assert_msg(x[i] != NULL, "%s", trace_last_error(c));
    }
    r->n = 0;
    if (trace_begin(g, x, nin))
        r->n = body(x, out, arg);
    ck_assert_msg(trace_end(g, out, r->n) == TRACE_OK, "%s: %s", tier_name[tier], trace_last_error(c));
    for (size_t i = 0; i < r->n; i++) {
        r->out[i].dtype = trace_dtype_of(out[i]);
        r->out[i].count = (size_t)trace_numel(out[i]);
        size_t bytes = r->out[i].count * op_dtype_size((enum trace_dtype)r->out[i].dtype);
        r->out[i].data = malloc(bytes + 1);
        ck_assert(r->out[i].data && trace_read(out[i], r->out[i].data, bytes) == TRACE_OK);
        trace_release(out[i]);
    }
    for (size_t i = 0; i < nin; i++) {
        trace_release(x[i]);
        trace_release(whole[i]);
    }
    trace_region_release(g);
}

static void free_result(struct result *r) {
    for (size_t i = 0; i < r->n; i++)
        free(r->out[i].data);
}

// Runs body in every tier; the interpreter's results are left in *kept, if given.
static void agree(body_fn *body, const struct values *in, size_t nin, const int *arg, bool strided, const char *what,
                  struct result *kept) {
    struct result want, got;
    static int turn;
    run_tier(0, body, in, nin, arg, strided, &want);
    turn++;
    for (int t = 1; t < TIERS; t++) {
        if (!full() && t > 1 && turn % 12 != t) // little of it in the other two forms
            continue;
        run_tier(t, body, in, nin, arg, strided, &got);
        ck_assert_uint_eq(got.n, want.n);
        for (size_t o = 0; o < want.n; o++) {
            int d = want.out[o].dtype;
            size_t e = op_dtype_size((enum trace_dtype)d);
            ck_assert_int_eq(got.out[o].dtype, d);
            ck_assert_uint_eq(got.out[o].count, want.out[o].count);
            for (size_t i = 0; i < want.out[o].count; i++) {
                uint64_t a = bits_at(got.out[o].data, i, e), b = bits_at(want.out[o].data, i, e);
                if (a == b || (is_nan(d, a) && is_nan(d, b)))
                    continue;
                size_t k = i % in[0].n;
                ck_abort_msg(
                    "%s, result %zu, %s%s: element %zu is %#llx, interpreted %#llx; operands %#llx %#llx", what, o,
                    tier_name[t], strided ? ", strided" : "", i, (unsigned long long)a, (unsigned long long)b,
                    (unsigned long long)bits_at(in[0].data, k, op_dtype_size((enum trace_dtype)in[0].dtype)),
                    nin > 1 ? (unsigned long long)bits_at(in[1].data, k, op_dtype_size((enum trace_dtype)in[1].dtype))
                            : 0ull);
            }
        }
        free_result(&got);
    }
    if (kept)
        *kept = want;
    else
        free_result(&want);
}

// ---- casts ----------------------------------------------------------------------------------------------------------

struct number {
    bool whole;
    int64_t i;
    double f;
};

static struct number read_number(int d, const unsigned char *p, size_t i) {
    if (is_float(d))
        return (struct number){false, 0, op_load((enum trace_dtype)d, p, i)};
    int64_t x = d == TRACE_I64 ? ((const int64_t *)(const void *)p)[i] : (int64_t)op_load((enum trace_dtype)d, p, i);
    return (struct number){true, x, 0};
}

static int64_t into(double x, int64_t low, int64_t high) {
    if (x != x)
        return 0;
    // The largest i64 isn't a double: 2^63 is the first that is too large.
    return x <= (double)low ? low : x >= (double)high ? high : (int64_t)x;
}

// docs/semantics.md, "Casts", word by word.
static struct number convert(struct number v, int to) {
    unsigned char room[8];
    struct number r = {!is_float(to), 0, 0};
    switch (to) {
    case TRACE_BOOL: r.i = v.whole ? v.i != 0 : v.f != 0; return r;
    case TRACE_U8: r.i = v.whole ? (int64_t)((uint64_t)v.i & 255) : into(v.f, 0, 255); return r;
    case TRACE_I32:
        r.i = v.whole ? (int64_t)(int32_t)(uint32_t)(uint64_t)v.i : into(v.f, INT32_MIN, INT32_MAX);
        return r;
    case TRACE_I64: r.i = v.whole ? v.i : into(v.f, INT64_MIN, INT64_MAX); return r;
    case TRACE_F64: r.f = v.whole ? (double)v.i : v.f; return r;
    default: break;
    }
    float single = v.whole ? (float)v.i : (float)v.f; // f16 and bf16 by way of f32
    op_store((enum trace_dtype)to, room, 0, (double)single);
    r.f = op_load((enum trace_dtype)to, room, 0);
    return r;
}

// arg: dtypes on the way; each result is one more cast.
static size_t cast_chain(T *const *in, T **out, const int *arg) {
    T *x = in[0];
    for (; *arg >= 0; arg++)
        x = trace_to(x, (enum trace_dtype) * arg);
    for (int d = 0; d < DTYPES; d++)
        out[d] = trace_to(x, (enum trace_dtype)d);
    return DTYPES;
}

static void check_chain(const struct values *v, const int *arg) {
    char what[80];
    int steps = arg[0] < 0 ? 0 : arg[1] < 0 ? 1 : 2;
    (void)snprintf(what, sizeof what, "%s -> %s -> %s -> dtype", dtype_name[v->dtype], steps ? dtype_name[arg[0]] : "",
                   steps > 1 ? dtype_name[arg[1]] : "");
    struct result r;
    agree(cast_chain, v, 1, arg, false, what, &r);
    for (int d = 0; d < DTYPES; d++) {
        for (size_t i = 0; i < v->n; i++) {
            struct number want = read_number(v->dtype, v->data, i), got = read_number(d, r.out[d].data, i);
            for (int k = 0; k < steps; k++)
                want = convert(want, arg[k]);
            want = convert(want, d);
            bool same = want.whole ? got.i == want.i
                                   : (got.f == want.f && signbit(got.f) == signbit(want.f)) ||
                                         (got.f != got.f && want.f != want.f);
            ck_assert_msg(same, "%s %s: element %zu (%g) is %g or %lld, not %g or %lld", what, dtype_name[d], i,
                          op_load((enum trace_dtype)v->dtype, v->data, i), got.f, (long long)got.i, want.f,
                          (long long)want.i);
        }
    }
    free_result(&r);
}

START_TEST(casts) {
    open_tiers();
    int from = _i;
    struct values all = values_of(from, false), few = values_of(from, true), some = values_of(from, false);
    if (from == TRACE_F16 || from == TRACE_BF16) // every 13th, for chains
        for (some.n = 0; some.n < NARROW / 13; some.n++)
            ((uint16_t *)(void *)some.data)[some.n] = (uint16_t)(some.n * 13);
    uint64_t rng = (uint64_t)from + 1;
    for (int a = -1; a < DTYPES; a++) {
        int arg[] = {a, -1, -1};
        check_chain(a < 0 || full() ? &all : &some, arg);
        for (int b = 0; a >= 0 && b < DTYPES; b++) {
            int two[] = {a, b, -1};
            if (full() || tj_test_random(&rng) % 24 == 0)
                check_chain(full() ? &all : &few, two);
        }
    }
    free(all.data), free(few.data), free(some.data);
    close_tiers();
}
END_TEST

// ---- one operand ----------------------------------------------------------------------------------------------------

static T *gelu_none(T *x) { return trace_gelu(x, TRACE_GELU_NONE); }
static T *gelu_tanh(T *x) { return trace_gelu(x, TRACE_GELU_TANH); }
static T *softplus(T *x) { return trace_softplus(x, 1, 20); }
static T *pow_2(T *x) { return trace_pow_i(x, 2); }
static T *pow_3(T *x) { return trace_pow_i(x, 3); }
static T *pow_1(T *x) { return trace_pow_i(x, 1); }
static T *pow_0(T *x) { return trace_pow_i(x, 0); }
static T *pow_half(T *x) { return trace_pow_f(x, 0.5); }
static T *pow_less_half(T *x) { return trace_pow_f(x, -0.5); }
static T *pow_less_1(T *x) { return trace_pow_f(x, -1); }
static T *pow_less_2(T *x) { return trace_pow_f(x, -2); }
enum kind { ANY, NO_BOOL, INTS, FLOATS }; // FLOATS: integers as f32
#define U(n, kind)                                                                                                     \
    { #n, trace_##n, kind }
static const struct unary {
    const char *name;
    T *(*fn)(T *);
    enum kind kind;
} unaries[] = {
    U(neg, NO_BOOL),
    U(abs, NO_BOOL),
    U(sign, ANY),
    U(floor, NO_BOOL),
    U(ceil, NO_BOOL),
    U(trunc, NO_BOOL),
    U(round, NO_BOOL),
    U(relu, NO_BOOL),
    U(square, ANY),
    U(relu6, NO_BOOL),
    U(isnan, ANY),
    U(isinf, ANY),
    U(logical_not, ANY),
    U(bitwise_not, INTS),
    {"pow 2", pow_2, ANY},
    {"pow 3", pow_3, ANY},
    {"pow 1", pow_1, ANY},
    {"pow 0", pow_0, ANY},
    U(frac, FLOATS),
    U(reciprocal, FLOATS),
    U(sqrt, FLOATS),
    U(rsqrt, FLOATS),
    U(exp, FLOATS),
    U(log, FLOATS),
    U(sin, FLOATS),
    U(cos, FLOATS),
    U(tanh, FLOATS),
    U(erf, FLOATS),
    U(sigmoid, FLOATS),
    U(silu, FLOATS),
    {"gelu", gelu_none, FLOATS},
    {"gelu tanh", gelu_tanh, FLOATS},
    {"softplus", softplus, FLOATS},
    {"pow .5", pow_half, FLOATS},
    {"pow -.5", pow_less_half, FLOATS},
    {"pow -1", pow_less_1, FLOATS},
    {"pow -2", pow_less_2, FLOATS},
};
#undef U
static bool takes(const struct unary *u, int d) {
    return d == TRACE_BOOL ? u->kind != NO_BOOL : u->kind != INTS || !is_float(d);
}

// arg: index of the inner op, NONE, or OWN: each op of itself; of the first outer one; how many.
enum { OWN = -2, NONE = -1 };
static size_t unary_pairs(T *const *in, T **out, const int *arg) {
    size_t n = 0;
    T *x = arg[0] < 0 ? in[0] : unaries[arg[0]].fn(in[0]);
    for (int k = 0; k < arg[2]; k++) {
        const struct unary *u = &unaries[arg[1] + k];
        if (arg[0] == OWN && !takes(u, trace_dtype_of(in[0])))
            continue;
        x = arg[0] == OWN ? u->fn(in[0]) : x;
        if (takes(u, trace_dtype_of(x)))
            out[n++] = u->fn(x);
    }
    return n;
}

START_TEST(unary) {
    open_tiers();
    int d = _i;
    struct values all = values_of(d, false), few = values_of(d, true);
    uint64_t rng = (uint64_t)d + 1;
    char what[100];
    for (int inner = OWN; inner < (int)TJ_COUNT(unaries); inner++) {
        if (inner >= 0 && !takes(&unaries[inner], d))
            continue;
        for (int first = 0; first < (int)TJ_COUNT(unaries); first += 8) {
            int left = (int)TJ_COUNT(unaries) - first, arg[] = {inner, first, left < 8 ? left : 8};
            if (!full() && inner >= 0 && tj_test_random(&rng) % 60)
                continue;
            (void)snprintf(what, sizeof what, "%s: ops from %s on, of %s", dtype_name[d], unaries[first].name,
                           inner == OWN ? "themselves"
                           : inner < 0  ? "x"
                                        : unaries[inner].name);
            agree(unary_pairs, inner < 0 ? &all : &few, 1, arg, inner == NONE && first == 0, what, NULL);
        }
    }
    free(all.data), free(few.data);
    close_tiers();
}
END_TEST

// ---- two operands ---------------------------------------------------------------------------------------------------

static const struct binary {
    const char *name;
    T *(*fn)(T *, T *);
    T *(*with_f)(T *, double);
    T *(*with_i)(T *, int64_t);
    int domain; // 1: not bool, 2: no floats; 4: an integer zero is an error, 8: a negative integer too
} binaries[] = {
#define B3(n, d)                                                                                                       \
    { #n, trace_##n, trace_##n##_f, trace_##n##_i, d }
    B3(add, 0),
    B3(sub, 1),
    B3(mul, 0),
    B3(div, 0),
    B3(eq, 0),
    B3(ne, 0),
    B3(lt, 0),
    B3(le, 0),
    B3(gt, 0),
    B3(ge, 0),
    {"maximum", trace_maximum, NULL, NULL, 0},
    {"minimum", trace_minimum, NULL, NULL, 0},
    {"logical_and", trace_logical_and, NULL, NULL, 0},
    {"logical_or", trace_logical_or, NULL, NULL, 0},
    {"logical_xor", trace_logical_xor, NULL, NULL, 0},
    {"bitwise_and", trace_bitwise_and, NULL, trace_bitwise_and_i, 2},
    {"bitwise_or", trace_bitwise_or, NULL, trace_bitwise_or_i, 2},
    {"bitwise_xor", trace_bitwise_xor, NULL, trace_bitwise_xor_i, 2},
    B3(floor_divide, 5),
    B3(remainder, 5),
    B3(fmod, 5),
    B3(pow, 13)};

static bool binary_takes(const struct binary *b, int d) {
    return !(b->domain & 1 && d == TRACE_BOOL) && !(b->domain & 2 && is_float(d));
}

// arg: first, how many
static size_t binary_all(T *const *in, T **out, const int *arg) {
    size_t n = 0;
    for (int k = 0; k < arg[1]; k++) {
        const struct binary *b = &binaries[arg[0] + k];
        if (binary_takes(b, trace_dtype_of(in[0])))
            out[n++] = b->fn(in[0], in[1]);
    }
    return n;
}

// arg: first, how many, index of the scalar, 1: an integer
static double scalars_f[] = {0,    -0.0,  1,        -1,        0.5,      2.5,       3,       -2.5,
                             0.1,  1e-40, 3e38,     -1e300,    65520,    255.5,     256,     -1.5,
                             1e10, NAN,   INFINITY, -INFINITY, 0x1p-149, 0x1.001p0, 16777217};
static const int64_t scalars_i[] = {1,
                                    -1,
                                    2,
                                    3,
                                    -3,
                                    7,
                                    127,
                                    255,
                                    256,
                                    300,
                                    -300,
                                    65535,
                                    0,
                                    16777217,
                                    INT32_MIN,
                                    INT32_MAX,
                                    INT64_MIN,
                                    INT64_MAX,
                                    INT64_C(1) << 40};
static size_t binary_scalar(T *const *in, T **out, const int *arg) {
    size_t n = 0;
    int d = trace_dtype_of(in[0]);
    for (int k = 0; k < arg[1]; k++) {
        const struct binary *b = &binaries[arg[0] + k];
        int64_t i = scalars_i[arg[2] % (int)TJ_COUNT(scalars_i)];
        double f = scalars_f[arg[2] % (int)TJ_COUNT(scalars_f)];
        if (!binary_takes(b, d) || (arg[3] ? !b->with_i : !b->with_f))
            continue;
        if (arg[3] && !is_float(d) && b->domain & 4 && (b->domain & 8 ? i < 0 || i > 100 : (i & 255) == 0))
            continue; // errors, or wraps to a zero
        out[n++] = arg[3] ? b->with_i(in[0], i) : b->with_f(in[0], f);
    }
    return n;
}

// Without what is a data error for the integers.
static struct values divisors(const struct values *v, bool power) {
    struct values r = {v->dtype, 0, malloc(v->n * 8)};
    ck_assert_ptr_nonnull(r.data);
    size_t e = op_dtype_size((enum trace_dtype)v->dtype);
    for (size_t i = 0; i < v->n; i++) {
        double x = op_load((enum trace_dtype)v->dtype, v->data, i);
        if (is_float(v->dtype) || (power ? x >= 0 : x != 0))
            memcpy(r.data + r.n++ * e, v->data + i * e, e);
    }
    return r;
}

START_TEST(binary) {
    open_tiers();
    int d = _i;
    enum { GROUP = 6 };
    struct values v = values_of(d, true);
    char what[100];
    for (int first = 0; first < (int)TJ_COUNT(binaries); first += first == 18 ? 3 : GROUP) {
        int count = first == 18 ? 3 : first == 21 ? 1 : GROUP;
        const struct binary *b = &binaries[first];
        struct values right = b->domain & 4 ? divisors(&v, b->domain & 8) : v, in[2];
        (void)snprintf(what, sizeof what, "%s: ops from %s on", dtype_name[d], b->name);
        pairs(&v, &right, &in[0], &in[1]);
        for (int strided = 0; strided < (full() || (first / GROUP + d) % 3 == 0 ? 2 : 1); strided++)
            agree(binary_all, in, 2, (int[]){first, count}, strided, what, NULL);
        for (int s = 0; s < (full() ? (int)TJ_COUNT(scalars_f) : 23); s += full() ? 1 : 1 + d % 3)
            for (int whole = 0; whole < 2; whole++) {
                (void)snprintf(what, sizeof what, "%s: ops from %s on, with the %s scalar %d", dtype_name[d], b->name,
                               whole ? "integer" : "float", s);
                if (full() || (s + first + whole) % 8 == 0)
                    agree(binary_scalar, &v, 1, (int[]){first, count, s, whole}, false, what, NULL);
            }
        free(in[0].data), free(in[1].data);
        if (right.data != v.data)
            free(right.data);
    }
    free(v.data);
    close_tiers();
}
END_TEST

// ---- folds of two and three operands --------------------------------------------------------------------------------

static size_t folds(T *const *in, T **out, const int *arg) {
    (void)arg;
    T *x = in[0], *y = in[1], *c = trace_lt(x, y), *lo = trace_minimum(x, y);
    bool boolean = trace_dtype_of(x) == TRACE_BOOL;
    size_t n = 0;
    out[n++] = trace_where(c, x, x);
    out[n++] = trace_where(c, x, y);
    out[n++] = trace_maximum(x, x);
    out[n++] = trace_minimum(trace_maximum(x, y), trace_maximum(y, x));
    out[n++] = trace_logical_and(x, x);
    out[n++] = trace_logical_not(trace_logical_not(x));
    out[n++] = trace_logical_not(trace_logical_not(trace_logical_not(c)));
    out[n++] = trace_sub(trace_to(trace_eq(x, y), TRACE_I32), trace_to(trace_eq(y, x), TRACE_I32));
    out[n++] = trace_add(trace_mul(x, y), trace_mul(y, x));
    out[n++] = trace_masked_fill_f(x, trace_isnan(y), 1);
    out[n++] = trace_where(trace_to(x, TRACE_BOOL), y, x); // a NaN is true
    if (!boolean) {
        out[n++] = trace_clamp(x, lo, y);
        out[n++] = trace_clamp(y, x, TRACE_NONE);
        out[n++] = trace_clamp_f(x, -1, NAN);
        out[n++] = trace_neg(trace_neg(trace_neg(x)));
    }
    return n;
}

START_TEST(folded) {
    open_tiers();
    int d = _i;
    struct values v = values_of(d, true), in[2];
    pairs(&v, &v, &in[0], &in[1]);
    for (int strided = 0; strided < 2; strided++)
        agree(folds, in, 2, NULL, strided, dtype_name[d], NULL);
    free(in[0].data), free(in[1].data), free(v.data);
    close_tiers();
}
END_TEST

// ---- reductions -----------------------------------------------------------------------------------------------------

// arg: rows, columns, what is reduced
static size_t reductions(T *const *in, T **out, const int *arg) {
    T *x = trace_reshape(in[0], TRACE_DIMS(arg[0], arg[1]));
    int64_t dim = arg[2];
    int d = trace_dtype_of(x);
    size_t n = 0;
    out[n++] = trace_amax(x, &dim, 1, false);
    out[n++] = trace_amin(x, &dim, 1, false);
    out[n++] = trace_any(x, &dim, 1, false);
    out[n++] = trace_all(x, &dim, 1, false);
    out[n++] = trace_argmax(x, dim, false);
    out[n++] = trace_argmin(x, dim, false);
    out[n++] = trace_sum(x, &dim, 1, false);
    if (is_float(d)) {
        out[n++] = trace_softmax(x, dim);
        out[n++] = trace_log_softmax(x, dim);
        out[n++] = trace_mean(x, &dim, 1, false);
    }
    if (d != TRACE_BOOL && arg[0] > 2 && arg[1] > 2) {
        T *image = trace_reshape(x, TRACE_DIMS(1, 1, arg[0], arg[1]));
        const int64_t kernel[2] = {2, 3}, stride[2] = {1, 2}, padding[2] = {1, 1};
        out[n++] = trace_max_pool2d(image, kernel, stride, padding, NULL, true);
    }
    return n;
}

START_TEST(reduced) {
    open_tiers();
    int d = _i;
    struct values few = values_of(d, true), v = {d, 0, malloc(70 * 70 * 8)};
    ck_assert_ptr_nonnull(v.data);
    size_t e = op_dtype_size((enum trace_dtype)d);
    uint64_t rng = (uint64_t)d * 31 + 7;
    static const int shapes[][2] = {{1, 1}, {1, 65}, {65, 1}, {7, 33}, {40, 9}, {3, 130}, {16, 16}};
    for (size_t s = 0; s < TJ_COUNT(shapes); s++)
        for (int dim = 0; dim < 2; dim++) {
            if (!full() && (s + (size_t)dim + (size_t)d) % 6)
                continue;
            v.n = (size_t)(shapes[s][0] * shapes[s][1]);
            // Runs of alike values, so that zeros of both signs and NaN meet each other, and rows without them are
            // left.
            for (size_t i = 0, at = 0; i < v.n; i++) {
                at = tj_test_random(&rng) % 3 ? tj_test_random(&rng) % few.n : at;
                memcpy(v.data + i * e, few.data + at % few.n * e, e);
            }
            char what[80];
            (void)snprintf(what, sizeof what, "%s [%d, %d], dim %d", dtype_name[d], shapes[s][0], shapes[s][1], dim);
            agree(reductions, &v, 1, (int[]){shapes[s][0], shapes[s][1], dim}, false, what, NULL);
        }
    free(v.data), free(few.data);
    close_tiers();
}
END_TEST

TJ_TEST_MAIN_TURNS("tiers", {casts, DTYPES}, {unary, DTYPES}, {binary, DTYPES}, {folded, DTYPES}, {reduced, DTYPES})
