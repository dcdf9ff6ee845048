// tests/test_perf.c: generated code to unwinders, perf and GDB: frames, names, and nothing left behind.
//
// A kernel is caught in the act by a page of its input that can't be read: the handler of this test's own walks the
// stack, makes the page readable, and returns.
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <unwind.h>

#include "../lib/perf.h"
#include "tj_test.h"

typedef trace_tensor T;

// As GDB has them.
struct jit_code_entry {
    struct jit_code_entry *next_entry, *prev_entry;
    const char *symfile_addr;
    uint64_t symfile_size;
};
extern struct {
    uint32_t version, action_flag;
    struct jit_code_entry *relevant_entry, *first_entry;
} __jit_debug_descriptor;

// The handler below is of a fault in a known place: what the unwinder allocates in it is no danger.
__attribute__((visibility("default"))) const char *__tsan_default_options(void);
const char *__tsan_default_options(void) { return "report_signal_unsafe=0"; }

enum { PAGE = 4096, ROWS = 8, COLS = 128 };
static trace_context *ctx;
static trace_region *region;
static float *page; // input of kernels: [8, 128]

static bool start(bool perf) {
    bool compiled = tj_test_compiler();
    if (perf)
        ck_assert_int_eq(setenv("TRACEJIT_PERF", "1", 1), 0);
    TJ_ASSERT_OK(trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 1, .on_event = tj_test_quiet), &ctx));
    ck_assert_int_eq(unsetenv("TRACEJIT_PERF"), 0);
    TJ_ASSERT_OK(trace_region_create(ctx, "my model", NULL, &region));
    if (!page) {
        page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        ck_assert(page != MAP_FAILED);
    }
    return compiled;
}

static void stop(void) {
    trace_region_release(region);
    trace_context_release(ctx);
}

// ---- a walk from inside a kernel
// --------------------------------------------------------------------------------------

static struct {
    int faults;
    uintptr_t at;   // where the kernel was
    int frames;     // of the walk
    int generated;  // position of `at` among them, 0: none
    bool outermost; // it came to run_here
    int backtraced; // frames of backtrace(3)
} seen;

__attribute__((noinline)) static enum trace_status run_here(int kind);

static _Unwind_Reason_Code step(struct _Unwind_Context *c, void *arg) {
    (void)arg;
    seen.frames++;
    uintptr_t ip = _Unwind_GetIP(c);
    if (ip == seen.at && !seen.generated)
        seen.generated = seen.frames;
    if (seen.generated && _Unwind_GetRegionStart(c) == (uintptr_t)&run_here)
        seen.outermost = true;
    return seen.frames < 200 ? _URC_NO_REASON : _URC_END_OF_STACK;
}

static void on_fault(int sig, siginfo_t *info, void *context) {
    (void)sig;
    (void)context;
    const ucontext_t *u = context;
    if ((uintptr_t)info->si_addr - (uintptr_t)page >= PAGE || seen.faults++)
        _exit(66);
#if defined __x86_64__
    seen.at = (uintptr_t)u->uc_mcontext.gregs[REG_RIP];
#else
    seen.at = (uintptr_t)u->uc_mcontext.pc;
#endif
    (void)_Unwind_Backtrace(step, NULL);
    void *frames[100];
    seen.backtraced = backtrace(frames, 100);
    (void)mprotect(page, PAGE, PROT_READ | PROT_WRITE);
}

// Kinds of kernels: pointwise, rows, a matrix product, one with a helper of libm.
static T *body(int kind, T *x) {
    switch (kind) {
    case 0: return trace_mul(trace_add_f(x, 1), x);
    case 1: return trace_softmax(x, -1);
    case 2: return trace_matmul(x, trace_full_f(ctx, TRACE_DIMS(COLS, 24), 0.5, TRACE_F32));
    case 3: return trace_exp(trace_to(x, TRACE_F64));
    default: return trace_sum(x, TRACE_DIMS(0), false);
    }
}

static T *last;
__attribute__((noinline)) static enum trace_status run_here(int kind) {
    T *x = trace_wrap(ctx, TRACE_F32, page, TRACE_DIMS(ROWS, COLS));
    last = NULL;
    if (trace_begin(region, TRACE_ARGS(x)))
        last = body(kind, x);
    if (seen.at == 1)
        (void)mprotect(page, PAGE, PROT_NONE);
    enum trace_status st = trace_end(region, &last, 1);
    trace_release(x);
    return st;
}

START_TEST(stacks_are_walked_through_kernels) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO}, old;
    ck_assert_int_eq(sigaction(SIGSEGV, &action, &old), 0);
    void *warm[1]; // loads what it needs
    (void)backtrace(warm, 1);
    bool compiled = start(false);
    for (int kind = 0; kind < 5 && compiled; kind++) {
        float want[4096], got[4096];
        for (int i = 0; i < ROWS * COLS; i++)
            page[i] = (float)(i % 13) / 4;
        memset(&seen, 0, sizeof seen);
        TJ_ASSERT_OK(run_here(kind)); // compiled
        size_t bytes = (size_t)trace_numel(last) * (trace_dtype_of(last) == TRACE_F64 ? 8 : 4);
        TJ_ASSERT_OK(trace_read(last, want, bytes));
        trace_release(last);
        seen.at = 1;
        TJ_ASSERT_OK(run_here(kind));
        TJ_ASSERT_OK(trace_read(last, got, bytes));
        trace_release(last);
        TJ_ASSERT_BITS(got, want, bytes); // the handler has disturbed nothing
        ck_assert_int_eq(seen.faults, 1);
        Dl_info info;
        if (kind == 2 && dladdr((void *)seen.at, &info))
            continue; // the driver read it first, to pack it
        ck_assert_msg(!dladdr((void *)seen.at, &info), "kind %d: the fault was in %s", kind, info.dli_fname);
        ck_assert_msg(seen.generated > 0, "kind %d: the kernel is not among %d frames", kind, seen.frames);
        ck_assert_msg(seen.outermost, "kind %d: %d frames, none of them the caller's", kind, seen.frames);
        ck_assert_int_ge(seen.backtraced, seen.frames - 2);
    }
    stop();
    ck_assert_int_eq(sigaction(SIGSEGV, &old, NULL), 0);
}
END_TEST

static void map_path(char *buf, size_t cap, pid_t pid) { snprintf(buf, cap, "/tmp/perf-%ld.map", (long)pid); }

static void forget_map(pid_t pid) {
    char path[64];
    map_path(path, sizeof path, pid);
    (void)unlink(path);
}

START_TEST(frames_go_with_the_code) {
    struct bases {
        void *tbase, *dbase, *func;
    } b;
    void *lib = dlopen("libgcc_s.so.1", RTLD_LAZY), *sym = lib ? dlsym(lib, "_Unwind_Find_FDE") : NULL;
    const void *(*find)(void *pc, struct bases *);
    memcpy(&find, &sym, sizeof find);
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO}, old;
    ck_assert_int_eq(sigaction(SIGSEGV, &action, &old), 0);
    for (int round = 0; round < 3; round++) {
        if (start(round > 0) && find) {
            memset(&seen, 0, sizeof seen);
            seen.at = 1;
            TJ_ASSERT_OK(run_here(0));
            trace_release(last);
            void *at = (void *)seen.at;
            ck_assert_int_eq(seen.faults, 1);
            ck_assert_ptr_nonnull(find(at, &b));
            stop();
            ck_assert_ptr_null(find(at, &b));
            ck_assert_ptr_null(__jit_debug_descriptor.first_entry);
        } else {
            stop();
        }
    }
    ck_assert_int_eq(sigaction(SIGSEGV, &old, NULL), 0);
    if (lib)
        dlclose(lib);
    forget_map(getpid());
}
END_TEST

// ---- names
// --------------------------------------------------------------------------------------------------------------

static char *read_map(pid_t pid) {
    static char text[1 << 16];
    char path[64];
    map_path(path, sizeof path, pid);
    FILE *f = fopen(path, "r");
    if (!f)
        return NULL;
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    return text;
}

// Runs the kinds once; where the kernel of kind 0 was caught.
static uintptr_t run_all(void) {
    for (int kind = 4; kind >= 0; kind--) {
        memset(&seen, 0, sizeof seen);
        seen.at = kind ? 0 : 1;
        TJ_ASSERT_OK(run_here(kind));
        trace_release(last);
    }
    return seen.at;
}

START_TEST(perf_and_gdb_get_names) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO}, old;
    ck_assert_int_eq(sigaction(SIGSEGV, &action, &old), 0);
    forget_map(getpid());
    if (!start(true)) {
        stop();
        return;
    }
    uintptr_t at = run_all();
    char *map = read_map(getpid());
    ck_assert_ptr_nonnull(map);
    size_t lines = 0;
    bool caught = false;
    for (char *p = map; *p; lines++) {
        char *end = strchr(p, '\n'), name[300], more;
        unsigned long from, bytes;
        ck_assert_ptr_nonnull(end);
        *end = '\0';
        ck_assert_msg(sscanf(p, "%lx %lx %299s %c", &from, &bytes, name, &more) == 3, "line '%s'", p);
        ck_assert_msg(bytes > 0 && !strncmp(name, "tracejit:", 9), "line '%s'", p);
        if (at - from < bytes) {
            ck_assert_msg(!strncmp(name, "tracejit:my_model:", 18), "%s", name);
            ck_assert_msg(strstr(name, "add_mul(test_perf.c:") != NULL, "%s", name);
            caught = true;
        }
        // GDB has the same function, of the same name
        bool found = false;
        for (struct jit_code_entry *e = __jit_debug_descriptor.first_entry; e && !found; e = e->next_entry) {
            const Elf64_Ehdr *h = (const Elf64_Ehdr *)(const void *)e->symfile_addr;
            ck_assert(!memcmp(h->e_ident, ELFMAG, SELFMAG) &&
                      h->e_shoff + h->e_shnum * sizeof(Elf64_Shdr) <= e->symfile_size);
            const Elf64_Shdr *s = (const Elf64_Shdr *)(const void *)(e->symfile_addr + h->e_shoff);
            for (unsigned i = 0; i < h->e_shnum; i++) {
                if (s[i].sh_type != SHT_NOBITS)
                    ck_assert_uint_le(s[i].sh_offset + s[i].sh_size, e->symfile_size);
                if (s[i].sh_type != SHT_SYMTAB)
                    continue;
                const Elf64_Sym *y = (const Elf64_Sym *)(const void *)(e->symfile_addr + s[i].sh_offset);
                const char *names = e->symfile_addr + s[s[i].sh_link].sh_offset;
                for (size_t k = 1; k < s[i].sh_size / sizeof *y; k++)
                    found |= s[y[k].st_shndx].sh_addr + y[k].st_value == from && y[k].st_size == bytes &&
                             !strcmp(names + y[k].st_name, name);
            }
        }
        ck_assert_msg(found, "GDB lacks %s", name);
        p = end + 1;
    }
    ck_assert(caught);
    ck_assert_uint_ge(lines, 5);
    // A child has a map of its own, with what it has inherited.
    pid_t child = fork();
    if (!child) {
        (void)run_here(5);
        trace_region *other;
        T *x = trace_wrap(ctx, TRACE_F32, page, TRACE_DIMS(ROWS, COLS)), *y = NULL;
        bool ok = !trace_region_create(ctx, "other", NULL, &other);
        if (ok && trace_begin(other, TRACE_ARGS(x)))
            y = trace_sqrt(trace_abs(x));
        ok = ok && !trace_end(other, &y, 1);
        char *own = read_map(getpid());
        ok = ok && own && strstr(own, "tracejit:my_model:") && strstr(own, "tracejit:other:abs_sqrt(test_perf.c:");
        forget_map(getpid());
        _exit(ok ? 0 : 1);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    stop();
    ck_assert_ptr_null(__jit_debug_descriptor.first_entry);
    forget_map(getpid());
    ck_assert_int_eq(sigaction(SIGSEGV, &old, NULL), 0);
}
END_TEST

START_TEST(without_the_variable_nobody_is_told) {
    forget_map(getpid());
    (void)start(false);
    memset(&seen, 0, sizeof seen);
    TJ_ASSERT_OK(run_here(0));
    trace_release(last);
    ck_assert_ptr_null(read_map(getpid()));
    ck_assert_ptr_null(__jit_debug_descriptor.first_entry);
    stop();
}
END_TEST

START_TEST(a_map_that_is_not_ours_is_left_alone) {
    char path[64], other[] = "/tmp/tracejit-test-XXXXXX";
    int fd = mkstemp(other);
    ck_assert_int_ge(fd, 0);
    map_path(path, sizeof path, getpid());
    forget_map(getpid());
    ck_assert_int_eq(symlink(other, path), 0);
    bool compiled = start(true);
    memset(&seen, 0, sizeof seen);
    TJ_ASSERT_OK(run_here(0)); // runs all the same
    trace_release(last);
    struct stat st;
    ck_assert_int_eq(fstat(fd, &st), 0);
    ck_assert_int_eq(st.st_size, 0);
    ck_assert_int_eq(__jit_debug_descriptor.first_entry != NULL, compiled);
    stop();
    ck_assert_int_eq(unlink(path), 0);
    // A pipe that nobody reads isn't waited for.
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    (void)start(true);
    TJ_ASSERT_OK(run_here(0));
    trace_release(last);
    stop();
    ck_assert_int_eq(unlink(path), 0);
    close(fd);
    ck_assert_int_eq(unlink(other), 0);
}
END_TEST

START_TEST(refused_allocations_leave_nothing) {
    size_t refused = 0;
    for (size_t k = 0;; k++) {
        bool compiled = start(true);
        memset(&seen, 0, sizeof seen);
        T *x = trace_wrap(ctx, TRACE_F32, page, TRACE_DIMS(ROWS, COLS)), *y = NULL;
        if (trace_begin(region, TRACE_ARGS(x)))
            y = body(0, x);
        tj_test_fail_at(k);
        enum trace_status st = trace_end(region, &y, 1);
        bool failed = tj_test_failed();
        refused += failed;
        ck_assert_msg(st == TRACE_OK || st == TRACE_ERR_MEMORY, "%s", trace_last_error(ctx));
        trace_release(y);
        trace_release(x);
        stop();
        ck_assert_ptr_null(__jit_debug_descriptor.first_entry);
        if (!failed || !compiled)
            break;
    }
    forget_map(getpid());
    ck_assert(refused > 20 || !tj_test_compiler());
}
END_TEST

// ---- GDB itself -----------------------------------------------------------------------------------------------------

// Run by GDB: ends inside a kernel.
static int crash(void) {
    if (trace_context_create(TRACE_CONTEXT_OPTIONS(.threads = 1), &ctx) ||
        trace_region_create(ctx, "my model", NULL, &region))
        return 1;
    page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    seen.at = 1;
    return (int)run_here(0);
}

START_TEST(gdb_names_kernels_in_a_backtrace) {
    bool compiled = start(false);
    stop();
    char self[4096], command[9000], text[1 << 15];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    ck_assert_int_gt(n, 0);
    self[n] = '\0';
    if (!compiled || system("gdb -nx -batch -ex 'print 6*7' 2>/dev/null | grep -q 42") != 0) {
        printf("gdb_names_kernels_in_a_backtrace: skipped, %s\n", compiled ? "no gdb" : "no compiler");
        return;
    }
    snprintf(
        command, sizeof command,
        "env TRACEJIT_PERF=1 ASAN_OPTIONS=detect_leaks=0 timeout 100 gdb -nx -batch -ex 'set startup-with-shell off' "
        "-ex run -ex bt -ex 'echo pid ' -ex 'print $_inferior_pid' -ex 'info proc' -ex kill --args '%s' --crash 2>&1 </dev/null",
        self);
    FILE *f = popen(command, "r");
    ck_assert_ptr_nonnull(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    (void)pclose(f);
    const char *process = strstr(text, "\nprocess ");
    if (process)
        forget_map((pid_t)strtol(process + 9, NULL, 10));
    if (strstr(text, "ptrace: Operation not permitted") || strstr(text, "Cannot create process")) {
        printf("gdb_names_kernels_in_a_backtrace: skipped, no ptrace here\n");
        return;
    }
    const char *kernel = strstr(text, "in tracejit:my_model:add_mul(test_perf.c:");
    if (!kernel)
        kernel = strstr(text, "#0  0x");
    ck_assert_msg(strstr(text, "tracejit:my_model:add_mul(test_perf.c:") != NULL, "no name: %s", text);
    ck_assert_msg(kernel && strstr(kernel, "run_here (") && strstr(kernel, "main ("), "no way to main: %s", text);
}
END_TEST

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "--crash"))
        return crash();
    const TTest *const tests[] = {stacks_are_walked_through_kernels,
                                  frames_go_with_the_code,
                                  perf_and_gdb_get_names,
                                  without_the_variable_nobody_is_told,
                                  a_map_that_is_not_ours_is_left_alone,
                                  refused_allocations_leave_nothing,
                                  gdb_names_kernels_in_a_backtrace};
    return tj_test_main("perf", tests, TJ_COUNT(tests), argc, argv);
}
