// tests/test_explain.c: trace_explain: reasons, kernels, formats, hostile names, failures.
#include <pthread.h>

#include "../include/tracejit.h"
#include "../trace/backend.h"
#include "json.h"
#include "tj_test.h"

static trace_context *ctx;
static trace_region *region;

static void start(const char *name) {
    TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 1), &ctx));
    TJ_ASSERT_OK(trace_region_create(ctx, name, NULL, &region));
}
static void finish(void) {
    trace_region_release(region);
    trace_context_release(ctx);
}
// Without a compiler in the build plans have no kernels to tell about.
static bool compiles(void) { return strstr(trace_context_describe(ctx), "LLVM") != NULL; }

static trace_tensor *filled(const int64_t *dims, size_t rank) {
    int64_t n = 1;
    for (size_t i = 0; i < rank; i++)
        n *= dims[i];
    float *v = malloc((size_t)n * sizeof *v);
    ck_assert_ptr_nonnull(v);
    for (int64_t i = 0; i < n; i++)
        v[i] = 0.01f * (float)(i % 37);
    trace_tensor *t = trace_from(ctx, TRACE_F32, v, dims, rank);
    ck_assert_ptr_nonnull(t);
    free(v);
    return t;
}

static char *explained(enum trace_format f) {
    size_t need = 0;
    char *text = NULL;
    tj_status st = trace_explain(region, f, NULL, 0, &need);
    for (int i = 0; i < 4 && st == TRACE_ERR_MEMORY && need; i++) {
        free(text);
        text = malloc(need + 1000);
        ck_assert_ptr_nonnull(text);
        st = trace_explain(region, f, text, need + 1000, &need);
    }
    TJ_ASSERT_OK(st);
    ck_assert_uint_eq(strlen(text), need);
    return text;
}

static struct json *parsed(char *text) {
    const char *why = NULL;
    size_t at = 0;
    struct json *j = json_parse(text, &why, &at);
    ck_assert_msg(j != NULL, "JSON: %s at %zu: %.60s", why, at, text + at);
    return j;
}

static const struct json *item(const struct json *list, size_t i) {
    const struct json *c = list->child;
    while (c && i--)
        c = c->next;
    ck_assert_ptr_nonnull(c);
    return c;
}
static const struct json *plan_of(const struct json *root, size_t i) {
    return item(json_get(item(json_get(root, "regions"), 0), "plans"), i);
}
static int64_t number(const struct json *o, const char *key) {
    const struct json *j = json_get(o, key);
    ck_assert_msg(j && j->kind == JSON_NUMBER, "%s is no number", key);
    return j->integer ? j->i : (int64_t)j->f;
}

typedef trace_tensor *(*body)(trace_tensor *x);
static void run_body(body f, trace_tensor *x) {
    trace_tensor *y = NULL;
    if (trace_begin(region, TRACE_ARGS(x)))
        y = f(x);
    TJ_ASSERT_OK(trace_end_at(region, &y, 1, "host.c", 90));
    trace_release(y);
}

// ---- why values get memory ------------------------------------------------------------------------------------------

static trace_tensor *weight;
static trace_tensor *body_chain(trace_tensor *x) {
    return trace_relu_at(trace_add_f_at(trace_exp_at(x, "host.c", 10), 1, "host.c", 11), "host.c", 12);
}
static trace_tensor *body_operand(trace_tensor *x) {
    return trace_matmul_at(trace_exp_at(x, "host.c", 10), weight, "host.c", 11);
}
static trace_tensor *body_users(trace_tensor *x) { // two kernels that can't be one want exp
    trace_tensor *e = trace_exp_at(x, "host.c", 10);
    trace_tensor *rows = trace_sum_at(e, TRACE_DIMS(1), true, "host.c", 11);
    trace_tensor *cols = trace_sum_at(e, TRACE_DIMS(0), true, "host.c", 12);
    return trace_add_at(rows, cols, "host.c", 13);
}
static trace_tensor *body_order(trace_tensor *x) {
    trace_tensor *y = trace_exp_at(x, "host.c", 10);
    (void)trace_add__at(x, trace_flip(x, TRACE_DIMS(0)), "host.c", 11);
    return trace_mul_at(y, x, "host.c", 12);
}
static trace_tensor *body_rows(trace_tensor *x) {
    return trace_mean_at(trace_amax_at(x, TRACE_DIMS(1), false, "host.c", 10), TRACE_SCALAR, false, "host.c", 11);
}
static trace_tensor *body_cost(trace_tensor *x) {
    static const int64_t two[2] = {2, 2};
    return trace_max_pool2d_at(trace_exp_at(trace_reshape(x, TRACE_DIMS(1, 1, 8, 8)), "host.c", 10), two, NULL, NULL,
                               NULL, false, "host.c", 11);
}
static trace_tensor *body_size(trace_tensor *x) {
    trace_tensor *y = x;
    for (int i = 0; i < 150; i++)
        y = trace_sqrt_at(trace_mul_f_at(y, 1.0 + i, "host.c", 10), "host.c", 11);
    return y;
}

static bool kept_for(const struct json *plan, const char *why, const char *op, char *all, size_t cap) {
    const struct json *graph = json_get(plan, "graph");
    bool found = false;
    size_t n = 0;
    for (const struct json *k = json_get(plan, "in_memory")->child; k; k = k->next) {
        const char *name = json_text(item(graph, (size_t)number(k, "node")), "op");
        n += (size_t)snprintf(all + n, n < cap ? cap - n : 0, "[%s: %s]", name, json_text(k, "why"));
        found = found || (!strcmp(json_text(k, "why"), why) && !strcmp(name, op));
        ck_assert_ptr_nonnull(json_text(k, "text"));
    }
    return found;
}

START_TEST(reasons) {
    static const struct {
        const char *why, *op;
        body f;
    } cases[] = {
        {"operand", "exp", body_operand},  {"second user", "exp", body_users}, {"order of writes", "exp", body_order},
        {"other rows", "amax", body_rows}, {"cost", "exp", body_cost},         {"size", "sqrt", body_size},
    };
    for (size_t i = 0; i < TJ_COUNT(cases); i++) {
        start("reasons");
        trace_tensor *x = filled((const int64_t[]){8, 8}, 2);
        weight = filled((const int64_t[]){8, 8}, 2);
        run_body(cases[i].f, x);
        if (compiles()) {
            char *text = explained(TRACE_FORMAT_JSON), all[8192] = "";
            struct json *j = parsed(text);
            ck_assert_msg(kept_for(plan_of(j, 0), cases[i].why, cases[i].op, all, sizeof all), "%s of %s: %s",
                          cases[i].why, cases[i].op, all);
            json_free(j);
            free(text);
            text = explained(TRACE_FORMAT_TEXT);
            ck_assert_ptr_nonnull(strstr(text, cases[i].why));
            free(text);
            size_t need = 0;
            (void)trace_context_report(ctx, TRACE_FORMAT_TEXT, NULL, 0, &need);
            text = malloc(need + 1000);
            TJ_ASSERT_OK(trace_context_report(ctx, TRACE_FORMAT_TEXT, text, need + 1000, NULL));
            ck_assert_ptr_nonnull(strstr(text, cases[i].why));
            free(text);
        }
        trace_release(weight);
        trace_release(x);
        finish();
    }
}
END_TEST

START_TEST(every_reason_has_words) {
    for (unsigned i = 0; i < TJ_KEPT_WHYS; i++) {
        ck_assert(tj_kept_word(i) && tj_kept_word(i)[0] && tj_kept_text(i)[0]);
        for (unsigned k = 0; k < i; k++)
            ck_assert_str_ne(tj_kept_word(i), tj_kept_word(k));
    }
    ck_assert_str_eq(tj_kept_word(TJ_KEPT_WHYS + 5), tj_kept_word(TJ_KEPT_NONE));
}
END_TEST

// ---- kernels --------------------------------------------------------------------------------------------------------

START_TEST(kernels) {
    start("kernels");
    trace_tensor *x = filled((const int64_t[]){32, 64}, 2);
    run_body(body_chain, x);
    if (!compiles()) {
        trace_release(x);
        finish();
        return;
    }
    char *text = explained(TRACE_FORMAT_JSON);
    struct json *j = parsed(text);
    const struct json *plan = plan_of(j, 0), *list = json_get(plan, "kernels"), *k = item(list, 0);
    ck_assert_uint_eq(list->n, 1);
    ck_assert_uint_eq(json_get(k, "ops")->n, 3);
    ck_assert_int_eq(number(k, "bytes_read"), 32 * 64 * 4);
    ck_assert_int_eq(number(k, "bytes_written"), 32 * 64 * 4);
    // exp and add got no memory: each would be written and read once.
    ck_assert_int_eq(number(k, "bytes_saved"), 4 * 32 * 64 * 4);
    ck_assert_int_ge(number(k, "flops"), 3 * 32 * 64);
    ck_assert_int_eq(json_get(k, "measured")->kind, JSON_NULL);
    ck_assert_str_eq(json_text(k, "where"), "host.c:12");
    ck_assert(json_get(plan, "first")->i == 1 && json_get(plan, "reason")->kind == JSON_NULL);
    const struct json *ceiling = json_get(j, "ceiling");
    ck_assert(json_get(ceiling, "one_thread_gflops")->f > 0 && json_get(ceiling, "copy")->n == 4);
    // Each op names its kernel and its place.
    const struct json *op = item(json_get(plan, "graph"), (size_t)item(json_get(k, "ops"), 0)->i);
    ck_assert_str_eq(json_text(op, "op"), "exp");
    ck_assert_str_eq(json_text(op, "where"), "host.c:10");
    ck_assert_int_eq(item(json_get(op, "kernels"), 0)->i, 0);
    ck_assert_int_eq(json_get(op, "in_memory")->i, 0);
    json_free(j);
    free(text);

    TJ_ASSERT_OK(trace_region_profile(region, true));
    for (int i = 0; i < 3; i++)
        run_body(body_chain, x);
    TJ_ASSERT_OK(trace_region_profile(region, false));
    run_body(body_chain, x);
    text = explained(TRACE_FORMAT_JSON);
    j = parsed(text);
    const struct json *m = json_get(item(json_get(plan_of(j, 0), "kernels"), 0), "measured");
    ck_assert_int_eq(number(m, "runs"), 3);
    ck_assert_int_gt(number(m, "best_ns"), 0);
    ck_assert(json_get(m, "mean_ns")->f + 1 >= (double)number(m, "best_ns"));
    ck_assert(json_get(m, "share_of_ceiling")->f > 0);
    json_free(j);
    free(text);
    text = explained(TRACE_FORMAT_TEXT);
    ck_assert(strstr(text, "at best") && strstr(text, "of 3 runs") && strstr(text, "exp (host.c:10), add (host.c:11)"));
    free(text);
    text = explained(TRACE_FORMAT_HTML);
    ck_assert(strstr(text, "generated code,") && strstr(text, "<svg role=\"img\"") && strstr(text, "host.c:11"));
    free(text);
    trace_release(x);
    finish();
}
END_TEST

// ---- recompiles and breaks ------------------------------------------------------------------------------------------

START_TEST(history) {
    start("history");
    int64_t sizes[2] = {4, 6};
    for (int i = 0; i < 4; i++) {
        trace_tensor *x = filled(&sizes[i / 2], 1), *y = NULL;
        double v = 0;
        if (trace_begin(region, TRACE_ARGS(x))) {
            trace_tensor *s = trace_sum_at(x, TRACE_SCALAR, false, "host.c", 20);
            TJ_ASSERT_OK(trace_item_f64_at(s, &v, "host.c", 21));
            y = trace_mul_f_at(x, v, "host.c", 22);
        }
        TJ_ASSERT_OK(trace_end_at(region, &y, 1, "host.c", 23));
        trace_release(y);
        trace_release(x);
    }
    char *text = explained(TRACE_FORMAT_JSON);
    struct json *j = parsed(text);
    const struct json *r = item(json_get(j, "regions"), 0), *b = item(json_get(r, "breaks"), 0);
    ck_assert_str_eq(json_text(b, "where"), "host.c:21");
    ck_assert_int_eq(number(b, "count"), 4);
    ck_assert_ptr_nonnull(strstr(json_text(b, "value"), "host.c:20"));
    ck_assert_ptr_nonnull(strstr(json_text(b, "advice"), "trace_end"));
    bool named = false, planned = false;
    for (const struct json *q = json_get(r, "recompiles")->child; q; q = q->next)
        named =
            named || (strstr(json_text(q, "reason"), "extent of dim 0 was 4, is 6") && number(q, "from") == 4 &&
                      number(q, "to") == 6 && number(q, "dim") == 0 && !strncmp(json_text(q, "where"), "host.c:2", 8));
    for (const struct json *p = json_get(r, "plans")->child; p; p = p->next) {
        const char *why = json_text(p, "reason"), *where = json_text(p, "where");
        planned = planned || (why && where && strstr(why, "was 4, is 6") && !strncmp(where, "host.c:2", 8));
    }
    ck_assert_msg(named && planned, "%d %d", named, planned);
    json_free(j);
    free(text);
    text = explained(TRACE_FORMAT_HTML);
    ck_assert(strstr(text, "was 4, is 6") && strstr(text, "trace_item_f64") && strstr(text, "Segments"));
    free(text);
    finish();
}
END_TEST

START_TEST(shapes) {
    start("shapes");
    for (int i = 0; i < 12; i++) {
        trace_tensor *x = filled((const int64_t[]){3 + i / 4, 8}, 2);
        run_body(body_chain, x);
        trace_release(x);
    }
    char *text = explained(TRACE_FORMAT_JSON);
    struct json *j = parsed(text);
    const struct json *r = item(json_get(j, "regions"), 0), *seen = json_get(json_get(r, "shapes"), "seen");
    ck_assert_int_eq(number(json_get(r, "shapes"), "runs"), 12);
    ck_assert_uint_eq(seen->n, 3);
    int64_t rows = 0;
    for (const struct json *s = seen->child; s; s = s->next) {
        const struct json *shape = json_get(item(json_get(s, "inputs"), 0), "shape");
        ck_assert_int_eq(number(s, "runs"), 4);
        ck_assert_int_eq(item(shape, 1)->i, 8);
        rows += item(shape, 0)->i;
    }
    ck_assert_int_eq(rows, 3 + 4 + 5);
    // The second extent made the dim a symbol: the plan made for it serves the third as well.
    bool symbol = false;
    for (const struct json *p = json_get(r, "plans")->child; p; p = p->next) {
        for (const struct json *n = json_get(p, "graph")->child; n; n = n->next)
            symbol =
                symbol || (!strcmp(json_text(n, "op"), "exp") && item(json_get(n, "symbols"), 0)->kind == JSON_STRING);
    }
    ck_assert(symbol == compiles());
    json_free(j);
    free(text);
    text = explained(TRACE_FORMAT_TEXT);
    ck_assert_ptr_nonnull(strstr(text, "shapes in 4 of 12 runs: input 0 f32[3, 8]"));
    ck_assert(!compiles() || strstr(text, "x0, input 0: f32[x0.0="));
    free(text);
    text = explained(TRACE_FORMAT_HTML);
    ck_assert(strstr(text, "Input shapes seen") && strstr(text, "f32[5, 8]"));
    free(text);
    finish();
}
END_TEST

// ---- what hosts may call things -------------------------------------------------------------------------------------

START_TEST(hostile_names) {
    static const char name[] = "</title><script>alert(1)</script>\"'&\\\n\t\x01\xff\xc3\x28 <b>";
    static const char file[] = "a\"b'<img src=x onerror=alert(2)>&.c";
    start(name);
    trace_tensor *x = filled((const int64_t[]){4, 4}, 2), *y = NULL;
    int64_t sizes[2] = {4, 6};
    for (int i = 0; i < 2; i++) {
        trace_tensor *v = filled(&sizes[i], 1);
        double d;
        if (trace_begin_at(region, TRACE_ARGS(v), file, 1)) {
            TJ_ASSERT_OK(trace_item_f64_at(trace_sum_at(v, TRACE_SCALAR, false, file, 2), &d, file, 3));
            y = trace_exp_at(v, file, 4);
        }
        TJ_ASSERT_OK(trace_end_at(region, &y, 1, file, 5));
        trace_release(y);
        trace_release(v);
    }
    char *text = explained(TRACE_FORMAT_JSON);
    struct json *j = parsed(text);
    const char *got = json_text(item(json_get(j, "regions"), 0), "region");
    ck_assert(!strncmp(got, name, 38) && strstr(got, "\xEF\xBF\xBD"));
    bool found = false;
    for (const struct json *n = json_get(plan_of(j, 0), "graph")->child; n; n = n->next)
        found = found || !strncmp(json_text(n, "where"), file, strlen(file));
    ck_assert(found);
    json_free(j);
    free(text);
    for (int whole = 0; whole < 2; whole++) {
        size_t need = 0;
        if (whole)
            (void)trace_context_report(ctx, TRACE_FORMAT_HTML, NULL, 0, &need);
        text = whole ? malloc(need + 1000) : explained(TRACE_FORMAT_HTML);
        if (whole)
            TJ_ASSERT_OK(trace_context_report(ctx, TRACE_FORMAT_HTML, text, need + 1000, NULL));
        ck_assert_ptr_null(strstr(text, "<script>alert"));
        ck_assert_ptr_null(strstr(text, "<img"));
        ck_assert_ptr_null(strstr(text, "\x01"));
        ck_assert_ptr_null(strstr(text, "\xff"));
        ck_assert_ptr_nonnull(strstr(text, "&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#39;&amp;"));
        ck_assert_ptr_nonnull(strstr(text, "a&quot;b&#39;&lt;img src=x onerror=alert(2)&gt;&amp;.c:"));
        // Nothing is fetched from elsewhere.
        ck_assert(!strstr(text, "http:") && !strstr(text, "https:") && !strstr(text, "@import") &&
                  !strstr(text, "url(h"));
        free(text);
    }
    trace_release(x);
    finish();
}
END_TEST

// ---- large graphs ---------------------------------------------------------------------------------------------------

static trace_tensor *body_long(trace_tensor *x) {
    trace_tensor *y = x, *skip = x;
    for (int i = 0; i < 240; i++) {
        y = trace_relu(trace_add(y, i % 3 ? y : skip));
        if (i % 50 == 0)
            skip = y;
    }
    return y;
}

START_TEST(large_graph) {
    start("large");
    trace_tensor *x = filled((const int64_t[]){4}, 1);
    run_body(body_long, x);
    char *text = explained(TRACE_FORMAT_HTML);
    ck_assert_ptr_nonnull(strstr(text, "</html>"));
    if (compiles())
        ck_assert_ptr_nonnull(strstr(text, "The first 400 ops are drawn; "));
    free(text);
    text = explained(TRACE_FORMAT_JSON);
    json_free(parsed(text));
    free(text);
    trace_release(x);
    finish();
}
END_TEST

START_TEST(empty_region) {
    start("");
    char *text = explained(TRACE_FORMAT_JSON);
    struct json *j = parsed(text);
    ck_assert_uint_eq(json_get(item(json_get(j, "regions"), 0), "plans")->n, 0);
    json_free(j);
    free(text);
    text = explained(TRACE_FORMAT_HTML);
    ck_assert_ptr_nonnull(strstr(text, "No plan"));
    free(text);
    finish();
}
END_TEST

// ---- bad input, memory, threads -------------------------------------------------------------------------------------

START_TEST(bad_input) {
    start("bad");
    char buf[64] = "x";
    size_t need = 7;
    TJ_ASSERT_STATUS(trace_explain(NULL, TRACE_FORMAT_TEXT, buf, sizeof buf, &need), TRACE_ERR_ARGUMENT);
    ck_assert_uint_eq(need, 0);
    TJ_ASSERT_STATUS(trace_explain(region, TRACE_FORMAT_TEXT, NULL, 10, &need), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_STATUS(trace_explain(region, TRACE_FORMAT_PROMETHEUS, buf, sizeof buf, &need), TRACE_ERR_ARGUMENT);
    ck_assert(strstr(trace_last_error(ctx), "trace_context_report") && buf[0] == 0);
    TJ_ASSERT_STATUS(trace_explain(region, (enum trace_format)99, buf, sizeof buf, &need), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_STATUS(trace_explain(region, TRACE_FORMAT_TEXT, buf, 20, &need), TRACE_ERR_MEMORY);
    ck_assert_uint_gt(need, 20);
    ck_assert_uint_eq(strlen(buf), 19);
    TJ_ASSERT_STATUS(trace_region_profile(NULL, true), TRACE_ERR_ARGUMENT);
    finish();
}
END_TEST

START_TEST(out_of_memory) {
    start("memory");
    trace_tensor *x = filled((const int64_t[]){8, 8}, 2);
    weight = filled((const int64_t[]){8, 8}, 2);
    run_body(body_operand, x);
    static char buf[1 << 20];
    size_t need;
    for (int f = TRACE_FORMAT_TEXT; f <= TRACE_FORMAT_HTML; f++) {
        if (f == TRACE_FORMAT_PROMETHEUS)
            continue;
        TJ_ASSERT_OK(
            trace_explain(region, (enum trace_format)f, buf, sizeof buf, &need)); // code and ceilings are there
        size_t want = need, sites = 0;
        for (;; sites++) {
            tj_test_fail_at(sites);
            tj_status st = trace_explain(region, (enum trace_format)f, buf, sizeof buf, &need);
            if (!tj_test_failed())
                break;
            ck_assert_msg(st == TRACE_ERR_MEMORY, "site %zu gave %s", sites, tj_status_name(st));
        }
        ck_assert_uint_gt(sites, 0);
        TJ_ASSERT_OK(trace_explain(region, (enum trace_format)f, buf, sizeof buf, &need));
        ck_assert_uint_eq(need, want);
    }
    trace_release(weight);
    trace_release(x);
    finish();
}
END_TEST

static void *explains(void *arg) {
    static const enum trace_format formats[] = {TRACE_FORMAT_TEXT, TRACE_FORMAT_JSON, TRACE_FORMAT_HTML};
    for (size_t i = 0; i < 9; i++) {
        size_t need = 0;
        (void)arg;
        ck_assert(trace_explain(region, formats[i % 3], NULL, 0, &need) == TRACE_ERR_MEMORY && need > 0);
        ck_assert(trace_context_report(ctx, TRACE_FORMAT_HTML, NULL, 0, &need) == TRACE_ERR_MEMORY && need > 0);
        (void)trace_region_profile(region, i % 2);
    }
    return NULL;
}

START_TEST(while_others_run) {
    start("threads");
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, explains, NULL), 0);
    for (int i = 0; i < 60; i++) {
        trace_tensor *x = filled((const int64_t[]){4 + i % 7, 8}, 2);
        run_body(body_chain, x);
        trace_release(x);
    }
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    finish();
}
END_TEST

TJ_TEST_MAIN("explain", reasons, every_reason_has_words, kernels, history, shapes, hostile_names, large_graph,
             empty_region, bad_input, out_of_memory, while_others_run)
