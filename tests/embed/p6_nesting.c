/* tests/embed/p6_nesting.c: a library that has its own region, called alone and inside the caller's region. */
#include "embed.h"
enum { B = 4, IN = 24, MID = 32, OUT = 10 };
typedef struct {
    trace_context *ctx;
    trace_region *encoder, *head, *outer;
    trace_tensor *we, *be, *wh, *bh;
} net;

/* vendor library: knows nothing of its caller. Result owned by the caller, or by the caller's region. */
static enum trace_status encoder(const net *n, trace_tensor *x, trace_tensor **y) {
    *y = NULL;
    if (trace_begin(n->encoder, &x, 1))
        *y = trace_relu(trace_linear(x, n->we, n->be));
    return trace_end(n->encoder, y, 1);
}
/* variant that tries a fast path and falls back: a failed inner end rolls back to its begin, the outer goes on */
static enum trace_status head(const net *n, trace_tensor *x, trace_tensor **y) {
    *y = NULL;
    if (trace_begin(n->head, &x, 1))
        *y = trace_linear(x, n->wh, n->bh);
    if (trace_end(n->head, y, 1) == TRACE_OK)
        return TRACE_OK;
    if (trace_begin(n->head, &x, 1))
        *y = trace_linear(trace_contiguous(x), n->wh, TRACE_NONE);
    return trace_end(n->head, y, 1);
}
static enum trace_status alone(const net *n, trace_tensor *x, float *result) {
    trace_tensor *e = NULL, *y = NULL;
    /* two regions, two plans, e is a real tensor and must be released */
    enum trace_status st = encoder(n, x, &e);
    if (!st)
        st = head(n, e, &y);
    if (!st)
        st = trace_read(y, result, B * OUT * sizeof *result);
    trace_release(e);
    trace_release(y);
    return st;
}
static enum trace_status nested(const net *n, trace_tensor *x, float *result) {
    /* one trace, one plan; the same release of e is harmless here */
    trace_tensor *e = NULL, *y = NULL;
    if (trace_begin(n->outer, &x, 1)) {
        (void)!encoder(n, x, &e);
        (void)!head(n, e, &y); /* e NULL after a failure: y NULL, outer end reports the encoder's message */
        trace_release(e);
        y = trace_softmax(y, -1);
    }
    enum trace_status st = trace_end(n->outer, &y, 1);
    if (!st)
        st = trace_read(y, result, B * OUT * sizeof *result);
    trace_release(y);
    return st;
}
static bool load(net *n) {
    uint64_t seed = 17;
    n->we = embed_weight(n->ctx, &seed, TRACE_DIMS(MID, IN), 0.2f);
    n->be = embed_weight(n->ctx, &seed, TRACE_DIMS(MID), 0.2f);
    n->wh = embed_weight(n->ctx, &seed, TRACE_DIMS(OUT, MID), 0.2f);
    n->bh = embed_weight(n->ctx, &seed, TRACE_DIMS(OUT), 0.2f);
    return n->we && n->be && n->wh && n->bh && !trace_region_create(n->ctx, "encoder", NULL, &n->encoder) &&
           !trace_region_create(n->ctx, "head", NULL, &n->head) &&
           !trace_region_create(n->ctx, "outer", TRACE_REGION_OPTIONS(.fullgraph = true), &n->outer);
}
static void unload(net *n) {
    trace_release(n->we), trace_release(n->be), trace_release(n->wh), trace_release(n->bh);
    trace_region_release(n->encoder);
    trace_region_release(n->head);
    trace_region_release(n->outer);
    trace_context_release(n->ctx);
}

int main(void) {
    net n[2] = {0};
    static float in[B * IN], got[B * OUT], want[B * OUT], flat[B * OUT];
    if (trace_context_create(NULL, &n[0].ctx) || !load(&n[0]) || embed_reference(&n[1].ctx) || !load(&n[1]))
        return fprintf(stderr, "%s\n", trace_last_error(NULL)), 1;
    uint64_t seed = 1;
    for (int i = 0; i < B * IN; i++)
        in[i] = embed_random(&seed);
    trace_tensor *x[2];
    for (int c = 0; c < 2; c++)
        x[c] = trace_from(n[c].ctx, TRACE_F32, in, TRACE_DIMS(B, IN));
    for (int turn = 0; turn < 3; turn++) {
        CHECK(!alone(&n[0], x[0], flat) && !alone(&n[1], x[1], want), "alone");
        CHECK(embed_near(flat, want, B * OUT, 1e-5f), "alone");
        CHECK(!nested(&n[0], x[0], got) && !nested(&n[1], x[1], want), "nested");
        CHECK(embed_near(got, want, B * OUT, 1e-5f), "nested");
    }
    for (int b = 0; b < B; b++) { /* nested is the softmax of alone */
        double sum = 0;
        for (int i = 0; i < OUT; i++)
            sum += exp((double)flat[b * OUT + i]);
        for (int i = 0; i < OUT; i++)
            CHECK(fabs(exp((double)flat[b * OUT + i]) / sum - (double)got[b * OUT + i]) < 1e-5, "row %d", b);
    }
    trace_stats s = embed_stats(n[0].outer);
    CHECK(s.graphs == 1 && s.nested == 6 && s.breaks == 0, "one plan, two inlined scopes a run");
    CHECK(embed_stats(n[0].encoder).graphs == 1 && embed_stats(n[0].head).graphs == 1, "two plans alone");

    /* the fast path fails: a bias of the wrong size; the fallback has none */
    trace_tensor *right = n[0].bh, *bias1 = n[1].bh;
    n[0].bh = trace_from(n[0].ctx, TRACE_F32, in, TRACE_DIMS(OUT + 1));
    n[1].bh = trace_from(n[1].ctx, TRACE_F32, in, TRACE_DIMS(OUT + 1));
    CHECK(!nested(&n[0], x[0], got) && !nested(&n[1], x[1], want), "rolled back");
    CHECK(embed_near(got, want, B * OUT, 1e-5f), "rolled back");
    CHECK(embed_stats(n[0].outer).graphs == 2, "another graph");
    trace_release(n[0].bh);
    trace_release(n[1].bh);
    n[0].bh = right;
    n[1].bh = bias1;

    /* the encoder fails: the outer end tells its message; the next run is fine */
    trace_tensor *we = n[0].we;
    n[0].we = x[0];
    CHECK(nested(&n[0], x[0], got) == TRACE_ERR_SHAPE, "encoder fails");
    CHECK(strstr(trace_last_error(NULL), "linear") != NULL, "the encoder's message");
    n[0].we = we;
    CHECK(!nested(&n[0], x[0], got), "after a failure");
    for (int c = 0; c < 2; c++) {
        trace_release(x[c]);
        unload(&n[c]);
    }
    return EMBED_RESULT();
}
