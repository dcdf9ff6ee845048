// tests/test_timeline.c: trace_timeline_start, stop, TRACEJIT_TIMELINE: what is in the file, and that it always parses.
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../include/tracejit.h"
#include "../lib/threads.h"
#include "../trace/backend.h"
#include "json.h"
#include "tj_test.h"

static trace_context *ctx;
static trace_region *region;
static char path[64];

static void start(const char *name) {
    snprintf(path, sizeof path, "/tmp/tj-timeline-XXXXXX");
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    close(fd);
    TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 1), &ctx));
    TJ_ASSERT_OK(trace_region_create(ctx, name, NULL, &region));
}
static void finish(void) {
    trace_region_release(region);
    trace_context_release(ctx);
    unlink(path);
}
static bool compiles(void) { return strstr(trace_context_describe(ctx), "LLVM") != NULL; }

static char *text;
static struct json *load(const char *file) {
    FILE *f = fopen(file, "rb");
    ck_assert_ptr_nonnull(f);
    fseek(f, 0, SEEK_END);
    long n = ftell(f);
    rewind(f);
    text = malloc((size_t)n + 1);
    ck_assert_uint_eq(fread(text, 1, (size_t)n, f), (size_t)n);
    text[n] = 0;
    fclose(f);
    const char *why = NULL;
    size_t at = 0;
    struct json *j = json_parse(text, &why, &at);
    ck_assert_msg(j != NULL, "%s at %zu of %ld: %.80s", why, at, n, text + at);
    return j;
}
static void drop(struct json *j) {
    json_free(j);
    free(text);
}
static const struct json *events(const struct json *j) { return json_get(j, "traceEvents"); }
static int64_t other(const struct json *j, const char *key) { return json_get(json_get(j, "otherData"), key)->i; }
static double number(const struct json *e, const char *key) {
    const struct json *n = json_get(e, key);
    ck_assert_msg(n && n->kind == JSON_NUMBER, "no %s", key);
    return n->f;
}
// The nth event of a category, or NULL.
static const struct json *nth(const struct json *j, const char *category, const char *name, int n) {
    for (const struct json *e = events(j)->child; e; e = e->next) {
        const char *c = json_text(e, "cat");
        if (c && !strcmp(c, category) && (!name || strstr(json_text(e, "name"), name)) && n-- == 0)
            return e;
    }
    return NULL;
}
static const char *arg(const struct json *e, const char *key) { return json_text(json_get(e, "args"), key); }
static bool inside(const struct json *e, const struct json *outer) {
    double a = number(e, "ts"), b = a + number(e, "dur"), c = number(outer, "ts"), d = c + number(outer, "dur");
    return a >= c - 0.002 && b <= d + 0.002; // microseconds, rounded down to thousandths
}

static void one_run(int64_t n, const char *file) {
    float v[64] = {1, 2, 3};
    trace_tensor *x = trace_from(ctx, TRACE_F32, v, &n, 1), *y = NULL;
    double s = 0;
    if (trace_begin_at(region, TRACE_ARGS(x), file, 9)) {
        TJ_ASSERT_OK(trace_item_f64_at(trace_sum_at(x, TRACE_SCALAR, false, file, 10), &s, file, 11));
        y = trace_exp_at(trace_mul_f_at(x, s, file, 12), file, 13);
    }
    TJ_ASSERT_OK(trace_end_at(region, &y, 1, file, 14));
    trace_release(y);
    trace_release(x);
}

START_TEST(what_is_in_it) {
    start("model");
    one_run(4, "host.c"); // before it begins
    TJ_ASSERT_OK(trace_timeline_start(ctx, path));
    for (int64_t n = 4; n < 8; n++)
        one_run(n, "host.c");
    TJ_ASSERT_OK(trace_timeline_stop(ctx));
    one_run(4, "host.c"); // and after
    struct json *j = load(path);
    const struct json *run = nth(j, "run", NULL, 3), *body = nth(j, "record", NULL, 0),
                      *stop = nth(j, "break", NULL, 3);
    ck_assert(run && !nth(j, "run", NULL, 4) && body && stop && !nth(j, "break", NULL, 4));
    ck_assert_str_eq(json_text(run, "ph"), "X");
    ck_assert_str_eq(json_text(stop, "ph"), "i");
    ck_assert_str_eq(json_text(run, "name"), "model");
    ck_assert_str_eq(arg(run, "region"), "model");
    ck_assert_str_eq(arg(run, "where"), "host.c:14");
    ck_assert_str_eq(arg(body, "where"), "host.c:9");
    ck_assert_str_eq(arg(stop, "where"), "host.c:11");
    ck_assert_ptr_nonnull(strstr(arg(stop, "what"), "trace_end"));
    run = nth(j, "run", NULL, 0);
    ck_assert(inside(body, run) && inside(nth(j, "segment", NULL, 0), run));
    ck_assert_ptr_nonnull(strstr(json_text(nth(j, "segment", NULL, 0), "name"), "item at host.c:11"));
    ck_assert_int_eq((int64_t)number(run, "pid"), getpid());
    ck_assert_int_eq((int64_t)number(run, "tid"), (int64_t)tj_thread_id());
    const struct json *reason = nth(j, "event", "compiling new graph", 0);
    ck_assert(reason && strstr(arg(reason, "what"), "extent of dim 0 was 4, is 5"));
    const struct json *made = nth(j, "compile", "compile ", 0);
    ck_assert(made && strstr(arg(made, "what"), "was 4, is 5") && json_get(json_get(made, "args"), "kernels_compiled"));
    if (compiles()) {
        ck_assert(inside(nth(j, "compile", "schedule", 0), made));
        const struct json *kernel = nth(j, "kernel", NULL, 0);
        ck_assert(kernel && inside(kernel, nth(j, "segment", NULL, 0)));
        ck_assert_int_eq(strncmp(arg(kernel, "where"), "host.c:1", 8), 0);
    }
    // The thread is named once, and the counts are those of the list.
    size_t named = 0;
    for (const struct json *e = events(j)->child; e; e = e->next)
        named += !strcmp(json_text(e, "ph"), "M");
    ck_assert_uint_eq(named, 1);
    ck_assert_int_eq(other(j, "events"), (int64_t)events(j)->n);
    ck_assert_int_eq(other(j, "dropped_events"), 0);
    drop(j);
    finish();
}
END_TEST

START_TEST(always_json) {
    if (!strcmp(tj_backend_cpu.name, "none")) {
        return; // too few events to fill a file
    }
    start("model");
    TJ_ASSERT_OK(trace_timeline_start(ctx, path));
    struct json *j = load(path); // nothing has happened
    ck_assert_uint_eq(events(j)->n, 0);
    drop(j);
    size_t last = 0;
    for (int i = 0; i < 300; i++) {
        one_run(4, "a file with a name that is long enough to fill the buffer sooner.c");
        if (i % 100)
            continue;
        j = load(path);
        ck_assert_uint_ge(events(j)->n, last);
        ck_assert_int_eq(other(j, "events"), (int64_t)events(j)->n);
        last = events(j)->n;
        drop(j);
    }
    ck_assert_uint_gt(last, 100); // it is written while the program runs
    trace_region_release(region);
    trace_context_release(ctx); // without stop
    j = load(path);
    ck_assert_uint_gt(events(j)->n, last);
    ck_assert_ptr_nonnull(nth(j, "run", NULL, 299));
    ck_assert_int_eq(other(j, "dropped_events"), 0);
    drop(j);
    unlink(path);
}
END_TEST

static void *runs(void *arg) {
    for (int i = 0; i < 300; i++)
        one_run(4 + i % 3, arg);
    return NULL;
}

START_TEST(threads) {
    start("model");
    TJ_ASSERT_OK(trace_timeline_start(ctx, path));
    pthread_t t[3];
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(pthread_create(&t[i], NULL, runs, "threads.c"), 0);
    for (int i = 0; i < 5; i++) { // others stop and start it meanwhile
        TJ_ASSERT_OK(trace_timeline_stop(ctx));
        TJ_ASSERT_OK(trace_timeline_start(ctx, path));
    }
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(pthread_join(t[i], NULL), 0);
    one_run(4, "threads.c");
    TJ_ASSERT_OK(trace_timeline_stop(ctx));
    struct json *j = load(path);
    ck_assert_int_eq(other(j, "events"), (int64_t)events(j)->n);
    ck_assert_ptr_nonnull(nth(j, "run", NULL, 0));
    drop(j);
    finish();
}
END_TEST

START_TEST(hostile_names) {
    static const char name[] = "\"},]\\\n\x01\xff</script>", file[] = "a\"\\b.c";
    start(name);
    TJ_ASSERT_OK(trace_timeline_start(ctx, path));
    one_run(4, file);
    TJ_ASSERT_OK(trace_timeline_stop(ctx));
    struct json *j = load(path);
    const struct json *run = nth(j, "run", NULL, 0);
    ck_assert_int_eq(strncmp(json_text(run, "name"), name, 7), 0);
    ck_assert_str_eq(arg(run, "where"), "a\"\\b.c:14");
    drop(j);
    finish();
}
END_TEST

START_TEST(disk_full) {
    if (!strcmp(tj_backend_cpu.name, "none")) {
        return; // too few events to fill a disk
    }
    start("model");
    signal(SIGXFSZ, SIG_IGN);
    TJ_ASSERT_OK(trace_timeline_start(ctx, path));
    one_run(4, "host.c");
    struct rlimit small = {300000, 300000}; // one piece fits
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    for (int i = 0; i < 900; i++)
        one_run(4, "host.c");
    TJ_ASSERT_STATUS(trace_timeline_stop(ctx), TRACE_ERR_ARGUMENT);
    struct json *j = load(path);
    ck_assert_uint_gt(events(j)->n, 0);
    ck_assert_int_eq(other(j, "events"), (int64_t)events(j)->n);
    ck_assert_int_gt(other(j, "dropped_events"), 0);
    drop(j);
    finish();
}
END_TEST

START_TEST(bad_input) {
    start("model");
    TJ_ASSERT_STATUS(trace_timeline_start(NULL, path), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_STATUS(trace_timeline_start(ctx, NULL), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_STATUS(trace_timeline_stop(NULL), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_STATUS(trace_timeline_stop(ctx), TRACE_ERR_STATE);
    TJ_ASSERT_STATUS(trace_timeline_start(ctx, "/nowhere/at/all.json"), TRACE_ERR_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(trace_last_error(ctx), "/nowhere/at/all.json"));
    TJ_ASSERT_STATUS(trace_timeline_start(ctx, "/dev/full"), TRACE_ERR_ARGUMENT);
    TJ_ASSERT_OK(trace_timeline_start(ctx, path));
    TJ_ASSERT_STATUS(trace_timeline_start(ctx, path), TRACE_ERR_STATE);
    TJ_ASSERT_OK(trace_timeline_stop(ctx));
    TJ_ASSERT_STATUS(trace_timeline_stop(ctx), TRACE_ERR_STATE);
    one_run(4, "host.c");
    finish();
}
END_TEST

START_TEST(out_of_memory) {
    start("model");
    one_run(4, "host.c");
    for (size_t k = 0;; k++) {
        tj_test_fail_at(k);
        tj_status st = trace_timeline_start(ctx, path);
        if (!tj_test_failed()) {
            TJ_ASSERT_OK(st);
            break;
        }
        ck_assert(st == TRACE_ERR_MEMORY);
    }
    // An event without memory is a dropped one; the run is none the worse.
    float v[4] = {1, 2, 3, 4};
    trace_tensor *x = trace_from(ctx, TRACE_F32, v, TRACE_DIMS(4));
    size_t dropped = 0;
    for (size_t k = SIZE_MAX; k == SIZE_MAX || k < 400; k++) { // the first run compiles
        trace_tensor *y = NULL;
        tj_test_fail_at(k);
        if (trace_begin(region, TRACE_ARGS(x)))
            y = trace_exp(x);
        tj_status st = trace_end(region, &y, 1);
        bool refused = tj_test_failed();
        ck_assert_msg(!st || (refused && st == TRACE_ERR_MEMORY), "%s", trace_last_error(ctx));
        dropped += refused && !st;
        trace_release(y);
        if (!refused && k != SIZE_MAX)
            break;
    }
    trace_release(x);
    ck_assert_uint_gt(dropped, 0);
    TJ_ASSERT_OK(trace_timeline_stop(ctx));
    struct json *j = load(path);
    ck_assert_int_gt(other(j, "dropped_events"), 0);
    ck_assert_int_eq(other(j, "events"), (int64_t)events(j)->n);
    drop(j);
    finish();
}
END_TEST

START_TEST(child_of_fork) {
    start("model");
    TJ_ASSERT_OK(trace_timeline_start(ctx, path));
    one_run(4, "parent.c");
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (!pid) { // writes nothing into its parent's file
        one_run(4, "child.c");
        _exit(trace_timeline_stop(ctx) != TRACE_ERR_STATE);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    one_run(4, "parent.c");
    TJ_ASSERT_OK(trace_timeline_stop(ctx));
    struct json *j = load(path);
    ck_assert(nth(j, "run", NULL, 1) && !nth(j, "run", NULL, 2));
    drop(j);
    finish();
}
END_TEST

START_TEST(environment) {
    start("unused");
    char second[80];
    snprintf(second, sizeof second, "%s.2", path);
    trace_region_release(region);
    trace_context_release(ctx);
    setenv("TRACEJIT_TIMELINE", path, 1);
    for (int i = 0; i < 2; i++) { // a context each, a file each
        TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 1), &ctx));
        TJ_ASSERT_OK(trace_region_create(ctx, "model", NULL, &region));
        one_run(4, "host.c");
        trace_region_release(region);
        trace_context_release(ctx);
        struct json *j = load(i ? second : path);
        ck_assert_ptr_nonnull(nth(j, "run", "model", 0));
        drop(j);
    }
    unlink(path);
    unlink(second);
    setenv("TRACEJIT_TIMELINE", "/nowhere/at/all.json", 1); // a line on stderr, and it works
    TJ_ASSERT_OK(trace_context_create(NULL, &ctx));
    trace_context_release(ctx);
    unsetenv("TRACEJIT_TIMELINE");
}
END_TEST

TJ_TEST_MAIN("timeline", what_is_in_it, always_json, threads, hostile_names, disk_full, bad_input, out_of_memory,
             child_of_fork, environment)
