// tests/test_dlpack.c: tensors handed to and taken from other frameworks through DLPack.
#include "../include/tracejit.h"
#include "tj_test.h"

// As a consumer or producer declares it, independently of the library.
typedef struct {
    void *data;
    int32_t device_type, device_id, ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} dl_tensor;
struct DLManagedTensor {
    dl_tensor t;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensor *);
};

static int deleted;
static void count_delete(struct DLManagedTensor *m) {
    (void)m;
    deleted++;
}

START_TEST(import) {
    trace_context *ctx;
    TJ_ASSERT_OK(trace_context_create(NULL, &ctx));
    float data[12], out[6];
    for (int i = 0; i < 12; i++)
        data[i] = (float)i;
    int64_t shape[2] = {2, 3}, strides[2] = {6, 2};
    struct DLManagedTensor m = {{data, 1, 0, 2, 2, 32, 1, shape, strides, 4}, NULL, count_delete};
    trace_tensor *x = trace_from_dlpack(ctx, &m, 0);
    ck_assert_msg(x != NULL, "%s", trace_last_error(ctx));
    TJ_ASSERT_OK(trace_read(x, out, sizeof out));
    for (int i = 0; i < 6; i++)
        ck_assert_float_eq(out[i], (float)(1 + i / 3 * 6 + i % 3 * 2));
    ck_assert(trace_add_f_(x, 1) == x);
    ck_assert_float_eq(data[1], 2);
    trace_release(x);
    ck_assert_int_eq(deleted, 1);
    // Refused ones stay the caller's.
    m.t.device_type = 2;
    ck_assert(!trace_from_dlpack(ctx, &m, 0) && strstr(trace_last_error(ctx), "CPU"));
    m.t.device_type = 1;
    m.t.bits = 16, m.t.code = 5;
    ck_assert(!trace_from_dlpack(ctx, &m, 0) && strstr(trace_last_error(ctx), "dtype"));
    m.t.bits = 32, m.t.code = 2, m.t.ndim = 9;
    ck_assert(!trace_from_dlpack(ctx, &m, 0) && strstr(trace_last_error(ctx), "rank"));
    m.t.ndim = 2, shape[0] = -1;
    ck_assert(!trace_from_dlpack(ctx, &m, 0));
    ck_assert(!trace_from_dlpack(ctx, NULL, 0));
    shape[0] = 0, m.t.data = NULL; // empty, without memory
    x = trace_from_dlpack(ctx, &m, 0);
    ck_assert(x && trace_numel(x) == 0);
    trace_release(x);
    ck_assert_int_eq(deleted, 2);
    // A read-only import can't be written.
    shape[0] = 2, m.t.data = data;
    x = trace_from_dlpack(ctx, &m, TRACE_WRAP_READONLY);
    ck_assert(x && !trace_add_f_(x, 1));
    trace_release(x);
    ck_assert_int_eq(deleted, 3);
    trace_context_release(ctx);
}
END_TEST

START_TEST(export) {
    trace_context *ctx;
    trace_region *r;
    TJ_ASSERT_OK(trace_context_create(NULL, &ctx));
    TJ_ASSERT_OK(trace_region_create(ctx, "export", NULL, &r));
    float w[16 * 16], x[16], out[16];
    for (int i = 0; i < 256; i++)
        w[i] = (float)(i / 16 == i % 16);
    for (int i = 0; i < 16; i++)
        x[i] = (float)i;
    trace_tensor *tw = trace_from(ctx, TRACE_F32, w, TRACE_DIMS(16, 16)),
                 *tx = trace_from(ctx, TRACE_F32, x, TRACE_DIMS(1, 16));
    for (int turn = 0; turn < 4;
         turn++) { // 0: packed weight; 1, 2: exported and written by the consumer; 3: given back
        static struct DLManagedTensor *m;
        if (turn == 1) {
            m = trace_to_dlpack(tw);
            ck_assert_msg(m != NULL, "%s", trace_last_error(ctx));
            ck_assert(m->t.ndim == 2 && m->t.code == 2 && m->t.bits == 32 && m->t.device_type == 1 &&
                      m->t.strides[0] == 16);
        }
        if (turn == 1 || turn == 2) {
            float *p = (float *)(void *)((char *)m->t.data + m->t.byte_offset);
            for (int i = 0; i < 16; i++)
                p[i * 17] *= 2;
        }
        if (turn == 3)
            m->deleter(m);
        trace_tensor *y = NULL;
        if (trace_begin(r, TRACE_ARGS(tx)))
            y = trace_linear(tx, tw, TRACE_NONE);
        TJ_ASSERT_OK(trace_end(r, &y, 1));
        TJ_ASSERT_OK(trace_read(y, out, sizeof out));
        for (int i = 0; i < 16; i++)
            ck_assert_float_eq(out[i], (float)i * (turn == 0 ? 1 : turn == 1 ? 2 : 4));
        trace_release(y);
    }
    // The consumer keeps the memory alive, and trace_write writes where it looks.
    struct DLManagedTensor *m = trace_to_dlpack(tx);
    ck_assert(m != NULL);
    x[3] = 77;
    TJ_ASSERT_OK(trace_write(tx, x, sizeof x));
    trace_release(tx);
    ck_assert_float_eq(((float *)m->t.data)[3], 77);
    m->deleter(m);
    tx = trace_wrap_const(ctx, TRACE_F32, x, TRACE_DIMS(16));
    ck_assert(!trace_to_dlpack(tx) && strstr(trace_last_error(ctx), "read-only"));
    trace_release(tx);
    ck_assert(!trace_to_dlpack(NULL) && !trace_to_dlpack(TRACE_NONE));
    trace_release(tw);
    trace_region_release(r);
    trace_context_release(ctx);
}
END_TEST

// A weight whose content the consumer of an export changes, now and since: recorded, replayed, with symbolic extents
// and in a counted loop. None of it compiles anything.
START_TEST(exported_weights) {
    enum { N = 48 };
    for (int kind = 0; kind < 4; kind++) {
        trace_context *ctx;
        trace_region *r;
        trace_stats s = {.size = sizeof s};
        TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 1), &ctx));
        TJ_ASSERT_OK(trace_region_create(ctx, "export",
                                         TRACE_REGION_OPTIONS(.mode = kind % 2 ? TRACE_MODE_REPLAY : TRACE_MODE_RECORD,
                                                              .dynamic = kind ? TRACE_DYNAMIC_ON : TRACE_DYNAMIC_OFF),
                                         &r));
        static float v[N * N], out[N * N];
        for (int i = 0; i < N * N; i++)
            v[i] = 1;
        trace_tensor *x = trace_from(ctx, TRACE_F32, v, TRACE_DIMS(N, N)),
                     *w = trace_from(ctx, TRACE_F32, v, TRACE_DIMS(N, N));
        struct DLManagedTensor *m = NULL;
        float is = 1;
        uint64_t graphs = 0;
        for (int run = 0; run < 12; run++) {
            if (run == 4 || run == 8)
                m = trace_to_dlpack(w);
            for (int i = 0; m && i < N * N; i++) // written with each run, without a word
                ((float *)m->t.data)[i] = is + 1;
            is += m ? 1 : 0;
            if (run == 6 || run == 9) {
                m->deleter(m);
                m = NULL;
            }
            trace_tensor *y = NULL;
            if (trace_begin(r, TRACE_ARGS(x))) {
                if (kind < 3) {
                    y = trace_matmul(x, w);
                } else {
                    y = trace_zeros(ctx, TRACE_DIMS(N, N), TRACE_F32);
                    TJ_ASSERT_OK(trace_repeat(2, &y, 1));
                    y = trace_add(trace_mul_f(y, 0), trace_matmul(x, w));
                    TJ_ASSERT_OK(trace_repeat_end(&y, 1));
                }
            }
            TJ_ASSERT_OK(trace_end(r, &y, 1));
            TJ_ASSERT_OK(trace_read(y, out, sizeof out));
            for (int i = 0; i < N * N; i++)
                ck_assert_msg(out[i] == N * is, "kind %d run %d: %g, not %g", kind, run, (double)out[i],
                              (double)(N * is));
            trace_release(y);
            trace_region_stats(r, &s);
            graphs = run ? graphs : s.graphs;
            ck_assert_uint_eq(s.graphs, graphs);
        }
        ck_assert_uint_eq(s.replays, kind % 2 ? 10 : 0);
        trace_release(x), trace_release(w);
        trace_region_release(r);
        trace_context_release(ctx);
    }
}
END_TEST

// What a bound plan has packed can't be handed to one who may write it.
START_TEST(bound_weights) {
    if (!tj_test_compiler())
        return;
    enum { N = 32 };
    trace_context *ctx;
    trace_region *r;
    static float v[N * N], out[N * N];
    for (int i = 0; i < N * N; i++)
        v[i] = 1;
    TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 1), &ctx));
    TJ_ASSERT_OK(trace_region_create(ctx, "bound", NULL, &r));
    trace_tensor *x = trace_from(ctx, TRACE_F32, v, TRACE_DIMS(N, N)),
                 *w = trace_from(ctx, TRACE_F32, v, TRACE_DIMS(N, N)),
                 *y = trace_wrap(ctx, TRACE_F32, out, TRACE_DIMS(N, N));
    for (int before = 0; before < 2; before++) { // the bind, or the export
        struct DLManagedTensor *m = before ? trace_to_dlpack(w) : NULL;
        trace_bound *b = NULL;
        ck_assert(trace_begin(r, TRACE_ARGS(x)));
        (void)trace_copy_(y, trace_matmul(x, w));
        TJ_ASSERT_OK(trace_end_bind(r, NULL, &b));
        if (!before) {
            ck_assert_ptr_null(trace_to_dlpack(w));
            ck_assert_msg(strstr(trace_last_error(ctx), "release the bound plan"), "%s", trace_last_error(ctx));
            struct DLManagedTensor *other = trace_to_dlpack(x);
            ck_assert_ptr_nonnull(other);
            other->deleter(other);
        }
        for (int i = 0; m && i < N * N; i++)
            ((float *)m->t.data)[i] = 3;
        TJ_ASSERT_OK(trace_bound_run(b));
        ck_assert(out[0] == (before ? 3 * N : N) && out[N * N - 1] == out[0]);
        trace_bound_release(b);
        if (m)
            m->deleter(m);
    }
    trace_release(x), trace_release(w), trace_release(y);
    trace_region_release(r);
    trace_context_release(ctx);
}
END_TEST

TJ_TEST_MAIN("dlpack", import, export, exported_weights, bound_weights)
