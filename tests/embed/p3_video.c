/* tests/embed/p3_video.c: a video filter: BGRA frames of any size, no copy in or out, live model switch, never a stall.
 */
#include "embed.h"
#include <stdint.h>
enum { HIDDEN = 8 };
typedef struct {
    uint8_t *data;
    int width, height, linesize;
} frame;
typedef struct { /* one architecture, many weight sets */
    atomic_int refs;
    trace_region *region;
    trace_tensor *w[3], *b[3];
} model;
typedef struct {
    trace_context *ctx;
    model *live;
    pthread_mutex_t swap;
    bool background;
} filter;
static const int64_t ONE[2] = {1, 1};

static bool model_load(trace_context *ctx, uint64_t seed, model *m) {
    for (int i = 0; i < 3; i++) {
        int in = i == 0 ? 3 : HIDDEN, out = i == 2 ? 3 : HIDDEN;
        m->w[i] = embed_weight(ctx, &seed, TRACE_DIMS(out, in, 3, 3), 0.25f);
        m->b[i] = embed_weight(ctx, &seed, TRACE_DIMS(out), 0.1f);
        if (!m->w[i] || !m->b[i])
            return false;
    }
    return true;
}
static void model_unref(model *m) {
    if (!m || atomic_fetch_sub(&m->refs, 1) != 1)
        return;
    for (int i = 0; i < 3; i++) {
        trace_release(m->w[i]);
        trace_release(m->b[i]);
    }
    trace_region_release(m->region);
    free(m);
}
static model *model_acquire(filter *f) {
    pthread_mutex_lock(&f->swap);
    model *m = f->live;
    if (m)
        atomic_fetch_add(&m->refs, 1);
    pthread_mutex_unlock(&f->swap);
    return m;
}
static int up32(int v) { return (v + 31) / 32 * 32 - v; }

/* in, out: u8 [h, w, 4]; writes out, alpha included */
static void body(const model *m, trace_tensor *in, trace_tensor *out) {
    int64_t h = trace_size(in, 0), w = trace_size(in, 1);
    trace_tensor *rgb = trace_mul_f(trace_to(trace_narrow(in, 2, 0, 3), TRACE_F32), 1.0 / 255);
    trace_tensor *x = trace_unsqueeze(trace_permute(rgb, TRACE_DIMS(2, 0, 1)), 0);
    x = trace_pad(x, TRACE_DIMS(0, up32((int)w), 0, up32((int)h)), TRACE_PAD_REPLICATE, 0);
    for (int i = 0; i < 3; i++) {
        x = trace_conv2d(x, m->w[i], m->b[i], NULL, ONE, NULL, 1);
        if (i < 2)
            x = trace_relu(x);
    }
    x = trace_narrow(trace_narrow(x, 2, 0, h), 3, 0, w);
    x = trace_permute(trace_reshape(x, TRACE_DIMS(3, h, w)), TRACE_DIMS(1, 2, 0));
    x = trace_to(trace_clamp_f(trace_mul_f(x, 255), 0, 255), TRACE_U8);
    trace_copy_(trace_narrow(out, 2, 0, 3), x);
    trace_copy_(trace_narrow(out, 2, 3, 1), trace_narrow(in, 2, 3, 1));
}
/* strides in elements; a placeholder takes the same layout, so the warm-up compiles what the frames will ask for */
static trace_tensor *wrap(filter *f, const frame *v, int flags) {
    return trace_wrap_desc(f->ctx, TRACE_TENSOR_DESC(.dtype = TRACE_U8, .data = v->data, .flags = flags, .rank = 3,
                                                     .dims = (const int64_t[]){v->height, v->width, 4},
                                                     .strides = (const int64_t[]){v->linesize, 4, 1}));
}
/* not OK: show the input frame unchanged */
static enum trace_status filter_frame(filter *f, const frame *in, frame *out) {
    model *m = model_acquire(f);
    if (!m)
        return TRACE_ERR_STATE;
    trace_tensor *i = wrap(f, in, TRACE_WRAP_READONLY), *o = wrap(f, out, 0);
    if (trace_begin(m->region, TRACE_ARGS(i, o)))
        body(m, i, o);
    enum trace_status st = trace_end(m->region, NULL, 0);
    trace_release(i);
    trace_release(o); /* trace_end is done with borrowed host memory */
    model_unref(m);
    return st;
}
/* worker thread: load, compile for the current size, swap; the old one dies when the last frame in flight ends */
static bool filter_switch(filter *f, uint64_t seed, frame like) {
    model *m = calloc(1, sizeof *m), *old;
    if (!m)
        return false;
    atomic_init(&m->refs, 1);
    like.data = NULL;
    trace_tensor *i = wrap(f, &like, TRACE_WRAP_PLACEHOLDER | TRACE_WRAP_READONLY);
    trace_tensor *o = wrap(f, &like, TRACE_WRAP_PLACEHOLDER); /* two: the same one twice would say "they overlap" */
    bool ok =
        model_load(f->ctx, seed, m) &&
        !trace_region_create(f->ctx, "filter",
                             TRACE_REGION_OPTIONS(.background = f->background, .background_policy = TRACE_POLICY_FAIL),
                             &m->region);
    if (ok && trace_begin(m->region, TRACE_ARGS(i, o)))
        body(m, i, o);
    ok = ok && !trace_end(m->region, NULL, 0) && !trace_wait_ready(m->region, 60000);
    trace_release(i);
    trace_release(o);
    if (!ok) {
        model_unref(m);
        return false;
    }
    pthread_mutex_lock(&f->swap);
    old = f->live;
    f->live = m;
    pthread_mutex_unlock(&f->swap);
    model_unref(old);
    return true;
}

/* ---- the program ---- */

static frame frame_new(int w, int h, int slack) {
    frame v = {calloc(1, (size_t)(w * 4 + slack) * (size_t)h), w, h, w * 4 + slack};
    return v;
}
static void frame_fill(frame *v, uint64_t seed) {
    for (int i = 0; v->data && i < v->linesize * v->height; i++)
        v->data[i] = (uint8_t)(127.5f * (embed_random(&seed) + 1));
}
/* each value within one step of the reference's, nothing behind a line's end touched */
static bool same(const frame *a, const frame *b, uint8_t behind) {
    for (int y = 0; y < a->height; y++) {
        for (int x = 0; x < a->width * 4; x++) {
            int d = a->data[y * a->linesize + x] - b->data[y * b->linesize + x];
            if (d < -1 || d > 1 || (x % 4 == 3 && d))
                return false;
        }
        for (int x = a->width * 4; x < a->linesize; x++) {
            if (a->data[y * a->linesize + x] != behind)
                return false;
        }
    }
    return true;
}

static filter f = {.swap = PTHREAD_MUTEX_INITIALIZER, .background = true};
static atomic_bool stop;
static atomic_int shown, refused;
static void *show(void *arg) { /* frames go on while models are switched */
    frame in = *(frame *)arg, out = frame_new(in.width, in.height, 16);
    while (!atomic_load(&stop)) {
        enum trace_status st = filter_frame(&f, &in, &out);
        atomic_fetch_add(st ? &refused : &shown, 1);
        usleep(2000);
    }
    free(out.data);
    return NULL;
}

int main(void) {
    filter ref = {.swap = PTHREAD_MUTEX_INITIALIZER};
    if (trace_context_create(TRACE_CONTEXT_OPTIONS(.on_event = embed_ignore), &f.ctx) || embed_reference(&ref.ctx))
        return fprintf(stderr, "%s\n", trace_last_error(NULL)), 1;
    frame in = frame_new(37, 21, 0), out = frame_new(37, 21, 0), want = frame_new(37, 21, 0);
    frame in2 = frame_new(37, 21, 24), out2 = frame_new(37, 21, 40), other = frame_new(40, 40, 0),
          other_out = frame_new(40, 40, 0), other_want = frame_new(40, 40, 0);
    frame_fill(&in, 1);
    frame_fill(&in2, 2);
    frame_fill(&other, 3);
    CHECK(filter_frame(&f, &in, &out) == TRACE_ERR_STATE, "no model yet");
    CHECK(filter_switch(&f, 100, in) && filter_switch(&ref, 100, in), "first model");
    CHECK(!filter_frame(&f, &in, &out) && !filter_frame(&ref, &in, &want), "frame");
    CHECK(same(&out, &want, 0), "frame");
    trace_stats s = embed_stats(f.live->region);
    CHECK(s.graphs == 1 && s.hits == 1, "the warm-up compiled what the frame asks for: %llu graphs, %llu hits",
          (unsigned long long)s.graphs, (unsigned long long)s.hits);

    /* padded lines: another layout class is another plan, shown unchanged until it's ready; then line sizes vary */
    memset(out2.data, 0xAA, (size_t)(out2.linesize * out2.height));
    enum trace_status st = filter_frame(&f, &in2, &out2);
    CHECK(st == TRACE_OK || st == TRACE_ERR_BUSY, "other lines");
    if (st)
        CHECK(strstr(trace_last_error(f.ctx), "not ready yet") != NULL, "text");
    CHECK(!trace_wait_ready(f.live->region, 60000), "ready");
    CHECK(!filter_frame(&f, &in2, &out2) && !filter_frame(&ref, &in2, &want), "other lines");
    CHECK(same(&out2, &want, 0xAA), "other lines");
    uint64_t graphs = embed_stats(f.live->region).graphs;
    frame in3 = in2;
    in3.width = 37, in3.linesize -= 4; /* still inside its memory */
    CHECK(!filter_frame(&f, &in3, &out2), "another line size");
    CHECK(embed_stats(f.live->region).graphs == graphs, "line sizes are arguments");

    /* in place: its own plan */
    frame place = frame_new(37, 21, 0);
    memcpy(place.data, in.data, (size_t)(in.linesize * in.height));
    st = filter_frame(&f, &place, &place);
    CHECK(st == TRACE_ERR_BUSY || st == TRACE_OK, "in place");
    if (st) {
        CHECK(!memcmp(place.data, in.data, (size_t)(in.linesize * in.height)), "a refused frame is unchanged");
        CHECK(!trace_wait_ready(f.live->region, 60000) && !filter_frame(&f, &place, &place), "in place");
    }
    CHECK(!filter_frame(&ref, &in, &want), "reference");
    CHECK(same(&place, &want, 0), "in place");

    /* frames go on while the model is switched, three times */
    pthread_t t;
    CHECK(!pthread_create(&t, NULL, show, &in), "thread");
    for (uint64_t seed = 101; seed < 104; seed++)
        CHECK(filter_switch(&f, seed, in), "switch");
    while (atomic_load(&shown) < 5 && atomic_load(&refused) < 1000)
        usleep(1000);
    atomic_store(&stop, true);
    pthread_join(t, NULL);
    CHECK(atomic_load(&shown) > 0, "frames were shown");
    CHECK(filter_switch(&ref, 103, in), "switch");
    CHECK(!trace_wait_ready(f.live->region, 60000) && !filter_frame(&f, &in, &out) && !filter_frame(&ref, &in, &want),
          "new model");
    CHECK(same(&out, &want, 0), "new model");

    /* another size */
    st = filter_frame(&f, &other, &other_out);
    CHECK(st == TRACE_ERR_BUSY || st == TRACE_OK, "another size");
    CHECK(!trace_wait_ready(f.live->region, 60000) && !filter_frame(&f, &other, &other_out) &&
              !filter_frame(&ref, &other, &other_want),
          "another size");
    CHECK(same(&other_out, &other_want, 0), "another size");
    printf("%d frames shown, %d refused\n", atomic_load(&shown), atomic_load(&refused));
    model_unref(f.live);
    model_unref(ref.live);
    CHECK(!trace_context_shutdown(f.ctx, 10000), "shutdown");
    trace_context_release(f.ctx);
    trace_context_release(ref.ctx);
    free(in.data), free(out.data), free(want.data), free(in2.data), free(out2.data), free(place.data);
    free(other.data), free(other_out.data), free(other_want.data);
    return EMBED_RESULT();
}
