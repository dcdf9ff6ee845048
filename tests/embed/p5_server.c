/* tests/embed/p5_server.c: an embedding server: warm-up, metrics, events, no GPU is no crash, own threads, shutdown. */
#include "embed.h"
enum { VOCAB = 300, WIDTH = 32, INNER = 64, MAX_BATCH = 8, MAX_LEN = 64, WORKERS = 4 };
typedef struct {
    trace_tensor *embed, *w1, *b1, *w2, *b2;
} model;
typedef struct {
    trace_context *ctx;
    trace_region *embed;
    model m;
} server;
typedef struct {
    int batch, len;
    int64_t ids[MAX_BATCH * 2 * MAX_LEN], mask[MAX_BATCH * 2 * MAX_LEN];
    float out[MAX_BATCH * 2 * WIDTH];
    enum trace_status status;
    char error[256];
} request;

static bool model_load(trace_context *ctx, model *m) {
    uint64_t seed = 23;
    m->embed = embed_weight(ctx, &seed, TRACE_DIMS(VOCAB, WIDTH), 1);
    m->w1 = embed_weight(ctx, &seed, TRACE_DIMS(INNER, WIDTH), 0.2f);
    m->b1 = embed_weight(ctx, &seed, TRACE_DIMS(INNER), 0.2f);
    m->w2 = embed_weight(ctx, &seed, TRACE_DIMS(WIDTH, INNER), 0.2f);
    m->b2 = embed_weight(ctx, &seed, TRACE_DIMS(WIDTH), 0.2f);
    return m->embed && m->w1 && m->b1 && m->w2 && m->b2;
}
static void server_free(server *s) {
    model *m = &s->m;
    trace_release(m->embed), trace_release(m->w1), trace_release(m->b1), trace_release(m->w2), trace_release(m->b2);
    trace_region_release(s->embed);
    trace_context_release(s->ctx);
}

/* any thread, no library lock held, must not call trace_begin or destroy anything; strings live until it returns */
static atomic_int recompiles, compiled;
static void on_event(void *user, const trace_event *e) {
    (void)user;
    if (e->kind == TRACE_EVENT_COMPILE)
        atomic_fetch_add(&compiled, 1);
    if (e->kind == TRACE_EVENT_RECOMPILE) {
        atomic_fetch_add(&recompiles, 1);
        fprintf(stderr, "compiling new graph: %s: input %d dim %d: %lld -> %lld (%s, %.1f ms)\n", e->region, e->input,
                e->dim, (long long)e->from, (long long)e->to, e->where, e->ms);
        CHECK(e->input >= 0 && e->dim >= 0 && e->from != e->to, "a recompile says why: %s", e->what);
    } else if (e->kind == TRACE_EVENT_BREAK || e->kind == TRACE_EVENT_FALLBACK) {
        fprintf(stderr, "%s: %s at %s\n", e->region, e->what, e->where);
    }
}
static trace_tensor *forward(const model *m, trace_tensor *ids, trace_tensor *mask) { /* [b, n] -> [b, c] */
    trace_tensor *w = trace_unsqueeze(trace_to(mask, TRACE_F32), -1);
    trace_tensor *x = trace_mul(trace_embedding(m->embed, ids), w);
    x = trace_linear(trace_gelu(trace_linear(x, m->w1, m->b1), TRACE_GELU_NONE), m->w2, m->b2);
    return trace_div(trace_mean(trace_mul(x, w), TRACE_DIMS(1), false), trace_mean(w, TRACE_DIMS(1), false));
}
static bool warm(server *s, int b, int n) { /* queues the compile, runs nothing */
    trace_tensor *ids = trace_placeholder(s->ctx, TRACE_I64, TRACE_DIMS(b, n));
    trace_tensor *mask = trace_placeholder(s->ctx, TRACE_I64, TRACE_DIMS(b, n)), *y = NULL;
    if (trace_begin(s->embed, TRACE_ARGS(ids, mask)))
        y = forward(&s->m, ids, mask);
    enum trace_status st = trace_end(s->embed, &y, 1);
    trace_release(ids);
    trace_release(mask);
    trace_release(y);
    return st == TRACE_OK;
}
static void handle(server *s, request *q) {
    trace_tensor *y = NULL;
    trace_tensor *ids = trace_wrap_const(s->ctx, TRACE_I64, q->ids, TRACE_DIMS(q->batch, q->len));
    trace_tensor *mask = trace_wrap_const(s->ctx, TRACE_I64, q->mask, TRACE_DIMS(q->batch, q->len));
    if (trace_begin(s->embed, TRACE_ARGS(ids, mask)))
        y = forward(&s->m, ids, mask);
    q->status = trace_end(s->embed, &y, 1);
    if (!q->status)
        q->status = trace_read(y, q->out, (size_t)(q->batch * trace_size(y, 1)) * sizeof(float));
    if (q->status) /* 503 with a reason; the next request is fine */
        snprintf(q->error, sizeof q->error, "%s", trace_last_error(s->ctx));
    trace_release(y);
    trace_release(ids);
    trace_release(mask);
}
static char *metrics(server *s) {
    size_t need = 0;
    (void)trace_context_report(s->ctx, TRACE_FORMAT_PROMETHEUS, NULL, 0, &need);
    char *text = malloc(need + 1024); /* counters grow between the two calls */
    if (text && trace_context_report(s->ctx, TRACE_FORMAT_PROMETHEUS, text, need + 1024, &need)) {
        free(text);
        text = NULL;
    }
    return text;
}

/* ---- the host's own threads ---- */

typedef struct {
    atomic_size_t next;
    size_t n;
    void (*body)(void *arg, size_t i);
    void *arg;
} loop;
static atomic_int loops;
static void *loop_main(void *arg) {
    loop *l = arg;
    for (size_t i; (i = atomic_fetch_add(&l->next, 1)) < l->n;)
        l->body(l->arg, l->n - 1 - i);
    return NULL;
}
static void pool_for(void *pool, size_t n, void (*body)(void *arg, size_t i), void *arg) {
    loop l = {.n = n, .body = body, .arg = arg};
    pthread_t t;
    (void)pool;
    atomic_fetch_add(&loops, 1);
    bool helped = !pthread_create(&t, NULL, loop_main, &l);
    loop_main(&l);
    if (helped)
        pthread_join(t, NULL);
}

static const int SHAPES[][2] = {{MAX_BATCH, MAX_LEN}, {1, 5}, {3, 17}, {MAX_BATCH, 40}};
static void request_fill(request *q, int k) {
    uint64_t seed = (uint64_t)k;
    q->batch = SHAPES[k % 4][0];
    q->len = SHAPES[k % 4][1];
    for (int i = 0; i < q->batch * q->len; i++) {
        q->ids[i] = (int64_t)((embed_random(&seed) + 1) * 0.5f * (VOCAB - 1));
        q->mask[i] = i % q->len < 2 || embed_random(&seed) > -0.5f;
    }
}

static server s, ref;
static void *worker(void *arg) {
    int id = (int)(intptr_t)arg;
    request *q = calloc(1, sizeof *q), *want = calloc(1, sizeof *want);
    for (int turn = 0; q && want && turn < 12; turn++) {
        request_fill(q, id * 12 + turn);
        *want = *q;
        handle(&s, q);
        CHECK(!q->status, "request: %s", q->error);
        handle(&ref, want);
        CHECK(!want->status, "reference: %s", want->error);
        CHECK(embed_near(q->out, want->out, (size_t)(q->batch * WIDTH), 1e-4f), "worker %d turn %d", id, turn);
    }
    free(q);
    free(want);
    return NULL;
}
static void *late_worker(void *arg) { /* requests go on until the shutdown refuses them */
    request *q = calloc(1, sizeof *q);
    request_fill(q, 0);
    do {
        handle(&s, q);
    } while (!q->status);
    CHECK(q->status == TRACE_ERR_SHUTDOWN, "after the shutdown: %s", q->error);
    free(q);
    return arg;
}

int main(void) {
    enum trace_status st =
        trace_context_create(TRACE_CONTEXT_OPTIONS(.device = TRACE_DEVICE_CUDA, .on_event = on_event), &s.ctx);
    if (st == TRACE_ERR_UNAVAILABLE) { /* explicit, not silent */
        fprintf(stderr, "no GPU, using the CPU: %s\n", trace_last_error(NULL));
        st = trace_context_create(TRACE_CONTEXT_OPTIONS(.parallel_for = pool_for, .threads = 2, .on_event = on_event),
                                  &s.ctx);
    }
    if (st || !model_load(s.ctx, &s.m) ||
        trace_region_create(s.ctx, "embed",
                            TRACE_REGION_OPTIONS(.fullgraph = true, .background = true, .max_graphs = 16), &s.embed) ||
        trace_region_dynamic(s.embed, 0, 0, 1, MAX_BATCH) || trace_region_dynamic(s.embed, 0, 1, 1, MAX_LEN) ||
        trace_region_dynamic(s.embed, 1, 0, 1, MAX_BATCH) || trace_region_dynamic(s.embed, 1, 1, 1, MAX_LEN) ||
        !warm(&s, MAX_BATCH, MAX_LEN) || trace_wait_ready(s.embed, 60000))
        return fprintf(stderr, "%s\n", trace_last_error(s.ctx)), 1;
    CHECK(atomic_load(&compiled) == 1, "an event says that the plan is there");
    CHECK(embed_stats(s.embed).graphs == 1 && embed_stats(s.embed).launches == 0, "the warm-up ran nothing");
    puts(trace_context_describe(s.ctx));
    CHECK(!embed_reference(&ref.ctx) && model_load(ref.ctx, &ref.m) &&
              !trace_region_create(ref.ctx, "embed", NULL, &ref.embed),
          "reference");

    /* the warm shape hits */
    request *q = calloc(1, sizeof *q);
    request_fill(q, 0);
    handle(&s, q);
    CHECK(!q->status, "%s", q->error);
    CHECK(embed_stats(s.embed).hits == 1 && embed_stats(s.embed).misses == 1, "warm");
    /* a request beyond the bounds is an error of its own */
    q->len = MAX_LEN + 1;
    handle(&s, q);
    CHECK(q->status == TRACE_ERR_SHAPE && strstr(q->error, "bounds"), "%s", q->error);
    /* so is a token that isn't one */
    request_fill(q, 0);
    q->ids[3] = VOCAB;
    handle(&s, q);
    CHECK(q->status == TRACE_ERR_DEVICE, "%s", q->error);
    request_fill(q, 0);
    handle(&s, q);
    CHECK(!q->status, "%s", q->error);

    pthread_t t[WORKERS];
    for (int i = 0; i < WORKERS; i++)
        CHECK(!pthread_create(&t[i], NULL, worker, (void *)(intptr_t)i), "thread");
    char *text = metrics(&s);
    CHECK(text && strstr(text, "tracejit_"), "metrics");
    free(text);
    for (int i = 0; i < WORKERS; i++)
        pthread_join(t[i], NULL);
    CHECK(!trace_wait_ready(s.embed, 60000), "ready");
    trace_stats n = embed_stats(s.embed);
    CHECK(n.graphs == 1, "one graph, whatever batch and length: %llu", (unsigned long long)n.graphs);
    CHECK(n.breaks == 0 && n.errors == 2, "errors: %llu", (unsigned long long)n.errors);
    printf("%llu runs, %llu graphs, %d loops on own threads\n", (unsigned long long)n.runs,
           (unsigned long long)n.graphs, atomic_load(&loops));

    CHECK(!pthread_create(&t[0], NULL, late_worker, NULL), "thread");
    usleep(20000);
    CHECK(warm(&s, 2, 2) && warm(&s, 2, 3) && warm(&s, 2, 4), "queued");
    CHECK(!trace_context_shutdown(s.ctx, 30000), "cancels compiles, waits for runs; later begins are refused");
    pthread_join(t[0], NULL);
    CHECK(!warm(&s, 2, 2), "refused");
    free(q);
    server_free(&s);
    server_free(&ref);
    return EMBED_RESULT();
}
