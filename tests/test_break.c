// tests/test_break.c: graph breaks: what runs, what is kept, what later runs compile; deferred forms; random programs.
#include "region_fake.h"

START_TEST(loop_with_break) {
    start();
    ck_assert(relax_run(8, 3) == 1);
    int first = atomic_load(&compiles);
    ck_assert_msg(first <= 5, "%d plans", first);
    ck_assert(relax_run(1024, 10) == 1);
    ck_assert_msg(atomic_load(&compiles) == first, "the second run compiled %d", atomic_load(&compiles) - first);
    ck_assert(relax_run(ldexpf(1, 100), 100) == 1);
    ck_assert(relax_run(ldexpf(1, 57), 57) == 1);
    ck_assert_int_eq(atomic_load(&compiles), first);
    ck_assert_int_eq(events.count[TRACE_EVENT_BREAK], 1);
    ck_assert(strstr(events.last[TRACE_EVENT_BREAK], "trace_item_f64"));
    ck_assert(strstr(events.last[TRACE_EVENT_BREAK], "after trace_end"));
    ck_assert_uint_eq(stats().breaks, 170);
    ck_assert_uint_eq(stats().recompiles, 0);
    // a steady turn stores what is read and what is used
    atomic_store(&outs_stored, 0);
    (void)relax_run(1024, 10);
    ck_assert_int_le(atomic_load(&outs_stored), 20);
    close_all();
}
END_TEST

START_TEST(break_in_branch) {
    start();
    trace_tensor *x = vec(1, 3);
    for (int i = 0; i < 4; i++) {
        double v;
        trace_tensor *y = NULL;
        if (trace_begin(region, TRACE_ARGS(x))) {
            trace_tensor *h = trace_mul_f(x, 2), *k = trace_add_f(h, 1), *unused = trace_mul_f(k, 5);
            (void)unused;
            TJ_ASSERT_OK(trace_item_f64(k, &v));
            ck_assert(v == 7);
            y = v > 5 ? trace_mul(h, k) : h;
        }
        TJ_ASSERT_OK(trace_end(region, &y, 1));
        ck_assert(first_of(y) == 42);
        trace_release(y);
        if (i == 0)
            atomic_store(&compiles, 0);
    }
    ck_assert_int_eq(atomic_load(&compiles), 0);
    trace_release(x);
    close_all();
}
END_TEST

// A value that the first runs don't use is computed again when a later one does, and stored from then on.
START_TEST(late_use) {
    start();
    trace_tensor *x = vec(1, 3);
    int made[6];
    for (int i = 0; i < 6; i++) {
        double v;
        trace_tensor *y = NULL;
        if (trace_begin(region, TRACE_ARGS(x))) {
            trace_tensor *h = trace_mul_f(x, 2), *k = trace_add_f(h, 1);
            TJ_ASSERT_OK(trace_item_f64(k, &v));
            y = i < 2 ? trace_neg(k) : trace_mul_f(h, 10);
        }
        TJ_ASSERT_OK(trace_end(region, &y, 1));
        ck_assert(first_of(y) == (i < 2 ? -7 : 60));
        trace_release(y);
        made[i] = atomic_load(&compiles);
    }
    ck_assert_int_eq(made[1], made[0]);
    ck_assert_int_eq(made[4], made[3]);
    ck_assert_int_eq(made[5], made[3]);
    trace_release(x);
    close_all();
}
END_TEST

START_TEST(break_and_writes) {
    start();
    for (int round = 0; round < 3; round++) {
        trace_tensor *x = vec(2, 1), *s = vec(1, 5), *out[3] = {0};
        double v, v2;
        if (trace_begin(region, TRACE_ARGS(x, s))) {
            trace_tensor *old = trace_mul_f(x, 10); // of the content before the write: must survive it
            trace_tensor *lazy = trace_mul_f(old, 2);
            trace_add_f_(x, 1);
            trace_tensor *mid = trace_mul_f(x, 100); // of the content between two writes
            trace_add_f_(x, 1);
            TJ_ASSERT_OK(trace_item_f64(trace_mul_f(s, 2), &v));
            ck_assert(v == 10);
            trace_add_f_(x, 1);
            float now[2];
            TJ_ASSERT_OK(trace_read(x, now, sizeof now)); // its pending write runs
            ck_assert(now[0] == 4);
            TJ_ASSERT_OK(trace_item_f64(trace_mul_f(s, 3), &v2));
            out[0] = old, out[1] = lazy, out[2] = mid;
        }
        TJ_ASSERT_OK(trace_end(region, out, 3));
        ck_assert(first_of(x) == 4);
        ck_assert(first_of(out[0]) == 10);
        ck_assert(first_of(out[1]) == 20);
        ck_assert(first_of(out[2]) == 200);
        for (int i = 0; i < 3; i++)
            trace_release(out[i]);
        trace_release(x);
        trace_release(s);
        if (round == 0)
            atomic_store(&compiles, 0);
    }
    ck_assert_int_eq(atomic_load(&compiles), 0);
    close_all();
}
END_TEST

START_TEST(host_write_inside) {
    start();
    float memory[2] = {1, 2};
    trace_tensor *w = trace_wrap(ctx, TRACE_F32, memory, TRACE_DIMS(2)), *o = vec(2, 1), *out[4] = {0};
    if (trace_begin(region, TRACE_ARGS(w, o))) {
        out[0] = trace_mul_f(w, 10);
        TJ_ASSERT_OK(trace_write(w, (float[]){7, 8}, 8)); // a break of kind write
        out[1] = trace_mul_f(w, 10);
        out[2] = trace_mul_f(o, 10);
        TJ_ASSERT_OK(trace_write(o, (float[]){7, 8}, 8)); // the run keeps the old buffer
        out[3] = trace_mul_f(o, 10);
    }
    TJ_ASSERT_OK(trace_end(region, out, 4));
    ck_assert(first_of(out[0]) == 10);
    ck_assert(first_of(out[1]) == 70);
    ck_assert(first_of(out[2]) == 10);
    ck_assert(first_of(out[3]) == 70);
    ck_assert_int_eq(events.count[TRACE_EVENT_BREAK], 1);
    for (int i = 0; i < 4; i++)
        trace_release(out[i]);
    trace_release(w);
    trace_release(o);
    close_all();
}
END_TEST

START_TEST(kinds_of_readback) {
    start();
    trace_tensor *x = vec(2, 1), *y = NULL;
    if (trace_begin(region, TRACE_ARGS(x))) {
        trace_tensor *h = trace_mul_f(x, 2);
        const void *p, *q;
        float v[2];
        TJ_ASSERT_OK(trace_data(h, &p));
        ck_assert(((const float *)p)[1] == 4);
        TJ_ASSERT_OK(trace_read(trace_mul_f(h, 2), v, sizeof v));
        ck_assert(v[1] == 8);
        TJ_ASSERT_OK(trace_data(h, &q)); // stored already
        ck_assert_ptr_eq(p, q);
        ck_assert(((const float *)p)[1] == 4);
        TJ_ASSERT_OK(trace_read(x, v, sizeof v)); // a tensor: no break
        int64_t i;
        TJ_ASSERT_STATUS(trace_read(x, v, 3), TRACE_ERR_ARGUMENT); // a mistake with a tensor leaves the run alone
        ck_assert(!trace_failed(ctx));
        TJ_ASSERT_STATUS(trace_item_i64(trace_mul_f(h, 2), &i), TRACE_ERR_SHAPE); // two elements: fails the run
        ck_assert(trace_failed(ctx));
    }
    TJ_ASSERT_STATUS(trace_end(region, &y, 1), TRACE_ERR_SHAPE);
    ck_assert_uint_eq(stats().breaks, 2);
    trace_release(x);
    close_all();
}
END_TEST

START_TEST(fullgraph) {
    start_options((trace_region_options){.fullgraph = true});
    trace_tensor *x = vec(1, 1), *y = NULL;
    int64_t v = 5;
    if (trace_begin(region, TRACE_ARGS(x))) {
        trace_tensor *h = trace_mul_f_at(x, 2, "gen.c", 85);
        TJ_ASSERT_STATUS(trace_item_i64_at(h, &v, "gen.c", 88), TRACE_ERR_BREAK);
        ck_assert_int_eq(v, 0);
        ck_assert_msg(
            error_has("region 'test' is fullgraph: trace_item_i64 (gen.c:88) needs mul (gen.c:85); read it after"),
            "%s", trace_last_error(ctx));
        y = trace_relu(h);
        ck_assert_ptr_null(y);
    }
    TJ_ASSERT_STATUS(trace_end(region, &y, 1), TRACE_ERR_BREAK);
    ck_assert(error_has("gen.c:88"));
    // in an inner scope until its end
    trace_region *outer;
    TJ_ASSERT_OK(trace_region_create(ctx, "outer", NULL, &outer));
    if (trace_begin(outer, TRACE_ARGS(x))) {
        if (trace_begin(region, TRACE_ARGS(x)))
            y = trace_mul_f(x, 2);
        TJ_ASSERT_OK(trace_end(region, &y, 1));
        TJ_ASSERT_OK(trace_item_i64(y, &v));
        ck_assert_int_eq(v, 2);
    }
    TJ_ASSERT_OK(trace_end(outer, NULL, 0));
    trace_region_release(outer);
    trace_release(x);
    close_all();
}
END_TEST

START_TEST(deferred) {
    start();
    trace_tensor *x = vec(1, 4), *later = NULL, *fails = NULL, *of_leaf = NULL;
    double v;
    if (trace_begin(region, TRACE_ARGS(x))) {
        trace_tensor *h = trace_mul_f(x, 2);
        later = trace_item_later(h);
        of_leaf = trace_item_later(x);
        trace_add_f_(x, 1);
        TJ_ASSERT_OK(trace_print_later(h, "h"));
        ck_assert_ptr_nonnull(later);
        TJ_ASSERT_STATUS(trace_item_f64(later, &v), TRACE_ERR_STATE);
    }
    TJ_ASSERT_OK(trace_end(region, NULL, 0));
    TJ_ASSERT_OK(trace_item_f64(later, &v));
    ck_assert(v == 8);
    TJ_ASSERT_OK(trace_item_f64(of_leaf, &v));
    ck_assert(v == 4);
    ck_assert_uint_eq(stats().breaks, 0);
    if (trace_begin(region, TRACE_ARGS(x))) {
        fails = trace_item_later(trace_mul_f(x, 2));
        (void)trace_reshape(x, TRACE_DIMS(9));
    }
    ck_assert(trace_end(region, NULL, 0) != TRACE_OK);
    ck_assert(trace_item_f64(fails, &v) != TRACE_OK);
    // across a break whose write overwrites what it was made from
    trace_tensor *l = NULL;
    if (trace_begin(region, TRACE_ARGS(x))) {
        l = trace_item_later(trace_mul_f(x, 3)); // x is 5
        trace_add_f_(x, 1);
        TJ_ASSERT_OK(trace_item_f64(trace_mul_f(x, 1), &v));
        ck_assert(v == 6);
    }
    TJ_ASSERT_OK(trace_end(region, NULL, 0));
    TJ_ASSERT_OK(trace_item_f64(l, &v));
    ck_assert(v == 15);
    trace_release(l);
    trace_release(fails);
    trace_release(later);
    trace_release(of_leaf);
    trace_release(x);
    close_all();
}
END_TEST

START_TEST(lint) {
    start();
    trace_tensor *x = vec(1, 4);
    for (int i = 0; i < 3; i++) {
        trace_tensor *y = NULL;
        if (trace_begin(region, TRACE_ARGS(x))) {
            if (trace_gt_f_at(x, 1.0, "host.c", 12))
                y = trace_mul_f(x, 0.5);
            (void)trace_where(trace_lt_f(x, 2), x, y); // used: no complaint
        }
        TJ_ASSERT_OK(trace_end(region, &y, 1));
        trace_release(y);
    }
    ck_assert_int_eq(events.count[TRACE_EVENT_LINT], 1);
    ck_assert_str_eq(events.where[TRACE_EVENT_LINT], "host.c:12");
    ck_assert(strstr(events.last[TRACE_EVENT_LINT], "if (handle)"));
    trace_release(x);
    close_all();
}
END_TEST

static void print_two(void) {
    start();
    trace_tensor *x = vec(2, 1);
    if (trace_begin(region, TRACE_ARGS(x))) {
        TJ_ASSERT_OK(trace_print_later(trace_mul_f(x, 3), "later"));
        TJ_ASSERT_OK(trace_print(trace_mul_f(x, 2), "now"));
    }
    TJ_ASSERT_OK(trace_end(region, NULL, 0));
    trace_release(x);
    close_all();
}
START_TEST(prints) {
    const char *text = stderr_of(print_two);
    const char *now = strstr(text, "now = f32[2] [2, 4]\n"), *later = strstr(text, "later = f32[2] [3, 6]\n");
    ck_assert_msg(now && later && now < later, "%s", text);
}
END_TEST

// ---- random programs ------------------------------------------------------------------------------------------------

// A random body over three tensors (owned, wrapped, a view of the wrapped one's memory): ops, writes, readbacks,
// releases. Eagerly it gives what it must give in a region, wherever breaks fall; run again it compiles nothing.
enum { WIDTH = 3, VALUES = 40, SEEN = 64 };
struct program {
    uint64_t seed;
    int steps;
    bool in_region;
    double seen[SEEN];
    int nseen;
    float outs[4][WIDTH], memory[2][WIDTH + 1];
    int nouts;
};

static void wrote(const trace_tensor *t) { ck_assert_msg(t != NULL, "%s", trace_last_error(ctx)); }

static void body(struct program *p, trace_tensor **leaf, trace_tensor **out, trace_tensor **later, int *nlater) {
    uint64_t rng = p->seed;
    trace_tensor *v[VALUES];
    bool gone[VALUES] = {0};
    int n = 0;
    for (int i = 0; i < 3; i++)
        v[n++] = leaf[i];
    *nlater = 0;
    for (int i = 0; i < p->steps && n < VALUES - 1; i++) {
        trace_tensor *a, *b;
        int ia, ib;
        do
            ia = (int)(tj_test_random(&rng) % (uint64_t)n);
        while (gone[ia]);
        do
            ib = (int)(tj_test_random(&rng) % (uint64_t)n);
        while (gone[ib]);
        a = v[ia], b = v[ib];
        switch (tj_test_random(&rng) % 18) {
        case 0:
        case 1: v[n++] = trace_add(a, b); break;
        case 2:
        case 3: v[n++] = trace_mul_f(a, 0.5 + (double)(i % 4)); break;
        case 4: v[n++] = trace_maximum(a, b); break;
        case 5: v[n++] = trace_sub_f(a, 1); break;
        case 6: v[n++] = trace_reshape(a, TRACE_DIMS(WIDTH)); break; // a view
        case 7:
            v[n++] = trace_transpose(trace_transpose(trace_reshape(a, TRACE_DIMS(WIDTH, 1)), 0, 1), 0, 1),
            v[n - 1] = trace_reshape(v[n - 1], TRACE_DIMS(WIDTH));
            break;
        case 8: wrote(trace_add_(a, trace_mul_f(b, 0.25))); break;
        case 9: wrote(trace_mul_f_(trace_slice(a, 0, 1, 3, 1), 0.5)); break;
        case 10: wrote(trace_copy_(a, trace_mul_f(b, 1))); break;
        case 11:
        case 12: { // a readback that steers
            double d = 0;
            TJ_ASSERT_OK(trace_item_f64(trace_slice(a, 0, 2, 3, 1), &d));
            if (p->nseen < SEEN)
                p->seen[p->nseen++] = d;
            if (d > 1)
                v[n++] = trace_add(a, b);
            break;
        }
        case 13: {
            float f[WIDTH];
            TJ_ASSERT_OK(trace_read(a, f, sizeof f));
            if (p->nseen < SEEN)
                p->seen[p->nseen++] = (double)f[0] + (double)f[1] * 3;
            break;
        }
        case 14:
            if (p->in_region && ia > 2)
                trace_release(a);
            gone[ia] = ia > 2;
            break;
        case 15: {
            float f[WIDTH] = {(float)i, 1, (float)-i};
            TJ_ASSERT_OK(trace_write(leaf[ia % 3], f, sizeof f));
            break;
        }
        case 16:
            if (*nlater < 4) { // eagerly: the value now
                a = trace_slice(a, 0, 0, 1, 1);
                later[*nlater] = p->in_region ? trace_item_later(a) : trace_clone(a);
                wrote(later[*nlater]);
                if (!p->in_region)
                    (void)trace_retain(later[*nlater]); // the scope releases its own
                (*nlater)++;
            }
            break;
        default: v[n++] = trace_relu(a); break;
        }
        ck_assert_msg(v[n - 1] != NULL, "%s", trace_last_error(ctx));
    }
    for (int i = n - 1; i > 2 && p->nouts < 4; i--) {
        if (!gone[i])
            out[p->nouts++] = trace_clone(v[i]);
    }
}

static void run_program(struct program *p) {
    float own[WIDTH] = {1, -2, 3}, wrapped[WIDTH + 1] = {0.5f, 4, -1, 2};
    trace_tensor *leaf[3], *out[4] = {0}, *later[4];
    int nlater = 0;
    leaf[0] = trace_from(ctx, TRACE_F32, own, TRACE_DIMS(WIDTH));
    trace_tensor *whole = trace_wrap(ctx, TRACE_F32, wrapped, TRACE_DIMS(WIDTH + 1));
    leaf[1] = trace_slice(whole, 0, 0, WIDTH, 1);
    leaf[2] = trace_slice(whole, 0, 1, WIDTH + 1, 1); // overlaps
    p->nseen = p->nouts = 0;
    trace_region *eager;
    TJ_ASSERT_OK(trace_region_create(ctx, "reference", TRACE_REGION_OPTIONS(.mode = TRACE_MODE_EAGER), &eager));
    trace_region *r = p->in_region ? region : eager;
    if (trace_begin(r, NULL, 0))
        body(p, leaf, out, later, &nlater);
    TJ_ASSERT_OK(trace_end(r, out, (size_t)p->nouts));
    for (int i = 0; i < p->nouts; i++) {
        TJ_ASSERT_OK(trace_read(out[i], p->outs[i], sizeof p->outs[i]));
        trace_release(out[i]);
    }
    for (int i = 0; i < nlater; i++) {
        double d;
        TJ_ASSERT_OK(trace_item_f64(later[i], &d));
        if (p->nseen < SEEN)
            p->seen[p->nseen++] = d;
        trace_release(later[i]);
    }
    TJ_ASSERT_OK(trace_read(leaf[0], p->memory[0], sizeof own));
    memcpy(p->memory[1], wrapped, sizeof wrapped);
    for (int i = 0; i < 3; i++)
        trace_release(leaf[i]);
    trace_release(whole);
    trace_region_release(eager);
}

START_TEST(random_programs) {
    const char *one = getenv("TJ_SEED");
    for (uint64_t seed = one ? strtoull(one, NULL, 0) : 1; seed <= (one ? strtoull(one, NULL, 0) : 400); seed++) {
        start();
        struct program want = {.seed = seed * 7919, .steps = 6 + (int)(seed % 30)}, got;
        run_program(&want);
        int before = 0;
        for (int round = 0; round < 3; round++) {
            memset(&got, 0, sizeof got);
            got.seed = want.seed, got.steps = want.steps, got.in_region = true;
            if (round == 1)
                before = atomic_load(&compiles);
            run_program(&got);
            ck_assert_msg(got.nseen == want.nseen && got.nouts == want.nouts, "seed %" PRIu64 " run %d", seed, round);
            for (int i = 0; i < want.nseen; i++)
                ck_assert_msg(got.seen[i] == want.seen[i], "seed %" PRIu64 " run %d: value %d is %g, not %g", seed,
                              round, i, got.seen[i], want.seen[i]);
            for (int i = 0; i < want.nouts; i++)
                for (int k = 0; k < WIDTH; k++)
                    ck_assert_msg(got.outs[i][k] == want.outs[i][k],
                                  "seed %" PRIu64 " run %d: output %d[%d] is %g, not %g", seed, round, i, k,
                                  (double)got.outs[i][k], (double)want.outs[i][k]);
            ck_assert_msg(!memcmp(got.memory, want.memory, sizeof got.memory), "seed %" PRIu64 " run %d: memory", seed,
                          round);
        }
        ck_assert_msg(atomic_load(&compiles) == before, "seed %" PRIu64 ": %d plans made by later runs", seed,
                      atomic_load(&compiles) - before);
        close_all();
    }
}
END_TEST

// Breaks at more places than are told apart: the others are counted together, and the table stays as it is.
START_TEST(many_places) {
    start();
    trace_tensor *x = vec(2, 1);
    for (int turn = 0; turn < 2; turn++) {
        for (int line = 1; line <= TJ_SITES + 200; line++) {
            double v;
            ck_assert(trace_begin(region, TRACE_ARGS(x)));
            TJ_ASSERT_OK(trace_item_f64_at(trace_sum(x, NULL, 0, false), &v, "script", line));
            TJ_ASSERT_OK(trace_end(region, NULL, 0));
        }
    }
    ck_assert_uint_eq(region->cache.nsites, TJ_SITES + 1);
    ck_assert_int_eq(events.count[TRACE_EVENT_BREAK], TJ_SITES + 1);
    uint64_t count = 0, others = 0;
    for (const struct tj_break_site *s = region->cache.sites; s; s = s->next) {
        count += atomic_load(&s->count);
        if (!strcmp(s->where, "other places"))
            others = atomic_load(&s->count);
        else
            ck_assert_uint_eq(atomic_load(&s->count), 2);
    }
    ck_assert_uint_eq(others, 400);
    ck_assert_uint_eq(count, 2 * (TJ_SITES + 200));
    trace_release(x);
    close_all();
}
END_TEST

TJ_TEST_MAIN("break", loop_with_break, break_in_branch, late_use, break_and_writes, host_write_inside,
             kinds_of_readback, fullgraph, deferred, lint, prints, many_places, random_programs)
