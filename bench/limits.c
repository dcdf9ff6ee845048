/* limits: figures against what the machine can do, for which a quiet moment counts: best of many, or ratios within one
 * run. One JSON object a row.
 *
 *   limits [PART...]    matmul, first, tiny, scaling, waits; all without names
 *
 *   matmul              best of 300 products on one thread against the multiply-add peak of the same run
 *   first               first call of the digits network, batch 64, in 15 new processes, the compiler's start included
 *   tiny                processor time (and wall clock) of relu(x * w + b) on 8x8: recorded, replayed, bound
 *   scaling             runs per second of two threads in one region with single-threaded kernels over those of one;
 *                       beside it the same for two processes, and for two processes that only multiply and add
 *   waits               how often threads that run one region give the processor up (voluntary context switches):
 *                       waiting for a lock does
 *
 *   limits --first      seconds of the first call in this process
 *   limits --steady S   two threads run a region for S seconds, nothing else: to be watched with strace -f -c
 */
#include "rows.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

static void open_work(struct work *w, int threads, enum trace_mode mode, void (*setup)(struct work *w)) {
    memset(w, 0, sizeof *w);
    if (trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = threads), &w->ctx) ||
        trace_region_create(w->ctx, "limits", TRACE_REGION_OPTIONS(.mode = mode), &w->region))
        die("context", trace_last_error(NULL));
    setup(w);
}

static void close_work(struct work *w) {
    for (size_t i = 0; i < w->n; i++) {
        trace_release(w->t[i]);
        free(w->data[i]);
    }
    trace_region_release(w->region);
    trace_context_release(w->ctx);
}

static void call(struct work *w, T *(*body)(struct work *w)) {
    T *y = NULL;
    if (trace_begin(w->region, w->t, w->ninputs))
        y = body(w);
    if (trace_end(w->region, &y, 1))
        die("run", trace_last_error(w->ctx));
    trace_release(y);
}

/* ---- matmul --------------------------------------------------------------------------------------------------- */

static void linear_setup(struct work *w) {
    INPUT(w, 8, 512);
    WEIGHT(w, 1, 2048, 512);
}
static T *linear_body(struct work *w) { return trace_linear(w->t[0], w->t[1], TRACE_NONE); }

static void best_matmul(const char *name, void (*setup)(struct work *w), T *(*body)(struct work *w), double flop) {
    enum { TURNS = 300 };
    double s[TURNS], peak = peak_gflops();
    struct work w;
    open_work(&w, 1, TRACE_MODE_RECORD, setup);
    for (int i = -5; i < TURNS; i++) {
        double start = now();
        call(&w, body);
        if (i >= 0)
            s[i] = now() - start;
    }
    peak = fmax(peak, peak_gflops()); /* before and after: the machine's share changes */
    qsort(s, TURNS, sizeof s[0], by_value);
    printf("{\"workload\": \"%s\", \"best_gflops\": %.4g, \"median_gflops\": %.4g, \"peak_gflops\": %.4g, "
           "\"best_of_peak\": %.3f, \"median_of_peak\": %.3f}\n",
           name, flop / s[0] * 1e-9, flop / s[TURNS / 2] * 1e-9, peak, flop / s[0] * 1e-9 / peak,
           flop / s[TURNS / 2] * 1e-9 / peak);
    fflush(stdout);
    close_work(&w);
}
static void matmul_part(void) {
    best_matmul("matmul_512x512x512_1t", matmul_512_setup, matmul_body, 2.0 * 512 * 512 * 512);
    best_matmul("linear_8x2048x512_1t", linear_setup, linear_body, 2.0 * 8 * 2048 * 512);
}

/* ---- first call ----------------------------------------------------------------------------------------------- */

static double first_call(void) {
    struct work w;
    open_work(&w, 0, TRACE_MODE_RECORD, digits_setup);
    double start = now();
    call(&w, digits_body);
    double took = now() - start;
    close_work(&w);
    return took;
}

static void first_part(void) {
    enum { TURNS = 15 };
    double s[TURNS];
    char self[500] = {0};
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0)
        die("first", strerror(errno));
    for (int i = 0; i < TURNS; i++) {
        int fd[2], status = 0;
        char text[64] = {0};
        if (pipe(fd))
            die("first", strerror(errno));
        pid_t child = fork();
        if (child == 0) {
            dup2(fd[1], 1);
            close(fd[0]);
            execl(self, self, "--first", (char *)NULL);
            _exit(127);
        }
        close(fd[1]);
        if (child < 0 || read(fd[0], text, sizeof text - 1) <= 0 || waitpid(child, &status, 0) != child || status)
            die("first", "the new process failed");
        close(fd[0]);
        s[i] = strtod(text, NULL);
    }
    qsort(s, TURNS, sizeof s[0], by_value);
    printf("{\"workload\": \"first_call_digits_64\", \"median_s\": %.4f, \"best_s\": %.4f, \"worst_s\": %.4f, "
           "\"goal_s\": 0.3, \"met\": %s}\n",
           s[TURNS / 2], s[0], s[TURNS - 1], s[TURNS / 2] <= 0.3 ? "true" : "false");
    fflush(stdout);
}

/* ---- tiny ----------------------------------------------------------------------------------------------------- */

static double cpu_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void run_tiny(void *w) { call(w, tiny_body); }
static void run_bound(void *b) {
    if (trace_bound_run(b))
        die("bound", trace_last_error(NULL));
}

static void cost(const char *name, void (*one)(void *), void *arg, double goal) {
    enum { STRETCHES = 301, CALLS = 1000 }; /* a stretch is shorter than a time slice */
    static double cpu[STRETCHES], wall[STRETCHES];
    for (int i = 0; i < 100; i++)
        one(arg);
    for (int k = 0; k < STRETCHES; k++) {
        double start = now(), before = cpu_now();
        for (int i = 0; i < CALLS; i++)
            one(arg);
        cpu[k] = (cpu_now() - before) / CALLS * 1e6;
        wall[k] = (now() - start) / CALLS * 1e6;
    }
    qsort(cpu, STRETCHES, sizeof cpu[0], by_value);
    qsort(wall, STRETCHES, sizeof wall[0], by_value);
    printf("{\"workload\": \"%s\", \"cpu_us\": %.4f, \"cpu_p25_us\": %.4f, \"cpu_best_us\": %.4f, \"wall_us\": %.4f, "
           "\"wall_best_us\": %.4f, \"goal_us\": %.2f, \"met\": %s}\n",
           name, cpu[STRETCHES / 2], cpu[STRETCHES / 4], cpu[0], wall[STRETCHES / 2], wall[0], goal,
           cpu[STRETCHES / 2] <= goal ? "true" : "false");
    fflush(stdout);
}

static void tiny_part(void) {
    struct work w;
    trace_bound *bound = NULL;
    float result[64];
    open_work(&w, 1, TRACE_MODE_RECORD, tiny_setup);
    cost("tiny_recorded", run_tiny, &w, 1);
    T *out = trace_wrap(w.ctx, TRACE_F32, result, TRACE_DIMS(8, 8));
    if (trace_begin(w.region, w.t, w.ninputs))
        trace_copy_(out, tiny_body(&w));
    if (trace_end_bind(w.region, NULL, &bound))
        die("bind", trace_last_error(w.ctx));
    cost("tiny_bound", run_bound, bound, 0.15);
    trace_bound_release(bound);
    trace_release(out);
    close_work(&w);
    open_work(&w, 1, TRACE_MODE_REPLAY, tiny_setup);
    cost("tiny_replayed", run_tiny, &w, 0.5);
    close_work(&w);
}

/* ---- scaling -------------------------------------------------------------------------------------------------- */

/* A product that stays in the second cache: what two threads share then is the core, or nothing. */
static void small_setup(struct work *w) {
    INPUT(w, 96, 128);
    WEIGHT(w, 0.1, 128, 128);
}
static T *small_body(struct work *w) { return trace_relu(trace_matmul(w->t[0], w->t[1])); }

struct shared {
    double start, stop; /* of the clock: nobody has to be awake to tell the workers */
    _Atomic long done, switches, involuntary;
};
struct job {
    struct shared *shared;
    struct work *w; /* NULL: multiply-adds */
};

static void *work_until_told(void *arg) {
    struct job *j = arg;
    struct shared *s = j->shared;
    struct rusage before, after;
    long n = 0;
    float sink = 0;
    while (now() < s->start)
        ;
    getrusage(RUSAGE_THREAD, &before);
    for (; now() < s->stop; n++) {
        if (j->w)
            call(j->w, small_body);
        else
            multiply_adds(20000, &sink);
    }
    getrusage(RUSAGE_THREAD, &after);
    atomic_fetch_add(&s->done, n);
    atomic_fetch_add(&s->switches, after.ru_nvcsw - before.ru_nvcsw);
    atomic_fetch_add(&s->involuntary, after.ru_nivcsw - before.ru_nivcsw);
    return NULL;
}

/* Rounds per second of count workers, threads or processes. */
static double rate(struct shared *s, struct job *j, int count, bool processes, double seconds) {
    pthread_t id[2];
    pid_t pid[2];
    s->done = s->switches = s->involuntary = 0;
    s->start = now() + 0.02;
    s->stop = s->start + seconds;
    for (int i = 0; i < count; i++) {
        if (!processes) {
            if (pthread_create(&id[i], NULL, work_until_told, j))
                die("scaling", "no thread");
        } else if ((pid[i] = fork()) == 0) {
            work_until_told(j);
            _exit(0);
        } else if (pid[i] < 0) {
            die("scaling", "no process");
        }
    }
    for (int i = 0; i < count; i++) {
        int status = 0;
        if (!processes)
            pthread_join(id[i], NULL);
        else if (waitpid(pid[i], &status, 0) < 0 || status)
            die("scaling", "a process failed");
    }
    return (double)s->done / seconds;
}

static struct shared *share(void) {
    struct shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (s == MAP_FAILED)
        die("scaling", strerror(errno));
    return s;
}

static void scaling_part(void) {
    enum { TURNS = 21 };
    static const char *const name[3] = {"threads_of_one_region", "processes_of_the_region",
                                        "processes_of_multiply_adds"};
    static double ratio[3][TURNS], one[3][TURNS];
    struct shared *s = share();
    struct work w;
    open_work(&w, 1, TRACE_MODE_RECORD, small_setup);
    for (int i = 0; i < 100; i++)
        call(&w, small_body);
    struct job region = {s, &w}, plain = {s, NULL};
    for (int k = 0; k < TURNS; k++)
        for (int v = 0; v < 3; v++) {
            struct job *j = v == 2 ? &plain : &region;
            one[v][k] = rate(s, j, 1, v > 0, 0.08);
            ratio[v][k] = rate(s, j, 2, v > 0, 0.08) / one[v][k];
        }
    printf("{\"workload\": \"scaling_2_threads\"");
    for (int v = 0; v < 3; v++) {
        qsort(ratio[v], TURNS, sizeof ratio[v][0], by_value);
        qsort(one[v], TURNS, sizeof one[v][0], by_value);
        printf(", \"%s\": %.3f, \"%s_p25\": %.3f, \"%s_p75\": %.3f", name[v], ratio[v][TURNS / 2], name[v],
               ratio[v][TURNS / 4], name[v], ratio[v][TURNS * 3 / 4]);
    }
    printf(", \"runs_per_s_of_one\": %.0f, \"goal\": 1.8, \"met\": %s, \"of_multiply_adds\": %.3f}\n",
           one[0][TURNS / 2], ratio[0][TURNS / 4] >= 1.8 ? "true" : "false", ratio[0][TURNS / 2] / ratio[2][TURNS / 2]);
    fflush(stdout);
    close_work(&w);
    munmap(s, sizeof *s);
}

static void waits_part(void) {
    struct shared *s = share();
    struct work w;
    open_work(&w, 1, TRACE_MODE_RECORD, small_setup);
    for (int i = 0; i < 100; i++)
        call(&w, small_body);
    struct job j = {s, &w};
    (void)rate(s, &j, 2, false, 0.1);
    (void)rate(s, &j, 2, false, 1);
    printf("{\"workload\": \"waits_2_threads\", \"runs\": %ld, \"voluntary_switches\": %ld, \"per_run\": %.6f, "
           "\"involuntary_switches\": %ld}\n",
           s->done, s->switches, s->done ? (double)s->switches / (double)s->done : 0, s->involuntary);
    fflush(stdout);
    close_work(&w);
    munmap(s, sizeof *s);
}

static int steady(double seconds) {
    struct shared *s = share();
    struct work w;
    open_work(&w, 1, TRACE_MODE_RECORD, small_setup);
    for (int i = 0; i < 100; i++)
        call(&w, small_body);
    struct job j = {s, &w};
    double runs = rate(s, &j, 2, false, seconds);
    printf("{\"workload\": \"steady\", \"runs\": %ld, \"per_s\": %.0f}\n", s->done, runs);
    close_work(&w);
    return 0;
}

int main(int argc, char **argv) {
    static const struct part parts[] = {{"matmul", matmul_part, true},
                                        {"first", first_part, true},
                                        {"tiny", tiny_part, true},
                                        {"scaling", scaling_part, true},
                                        {"waits", waits_part, true}};
    if (argc == 2 && !strcmp(argv[1], "--first")) {
        printf("%.6f\n", first_call());
        return 0;
    }
    if (argc == 3 && !strcmp(argv[1], "--steady"))
        return steady(strtod(argv[2], NULL));
    run_parts(parts, sizeof parts / sizeof parts[0], argc, argv);
    return 0;
}
