/* Golden values of single ops (tests/oracle/ops.txt, whose format oracle/make_ops.py describes): each case runs
 * eagerly, in a region twice, and in the interpreter tier, eagerly and in a region. One libcheck test an op. Without
 * TJ_ALL (make test-ops) one case in three is compiled, and the interpreter takes each in one of its two ways. */
#include "op_call.h"

#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the file ------------------------------------------------------------------------------------------------- */

struct data {
    const char *name, *hex;
    size_t count;
    enum trace_dtype dtype;
};
struct operand {
    bool none;
    enum trace_dtype dtype;
    int64_t dims[TRACE_MAX_RANK];
    size_t rank, count;
    char layout;
    void *values; /* row-major */
};
struct golden {
    const char *op, *id;
    struct operand in[OP_MAX_IN], out[OP_MAX_OUT];
    size_t nin, nout;
    struct op_attr attr[OP_MAX_ATTR];
    size_t nattr;
    bool signed_zero;
    double ulp, rel, abs;
};
static struct data *datas;
static size_t ndata;
static struct golden *cases;
static size_t ncases;
static const char *op_names[256];
static size_t nop_names;

#define MUST(cond, ...)                                                                                                \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            fprintf(stderr, "ops.txt:%d: ", line_no);                                                                  \
            fprintf(stderr, __VA_ARGS__);                                                                              \
            fputc('\n', stderr);                                                                                       \
            exit(2);                                                                                                   \
        }                                                                                                              \
    } while (0)
static int line_no;

static char *read_file(const char *path, size_t *size) {
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    char *text = NULL;
    long n = -1;
    if (fseek(f, 0, SEEK_END) == 0 && (n = ftell(f)) >= 0 && fseek(f, 0, SEEK_SET) == 0 &&
        (text = malloc((size_t)n + 1))) {
        *size = fread(text, 1, (size_t)n, f);
        text[*size] = 0;
    }
    fclose(f);
    return text;
}

static int hex_digit(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

/* One element of size bytes from its big-endian digits, stored as the host stores it. */
static bool hex_element(const char *hex, size_t size, void *to) {
    uint64_t v = 0;
    for (size_t i = 0; i < 2 * size; i++) {
        int d = hex_digit(hex[i]);
        if (d < 0)
            return false;
        v = v << 4 | (unsigned)d;
    }
    uint8_t b = (uint8_t)v;
    uint16_t h = (uint16_t)v;
    uint32_t w = (uint32_t)v;
    memcpy(to, size == 1 ? (void *)&b : size == 2 ? (void *)&h : size == 4 ? (void *)&w : (void *)&v, size);
    return true;
}

static void parse_operand(struct operand *o, char *save, bool with_layout) {
    char *word = strtok_r(NULL, " ", &save);
    MUST(word, "operand without dtype");
    if (!strcmp(word, "none")) {
        o->none = true;
        return;
    }
    MUST(op_dtype(word, &o->dtype), "dtype %s", word);
    char *dims = strtok_r(NULL, " ", &save);
    MUST(dims, "operand without dims");
    o->count = 1;
    for (char *p = dims; strcmp(dims, "-") != 0;) {
        MUST(o->rank < TRACE_MAX_RANK, "rank");
        o->dims[o->rank] = strtoll(p, &p, 10);
        MUST(o->dims[o->rank] >= 0 && o->dims[o->rank] < 1 << 20, "extent");
        o->count *= (size_t)o->dims[o->rank++];
        if (*p++ != ',')
            break;
    }
    o->layout = 'c';
    if (with_layout) {
        char *l = strtok_r(NULL, " ", &save);
        MUST(l && strchr("ctseu", l[0]), "layout");
        o->layout = l[0];
    }
    char *ref = strtok_r(NULL, " ", &save);
    MUST(ref, "operand without data");
    size_t size = op_dtype_size(o->dtype);
    o->values = malloc(o->count * size + 1);
    MUST(o->values, "memory");
    if (ref[0] == '%') {
        long mul, mod, sub;
        MUST(sscanf(ref, "%%%ld,%ld,%ld", &mul, &mod, &sub) == 3 && mod > 0, "generated operand");
        for (size_t i = 0; i < o->count; i++)
            op_store(o->dtype, o->values, i, (double)((long)i * mul % mod - sub));
        return;
    }
    const char *hex = ref;
    size_t have = strlen(ref) / (2 * size);
    if (ref[0] == '@') {
        hex = NULL;
        for (size_t i = ndata; i-- > 0 && !hex;)
            if (!strcmp(datas[i].name, ref + 1) && datas[i].dtype == o->dtype)
                hex = datas[i].hex, have = datas[i].count;
        MUST(hex, "no data record %s", ref);
    } else if (!strcmp(ref, "-")) {
        have = 0;
    }
    MUST(have >= o->count, "%zu elements, %zu wanted", have, o->count);
    for (size_t i = 0; i < o->count; i++)
        MUST(hex_element(hex + 2 * size * i, size, (char *)o->values + size * i), "bad hex digit");
}

static void parse_attr(struct op_attr *a, char *save) {
    char *name = strtok_r(NULL, " ", &save), *kind = strtok_r(NULL, " ", &save), *word;
    MUST(name && kind && strlen(name) < sizeof a->name && strchr("ifs", kind[0]), "attr");
    strcpy(a->name, name);
    a->kind = kind[0];
    while ((word = strtok_r(NULL, " ", &save))) {
        MUST(a->n < 16 && strlen(word) < sizeof a->s, "attr %s", name);
        char *end = word + strlen(word);
        if (a->kind == 'i')
            a->i[a->n] = strtoll(word, &end, 10);
        if (a->kind == 'f')
            a->f[a->n] = strtod(word, &end);
        if (a->kind == 's')
            strcpy(a->s, word);
        MUST(!*end, "attr %s: %s", name, word);
        a->n++;
    }
}

static void parse_tolerance(struct golden *g, char *save) {
    char *word;
    while ((word = strtok_r(NULL, " ", &save))) {
        if (!strcmp(word, "exact") || !strcmp(word, "sz")) {
            g->signed_zero = true;
        } else if (strcmp(word, "value") != 0) {
            double *to = !strcmp(word, "ulp")   ? &g->ulp
                         : !strcmp(word, "rel") ? &g->rel
                         : !strcmp(word, "abs") ? &g->abs
                                                : NULL;
            char *v = strtok_r(NULL, " ", &save), *end = v;
            MUST(to && v, "tolerance %s", word);
            *to = strtod(v, &end);
            MUST(!*end, "tolerance %s", v);
        }
    }
}

static void parse(char *text) {
    size_t cap_data = 0, cap_cases = 0;
    struct golden *g = NULL;
    for (char *line = text, *next; line && *line; line = next) {
        line_no++;
        if ((next = strchr(line, '\n')))
            *next++ = 0;
        if (*line == '#' || !*line)
            continue;
        char *save, *word = strtok_r(line, " ", &save);
        if (!strcmp(word, "data")) {
            if (ndata == cap_data) {
                datas = realloc(datas, (cap_data = 2 * cap_data + 1024) * sizeof *datas);
                MUST(datas, "memory");
            }
            struct data *d = &datas[ndata++];
            char *name = strtok_r(NULL, " ", &save), *dtype = strtok_r(NULL, " ", &save),
                 *count = strtok_r(NULL, " ", &save);
            char *hex = strtok_r(NULL, " ", &save);
            MUST(hex && op_dtype(dtype, &d->dtype), "data record");
            *d = (struct data){name, hex, strtoul(count, NULL, 10), d->dtype};
            MUST(strlen(hex) == d->count * 2 * op_dtype_size(d->dtype), "data record of %zu digits", strlen(hex));
        } else if (!strcmp(word, "case")) {
            if (ncases == cap_cases) {
                cases = realloc(cases, (cap_cases = 2 * cap_cases + 1024) * sizeof *cases);
                MUST(cases, "memory");
            }
            g = memset(&cases[ncases++], 0, sizeof *g);
            g->op = strtok_r(NULL, " ", &save);
            g->id = strtok_r(NULL, " ", &save);
            MUST(g->id, "case");
            size_t i = 0;
            while (i < nop_names && strcmp(op_names[i], g->op) != 0)
                i++;
            MUST(i < sizeof op_names / sizeof op_names[0], "too many ops");
            if (i == nop_names)
                op_names[nop_names++] = g->op;
        } else if (g && !strcmp(word, "in")) {
            MUST(g->nin < OP_MAX_IN, "too many operands");
            parse_operand(&g->in[g->nin++], save, true);
        } else if (g && !strcmp(word, "out")) {
            MUST(g->nout < OP_MAX_OUT, "too many results");
            parse_operand(&g->out[g->nout++], save, false);
        } else if (g && !strcmp(word, "attr")) {
            MUST(g->nattr < OP_MAX_ATTR, "too many attributes");
            parse_attr(&g->attr[g->nattr++], save);
        } else {
            MUST(g && !strcmp(word, "tol"), "record %s", word);
            parse_tolerance(g, save);
        }
    }
}

/* ---- operands and results ------------------------------------------------------------------------------------- */

/* Strides of a layout and the elements its buffer needs. */
static size_t layout_strides(const struct operand *o, int64_t *strides) {
    int64_t step = 1;
    size_t need = 1;
    for (size_t k = 0; k < o->rank; k++) {
        size_t d = o->layout == 't' ? k : o->rank - 1 - k;
        if (o->layout == 's' && k == 0)
            step = 2;
        strides[d] = o->layout == 'e' && d == 0 ? 0 : step;
        if (strides[d])
            step *= o->dims[d] ? o->dims[d] : 1;
    }
    for (size_t d = 0; d < o->rank; d++)
        need += o->dims[d] ? (size_t)((o->dims[d] - 1) * strides[d]) : 0;
    return need + 2;
}

/* A tensor of an operand; *memory has to be freed after it. */
static trace_tensor *make(trace_context *ctx, const struct operand *o, void **memory) {
    *memory = NULL;
    if (o->none)
        return TRACE_NONE;
    if (o->layout == 'c')
        return trace_from(ctx, o->dtype, o->values, o->rank ? o->dims : NULL, o->rank);
    int64_t strides[TRACE_MAX_RANK], index[TRACE_MAX_RANK] = {0};
    size_t size = op_dtype_size(o->dtype), need = layout_strides(o, strides);
    char *buf = *memory = malloc(need * size);
    ck_assert(buf);
    memset(buf, 0xa5 & (o->dtype == TRACE_BOOL ? 1 : 0xff), need * size); /* never to be seen */
    char *base = buf + (o->layout == 'u' ? size : 0);
    for (size_t i = 0; i < o->count; i++) {
        int64_t at = 0;
        for (size_t d = 0; d < o->rank; d++)
            at += index[d] * strides[d];
        memcpy(base + (size_t)at * size, (char *)o->values + i * size, size);
        for (size_t d = o->rank; d-- > 0 && ++index[d] == o->dims[d];)
            index[d] = 0;
    }
    return trace_wrap_desc(
        ctx, TRACE_TENSOR_DESC(.dtype = o->dtype, .dims = o->dims, .strides = strides, .rank = o->rank, .data = base));
}

/* Bits of a float in an order without gaps, for distances in units in the last place. */
static int64_t ordered(enum trace_dtype d, const void *p, size_t i) {
    if (d == TRACE_F64) {
        int64_t v = ((const int64_t *)p)[i];
        return v < 0 ? (int64_t)(UINT64_C(0x8000000000000000) - (uint64_t)v) : v;
    }
    int32_t v = d == TRACE_F32 ? ((const int32_t *)p)[i] : ((const int16_t *)p)[i];
    if (d == TRACE_F32)
        return v < 0 ? (int64_t)INT32_MIN - v : v;
    return v < 0 ? (int64_t)INT16_MIN - v : v;
}

static bool is_float(enum trace_dtype d) { return d >= TRACE_F16; }

static bool element_ok(const struct golden *g, enum trace_dtype d, const void *got, const void *want, size_t i) {
    size_t size = op_dtype_size(d);
    if (!memcmp((const char *)got + i * size, (const char *)want + i * size, size))
        return true;
    if (!is_float(d))
        return false;
    double x = op_load(d, got, i), y = op_load(d, want, i);
    if (isnan(x) || isnan(y))
        return isnan(x) && isnan(y);
    if (x == y)
        return !(g->signed_zero && x == 0);
    if (g->signed_zero && y == 0)
        return false;
    double distance = fabs((double)ordered(d, got, i) - (double)ordered(d, want, i));
    if (distance <= g->ulp)
        return true;
    return isfinite(x) && isfinite(y) && fabs(x - y) <= g->abs + g->rel * fabs(y);
}

static int reported;
static int failures;

static void mismatch(const struct golden *g, const char *how, const char *what) {
    failures++;
    if (reported++ < 6)
        fprintf(stderr, "  %s (%s): %s\n", g->id, how, what);
}

static void compare(const struct golden *g, const char *how, trace_tensor *t, const struct operand *want) {
    char text[300];
    if (trace_dtype_of(t) != (int)want->dtype || trace_rank(t) != (int)want->rank) {
        snprintf(text, sizeof text, "%s of rank %d, not %s of rank %zu",
                 trace_dtype_name((enum trace_dtype)trace_dtype_of(t)), trace_rank(t), trace_dtype_name(want->dtype),
                 want->rank);
        mismatch(g, how, text);
        return;
    }
    for (size_t k = 0; k < want->rank; k++)
        if (trace_size(t, (int64_t)k) != want->dims[k]) {
            snprintf(text, sizeof text, "extent %zu is %lld, not %lld", k, (long long)trace_size(t, (int64_t)k),
                     (long long)want->dims[k]);
            mismatch(g, how, text);
            return;
        }
    size_t bytes = want->count * op_dtype_size(want->dtype), bad = 0, first = 0;
    void *got = malloc(bytes + 1);
    ck_assert(got);
    if (trace_read(t, got, bytes) != TRACE_OK) {
        mismatch(g, how, trace_last_error(NULL));
    } else {
        for (size_t i = want->count; i-- > 0;)
            if (!element_ok(g, want->dtype, got, want->values, i))
                bad++, first = i;
        if (bad) {
            snprintf(text, sizeof text, "%zu of %zu elements, first [%zu]: %.17g, not %.17g", bad, want->count, first,
                     op_load(want->dtype, got, first), op_load(want->dtype, want->values, first));
            mismatch(g, how, text);
        }
    }
    free(got);
}

/* ---- running -------------------------------------------------------------------------------------------------- */

static void run(const struct golden *g, trace_context *ctx, trace_region *r, const char *how) {
    const struct op_entry *e = op_find(g->op);
    if (!e) {
        mismatch(g, how, "the API has no such op");
        return;
    }
    struct op_args args = {.ctx = ctx, .nin = g->nin, .nattr = g->nattr};
    void *memory[OP_MAX_IN];
    trace_tensor *inputs[OP_MAX_IN], *out[OP_MAX_OUT] = {NULL};
    size_t ninputs = 0, n = g->nout;
    memcpy(args.attr, g->attr, sizeof args.attr);
    for (size_t i = 0; i < g->nin; i++) {
        args.in[i] = make(ctx, &g->in[i], &memory[i]);
        if (args.in[i] && args.in[i] != TRACE_NONE)
            inputs[ninputs++] = args.in[i];
    }
    bool in_place = op_in_place(g->op);
    enum trace_status st = TRACE_OK;
    if (!r) {
        n = op_call(e, &args, out);
    } else {
        if (trace_begin(r, inputs, ninputs))
            n = op_call(e, &args, out);
        st = trace_end(r, in_place ? NULL : out, in_place ? 0 : n);
        if (in_place)
            out[0] = st == TRACE_OK ? args.in[0] : NULL;
    }
    if (n != g->nout) {
        mismatch(g, how, "other number of results");
    } else {
        for (size_t i = 0; i < n; i++) {
            if (st != TRACE_OK || !out[i]) {
                mismatch(g, how, trace_last_error(ctx));
            } else {
                compare(g, how, out[i], &g->out[i]);
            }
        }
    }
    for (size_t i = 0; i < n && !in_place; i++)
        trace_release(out[i]);
    for (size_t i = 0; i < ninputs; i++)
        trace_release(inputs[i]);
    for (size_t i = 0; i < g->nin; i++)
        free(memory[i]);
}

static void quiet(void *user, const trace_event *e) {
    (void)user;
    (void)e;
}

static void run_tier(const char *op, bool jit) {
    trace_context *ctx;
    if (!jit)
        ck_assert_int_eq(setenv("TRACEJIT_NO", "jit", 1), 0);
    enum trace_status st = trace_context_create(TRACE_CONTEXT_OPTIONS(.on_event = quiet), &ctx);
    if (!jit)
        unsetenv("TRACEJIT_NO");
    ck_assert_msg(st == TRACE_OK, "context: %s", trace_last_error(NULL));
    bool all = getenv("TJ_ALL") != NULL;
    unsigned turn = 0;
    for (size_t i = 0; i < ncases; i++) {
        const struct golden *g = &cases[i];
        if (strcmp(g->op, op) != 0)
            continue;
        unsigned way = turn++ % 6;
        bool eager = all || (jit ? way == 0 : way % 2 == 0), region = all || (jit ? way == 3 : way % 2 == 1);
        trace_region *r;
        st = trace_region_create(ctx, g->id, NULL, &r);
        ck_assert_msg(st == TRACE_OK, "region: %s", trace_last_error(ctx));
        if (eager)
            run(g, ctx, NULL, jit ? "eager" : "interpreter, eager");
        if (region)
            run(g, ctx, r, jit ? "region" : "interpreter, region");
        if (region && jit)
            run(g, ctx, r, "region again");
        trace_region_release(r);
    }
    trace_context_release(ctx);
}

START_TEST(op_matches_golden_values) {
    const char *op = op_names[_i];
    failures = reported = 0;
    run_tier(op, true);
    run_tier(op, false);
    ck_assert_msg(failures == 0, "%s: %d mismatches", op, failures);
}
END_TEST

int main(int argc, char **argv) {
    const char *path = getenv("TJ_ORACLE") ? getenv("TJ_ORACLE") : "tests/oracle/ops.txt";
    size_t size = 0;
    char *text = read_file(path, &size);
    if (!text) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return 2;
    }
    parse(text);
    Suite *s = suite_create("ops");
    TCase *tc = tcase_create("golden");
    tcase_set_timeout(tc, 240);
    /* test_ops NAME...: only these ops */
    for (size_t i = 0; i < nop_names; i++) {
        bool wanted = argc < 2;
        for (int k = 1; k < argc; k++)
            wanted |= !strcmp(argv[k], op_names[i]);
        if (wanted)
            tcase_add_loop_test(tc, op_matches_golden_values, (int)i, (int)i + 1);
    }
    suite_add_tcase(s, tc);
    SRunner *runner = srunner_create(s);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    for (size_t i = 0; i < ncases; i++) {
        for (size_t k = 0; k < cases[i].nin; k++)
            free(cases[i].in[k].values);
        for (size_t k = 0; k < cases[i].nout; k++)
            free(cases[i].out[k].values);
    }
    free(cases);
    free(datas);
    free(text);
    return failed != 0;
}
