/* tests/embed/p1_decode.c: token by token with a static key and value cache: sampling on the host after the end of the
 * run, and greedily with the token staying where it is. */
#include "embed.h"
enum { L = 3, H = 3, D = 16, C = H * D, T = 64, V = 500, SAMPLED = 24, GREEDY = 24 };
typedef struct {
    trace_tensor *n1, *wq, *wk, *wv, *wo, *n2, *up, *down, *kc, *vc;
} layer;
typedef struct {
    trace_context *ctx;
    trace_tensor *embed, *norm;
    layer l[L];
} model;

static bool load(model *m) {
    uint64_t seed = 42;
    bool ok = true;
    m->embed = embed_weight(m->ctx, &seed, TRACE_DIMS(V, C), 0.5f);
    m->norm = embed_weight(m->ctx, &seed, TRACE_DIMS(C), 1);
    for (int i = 0; i < L; i++) {
        layer *l = &m->l[i];
        l->n1 = embed_weight(m->ctx, &seed, TRACE_DIMS(C), 1);
        l->wq = embed_weight(m->ctx, &seed, TRACE_DIMS(C, C), 0.3f);
        l->wk = embed_weight(m->ctx, &seed, TRACE_DIMS(C, C), 0.3f);
        l->wv = embed_weight(m->ctx, &seed, TRACE_DIMS(C, C), 0.3f);
        l->wo = embed_weight(m->ctx, &seed, TRACE_DIMS(C, C), 0.3f);
        l->n2 = embed_weight(m->ctx, &seed, TRACE_DIMS(C), 1);
        l->up = embed_weight(m->ctx, &seed, TRACE_DIMS(4 * C, C), 0.3f);
        l->down = embed_weight(m->ctx, &seed, TRACE_DIMS(C, 4 * C), 0.3f);
        l->kc = embed_weight(m->ctx, &seed, TRACE_DIMS(1, H, T, D), 0);
        l->vc = embed_weight(m->ctx, &seed, TRACE_DIMS(1, H, T, D), 0);
        ok = ok && l->n1 && l->wq && l->wk && l->wv && l->wo && l->n2 && l->up && l->down && l->kc && l->vc;
    }
    return ok && m->embed && m->norm;
}
static void unload(model *m) {
    trace_release(m->embed);
    trace_release(m->norm);
    for (int i = 0; i < L; i++) {
        layer *l = &m->l[i];
        trace_tensor *all[] = {l->n1, l->wq, l->wk, l->wv, l->wo, l->n2, l->up, l->down, l->kc, l->vc};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++)
            trace_release(all[k]);
    }
    trace_context_release(m->ctx);
}
static int64_t sample(const float *logits, int n, uint64_t *seed) { /* among the three best */
    int best[3] = {0, 0, 0};
    for (int k = 0; k < 3; k++) {
        best[k] = -1;
        for (int i = 0; i < n; i++) {
            if (i != best[0] && (k < 2 || i != best[1]) && (best[k] < 0 || logits[i] > logits[best[k]]))
                best[k] = i;
        }
    }
    float u = embed_random(seed);
    return best[u < 0 ? 0 : u < 0.6f ? 1 : 2];
}

static trace_tensor *heads(trace_tensor *x) { return trace_transpose(trace_reshape(x, TRACE_DIMS(1, 1, H, D)), 1, 2); }

/* tok, pos: i64 [1]. Caches [1, H, T, D] are captured and written in place; no early exit, no NULL check. */
static trace_tensor *forward(const model *m, trace_tensor *tok, trace_tensor *pos) {
    trace_tensor *x = trace_unsqueeze(trace_embedding(m->embed, tok), 0);
    trace_tensor *mask = trace_le(trace_arange(m->ctx, 0, T, 1, TRACE_I64), pos);
    for (int i = 0; i < L; i++) {
        const layer *l = &m->l[i];
        trace_tensor *h = trace_rms_norm(x, l->n1, 1e-5);
        trace_index_copy_(l->kc, 2, pos, heads(trace_linear(h, l->wk, TRACE_NONE)));
        trace_index_copy_(l->vc, 2, pos, heads(trace_linear(h, l->wv, TRACE_NONE)));
        trace_tensor *a = trace_scaled_dot_product_attention(heads(trace_linear(h, l->wq, TRACE_NONE)), l->kc, l->vc,
                                                             mask, false, 0, false);
        a = trace_reshape(trace_transpose(a, 1, 2), TRACE_DIMS(1, 1, C));
        x = trace_add(x, trace_linear(a, l->wo, TRACE_NONE));
        h = trace_gelu(trace_linear(trace_rms_norm(x, l->n2, 1e-5), l->up, TRACE_NONE), TRACE_GELU_TANH);
        x = trace_add(x, trace_linear(h, l->down, TRACE_NONE));
    }
    return trace_reshape(trace_linear(trace_rms_norm(x, m->norm, 1e-5), m->embed, TRACE_NONE), TRACE_DIMS(V));
}

typedef struct {
    int64_t tokens[SAMPLED + GREEDY];
    float logits[SAMPLED][V];
    trace_stats sampled, greedy;
} result;

static bool decode(trace_context *ctx, result *out) {
    model m = {.ctx = ctx};
    trace_region *r = NULL, *g = NULL;
    if (!load(&m) || trace_region_create(m.ctx, "decode", TRACE_REGION_OPTIONS(.fullgraph = true), &r) ||
        trace_region_create(m.ctx, "greedy", TRACE_REGION_OPTIONS(.fullgraph = true, .mode = TRACE_MODE_REPLAY), &g))
        return fprintf(stderr, "%s\n", trace_last_error(m.ctx)), false;
    uint64_t seed = 9;
    int64_t t = 1, p = 0;
    int n = 0;
    trace_tensor *tok = trace_from(m.ctx, TRACE_I64, &t, TRACE_DIMS(1));
    trace_tensor *pos = trace_from(m.ctx, TRACE_I64, &p, TRACE_DIMS(1));

    for (; p < SAMPLED; p++) { /* read after the end: no break, sampling in C */
        const void *logits;
        trace_tensor *y = NULL;
        (void)trace_write(tok, &t, sizeof t);
        (void)trace_write(pos, &p, sizeof p);
        if (trace_begin(r, TRACE_ARGS(tok, pos)))
            y = forward(&m, tok, pos);
        if (trace_end(r, &y, 1) || trace_data(y, &logits)) {
            trace_release(y);
            break;
        }
        memcpy(out->logits[p], logits, sizeof out->logits[p]);
        out->tokens[n++] = t = sample(logits, V, &seed);
        trace_release(y);
    }
    (void)trace_write(tok, &t, sizeof t);
    (void)trace_write(pos, &p, sizeof p);
    trace_tensor *last = NULL, *next = NULL;
    for (; p < SAMPLED + GREEDY; p++, last = next) { /* the token never leaves the device on the hot path */
        next = NULL;
        if (trace_begin(g, TRACE_ARGS(tok, pos))) {
            next = trace_reshape(trace_argmax(forward(&m, tok, pos), -1, false), TRACE_DIMS(1));
            trace_copy_(tok, next); /* feeds itself */
            trace_add_i_(pos, 1);
        }
        if (trace_end(g, &next, 1))
            break;
        if (last && !trace_item_i64(last, &t))
            out->tokens[n++] = t;
        trace_release(last);
    }
    if (last && !trace_item_i64(last, &t))
        out->tokens[n++] = t;
    if (p < SAMPLED + GREEDY)
        fprintf(stderr, "%s\n", trace_last_error(m.ctx));
    out->sampled = embed_stats(r);
    out->greedy = embed_stats(g);
    trace_release(last);
    trace_release(tok);
    trace_release(pos);
    trace_region_release(r);
    trace_region_release(g);
    unload(&m);
    return n == SAMPLED + GREEDY;
}

int main(void) {
    static result got, want;
    trace_context *ctx, *ref;
    if (trace_context_create(NULL, &ctx) || embed_reference(&ref))
        return fprintf(stderr, "%s\n", trace_last_error(NULL)), 1;
    CHECK(decode(ctx, &got), "decode");
    CHECK(decode(ref, &want), "reference");
    for (int i = 0; i < SAMPLED; i++)
        CHECK(embed_near(got.logits[i], want.logits[i], V, 1e-3f), "token %d", i);
    for (int i = 0; i < SAMPLED + GREEDY; i++) {
        CHECK(got.tokens[i] == want.tokens[i], "token %d: %lld, not %lld", i, (long long)got.tokens[i],
              (long long)want.tokens[i]);
        printf("%lld ", (long long)got.tokens[i]);
    }
    puts("");
    CHECK(got.sampled.graphs == 1 && got.sampled.breaks == 0 && got.sampled.runs == SAMPLED,
          "one graph for all positions: %llu", (unsigned long long)got.sampled.graphs);
    CHECK(got.greedy.graphs == 1 && got.greedy.breaks == 0 && got.greedy.runs == GREEDY, "one graph: %llu",
          (unsigned long long)got.greedy.graphs);
    return EMBED_RESULT();
}
