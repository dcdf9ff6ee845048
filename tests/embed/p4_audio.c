/* p4_audio: a noise suppressor as a plugin (RNNoise-like): 480 samples a frame, the state of two GRU layers in place;
 * no allocation, lock or compile in process(), memory given by the host. Weights are made up.
 *
 * main() is the host: it opens channels, runs them on threads of their own, resets one, and checks every sample
 * against the same model in a context without the compiler (TRACEJIT_NO=jit). It exits with 0 when all that the
 * comments promise held.
 */
#include "tracejit.h"
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FRAME = 480, HID = 256, LAYERS = 2 };
typedef struct {
    trace_tensor *win, *bin, *wih[LAYERS], *whh[LAYERS], *bih[LAYERS], *bhh[LAYERS], *wout, *bout;
} weights;
typedef struct {
    trace_context *ctx;
    trace_region *region;
    weights w;
} engine; /* one for all channels */
typedef struct {
    float in[FRAME], out[FRAME];
    trace_tensor *ti, *to, *h[LAYERS];
    trace_bound *bound;
} channel;

/* ---- the plugin ---------------------------------------------------------------------------------------------------
 */

static trace_tensor *made_up(trace_context *ctx, uint64_t seed, double scale, int64_t rows, int64_t cols) {
    size_t n = (size_t)(rows * cols);
    float *v = malloc(n * sizeof *v);
    for (size_t i = 0; v && i < n; i++) { /* splitmix64 */
        uint64_t z = seed += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        v[i] = (float)(((double)((z ^ z >> 31) >> 11) * 0x1p-52 - 1) * scale);
    }
    trace_tensor *t = v ? trace_from(ctx, TRACE_F32, v, (const int64_t[]){rows, cols}, cols == 1 ? 1 : 2) : NULL;
    free(v);
    return t;
}

static bool weights_load(trace_context *ctx, weights *w) {
    bool ok = (w->win = made_up(ctx, 1, 0.08, HID, FRAME)) && (w->bin = made_up(ctx, 2, 0.1, HID, 1)) &&
              (w->wout = made_up(ctx, 3, 0.1, FRAME, HID)) && (w->bout = made_up(ctx, 4, 0.5, FRAME, 1));
    for (int i = 0; i < LAYERS && ok; i++) {
        uint64_t seed = 10 * (uint64_t)(i + 1);
        ok = (w->wih[i] = made_up(ctx, seed, 0.1, 3 * HID, HID)) &&
             (w->whh[i] = made_up(ctx, seed + 1, 0.1, 3 * HID, HID)) &&
             (w->bih[i] = made_up(ctx, seed + 2, 0.1, 3 * HID, 1)) &&
             (w->bhh[i] = made_up(ctx, seed + 3, 0.1, 3 * HID, 1));
    }
    return ok;
}
static void weights_free(weights *w) {
    trace_release(w->win), trace_release(w->bin), trace_release(w->wout), trace_release(w->bout);
    for (int i = 0; i < LAYERS; i++)
        trace_release(w->wih[i]), trace_release(w->whh[i]), trace_release(w->bih[i]), trace_release(w->bhh[i]);
}

static void body(const weights *w, trace_tensor *in, trace_tensor *out, trace_tensor *const *h) {
    trace_tensor *x = trace_tanh(trace_linear(in, w->win, w->bin));
    for (int i = 0; i < LAYERS; i++) {
        x = trace_gru_cell(x, h[i], w->wih[i], w->whh[i], w->bih[i], w->bhh[i]);
        trace_copy_(h[i], x); /* state: written where it lives */
    }
    trace_copy_(out, trace_mul(in, trace_sigmoid(trace_linear(x, w->wout, w->bout))));
}
static bool engine_open(engine *e) {
    memset(e, 0, sizeof *e);
    return !trace_context_create(TRACE_CONTEXT_OPTIONS(.device = TRACE_DEVICE_CPU, .threads = 1), &e->ctx) &&
           weights_load(e->ctx, &e->w) &&
           !trace_region_create(e->ctx, "denoise", TRACE_REGION_OPTIONS(.fullgraph = true), &e->region);
}
static void engine_close(engine *e) {
    weights_free(&e->w);
    trace_region_release(e->region);
    trace_context_release(e->ctx);
}
static bool channel_tensors(engine *e, channel *c) {
    static const float zero[HID] = {0};
    memset(c, 0, sizeof *c);
    bool ok = (c->ti = trace_wrap_const(e->ctx, TRACE_F32, c->in, TRACE_DIMS(1, FRAME))) &&
              (c->to = trace_wrap(e->ctx, TRACE_F32, c->out, TRACE_DIMS(1, FRAME)));
    for (int i = 0; i < LAYERS && ok; i++)
        ok = (c->h[i] = trace_from(e->ctx, TRACE_F32, zero, TRACE_DIMS(1, HID))) != NULL;
    return ok;
}
/* Not realtime: called from the plugin's prepare(). memory == NULL: the library allocates; else 64-aligned, and stays
 * the host's. */
static enum trace_status channel_open(engine *e, channel *c, void *memory, size_t bytes) {
    if (!channel_tensors(e, c))
        return TRACE_ERR_MEMORY;
    if (trace_begin(e->region, TRACE_ARGS(c->ti, c->to, c->h[0], c->h[1])))
        body(&e->w, c->ti, c->to, c->h);
    /* compiles (or finds the plan of an earlier channel), binds it to exactly these tensors, runs nothing: the state
     * stays zero */
    return trace_end_bind(e->region, TRACE_BIND_OPTIONS(.memory = memory, .memory_bytes = bytes), &c->bound);
}
/* known once one channel has been bound */
static size_t channel_bytes(const engine *e) { return trace_region_workspace(e->region); }

/* Realtime thread. On failure: pass the sound through. */
static void process(channel *c, const float *in, float *out) {
    memcpy(c->in, in, sizeof c->in);
    memcpy(out, trace_bound_run(c->bound) == TRACE_OK ? c->out : in, sizeof c->out);
}
/* Not on the realtime thread, and not while process() runs. */
static bool channel_reset(channel *c) {
    static const float zero[HID] = {0};
    bool ok = true;
    for (int i = 0; i < LAYERS; i++)
        ok &= trace_write(c->h[i], zero, sizeof zero) == TRACE_OK;
    return ok;
}
static void channel_close(channel *c) {
    trace_bound_release(c->bound);
    trace_release(c->ti), trace_release(c->to);
    for (int i = 0; i < LAYERS; i++)
        trace_release(c->h[i]);
}

/* ---- the host -----------------------------------------------------------------------------------------------------
 */

enum { CHANNELS = 3, FRAMES = 200 };
static int failures;
#define CHECK(x, ...)                                                                                                  \
    do {                                                                                                               \
        if (!(x)) {                                                                                                    \
            failures++;                                                                                                \
            fprintf(stderr, "p4_audio: line %d: %s: ", __LINE__, #x);                                                  \
            fprintf(stderr, __VA_ARGS__);                                                                              \
            fputc('\n', stderr);                                                                                       \
        }                                                                                                              \
    } while (0)

static void sound(float *frame, int channel_no, int frame_no) {
    for (int i = 0; i < FRAME; i++) {
        int t = frame_no * FRAME + i;
        frame[i] = 0.5f * (float)sin(0.031 * t * (channel_no + 1)) + 0.2f * (float)sin(1.7 * t);
    }
}

/* What channel `no` gives, by runs that aren't bound in a context that interprets; frame `reset` begins anew. */
static float *reference(engine *e, int no, int reset) {
    float *y = malloc(sizeof(float) * FRAME * FRAMES);
    channel c;
    if (!y || !channel_tensors(e, &c))
        exit(2);
    for (int f = 0; f < FRAMES; f++) {
        if (f == reset)
            channel_reset(&c);
        sound(c.in, no, f);
        if (trace_begin(e->region, TRACE_ARGS(c.ti, c.to, c.h[0], c.h[1])))
            body(&e->w, c.ti, c.to, c.h);
        CHECK(trace_end(e->region, NULL, 0) == TRACE_OK, "%s", trace_last_error(e->ctx));
        memcpy(y + f * FRAME, c.out, sizeof c.out);
    }
    channel_close(&c);
    return y;
}

struct player {
    channel *c;
    int no, reset;
    float *y;
};
static void *play(void *arg) {
    struct player *p = arg;
    float in[FRAME];
    for (int f = 0; f < FRAMES; f++) {
        sound(in, p->no, f);
        if (f == p->reset && !channel_reset(p->c))
            return arg;
        process(p->c, in, p->y + f * FRAME);
    }
    return NULL;
}

int main(void) {
    engine e, slow;
    static channel c[CHANNELS];
    struct player p[CHANNELS];
    pthread_t t[CHANNELS];
    setenv("TRACEJIT_NO", "jit", 1);
    CHECK(engine_open(&slow), "%s", trace_last_error(NULL));
    unsetenv("TRACEJIT_NO");
    CHECK(engine_open(&e), "%s", trace_last_error(NULL));
    if (failures)
        return 1;
    enum trace_status s = channel_open(&e, &c[0], NULL, 0);
    if (s == TRACE_ERR_UNAVAILABLE) { /* a build, or a system, without a compiler: the host learns it, and why */
        fprintf(stderr, "p4_audio: %s\n", trace_last_error(e.ctx));
        CHECK(strstr(trace_last_error(e.ctx), "no compiler"), "no reason is given");
        channel_close(&c[0]);
        engine_close(&e);
        engine_close(&slow);
        return failures != 0;
    }
    CHECK(s == TRACE_OK, "%s", trace_last_error(e.ctx));
    for (int i = 0; i < FRAME; i++)
        CHECK(c[0].out[i] == 0, "binding ran something");
    /* the host's memory: what the first channel told is enough, a byte less is a status */
    size_t bytes = channel_bytes(&e);
    unsigned char *memory = aligned_alloc(64, (bytes + 128) / 64 * 64);
    CHECK(channel_open(&e, &c[1], memory, bytes) == TRACE_OK, "%s", trace_last_error(e.ctx));
    if (bytes) {
        CHECK(channel_open(&e, &c[2], memory, bytes - 1) == TRACE_ERR_ARGUMENT && !c[2].bound, "too small");
        channel_close(&c[2]);
        CHECK(channel_open(&e, &c[2], memory + 4, bytes) == TRACE_ERR_ARGUMENT && !c[2].bound, "misaligned");
        channel_close(&c[2]);
    }
    CHECK(channel_open(&e, &c[2], NULL, 0) == TRACE_OK, "%s", trace_last_error(e.ctx));
    trace_stats st = {.size = sizeof st};
    trace_region_stats(e.region, &st);
    CHECK(st.graphs == 1, "%d plans for %d channels", (int)st.graphs, CHANNELS);
    for (int i = 0; i < CHANNELS && !failures; i++) {
        p[i] = (struct player){&c[i], i, i == 1 ? FRAMES / 2 : -1, malloc(sizeof(float) * FRAME * FRAMES)};
        CHECK(p[i].y && !pthread_create(&t[i], NULL, play, &p[i]), "no thread");
    }
    double worst = 0, loudest = 0;
    for (int i = 0; i < CHANNELS && !failures; i++) {
        void *failed;
        pthread_join(t[i], &failed);
        CHECK(!failed, "channel %d: reset: %s", i, trace_last_error(e.ctx));
        float *want = reference(&slow, i, p[i].reset);
        for (int k = 0; k < FRAME * FRAMES; k++) {
            worst = fmax(worst, fabs((double)p[i].y[k] - want[k]));
            loudest = fmax(loudest, fabs(want[k]));
        }
        free(want);
        free(p[i].y);
    }
    CHECK(worst < 2e-5 && loudest > 0.1, "off by %g, loudest sample %g", worst, loudest);
    /* weights a live channel has packed stay as they are; after the last one has gone they may change */
    static float zero[HID * FRAME];
    trace_context_stats(e.ctx, &st);
    if (st.bytes_packed)
        CHECK(trace_write(e.w.win, zero, sizeof zero) == TRACE_ERR_BUSY, "%s", trace_last_error(e.ctx));
    /* closed in any order, the engine first */
    trace_region_release(e.region);
    e.region = NULL;
    float in[FRAME], out[FRAME];
    sound(in, 0, 0);
    process(&c[2], in, out);
    for (int i = 0; i < CHANNELS; i++)
        channel_close(&c[i]);
    CHECK(trace_write(e.w.win, zero, sizeof zero) == TRACE_OK, "%s", trace_last_error(e.ctx));
    free(memory);
    engine_close(&e);
    engine_close(&slow);
    if (!failures)
        printf("p4_audio: %d channels, %d frames each, off by %.2g at most\n", CHANNELS, FRAMES, worst);
    return failures != 0;
}
