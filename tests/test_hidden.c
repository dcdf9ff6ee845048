// tests/test_hidden.c: what must not reach a result: values of keys that a query doesn't see, and which byte a true
// bool is made of. In every tier the results are those of clean memory, bit for bit.
#include "op_call.h"
#include "tj_test.h"

typedef trace_tensor T;
enum { TIERS = 4 };
static const char *const tier_no[TIERS] = {"", "jit", "simplify", "fuse,epilogue"};
static const char *const tier_name[TIERS] = {"compiled", "interpreter", "not simplified", "op by op"};

static trace_context *open_tier(int tier, bool portable) {
    trace_context *c;
    ck_assert(setenv("TRACEJIT_NO", tier_no[tier], 1) == 0);
    ck_assert((portable ? setenv("TRACEJIT_CPU", "portable", 1) : unsetenv("TRACEJIT_CPU")) == 0);
    trace_context_options o = {.size = sizeof o, .on_event = tj_test_quiet};
    ck_assert_msg(trace_context_create(&o, &c) == TRACE_OK, "%s", trace_last_error(NULL));
    return c;
}

// ---- attention ------------------------------------------------------------------------------------------------------

enum { CAUSAL, BOOL_MASK, FLOAT_MASK, HOWS };
struct attention {
    int64_t heads, kheads, l, s, e, ev;
};

// The key that query i doesn't see, or sees: the last quarter is seen by nobody, key 3 by even queries only.
static bool sees(int how, const struct attention *a, int64_t i, int64_t j) {
    if (how == CAUSAL)
        return j <= i;
    return j < a->s - (a->s + 3) / 4 && (j != 3 || i % 2 == 0) && i != 1;
}

// dirt: what keys hold in k and v that some query doesn't see; of those that are seen by a query, that query's row
// isn't compared. 0: nothing.
static void attend(trace_context *c, const struct attention *a, enum trace_dtype d, int how, double dirt, int where,
                   double *out) {
    size_t e = op_dtype_size(d), nq = (size_t)(a->heads * a->l * a->e), nk = (size_t)(a->kheads * a->s * a->e),
           nv = (size_t)(a->kheads * a->s * a->ev), no = (size_t)(a->heads * a->l * a->ev);
    unsigned char *q = malloc(nq * e + 1), *k = malloc(nk * e + 1), *v = malloc(nv * e + 1), *o = malloc(no * e + 1);
    unsigned char *m = malloc((size_t)(a->l * a->s) * 8 + 1);
    ck_assert(q && k && v && o && m);
    uint64_t rng = 5;
    for (size_t i = 0; i < nq; i++)
        op_store(d, q, i, (double)tj_test_uniform(&rng));
    for (size_t i = 0; i < nk; i++)
        op_store(d, k, i, (double)tj_test_uniform(&rng));
    for (size_t i = 0; i < nv; i++)
        op_store(d, v, i, (double)tj_test_uniform(&rng));
    for (int64_t h = 0; dirt != 0 && h < a->kheads; h++)
        for (int64_t j = 0; j < a->s; j++) {
            bool some = how == CAUSAL ? j == a->l / 2 || j >= a->l : j >= a->s - (a->s + 3) / 4 || j == 3;
            for (int64_t x = 0; some && where & 1 && x < a->e; x += 2)
                op_store(d, k, (size_t)((h * a->s + j) * a->e + x), x % 4 ? -dirt : dirt);
            for (int64_t x = 0; some && where & 2 && x < a->ev; x++)
                op_store(d, v, (size_t)((h * a->s + j) * a->ev + x), x % 3 ? dirt : -dirt);
        }
    enum trace_dtype md = how == FLOAT_MASK ? d : TRACE_BOOL;
    for (int64_t i = 0; i < a->l; i++)
        for (int64_t j = 0; j < a->s; j++) {
            bool s = sees(how, a, i, j);
            op_store(md, m, (size_t)(i * a->s + j), how == FLOAT_MASK ? s ? 0.25 : -INFINITY : s);
        }
    T *tq = trace_from(c, d, q, TRACE_DIMS(1, a->heads, a->l, a->e)),
      *tk = trace_from(c, d, k, TRACE_DIMS(1, a->kheads, a->s, a->e)),
      *tv = trace_from(c, d, v, TRACE_DIMS(1, a->kheads, a->s, a->ev)),
      *tm = trace_from(c, md, m, TRACE_DIMS(a->l, a->s));
    T *y = trace_scaled_dot_product_attention(tq, tk, tv, how == CAUSAL ? TRACE_NONE : tm, how == CAUSAL, 0,
                                              a->heads != a->kheads);
    ck_assert_msg(y && trace_read(y, o, no * e) == TRACE_OK, "%s", trace_last_error(c));
    for (size_t i = 0; i < no; i++)
        out[i] = op_load(d, o, i);
    trace_release(y), trace_release(tq), trace_release(tk), trace_release(tv), trace_release(tm);
    free(q), free(k), free(v), free(o), free(m);
}

// Whether query i sees one of the keys that are made dirty.
static bool affected(int how, const struct attention *a, int64_t i) {
    return how == CAUSAL ? i >= a->l / 2 : i % 2 == 0 && a->s - (a->s + 3) / 4 > 3;
}

static void unseen(trace_context *c, int tier, const struct attention *a, enum trace_dtype d) {
    static const double dirts[] = {NAN, INFINITY};
    size_t n = (size_t)(a->heads * a->l * a->ev);
    double *clean = malloc(n * sizeof *clean), *got = malloc(n * sizeof *got);
    ck_assert(clean && got);
    for (int how = 0; how < HOWS; how++) {
        attend(c, a, d, how, 0, 0, clean);
        for (int where = 1; where < 4; where++)
            for (size_t k = 0; k < TJ_COUNT(dirts); k++) {
                attend(c, a, d, how, dirts[k], where, got);
                for (size_t i = 0; i < n; i++) {
                    int64_t row = (int64_t)i / a->ev % a->l;
                    bool none = how != CAUSAL && row == 1; // a row that sees nothing
                    if (affected(how, a, row) && !none) {
                        // Seen: a NaN or an infinity in v shows in each result, one in k at least doesn't hide the
                        // rest.
                        ck_assert_msg(where != 2 || !isfinite(got[i]), "row %d of a seen %g is %g", (int)row, dirts[k],
                                      got[i]);
                        continue;
                    }
                    ck_assert_msg(!memcmp(&got[i], &clean[i], sizeof *got) && isfinite(got[i]) &&
                                      (!none || got[i] == 0),
                                  "%s, dtype %d, %dx%d of %d, %d, how %d, %g in %d: element %zu is %.17g, clean %.17g",
                                  tier_name[tier], d, (int)a->l, (int)a->s, (int)a->e, (int)a->ev, how, dirts[k], where,
                                  i, got[i], clean[i]);
                }
            }
    }
    free(clean), free(got);
}

START_TEST(unseen_keys) {
    static const struct attention shapes[] = {{1, 1, 3, 5, 8, 8},     {2, 1, 1, 17, 27, 9},   {2, 2, 4, 64, 64, 72},
                                              {4, 2, 5, 40, 16, 33},  {1, 1, 20, 70, 9, 20},  {2, 1, 40, 40, 8, 5},
                                              {1, 1, 6, 1100, 4, 18}, {1, 1, 2, 1100, 4, 18}, {1, 1, 70, 90, 32, 64}};
    static const enum trace_dtype dtypes[] = {TRACE_F32, TRACE_F64, TRACE_F16, TRACE_BF16};
    for (int portable = 0; portable < (_i == 0 ? 2 : 1); portable++) {
        trace_context *c = open_tier(_i, portable);
        for (size_t s = 0; s < (_i < 2 && !portable ? TJ_COUNT(shapes) : 5); s++)
            for (size_t d = 0; d < TJ_COUNT(dtypes); d++)
                if (s < 5 || d < 2 || (s + d) % 2)
                    unseen(c, _i, &shapes[s], dtypes[d]);
        trace_context_release(c);
    }
}
END_TEST

// ---- bools ----------------------------------------------------------------------------------------------------------

// Operands of the bodies below: m and t are bool [4, 6], v is f32 [4, 6], ix i64 [6].
struct in {
    T *m, *t, *v, *ix;
};
static int64_t one_dim = 1;
#define BODY(name, e)                                                                                                  \
    static T *name(const struct in *x) {                                                                               \
        T *m = x->m, *t = x->t, *v = x->v, *ix = x->ix;                                                                \
        (void)m, (void)t, (void)v, (void)ix;                                                                           \
        return e;                                                                                                      \
    }
BODY(b_clone, trace_clone(m))
BODY(b_contiguous, trace_contiguous(trace_transpose(m, 0, 1)))
BODY(b_reshape, trace_reshape(trace_transpose(m, 0, 1), TRACE_DIMS(3, 8)))
BODY(b_cat, trace_cat(TRACE_ARGS(m, t), 0))
BODY(b_cat1, trace_cat(TRACE_ARGS(t, m, m), 1))
BODY(b_flip, trace_flip(m, TRACE_DIMS(1)))
BODY(b_pad, trace_pad(m, TRACE_DIMS(1, 1), TRACE_PAD_CONSTANT, 1))
BODY(b_reflect, trace_pad(m, TRACE_DIMS(2, 1), TRACE_PAD_REFLECT, 0))
BODY(b_select, trace_index_select(m, 0, ix))
BODY(b_gather, trace_gather(m, 0, trace_reshape(ix, TRACE_DIMS(1, 6))))
BODY(b_expand, trace_clone(trace_expand(trace_narrow(m, 1, 2, 1), TRACE_DIMS(4, 5))))
BODY(b_slice, trace_clone(trace_slice(m, 1, 1, 6, 2)))
BODY(b_unfold, trace_clone(trace_unfold(m, 1, 3, 2)))
BODY(b_diagonal, trace_clone(trace_diagonal(m, 0, 0, 1)))
BODY(b_strided, trace_clone(trace_as_strided(m, (const int64_t[]){3, 3}, (const int64_t[]){6, 2}, 2, 1)))
BODY(b_same, trace_maximum(m, m))
BODY(b_twice, trace_logical_not(trace_logical_not(m)))
BODY(b_and, trace_bitwise_and(m, m))
BODY(b_back, trace_to(trace_to(m, TRACE_U8), TRACE_BOOL))
BODY(b_where, trace_where(t, m, m))
BODY(b_condition, trace_where_f(m, v, -1))
BODY(b_fill, trace_masked_fill_f(v, m, 9))
BODY(b_xor, trace_bitwise_xor(m, t))
BODY(b_lxor, trace_logical_xor(m, t))
BODY(b_bnot, trace_bitwise_not(m))
BODY(b_eq, trace_eq(m, t))
BODY(b_lt, trace_lt(t, m))
BODY(b_add, trace_add(m, m))
BODY(b_mul, trace_mul(m, t))
BODY(b_square, trace_square(m))
BODY(b_sign, trace_sign(m))
BODY(b_amax, trace_amax(m, &one_dim, 1, false))
BODY(b_argmax, trace_argmax(m, 1, false))
BODY(b_any, trace_any(m, &one_dim, 1, false))
BODY(b_all, trace_all(m, &one_dim, 1, false))
BODY(b_sum, trace_sum(m, &one_dim, 1, false))
BODY(b_mean, trace_mean(trace_to(m, TRACE_F32), &one_dim, 1, false))
BODY(b_u8, trace_to(m, TRACE_U8))
BODY(b_f16, trace_to(m, TRACE_F16))
BODY(b_muladd, trace_add(trace_mul(v, m), v))
BODY(b_add_f, trace_add_f(m, 0.5))
BODY(b_mul_i, trace_mul_i(m, 3))
BODY(b_eq_i, trace_eq_i(m, 1))
BODY(b_sdpa, trace_scaled_dot_product_attention(v, v, v, trace_narrow(m, 1, 0, 4), false, 1, false))
BODY(b_view, trace_narrow(m, 0, 1, 2))
BODY(b_itself, m)
BODY(b_copied, trace_copy_(trace_bitwise_not(t), m))
BODY(b_part, trace_copy_(trace_narrow(trace_bitwise_not(t), 0, 1, 2), trace_narrow(m, 0, 2, 2)))
BODY(b_rows, trace_index_copy_(trace_cat(TRACE_ARGS(t, t), 0), 0, trace_narrow(ix, 0, 0, 4), m))
// Written in place, a part of it: the rest is what it was.
BODY(b_written, trace_index_copy_(m, 0, trace_narrow(ix, 0, 0, 2), trace_narrow(t, 0, 0, 2)))
BODY(b_filled, trace_fill_i_(trace_narrow(m, 1, 2, 2), 1))
BODY(b_over, trace_copy_(m, trace_flip(m, TRACE_DIMS(0))))
static T *turns(const struct in *x, int64_t n) {
    T *h[2] = {x->m, x->t};
    if (trace_repeat(n, h, 2))
        return NULL;
    T *swap = h[0];
    h[0] = h[1];
    h[1] = n == 3 ? x->m : swap;
    return trace_repeat_end(h, 2) ? NULL : trace_cat(TRACE_ARGS(h[0], h[1]), 0);
}
static T *b_no_turn(const struct in *x) { return turns(x, 0); }
static T *b_turns(const struct in *x) { return turns(x, 3); }
static T *b_break(const struct in *x) {
    int64_t v = 7;
    ck_assert_msg(!trace_item_i64(trace_select(trace_select(x->m, 0, 0), 0, 1), &v) && (v == 0 || v == 1), "item is %d",
                  (int)v);
    return trace_bitwise_or(x->m, trace_eq_i(x->m, v));
}
#define OP(n)                                                                                                          \
    { #n, b_##n }
static const struct {
    const char *name;
    T *(*fn)(const struct in *);
} bodies[] = {OP(clone),  OP(contiguous), OP(reshape), OP(cat),   OP(cat1),      OP(flip),     OP(pad),     OP(reflect),
              OP(select), OP(gather),     OP(expand),  OP(slice), OP(unfold),    OP(diagonal), OP(strided), OP(same),
              OP(twice),  OP(and),        OP(back),    OP(where), OP(condition), OP(fill),     OP(xor),     OP(lxor),
              OP(bnot),   OP(eq),         OP(lt),      OP(add),   OP(mul),       OP(square),   OP(sign),    OP(amax),
              OP(argmax), OP(any),        OP(all),     OP(sum),   OP(mean),      OP(u8),       OP(f16),     OP(muladd),
              OP(add_f),  OP(mul_i),      OP(eq_i),    OP(sdpa),  OP(view),      OP(itself),   OP(copied),  OP(part),
              OP(rows),   OP(written),    OP(filled),  OP(over),  OP(no_turn),   OP(turns),    OP(break)};
#undef OP

enum { ROWS = 4, COLS = 6, COUNT = ROWS * COLS, FIELD = 3 };
enum { FROM, WRITTEN, WRAPPED, FIELDS, WAYS };
static const char *const way_name[WAYS] = {"copied in", "written", "wrapped", "fields of structs"};

// bytes: COUNT; memory: room for COUNT fields, alive as long as the tensor.
static T *bools(trace_context *c, int way, const unsigned char *bytes, unsigned char *memory) {
    memset(memory, 0x5A, COUNT * FIELD);
    for (int i = 0; i < COUNT; i++)
        memory[way == FIELDS ? i * FIELD : i] = bytes[i];
    const int64_t dims[] = {ROWS, COLS}, strides[] = {COLS * FIELD, FIELD};
    T *m = NULL;
    switch (way) {
    case FROM: m = trace_from(c, TRACE_BOOL, bytes, dims, 2); break;
    case WRAPPED: m = trace_wrap(c, TRACE_BOOL, memory, dims, 2); break;
    case FIELDS:
        m = trace_wrap_desc(
            c, TRACE_TENSOR_DESC(.dtype = TRACE_BOOL, .dims = dims, .strides = strides, .rank = 2, .data = memory));
        break;
    default: m = trace_zeros(c, dims, 2, TRACE_BOOL); ck_assert(m && trace_write(m, bytes, COUNT) == TRACE_OK);
    }
    ck_assert_msg(m != NULL, "%s", trace_last_error(c));
    return m;
}

// What body b gives over these bytes, and then the content of m. The number of bytes.
static size_t result(trace_context *c, size_t b, int way, const unsigned char *bytes, bool eager, unsigned char *out) {
    static unsigned char memory[COUNT * FIELD];
    unsigned char other[COUNT];
    float v[COUNT];
    const int64_t ix[COLS] = {3, 0, 2, 1, 1, 3};
    for (int i = 0; i < COUNT; i++) {
        other[i] = (i * 7 % 3) != 0;
        v[i] = 0.25f * (float)i - 1;
    }
    struct in x = {bools(c, way, bytes, memory), trace_from(c, TRACE_BOOL, other, TRACE_DIMS(ROWS, COLS)),
                   trace_from(c, TRACE_F32, v, TRACE_DIMS(ROWS, COLS)), trace_from(c, TRACE_I64, ix, TRACE_DIMS(COLS))};
    T *y = NULL;
    trace_region *r;
    ck_assert(x.t && x.v && x.ix);
    ck_assert(trace_region_create(c, bodies[b].name,
                                  TRACE_REGION_OPTIONS(.mode = eager ? TRACE_MODE_EAGER : TRACE_MODE_RECORD),
                                  &r) == TRACE_OK);
    if (trace_begin(r, TRACE_ARGS(x.m, x.t)))
        y = bodies[b].fn(&x);
    enum trace_status st = trace_end(r, &y, 1);
    ck_assert_msg(y && st == TRACE_OK, "%s, %s: %s", bodies[b].name, way_name[way], trace_last_error(c));
    size_t n = (size_t)trace_numel(y) * op_dtype_size((enum trace_dtype)trace_dtype_of(y));
    ck_assert_msg(trace_read(y, out, n) == TRACE_OK, "%s", trace_last_error(c));
    if (trace_dtype_of(y) == TRACE_BOOL)
        for (size_t i = 0; i < n; i++)
            ck_assert_msg(out[i] <= 1, "%s, %s: byte %zu is %d", bodies[b].name, way_name[way], i, out[i]);
    ck_assert(trace_read(x.m, out + n, COUNT) == TRACE_OK);
    for (size_t i = 0; i < COUNT; i++)
        ck_assert_msg(out[n + i] <= 1, "%s, %s: byte %zu of m is %d", bodies[b].name, way_name[way], i, out[n + i]);
    trace_release(y);
    trace_release(x.m), trace_release(x.t), trace_release(x.v), trace_release(x.ix);
    trace_region_release(r);
    return n + COUNT;
}

START_TEST(any_nonzero_byte) {
    static const unsigned char values[] = {0, 1, 2, 128, 254, 255, 0, 3};
    unsigned char dirty[COUNT], clean[COUNT], got[1024], want[1024];
    for (int i = 0; i < COUNT; i++) {
        dirty[i] = values[(i * 5 + i / 6) % 8];
        clean[i] = dirty[i] != 0;
    }
    for (int checked = 0; checked < (_i == 0 ? 2 : 1); checked++) {
        ck_assert((checked ? setenv("TRACEJIT_CHECK", "1", 1) : unsetenv("TRACEJIT_CHECK")) == 0);
        trace_context *c = open_tier(_i, false);
        for (size_t b = 0; b < TJ_COUNT(bodies); b++)
            for (int way = 0; way < WAYS; way++)
                for (int eager = 0; eager < 2; eager++) {
                    size_t n = result(c, b, way, clean, eager, want), m = result(c, b, way, dirty, eager, got);
                    ck_assert_uint_eq(n, m);
                    for (size_t i = 0; i < n; i++)
                        ck_assert_msg(got[i] == want[i], "%s%s, %s, %s, %s: byte %zu is %d, of clean memory %d",
                                      tier_name[_i], checked ? ", checked" : "", bodies[b].name, way_name[way],
                                      eager ? "eager" : "region", i, got[i], want[i]);
                }
        trace_context_release(c);
    }
}
END_TEST

START_TEST(copy_bools) {
    unsigned char src[80], dst[80];
    for (int turn = 0; turn < 256; turn++)
        for (size_t n = 0; n < 20; n++) {
            for (size_t i = 0; i < sizeof src; i++)
                src[i] = (unsigned char)(i % 3 ? (unsigned)turn + i * 37 : (unsigned)turn * (i & 1));
            memset(dst, 9, sizeof dst);
            tj_copy_bools(dst + turn % 8, src + 5, n);
            for (size_t i = 0; i < n; i++)
                ck_assert_int_eq(dst[(size_t)turn % 8 + i], src[5 + i] != 0);
            ck_assert_int_eq(dst[(size_t)turn % 8 + n], 9);
        }
}
END_TEST

TJ_TEST_MAIN_TURNS("hidden", {unseen_keys, TIERS}, {any_nonzero_byte, TIERS}, {copy_bools, 1})
