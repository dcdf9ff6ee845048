/* scale: what a run costs per element as one thing in it grows: breaks, outputs, users of a value, writes, views,
 * layers, leaves, and so on. One JSON object a family: microseconds of processor time per element at n = 100, 1,000,
 * 10,000 and 30,000, of the first run (recording, compiling, running), the second and later ones; the ratio of the
 * largest n to the one before it, which is 1 for what is linear and 3 for what is quadratic; and that to 1,000, in
 * which there is also what the caches of the machine no longer hold.
 *
 *   scale [--max N] [--turns T] [--interpret] [FAMILY...]    all families without names; N: 30000, T: 5
 *
 * --interpret switches the compiler off. A size whose cost is foreseen to be over a minute is left out (null).
 */
#include "rows.h"

enum { SIZES = 4 };
static int turns = 5; /* runs of a region */
static const size_t sizes[SIZES] = {100, 1000, 10000, 30000};
static const double goal = 1.5;

struct scale {
    trace_context *ctx;
    trace_region *r;
    size_t n, ninputs, nweights, nouts;
    int turn;     /* of the run, from 0 */
    int64_t rows; /* of inputs */
    T **in;       /* declared inputs */
    T **weight;   /* captured */
    T **out;      /* room for n + 1 outputs */
};
struct family {
    const char *name;
    void (*setup)(struct scale *s);
    void (*body)(struct scale *s);
    void (*drive)(struct scale *s, double *seconds); /* instead of body: all three */
    enum { SAME, VARY, DYNAMIC, REPLAY } how;
    size_t most; /* n beyond which there is none; 0: all */
};

/* Processor time of all threads: others on the machine count less. */
static double used(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static T *check(T *t) {
    if (!t)
        die("scale", trace_last_error(NULL));
    return t;
}

static void fine(enum trace_status st) {
    if (st)
        die("scale", trace_last_error(NULL));
}

static T *make(struct scale *s, int64_t a, int64_t b) {
    size_t n = (size_t)(a * b);
    float *v = malloc(n * sizeof *v);
    if (!v)
        die("scale", "out of memory");
    for (size_t i = 0; i < n; i++)
        v[i] = (float)(i % 13) * 0.125f - 0.5f;
    T *t = check(trace_from(s->ctx, TRACE_F32, v, TRACE_DIMS(a, b)));
    free(v);
    return t;
}

static T **array(size_t n) {
    T **t = calloc(n + 1, sizeof *t);
    if (!t)
        die("scale", "out of memory");
    return t;
}

static void inputs(struct scale *s, size_t n, int64_t a, int64_t b) {
    s->ninputs = n;
    for (size_t i = 0; i < n; i++)
        s->in[i] = make(s, a, b);
}
static void weights(struct scale *s, size_t n, int64_t a, int64_t b) {
    s->nweights = n;
    for (size_t i = 0; i < n; i++)
        s->weight[i] = make(s, a, b);
}
static void let_go(T **t, size_t *n) {
    for (size_t i = 0; i < *n; i++) {
        trace_release(t[i]);
        t[i] = NULL;
    }
    *n = 0;
}
static void give(struct scale *s, T *t) { s->out[s->nouts++] = t; }

/* ---- families ------------------------------------------------------------------------------------------------- */

/* Rows change with the turn where shapes are to vary. */
static void one_input(struct scale *s) { inputs(s, 1, s->rows, 8); }
static void small_input(struct scale *s) { inputs(s, 1, 1, 1); }

static void breaks(struct scale *s) {
    T *x = s->in[0];
    for (size_t i = 0; i < s->n; i++) {
        double v;
        x = trace_add_f(x, 1);
        if (trace_item_f64(x, &v))
            break;
    }
    give(s, x);
}
/* Each at a place of its own. */
static void break_sites(struct scale *s) {
    T *x = s->in[0];
    for (size_t i = 0; i < s->n; i++) {
        double v;
        x = trace_add_f(x, 1);
        if (trace_item_f64_at(x, &v, "host.c", (int)i + 1))
            break;
    }
    give(s, x);
}
/* What is read is used again later, and there is much that was recorded before. */
static void breaks_behind(struct scale *s) {
    T *x = s->in[0], *sum = x;
    for (size_t i = 0; i < s->n; i++)
        sum = trace_add(trace_tanh(sum), x);
    for (size_t i = 0; i < s->n; i++) {
        double v;
        x = trace_add_f(x, 1);
        if (trace_item_f64(x, &v))
            break;
    }
    give(s, trace_add(sum, x));
}
static void outputs(struct scale *s) {
    for (size_t i = 0; i < s->n; i++)
        give(s, trace_mul_f(s->in[0], (double)(i + 2)));
}
static void users(struct scale *s) {
    T *y = trace_exp(s->in[0]), *sum = y;
    for (size_t i = 0; i < s->n; i++)
        sum = trace_sub(trace_tanh(sum), y);
    give(s, sum);
}
/* One value, n reductions of it. */
static void reductions(struct scale *s) {
    T *y = trace_exp(s->in[0]), *sum = trace_sum(y, TRACE_SCALAR, false);
    for (size_t i = 0; i < s->n; i++)
        sum = trace_add(sum, trace_sum(trace_mul_f(y, (double)i + 2), TRACE_SCALAR, false));
    give(s, sum);
}
static void view_writes_setup(struct scale *s) { inputs(s, 1, (int64_t)s->n, 2); }
static void view_writes(struct scale *s) {
    T *y = trace_mul_f(s->in[0], 2);
    for (size_t i = 0; i < s->n; i++)
        (void)trace_add_f_(trace_narrow(y, 0, (int64_t)i, 1), 1);
    give(s, y);
}
static void leaf_view_writes(struct scale *s) {
    for (size_t i = 0; i < s->n; i++)
        (void)trace_add_f_(trace_narrow(s->in[0], 0, (int64_t)i, 1), 1);
}
static void updates(struct scale *s) {
    for (size_t i = 0; i < s->n; i++)
        (void)trace_add_f_(s->in[0], 1);
}
static void value_updates(struct scale *s) {
    T *y = trace_mul_f(s->in[0], 2);
    for (size_t i = 0; i < s->n; i++)
        (void)trace_add_f_(y, 1);
    give(s, y);
}
static void written_tensors(struct scale *s) {
    for (size_t i = 0; i < s->nweights; i++)
        (void)trace_add_f_(s->weight[i], 1);
}
static void view_chain(struct scale *s) {
    T *x = s->in[0];
    for (size_t i = 0; i < s->n; i++)
        x = trace_transpose(trace_unsqueeze(trace_squeeze(trace_reshape(x, TRACE_DIMS(1, 32)), 0), 0), 0, 1);
    give(s, trace_add_f(x, 1));
}
static void slice_chain(struct scale *s) {
    T *x = s->in[0];
    for (size_t i = 0; i + 1 < s->n; i++)
        x = trace_narrow(x, 0, 1, (int64_t)(s->n - i) - 1);
    give(s, trace_add_f(x, 1));
}
static void slices(struct scale *s) {
    T *sum = trace_narrow(s->in[0], 0, 0, 1);
    for (size_t i = 1; i < s->n; i++)
        sum = trace_add(sum, trace_narrow(s->in[0], 0, (int64_t)i, 1));
    give(s, sum);
}
static void view_ops(struct scale *s) { /* each view computed with */
    T *x = s->in[0];
    for (size_t i = 0; i < s->n; i++)
        x = trace_add_f(trace_transpose(x, 0, 1), 1);
    give(s, x);
}
static void layers_setup(struct scale *s) {
    one_input(s);
    weights(s, s->n, 8, 8);
}
static void layers(struct scale *s) {
    T *x = s->in[0];
    for (size_t i = 0; i < s->n; i++)
        x = trace_relu(trace_linear(x, s->weight[i], TRACE_NONE));
    give(s, x);
}
static void norms(struct scale *s) {
    T *x = s->in[0];
    for (size_t i = 0; i < s->n; i++)
        x = trace_add(x, trace_relu(trace_layer_norm(x, TRACE_DIMS(8), TRACE_NONE, TRACE_NONE, 1e-5)));
    give(s, x);
}
static void softmaxes(struct scale *s) {
    T *x = s->in[0];
    for (size_t i = 0; i < s->n; i++)
        x = trace_softmax(x, -1);
    give(s, x);
}
static void pointwise(struct scale *s) {
    T *x = s->in[0];
    for (size_t i = 0; i < s->n; i++)
        x = trace_add(trace_tanh(x), s->in[0]);
    give(s, x);
}
static void leaves_setup(struct scale *s) {
    one_input(s);
    weights(s, s->n, 4, 8);
}
static void leaves(struct scale *s) {
    T *x = s->in[0];
    for (size_t i = 0; i < s->n; i++)
        x = trace_add(x, s->weight[i]);
    give(s, x);
}
static void inputs_setup(struct scale *s) { inputs(s, s->n, s->rows, 8); }
static void declared(struct scale *s) {
    T *x = s->in[0];
    for (size_t i = 1; i < s->n; i++)
        x = trace_add(x, s->in[i]);
    give(s, x);
}
static void scalars(struct scale *s) {
    T *x = s->in[0];
    for (size_t i = 0; i < s->n; i++)
        x = trace_add_f(x, (double)i + s->turn + 0.5);
    give(s, x);
}
static void cat(struct scale *s) { give(s, trace_cat(s->weight, s->nweights, 0)); }
static void cat_computed(struct scale *s) {
    T **t = array(s->n);
    for (size_t i = 0; i < s->n; i++)
        t[i] = trace_mul_f(s->in[0], (double)i + 2);
    give(s, trace_cat(t, s->n, 0));
    free(t);
}
static void split(struct scale *s) {
    T **t = array(s->n), *sum;
    fine(trace_split(s->in[0], 1, 0, t, s->n));
    sum = t[0];
    for (size_t i = 1; i < s->n; i++)
        sum = trace_add(sum, t[i]);
    give(s, sum);
    free(t);
}
static void handles(struct scale *s) {
    T *x = s->in[0];
    for (size_t i = 0; i < s->n; i++)
        x = trace_retain(trace_add_f(x, 1));
    give(s, x);
}
static void later(struct scale *s) {
    for (size_t i = 0; i < s->n; i++) {
        trace_release(s->weight[i]);
        s->weight[i] = check(trace_item_later(trace_mul_f(s->in[0], (double)i + 2)));
    }
    s->nweights = s->n;
}
static void leaf_setup(struct scale *s) {
    inputs(s, 1, 4, 8);
    weights(s, 1, 4, 8);
}
static void kernels_setup(struct scale *s) {
    one_input(s);
    weights(s, 1, 8, 8);
}
static void kernels(struct scale *s) {
    T *x = s->in[0];
    for (size_t i = 0; i < s->n; i++)
        x = trace_matmul(x, s->weight[0]);
    give(s, x);
}
static void unlike_kernels(struct scale *s) { /* none of two is the same */
    T *x = s->in[0];
    for (size_t i = 0; i < s->n; i++) {
        T *y = trace_matmul(x, s->weight[0]);
        for (size_t k = i; k; k /= 2)
            y = k & 1 ? trace_add_f(y, 1) : trace_mul(y, y);
        x = y;
    }
    give(s, x);
}
static void gathers_setup(struct scale *s) {
    int64_t row = 1;
    one_input(s);
    s->nweights = 1;
    s->weight[0] = check(trace_from(s->ctx, TRACE_I64, &row, TRACE_DIMS(1)));
}
static void gathers(struct scale *s) {
    T *x = s->in[0];
    for (size_t i = 0; i < s->n; i++)
        x = trace_add(x, trace_index_select(x, 0, s->weight[0]));
    give(s, x);
}
static void pads(struct scale *s) {
    T *x = s->in[0];
    for (size_t i = 0; i < s->n; i++) {
        static const int64_t grow[2] = {1, 0}, crop[2] = {0, -1};
        x = trace_pad(trace_pad(x, grow, 2, TRACE_PAD_CONSTANT, 0), crop, 2, TRACE_PAD_CONSTANT, 0);
    }
    give(s, x);
}
static void loops(struct scale *s) {
    T *x = s->in[0];
    for (size_t i = 0; i < s->n; i++) {
        fine(trace_repeat(2, &x, 1));
        x = trace_add_f(x, 1);
        fine(trace_repeat_end(&x, 1));
    }
    give(s, x);
}
static void scopes(struct scale *s) {
    static trace_region *inner;
    if (!s->turn)
        fine(trace_region_create(s->ctx, "inner", NULL, &inner));
    T *x = s->in[0];
    for (size_t i = 0; i < s->n; i++) {
        T *y = NULL;
        if (trace_begin(inner, &x, 1))
            y = trace_add_f(x, 1);
        fine(trace_end(inner, &y, 1));
        x = y;
    }
    give(s, x);
    if (s->turn == turns - 1)
        trace_region_release(inner);
}
static void writes(struct scale *s) { /* trace_write of a tensor that recorded ops read: breaks */
    T *x = s->in[0];
    float v[32] = {1};
    for (size_t i = 0; i < s->n; i++) {
        x = trace_add(x, s->weight[0]);
        if (trace_write(s->weight[0], v, sizeof v))
            break;
    }
    give(s, x);
}
static void copies(struct scale *s) { /* a cache that grows row by row, and is read each time */
    T *sum = s->in[0];
    for (size_t i = 0; i < s->n; i++) {
        (void)trace_copy_(trace_narrow(s->weight[0], 0, (int64_t)i, 1), sum);
        sum = trace_add(sum, trace_narrow(s->weight[0], 0, (int64_t)i / 2, 1));
    }
    give(s, sum);
}
static void copies_setup(struct scale *s) {
    inputs(s, 1, 1, 4);
    weights(s, 1, (int64_t)s->n, 4);
}
static void matmul_users(struct scale *s) { /* one value read by n contractions */
    T *y = trace_exp(s->in[0]), *sum = NULL;
    for (size_t i = 0; i < s->n; i++) {
        T *z = trace_matmul(y, s->weight[i]);
        sum = sum ? trace_add(sum, z) : z;
    }
    give(s, sum);
}
static void wide(struct scale *s) { /* n values live at once, then joined pairwise */
    T **t = array(s->n);
    for (size_t i = 0; i < s->n; i++)
        t[i] = trace_sum(trace_mul_f(s->in[0], (double)i + 2), TRACE_DIMS(0), true);
    for (size_t n = s->n; n > 1; n = (n + 1) / 2)
        for (size_t i = 0; i < n / 2; i++)
            t[i] = trace_add(t[i], t[n - 1 - i]);
    give(s, t[0]);
    free(t);
}
static void copy_outputs(struct scale *s) { /* results into memory of the host's */
    for (size_t i = 0; i < s->n; i++)
        (void)trace_copy_(s->weight[i], trace_mul_f(s->in[0], (double)i + 2));
}

/* ---- families with a driver of their own --------------------------------------------------------------------------
 */

static void regions(struct scale *s, double *seconds) {
    trace_region **r = calloc(s->n, sizeof *r);
    double start = used();
    for (size_t i = 0; i < s->n; i++) {
        T *y = NULL;
        fine(trace_region_create(s->ctx, "one of many", NULL, &r[i]));
        if (trace_begin(r[i], s->in, 1))
            y = trace_add_f(s->in[0], 1);
        fine(trace_end(r[i], &y, 1));
        trace_release(y);
    }
    seconds[0] = used() - start;
    start = used();
    for (size_t i = 0; i < s->n; i++) {
        T *y = NULL;
        if (trace_begin(r[i], s->in, 1))
            y = trace_add_f(s->in[0], 1);
        fine(trace_end(r[i], &y, 1));
        trace_release(y);
    }
    for (size_t i = 0; i < s->n; i++)
        trace_region_release(r[i]);
    seconds[1] = seconds[2] = used() - start;
    free(r);
}

/* n plans of one region. */
static void plans(struct scale *s, double *seconds) {
    trace_region *r;
    fine(trace_region_create(s->ctx, "many plans",
                             TRACE_REGION_OPTIONS(.dynamic = TRACE_DYNAMIC_OFF, .max_graphs = (uint32_t)s->n + 1), &r));
    for (int turn = 0; turn < 3; turn++) {
        double start = used();
        for (size_t i = 0; i < s->n; i++) {
            T *x = check(trace_placeholder(s->ctx, TRACE_F32, TRACE_DIMS((int64_t)i + 1))),
              *y = NULL; /* runs nothing */
            if (trace_begin(r, &x, 1))
                y = trace_add_f(x, 1);
            fine(trace_end(r, &y, 1));
            trace_release(y);
            trace_release(x);
        }
        seconds[turn] = used() - start;
    }
    trace_region_release(r);
}

/* Tensors alive, ops outside regions over each. */
static void eager(struct scale *s, double *seconds) {
    T **t = array(s->n);
    for (int turn = 0; turn < 3; turn++) {
        double start = used();
        for (size_t i = 0; i < s->n; i++)
            t[i] = check(trace_add_f(i ? t[i - 1] : s->in[0], 1));
        for (size_t i = 0; i < s->n; i++)
            trace_release(t[i]);
        seconds[turn] = used() - start;
    }
    free(t);
}

static void bound(struct scale *s, double *seconds) {
    trace_bound *b;
    double start = used();
    if (trace_begin(s->r, s->in, s->ninputs))
        written_tensors(s);
    fine(trace_end_bind(s->r, NULL, &b));
    seconds[0] = used() - start;
    start = used();
    fine(trace_bound_run(b));
    seconds[1] = seconds[2] = used() - start;
    trace_bound_release(b);
}

static const struct family families[] = {
    {"breaks", small_input, breaks, NULL, SAME, 0},
    {"break_sites", small_input, break_sites, NULL, SAME, 0},
    {"breaks_behind", small_input, breaks_behind, NULL, SAME, 0},
    {"host_writes", leaf_setup, writes, NULL, SAME, 0},
    {"outputs", one_input, outputs, NULL, SAME, 0},
    {"users", one_input, users, NULL, SAME, 0},
    {"reductions", one_input, reductions, NULL, SAME, 0},
    {"matmul_users", layers_setup, matmul_users, NULL, SAME, 0},
    {"view_writes", view_writes_setup, view_writes, NULL, SAME, 0},
    {"leaf_view_writes", view_writes_setup, leaf_view_writes, NULL, SAME, 0},
    {"updates", one_input, updates, NULL, SAME, 0},
    {"value_updates", one_input, value_updates, NULL, SAME, 0},
    {"written_tensors", leaves_setup, written_tensors, NULL, SAME, 0},
    {"view_chain", one_input, view_chain, NULL, SAME, 0},
    {"slice_chain", view_writes_setup, slice_chain, NULL, SAME, 0},
    {"slices", view_writes_setup, slices, NULL, SAME, 0},
    {"view_ops", one_input, view_ops, NULL, SAME, 0},
    {"mlp", layers_setup, layers, NULL, SAME, 0},
    {"mlp_varies", layers_setup, layers, NULL, VARY, 0},
    {"mlp_dynamic", layers_setup, layers, NULL, DYNAMIC, 0},
    {"norms", one_input, norms, NULL, SAME, 0},
    {"norms_vary", one_input, norms, NULL, VARY, 0},
    {"softmaxes", one_input, softmaxes, NULL, SAME, 0},
    {"pointwise", one_input, pointwise, NULL, SAME, 0},
    {"leaves", leaves_setup, leaves, NULL, SAME, 0},
    {"leaves_replayed", leaves_setup, leaves, NULL, REPLAY, 0},
    {"inputs", inputs_setup, declared, NULL, SAME, 0},
    {"inputs_vary", inputs_setup, declared, NULL, VARY, 0},
    {"inputs_dynamic", inputs_setup, declared, NULL, DYNAMIC, 0},
    {"scalars", one_input, scalars, NULL, SAME, 0},
    {"cat", leaves_setup, cat, NULL, SAME, 0},
    {"cat_computed", one_input, cat_computed, NULL, SAME, 0},
    {"split", view_writes_setup, split, NULL, SAME, 0},
    {"handles", one_input, handles, NULL, SAME, 0},
    {"later", small_input, later, NULL, SAME, 0},
    {"kernels", kernels_setup, kernels, NULL, SAME, 0},
    {"unlike_kernels", kernels_setup, unlike_kernels, NULL, SAME, 1000},
    {"gathers", gathers_setup, gathers, NULL, SAME, 0},
    {"pads", one_input, pads, NULL, SAME, 0},
    {"loops", one_input, loops, NULL, SAME, 0},
    {"scopes", one_input, scopes, NULL, SAME, 0},
    {"copies", copies_setup, copies, NULL, SAME, 0},
    {"wide", one_input, wide, NULL, SAME, 0},
    {"copy_outputs", leaves_setup, copy_outputs, NULL, SAME, 0},
    {"regions", one_input, NULL, regions, SAME, 0},
    {"plans", one_input, NULL, plans, SAME, 0},
    {"eager", one_input, NULL, eager, SAME, 0},
    {"bound", leaves_setup, NULL, bound, SAME, 0},
};

static void open_scale(struct scale *s, const struct family *f, size_t n) {
    static const int threads = 1;
    *s = (struct scale){.n = n, .rows = 4, .in = array(n), .weight = array(n), .out = array(n)};
    fine(trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = threads, .code_limit = (size_t)1 << 34), &s->ctx));
    fine(trace_region_create(s->ctx, f->name,
                             TRACE_REGION_OPTIONS(.mode = f->how == REPLAY ? TRACE_MODE_REPLAY : TRACE_MODE_RECORD,
                                                  .dynamic = f->how == DYNAMIC ? TRACE_DYNAMIC_ON : TRACE_DYNAMIC_AUTO),
                             &s->r));
    f->setup(s);
}

static void close_scale(struct scale *s) {
    let_go(s->in, &s->ninputs);
    let_go(s->weight, &s->nweights);
    trace_region_release(s->r);
    trace_context_release(s->ctx);
    free(s->in);
    free(s->weight);
    free(s->out);
}

/* Seconds of the first run, the second, and the best of the others. */
static void measure(const struct family *f, size_t n, double *seconds) {
    struct scale s;
    open_scale(&s, f, n);
    for (s.turn = 0; f->body && s.turn < turns; s.turn++) {
        if (f->how == VARY) {
            let_go(s.in, &s.ninputs);
            let_go(s.weight, &s.nweights);
            s.rows = 4 + s.turn;
            f->setup(&s);
        }
        double start = used();
        if (trace_begin(s.r, s.in, s.ninputs))
            f->body(&s);
        if (!s.nouts && f->how == REPLAY)
            s.nouts = 1;
        fine(trace_end(s.r, s.out, s.nouts));
        double took = used() - start;
        let_go(s.out, &s.nouts);
        int at = s.turn < 2 ? s.turn : 2;
        seconds[at] = s.turn > 2 ? fmin(seconds[at], took) : took;
    }
    if (f->drive)
        f->drive(&s, seconds);
    close_scale(&s);
}

static bool scale(const struct family *f, size_t most) {
    static const char *const what[3] = {"first", "second", "later"};
    double us[SIZES][3];
    int n = 0;
    for (; n < SIZES && sizes[n] <= most && (!f->most || sizes[n] <= f->most); n++) {
        double growth = n ? (double)sizes[n] / (double)sizes[n - 1] : 0;
        if (n && (us[n - 1][0] + us[n - 1][1]) * 1e-6 * (double)sizes[n - 1] * growth * growth > 100)
            break;
        measure(f, sizes[n], us[n]);
        for (int k = 0; k < 3; k++)
            us[n][k] *= 1e6 / (double)sizes[n];
    }
    double worst = 0;
    printf("{\"workload\": \"scale_%s\", \"n\": %zu", f->name, sizes[n - 1]);
    for (int k = 0; k < 3; k++) {
        double last = us[n - 1][k], ratio = last / us[n > 1 ? n - 2 : 0][k];
        printf(", \"%s_us\": [", what[k]);
        for (int i = 0; i < n; i++)
            printf("%s%.3f", i ? ", " : "", us[i][k]);
        worst = fmax(worst, ratio);
        printf("], \"%s_ratio\": %.2f, \"%s_of_1000\": %.2f", what[k], ratio, what[k], last / us[n > 1 ? 1 : 0][k]);
    }
    bool met = worst <= goal && (n == SIZES || f->most == sizes[n - 1] || most < sizes[n]);
    printf(", \"goal\": %.1f, \"met\": %s}\n", goal, met ? "true" : "false");
    fflush(stdout);
    return met;
}

int main(int argc, char **argv) {
    enum { FAMILIES = sizeof families / sizeof families[0] };
    size_t most = sizes[SIZES - 1], named = 0, met = 0, all = 0;
    bool wanted[FAMILIES] = {false};
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--max") && i + 1 < argc) {
            most = strtoul(argv[++i], NULL, 10);
            continue;
        }
        if (!strcmp(argv[i], "--turns") && i + 1 < argc) {
            turns = atoi(argv[++i]);
            continue;
        }
        if (!strcmp(argv[i], "--interpret")) {
            if (setenv("TRACEJIT_NO", "jit", 1))
                die("setenv", strerror(errno));
            continue;
        }
        size_t k = 0;
        while (k < FAMILIES && strcmp(families[k].name, argv[i]))
            k++;
        if (k == FAMILIES)
            die(argv[i], "no such family");
        wanted[k] = true;
        named++;
    }
    if (most < sizes[0])
        die("--max", "at least 100");
    if (turns < 3)
        die("--turns", "at least 3");
    for (size_t k = 0; k < FAMILIES; k++) {
        if (named && !wanted[k])
            continue;
        all++;
        met += scale(&families[k], most);
    }
    fprintf(stderr, "%zu of %zu families within %.1f of linear\n", met, all, goal);
    return 0;
}
