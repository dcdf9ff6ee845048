/* Semantics cases (tests/cases, whose format oracle.py there describes): every program runs eagerly, in a region twice,
 * and in the interpreter tier, and has to give the values it expects, or to fail cleanly where it says so. Cases listed
 * in pending.txt use what the API does not have yet. */
#include "json.h"
#include "op_call.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILES = 64, MAX_CASES = 512, MAX_NAMES = 64 };
static struct json *files[MAX_FILES];
static char *texts[MAX_FILES];
static size_t nfiles;
static const struct json *programs[MAX_CASES];
static size_t nprograms;
static char *pending;

static char problem[600]; /* why the current case failed; "" when it did not */

__attribute__((format(printf, 1, 2))) static void problem_is(const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (!*problem)
        vsnprintf(problem, sizeof problem, format, args);
    va_end(args);
}

/* ---- names of a running program ------------------------------------------------------------------------------- */

struct name {
    const char *name;
    trace_tensor *t;
    bool input, owned;
};
struct run {
    trace_context *ctx;
    struct name names[MAX_NAMES];
    size_t n;
    bool missing; /* the API lacks something */
};

static struct name *lookup(struct run *r, const char *name) {
    for (size_t i = r->n; i-- > 0;)
        if (!strcmp(r->names[i].name, name))
            return &r->names[i];
    return NULL;
}

static struct name *bind(struct run *r, const char *name, trace_tensor *t, bool input, bool owned) {
    ck_assert_msg(r->n < MAX_NAMES, "too many names");
    r->names[r->n] = (struct name){name, t, input, owned};
    return &r->names[r->n++];
}

static double number(const struct json *j) {
    if (j->kind == JSON_STRING)
        return strtod(j->text, NULL); /* nan, inf, -inf, -0.0 */
    return j->kind == JSON_BOOL ? (double)j->i : j->f;
}

static size_t integers(const struct json *list, int64_t *out, size_t cap) {
    size_t n = 0;
    if (list && list->kind == JSON_NUMBER)
        return out[0] = list->i, 1;
    for (const struct json *e = list ? list->child : NULL; e; e = e->next) {
        ck_assert_msg(n < cap && e->integer, "list of integers");
        out[n++] = e->i;
    }
    return n;
}

static void store(enum trace_dtype d, void *to, size_t i, const struct json *v) {
    if (d == TRACE_I64 && v->kind == JSON_NUMBER && v->integer)
        ((int64_t *)to)[i] = v->i;
    else
        op_store(d, to, i, number(v));
}

static size_t count_of(const int64_t *dims, size_t rank) {
    size_t n = 1;
    for (size_t i = 0; i < rank; i++)
        n *= (size_t)dims[i];
    return n;
}

static bool make_input(struct run *r, const struct json *s) {
    enum trace_dtype d;
    int64_t dims[TRACE_MAX_RANK];
    size_t rank = integers(json_get(s, "shape"), dims, TRACE_MAX_RANK), n = count_of(dims, rank);
    if (!op_dtype(json_text(s, "dtype"), &d))
        return false;
    void *values = calloc(n + 1, op_dtype_size(d));
    ck_assert(values);
    const struct json *data = json_get(s, "data"), *gen = json_get(s, "gen");
    if (gen) {
        const char *kind = json_text(gen, "kind");
        const struct json *a = json_get(gen, !strcmp(kind, "const") ? "value" : "start");
        const struct json *b = json_get(gen, !strcmp(kind, "arange") ? "step" : "stop");
        for (size_t i = 0; i < n; i++) {
            double v = number(a);
            if (!strcmp(kind, "arange"))
                v += number(b) * (double)i;
            if (!strcmp(kind, "linspace") && n > 1)
                v = i + 1 == n ? number(b) : v + (double)i * ((number(b) - v) / (double)(n - 1));
            op_store(d, values, i, v);
        }
    } else {
        ck_assert_uint_eq(data->n, n);
        size_t i = 0;
        for (const struct json *v = data->child; v; v = v->next)
            store(d, values, i++, v);
    }
    bind(r, json_text(s, "name"), trace_from(r->ctx, d, values, rank ? dims : NULL, rank), true, true);
    free(values);
    return true;
}

static void make_view(struct run *r, const struct json *s) {
    int64_t dims[TRACE_MAX_RANK], strides[TRACE_MAX_RANK];
    size_t rank = integers(json_get(s, "shape"), dims, TRACE_MAX_RANK);
    const struct json *offset = json_get(s, "offset");
    ck_assert_uint_eq(integers(json_get(s, "strides"), strides, TRACE_MAX_RANK), rank);
    struct name *of = lookup(r, json_text(s, "of"));
    ck_assert(of);
    trace_tensor *t = trace_as_strided(of->t, dims, strides, rank, offset ? offset->i : 0);
    bind(r, json_text(s, "name"), t, true, true);
}

/* ---- statements ----------------------------------------------------------------------------------------------- */

static struct op_attr *new_attr(struct op_args *a, const char *name, char kind) {
    ck_assert_msg(a->nattr < OP_MAX_ATTR, "too many attributes");
    struct op_attr *at = &a->attr[a->nattr++];
    snprintf(at->name, sizeof at->name, "%s", name);
    at->kind = kind;
    return at;
}

static void add_number(struct op_attr *at, const struct json *v) {
    ck_assert(at->n < 16);
    at->i[at->n] = v->i;
    at->f[at->n++] = number(v);
}

static void scalar_attr(struct op_args *a, const struct json *v) {
    const struct json *inner = v->kind == JSON_OBJECT ? json_get(v, "scalar") : v;
    add_number(
        new_attr(a, "scalar", (inner->kind == JSON_NUMBER && inner->integer) || inner->kind == JSON_BOOL ? 'i' : 'f'),
        inner);
}

/* A scalar where the API wants a tensor: 0-d, of a dtype that promotes as the scalar would. */
static trace_tensor *scalar_tensor(struct run *r, const struct json *v, trace_tensor *beside) {
    const struct json *inner = v->kind == JSON_OBJECT ? json_get(v, "scalar") : v;
    bool integral = inner->kind == JSON_NUMBER && inner->integer;
    int d = beside ? trace_dtype_of(beside) : -1;
    if (d < 0)
        return NULL;
    if (!integral && d < TRACE_F16)
        d = TRACE_F32;
    trace_tensor *t = integral ? trace_full_i(r->ctx, TRACE_SCALAR, inner->i, (enum trace_dtype)d)
                               : trace_full_f(r->ctx, TRACE_SCALAR, number(inner), (enum trace_dtype)d);
    bind(r, "", t, false, true);
    return t;
}

/* The attributes under the names that op_call knows. */
static bool attributes(struct op_args *a, const struct op_entry *e, const struct json *attrs) {
    static const struct {
        const char *op, *from, *to;
    } renamed[] = {{"expand", "size", "dims"}, {"reshape", "shape", "dims"}, {"var", "dim", "dims"}};
    for (const struct json *m = attrs ? attrs->child : NULL; m; m = m->next) {
        const char *name = m->key;
        for (size_t i = 0; i < sizeof renamed / sizeof renamed[0]; i++)
            if (!strcmp(renamed[i].op, e->name) && !strcmp(renamed[i].from, name))
                name = renamed[i].to;
        if (e->shape == OP_REDUCE && !strcmp(name, "dim"))
            name = "dims";
        if (!strcmp(name, "alpha") || !strcmp(name, "beta") || !strcmp(name, "equation"))
            return false;
        if (m->kind == JSON_NULL)
            continue;
        struct op_attr *at = new_attr(a, name, m->kind == JSON_STRING ? 's' : 'i');
        if (m->kind == JSON_STRING) {
            snprintf(at->s, sizeof at->s, "%s", m->text);
            enum trace_dtype d;
            if (!strcmp(name, "dtype") && !op_dtype(m->text, &d))
                return false;
        } else if (m->kind == JSON_ARRAY) {
            for (const struct json *v = m->child; v; v = v->next)
                add_number(at, v);
        } else {
            if (m->kind == JSON_NUMBER && !m->integer)
                at->kind = 'f';
            add_number(at, m);
        }
    }
    return true;
}

/* One statement; false when it failed, or when the API lacks it (r->missing). */
static bool statement(struct run *r, const struct json *s) {
    const char *name = json_text(s, "op");
    const struct json *operands = json_get(s, "in"), *out = json_get(s, "out");
    struct op_args a = {.ctx = r->ctx};
    const struct op_entry *e = op_find(!strcmp(name, "cast") ? "to" : name);
    trace_tensor *beside = NULL;
    bool swap = false;
    r->missing = true;
    if (!e || !attributes(&a, e, json_get(s, "attrs")))
        return false;
    for (const struct json *v = operands->child; v; v = v->next)
        if (v->kind == JSON_STRING && !beside) {
            struct name *n = lookup(r, v->text);
            ck_assert_msg(n, "no tensor %s", v->text);
            beside = n->t;
        }
    size_t i = 0;
    for (const struct json *v = operands->child; v; v = v->next, i++) {
        bool last = !v->next, only_two = operands->n == 2;
        ck_assert(a.nin < OP_MAX_IN);
        if (v->kind == JSON_STRING) {
            a.in[a.nin++] = lookup(r, v->text)->t;
        } else if (last && i && ((only_two && (e->with_f || !strcmp(name, "fill_"))) || !strcmp(name, "where"))) {
            scalar_attr(&a, v);
        } else if (!i && only_two && (!strcmp(name, "add") || !strcmp(name, "mul") || !strcmp(name, "sub"))) {
            scalar_attr(&a, v);
            swap = !strcmp(name, "sub");
        } else {
            a.in[a.nin++] = scalar_tensor(r, v, beside);
        }
    }
    if (swap)
        e = op_find("rsub");
    trace_tensor *results[OP_MAX_OUT] = {NULL};
    size_t n = op_call(e, &a, results);
    if (!n)
        return false;
    r->missing = false;
    for (i = 0; i < n; i++)
        if (!results[i])
            return false;
    if (!out)
        return true;
    if (n != (out->kind == JSON_ARRAY ? out->n : 1))
        return r->missing = true, false;
    const struct json *o = out->kind == JSON_ARRAY ? out->child : out;
    for (i = 0; i < n; i++, o = o->next)
        bind(r, o->text, results[i], false, !op_in_place(name));
    return true;
}

/* ---- expectations --------------------------------------------------------------------------------------------- */

static void expect(const char *how, const char *name, trace_tensor *t, const struct json *want) {
    enum trace_dtype d;
    int64_t dims[TRACE_MAX_RANK];
    size_t rank = integers(json_get(want, "shape"), dims, TRACE_MAX_RANK), n = count_of(dims, rank);
    ck_assert(op_dtype(json_text(want, "dtype"), &d));
    if (!t || trace_dtype_of(t) != (int)d || trace_rank(t) != (int)rank) {
        problem_is("%s: %s has rank %d and dtype %d, not rank %zu and dtype %s", how, name, trace_rank(t),
                   trace_dtype_of(t), rank, trace_dtype_name(d));
        return;
    }
    for (size_t i = 0; i < rank; i++)
        if (trace_size(t, (int64_t)i) != dims[i]) {
            problem_is("%s: extent %zu of %s is %lld", how, i, name, (long long)trace_size(t, (int64_t)i));
            return;
        }
    const struct json *fill = json_get(want, "fill"), *data = json_get(want, "data"), *v = data ? data->child : NULL;
    const struct json *rtol = json_get(want, "rtol"), *atol = json_get(want, "atol"),
                      *sz = json_get(want, "signed_zero");
    void *got = calloc(n + 1, op_dtype_size(d));
    ck_assert(got);
    if (trace_read(t, got, n * op_dtype_size(d)) != TRACE_OK) {
        problem_is("%s: %s cannot be read: %s", how, name, trace_last_error(NULL));
        free(got);
        return;
    }
    for (size_t i = 0; i < n; i++, v = v ? v->next : NULL) {
        const struct json *w = fill ? fill : v;
        ck_assert_msg(w, "too few expected values");
        double x = op_load(d, got, i), y = number(w);
        bool ok;
        if (d == TRACE_I64) {
            ok = ((int64_t *)got)[i] == w->i;
        } else if (d < TRACE_F16) {
            ok = x == y;
        } else {
            if (d == TRACE_F32 && !(rtol && rtol->f > 0))
                y = (double)(float)y;
            ok = (isnan(x) && isnan(y)) || x == y ||
                 fabs(x - y) <= (atol ? atol->f : 0) + (rtol ? rtol->f : 0) * fabs(y);
            if (sz && sz->i && x == 0 && y == 0 && signbit(x) != signbit(y))
                ok = false;
        }
        if (!ok) {
            problem_is("%s: %s[%zu] is %.17g, not %.17g", how, name, i, x, y);
            break;
        }
    }
    free(got);
}

/* Runs a program once. true when it could be tried at all. */
static bool run_once(const struct json *c, trace_context *ctx, trace_region *region, const char *how) {
    struct run *r = calloc(1, sizeof *r);
    ck_assert(r);
    r->ctx = ctx;
    const struct json *want = json_get(c, "expect"), *program = json_get(c, "program");
    bool ok = true, supported = true;
    for (const struct json *s = program->child; s && supported; s = s->next) {
        if (!strcmp(json_text(s, "op"), "input"))
            supported = make_input(r, s);
        if (!strcmp(json_text(s, "op"), "input_view"))
            make_view(r, s);
    }
    size_t ninputs = r->n, nout = 0;
    trace_tensor *inputs[MAX_NAMES], *outs[MAX_NAMES];
    const char *out_names[MAX_NAMES];
    for (size_t i = 0; i < ninputs; i++)
        inputs[i] = r->names[i].t;
    enum trace_status st = TRACE_OK;
    if (supported && region && !trace_begin(region, inputs, ninputs))
        ok = r->missing = false;
    if (supported && ok)
        for (const struct json *s = program->child; s && ok; s = s->next)
            if (strncmp(json_text(s, "op"), "input", 5) != 0)
                ok = statement(r, s);
    if (!ok && r->missing)
        supported = false;
    /* what the program made becomes outputs of the region; inputs are read for themselves */
    for (const struct json *w = want ? want->child : NULL; w && ok && supported; w = w->next) {
        struct name *n = lookup(r, w->key);
        ck_assert_msg(n, "no result %s", w->key);
        if (n->input)
            continue;
        out_names[nout] = w->key;
        outs[nout++] = n->t;
    }
    if (!nout && ok && supported && r->n > ninputs && json_get(c, "or_error")) /* the last value has to be asked for */
        out_names[nout] = "last", outs[nout++] = r->names[r->n - 1].t;
    if (region && supported) {
        st = trace_end(region, outs, nout);
        if (st != TRACE_OK)
            ok = false;
    } else if (region) {
        trace_abandon(region);
    }
    const char *error = ok ? "" : trace_last_error(ctx);
    if (supported && json_get(c, "or_error")) {
        for (size_t i = 0; i < nout && ok; i++) { /* eager: an error inside a kernel may show at the readback */
            size_t bytes = (size_t)trace_numel(outs[i]) * op_dtype_size((enum trace_dtype)trace_dtype_of(outs[i]));
            void *to = malloc(bytes + 1);
            ck_assert(to);
            ok = trace_read(outs[i], to, bytes) == TRACE_OK;
            free(to);
        }
        if (ok)
            problem_is("%s: no error was raised", how);
        if (!ok && !*trace_last_error(ctx))
            problem_is("%s: an error without text", how);
    } else if (supported && !ok) {
        problem_is("%s: %s", how, error);
    } else if (supported) {
        for (size_t i = 0; i < nout; i++)
            expect(how, out_names[i], outs[i], json_get(want, out_names[i]));
        for (const struct json *w = want->child; w; w = w->next)
            if (lookup(r, w->key)->input)
                expect(how, w->key, lookup(r, w->key)->t, w);
    }
    if (region)
        for (size_t i = 0; i < nout && st == TRACE_OK && supported; i++)
            trace_release(outs[i]);
    for (size_t i = 0; i < r->n; i++)
        if (r->names[i].owned && (i < ninputs || !region))
            trace_release(r->names[i].t);
    free(r);
    return supported;
}

/* After whatever happened, the context still works. */
static void still_works(trace_context *ctx, trace_region *region, const char *how) {
    float v[2] = {0};
    trace_tensor *x = trace_from(ctx, TRACE_F32, (const float[]){1, 2}, TRACE_DIMS(2)), *y = NULL;
    if (trace_begin(region, TRACE_ARGS(x)))
        y = trace_add_i(x, 1);
    if (trace_end(region, &y, 1) != TRACE_OK || trace_read(y, v, sizeof v) != TRACE_OK || v[0] != 2 || v[1] != 3)
        problem_is("%s: x + 1 fails afterwards: %s", how, trace_last_error(ctx));
    trace_release(y);
    trace_release(x);
}

static void quiet(void *user, const trace_event *e) {
    (void)user;
    (void)e;
}

static bool is_pending(const char *id) {
    size_t n = strlen(id);
    for (const char *p = pending; (p = strstr(p, id)); p += n)
        if ((p == pending || p[-1] == '\n') && p[n] == ' ')
            return true;
    return false;
}

START_TEST(case_holds) {
    const struct json *c = programs[_i];
    const char *id = json_text(c, "id");
    bool supported = true;
    *problem = 0;
    for (int jit = 1; jit >= 0; jit--) {
        trace_context *ctx;
        trace_region *region, *sanity;
        if (!jit)
            ck_assert_int_eq(setenv("TRACEJIT_NO", "jit", 1), 0);
        enum trace_status st = trace_context_create(TRACE_CONTEXT_OPTIONS(.on_event = quiet), &ctx);
        if (!jit)
            unsetenv("TRACEJIT_NO");
        ck_assert_msg(st == TRACE_OK, "context: %s", trace_last_error(NULL));
        ck_assert(trace_region_create(ctx, id, NULL, &region) == TRACE_OK);
        ck_assert(trace_region_create(ctx, "sanity", NULL, &sanity) == TRACE_OK);
        supported = run_once(c, ctx, NULL, jit ? "eager" : "interpreter, eager");
        if (supported) {
            (void)run_once(c, ctx, region, jit ? "region" : "interpreter, region");
            (void)run_once(c, ctx, region, jit ? "region again" : "interpreter, region again");
        }
        still_works(ctx, sanity, "sanity");
        trace_region_release(sanity);
        trace_region_release(region);
        trace_context_release(ctx);
    }
    if (is_pending(id)) {
        ck_assert_msg(!supported, "%s is in pending.txt but can run: take it out", id);
        return;
    }
    ck_assert_msg(supported, "%s uses what the API lacks, and is not in pending.txt", id);
    ck_assert_msg(!*problem, "%s: %s", id, problem);
}
END_TEST

/* ---- files ---------------------------------------------------------------------------------------------------- */

static char *read_file(const char *path) {
    FILE *f = fopen(path, "rb");
    char *text = NULL;
    long n = -1;
    if (!f)
        return NULL;
    if (fseek(f, 0, SEEK_END) == 0 && (n = ftell(f)) >= 0 && fseek(f, 0, SEEK_SET) == 0 &&
        (text = malloc((size_t)n + 1)))
        text[fread(text, 1, (size_t)n, f)] = 0;
    fclose(f);
    return text;
}

static bool load(const char *folder, const char *name) {
    char path[600];
    const char *error;
    size_t at;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (nfiles == MAX_FILES || !(texts[nfiles] = read_file(path)))
        return false;
    files[nfiles] = json_parse(texts[nfiles], &error, &at);
    if (!files[nfiles]) {
        fprintf(stderr, "%s: byte %zu: %s\n", path, at, error);
        return false;
    }
    for (const struct json *c = files[nfiles]->child; c; c = c->next)
        if (json_get(c, "program") && nprograms < MAX_CASES)
            programs[nprograms++] = c;
    nfiles++;
    return true;
}

static int by_id(const void *a, const void *b) {
    return strcmp(json_text(*(const struct json *const *)a, "id"), json_text(*(const struct json *const *)b, "id"));
}

int main(int argc, char **argv) {
    const char *folder = getenv("TJ_CASES") ? getenv("TJ_CASES") : "tests/cases";
    char path[600];
    DIR *dir = opendir(folder);
    snprintf(path, sizeof path, "%s/pending.txt", folder);
    if (!dir || !(pending = read_file(path))) {
        fprintf(stderr, "%s: %s\n", folder, strerror(errno));
        return 2;
    }
    for (struct dirent *d; (d = readdir(dir));) {
        size_t n = strlen(d->d_name);
        if (n > 5 && !strcmp(d->d_name + n - 5, ".json") && !load(folder, d->d_name))
            return 2;
    }
    closedir(dir);
    qsort(programs, nprograms, sizeof programs[0], by_id);
    Suite *s = suite_create("cases");
    TCase *tc = tcase_create("programs");
    tcase_set_timeout(tc, 120);
    /* test_cases ID...: only these */
    for (size_t i = 0; i < nprograms; i++) {
        bool wanted = argc < 2;
        for (int k = 1; k < argc; k++)
            wanted |= !strcmp(argv[k], json_text(programs[i], "id"));
        if (wanted)
            tcase_add_loop_test(tc, case_holds, (int)i, (int)i + 1);
    }
    suite_add_tcase(s, tc);
    SRunner *runner = srunner_create(s);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    for (size_t i = 0; i < nfiles; i++) {
        json_free(files[i]);
        free(texts[i]);
    }
    free(pending);
    return failed != 0;
}
