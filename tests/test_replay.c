// tests/test_replay.c: replay mode: when the body is skipped, what a replay gives, what refuses it, stale replays.
#include <fcntl.h>

#include "region_fake.h"

static int bodies; // times a body ran

static void start_replay(uint32_t check) {
    bodies = 0;
    start_options((trace_region_options){.mode = TRACE_MODE_REPLAY, .replay_check = check});
}
static const char *event_text(void) { return events.last[TRACE_EVENT_REPLAY]; }
static const char *event_where(void) { return events.where[TRACE_EVENT_REPLAY]; }
static int event_count(void) { return events.count[TRACE_EVENT_REPLAY]; }

// relu(x * w + s); the op at model.c:7 has the scalar.
static float run_model(trace_tensor *x, trace_tensor *w, double s) {
    trace_tensor *y = NULL;
    if (trace_begin(region, TRACE_ARGS(x))) {
        bodies++;
        y = trace_relu(trace_add_f_at(trace_mul_at(x, w, "model.c", 6), s, "model.c", 7));
    }
    TJ_ASSERT_OK(trace_end(region, &y, 1));
    float v = first_of(y);
    trace_release(y);
    return v;
}

START_TEST(skips_the_body) {
    start_replay(0);
    trace_tensor *w = vec(4, 2);
    for (int i = 0; i < 6; i++) {
        trace_tensor *x = vec(4, (float)(i + 1)); // other tensors of the same shape
        ck_assert(run_model(x, w, 0.5) == (float)(i + 1) * 2 + 0.5f);
        trace_release(x);
    }
    ck_assert_int_eq(bodies, 2);
    trace_stats s = stats();
    ck_assert_uint_eq(s.runs, 6);
    ck_assert_uint_eq(s.records, 2);
    ck_assert_uint_eq(s.replays, 4);
    ck_assert_uint_eq(s.graphs, 1);
    ck_assert_int_eq(event_count(), 0);
    trace_release(w);
    close_all();
}
END_TEST

START_TEST(results_are_the_callers) {
    start_replay(0);
    trace_tensor *x = vec(4, 1), *w = vec(4, 2), *y[8];
    for (int i = 0; i < 8; i++) {
        y[i] = NULL;
        if (trace_begin(region, TRACE_ARGS(x)))
            y[i] = trace_mul(x, w);
        TJ_ASSERT_OK(trace_end(region, &y[i], 1));
        for (int k = 0; k < i; k++)
            ck_assert(y[k] != y[i] && y[k]->st != y[i]->st);
        float v[4] = {(float)(10 * i + 10)};
        TJ_ASSERT_OK(trace_write(x, v, sizeof v));
    }
    for (int i = 0; i < 8; i++) {
        ck_assert(first_of(y[i]) == (i ? (float)(10 * i) : 1) * 2);
        trace_release(y[i]);
    }
    // one that is released is taken again; a view of it keeps the memory
    trace_tensor *a = NULL, *b = NULL;
    ck_assert(!trace_begin(region, TRACE_ARGS(x)));
    TJ_ASSERT_OK(trace_end(region, &a, 1));
    trace_tensor *view = trace_narrow(a, 0, 0, 1);
    float before = first_of(view);
    trace_release(a);
    float v[4] = {7};
    TJ_ASSERT_OK(trace_write(x, v, sizeof v));
    ck_assert(!trace_begin(region, TRACE_ARGS(x)));
    TJ_ASSERT_OK(trace_end(region, &b, 1));
    ck_assert(first_of(view) == before);
    ck_assert(first_of(b) == 14);
    trace_release(view);
    // a result as the next input
    for (int i = 0; i < 5; i++) {
        trace_tensor *next = NULL;
        float was = first_of(b);
        bool records = trace_begin(region, TRACE_ARGS(b)); // until an input other than x has recorded the same
        ck_assert_int_eq(records, i == 0);
        if (records)
            next = trace_mul(b, w);
        TJ_ASSERT_OK(trace_end(region, &next, 1));
        ck_assert(next != b && first_of(next) == was * 2);
        trace_release(b);
        b = next;
    }
    trace_release(b);
    trace_release(x);
    trace_release(w);
    close_all();
}
END_TEST

START_TEST(scalar_refuses) {
    start_replay(0);
    trace_tensor *x = vec(4, 1), *w = vec(4, 2);
    for (int i = 0; i < 5; i++)
        ck_assert(run_model(x, w, i) == (float)(2 + i));
    ck_assert_int_eq(bodies, 5);
    ck_assert_int_eq(event_count(), 1);
    ck_assert_str_eq(event_where(), "model.c:7");
    ck_assert_msg(strstr(event_text(), "scalar") && strstr(event_text(), "was 0, is 1"), "%s", event_text());
    ck_assert_uint_eq(stats().replays, 0);
    trace_release(x);
    trace_release(w);
    close_all();
}
END_TEST

START_TEST(integer_refuses) {
    start_replay(0);
    trace_tensor *x = vec(8, 0);
    for (int i = 0; i < 4; i++) {
        trace_tensor *y = NULL;
        if (trace_begin(region, TRACE_ARGS(x)))
            y = trace_neg(trace_narrow_at(x, 0, i, 2, "model.c", 31));
        TJ_ASSERT_OK(trace_end(region, &y, 1));
        ck_assert(first_of(y) == (float)-i);
        trace_release(y);
    }
    ck_assert_int_eq(event_count(), 1);
    ck_assert_str_eq(event_where(), "model.c:31");
    ck_assert_msg(strstr(event_text(), "integer argument"), "%s", event_text());
    trace_release(x);
    close_all();
}
END_TEST

START_TEST(captured_refuses) {
    start_replay(0);
    trace_tensor *x = vec(4, 1), *w[2] = {vec(4, 2), vec(4, 3)};
    for (int i = 0; i < 4; i++)
        ck_assert(run_model(x, w[i % 2], 0) == (float)(2 + i % 2));
    ck_assert_int_eq(bodies, 4);
    ck_assert_int_eq(event_count(), 1);
    ck_assert_str_eq(event_where(), "model.c:6");
    ck_assert_msg(strstr(event_text(), "captured"), "%s", event_text());
    trace_release(x), trace_release(w[0]), trace_release(w[1]);
    close_all();
}
END_TEST

static trace_tensor *later;
static void with_item(trace_tensor *x) {
    double v;
    TJ_ASSERT_OK(trace_item_f64_at(trace_sum(x, NULL, 0, false), &v, "model.c", 41));
}
static void with_later(trace_tensor *x) { later = trace_item_later_at(trace_sum(x, NULL, 0, false), "model.c", 41); }
static void with_print(trace_tensor *x) {
    TJ_ASSERT_OK(trace_print_later_at(trace_sum(x, NULL, 0, false), "sum", "model.c", 41));
}
static void with_read(trace_tensor *x) {
    float v[4];
    TJ_ASSERT_OK(trace_read_at(x, v, sizeof v, "model.c", 41));
}
static void quiet_prints(void (*effect)(trace_tensor *), trace_tensor *x, trace_tensor **y) {
    if (trace_begin(region, TRACE_ARGS(x))) {
        bodies++;
        effect(x);
        *y = trace_relu(x);
    }
    TJ_ASSERT_OK(trace_end(region, y, 1));
}
START_TEST(host_effects_refuse) {
    void (*const effects[])(trace_tensor *) = {with_item, with_later, with_print, with_read};
    const char *const names[] = {"graph break", "trace_item_later", "trace_print_later", "trace_read"};
    int saved = dup(2), null = open("/dev/null", O_WRONLY);
    ck_assert(null >= 0 && dup2(null, 2) == 2);
    for (size_t k = 0; k < TJ_COUNT(effects); k++) {
        start_replay(0);
        trace_tensor *x = vec(4, 1);
        for (int i = 0; i < 4; i++) {
            trace_tensor *y = NULL;
            quiet_prints(effects[k], x, &y);
            trace_release(later);
            later = NULL;
            trace_release(y);
        }
        ck_assert_int_eq(bodies, 4);
        ck_assert_int_eq(event_count(), 1);
        ck_assert_str_eq(event_where(), "model.c:41");
        ck_assert_msg(strstr(event_text(), names[k]) || strstr(event_text(), "trace_item_f64"), "%s", event_text());
        trace_release(x);
        close_all();
    }
    dup2(saved, 2);
    close(saved);
    close(null);
}
END_TEST

START_TEST(write_in_the_body_refuses) {
    start_replay(0);
    trace_tensor *x = vec(4, 1), *w = vec(4, 1);
    for (int i = 0; i < 4; i++) {
        trace_tensor *y = NULL;
        if (trace_begin(region, TRACE_ARGS(x))) {
            float v[4] = {(float)i};
            TJ_ASSERT_OK(trace_write(w, v, sizeof v));
            y = trace_add(x, w);
        }
        TJ_ASSERT_OK(trace_end(region, &y, 1));
        ck_assert(first_of(y) == (float)(1 + i));
        trace_release(y);
    }
    ck_assert_int_eq(event_count(), 1);
    ck_assert_msg(strstr(event_text(), "trace_write"), "%s", event_text());
    trace_release(x), trace_release(w);
    close_all();
}
END_TEST

START_TEST(other_ops_refuse) {
    start_replay(0);
    trace_tensor *x = vec(4, -1);
    for (int i = 0; i < 4; i++) {
        trace_tensor *y = NULL;
        if (trace_begin(region, TRACE_ARGS(x)))
            y = i % 2 ? trace_neg_at(x, "model.c", 51) : trace_relu(x);
        TJ_ASSERT_OK(trace_end(region, &y, 1));
        ck_assert(first_of(y) == (float)(i % 2));
        trace_release(y);
    }
    ck_assert_int_eq(event_count(), 1);
    ck_assert_str_eq(event_where(), "model.c:51");
    trace_release(x);
    close_all();
}
END_TEST

static void with_modified(trace_tensor *x) { TJ_ASSERT_OK(trace_modified(x)); }
static void with_export(trace_tensor *x) {
    struct DLManagedTensor {
        struct {
            void *data;
            int32_t device[2], ndim;
            uint32_t dtype;
            int64_t *shape, *strides;
            uint64_t byte_offset;
        } t;
        void *manager_ctx;
        void (*deleter)(struct DLManagedTensor *self);
    } *m = (void *)trace_to_dlpack(x);
    ck_assert_ptr_nonnull(m);
    m->deleter(m);
}
START_TEST(announcements_refuse) {
    void (*const effects[])(trace_tensor *) = {with_modified, with_export};
    const char *const names[] = {"trace_modified", "trace_to_dlpack"};
    for (size_t k = 0; k < TJ_COUNT(effects); k++) {
        float memory[4] = {1};
        start_replay(0);
        trace_tensor *x =
            trace_wrap_desc(ctx, TRACE_TENSOR_DESC(.dtype = TRACE_F32, .dims = (const int64_t[]){4}, .rank = 1,
                                                   .data = memory, .flags = TRACE_WRAP_STABLE));
        for (int i = 0; i < 4; i++) {
            trace_tensor *y = NULL;
            quiet_prints(effects[k], x, &y);
            trace_release(y);
        }
        ck_assert_int_eq(bodies, 4);
        ck_assert_int_eq(event_count(), 1);
        ck_assert_msg(strstr(event_text(), names[k]), "%s", event_text());
        trace_release(x);
        close_all();
    }
}
END_TEST

// ---- which tensor is an input ---------------------------------------------------------------------------------------

// A tensor that is an input and captured as well: what was recorded over it serves it alone.
START_TEST(captured_is_an_input) {
    start_replay(0);
    trace_tensor *c = vec(4, 1), *x = vec(4, 10), *z = vec(4, 100);
    trace_tensor *in[] = {c, c, c, x, x, x, z, x, z, c, z, c};
    const bool runs[] = {true, true, false, true, true, false, true, false, false, false, false, false};
    for (size_t i = 0; i < TJ_COUNT(in); i++) {
        trace_tensor *y = NULL;
        float was = first_of(in[i]);
        bool body = trace_begin(region, TRACE_ARGS(in[i]));
        if (body)
            y = trace_add(trace_mul_f(in[i], 2), c);
        ck_assert_msg(body == runs[i], "run %zu", i);
        TJ_ASSERT_OK(trace_end(region, &y, 1));
        ck_assert_msg(first_of(y) == 2 * was + 1, "run %zu: %g", i, (double)first_of(y));
        trace_release(y);
    }
    ck_assert_int_eq(event_count(), 0);
    trace_release(c), trace_release(x), trace_release(z);
    close_all();
}
END_TEST

// The same one as input each time, then others: after one of those has recorded the same it may be any.
START_TEST(input_becomes_any) {
    start_replay(0);
    trace_tensor *w = vec(4, 2), *x[4];
    for (int i = 0; i < 4; i++)
        x[i] = vec(4, (float)(i + 1));
    for (int i = 0; i < 5; i++)
        ck_assert(run_model(x[0], w, 0) == 2);
    ck_assert_int_eq(bodies, 2);
    for (int i = 1; i < 4; i++)
        ck_assert(run_model(x[i], w, 0) == (float)(2 * i + 2));
    ck_assert_int_eq(bodies, 3);
    ck_assert(run_model(w, w, 0) == 4); // w is captured: the recording has it apart
    ck_assert_int_eq(event_count(), 0);
    for (int i = 0; i < 4; i++)
        trace_release(x[i]);
    trace_release(w);
    close_all();
}
END_TEST

// A new tensor where a released one was is another one.
START_TEST(address_taken_again) {
    start_replay(0);
    trace_tensor *c = vec(4, 1);
    for (int i = 0; i < 3; i++)
        ck_assert(run_model(c, c, 0) == 1);
    ck_assert_int_eq(bodies, 2);
    trace_tensor *was = c;
    trace_release(c);
    trace_tensor *x = vec(4, 3);
    trace_tensor *y = vec(4, 7);
    ck_assert(x == was || y == was); // the library takes the handle again
    trace_tensor *at = x == was ? x : y, *other = x == was ? y : x;
    float a = first_of(at), b = first_of(other);
    bodies = 0;
    ck_assert(run_model(at, other, 0) == a * b);
    ck_assert_int_eq(bodies, 1);
    trace_release(x), trace_release(y);
    close_all();
}
END_TEST

// All ways in which two inputs, a captured tensor and the outputs may be one or different ones, in random order, with
// and without writes: every run gives what recording gives.
START_TEST(identities) {
    uint64_t seed = 77;
    for (int mode = 0; mode < 3; mode++) { // pure, outputs that are operands, writes
        start_replay(0);
        trace_tensor *t[4];
        double want[4];
        for (int i = 0; i < 4; i++)
            t[i] = vec(1, (float)(want[i] = i + 1));
        for (int i = 0; i < 400; i++) {
            size_t a = tj_test_random(&seed) % 4, b = tj_test_random(&seed) % 4, turn = (size_t)i % 40;
            if (turn < 20) // the same for a while
                a = turn % 8 / 4, b = 2;
            trace_tensor *out[3] = {NULL};
            if (trace_begin(region, TRACE_ARGS(t[a], t[b]))) {
                bodies++;
                if (mode == 2)
                    (void)trace_add_f_(t[a], 1);
                out[0] = trace_add(trace_add(trace_mul_f(t[a], 100), trace_mul_f(t[b], 10)), t[0]);
                out[1] = mode ? t[b] : trace_neg(t[b]);
                out[2] = mode ? t[0] : trace_neg(t[0]);
                if (mode == 2)
                    (void)trace_mul_f_(t[0], 0.5);
            }
            TJ_ASSERT_OK(trace_end(region, out, 3));
            if (mode == 2)
                want[a] += 1;
            double sum = 100 * want[a] + 10 * want[b] + want[0];
            if (mode == 2)
                want[0] *= 0.5;
            ck_assert_msg((double)first_of(out[0]) == (double)(float)sum || mode == 2, "mode %d run %d: %g, not %g",
                          mode, i, (double)first_of(out[0]), sum);
            ck_assert_msg(fabs((double)first_of(out[0]) - sum) < 1e-4 * sum, "mode %d run %d: %g, not %g", mode, i,
                          (double)first_of(out[0]), sum);
            if (mode) {
                ck_assert_ptr_eq(out[1], t[b]);
                ck_assert_ptr_eq(out[2], t[0]);
            } else {
                ck_assert(first_of(out[1]) == (float)-want[b] && first_of(out[2]) == (float)-want[0]);
            }
            for (int k = 0; k < 3; k++)
                trace_release(out[k]);
            for (int k = 0; mode == 2 && k < 4; k++)
                ck_assert(fabs((double)first_of(t[k]) - want[k]) < 1e-4 * (1 + want[k]));
        }
        ck_assert_msg(stats().replays > 100, "mode %d: %d replays", mode, (int)stats().replays);
        for (int i = 0; i < 4; i++)
            trace_release(t[i]);
        close_all();
    }
}
END_TEST

// More signatures than are kept: the table stays bounded, and what was dropped is recorded again.
START_TEST(bounded_recordings) {
    start_options((trace_region_options){.mode = TRACE_MODE_REPLAY, .max_graphs = 8});
    trace_tensor *w = vec(1, 2);
    for (int turn = 0; turn < 3; turn++) {
        for (int n = 1; n <= 30; n++) {
            for (int i = 0; i < 3; i++) {
                trace_tensor *x = vec(n, (float)n);
                ck_assert(run_model(x, w, 0) == (float)(2 * n));
                trace_release(x);
            }
            ck_assert_uint_le(region->recordings.n, 8);
        }
    }
    ck_assert_uint_ge(stats().replays, 80);
    trace_release(w);
    close_all();
}
END_TEST

// Each signature is a case of its own: shapes, strides, kind of memory, the same handle twice.
START_TEST(signatures) {
    start_replay(0);
    float memory[4] = {1, 2, 3, 4};
    trace_tensor *w = vec(1, 2), *x8 = vec(8, 1), *two = trace_reshape(x8, TRACE_DIMS(4, 2));
    trace_tensor *in[] = {vec(4, 1), vec(5, 1), trace_select(two, 1, 0),
                          trace_wrap(ctx, TRACE_F32, memory, TRACE_DIMS(4))};
    for (int turn = 0; turn < 4; turn++) {
        for (size_t k = 0; k < TJ_COUNT(in); k++)
            ck_assert(run_model(in[k], w, 1) == 3);
    }
    ck_assert_int_eq(bodies, 8); // two each
    ck_assert_uint_eq(stats().replays, 8);
    bodies = 0;
    trace_tensor *y;
    for (int i = 0; i < 8; i++) {
        y = NULL;
        trace_tensor *b = i % 2 ? in[0] : in[3];
        if (trace_begin(region, TRACE_ARGS(in[0], b)))
            bodies++, y = trace_sub(in[0], b);
        TJ_ASSERT_OK(trace_end(region, &y, 1));
        ck_assert(first_of(y) == 0);
        trace_release(y);
    }
    ck_assert_int_eq(bodies, 4);
    ck_assert_int_eq(event_count(), 0);
    for (size_t k = 0; k < TJ_COUNT(in); k++)
        trace_release(in[k]);
    trace_release(w), trace_release(x8), trace_release(two);
    close_all();
}
END_TEST

START_TEST(new_content_of_captured) {
    start_replay(0);
    trace_tensor *x = vec(4, 1), *w = vec(4, 2);
    for (int i = 0; i < 6; i++) {
        float v[4] = {(float)i};
        TJ_ASSERT_OK(trace_write(w, v, sizeof v));
        ck_assert(run_model(x, w, 0) == (float)i);
    }
    ck_assert_int_eq(bodies, 2);
    trace_release(w); // the recording holds it
    trace_tensor *y = NULL;
    ck_assert(!trace_begin(region, TRACE_ARGS(x)));
    TJ_ASSERT_OK(trace_end(region, &y, 1));
    ck_assert(first_of(y) == 5);
    trace_release(y);
    trace_release(x);
    close_all();
}
END_TEST

// Between begin and end of a replay: the content as it was at begin, as for a run that records.
START_TEST(content_of_begin) {
    start_replay(0);
    trace_tensor *x = vec(4, 1), *w = vec(4, 2), *y = NULL;
    for (int i = 0; i < 2; i++)
        ck_assert(run_model(x, w, 0) == 2);
    ck_assert(!trace_begin(region, TRACE_ARGS(x)));
    ck_assert(!trace_failed(ctx));
    float v[4] = {100, 100, 100, 100};
    TJ_ASSERT_OK(trace_write(x, v, sizeof v));
    TJ_ASSERT_OK(trace_write(w, v, sizeof v));
    ck_assert_ptr_null(trace_relu(x)); // a host that doesn't look at begin's answer
    TJ_ASSERT_OK(trace_end(region, &y, 1));
    ck_assert(first_of(y) == 2);
    trace_release(y);
    ck_assert(run_model(x, w, 0) == 10000);
    trace_release(x), trace_release(w);
    close_all();
}
END_TEST

START_TEST(state_in_place) {
    start_replay(0);
    trace_tensor *x = vec(4, 1), *h = vec(4, 0), *other = vec(4, 100);
    for (int i = 1; i <= 6; i++) {
        if (trace_begin(region, TRACE_ARGS(x)))
            bodies++, trace_copy_(h, trace_add(h, x));
        TJ_ASSERT_OK(trace_end(region, NULL, 0));
        ck_assert(first_of(h) == (float)i);
    }
    ck_assert_int_eq(bodies, 2);
    // the input is the written memory: another case, which isn't what was recorded
    if (trace_begin(region, TRACE_ARGS(h)))
        bodies++, trace_copy_(h, trace_add(h, h));
    TJ_ASSERT_OK(trace_end(region, NULL, 0));
    ck_assert(first_of(h) == 12);
    ck_assert_int_eq(bodies, 3);
    // declared and written
    for (int i = 0; i < 6; i++) {
        trace_tensor *state = i < 3 ? h : other;
        if (trace_begin(region, TRACE_ARGS(x, state)))
            trace_add_(state, x);
        TJ_ASSERT_OK(trace_end(region, NULL, 0));
    }
    ck_assert(first_of(h) == 15 && first_of(other) == 103);
    trace_release(x), trace_release(h), trace_release(other);
    close_all();
}
END_TEST

START_TEST(overlapping_inputs) {
    start_replay(0);
    float memory[9] = {0};
    trace_tensor *a = trace_wrap(ctx, TRACE_F32, memory, TRACE_DIMS(4));
    trace_tensor *b = trace_wrap(ctx, TRACE_F32, memory + 4, TRACE_DIMS(4));
    trace_tensor *c = trace_wrap(ctx, TRACE_F32, memory + 1, TRACE_DIMS(4)); // overlaps a
    for (int i = 0; i < 4; i++) {
        if (trace_begin(region, TRACE_ARGS(a, b)))
            bodies++, trace_copy_(b, trace_add_f(a, 1));
        TJ_ASSERT_OK(trace_end(region, NULL, 0));
    }
    ck_assert_int_eq(bodies, 2);
    for (int i = 0; i < 4; i++) {
        for (int k = 0; k < 5; k++)
            memory[k] = (float)k;
        if (trace_begin(region, TRACE_ARGS(a, c)))
            bodies++, trace_copy_(c, trace_add_f(a, 1));
        TJ_ASSERT_OK(trace_end(region, NULL, 0));
        for (int k = 0; k < 4; k++)
            ck_assert(memory[k + 1] == (float)(k + 1));
    }
    ck_assert_int_eq(bodies, 6);
    trace_release(a), trace_release(b), trace_release(c);
    close_all();
}
END_TEST

START_TEST(kinds_of_outputs) {
    start_replay(0);
    trace_tensor *w = vec(4, 5);
    for (int i = 0; i < 5; i++) {
        trace_tensor *x = vec(4, (float)i), *out[5] = {NULL};
        if (trace_begin(region, TRACE_ARGS(x))) {
            bodies++;
            out[0] = out[1] = trace_add(x, w);
            out[2] = x;
            out[3] = w;
            out[4] = trace_narrow(x, 0, 1, 2);
        }
        TJ_ASSERT_OK(trace_end(region, out, 5));
        ck_assert_ptr_eq(out[0], out[1]);
        ck_assert(first_of(out[0]) == (float)(5 + i));
        ck_assert_ptr_eq(out[2], x);
        ck_assert_ptr_eq(out[3], w);
        ck_assert_ptr_eq(out[4]->st, x->st);
        ck_assert(first_of(out[4]) == (float)(i + 1) && trace_numel(out[4]) == 2);
        for (int k = 0; k < 5; k++)
            trace_release(out[k]);
        trace_release(x);
    }
    ck_assert_int_eq(bodies, 2);
    trace_release(w);
    close_all();
}
END_TEST

START_TEST(stale) {
    start_replay(3);
    trace_tensor *x = vec(4, 1);
    bool branch = false;
    float got[12];
    for (int i = 0; i < 12; i++) {
        if (i == 6)
            branch = true; // what the library can't see
        trace_tensor *y = NULL;
        if (trace_begin(region, TRACE_ARGS(x))) {
            bodies++;
            y = trace_add_f(x, 1);
            if (branch)
                y = trace_mul_f_at(y, 10, "model.c", 77);
        }
        TJ_ASSERT_OK(trace_end(region, &y, 1));
        got[i] = first_of(y);
        trace_release(y);
    }
    // recorded: 0 1, replayed 2 3, checked 4, replayed 5 6 (stale), checked 7: from there on recorded
    ck_assert(got[5] == 2 && got[6] == 2 && got[7] == 20 && got[8] == 20 && got[11] == 20);
    ck_assert_int_eq(bodies, 2 + 1 + 5);
    ck_assert_int_eq(event_count(), 1);
    ck_assert_str_eq(event_where(), "model.c:77");
    ck_assert_msg(strstr(event_text(), "stale"), "%s", event_text());
    trace_release(x);
    close_all();
}
END_TEST

START_TEST(misuse) {
    start_replay(0);
    trace_tensor *x = vec(4, 1), *w = vec(4, 2), *out[2] = {NULL, NULL};
    for (int i = 0; i < 3; i++)
        ck_assert(run_model(x, w, 0) == 2);
    // abandoned
    ck_assert(!trace_begin(region, TRACE_ARGS(x)));
    trace_abandon(region);
    ck_assert_uint_eq((uint32_t)atomic_load(&x->st->readers), 0);
    ck_assert(run_model(x, w, 0) == 2);
    ck_assert_int_eq(bodies, 2);
    // not among the inputs it takes
    ck_assert(!trace_begin(region, (trace_tensor *[]){NULL}, 1));
    TJ_ASSERT_STATUS(trace_end(region, NULL, 0), TRACE_ERR_ARGUMENT);
    // bound
    trace_bound *b;
    ck_assert(!trace_begin(region, TRACE_ARGS(x)));
    TJ_ASSERT_STATUS(trace_end_bind(region, NULL, &b), TRACE_ERR_STATE);
    ck_assert(error_has("replay"));
    // compiled only
    trace_tensor *hole = trace_placeholder(ctx, TRACE_F32, TRACE_DIMS(4));
    for (int i = 0; i < 4; i++) {
        ck_assert(trace_begin(region, TRACE_ARGS(hole)));
        out[0] = trace_relu(hole);
        TJ_ASSERT_OK(trace_end(region, out, 1));
        trace_release(out[0]);
    }
    trace_release(hole);
    // other outputs than recorded: an error, and from then on the region records
    ck_assert(!trace_begin(region, TRACE_ARGS(x)));
    out[0] = out[1] = NULL;
    TJ_ASSERT_STATUS(trace_end(region, out, 2), TRACE_ERR_ARGUMENT);
    ck_assert(run_model(x, w, 0) == 2);
    ck_assert_int_eq(bodies, 3);
    ck_assert_uint_eq((uint32_t)atomic_load(&w->st->readers), 0);
    trace_release(x), trace_release(w);
    close_all();
}
END_TEST

START_TEST(nested_regions) {
    start_replay(0);
    trace_region *inner;
    TJ_ASSERT_OK(trace_region_create(ctx, "inner", TRACE_REGION_OPTIONS(.mode = TRACE_MODE_REPLAY), &inner));
    trace_tensor *x = vec(4, 1);
    for (int i = 0; i < 5; i++) {
        trace_tensor *y = NULL;
        if (trace_begin(region, TRACE_ARGS(x))) {
            bodies++;
            trace_tensor *h = trace_add_f(x, 1);
            if (trace_begin(inner, TRACE_ARGS(h)))
                y = trace_mul_f(h, 3);
            TJ_ASSERT_OK(trace_end(inner, &y, 1));
        }
        TJ_ASSERT_OK(trace_end(region, &y, 1));
        ck_assert(first_of(y) == 6);
        trace_release(y);
    }
    ck_assert_int_eq(bodies, 2);
    trace_release(x);
    trace_region_release(inner);
    close_all();
}
END_TEST

START_TEST(evicted_plans) {
    start_options((trace_region_options){.mode = TRACE_MODE_REPLAY, .max_graphs = 1});
    trace_tensor *a = vec(4, 1), *c = vec(5, 1), *w = vec(1, 2);
    for (int i = 0; i < 12; i++)
        ck_assert(run_model(i / 4 % 2 ? c : a, w, 0) == 2);
    trace_release(a), trace_release(c), trace_release(w);
    close_all();
}
END_TEST

static void *replay_thread(void *arg) {
    trace_tensor *w = arg;
    for (int i = 0; i < 300; i++) {
        trace_tensor *x = vec(4, (float)i), *y = NULL;
        if (trace_begin(region, TRACE_ARGS(x)))
            y = trace_mul(x, w);
        TJ_ASSERT_OK(trace_end(region, &y, 1));
        ck_assert(first_of(y) == (float)i * 2);
        trace_release(y);
        trace_release(x);
    }
    return NULL;
}
START_TEST(threads) {
    start_replay(50);
    pthread_t t[4];
    trace_tensor *w = vec(4, 2);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&t[i], NULL, replay_thread, w), 0);
    float v[4] = {2, 2, 2, 2};
    for (int i = 0; i < 200; i++)
        TJ_ASSERT_OK(trace_write(w, v, sizeof v));
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    trace_stats s = stats();
    ck_assert_uint_eq(s.runs, 1200);
    ck_assert_uint_eq(s.runs, s.records + s.replays);
    ck_assert_uint_gt(s.replays, 1000);
    trace_release(w);
    close_all();
}
END_TEST

START_TEST(steady_replay_allocates_nothing) {
    start_replay(0);
    run_nothing = true;
    trace_tensor *x = vec(4, 1), *w = vec(4, 2);
    for (int i = 0; i < 5; i++)
        (void)run_model(x, w, 0);
    tj_test_fail_at(SIZE_MAX);
    for (int i = 0; i < 50; i++)
        (void)run_model(x, w, 0);
    (void)tj_test_failed();
    ck_assert_uint_eq(tj_test_allocs, 0);
    ck_assert_int_eq(bodies, 2);
    trace_release(x), trace_release(w);
    close_all();
}
END_TEST

// Any allocation may fail: a status or a run that records, and the next runs are right.
START_TEST(out_of_memory) {
    for (size_t k = 0;; k++) {
        start_replay(0);
        trace_tensor *x = vec(4, 1), *w = vec(4, 2);
        tj_test_fail_at(k);
        for (int i = 0; i < 4; i++) {
            trace_tensor *y = NULL;
            if (trace_begin(region, TRACE_ARGS(x)))
                y = trace_relu(trace_add_f(trace_mul(x, w), 0.5));
            tj_status s = trace_end(region, &y, 1);
            ck_assert(s == TRACE_OK || s == TRACE_ERR_MEMORY);
            ck_assert(!s == !!y);
            trace_release(y);
        }
        bool failed = tj_test_failed();
        for (int i = 0; i < 4; i++)
            ck_assert(run_model(x, w, 0.5) == 2.5f);
        trace_release(x), trace_release(w);
        close_all();
        if (!failed)
            break;
    }
}
END_TEST

TJ_TEST_MAIN("replay", skips_the_body, results_are_the_callers, scalar_refuses, integer_refuses, captured_refuses,
             host_effects_refuse, write_in_the_body_refuses, announcements_refuse, captured_is_an_input,
             input_becomes_any, address_taken_again, identities, bounded_recordings, other_ops_refuse, signatures,
             new_content_of_captured, content_of_begin, state_in_place, overlapping_inputs, kinds_of_outputs, stale,
             misuse, nested_regions, evicted_plans, threads, steady_replay_allocates_nothing, out_of_memory)
