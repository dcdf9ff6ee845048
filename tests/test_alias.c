// tests/test_alias.c: views, copies and writes of memory that several tensors share: random programs beside an emulator
// of strided memory, in every mode; and what has to be refused or told.
//
// A program is drawn from the state of the emulator alone, so that it is the same in every mode and in runs whose body
// is skipped. ALIAS_SEEDS=n runs n programs instead of a few, ALIAS_SEED=s begins at s, ALIAS_MODE=m runs one mode,
// ALIAS_SHOW=1 prints them.
#define TRACE_NO_MACROS
#include "../include/tracejit.h"
#include "tj_test.h"

// ---- the emulator ---------------------------------------------------------------------------------------------------

enum { CELLS = 64, MEMS = 160, VALS = 28, LEAVES = 6, RANK = 4, KEPT = 5 };
struct mem {
    float cell[CELLS];
    bool leaf;
};
struct val {
    int mem, rank;
    int64_t at, dims[RANK], strides[RANK];
    trace_tensor *t;
};
static struct {
    struct mem mems[MEMS], saved[MEMS];
    int nmems, nvals, nkept;
    struct val vals[VALS], kept[KEPT];
    uint64_t rng;
    bool live, eager, bound, host, show; // calls are made; eager scope; bound run; breaks and trace_write are allowed
    bool written[MEMS];                  // by the region in this run
    trace_context *ctx;
    trace_region *region, *inner;
} m;

static uint32_t pick(uint32_t n) { return (uint32_t)(tj_test_random(&m.rng) >> 33) % n; }
#define SHOW(...) (m.show ? (void)printf(__VA_ARGS__) : (void)0)
// The call, where calls are made.
#define CALL(expr) (m.live ? must((expr), #expr, __LINE__) : NULL)
static trace_tensor *must(trace_tensor *t, const char *what, int line) {
    ck_assert_msg(t != NULL, "line %d: %s: %s", line, what, trace_last_error(m.ctx));
    return t;
}

static int64_t numel(const struct val *v) {
    int64_t n = 1;
    for (int d = 0; d < v->rank; d++)
        n *= v->dims[d];
    return n;
}
static int64_t place(const struct val *v, int64_t i) { // cell of row-major element i
    int64_t at = v->at;
    for (int d = v->rank; d-- > 0;) {
        at += i % v->dims[d] * v->strides[d];
        i /= v->dims[d];
    }
    return at;
}
static float *cell(const struct val *v, int64_t i) { return &m.mems[v->mem].cell[place(v, i)]; }
static bool packed(const struct val *v) {
    for (int64_t i = 0; i < numel(v); i++) {
        if (place(v, i) != v->at + i)
            return false;
    }
    return true;
}
static bool distinct(const struct val *v) {
    for (int64_t i = 0; i < numel(v); i++) {
        for (int64_t k = 0; k < i; k++) {
            if (place(v, i) == place(v, k))
                return false;
        }
    }
    return true;
}
static struct val fresh(const struct val *like) {
    struct val v = *like;
    ck_assert_int_lt(m.nmems, MEMS);
    v.mem = m.nmems++;
    v.at = 0;
    int64_t s = 1;
    for (int d = v.rank; d-- > 0; s *= v.dims[d])
        v.strides[d] = s;
    for (int64_t i = 0; i < numel(&v); i++)
        *cell(&v, i) = *cell(like, i);
    m.written[v.mem] = false;
    m.mems[v.mem].leaf = false;
    return v;
}
// The same elements in another shape: a view where some strides show them, found by trying.
static struct val reshaped(const struct val *x, int rank, const int64_t *dims) {
    struct val v = *x;
    v.rank = rank;
    memcpy(v.dims, dims, (size_t)rank * sizeof *dims);
    int64_t n = numel(x), step = 1;
    for (int d = rank; d-- > 0; step *= dims[d])
        v.strides[d] = dims[d] > 1 ? place(x, step) - x->at : 0;
    for (int64_t i = 0; i < n; i++) {
        if (place(&v, i) == place(x, i))
            continue;
        struct val c = fresh(x);
        c.rank = rank;
        memcpy(c.dims, dims, (size_t)rank * sizeof *dims);
        step = 1;
        for (int d = rank; d-- > 0; step *= dims[d])
            c.strides[d] = step;
        return c;
    }
    return v;
}
static void compare(const struct val *v, trace_tensor *t, const char *what) {
    float got[CELLS];
    int64_t n = numel(v);
    TJ_ASSERT_OK(trace_read_at(t, got, (size_t)n * sizeof *got, NULL, 0));
    for (int64_t i = 0; i < n; i++)
        ck_assert_msg(got[i] == *cell(v, i), "%s: element %d of %d is %g, not %g", what, (int)i, (int)n, (double)got[i],
                      (double)*cell(v, i));
}

// ---- ops of a program -----------------------------------------------------------------------------------------------

static void push(struct val v) {
    if (m.nvals < VALS) {
        m.vals[m.nvals++] = v;
        return;
    }
    uint32_t i = LEAVES + pick(VALS - LEAVES);
    m.vals[i] = v;
}

static void view(const struct val *x) {
    struct val v = *x;
    uint32_t how = pick(10), d = x->rank ? pick((uint32_t)x->rank) : 0;
    if (!x->rank && how > 1)
        return;
    switch (how) {
    case 0: { // another shape
        static const int64_t shapes[][5] = {{12},   {4, 3}, {3, 4}, {2, 6}, {6, 2}, {2, 3, 2}, {2, 2, 3}, {6}, {2, 3},
                                            {3, 2}, {1, 6}, {6, 1}, {4},    {2, 2}, {8},       {2, 4},    {3}, {2}};
        for (int tries = 0; tries < 40; tries++) {
            const int64_t *s = shapes[pick(TJ_COUNT(shapes))];
            int rank = 0;
            int64_t n = 1;
            for (; s[rank]; rank++)
                n *= s[rank];
            if (n != numel(x))
                continue;
            v = reshaped(x, rank, s);
            v.t = CALL(trace_reshape(x->t, s, (size_t)rank));
            SHOW("%d = reshape %d -> rank %d%s\n", m.nvals, (int)(x - m.vals), rank, v.mem == x->mem ? "" : " copies");
            push(v);
            return;
        }
        return;
    }
    case 1: // the same shape
        v.t = CALL(trace_reshape(x->t, x->dims, (size_t)x->rank));
        break;
    case 2: {
        uint32_t e = pick((uint32_t)x->rank);
        v.dims[d] = x->dims[e], v.dims[e] = x->dims[d];
        v.strides[d] = x->strides[e], v.strides[e] = x->strides[d];
        v.t = CALL(trace_transpose(x->t, d, e));
        break;
    }
    case 3: {
        int64_t from = pick((uint32_t)x->dims[d]), n = 1 + pick((uint32_t)(x->dims[d] - from));
        v.at += from * x->strides[d];
        v.dims[d] = n;
        v.t = CALL(trace_narrow(x->t, d, from, n));
        break;
    }
    case 4: {
        int64_t from = pick((uint32_t)x->dims[d]);
        v.at += from * x->strides[d];
        v.dims[d] = (x->dims[d] - from + 1) / 2;
        v.strides[d] *= 2;
        v.t = CALL(trace_slice(x->t, d, from, INT64_MAX, 2));
        break;
    }
    case 5: {
        int64_t i = pick((uint32_t)x->dims[d]);
        v.at += i * x->strides[d];
        v.rank--;
        for (int k = (int)d; k < v.rank; k++)
            v.dims[k] = v.dims[k + 1], v.strides[k] = v.strides[k + 1];
        v.t = CALL(trace_select(x->t, d, i));
        break;
    }
    case 6: // ones go
        v.rank = 0;
        for (int k = 0; k < x->rank; k++) {
            if (x->dims[k] != 1)
                v.dims[v.rank] = x->dims[k], v.strides[v.rank++] = x->strides[k];
        }
        v.t = CALL(trace_squeeze(x->t, TRACE_ALL_DIMS));
        break;
    case 7:
        if (x->rank == 3)
            return;
        for (int k = v.rank++; k > (int)d; k--)
            v.dims[k] = v.dims[k - 1], v.strides[k] = v.strides[k - 1];
        v.dims[d] = 1;
        v.strides[d] = 1;
        v.t = CALL(trace_unsqueeze(x->t, d));
        break;
    case 8: v.t = CALL(trace_expand(x->t, x->dims, (size_t)x->rank)); break;
    default: {
        int64_t n = numel(x);
        v = reshaped(x, 1, &n);
        v.t = CALL(trace_flatten(x->t, 0, -1));
    }
    }
    SHOW("%d = view %u of %d%s\n", m.nvals, how, (int)(x - m.vals), v.mem == x->mem ? "" : " copies");
    push(v);
}

static void copy(const struct val *x) {
    uint32_t how = pick(8);
    struct val v;
    if ((how == 0 && packed(x)) || how == 1) {
        v = *x; // a view
        v.t = how ? CALL(trace_to(x->t, TRACE_F32)) : CALL(trace_contiguous(x->t));
    } else {
        v = fresh(x);
        int64_t none[2] = {0, 0};
        v.t = how == 0              ? CALL(trace_contiguous(x->t))
              : how == 2            ? CALL(trace_clone(x->t))
              : how == 3            ? CALL(trace_flip(x->t, none, 0)) // no dim: a copy
              : how == 4 && x->rank ? CALL(trace_cat(&x->t, 1, 0))
              : how == 5 && x->rank ? CALL(trace_pad(x->t, none, 2, TRACE_PAD_CONSTANT, 0))
              : how == 6            ? CALL(trace_floor(x->t))
                                    : CALL(trace_add_f(x->t, 1));
        bool one_more = how == 7 || ((how == 4 || how == 5) && !x->rank);
        for (int64_t i = 0; one_more && i < numel(x); i++)
            *cell(&v, i) += 1;
    }
    SHOW("%d = copy %u of %d\n", m.nvals, how, (int)(x - m.vals));
    push(v);
}

static void write_to(const struct val *x) {
    uint32_t how = pick(4);
    float with = (float)(1 + pick(90));
    if (!distinct(x))
        return;
    m.written[x->mem] = true;
    if (how == 0) {
        CALL(trace_fill_f_(x->t, (double)with));
        for (int64_t i = 0; i < numel(x); i++)
            *cell(x, i) = with;
    } else if (how == 1) {
        CALL(trace_add_f_(x->t, (double)with));
        for (int64_t i = 0; i < numel(x); i++)
            *cell(x, i) += with;
    } else { // from another value of the shape
        const struct val *y = NULL;
        for (int tries = 0; tries < 30 && !y; tries++) {
            y = &m.vals[pick((uint32_t)m.nvals)];
            bool fits = y->rank == x->rank && !memcmp(y->dims, x->dims, (size_t)x->rank * sizeof *x->dims);
            bool same = y->mem == x->mem, apart = true;
            for (int64_t i = 0; fits && i < numel(x); i++) {
                same &= place(x, i) == place(y, i);
                for (int64_t k = 0; k < numel(y) && y->mem == x->mem; k++)
                    apart &= place(x, i) != place(y, k);
            }
            if (!fits || (how == 2 && !same && !apart))
                y = NULL;
        }
        if (!y)
            return;
        float got[CELLS];
        for (int64_t i = 0; i < numel(x); i++)
            got[i] = *cell(y, i) + (how == 3 ? *cell(x, i) : 0);
        if (how == 2)
            CALL(trace_copy_(x->t, y->t));
        else
            CALL(trace_add_(x->t, y->t));
        for (int64_t i = 0; i < numel(x); i++)
            *cell(x, i) = got[i];
        SHOW("from %d: ", (int)(y - m.vals));
    }
    SHOW("write %u to %d\n", how, (int)(x - m.vals));
}

static void host_write(uint32_t leaf) {
    struct val *x = &m.vals[leaf];
    float with[CELLS];
    for (int64_t i = 0; i < numel(x); i++) {
        with[i] = (float)pick(50);
        *cell(x, i) = with[i];
    }
    SHOW("trace_write %u\n", leaf);
    if (m.live)
        TJ_ASSERT_OK(trace_write(x->t, with, (size_t)numel(x) * sizeof *with));
}

// A counted loop over a value, with another one from outside.
static void loop(const struct val *x, const struct val *y) {
    uint32_t how = pick(3), turns = pick(4);
    int64_t n = numel(x);
    if (x->rank != 2 || y->rank != 2 || memcmp(x->dims, y->dims, sizeof *x->dims * 2))
        return;
    SHOW("%d = loop %u of %d with %d, %u turns\n", m.nvals, how, (int)(x - m.vals), (int)(y - m.vals), turns);
    struct val c = fresh(x);
    float w[CELLS];
    for (int64_t i = 0; i < n; i++)
        w[i] = *cell(y, i);
    trace_tensor *h = x->t;
    if (m.live)
        TJ_ASSERT_OK(trace_repeat_at(turns, &h, 1, NULL, 0));
    if (how == 0) { // a copying reshape of the carried value
        h = CALL(trace_add(trace_reshape(trace_transpose(h, 0, 1), x->dims, 2), y->t));
    } else if (how == 1) { // a write into a part of a copy
        trace_tensor *k = CALL(trace_clone(h));
        CALL(trace_add_f_(trace_narrow(k, 0, 0, 1), 1));
        h = CALL(trace_add(k, y->t));
    } else { // a write through a view of a copy
        trace_tensor *k = CALL(trace_reshape(trace_transpose(h, 0, 1), &n, 1));
        CALL(trace_add_f_(trace_narrow(trace_reshape(k, x->dims, 2), 1, 0, 1), 2));
        h = CALL(trace_add(trace_reshape(k, x->dims, 2), y->t));
    }
    if (m.live)
        TJ_ASSERT_OK(trace_repeat_end_at(&h, 1, NULL, 0));
    for (uint32_t t = 0; t < turns; t++) {
        float was[CELLS], now[CELLS];
        int64_t rows = x->dims[0], cols = x->dims[1];
        for (int64_t i = 0; i < n; i++)
            was[i] = *cell(&c, i);
        for (int64_t i = 0; i < n; i++) {
            now[i] = how == 1 ? was[i] : was[i % rows * cols + i / rows];
            now[i] += how == 1 && i < cols ? 1 : how == 2 && i % cols == 0 ? 2 : 0;
        }
        for (int64_t i = 0; i < n; i++)
            *cell(&c, i) = now[i] + w[i];
    }
    c.t = h;
    push(c);
}

static void step(int depth);
// A region inside that fails: its writes are undone, what the host wrote stays.
static void inner(int depth) {
    bool fails = pick(2);
    SHOW("inner {\n");
    memcpy(m.saved, m.mems, sizeof m.mems);
    bool was_written[MEMS];
    memcpy(was_written, m.written, sizeof was_written);
    struct val was[VALS];
    int nvals = m.nvals, nmems = m.nmems;
    memcpy(was, m.vals, sizeof was);
    bool host = m.host;
    m.host = false;
    if (m.live)
        ck_assert((trace_begin_at)(m.inner, NULL, 0, NULL, 0));
    uint32_t n = 1 + pick(5);
    uint32_t leaf = pick(2) ? 0 : 99; // the owned one, which no bound plan or other handle has
    for (uint32_t i = 0; i < n; i++) {
        if (host && leaf == 0 && i == n / 2 && !m.written[m.vals[0].mem]) {
            host_write(0);
            for (int64_t k = 0; k < numel(&m.vals[0]); k++)
                m.saved[m.vals[0].mem].cell[place(&m.vals[0], k)] = *cell(&m.vals[0], k);
        } else {
            step(depth + 1);
        }
    }
    if (fails && m.live)
        ck_assert_ptr_null(trace_reshape(m.vals[0].t, (const int64_t[]){5}, 1));
    if (m.live)
        ck_assert((trace_end_at(m.inner, NULL, 0, NULL, 0) != TRACE_OK) == fails);
    m.host = host;
    SHOW("} %s\n", fails ? "fails" : "");
    if (fails) {
        memcpy(m.mems, m.saved, sizeof m.mems);
        memcpy(m.vals, was, sizeof was);
        memcpy(m.written, was_written, sizeof was_written);
        m.nvals = nvals;
        m.nmems = nmems;
    }
}

static void step(int depth) {
    if (m.nmems + 4 > MEMS)
        return;
    uint32_t what = pick(100);
    const struct val x = m.vals[pick((uint32_t)m.nvals)], *at = NULL;
    for (int i = 0; i < m.nvals && !at; i++)
        at = m.vals[i].t == x.t && !memcmp(&m.vals[i], &x, sizeof x) ? &m.vals[i] : NULL;
    if (what < 45)
        view(at);
    else if (what < 60)
        copy(at);
    else if (what < 84)
        write_to(at);
    else if (what < 88)
        loop(at, &m.vals[pick((uint32_t)m.nvals)]);
    else if (what < 92 && depth == 0 && !m.eager)
        inner(depth);
    else if (what < 96 && m.host) {
        SHOW("read %d\n", (int)(at - m.vals));
        if (m.live)
            compare(at, at->t, "read in the body");
    } else if (m.host)
        host_write(pick(LEAVES));
}

// ---- runs -----------------------------------------------------------------------------------------------------------

enum mode { EAGER, RECORD, EXACT, SYMBOLIC, REPLAY, BOUND, INTERPRETED, DISABLED, UNFUSED, MODES };
static const char *const mode_names[] = {"eager", "record",      "exact",    "symbolic", "replay",
                                         "bound", "interpreted", "disabled", "unfused"};

// Leaves: 0 owned; 1 and 2 a tensor and a view of it; 3, 4, 5 wrapped over one array, apart in part.
static float wrapped[CELLS];
static trace_tensor *leaves[LEAVES];

static void make_leaves(void) {
    float zero[CELLS] = {0};
    static const int64_t a[] = {2, 3, 2}, b[] = {4, 3}, c[] = {12}, d[] = {3, 4};
    leaves[0] = trace_from(m.ctx, TRACE_F32, zero, a, 3);
    leaves[1] = trace_from(m.ctx, TRACE_F32, zero, b, 2);
    leaves[2] = trace_narrow(leaves[1], 1, 1, 2);
    leaves[3] = trace_wrap(m.ctx, TRACE_F32, wrapped, c, 1);
    leaves[4] = trace_wrap(m.ctx, TRACE_F32, wrapped + 6, d, 2);
    static const int64_t e[] = {6}, two[] = {2};
    leaves[5] = trace_wrap_desc(m.ctx, &(const trace_tensor_desc){.size = sizeof(trace_tensor_desc),
                                                                  .dtype = TRACE_F32,
                                                                  .dims = e,
                                                                  .rank = 1,
                                                                  .strides = two,
                                                                  .data = wrapped + 1});
    for (int i = 0; i < LEAVES; i++)
        ck_assert_ptr_nonnull(leaves[i]);
}

static void fill_leaves(int run) {
    static const struct val places[LEAVES] = {{0, 3, 0, {2, 3, 2}, {6, 2, 1}, NULL}, {1, 2, 0, {4, 3}, {3, 1}, NULL},
                                              {1, 2, 1, {4, 2}, {3, 1}, NULL},       {2, 1, 0, {12}, {1}, NULL},
                                              {2, 2, 6, {3, 4}, {4, 1}, NULL},       {2, 1, 1, {6}, {2}, NULL}};
    m.nmems = 3;
    m.nvals = LEAVES;
    m.nkept = 0;
    memset(m.written, 0, sizeof m.written);
    for (int i = 0; i < 3; i++) {
        m.mems[i].leaf = true;
        for (int k = 0; k < CELLS; k++)
            m.mems[i].cell[k] = (float)(run * 7 + 20 * i + k);
    }
    TJ_ASSERT_OK(trace_write(leaves[0], m.mems[0].cell, 12 * sizeof(float)));
    TJ_ASSERT_OK(trace_write(leaves[1], m.mems[1].cell, 12 * sizeof(float)));
    memcpy(wrapped, m.mems[2].cell, sizeof wrapped);
    for (int i = 0; i < LEAVES; i++) {
        m.vals[i] = places[i];
        m.vals[i].t = leaves[i];
    }
}

static void body(uint64_t seed) {
    m.rng = seed;
    uint32_t n = 4 + pick(22);
    for (uint32_t i = 0; i < n; i++)
        step(0);
    while (m.nkept < KEPT)
        m.kept[m.nkept++] = m.vals[pick((uint32_t)m.nvals)];
}

static void run(uint64_t seed, enum mode mode, int turn) {
    trace_tensor *out[KEPT] = {NULL}, *to[KEPT] = {NULL};
    fill_leaves(turn);
    m.live = (trace_begin_at)(m.region, leaves, LEAVES, NULL, 0);
    SHOW("-- seed %" PRIu64 " %s turn %d%s\n", seed, mode_names[mode], turn, m.live ? "" : " (skipped)");
    body(seed);
    if (mode == BOUND) {
        trace_bound *plan = NULL;
        for (int i = 0; i < KEPT; i++) {
            float zero[CELLS] = {0};
            to[i] = trace_from(m.ctx, TRACE_F32, zero, m.kept[i].dims, (size_t)m.kept[i].rank);
            ck_assert_ptr_nonnull(to[i]);
            must(trace_copy_(to[i], m.kept[i].t), "copy_", __LINE__);
        }
        TJ_ASSERT_OK(trace_end_bind_at(m.region, NULL, &plan, NULL, 0));
        for (int again = 0; again < 2; again++) {
            fill_leaves(turn + again);
            m.live = false;
            body(seed);
            TJ_ASSERT_OK(trace_bound_run(plan));
            for (int i = 0; i < KEPT; i++)
                compare(&m.kept[i], to[i], "bound");
        }
        trace_bound_release(plan);
    } else {
        for (int i = 0; i < KEPT; i++)
            out[i] = m.live ? m.kept[i].t : NULL;
        TJ_ASSERT_OK(trace_end_at(m.region, out, KEPT, NULL, 0));
        for (int i = 0; i < KEPT; i++)
            compare(&m.kept[i], out[i], "output");
    }
    m.live = true;
    for (int i = 0; i < LEAVES; i++)
        compare(&m.vals[i], leaves[i], "leaf");
    for (int i = 0; i < KEPT; i++) {
        trace_release(out[i]);
        trace_release(to[i]);
    }
}

static void one_mode(enum mode mode, uint64_t from, uint64_t n) {
    if (mode == INTERPRETED || mode == UNFUSED)
        setenv("TRACEJIT_NO", mode == UNFUSED ? "fuse" : "jit", 1);
    if (mode == DISABLED)
        setenv("TRACEJIT_DISABLE", "1", 1);
    trace_context_options o = {.size = sizeof o, .on_event = tj_test_quiet, .threads = 1};
    TJ_ASSERT_OK(trace_context_create(&o, &m.ctx));
    unsetenv("TRACEJIT_NO");
    unsetenv("TRACEJIT_DISABLE");
    trace_region_options r = {.size = sizeof r,
                              .mode = mode == EAGER    ? TRACE_MODE_EAGER
                                      : mode == REPLAY ? TRACE_MODE_REPLAY
                                                       : TRACE_MODE_RECORD,
                              .dynamic = mode == EXACT      ? TRACE_DYNAMIC_OFF
                                         : mode == SYMBOLIC ? TRACE_DYNAMIC_ON
                                                            : TRACE_DYNAMIC_AUTO};
    m.eager = mode == EAGER || mode == DISABLED;
    m.show = getenv("ALIAS_SHOW") != NULL;
    make_leaves();
    for (uint64_t seed = from; seed < from + n; seed++) {
        r.mode = mode == REPLAY ? TRACE_MODE_REPLAY : r.mode;
        TJ_ASSERT_OK(trace_region_create(m.ctx, "alias", &r, &m.region));
        TJ_ASSERT_OK(trace_region_create(m.ctx, "inner", NULL, &m.inner));
        m.host = mode != BOUND && (mode != REPLAY || seed % 4 == 0);
        for (int turn = 0; turn < (mode == REPLAY ? 4 : mode == BOUND ? 1 : 2); turn++)
            run(seed, mode, turn);
        trace_region_release(m.region);
        trace_region_release(m.inner);
    }
    for (int i = 0; i < LEAVES; i++)
        trace_release(leaves[i]);
    trace_context_release(m.ctx);
}

START_TEST(programs) {
    const char *n = getenv("ALIAS_SEEDS"), *from = getenv("ALIAS_SEED");
    const char *only = getenv("ALIAS_MODE");
    if ((only && atoi(only) != _i) || ((enum mode)_i == BOUND && !tj_test_compiler()))
        return;
    one_mode((enum mode)_i, from ? strtoull(from, NULL, 10) : 1, n ? strtoull(n, NULL, 10) : 40);
}
END_TEST

TJ_TEST_MAIN_TURNS("alias", {programs, MODES})
