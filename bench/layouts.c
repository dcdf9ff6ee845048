/* layouts: copies into other layouts, and what is computed on the way, against the few lines of C one would write
 * instead; softmax over the first dim against the last; pools against loops, and their first calls. One thread, both
 * sides in turn, one JSON object a row: us of the best turn of each, the ratio of these, quartiles of a turn's ratio.
 *
 *   layouts [PART...]    copies, fused, softmax, pools, first; all without names
 */
#include "rows.h"

enum { TURNS = 41 };
static trace_context *ctx;
static size_t sizes[] = {[TRACE_U8] = 1, [TRACE_F16] = 2, [TRACE_F32] = 4, [TRACE_F64] = 8};

/* ---- plain C -------------------------------------------------------------------------------------------------- */

struct plain { /* a permutation of four dims, those of the result */
    int64_t e[4], st[4];
    const void *x;
    void *y;
};
#define PLAIN(T)                                                                                                       \
    static void straight_##T(const struct plain *p) {                                                                  \
        const T *x = p->x;                                                                                             \
        T *y = p->y;                                                                                                   \
        for (int64_t a = 0; a < p->e[0]; a++)                                                                          \
            for (int64_t b = 0; b < p->e[1]; b++)                                                                      \
                for (int64_t c = 0; c < p->e[2]; c++)                                                                  \
                    for (int64_t d = 0; d < p->e[3]; d++)                                                              \
                        *y++ = x[a * p->st[0] + b * p->st[1] + c * p->st[2] + d * p->st[3]];                           \
    }                                                                                                                  \
    static void blocks_##T(const struct plain *p) {                                                                    \
        const T *x = p->x;                                                                                             \
        T *y = p->y;                                                                                                   \
        enum { B = 16 };                                                                                               \
        for (int64_t a = 0; a < p->e[0]; a++)                                                                          \
            for (int64_t b = 0; b < p->e[1]; b++)                                                                      \
                for (int64_t c0 = 0; c0 < p->e[2]; c0 += B)                                                            \
                    for (int64_t d0 = 0; d0 < p->e[3]; d0 += B)                                                        \
                        for (int64_t c = c0; c < c0 + B && c < p->e[2]; c++)                                           \
                            for (int64_t d = d0; d < d0 + B && d < p->e[3]; d++)                                       \
                                y[((a * p->e[1] + b) * p->e[2] + c) * p->e[3] + d] =                                   \
                                    x[a * p->st[0] + b * p->st[1] + c * p->st[2] + d * p->st[3]];                      \
    }                                                                                                                  \
    /* few planes to pixels, and pixels to planes */                                                                   \
    static void pixels_##T(const struct plain *p) {                                                                    \
        const T *x = p->x;                                                                                             \
        T *y = p->y;                                                                                                   \
        int64_t n = p->e[2], k = p->e[3];                                                                              \
        if (k == 2)                                                                                                    \
            for (int64_t i = 0; i < n; i++)                                                                            \
                y[2 * i] = x[i], y[2 * i + 1] = x[n + i];                                                              \
        else if (k == 3)                                                                                               \
            for (int64_t i = 0; i < n; i++)                                                                            \
                y[3 * i] = x[i], y[3 * i + 1] = x[n + i], y[3 * i + 2] = x[2 * n + i];                                 \
        else if (k == 4)                                                                                               \
            for (int64_t i = 0; i < n; i++)                                                                            \
                y[4 * i] = x[i], y[4 * i + 1] = x[n + i], y[4 * i + 2] = x[2 * n + i], y[4 * i + 3] = x[3 * n + i];    \
        else                                                                                                           \
            for (int64_t i = 0; i < n; i++)                                                                            \
                for (int64_t j = 0; j < k; j++)                                                                        \
                    y[k * i + j] = x[j * n + i];                                                                       \
    }                                                                                                                  \
    static void planes_##T(const struct plain *p) {                                                                    \
        const T *x = p->x;                                                                                             \
        T *y = p->y;                                                                                                   \
        int64_t k = p->e[2], n = p->e[3];                                                                              \
        if (k == 3)                                                                                                    \
            for (int64_t i = 0; i < n; i++)                                                                            \
                y[i] = x[3 * i], y[n + i] = x[3 * i + 1], y[2 * n + i] = x[3 * i + 2];                                 \
        else                                                                                                           \
            for (int64_t j = 0; j < k; j++)                                                                            \
                for (int64_t i = 0; i < n; i++)                                                                        \
                    y[j * n + i] = x[k * i + j];                                                                       \
    }
PLAIN(uint8_t)
PLAIN(uint16_t)
PLAIN(uint32_t)
PLAIN(uint64_t)
typedef void (*plain_fn)(const struct plain *);
#define FORMS(F)                                                                                                       \
    { F##_uint8_t, F##_uint16_t, F##_uint32_t, F##_uint64_t }
static const plain_fn straight[] = FORMS(straight), blocks[] = FORMS(blocks), pixels[] = FORMS(pixels),
                      planes[] = FORMS(planes);

/* ---- turns ---------------------------------------------------------------------------------------------------- */

struct side { /* what is timed: a region's body, or a function */
    T *(*body)(T **t, const void *arg);
    const void *arg;
    T **t;
    size_t nt;
    trace_region *region;
    void (*f)(const void *arg);
};
static double turn(struct side *s, void *out, size_t bytes) {
    T *y = NULL;
    double start = now();
    if (s->f) {
        s->f(s->arg);
        return now() - start;
    }
    if (trace_begin(s->region, s->t, s->nt))
        y = s->body(s->t, s->arg);
    if (trace_end(s->region, &y, 1))
        die("run", trace_last_error(ctx));
    start = now() - start;
    if (out && trace_read(y, out, bytes))
        die("read", trace_last_error(ctx));
    trace_release(y);
    return start;
}

/* The goal is for the first side's best over that of the second. */
static void row(const char *name, struct side *a, struct side *b, double goal) {
    double s[TURNS], ratio[TURNS], best[2] = {1e9, 1e9};
    for (int i = 0; i < TURNS; i++) {
        s[0] = turn(a, NULL, 0);
        s[1] = turn(b, NULL, 0);
        ratio[i] = s[0] / s[1];
        best[0] = fmin(best[0], s[0]);
        best[1] = fmin(best[1], s[1]);
    }
    qsort(ratio, TURNS, sizeof ratio[0], by_value);
    printf("{\"workload\": \"%s\", \"us\": %.1f, \"plain_us\": %.1f, \"ratio\": %.2f, \"p25\": %.2f, \"median\": %.2f, "
           "\"p75\": %.2f, \"goal\": %.1f, \"met\": %s}\n",
           name, best[0] * 1e6, best[1] * 1e6, best[0] / best[1], ratio[TURNS / 4], ratio[TURNS / 2],
           ratio[TURNS * 3 / 4], goal, best[0] <= goal * best[1] ? "true" : "false");
    fflush(stdout);
}

static void open_side(struct side *s) {
    if (!s->f && trace_region_create(ctx, "layouts", NULL, &s->region))
        die("region", trace_last_error(ctx));
}

/* ---- copies --------------------------------------------------------------------------------------------------- */

struct permutation {
    const char *name;
    enum trace_dtype d;
    int rank;
    int64_t dims[4], p[4];
};
static T *permute_body(T **t, const void *arg) {
    const struct permutation *w = arg;
    return trace_clone(trace_permute(t[0], w->p, (size_t)w->rank));
}
struct form {
    struct plain p;
    plain_fn f;
};
static void run_form(const void *arg) {
    const struct form *f = arg;
    f->f(&f->p);
}

static void permutation(const struct permutation *w) {
    size_t es = sizes[w->d], n = 1, lg = es == 8 ? 3 : es == 4 ? 2 : es == 2 ? 1 : 0;
    struct form c = {{{1, 1, 1, 1}, {0}, NULL, NULL}, NULL};
    int64_t stride[4];
    for (int i = w->rank; i-- > 0; n *= (size_t)w->dims[i])
        stride[i] = (int64_t)n;
    for (int i = 0; i < w->rank; i++) {
        c.p.e[4 - w->rank + i] = w->dims[w->p[i]];
        c.p.st[4 - w->rank + i] = stride[w->p[i]];
    }
    char *x = malloc(n * es), *y = malloc(n * es), *got = malloc(n * es);
    if (!x || !y || !got)
        die("memory", strerror(errno));
    for (size_t k = 0; k < n * es; k++)
        x[k] = (char)(k % 61);
    c.p.x = x;
    c.p.y = y;
    T *t = trace_wrap_const(ctx, w->d, x, w->dims, (size_t)w->rank);
    struct side a = {.body = permute_body, .arg = w, .t = &t, .nt = 1}, b = {.arg = &c, .f = run_form};
    open_side(&a);
    for (int i = 0; i < 3; i++)
        (void)turn(&a, got, n * es);
    /* the best of the forms one would write */
    plain_fn forms[4] = {straight[lg], blocks[lg], NULL, NULL};
    struct plain q = c.p;
    if (w->rank == 3 && w->p[0] == 1 && w->p[2] == 0) {
        forms[2] = pixels[lg];
        q.e[3] = w->dims[0];
        q.e[2] = (int64_t)n / q.e[3];
    } else if (w->rank == 3 && w->p[0] == 2 && w->p[1] == 0) {
        forms[2] = planes[lg];
        q.e[2] = w->dims[2];
        q.e[3] = (int64_t)n / q.e[2];
    }
    double best = 1e9;
    plain_fn chosen = straight[lg];
    struct plain own = c.p;
    for (int f = 0; f < 3; f++)
        for (int i = 0; i < 4 && forms[f]; i++) {
            c.p = f == 2 ? q : own;
            c.f = forms[f];
            double s = turn(&b, NULL, 0);
            if (memcmp(y, got, n * es))
                die(w->name, "wrong values");
            if (s < best) {
                best = s;
                chosen = forms[f];
            }
        }
    c.f = chosen;
    c.p = chosen == forms[2] ? q : own;
    row(w->name, &a, &b, 1.2);
    trace_region_release(a.region);
    trace_release(t);
    free(x), free(y), free(got);
}

static T *stack_body(T **t, const void *arg) {
    (void)arg;
    return trace_stack(TRACE_ARGS(t[0], t[1]), 2);
}
static void stacks(void) {
    static const int64_t dims[] = {1024, 1024};
    enum { N = 1024 * 1024 };
    static float x[2 * N], y[2 * N], got[2 * N];
    for (int i = 0; i < 2 * N; i++)
        x[i] = (float)(i % 1001);
    T *t[] = {trace_wrap_const(ctx, TRACE_F32, x, dims, 2), trace_wrap_const(ctx, TRACE_F32, x + N, dims, 2)};
    struct form c = {{{1, 1, N, 2}, {0}, x, y}, pixels[2]};
    struct side a = {.body = stack_body, .t = t, .nt = 2}, b = {.arg = &c, .f = run_form};
    open_side(&a);
    for (int i = 0; i < 3; i++)
        (void)turn(&a, got, sizeof got);
    (void)turn(&b, NULL, 0);
    if (memcmp(got, y, sizeof y))
        die("stack", "wrong values");
    row("f32 stack as pairs [1024, 1024]", &a, &b, 1.2);
    trace_region_release(a.region);
    trace_release(t[0]);
    trace_release(t[1]);
}

static void copies(void) {
    static const struct permutation w[] = {
        {"u8 pixels to planes [1080, 1920, 3]", TRACE_U8, 3, {1080, 1920, 3}, {2, 0, 1}},
        {"f32 pixels to planes [720, 1280, 3]", TRACE_F32, 3, {720, 1280, 3}, {2, 0, 1}},
        {"f16 pixels to planes [720, 1280, 3]", TRACE_F16, 3, {720, 1280, 3}, {2, 0, 1}},
        {"f64 pixels to planes [720, 1280, 2]", TRACE_F64, 3, {720, 1280, 2}, {2, 0, 1}},
        {"u8 pixels to planes [719, 1277, 5]", TRACE_U8, 3, {719, 1277, 5}, {2, 0, 1}},
        {"u8 planes to pixels [3, 1080, 1920]", TRACE_U8, 3, {3, 1080, 1920}, {1, 2, 0}},
        {"u8 planes to pixels [4, 1080, 1920]", TRACE_U8, 3, {4, 1080, 1920}, {1, 2, 0}},
        {"u8 planes to pixels [7, 719, 1277]", TRACE_U8, 3, {7, 719, 1277}, {1, 2, 0}},
        {"f16 planes to pixels [2, 720, 1280]", TRACE_F16, 3, {2, 720, 1280}, {1, 2, 0}},
        {"f32 planes to pixels [3, 720, 1280]", TRACE_F32, 3, {3, 720, 1280}, {1, 2, 0}},
        {"f32 planes to pixels [8, 333, 1001]", TRACE_F32, 3, {8, 333, 1001}, {1, 2, 0}},
        {"f64 planes to pixels [3, 720, 1280]", TRACE_F64, 3, {3, 720, 1280}, {1, 2, 0}},
        {"f32 NHWC to NCHW [8, 56, 56, 64]", TRACE_F32, 4, {8, 56, 56, 64}, {0, 3, 1, 2}},
        {"f32 NCHW to NHWC [8, 64, 56, 56]", TRACE_F32, 4, {8, 64, 56, 56}, {0, 2, 3, 1}},
        {"f32 heads [1, 512, 12, 64]", TRACE_F32, 4, {1, 512, 12, 64}, {0, 2, 1, 3}},
        {"u8 transpose [1080, 1920]", TRACE_U8, 2, {1080, 1920}, {1, 0}},
        {"f16 transpose [1024, 1024]", TRACE_F16, 2, {1024, 1024}, {1, 0}},
        {"f32 transpose [1024, 1024]", TRACE_F32, 2, {1024, 1024}, {1, 0}},
        {"f32 transpose [1000, 1500]", TRACE_F32, 2, {1000, 1500}, {1, 0}},
        {"f64 transpose [1000, 777]", TRACE_F64, 2, {1000, 777}, {1, 0}},
        {"f32 permute 3 1 0 2 of [32, 32, 32, 32]", TRACE_F32, 4, {32, 32, 32, 32}, {3, 1, 0, 2}}};
    for (size_t i = 0; i < sizeof w / sizeof *w; i++)
        permutation(&w[i]);
    stacks();
}

/* ---- computed on the way -------------------------------------------------------------------------------------- */

enum { H = 720, W = 1280, PIXELS = H * W };
static uint8_t bytes[3 * PIXELS];
static float floats[3 * PIXELS], result[3 * PIXELS];
static const float mean[3] = {0.485f, 0.456f, 0.406f}, scale[3] = {4.367f, 4.464f, 4.444f};

static T *image_body(T **t, const void *arg) { /* pixels to planes: (u8 / 256 - mean) * scale */
    (void)arg;
    T *x = trace_sub(trace_mul_f(trace_to(t[0], TRACE_F32), 1.0 / 256), t[1]);
    return trace_clone(trace_permute(trace_mul(x, t[2]), TRACE_DIMS(2, 0, 1)));
}
static void image_plain(const void *arg) {
    (void)arg;
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < PIXELS; i++)
            result[k * PIXELS + i] = ((float)bytes[3 * i + k] * (1.0f / 256) - mean[k]) * scale[k];
}
static T *normalise_body(T **t, const void *arg) { /* pixels stay pixels */
    (void)arg;
    return trace_mul(trace_sub(t[0], t[1]), t[2]);
}
static void normalise_plain(const void *arg) {
    (void)arg;
    for (int i = 0; i < PIXELS; i++)
        for (int k = 0; k < 3; k++)
            result[3 * i + k] = (floats[3 * i + k] - mean[k]) * scale[k];
}
static T *show_body(T **t, const void *arg) { /* planes to pixels of bytes */
    (void)arg;
    T *x = trace_clamp_f(trace_mul_f(t[0], 255), 0, 255);
    return trace_clone(trace_permute(trace_to(x, TRACE_U8), TRACE_DIMS(1, 2, 0)));
}
static void show_plain(const void *arg) {
    (void)arg;
    uint8_t *to = (uint8_t *)result;
    for (int i = 0; i < PIXELS; i++)
        for (int k = 0; k < 3; k++) {
            float v = floats[k * PIXELS + i] * 255;
            v = v < 0 ? 0 : v > 255 ? 255 : v;
            to[3 * i + k] = (uint8_t)v;
        }
}

static void fused_row(const char *name, T *x, T *m, T *s, T *(*body)(T **, const void *), void (*plain)(const void *),
                      size_t size) {
    T *t[] = {x, m, s};
    static float got[3 * PIXELS];
    struct side a = {.body = body, .t = t, .nt = 3}, b = {.f = plain};
    open_side(&a);
    for (int i = 0; i < 3; i++)
        (void)turn(&a, got, size);
    plain(NULL);
    if (memcmp(got, result, size))
        die(name, "wrong values");
    row(name, &a, &b, 1.2);
    trace_region_release(a.region);
    trace_release(x);
}

static void fused(void) {
    for (int i = 0; i < 3 * PIXELS; i++) {
        bytes[i] = (uint8_t)(i * 7 + i / 1000);
        floats[i] = (float)(i % 997) / 900 - 0.05f;
    }
    T *m = trace_from(ctx, TRACE_F32, mean, TRACE_DIMS(3)), *s = trace_from(ctx, TRACE_F32, scale, TRACE_DIMS(3));
    fused_row("u8 pixels to normalised f32 planes [720, 1280, 3]",
              trace_wrap_const(ctx, TRACE_U8, bytes, TRACE_DIMS(H, W, 3)), m, s, image_body, image_plain,
              sizeof result);
    fused_row("f32 pixels normalised in place [720, 1280, 3]",
              trace_wrap_const(ctx, TRACE_F32, floats, TRACE_DIMS(H, W, 3)), m, s, normalise_body, normalise_plain,
              sizeof result);
    fused_row("f32 planes to u8 pixels, clamped [3, 720, 1280]",
              trace_wrap_const(ctx, TRACE_F32, floats, TRACE_DIMS(3, H, W)), m, s, show_body, show_plain,
              sizeof result / 4);
    trace_release(m);
    trace_release(s);
}

/* ---- softmax over the first dim ------------------------------------------------------------------------------- */

static T *softmax_of(T **t, const void *arg) { return trace_softmax(t[0], *(const int *)arg); }
static void softmaxes(void) {
    static const int64_t shapes[][2] = {{1024, 1024}, {128, 4096}, {4096, 128}, {1000, 700}};
    static const int dims[] = {0, 1};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        T *x = trace_full_f(ctx, shapes[i], 2, 0.5, TRACE_F32);
        struct side a = {.body = softmax_of, .t = &x, .nt = 1, .arg = &dims[0]}, b = a;
        char name[80];
        b.arg = &dims[1];
        open_side(&a);
        open_side(&b);
        for (int k = 0; k < 3; k++) {
            (void)turn(&a, NULL, 0);
            (void)turn(&b, NULL, 0);
        }
        (void)snprintf(name, sizeof name, "softmax over the first dim of [%d, %d], over the last", (int)shapes[i][0],
                       (int)shapes[i][1]);
        row(name, &a, &b, 1.5);
        trace_region_release(a.region);
        trace_region_release(b.region);
        trace_release(x);
    }
}

/* ---- pools ---------------------------------------------------------------------------------------------------- */

struct pooling {
    const char *name;
    bool max;
    int64_t planes, h, w, k[2], stride[2], pad[2];
};
static float *pool_in, *pool_out;
static T *pool_body(T **t, const void *arg) {
    const struct pooling *p = arg;
    return p->max ? trace_max_pool2d(t[0], p->k, p->stride, p->pad, NULL, false)
                  : trace_avg_pool2d(t[0], p->k, p->stride, p->pad, false, true, 0);
}
static void pool_plain(const void *arg) {
    const struct pooling *p = arg;
    int64_t oh = (p->h + 2 * p->pad[0] - p->k[0]) / p->stride[0] + 1;
    int64_t ow = (p->w + 2 * p->pad[1] - p->k[1]) / p->stride[1] + 1;
    float *to = pool_out, over = 1 / (float)(p->k[0] * p->k[1]);
    for (int64_t c = 0; c < p->planes; c++) {
        const float *x = pool_in + c * p->h * p->w;
        for (int64_t i = 0; i < oh; i++)
            for (int64_t j = 0; j < ow; j++) {
                int64_t y0 = i * p->stride[0] - p->pad[0], x0 = j * p->stride[1] - p->pad[1];
                int64_t y1 = y0 + p->k[0] < p->h ? y0 + p->k[0] : p->h, x1 = x0 + p->k[1] < p->w ? x0 + p->k[1] : p->w;
                float most = -INFINITY, sum = 0;
                y0 = y0 < 0 ? 0 : y0;
                x0 = x0 < 0 ? 0 : x0;
                for (int64_t y = y0; y < y1; y++)
                    for (int64_t q = x0; q < x1; q++) {
                        float v = x[y * p->w + q];
                        most = v > most ? v : most;
                        sum += v;
                    }
                *to++ = p->max ? most : sum * over;
            }
    }
}
static void pools(void) {
    static const struct pooling w[] = {
        {"max 2x2 stride 2 of [64, 112, 112]", true, 64, 112, 112, {2, 2}, {2, 2}, {0, 0}},
        {"max 3x3 stride 2 of [64, 112, 112]", true, 64, 112, 112, {3, 3}, {2, 2}, {1, 1}},
        {"max 3x3 of [64, 56, 56]", true, 64, 56, 56, {3, 3}, {1, 1}, {1, 1}},
        {"max 5x5 of [256, 20, 20]", true, 256, 20, 20, {5, 5}, {1, 1}, {2, 2}},
        {"max 13x13 of [256, 20, 20]", true, 256, 20, 20, {13, 13}, {1, 1}, {6, 6}},
        {"max 61x61 of [1, 256, 256]", true, 1, 256, 256, {61, 61}, {1, 1}, {30, 30}},
        {"avg 2x2 stride 2 of [64, 112, 112]", false, 64, 112, 112, {2, 2}, {2, 2}, {0, 0}},
        {"avg 3x3 of [64, 56, 56]", false, 64, 56, 56, {3, 3}, {1, 1}, {1, 1}},
        {"avg 5x5 of [64, 56, 56]", false, 64, 56, 56, {5, 5}, {1, 1}, {2, 2}},
        {"avg 7x7 stride 3 of [64, 56, 56]", false, 64, 56, 56, {7, 7}, {3, 3}, {3, 3}},
        {"avg of whole planes [512, 7, 7]", false, 512, 7, 7, {7, 7}, {1, 1}, {0, 0}},
        {"avg of whole planes [64, 56, 56]", false, 64, 56, 56, {56, 56}, {1, 1}, {0, 0}},
        {"avg 31x31 of [1, 256, 256]", false, 1, 256, 256, {31, 31}, {1, 1}, {15, 15}}};
    enum { MOST = 64 * 112 * 112 };
    pool_in = malloc(MOST * sizeof(float));
    pool_out = malloc(MOST * sizeof(float));
    if (!pool_in || !pool_out)
        die("memory", strerror(errno));
    for (int i = 0; i < MOST; i++)
        pool_in[i] = (float)(i * 31 % 1009) / 16;
    for (size_t i = 0; i < sizeof w / sizeof *w; i++) {
        T *x = trace_wrap_const(ctx, TRACE_F32, pool_in, TRACE_DIMS(1, w[i].planes, w[i].h, w[i].w));
        struct side a = {.body = pool_body, .arg = &w[i], .t = &x, .nt = 1}, b = {.arg = &w[i], .f = pool_plain};
        open_side(&a);
        for (int k = 0; k < 3; k++)
            (void)turn(&a, NULL, 0);
        row(w[i].name, &a, &b, 1.2);
        trace_region_release(a.region);
        trace_release(x);
    }
    free(pool_in);
    free(pool_out);
}

/* The first call of a window's size, in a context that has compiled something else. */
static void first(void) {
    static const int64_t sizes_of[] = {3, 5, 13, 31, 61};
    for (size_t i = 0; i < sizeof sizes_of / sizeof *sizes_of; i++)
        for (int max = 0; max < 2; max++) {
            int64_t k = sizes_of[i], n = 64 + (int64_t)i;
            struct pooling p = {"", max, 1, n, n, {k, k}, {1, 1}, {k / 2, k / 2}};
            double best = 1e9;
            trace_context *was = ctx;
            for (int turns = 0; turns < 7; turns++) {
                if (trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 1), &ctx))
                    die("context", trace_last_error(NULL));
                T *x = trace_full_f(ctx, TRACE_DIMS(1, 1, n, n), 0.5, TRACE_F32);
                int dim = 3;
                struct side warm = {.body = softmax_of, .arg = &dim, .t = &x, .nt = 1};
                struct side a = {.body = pool_body, .arg = &p, .t = &x, .nt = 1};
                open_side(&warm);
                open_side(&a);
                (void)turn(&warm, NULL, 0);
                best = fmin(best, turn(&a, NULL, 0));
                trace_region_release(warm.region);
                trace_region_release(a.region);
                trace_release(x);
                trace_context_release(ctx);
            }
            ctx = was;
            printf("{\"workload\": \"first call of %s %dx%d\", \"best_s\": %.4f, \"goal\": 0.3, \"met\": %s}\n",
                   max ? "max" : "avg", (int)k, (int)k, best, best <= 0.3 ? "true" : "false");
            fflush(stdout);
        }
}

int main(int argc, char **argv) {
    static const struct part parts[] = {{"copies", copies, true},
                                        {"fused", fused, true},
                                        {"softmax", softmaxes, true},
                                        {"pools", pools, true},
                                        {"first", first, true}};
    if (trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 1), &ctx))
        die("context", trace_last_error(NULL));
    run_parts(parts, sizeof parts / sizeof parts[0], argc, argv);
    trace_context_release(ctx);
    return 0;
}
