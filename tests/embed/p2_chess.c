/* tests/embed/p2_chess.c: a chess engine: search threads, varying batches, one set of weights, one region. */
#include "embed.h"
enum { BATCH = 16, PLANES = 8, BLOCKS = 2, CH = 16, MOVES = 64, THREADS = 6, TURNS = 12 };
typedef struct {
    trace_tensor *w1, *b1, *w2, *b2;
} block;
typedef struct {
    trace_context *ctx;
    trace_region *eval;
    trace_tensor *win, *bin, *wp, *bp, *wv, *bv;
    block b[BLOCKS];
} net;
static const int64_t ONE[2] = {1, 1};
static const int SIZES[] = {1, 3, 8, BATCH};

static bool net_load(net *n) {
    uint64_t seed = 5;
    n->win = embed_weight(n->ctx, &seed, TRACE_DIMS(CH, PLANES, 3, 3), 0.1f);
    n->bin = embed_weight(n->ctx, &seed, TRACE_DIMS(CH), 0.1f);
    bool ok = n->win && n->bin;
    for (int i = 0; i < BLOCKS; i++) {
        block *b = &n->b[i];
        b->w1 = embed_weight(n->ctx, &seed, TRACE_DIMS(CH, CH, 3, 3), 0.1f);
        b->b1 = embed_weight(n->ctx, &seed, TRACE_DIMS(CH), 0.1f);
        b->w2 = embed_weight(n->ctx, &seed, TRACE_DIMS(CH, CH, 3, 3), 0.1f);
        b->b2 = embed_weight(n->ctx, &seed, TRACE_DIMS(CH), 0.1f);
        ok = ok && b->w1 && b->b1 && b->w2 && b->b2;
    }
    n->wp = embed_weight(n->ctx, &seed, TRACE_DIMS(MOVES, CH * 64), 0.05f);
    n->bp = embed_weight(n->ctx, &seed, TRACE_DIMS(MOVES), 0.1f);
    n->wv = embed_weight(n->ctx, &seed, TRACE_DIMS(1, CH * 64), 0.05f);
    n->bv = embed_weight(n->ctx, &seed, TRACE_DIMS(1), 0.1f);
    return ok && n->wp && n->bp && n->wv && n->bv;
}
static void net_free(net *n) {
    trace_release(n->win), trace_release(n->bin), trace_release(n->wp), trace_release(n->bp);
    trace_release(n->wv), trace_release(n->bv);
    for (int i = 0; i < BLOCKS; i++) {
        block *b = &n->b[i];
        trace_release(b->w1), trace_release(b->b1), trace_release(b->w2), trace_release(b->b2);
    }
    trace_region_release(n->eval);
    trace_context_release(n->ctx);
}

static trace_tensor *conv(trace_tensor *x, trace_tensor *w, trace_tensor *b) {
    return trace_conv2d(x, w, b, NULL, ONE, NULL, 1);
}
static void forward(const net *n, trace_tensor *x, trace_tensor *out[2]) {
    trace_tensor *h = trace_relu(conv(x, n->win, n->bin));
    for (int i = 0; i < BLOCKS; i++) {
        const block *b = &n->b[i];
        h = trace_relu(trace_add(h, conv(trace_relu(conv(h, b->w1, b->b1)), b->w2, b->b2)));
    }
    trace_tensor *flat = trace_reshape(h, TRACE_DIMS(-1, CH * 64));
    out[0] = trace_softmax(trace_linear(flat, n->wp, n->bp), -1);
    out[1] = trace_tanh(trace_linear(flat, n->wv, n->bv));
}

/* What the search of a thread asks for next: the size of its batch, or 0 at the end. */
static int gather(int thread, int turn, float *planes) {
    if (turn == TURNS)
        return 0;
    int b = SIZES[(thread + turn) % 4];
    uint64_t seed = (uint64_t)(thread * 100 + turn);
    for (int i = 0; i < b * PLANES * 64; i++)
        planes[i] = embed_random(&seed) > 0.5f;
    return b;
}
static float policies[THREADS][TURNS][BATCH * MOVES], values[THREADS][TURNS][BATCH];

static enum trace_status eval(const net *n, const float *planes, int b, float *policy, float *value) {
    trace_tensor *out[2] = {0};
    const void *p = NULL, *v = NULL;
    trace_tensor *x = trace_wrap_const(n->ctx, TRACE_F32, planes, TRACE_DIMS(b, PLANES, 8, 8));
    if (trace_begin(n->eval, &x, 1))
        forward(n, x, out);
    enum trace_status st = trace_end(n->eval, out, 2);
    if (!st)
        st = trace_data(out[0], &p);
    if (!st)
        st = trace_data(out[1], &v);
    if (!st) { /* pointers live as long as out[] is held */
        memcpy(policy, p, sizeof(float) * (size_t)(b * MOVES));
        memcpy(value, v, sizeof(float) * (size_t)b);
    }
    trace_release(out[0]);
    trace_release(out[1]);
    trace_release(x);
    return st;
}

typedef struct {
    const net *n;
    int id;
    enum trace_status status;
    char why[256];
} job;
static void *search(void *arg) {
    job *j = arg;
    float *planes = malloc(sizeof(float) * BATCH * PLANES * 64);
    for (int turn = 0, b; planes && !j->status && (b = gather(j->id, turn, planes)) > 0; turn++) {
        j->status = eval(j->n, planes, b, policies[j->id][turn], values[j->id][turn]);
        if (j->status)
            snprintf(j->why, sizeof j->why, "%s", trace_last_error(j->n->ctx)); /* error text is per thread */
    }
    free(planes);
    return NULL;
}

int main(void) {
    net n = {0}, ref = {0};
    job jobs[THREADS];
    pthread_t th[THREADS];
    static float planes[BATCH * PLANES * 64], policy[BATCH * MOVES], value[BATCH];
    if (trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 1), &n.ctx) || !net_load(&n) ||
        trace_region_create(n.ctx, "eval", TRACE_REGION_OPTIONS(.fullgraph = true), &n.eval) ||
        trace_region_dynamic(n.eval, 0, 0, 1, BATCH))
        return fprintf(stderr, "%s\n", trace_last_error(n.ctx)), 1;
    for (int i = 0; i < THREADS; i++) {
        jobs[i] = (job){.n = &n, .id = i};
        CHECK(!pthread_create(&th[i], NULL, search, &jobs[i]), "no thread");
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(th[i], NULL);
        CHECK(!jobs[i].status, "thread %d: %s", i, jobs[i].why);
    }
    trace_stats s = embed_stats(n.eval);
    printf("%llu runs, %llu graphs, %llu recompiles\n", (unsigned long long)s.runs, (unsigned long long)s.graphs,
           (unsigned long long)s.recompiles);
    CHECK(s.runs == THREADS * TURNS, "runs");
    CHECK(s.graphs == 1, "one graph, whatever the batch and however many threads ask: %llu",
          (unsigned long long)s.graphs);
    /* a batch outside the bounds is refused, and the next one is fine */
    CHECK(eval(&n, planes, 0, policy, value) == TRACE_ERR_SHAPE, "batch 0");
    CHECK(!eval(&n, planes, 1, policy, value), "batch 1");

    CHECK(!embed_reference(&ref.ctx) && net_load(&ref) && !trace_region_create(ref.ctx, "eval", NULL, &ref.eval),
          "reference");
    for (int i = 0; i < THREADS && ref.eval; i++) {
        for (int turn = 0; turn < TURNS; turn += 3) {
            int b = gather(i, turn, planes);
            CHECK(!eval(&ref, planes, b, policy, value), "reference");
            CHECK(embed_near(policies[i][turn], policy, (size_t)(b * MOVES), 1e-4f), "thread %d turn %d", i, turn);
            CHECK(embed_near(values[i][turn], value, (size_t)b, 1e-4f), "thread %d turn %d", i, turn);
        }
    }
    net_free(&n);
    net_free(&ref);
    return EMBED_RESULT();
}
