// jit/module_llvm.c: the compiler module: LLVM set up once, batches of units compiled to sealed code.
#include <fenv.h>
#include <llvm-c/Analysis.h>
#include <llvm-c/ErrorHandling.h>
#include <llvm-c/Target.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "../kernels/gemm_llvm.h"
#include "emit_llvm.h"

#define THREAD_STACK ((size_t)8 << 20) // LLVM recurses; callers may have small stacks
#define CALLER_STACK ((size_t)4 << 20) // what a caller has to have left when no thread can be started

struct compiler {
    struct tj_module_host host;
    enum tj_cpu_level level;
    LLVMTargetMachineRef machine;
    char *tune;
    unsigned lives;   // value of `lives` that the machine was made in
    char broken[256]; // why it can't be used any more; "" = it can
};

// ---- the end of the process -----------------------------------------------------------------------------------------

// A process may end, or begin its last compile, at any time: from a handler of exit, from a destructor of a static
// object, while another thread compiles. So static objects of LLVM and of the C++ library inside the module stay as
// they are: their destructors go to these functions, hidden in the module, and not to the system's. What they hold is
// given back with the process; the module isn't unloaded once it has worked.
int tj_no_destructor(void (*f)(void *), void *arg, void *module) __asm__("__cxa_atexit");
int tj_no_handler(void (*f)(void)) __asm__("atexit");
__attribute__((visibility("hidden"))) int tj_no_destructor(void (*f)(void *), void *arg, void *module) {
    (void)f, (void)arg, (void)module;
    return 0;
}
__attribute__((visibility("hidden"))) int tj_no_handler(void (*f)(void)) {
    (void)f;
    return 0;
}

// ---- state ----------------------------------------------------------------------------------------------------------

// One compile at a time in the process: LLVM's fatal error handler is the module's.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
// Fork while a thread compiles leaves the child with the lock held, and with machines that nobody finishes changing:
// there the lock is made anew, and so is each machine before its next use. What they held is lost.
static atomic_int process;    // that used the lock last; 0: none yet, -1: a child is taking over
static atomic_bool compiling; // a thread holds the lock
static unsigned lives;        // one more in a child that was left so; under the lock

static void enter(void) {
    int me = (int)getpid(), was = atomic_load(&process);
    while (was != me) {
        if (was >= 0 && atomic_compare_exchange_strong(&process, &was, -1)) {
            if (was && atomic_load(&compiling)) {
                (void)pthread_mutex_init(&lock, NULL);
                lives++;
            }
            atomic_store(&process, me);
        }
        was = atomic_load(&process);
    }
    (void)pthread_mutex_lock(&lock);
    atomic_store(&compiling, true);
}

static void leave(void) {
    atomic_store(&compiling, false);
    (void)pthread_mutex_unlock(&lock);
}

static struct {
    jmp_buf back;
    bool armed;
    char text[256];
} fatal; // used by the compiling thread, under the lock

static void on_fatal(const char *reason) {
    (void)snprintf(fatal.text, sizeof fatal.text, "%s", reason ? reason : "");
    fatal.text[strcspn(fatal.text, "\n")] = 0;
    if (fatal.armed) {
        longjmp(fatal.back, 1);
    }
}

// No memory is a fatal error like any other: LLVM is built without exceptions, and what operator new throws by default
// would end the process. The module has the C++ library inside it, and so its own operator new.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && defined(__LP64__)
static void *need(void *p) {
    if (!p) {
        on_fatal("out of memory");
        abort(); // nobody is there to go back to: as the C++ library does
    }
    return p;
}
void *tj_new(size_t n) __asm__("_Znwm");
void *tj_new_array(size_t n) __asm__("_Znam");
void *tj_new_aligned(size_t n, size_t align) __asm__("_ZnwmSt11align_val_t");
void *tj_new_nothrow(size_t n, const void *tag) __asm__("_ZnwmRKSt9nothrow_t");
void *tj_new_array_nothrow(size_t n, const void *tag) __asm__("_ZnamRKSt9nothrow_t");
void *tj_new(size_t n) { return need(malloc(n ? n : 1)); }
void *tj_new_array(size_t n) { return need(malloc(n ? n : 1)); }
void *tj_new_aligned(size_t n, size_t align) {
    void *p;
    return need(posix_memalign(&p, align < sizeof p ? sizeof p : align, n ? n : 1) ? NULL : p);
}
void *tj_new_nothrow(size_t n, const void *tag) { return (void)tag, malloc(n ? n : 1); }
void *tj_new_array_nothrow(size_t n, const void *tag) { return (void)tag, malloc(n ? n : 1); }
#endif
// LLVM's own allocations by malloc ask this one. C++, so without a header here.
void tj_install_bad_alloc(void (*handler)(void *user, const char *reason, bool crash),
                          void *user) __asm__("_ZN4llvm31install_bad_alloc_error_handlerEPFvPvPKcbES0_");
static void on_bad_alloc(void *user, const char *reason, bool crash) {
    (void)user, (void)crash;
    on_fatal(reason && reason[0] ? reason : "out of memory");
}

static void on_diagnostic(LLVMDiagnosticInfoRef info, void *user) {
    char *text = user;
    if (LLVMGetDiagInfoSeverity(info) == LLVMDSError && !text[0]) {
        char *s = LLVMGetDiagInfoDescription(info);
        (void)snprintf(text, sizeof fatal.text, "%s", s);
        LLVMDisposeMessage(s);
    }
}

static uint64_t now_ns(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

// ---- a thread with a stack of its own -----------------------------------------------------------------------------

struct job {
    void (*run)(void *);
    void *arg;
};

static void *job_main(void *p) {
    struct job *j = p;
    (void)pthread_setname_np(pthread_self(), "tracejit-llvm");
    (void)fesetenv(FE_DFL_ENV); // a thread starts with its creator's
    j->run(j->arg);
    return NULL;
}

// Runs on a fresh thread with all signals blocked, or, when there can't be one, on the caller's. False: its stack is
// too small for that; told in err.
static bool on_thread(const struct tj_module_host *host, void (*run)(void *), void *arg, char *err, size_t cap) {
    struct job j = {run, arg};
    pthread_t t;
    int no = host->thread_start(&t, THREAD_STACK, false, job_main, &j);
    if (!no) {
        return !pthread_join(t, NULL);
    }
    size_t left = host->stack_left();
    sigset_t all, old;
    fenv_t env;
    (void)sigfillset(&all);
    if (left < CALLER_STACK || pthread_sigmask(SIG_SETMASK, &all, &old)) {
        (void)snprintf(err, cap,
                       "no thread can be started to compile on (%s), and the calling thread has %zu KiB of stack left, "
                       "not %zu",
                       strerror(no), left >> 10, CALLER_STACK >> 10);
        return false;
    }
    (void)fegetenv(&env);
    (void)fesetenv(FE_DFL_ENV);
    run(arg);
    (void)fesetenv(&env);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    return true;
}

// ---- creation -----------------------------------------------------------------------------------------------------

static const char *cpu_name(enum tj_cpu_level level) {
#if defined __x86_64__
    return level == TJ_CPU_AVX512 ? "x86-64-v4" : level == TJ_CPU_AVX2 ? "x86-64-v3" : "x86-64";
#else
    (void)level;
    return "generic";
#endif
}

static LLVMTargetMachineRef make_machine(enum tj_cpu_level level, char *err, size_t cap) {
    char *triple = LLVMGetDefaultTargetTriple(), *message = NULL;
    LLVMTargetRef target = NULL;
    LLVMTargetMachineRef m = NULL;
    if (LLVMGetTargetFromTriple(triple, &target, &message)) {
        (void)snprintf(err, cap, "%s", message);
        LLVMDisposeMessage(message);
    } else {
        m = LLVMCreateTargetMachine(target, triple, cpu_name(level), "", LLVMCodeGenLevelDefault, LLVMRelocPIC,
                                    LLVMCodeModelSmall);
        if (!m) {
            (void)snprintf(err, cap, "LLVM has no target machine for %s", triple);
        }
    }
    LLVMDisposeMessage(triple);
    return m;
}

struct creation {
    const struct tj_module_host *host;
    const struct tj_cpu *cpu;
    struct compiler *out;
    char *err;
    size_t cap;
};

static void create_on_thread(void *p) {
    struct creation *c = p;
    static bool ready; // under the lock
    if (setjmp(fatal.back)) {
        (void)snprintf(c->err, c->cap, "LLVM: %s", fatal.text);
        fatal.armed = false;
        return;
    }
    fatal.armed = true;
    if (!ready) {
        LLVMInstallFatalErrorHandler(on_fatal);
        tj_install_bad_alloc(on_bad_alloc, NULL);
        if (LLVMInitializeNativeTarget() || LLVMInitializeNativeAsmPrinter()) {
            (void)snprintf(c->err, c->cap, "this LLVM has no native target");
            fatal.armed = false;
            return;
        }
        ready = true;
    }
    LLVMTargetMachineRef m = make_machine(c->cpu->level, c->err, c->cap);
    struct compiler *o = m ? c->host->alloc(sizeof *o) : NULL;
    if (o) {
        *o = (struct compiler){
            .host = *c->host, .level = c->cpu->level, .machine = m, .tune = LLVMGetHostCPUName(), .lives = lives};
        c->out = o;
    } else if (m) {
        (void)snprintf(c->err, c->cap, "out of memory");
        LLVMDisposeTargetMachine(m);
    }
    fatal.armed = false;
}

static tj_status module_create(const struct tj_module_host *host, const struct tj_cpu *cpu, void **compiler, char *err,
                               size_t cap) {
    struct creation c = {host, cpu, NULL, err, cap};
    err[0] = 0;
    enter();
    bool ran = on_thread(host, create_on_thread, &c, err, cap);
    leave();
    *compiler = c.out;
    return c.out ? TRACE_OK : ran ? TRACE_ERR_UNAVAILABLE : TRACE_ERR_BUSY;
}

static void module_destroy(void *compiler) {
    struct compiler *c = compiler;
    if (!c) {
        return;
    }
    if (!c->broken[0]) { // after a fatal error nothing of LLVM's is touched again
        LLVMDisposeTargetMachine(c->machine);
        LLVMDisposeMessage(c->tune);
    }
    c->host.free(c);
}

// ---- compiling ----------------------------------------------------------------------------------------------------

struct compile {
    struct compiler *c;
    struct tj_unit *units;
    size_t n;
    unsigned want; // TJ_WANT_*
    struct tj_compile_result *out;
    tj_status status;
    struct tj_emit e;
    LLVMMemoryBufferRef object;
};

static void string_attr(struct tj_emit *e, const char *key, const char *value) {
    e->attrs[e->nattrs++] =
        LLVMCreateStringAttribute(e->ctx, key, (unsigned)strlen(key), value, (unsigned)strlen(value));
}

static void open_emit(struct compile *j, char *diagnostic) {
    struct tj_emit *e = &j->e;
    enum tj_cpu_level level = j->c->level;
    *e = (struct tj_emit){.host = &j->c->host, .level = level, .err = j->out->error, .cap = sizeof j->out->error};
    e->tune = j->c->tune;
#if defined __x86_64__
    e->x86 = true;
    e->fma = e->f16c = level >= TJ_CPU_AVX2;
#else
    e->fma = e->f16c = true;
#endif
    e->width = level == TJ_CPU_AVX512 ? 16 : level == TJ_CPU_AVX2 ? 8 : 4;
    e->ctx = LLVMContextCreate();
    LLVMContextSetDiagnosticHandler(e->ctx, on_diagnostic, diagnostic);
    LLVMContextSetDiscardValueNames(e->ctx, !(j->want & TJ_WANT_TEXT));
    e->module = LLVMModuleCreateWithNameInContext("tracejit", e->ctx);
    char *triple = LLVMGetTargetMachineTriple(j->c->machine);
    LLVMSetTarget(e->module, triple);
    LLVMDisposeMessage(triple);
    LLVMTargetDataRef layout = LLVMCreateTargetDataLayout(j->c->machine);
    LLVMSetModuleDataLayout(e->module, layout);
    LLVMDisposeTargetData(layout);
    e->b = LLVMCreateBuilderInContext(e->ctx);
    e->eb = LLVMCreateBuilderInContext(e->ctx);
    e->i1 = LLVMInt1TypeInContext(e->ctx);
    e->i8 = LLVMInt8TypeInContext(e->ctx);
    e->i16 = LLVMInt16TypeInContext(e->ctx);
    e->i32 = LLVMInt32TypeInContext(e->ctx);
    e->i64 = LLVMInt64TypeInContext(e->ctx);
    e->half = LLVMHalfTypeInContext(e->ctx);
    e->f32 = LLVMFloatTypeInContext(e->ctx);
    e->f64 = LLVMDoubleTypeInContext(e->ctx);
    e->ptr = LLVMPointerTypeInContext(e->ctx, 0);
    e->none = LLVMVoidTypeInContext(e->ctx);
    // Nothing that emitted code calls throws. But debuggers, profilers and signal handlers walk through it from any
    // instruction: uwtable 2 describes its frames at each.
    unsigned nounwind = LLVMGetEnumAttributeKindForName("nounwind", 8);
    unsigned uwtable = LLVMGetEnumAttributeKindForName("uwtable", 7);
    e->attrs[e->nattrs++] = LLVMCreateEnumAttribute(e->ctx, nounwind, 0);
    e->attrs[e->nattrs++] = LLVMCreateEnumAttribute(e->ctx, uwtable, 2);
    string_attr(e, "no-builtins", "true");
    if (level == TJ_CPU_AVX512) {
        string_attr(e, "prefer-vector-width", "512");
        string_attr(e, "min-legal-vector-width", "512");
    }
    string_attr(e, "tune-cpu", e->tune);
}

static void close_emit(struct compile *j) {
    struct tj_emit *e = &j->e;
    LLVMDisposeBuilder(e->b);
    LLVMDisposeBuilder(e->eb);
    LLVMDisposeModule(e->module);
    LLVMContextDispose(e->ctx);
}

static char *keep_text(const struct tj_module_host *host, const char *s, size_t n) {
    char *t = host->alloc(n + 1);
    if (t) {
        memcpy(t, s, n);
        t[n] = 0;
    }
    return t;
}

static tj_status emit_units(struct compile *j) {
    struct tj_emit *e = &j->e;
    for (size_t i = 0; i < j->n; i++) {
        struct tj_unit *u = &j->units[i];
        if (u->kind == TJ_UNIT_LOOP) {
            tj_status st = tj_emit_loop(e, u->loop, u->symbol);
            if (st) {
                return st;
            }
            continue;
        }
        tj_lv f = tj_emit_gemm(e->module, &u->gemm, j->c->level, u->symbol, e->err, e->cap);
        if (!f) {
            return TRACE_ERR_COMPILE;
        }
        for (unsigned k = 0; k < e->nattrs; k++) {
            LLVMAddAttributeAtIndex(f, LLVMAttributeFunctionIndex, e->attrs[k]);
        }
    }
    return TRACE_OK;
}

static tj_status verify(struct compile *j) {
    char *message = NULL;
    if (LLVMVerifyModule(j->e.module, LLVMReturnStatusAction, &message)) {
        (void)snprintf(j->e.err, j->e.cap, "invalid IR: %s", message);
        LLVMDisposeMessage(message);
        return TRACE_ERR_COMPILE;
    }
    LLVMDisposeMessage(message);
    return TRACE_OK;
}

static tj_status texts(struct compile *j) {
    char *ir = LLVMPrintModuleToString(j->e.module), *message = NULL;
    j->out->ir = keep_text(&j->c->host, ir, strlen(ir));
    LLVMDisposeMessage(ir);
    LLVMModuleRef copy = LLVMCloneModule(j->e.module); // generating code changes a module
    LLVMMemoryBufferRef text = NULL;
    if (LLVMTargetMachineEmitToMemoryBuffer(j->c->machine, copy, LLVMAssemblyFile, &message, &text)) {
        (void)snprintf(j->e.err, j->e.cap, "%s", message);
        LLVMDisposeMessage(message);
        LLVMDisposeModule(copy);
        return TRACE_ERR_COMPILE;
    }
    LLVMDisposeModule(copy);
    j->out->asm_text = keep_text(&j->c->host, LLVMGetBufferStart(text), LLVMGetBufferSize(text));
    LLVMDisposeMemoryBuffer(text);
    return j->out->ir && j->out->asm_text ? TRACE_OK : TRACE_ERR_MEMORY;
}

static tj_status emit_object(struct compile *j, const char *diagnostic) {
    char *message = NULL;
    if (LLVMTargetMachineEmitToMemoryBuffer(j->c->machine, j->e.module, LLVMObjectFile, &message, &j->object)) {
        (void)snprintf(j->e.err, j->e.cap, "%s", message);
        LLVMDisposeMessage(message);
        return TRACE_ERR_COMPILE;
    }
    if (diagnostic[0]) {
        (void)snprintf(j->e.err, j->e.cap, "%s", diagnostic);
        return TRACE_ERR_COMPILE;
    }
    return TRACE_OK;
}

static void compile_on_thread(void *p) {
    struct compile *j = p;
    static char diagnostic[256]; // under the lock; outlives a longjmp
    diagnostic[0] = fatal.text[0] = 0;
    if (setjmp(fatal.back)) {
        fatal.armed = false;
        (void)snprintf(j->c->broken, sizeof j->c->broken, "LLVM failed: %.200s", fatal.text);
        (void)snprintf(j->out->error, sizeof j->out->error, "%s", j->c->broken);
        j->status = TRACE_ERR_COMPILE;
        return; // what LLVM held is lost
    }
    fatal.armed = true;
    uint64_t t0 = now_ns();
    if (j->c->lives != lives) {
        LLVMTargetMachineRef m = make_machine(j->c->level, j->out->error, sizeof j->out->error);
        if (!m) {
            fatal.armed = false;
            return;
        }
        j->c->machine = m;
        j->c->lives = lives;
    }
    open_emit(j, diagnostic);
    tj_status st = emit_units(j);
    st = st ? st : verify(j); // 2% of the time; invalid IR would crash code generation
    st = st || !(j->want & TJ_WANT_TEXT) ? st : texts(j);
    uint64_t t1 = now_ns();
    st = st ? st : emit_object(j, diagnostic);
    j->out->emit_ns = t1 - t0;
    j->out->codegen_ns = now_ns() - t1;
    close_emit(j);
    fatal.armed = false;
    j->status = st;
}

// What emitted code may call: operations that a feature level lacks as instructions.
static void *external(const char *name) {
    static const struct {
        const char *name;
        void *f;
    } table[] = {
#define F(x) {#x, (void *)(intptr_t)(x)}
        F(fma),
        F(fmaf),
        F(floor),
        F(floorf),
        F(ceil),
        F(ceilf),
        F(trunc),
        F(truncf),
        F(rint),
        F(rintf),
        F(memcpy),
        F(memset),
        F(memmove),
#undef F
        {"roundeven", (void *)(intptr_t)(rint)}, // the default rounding direction is in force
        {"roundevenf", (void *)(intptr_t)(rintf)},
    };
    for (size_t i = 0; i < TJ_COUNT(table); i++) {
        if (!strcmp(table[i].name, name)) {
            return table[i].f;
        }
    }
    return NULL;
}

static tj_status load(struct compile *j) {
    struct tj_compile_result *out = j->out;
    struct tj_object *symbols = NULL;
    tj_status st = tj_object_load(&j->c->host, LLVMGetBufferStart(j->object), LLVMGetBufferSize(j->object), &out->code,
                                  external, &symbols, out->error, sizeof out->error);
    if (!st && j->want & TJ_WANT_SYMBOLS) {
        tj_object_symbols(&j->c->host, symbols, &out->symbols, &out->nsymbols); // names to look at: none is no failure
    }
    for (size_t i = 0; i < j->n && !st; i++) {
        struct tj_unit *u = &j->units[i];
        char second[80];
        (void)snprintf(second, sizeof second, "%s.2", u->symbol);
        u->entry[0] = tj_object_lookup(symbols, u->symbol);
        u->entry[1] = tj_object_lookup(symbols, second);
        if (!u->entry[0]) {
            (void)snprintf(out->error, sizeof out->error, "object file: no symbol %s", u->symbol);
            st = TRACE_ERR_COMPILE;
            j->c->host.exec_unmap(&out->code);
            out->code = (struct tj_exec){0};
        }
    }
    tj_object_free(&j->c->host, symbols);
    return st;
}

static tj_status module_compile(void *compiler, struct tj_unit *units, size_t n, unsigned want,
                                struct tj_compile_result *out) {
    struct compiler *c = compiler;
    struct compile j = {.c = c, .units = units, .n = n, .want = want, .out = out, .status = TRACE_ERR_COMPILE};
    *out = (struct tj_compile_result){0};
    enter();
    if (c->broken[0]) {
        (void)snprintf(out->error, sizeof out->error, "%s", c->broken);
    } else if (!on_thread(&c->host, compile_on_thread, &j, out->error, sizeof out->error)) {
        j.status = TRACE_ERR_BUSY;
    }
    leave();
    tj_status st = j.status;
    st = st ? st : load(&j); // without the lock: the host's callbacks may compile
    if (j.object) {
        LLVMDisposeMemoryBuffer(j.object);
    }
    if (st) {
        if (!out->error[0]) {
            (void)snprintf(out->error, sizeof out->error, "out of memory");
        }
        c->host.free(out->ir);
        c->host.free(out->asm_text);
        c->host.free(out->symbols);
        out->ir = out->asm_text = NULL;
        out->symbols = NULL;
    }
    return st;
}

__attribute__((visibility("default"))) const struct tj_module_api *tj_llvm_module(void) {
    static struct tj_module_api api = {TJ_MODULE_ABI, NULL, module_create, module_destroy, module_compile};
    static char version[32];
    enter();
    if (!api.llvm_version) {
        unsigned major, minor, patch;
        LLVMGetVersion(&major, &minor, &patch);
        (void)snprintf(version, sizeof version, "%u.%u.%u", major, minor, patch);
        api.llvm_version = version;
    }
    leave();
    return &api;
}
