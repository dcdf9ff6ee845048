/* digits: runs a small CNN that PyTorch trained (train_digits.py) on 8x8 images of handwritten digits.
 *
 *     cc -std=c11 digits.c -ltracejit -o digits && ./digits digits.safetensors [--report] [--explain PREFIX]
 *
 * It classifies 400 held-out images in batches of changing size, shows a graph break and its remedy, compares the
 * compiled model with the same ops run one by one, and prints what the library did. --explain times the kernels of some
 * more runs and writes PREFIX.html, a page about all regions, and PREFIX.txt and PREFIX.json about one. Exit status 0
 * means that every call succeeded and at least 97% of the images were classified correctly.
 */
#include <tracejit.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- safetensors: 8 bytes of header length, a JSON header, the data -----------------------------------------------
 */

struct file {
    char *header; /* NUL-terminated */
    const unsigned char *data;
    size_t data_size;
    unsigned char *all;
};
struct entry {
    enum trace_dtype dtype;
    int64_t dims[TRACE_MAX_RANK];
    size_t rank;
    const void *data;
};

static int open_file(const char *path, struct file *f) {
    FILE *in = fopen(path, "rb");
    long size = -1;
    memset(f, 0, sizeof *f);
    if (in && fseek(in, 0, SEEK_END) == 0 && (size = ftell(in)) > 8 && fseek(in, 0, SEEK_SET) == 0 &&
        (f->all = malloc((size_t)size)) != NULL && fread(f->all, 1, (size_t)size, in) != (size_t)size)
        size = -1;
    if (in)
        fclose(in);
    if (size < 0 || !f->all)
        return fprintf(stderr, "%s: cannot read it\n", path), -1;
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--)
        length = length << 8 | f->all[i];
    if (length > (uint64_t)size - 8)
        return fprintf(stderr, "%s: not a safetensors file\n", path), -1;
    if (!(f->header = malloc((size_t)length + 1)))
        return -1;
    memcpy(f->header, f->all + 8, (size_t)length);
    f->header[length] = 0;
    f->data = f->all + 8 + length;
    f->data_size = (size_t)size - 8 - (size_t)length;
    return 0;
}

static void close_file(struct file *f) {
    free(f->header);
    free(f->all);
}

/* The numbers of `"key":[...]` inside an object; -1 if it is not there or malformed. */
static int numbers(const char *object, const char *end, const char *key, int64_t *out, size_t cap, size_t *n) {
    const char *p = strstr(object, key);
    *n = 0;
    if (!p || p > end)
        return -1;
    for (p += strlen(key); *p != ']';) {
        char *next;
        long long v = strtoll(p, &next, 10);
        if (next == p || *n == cap || v < 0)
            return -1;
        out[(*n)++] = v;
        p = *next == ',' ? next + 1 : next;
        if (*next != ',' && *next != ']')
            return -1;
    }
    return 0;
}

static int find(const struct file *f, const char *name, struct entry *e) {
    char key[80];
    int64_t at[2];
    size_t n, count = 1;
    snprintf(key, sizeof key, "\"%s\":{", name);
    const char *object = strstr(f->header, key), *end = object ? strchr(object, '}') : NULL;
    if (!end || numbers(object, end, "\"shape\":[", e->dims, TRACE_MAX_RANK, &e->rank) ||
        numbers(object, end, "\"data_offsets\":[", at, 2, &n) || n != 2) {
        fprintf(stderr, "tensor %s is not in the file\n", name);
        return -1;
    }
    static const struct {
        const char *name;
        enum trace_dtype dtype;
        size_t size;
    } types[] = {
        {"\"dtype\":\"F32\"", TRACE_F32, 4}, {"\"dtype\":\"I64\"", TRACE_I64, 8}, {"\"dtype\":\"U8\"", TRACE_U8, 1}};
    size_t size = 0;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        const char *p = strstr(object, types[i].name);
        if (p && p < end)
            e->dtype = types[i].dtype, size = types[i].size;
    }
    for (size_t i = 0; i < e->rank; i++) {
        if (e->dims[i] && count > f->data_size / (size_t)e->dims[i])
            return -1;
        count *= (size_t)e->dims[i];
    }
    if (!size || at[0] > at[1] || (uint64_t)at[1] > f->data_size ||
        (uint64_t)(at[1] - at[0]) != (uint64_t)count * size) {
        fprintf(stderr, "tensor %s: bad dtype or extent\n", name);
        return -1;
    }
    e->data = f->data + at[0];
    return 0;
}

/* ---- the model ----------------------------------------------------------------------------------------------------
 */

struct model {
    trace_tensor *conv1_w, *conv1_b, *conv2_w, *conv2_b, *fc1_w, *fc1_b, *fc2_w, *fc2_b;
};

static int load(trace_context *ctx, const struct file *f, struct model *m) {
    static const char *const names[] = {"conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias",
                                        "fc1.weight",   "fc1.bias",   "fc2.weight",   "fc2.bias"};
    trace_tensor **const to[] = {&m->conv1_w, &m->conv1_b, &m->conv2_w, &m->conv2_b,
                                 &m->fc1_w,   &m->fc1_b,   &m->fc2_w,   &m->fc2_b};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct entry e;
        if (find(f, names[i], &e) || !(*to[i] = trace_from(ctx, e.dtype, e.data, e.dims, e.rank)))
            return -1;
    }
    return 0;
}

static void unload(struct model *m) {
    trace_tensor *const all[] = {m->conv1_w, m->conv1_b, m->conv2_w, m->conv2_b,
                                 m->fc1_w,   m->fc1_b,   m->fc2_w,   m->fc2_b};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        trace_release(all[i]);
}

/* images u8 [N, 1, 8, 8], 0..16 -> scores [N, 10]. No call is checked: an error travels through to trace_end. */
static trace_tensor *scores_of(const struct model *m, trace_tensor *images) {
    static const int64_t pad[2] = {1, 1}, two[2] = {2, 2};
    trace_tensor *x = trace_mul_f(trace_to(images, TRACE_F32), 1.0 / 16);
    x = trace_relu(trace_conv2d(x, m->conv1_w, m->conv1_b, NULL, pad, NULL, 1));
    x = trace_relu(trace_conv2d(x, m->conv2_w, m->conv2_b, NULL, pad, NULL, 1));
    x = trace_flatten(trace_max_pool2d(x, two, NULL, NULL, NULL, false), 1, -1);
    x = trace_relu(trace_linear(x, m->fc1_w, m->fc1_b));
    return trace_linear(x, m->fc2_w, m->fc2_b);
}

/* ---- what the library tells ---------------------------------------------------------------------------------------
 */

struct notes {
    char text[24][400];
    size_t n, left_out;
};

static void on_event(void *user, const trace_event *e) {
    struct notes *notes = user;
    const char *kind = e->kind == TRACE_EVENT_RECOMPILE  ? "recompile"
                       : e->kind == TRACE_EVENT_BREAK    ? "break"
                       : e->kind == TRACE_EVENT_LINT     ? "lint"
                       : e->kind == TRACE_EVENT_FALLBACK ? "fallback"
                                                         : NULL;
    if (!kind)
        return;
    if (notes->n == sizeof notes->text / sizeof notes->text[0]) {
        notes->left_out++;
        return;
    }
    snprintf(notes->text[notes->n++], sizeof notes->text[0], "%-9s %s: %s: %s (%.2f ms)", kind, e->region, e->where,
             e->what, e->ms);
}

static double now_us(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- the parts of the program -------------------------------------------------------------------------------------
 */

struct program {
    trace_context *ctx;
    struct model model;
    struct entry images, labels;
    int64_t count;
    bool report;
    const char *explain; /* where to write explanations, or NULL */
};

static trace_tensor *batch_of(const struct program *p, const struct entry *e, int64_t first, int64_t n) {
    int64_t dims[TRACE_MAX_RANK], each = 1;
    memcpy(dims, e->dims, sizeof dims);
    dims[0] = n;
    for (size_t i = 1; i < e->rank; i++)
        each *= dims[i];
    size_t size = e->dtype == TRACE_U8 ? 1 : e->dtype == TRACE_I64 ? 8 : 4;
    return trace_wrap_const(p->ctx, e->dtype, (const char *)e->data + (size_t)(first * each) * size, dims, e->rank);
}

/* All images, in batches of changing size; the number classified correctly, or -1. */
static int64_t classify_all(const struct program *p, trace_region *region) {
    static const int64_t sizes[] = {32, 7, 64, 1, 100, 32, 3, 64};
    const int64_t *labels = p->labels.data;
    int64_t correct = 0, best[128];
    for (int64_t first = 0, n, turn = 0; first < p->count; first += n, turn++) {
        n = sizes[(size_t)turn % (sizeof sizes / sizeof sizes[0])];
        if (n > p->count - first)
            n = p->count - first;
        trace_tensor *images = batch_of(p, &p->images, first, n), *digit = NULL;
        if (trace_begin(region, TRACE_ARGS(images)))
            digit = trace_argmax(scores_of(&p->model, images), 1, false);
        enum trace_status st = trace_end(region, &digit, 1);
        if (st == TRACE_OK)
            st = trace_read(digit, best, (size_t)n * sizeof *best); /* after the end: never a break */
        trace_release(digit);
        trace_release(images);
        if (st != TRACE_OK)
            return -1;
        for (int64_t i = 0; i < n; i++)
            correct += best[i] == labels[first + i];
    }
    return correct;
}

/* Counts the hits of each batch of 50 on the device and takes the mean confidence. With later false the count is read
 * in the middle of the region: a graph break, which splits it in two. With later true the count becomes one more result
 * of the run, read after trace_end: no break, one launch list. (Returning it as an output and reading that does the
 * same.) */
static int64_t count_hits(const struct program *p, trace_region *region, bool later, double *confidence) {
    int64_t total = 0, hits = 0;
    *confidence = 0;
    for (int64_t first = 0, n = 50; first + n <= p->count; first += n) {
        trace_tensor *images = batch_of(p, &p->images, first, n), *labels = batch_of(p, &p->labels, first, n);
        trace_tensor *mean = NULL, *promise = NULL;
        enum trace_status st = TRACE_OK;
        if (trace_begin(region, TRACE_ARGS(images, labels))) {
            trace_tensor *scores = scores_of(&p->model, images);
            trace_tensor *right = trace_sum(trace_eq(trace_argmax(scores, 1, false), labels), TRACE_SCALAR, false);
            if (later) {
                promise = trace_item_later(right);
            } else {
                st = trace_item_i64(right, &hits); /* the graph break */
            }
            mean = trace_mean(trace_amax(trace_softmax(scores, 1), TRACE_DIMS(1), false), TRACE_SCALAR, false);
        }
        enum trace_status end = trace_end(region, &mean, 1);
        if (st == TRACE_OK)
            st = end;
        if (st == TRACE_OK && later)
            st = trace_item_i64(promise, &hits);
        double m = 0;
        if (st == TRACE_OK)
            st = trace_item_f64(mean, &m);
        trace_release(promise);
        trace_release(mean);
        trace_release(labels);
        trace_release(images);
        if (st != TRACE_OK)
            return -1;
        total += hits;
        *confidence += m * (double)n / (double)p->count;
    }
    return total;
}

/* Median times of one run over the first n images in two regions, in microseconds, taken in turns. */
static enum trace_status time_both(const struct program *p, trace_region *const regions[2], int64_t n,
                                   double median[2]) {
    enum { TURNS = 101 };
    static double us[2][TURNS];
    trace_tensor *images = batch_of(p, &p->images, 0, n);
    enum trace_status st = images ? TRACE_OK : TRACE_ERR_MEMORY;
    for (int i = -5; i < TURNS && st == TRACE_OK; i++) { /* the first runs compile */
        for (int k = 0; k < 2 && st == TRACE_OK; k++) {
            double start = now_us();
            trace_tensor *scores = NULL;
            if (trace_begin(regions[k], TRACE_ARGS(images)))
                scores = scores_of(&p->model, images);
            st = trace_end(regions[k], &scores, 1);
            trace_release(scores);
            if (i >= 0)
                us[k][i] = now_us() - start;
        }
    }
    trace_release(images);
    for (int k = 0; k < 2; k++) {
        qsort(us[k], TURNS, sizeof us[k][0], by_value);
        median[k] = us[k][TURNS / 2];
    }
    return st;
}

static void print_region(const char *name, const trace_region *region) {
    trace_stats s = {.size = sizeof s};
    trace_region_stats(region, &s);
    double runs = s.runs ? (double)s.runs : 1;
    printf(
        "%-10s %4llu runs: %5.1f ops a run in %4.1f kernels; %llu hits, %llu misses, %llu plans, %llu recompiles, %llu breaks\n",
        name, (unsigned long long)s.runs, (double)s.ops_recorded / runs, (double)s.launches / runs,
        (unsigned long long)s.hits, (unsigned long long)s.misses, (unsigned long long)s.graphs,
        (unsigned long long)s.recompiles, (unsigned long long)s.breaks);
}

/* ---- explanations -------------------------------------------------------------------------------------------------
 */

/* Of a region, or (NULL) of the whole context, as a file. */
static int write_explanation(const struct program *p, const trace_region *region, enum trace_format format,
                             const char *suffix) {
    char path[1024];
    size_t need = 0, room;
    char *text = NULL;
    enum trace_status st = TRACE_ERR_MEMORY;
    int ok = snprintf(path, sizeof path, "%s%s", p->explain, suffix) < (int)sizeof path;
    for (int tries = 0; ok && tries < 4 && st == TRACE_ERR_MEMORY; tries++) { /* it may grow between two calls */
        room = need + need / 8 + 4096;
        free(text);
        if (!(text = malloc(room)))
            break;
        st = region ? trace_explain(region, format, text, room, &need)
                    : trace_context_report(p->ctx, format, text, room, &need);
    }
    FILE *f = st == TRACE_OK ? fopen(path, "w") : NULL;
    ok = f && fwrite(text, 1, need, f) == need;
    if (f && fclose(f))
        ok = 0;
    if (ok)
        printf("wrote %s\n", path);
    else
        fprintf(stderr, "digits: cannot write %s: %s\n", path, st ? trace_last_error(p->ctx) : "the file failed");
    free(text);
    return ok ? 0 : -1;
}

static int explain(const struct program *p, trace_region *classify, trace_region *broken, trace_region *whole) {
    double confidence;
    trace_region *const all[3] = {classify, broken, whole};
    for (int k = 0; k < 3; k++)
        (void)trace_region_profile(all[k], true);
    for (int i = 0; i < 5; i++) /* steady runs, each kernel of which is timed */
        if (classify_all(p, classify) < 0 || count_hits(p, broken, false, &confidence) < 0 ||
            count_hits(p, whole, true, &confidence) < 0)
            return -1;
    for (int k = 0; k < 3; k++)
        (void)trace_region_profile(all[k], false);
    printf("\n");
    return write_explanation(p, NULL, TRACE_FORMAT_HTML, ".html") ||
                   write_explanation(p, broken, TRACE_FORMAT_TEXT, ".txt") ||
                   write_explanation(p, broken, TRACE_FORMAT_JSON, ".json")
               ? -1
               : 0;
}

static int run(struct program *p, const struct notes *notes) {
    trace_region *classify = NULL, *broken = NULL, *whole = NULL, *single = NULL;
    int status = -1;
    printf("%s\n\n", trace_context_describe(p->ctx));
    if (trace_region_create(p->ctx, "classify", NULL, &classify) ||
        trace_region_create(p->ctx, "item", NULL, &broken) || trace_region_create(p->ctx, "item_later", NULL, &whole) ||
        trace_region_create(p->ctx, "op_by_op", TRACE_REGION_OPTIONS(.mode = TRACE_MODE_EAGER), &single))
        goto out;

    int64_t correct = classify_all(p, classify);
    if (correct < 0)
        goto out;
    double accuracy = (double)correct / (double)p->count, confidence[2];
    printf("accuracy   %.2f%%: %lld of %lld held-out images\n", 100 * accuracy, (long long)correct,
           (long long)p->count);

    int64_t with_break = count_hits(p, broken, false, &confidence[0]),
            without = count_hits(p, whole, true, &confidence[1]);
    if (with_break < 0 || without < 0)
        goto out;
    printf("counted    %lld with a graph break, %lld without; mean confidence %.4f and %.4f\n\n", (long long)with_break,
           (long long)without, confidence[0], confidence[1]);

    for (int64_t n = 1; n <= 64; n *= 64) {
        trace_region *const both[2] = {single, classify};
        double us[2];
        if (time_both(p, both, n, us) != TRACE_OK)
            goto out;
        printf("batch %-4lld op by op %8.1f us, compiled %8.1f us: %.2f times as fast\n", (long long)n, us[0], us[1],
               us[0] / us[1]);
    }

    printf("\n");
    print_region("classify", classify);
    print_region("item", broken);
    print_region("item_later", whole);
    printf("\nwhat the library reported as it happened:\n");
    for (size_t i = 0; i < notes->n; i++)
        printf("  %s\n", notes->text[i]);
    if (notes->left_out)
        printf("  and %zu more\n", notes->left_out);

    if (p->report) { /* everything there is, every plan's kernels included */
        size_t need = 0;
        (void)trace_context_report(p->ctx, TRACE_FORMAT_TEXT, NULL, 0, &need);
        char *text = malloc(need + 1024); /* counters may have grown by a digit */
        if (text && trace_context_report(p->ctx, TRACE_FORMAT_TEXT, text, need + 1024, &need) == TRACE_OK)
            printf("\n%s", text);
        free(text);
    }
    if (p->explain && explain(p, classify, broken, whole))
        goto out;
    status = 0;
    if (accuracy < 0.97 || with_break != correct || without != correct) {
        fprintf(stderr, "digits: accuracy too low, or the counts differ\n");
        status = 1;
    }
out:
    if (status < 0)
        fprintf(stderr, "digits: %s\n", trace_last_error(p->ctx));
    trace_region_release(single);
    trace_region_release(whole);
    trace_region_release(broken);
    trace_region_release(classify);
    return status != 0;
}

int main(int argc, char **argv) {
    static struct notes notes;
    struct program p = {0};
    struct file file;
    int status = 1;
    if (open_file(argc > 1 ? argv[1] : "digits.safetensors", &file) == 0) {
        if (trace_context_create(TRACE_CONTEXT_OPTIONS(.on_event = on_event, .event_user = &notes), &p.ctx) !=
            TRACE_OK) {
            fprintf(stderr, "digits: %s\n", trace_last_error(NULL));
        } else if (load(p.ctx, &file, &p.model) || find(&file, "images", &p.images) ||
                   find(&file, "labels", &p.labels) || p.images.rank != 4 || p.labels.rank != 1 ||
                   p.labels.dtype != TRACE_I64 || p.labels.dims[0] != p.images.dims[0]) {
            fprintf(stderr, "digits: cannot load the model: %s\n", trace_last_error(p.ctx));
        } else {
            p.count = p.images.dims[0];
            for (int i = 2; i < argc; i++) {
                if (!strcmp(argv[i], "--report"))
                    p.report = true;
                else if (!strcmp(argv[i], "--explain") && i + 1 < argc)
                    p.explain = argv[++i];
            }
            status = run(&p, &notes);
        }
        unload(&p.model);
        trace_context_release(p.ctx);
    }
    close_file(&file);
    return status;
}
