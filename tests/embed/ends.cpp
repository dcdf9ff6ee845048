// tests/embed/ends.cpp: how processes end, and begin: each way out while plans are compiled and run on other threads;
// the first run in a constructor or destructor of a static object, in a handler of exit. The status is the program's
// own.
#include <cstdio>
#include <cstdlib>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "tracejit.h"

enum way { RETURN, EXIT, QUICK_EXIT, UNDERSCORE, THREAD_EXITS, MAIN_LEAVES, RELEASED, EARLY, WAYS };
static int way = -1;
static int late; // what runs late in this child: 1 handlers of exit, 2 destructors

// A first run on a context of its own.
static bool run_once(int n) {
    trace_context *c = nullptr;
    trace_region *r = nullptr;
    trace_context_options o{};
    o.size = sizeof o;
    o.threads = 3;
    if (trace_context_create(&o, &c) || trace_region_create(c, "once", nullptr, &r))
        return false;
    const int64_t dims[] = {200, 200};
    std::vector<float> v(200 * 200, 1);
    trace_tensor *x = trace_from(c, TRACE_F32, v.data(), dims, 2), *y = nullptr;
    if (trace_begin(r, &x, 1))
        y = trace_add_f(trace_tanh(trace_matmul(x, x)), n);
    bool ok = trace_end(r, &y, 1) == TRACE_OK && trace_read(y, v.data(), v.size() * sizeof v[0]) == TRACE_OK;
    ok = ok && v[77] == float(1 + n);
    trace_release(x), trace_release(y);
    trace_region_release(r);
    trace_context_release(c);
    return ok;
}

struct object {
    object() {
        if (getenv("EMBED_EARLY") && !run_once(1))
            _exit(20);
    }
    ~object() {
        if (late == 2 && !run_once(2))
            _exit(21);
    }
};
static object static_object;
__attribute__((constructor)) static void before() {
    if (getenv("EMBED_EARLY") && !run_once(3))
        _exit(22);
}
__attribute__((destructor)) static void after() {
    if (late == 2 && !run_once(4))
        _exit(23);
}
static void handler() {
    if (late == 1 && !run_once(5))
        _exit(24);
    usleep(20000); // it saves the state of the program
}

static trace_context *ctx;
static trace_region *background;
// Another graph each time: something is being compiled at any moment.
static void *compiles(void *) {
    const int64_t dims[] = {32, 32}, row = 32;
    std::vector<float> v(32 * 32, 1);
    trace_tensor *x = trace_from(ctx, TRACE_F32, v.data(), dims, 2);
    for (int k = 0; k < 1000; k++) {
        trace_tensor *y = nullptr;
        if (trace_begin(background, &x, 1)) {
            y = x;
            for (int i = 0; i < 3 + k; i++) {
                y = trace_softmax(trace_add_f(trace_matmul(y, x), i), i & 1);
                y = trace_layer_norm(y, &row, 1, TRACE_NONE, TRACE_NONE, 1e-5);
            }
        }
        if (trace_end(background, &y, 1))
            break;
        trace_release(y);
    }
    return nullptr;
}
static void *runs(void *) {
    while (run_once(6))
        continue;
    return nullptr;
}

static int child(int delay) {
    atexit(handler);
    at_quick_exit(handler);
    if (way == EARLY)
        return run_once(7) ? 0 : 25;
    trace_context_options o{};
    o.size = sizeof o;
    o.threads = 2;
    trace_region_options b{};
    b.size = sizeof b;
    b.background = true;
    b.background_policy = TRACE_POLICY_INTERPRET;
    if (trace_context_create(&o, &ctx) || trace_region_create(ctx, "background", &b, &background))
        return 26;
    pthread_t t;
    if (pthread_create(&t, nullptr, compiles, nullptr) || pthread_create(&t, nullptr, runs, nullptr))
        return 27;
    usleep(useconds_t(delay));
    switch (way) {
    case EXIT: exit(0);
    case QUICK_EXIT: quick_exit(0);
    case UNDERSCORE: _exit(0);
    case THREAD_EXITS:
    case MAIN_LEAVES:
        if (pthread_create(
                &t, nullptr,
                [](void *) -> void * {
                    usleep(5000);
                    exit(0);
                },
                nullptr))
            return 28;
        if (way == MAIN_LEAVES)
            pthread_exit(nullptr);
        pause();
        return 29;
    case RELEASED: trace_context_release(ctx); return 0; // its region keeps it
    default: return 0;
    }
}

int main(int argc, char **argv) {
    if (argc > 2) {
        way = atoi(argv[1]);
        late = atoi(argv[2]);
        alarm(60);
        return child(atoi(argv[3]));
    }
#ifdef __SANITIZE_THREAD__
    return 0; // its runtime doesn't let a process end under running threads
#endif
    int bad = 0;
    for (int i = 0; i < 3 * WAYS; i++) {
        if (i >= WAYS && i % WAYS != RETURN && i % WAYS != EXIT && i % WAYS != MAIN_LEAVES)
            continue;
        pid_t pid = fork();
        if (pid == 0) {
            char w[12], l[12], d[12];
            (void)snprintf(w, sizeof w, "%d", i % WAYS);
            (void)snprintf(l, sizeof l, "%d", i / WAYS);
            (void)snprintf(d, sizeof d, "%d", i % 5 * 11000);
            if (i % WAYS == EARLY)
                (void)setenv("EMBED_EARLY", "1", 1);
            (void)setenv("ASAN_OPTIONS", "detect_leaks=0", 1); // a process that just ends leaves all it has
            (void)execl("/proc/self/exe", argv[0], w, l, d, nullptr);
            _exit(30);
        }
        int st = 0;
        if (waitpid(pid, &st, 0) != pid || st) {
            (void)fprintf(stderr, "way %d, late %d: status %x\n", i % WAYS, i / WAYS, unsigned(st));
            bad = 1;
        }
    }
    return bad;
}
