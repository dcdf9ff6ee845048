// tests/test_load.c: the public library loaded at run time: a hundred times, twice at once, beside another LLVM and
// beside Mesa's llvmpipe, which brings an LLVM of its own.
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../include/tracejit.h"
#include "tj_test.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#else
#define SANITIZED false
#endif

// ---- the library through pointers -----------------------------------------------------------------------------------

// clang-format off
#define FUNCTIONS(X)                                                                                                   \
    X(context_create)                                                                                                  \
    X(context_release)                                                                                                 \
    X(context_stats)                                                                                                   \
    X(context_shutdown)                                                                                                \
    X(last_error)                                                                                                      \
    X(from)                                                                                                            \
    X(release)                                                                                                         \
    X(read_at)                                                                                                         \
    X(region_create) X(region_release) X(begin_at) X(end_at) X(matmul_at) X(softmax_at) X(exp_at) X(sum_at)            \
        X(add_f_at) X(select_at)
// clang-format on
struct library {
    void *handle;
#define MEMBER(f) __typeof__(&trace_##f) f;
    FUNCTIONS(MEMBER)
#undef MEMBER
};

static char build[PATH_MAX]; // where the libraries are: beside this program
static const char *in_build(const char *name) {
    static char path[3][PATH_MAX + 100]; // valid till the third next call
    static int turn;
    char *p = path[turn++ % 3];
    if (!build[0]) {
        ssize_t n = readlink("/proc/self/exe", build, sizeof build - 1);
        ck_assert_int_gt(n, 0);
        build[n] = '\0';
        *strrchr(build, '/') = '\0';
    }
    (void)snprintf(p, sizeof path[0], "%s/%s", build, name);
    return p;
}
static void load(struct library *l, const char *path, int flags) {
    l->handle = dlopen(path, flags);
    ck_assert_msg(l->handle != NULL, "%s", dlerror());
#define FETCH(f)                                                                                                       \
    do {                                                                                                               \
        void *p = dlsym(l->handle, "trace_" #f);                                                                       \
        ck_assert_msg(p != NULL, "%s", dlerror());                                                                     \
        memcpy(&l->f, &p, sizeof p);                                                                                   \
    } while (0);
    FUNCTIONS(FETCH)
#undef FETCH
}

// One thread's and several threads' kernels, of shapes that depend on `turn`; the sum of all it gives.
static int fallbacks;
static void on_event(void *user, const trace_event *e) {
    (void)user;
    fallbacks += e->kind == TRACE_EVENT_FALLBACK;
}
static trace_context *open_context(const struct library *l) {
    trace_context *c = NULL;
    trace_context_options o = {.size = sizeof o, .threads = 2, .on_event = on_event};
    fallbacks = 0;
    ck_assert_msg(l->context_create(&o, &c) == TRACE_OK, "%s", l->last_error(NULL));
    return c;
}
static bool small; // one kernel only
static double use_context(const struct library *l, trace_context *c, int turn) {
    enum { N = 40, BIG = 70000 };
    static float v[BIG];
    trace_region *r = NULL;
    for (int i = 0; i < BIG; i++)
        v[i] = (float)((i * 7 + turn) % 13) / 16;
    ck_assert(l->region_create(c, "loaded", NULL, &r) == TRACE_OK);
    trace_tensor *x = l->from(c, TRACE_F32, v, TRACE_DIMS(N, N)), *y[2] = {NULL};
    trace_tensor *big = l->from(c, TRACE_F32, v, TRACE_DIMS(BIG - turn % 5));
    if (l->begin_at(r, TRACE_ARGS(x, big), "load.c", 1)) {
        y[0] = small ? l->select_at(x, 0, 0, "load.c", 3)
                     : l->sum_at(l->softmax_at(l->matmul_at(x, x, "load.c", 2), -1, "load.c", 2), TRACE_DIMS(0), false,
                                 "load.c", 3);
        y[1] = l->add_f_at(big, turn % 5, "load.c", 4);
        if (!small)
            y[1] = l->sum_at(l->exp_at(y[1], "load.c", 4), NULL, 0, false, "load.c", 4);
    }
    ck_assert_msg(l->end_at(r, y, 2, "load.c", 5) == TRACE_OK, "%s", l->last_error(c));
    float out[N + 1];
    ck_assert(l->read_at(y[0], out, N * sizeof *out, "load.c", 6) == TRACE_OK);
    size_t n = small ? (size_t)(BIG - turn % 5) : 1;
    ck_assert(l->read_at(y[1], v, n * sizeof *v, "load.c", 7) == TRACE_OK);
    out[N] = v[n - 1];
    double sum = 0;
    for (int i = 0; i <= N; i++)
        sum = sum * 1.25 + (double)out[i];
    l->release(x), l->release(big), l->release(y[0]), l->release(y[1]);
    l->region_release(r);
    return sum;
}
static bool compiled(const struct library *l, trace_context *c) {
    trace_stats s = {.size = sizeof s};
    l->context_stats(c, &s);
    return s.kernels > 0;
}
static double use(const struct library *l, int turn, bool *jit) {
    trace_context *c = open_context(l);
    double sum = use_context(l, c, turn);
    if (jit)
        *jit = compiled(l, c);
    ck_assert(l->context_shutdown(c, 10000) == TRACE_OK);
    l->context_release(c);
    return sum;
}
// Whether this build has a compiler module.
static bool has_module(void) { return access(in_build("libtracejit-llvm.so"), R_OK) == 0; }

// ---- a hundred times ------------------------------------------------------------------------------------------------

static int entries(const char *dir) {
    DIR *d = opendir(dir);
    int n = 0;
    ck_assert_ptr_nonnull(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}
static int lines(const char *file) {
    FILE *f = fopen(file, "r");
    int n = 0;
    ck_assert_ptr_nonnull(f);
    for (int c; (c = getc(f)) != EOF;)
        n += c == '\n';
    fclose(f);
    return n;
}
START_TEST(a_hundred_times) {
    struct library l;
    char path[PATH_MAX + 100];
    (void)snprintf(path, sizeof path, "%s", in_build("libtracejit.so"));
    int threads = 0, files = 0, maps = 0;
    double first[5] = {0};
    small = true;
    for (int turn = 0; turn < 100; turn++) {
        bool jit = false;
        load(&l, path, RTLD_NOW | RTLD_LOCAL);
        double sum = use(&l, turn % 5, &jit);
        ck_assert(jit == has_module() && fallbacks == !jit);
        if (turn < 5)
            first[turn] = sum;
        ck_assert_msg(sum == first[turn % 5], "turn %d gives %a, not %a", turn, sum, first[turn % 5]);
        ck_assert_int_eq(dlclose(l.handle), 0);
        if (!SANITIZED) { // it is gone, each time
            void *still = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
            ck_assert_msg(!still, "turn %d: the library is still there", turn);
        }
        if (turn == 9) { // what C library and compiler keep for good is there
            threads = entries("/proc/self/task");
            files = entries("/proc/self/fd");
            maps = lines("/proc/self/maps");
        }
    }
    ck_assert_int_eq(entries("/proc/self/task"), threads);
    ck_assert_int_eq(entries("/proc/self/fd"), files);
    int more = lines("/proc/self/maps") - maps;
    small = false;
    ck_assert_msg(more <= (SANITIZED ? 400 : 12), "%d more mappings after 90 turns", more);
}
END_TEST

// ---- twice ----------------------------------------------------------------------------------------------------------

static bool copy_file(const char *from, const char *to) {
    static char buf[1 << 20];
    int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0755);
    ssize_t n = -1;
    while (in >= 0 && out >= 0 && (n = read(in, buf, sizeof buf)) > 0)
        if (write(out, buf, (size_t)n) != n) {
            n = -1;
            break;
        }
    if (in >= 0)
        close(in);
    if (out >= 0)
        close(out);
    return n == 0;
}
// A copy of the library, and of its module beside it: another version of itself, for the loader.
START_TEST(loaded_twice) { // _i: apart, or one of them for all to see
    char dir[] = "/tmp/tj-load-XXXXXX", lib[100], module[100];
    ck_assert_ptr_nonnull(mkdtemp(dir));
    (void)snprintf(lib, sizeof lib, "%s/libtracejit-other.so.0", dir);
    (void)snprintf(module, sizeof module, "%s/libtracejit-llvm.so", dir);
    bool ok = copy_file(in_build("libtracejit.so"), lib) &&
              (!has_module() || copy_file(in_build("libtracejit-llvm.so"), module));
    if (!ok) { // no room for it
        printf("note: loaded_twice skipped: no copy in %s: %s\n", dir, strerror(errno));
    } else {
        (void)unsetenv("TRACEJIT_LLVM"); // each takes the module beside it
        struct library a, b;
        load(&a, in_build("libtracejit.so"), RTLD_NOW | RTLD_LOCAL);
        load(&b, lib, RTLD_NOW | (_i ? RTLD_GLOBAL : RTLD_LOCAL));
        ck_assert(a.context_create != b.context_create);
        trace_context *ca = open_context(&a), *cb = open_context(&b);
        for (int turn = 0; turn < 6; turn++) { // by turns, in each other's life
            double x = use_context(&a, ca, turn), y = use_context(&b, cb, turn),
                   z = use(turn % 2 ? &a : &b, turn, NULL);
            ck_assert_msg(x == y && y == z, "turn %d: %a, %a, %a", turn, x, y, z);
        }
        ck_assert(compiled(&a, ca) == has_module() && compiled(&b, cb) == has_module());
        a.context_release(ca);
        ck_assert_int_eq(dlclose(a.handle), 0); // the other one goes on
        double after = use_context(&b, cb, 1);
        b.context_release(cb);
        load(&a, in_build("libtracejit.so"), RTLD_NOW | RTLD_LOCAL);
        ck_assert(use(&a, 1, NULL) == after);
        ck_assert_int_eq(dlclose(b.handle), 0);
        ck_assert(use(&a, 1, NULL) == after);
        ck_assert_int_eq(dlclose(a.handle), 0);
    }
    (void)unlink(lib), (void)unlink(module);
    ck_assert_int_eq(rmdir(dir), 0);
}
END_TEST

// ---- another LLVM ---------------------------------------------------------------------------------------------------

struct llvm {
    void *handle;
    void *(*context)(void), (*dispose)(void *);
    void *(*module)(const char *, void *);
    char *(*print)(void *);
    void (*free_text)(char *), (*drop)(void *);
};
// Its symbols are for all to see, which is what would disturb a guest that looks for its own among them.
static bool llvm_open(struct llvm *v, const char *const *names) {
    v->handle = NULL;
    for (; *names && !v->handle; names++)
        v->handle = dlopen(*names, RTLD_NOW | RTLD_GLOBAL);
    if (!v->handle)
        return false;
    const char *const symbols[] = {"LLVMContextCreate",       "LLVMContextDispose", "LLVMModuleCreateWithNameInContext",
                                   "LLVMPrintModuleToString", "LLVMDisposeMessage", "LLVMDisposeModule"};
    void *p[TJ_COUNT(symbols)];
    for (size_t i = 0; i < TJ_COUNT(symbols); i++)
        ck_assert_ptr_nonnull(p[i] = dlsym(v->handle, symbols[i]));
    memcpy(&v->context, &p[0], sizeof p[0]), memcpy(&v->dispose, &p[1], sizeof p[0]);
    memcpy(&v->module, &p[2], sizeof p[0]), memcpy(&v->print, &p[3], sizeof p[0]);
    memcpy(&v->free_text, &p[4], sizeof p[0]), memcpy(&v->drop, &p[5], sizeof p[0]);
    return true;
}
static void llvm_use(const struct llvm *v) {
    void *c = v->context(), *m = v->module("the host's", c);
    char *text = v->print(m);
    ck_assert_ptr_nonnull(strstr(text, "the host's"));
    v->free_text(text);
    v->drop(m);
    v->dispose(c);
}
static const char *const llvms[][6] = {
    {"libLLVM-15.so.1", "libLLVM-14.so.1", NULL},
    {"libLLVM.so.19.1", "libLLVM-19.so.1", "libLLVM.so.20.1", "libLLVM.so.21.1", NULL},
    {"libLLVM.so.22.1", "libLLVM-22.so.1", NULL}};
START_TEST(another_llvm) { // _i: which, and whether it comes before or after
    struct llvm v;
    struct library l;
    double before = 0;
    load(&l, in_build("libtracejit.so"), RTLD_NOW | RTLD_LOCAL);
    if (_i & 1)
        before = use(&l, 3, NULL);
    if (!llvm_open(&v, llvms[_i / 2])) {
        printf("note: another_llvm skipped: no %s\n", llvms[_i / 2][0]);
        return;
    }
    llvm_use(&v);
    bool jit;
    double with = use(&l, 3, &jit);
    ck_assert(jit == has_module() && (with == before || !(_i & 1)));
    llvm_use(&v);
    ck_assert(use(&l, 3, NULL) == with);
    ck_assert_int_eq(dlclose(l.handle), 0);
    llvm_use(&v);
}
END_TEST

// ---- Mesa -----------------------------------------------------------------------------------------------------------

// EGL and GLES 2 as far as they are needed, so that building asks for no headers.
struct gl {
    void *egl;
    void *(*get)(const char *);
    void *display, *context;
    unsigned texture, frame;
};
static void *gl_find(const struct gl *g, const char *name) {
    void *p = g->get(name);
    ck_assert_msg(p != NULL, "%s", name);
    return p;
}
#define GL(name, type) __typeof__(type) name = (type)(uintptr_t)gl_find(g, #name)
static const char *gl_open(struct gl *g) {
    (void)setenv("LIBGL_ALWAYS_SOFTWARE", "1", 1);
    (void)setenv("GALLIUM_DRIVER", "llvmpipe", 1);
    (void)setenv("EGL_PLATFORM", "surfaceless", 1);
    g->egl = dlopen("libEGL.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!g->egl)
        return "no libEGL.so.1 (package libegl1)";
    void *p = dlsym(g->egl, "eglGetProcAddress");
    ck_assert_ptr_nonnull(p);
    memcpy(&g->get, &p, sizeof p);
    GL(eglGetPlatformDisplay, void *(*)(unsigned, void *, const intptr_t *));
    GL(eglInitialize, unsigned (*)(void *, int *, int *));
    GL(eglBindAPI, unsigned (*)(unsigned));
    GL(eglChooseConfig, unsigned (*)(void *, const int *, void **, int, int *));
    GL(eglCreateContext, void *(*)(void *, void *, void *, const int *));
    GL(eglMakeCurrent, unsigned (*)(void *, void *, void *, void *));
    static const int config[] = {0x3033, 0, 0x3040, 4, 0x3038}; // any surface, GLES 2
    static const int version[] = {0x3098, 2, 0x3038};
    void *chosen = NULL;
    int n = 0;
    g->display = eglGetPlatformDisplay(0x31DD, NULL, NULL); // surfaceless
    if (!g->display || !eglInitialize(g->display, NULL, NULL) || !eglBindAPI(0x30A0))
        return "no surfaceless EGL display";
    if (!eglChooseConfig(g->display, config, &chosen, 1, &n))
        return "no EGL configuration";
    g->context = eglCreateContext(g->display, n ? chosen : NULL, NULL, version);
    if (!g->context || !eglMakeCurrent(g->display, NULL, NULL, g->context))
        return "no GLES 2 context without a surface";
    GL(glGetString, const char *(*)(unsigned));
    const char *renderer = glGetString(0x1F01);
    return renderer && strstr(renderer, "llvmpipe") ? NULL : "the renderer is not llvmpipe";
}
static unsigned gl_shader(struct gl *g, unsigned kind, const char *text) {
    GL(glCreateShader, unsigned (*)(unsigned));
    GL(glShaderSource, void (*)(unsigned, int, const char *const *, const int *));
    GL(glCompileShader, void (*)(unsigned));
    unsigned s = glCreateShader(kind);
    glShaderSource(s, 1, &text, NULL);
    glCompileShader(s);
    return s;
}
// Draws with a shader that llvmpipe compiles by its LLVM; the pixel in the middle. `k`: another shader each time.
static unsigned gl_draw(struct gl *g, int k) {
    GL(glGenTextures, void (*)(int, unsigned *));
    GL(glBindTexture, void (*)(unsigned, unsigned));
    GL(glTexImage2D, void (*)(unsigned, int, int, int, int, int, unsigned, unsigned, const void *));
    GL(glGenFramebuffers, void (*)(int, unsigned *));
    GL(glBindFramebuffer, void (*)(unsigned, unsigned));
    GL(glFramebufferTexture2D, void (*)(unsigned, unsigned, unsigned, unsigned, int));
    GL(glViewport, void (*)(int, int, int, int));
    GL(glCreateProgram, unsigned (*)(void));
    GL(glAttachShader, void (*)(unsigned, unsigned));
    GL(glLinkProgram, void (*)(unsigned));
    GL(glUseProgram, void (*)(unsigned));
    GL(glVertexAttribPointer, void (*)(unsigned, int, unsigned, unsigned char, int, const void *));
    GL(glEnableVertexAttribArray, void (*)(unsigned));
    GL(glDrawArrays, void (*)(unsigned, int, int));
    GL(glReadPixels, void (*)(int, int, int, int, unsigned, unsigned, void *));
    GL(glFinish, void (*)(void));
    static const float corners[] = {-1, -1, 3, -1, -1, 3};
    char text[300];
    (void)snprintf(text, sizeof text,
                   "precision highp float; void main() { float v = 0.0; for (int i = 0; i < %d; i++) v += 0.1; "
                   "gl_FragColor = vec4(v, sqrt(0.25), gl_FragCoord.x / 64.0, 1.0); }",
                   k);
    if (!g->texture) {
        glGenTextures(1, &g->texture);
        glBindTexture(0x0DE1, g->texture);
        glTexImage2D(0x0DE1, 0, 0x1908, 64, 64, 0, 0x1908, 0x1401, NULL);
        glGenFramebuffers(1, &g->frame);
        glBindFramebuffer(0x8D40, g->frame);
        glFramebufferTexture2D(0x8D40, 0x8CE0, 0x0DE1, g->texture, 0);
    }
    glViewport(0, 0, 64, 64);
    unsigned program = glCreateProgram();
    glAttachShader(program, gl_shader(g, 0x8B31, "attribute vec2 p; void main() { gl_Position = vec4(p, 0.0, 1.0); }"));
    glAttachShader(program, gl_shader(g, 0x8B30, text));
    glLinkProgram(program);
    glUseProgram(program);
    glVertexAttribPointer(0, 2, 0x1406, 0, 0, corners);
    glEnableVertexAttribArray(0);
    glDrawArrays(4, 0, 3);
    glFinish();
    unsigned char pixel[4] = {0};
    glReadPixels(32, 32, 1, 1, 0x1908, 0x1401, pixel);
    ck_assert_msg(pixel[1] > 120 && pixel[1] < 135 && pixel[0] > 20 * k && pixel[0] < 32 * k && pixel[3] == 255,
                  "pixel %d %d %d %d", pixel[0], pixel[1], pixel[2], pixel[3]);
    return pixel[0];
}
START_TEST(mesa) { // _i: before or after the library
    struct gl g = {NULL, NULL, NULL, NULL, 0, 0};
    struct library l;
    double before = 0;
    load(&l, in_build("libtracejit.so"), RTLD_NOW | RTLD_LOCAL);
    if (_i)
        before = use(&l, 4, NULL);
    const char *why = gl_open(&g);
    if (why) {
        printf("note: mesa skipped: %s\n", why);
        return;
    }
    unsigned three = gl_draw(&g, 3);
    bool jit;
    double with = use(&l, 4, &jit);
    ck_assert(jit == has_module() && (with == before || !_i));
    ck_assert(gl_draw(&g, 7) > three);
    ck_assert(use(&l, 4, NULL) == with);
    ck_assert_int_eq(dlclose(l.handle), 0);
    ck_assert_uint_eq(gl_draw(&g, 3), three);
}
END_TEST

TJ_TEST_MAIN_TURNS("load", {a_hundred_times, 1}, {loaded_twice, 2}, {another_llvm, 6}, {mesa, 2})
