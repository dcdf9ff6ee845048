// tests/test_lib.c: lib/ on its own.
#include "tj_test.h"

#include <errno.h>
#include <fcntl.h>
#include <fenv.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../lib/arena.h"
#include "../lib/cpu.h"
#include "../lib/dl.h"
#include "../lib/execmem.h"
#include "../lib/hash.h"
#include "../lib/log.h"
#include "../lib/strbuf.h"
#include "../lib/threads.h"

#if defined(__SANITIZE_THREAD__)
#define UNDER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define UNDER_TSAN 1
#endif
#endif
#ifndef UNDER_TSAN
#define UNDER_TSAN 0
#endif

// ---- base -----------------------------------------------------------------------------------

START_TEST(dtypes) {
    static const struct {
        tj_dtype d;
        const char *name;
        size_t bytes;
        bool is_float;
        tj_dtype compute;
    } want[] = {
        {TRACE_BOOL, "bool", 1, false, TRACE_BOOL}, {TRACE_U8, "u8", 1, false, TRACE_U8},
        {TRACE_I32, "i32", 4, false, TRACE_I32},    {TRACE_I64, "i64", 8, false, TRACE_I64},
        {TRACE_F16, "f16", 2, true, TRACE_F32},     {TRACE_BF16, "bf16", 2, true, TRACE_F32},
        {TRACE_F32, "f32", 4, true, TRACE_F32},     {TRACE_F64, "f64", 8, true, TRACE_F64},
    };
    ck_assert_uint_eq(tj_dtype_count, TJ_COUNT(want));
    for (size_t i = 0; i < TJ_COUNT(want); i++) {
        ck_assert_str_eq(tj_dtypes[want[i].d].name, want[i].name);
        ck_assert_uint_eq(tj_elem_bytes(want[i].d), want[i].bytes);
        ck_assert(tj_is_float(want[i].d) == want[i].is_float);
        ck_assert_int_eq(tj_dtypes[want[i].d].compute, want[i].compute);
        ck_assert(tj_dtype_valid((int)want[i].d));
    }
    ck_assert(!tj_dtype_valid(-1));
    ck_assert(!tj_dtype_valid((int)tj_dtype_count));
    ck_assert_int_eq(tj_dtypes[TRACE_F16].rank, tj_dtypes[TRACE_BF16].rank);
    ck_assert_int_lt(tj_dtypes[TRACE_BF16].rank, tj_dtypes[TRACE_F32].rank);
}
END_TEST

START_TEST(sizes) {
    int64_t n = -7;
    size_t bytes = 7;
    ck_assert(tj_size_mul(3, 5, &n) && n == 15);
    ck_assert(tj_size_mul(0, INT64_MAX, &n) && n == 0);
    ck_assert(!tj_size_mul(-1, 5, &n) && !tj_size_mul(5, -1, &n) && !tj_size_mul(INT64_MAX, 2, &n));
    ck_assert(tj_size_add(3, 5, &n) && n == 8);
    ck_assert(!tj_size_add(INT64_MAX, 1, &n) && !tj_size_add(-1, 1, &n) && !tj_size_add(1, -1, &n));

    ck_assert(tj_numel(NULL, 0, &n) && n == 1);
    ck_assert(tj_numel((int64_t[]){2, 3, 4}, 3, &n) && n == 24);
    ck_assert(tj_numel((int64_t[]){2, 0, 4}, 3, &n) && n == 0);
    ck_assert(!tj_numel((int64_t[]){2, -3, 0}, 3, &n));
    ck_assert(!tj_numel((int64_t[]){INT64_C(1) << 32, INT64_C(1) << 32}, 2, &n));
    ck_assert(!tj_numel((int64_t[]){0, INT64_C(1) << 32, INT64_C(1) << 32}, 3, &n));

    ck_assert(tj_tensor_bytes(TRACE_BF16, 5, &bytes) && bytes == 10);
    ck_assert(tj_tensor_bytes(TRACE_F64, 0, &bytes) && bytes == 0);
    ck_assert(!tj_tensor_bytes(TRACE_F64, INT64_MAX / 4, &bytes));
    ck_assert(!tj_tensor_bytes(TRACE_F64, -1, &bytes));
    ck_assert(!tj_tensor_bytes((tj_dtype)99, 1, &bytes));

    int64_t s[3];
    tj_contiguous_strides((int64_t[]){2, 3, 4}, 3, s);
    ck_assert(s[0] == 12 && s[1] == 4 && s[2] == 1);
    tj_contiguous_strides((int64_t[]){2, 0, 4}, 3, s);
    ck_assert(s[0] == 4 && s[1] == 4 && s[2] == 1);
}
END_TEST

START_TEST(allocation) {
    void *p = tj_malloc(0);
    ck_assert_ptr_nonnull(p);
    tj_free(p);
    tj_free(NULL);
    // Through a volatile, or the compiler sees the impossible size.
    volatile size_t half = SIZE_MAX / 2;
    ck_assert_ptr_null(tj_calloc(half, 3));
    ck_assert_ptr_null(tj_aligned_alloc(half + 2));
    for (size_t n = 0; n < 4096; n += 37) {
        p = tj_aligned_alloc(n);
        ck_assert_ptr_nonnull(p);
        ck_assert_uint_eq((uintptr_t)p % TJ_ALIGN, 0);
        memset(p, 1, n);
        tj_aligned_free(p);
    }
    char *s = tj_strdup("word");
    ck_assert_str_eq(s, "word");
    tj_free(s);

    void *a = NULL;
    uint32_t cap = 0;
    for (uint32_t n = 1; n < 1000; n++) {
        ck_assert(tj_grow(&a, &cap, n, sizeof(uint32_t)));
        ck_assert_uint_ge(cap, n);
        ((uint32_t *)a)[n - 1] = n;
    }
    for (uint32_t n = 1; n < 1000; n++) {
        ck_assert_uint_eq(((uint32_t *)a)[n - 1], n);
    }
    uint32_t before = cap;
    void *same = a;
    tj_test_fail_at(0);
    ck_assert(!tj_grow(&a, &cap, before + 1, 4));
    ck_assert(tj_grow(&a, &cap, before, 4));
    ck_assert_ptr_null(tj_malloc(8));
    ck_assert_ptr_null(tj_calloc(8, 8));
    ck_assert_ptr_null(tj_realloc(NULL, 8));
    ck_assert_ptr_null(tj_aligned_alloc(8));
    ck_assert_ptr_null(tj_strdup("x"));
    ck_assert(tj_test_failed());
    ck_assert(a == same && cap == before);
    ck_assert(!tj_grow(&a, &cap, UINT32_MAX, SIZE_MAX / 8));
    ck_assert(a == same && cap == before);
    tj_free(a);
}
END_TEST

static void *other_error(void *arg) {
    (void)arg;
    ck_assert_str_eq(tj_last_error(), "");
    ck_assert_int_eq(tj_last_status(), TRACE_OK);
    (void)tj_fail(TRACE_ERR_DTYPE, "other");
    return NULL;
}

START_TEST(errors) {
    errno = ENOTTY;
    ck_assert_int_eq(tj_fail(TRACE_ERR_SHAPE, "%d by %s", 3, "four"), TRACE_ERR_SHAPE);
    ck_assert_int_eq(errno, ENOTTY);
    ck_assert_str_eq(tj_last_error(), "3 by four");
    ck_assert_int_eq(tj_last_status(), TRACE_ERR_SHAPE);
    // Another thread has its own; the old text may go into the new one.
    pthread_t t;
    ck_assert_int_eq(pthread_create(&t, NULL, other_error, NULL), 0);
    pthread_join(t, NULL);
    (void)tj_fail(TRACE_ERR_COMPILE, "because: %s", tj_last_error());
    ck_assert_str_eq(tj_last_error(), "because: 3 by four");
    char big[3 * TJ_ERROR_MAX];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    (void)tj_fail(TRACE_ERR_SHAPE, "%s", big);
    ck_assert_uint_eq(strlen(tj_last_error()), TJ_ERROR_MAX - 1);
    for (int s = TRACE_OK; s <= TRACE_ERR_SHUTDOWN; s++) {
        ck_assert_msg(!strncmp(tj_status_name((tj_status)s), "TRACE_", 6), "status %d has no name", s);
    }
    ck_assert_str_eq(tj_status_name(TRACE_ERR_BUDGET), "TRACE_ERR_BUDGET");
    ck_assert_str_eq(tj_status_name((tj_status)-1), "unknown status");
    ck_assert_str_eq(tj_status_name((tj_status)1000), "unknown status");
}
END_TEST

// ---- arena, text_buffer, hash ----------------------------------------------------------------------

static bool all_bytes(const unsigned char *p, size_t n, unsigned char value) {
    return n == 0 || (p[0] == value && !memcmp(p, p + 1, n - 1));
}

START_TEST(arena) {
    struct tj_arena a = {0};
    uint64_t seed = 1;
    enum { N = 3000 };
    static unsigned char *at[N];
    static size_t len[N];
    for (int i = 0; i < N; i++) {
        len[i] = tj_test_random(&seed) % (i % 100 == 0 ? 100000 : 200);
        at[i] = tj_arena_alloc(&a, len[i]);
        ck_assert_ptr_nonnull(at[i]);
        ck_assert_uint_eq((uintptr_t)at[i] % 16, 0);
        ck_assert(all_bytes(at[i], len[i], 0));
        memset(at[i], i & 0xFF, len[i]);
    }
    for (int i = 0; i < N; i++) {
        ck_assert(all_bytes(at[i], len[i], (unsigned char)i));
    }
    ck_assert_str_eq(tj_arena_strdup(&a, "word"), "word");
    ck_assert(!a.failed);
    ck_assert_ptr_null(tj_arena_alloc(&a, SIZE_MAX - 3));
    ck_assert(a.failed);
    tj_arena_free(&a);
    ck_assert(!a.failed && !a.head);
    tj_test_fail_at(0);
    ck_assert_ptr_null(tj_arena_alloc(&a, 8));
    ck_assert_ptr_null(tj_arena_strdup(&a, "x"));
    ck_assert(a.failed && tj_test_failed());
    tj_arena_free(&a);
    ck_assert_ptr_nonnull(TJ_ARENA_NEW(&a, int, 4));
    tj_arena_free(&a);
}
END_TEST

START_TEST(text_buffer) {
    struct tj_strbuf b = {0};
    char want[20000] = "";
    size_t at = 0;
    for (int i = 0; i < 1000; i++) {
        tj_sb_printf(&b, "%d,", i);
        at += (size_t)snprintf(want + at, sizeof want - at, "%d,", i);
    }
    tj_sb_puts(&b, "end");
    memcpy(want + at, "end", 4);
    ck_assert_str_eq(b.s, want);
    ck_assert_uint_eq(b.n, strlen(want));
    tj_sb_free(&b);
    ck_assert(!b.s && !b.n);

    tj_sb_dims(&b, (int64_t[]){2, -3, INT64_MAX}, 3);
    tj_sb_dims(&b, NULL, 0);
    ck_assert_str_eq(b.s, "[2, -3, 9223372036854775807][]");
    tj_sb_free(&b);

    tj_sb_json(&b, "a\"b\\c\n\x01\x7f \xC3\xA9 \xF0\x9F\x98\x80 \xFF\xC3 \xED\xA0\x80 \xC0\x80");
    ck_assert_str_eq(b.s, "\"a\\\"b\\\\c\\u000a\\u0001\\u007f \xC3\xA9 \xF0\x9F\x98\x80 \\ufffd\\ufffd "
                          "\\ufffd\\ufffd\\ufffd \\ufffd\\ufffd\"");
    tj_sb_free(&b);
    tj_sb_json(&b, "");
    ck_assert_str_eq(b.s, "\"\"");

    // Out of memory: what there is stays a string.
    tj_test_fail_at(0);
    for (int i = 0; i < 100; i++) {
        tj_sb_printf(&b, "%0100d", i);
    }
    ck_assert(b.failed && tj_test_failed());
    ck_assert_uint_eq(strlen(b.s), b.n);
    tj_sb_puts(&b, "more");
    ck_assert_uint_eq(strlen(b.s), b.n);
    tj_sb_free(&b);
    ck_assert(!b.failed);
}
END_TEST

START_TEST(hash) {
    enum { N = 20000, BUCKETS = 1024 };
    static uint64_t seen[N];
    static int bucket[2][BUCKETS];
    for (uint32_t i = 0; i < N; i++) {
        seen[i] = tj_hash_bytes(&i, sizeof i, 0);
        bucket[0][seen[i] % BUCKETS]++;
        bucket[1][seen[i] >> 54]++;
    }
    for (int side = 0; side < 2; side++) {
        for (int i = 0; i < BUCKETS; i++) { // mean 19.5; 60 is nine deviations away
            ck_assert_int_lt(bucket[side][i], 60);
        }
    }
    // Every byte and the length count, at each length around the step; alignment doesn't.
    unsigned char buf[80] = {0};
    for (size_t n = 0; n <= 48; n++) {
        memset(buf, 0, sizeof buf);
        uint64_t zero = tj_hash_bytes(buf, n, 7);
        ck_assert(zero != tj_hash_bytes(buf, n + 1, 7));
        ck_assert(zero != tj_hash_bytes(buf, n, 8));
        for (size_t i = 0; i < n; i++) {
            buf[i] = 1;
            uint64_t h = tj_hash_bytes(buf, n, 7);
            ck_assert(h != zero);
            memmove(buf + 3, buf, n);
            ck_assert(tj_hash_bytes(buf + 3, n, 7) == h);
            memset(buf, 0, sizeof buf);
        }
    }
    tj_hash_collide = true;
    ck_assert(tj_hash_bytes("a", 1, 0) == tj_hash_bytes("bc", 2, 5));
    tj_hash_collide = false;
}
END_TEST

// ---- log ------------------------------------------------------------------------------------

// Runs f with stderr going to a file; returns what it wrote.
static char *captured(void (*f)(void)) {
    static char buf[8192];
    FILE *tmp = tmpfile();
    ck_assert_ptr_nonnull(tmp);
    fflush(stderr);
    int keep = dup(STDERR_FILENO);
    ck_assert_int_ge(dup2(fileno(tmp), STDERR_FILENO), 0);
    f();
    ck_assert_int_ge(dup2(keep, STDERR_FILENO), 0);
    close(keep);
    rewind(tmp);
    buf[fread(buf, 1, sizeof buf - 1, tmp)] = '\0';
    fclose(tmp);
    return buf;
}

static struct tj_env env;
static void read_env(void) { tj_env_read(&env); }

static const char *const variables[] = {"TRACEJIT_LOG",  "TRACEJIT_NO",  "TRACEJIT_DUMP",
                                        "TRACEJIT_LLVM", "TRACEJIT_CPU", "TRACEJIT_DISABLE"};
static void clear_env(void) {
    for (size_t i = 0; i < TJ_COUNT(variables); i++) {
        unsetenv(variables[i]);
    }
}

START_TEST(environment) {
    clear_env();
    ck_assert_str_eq(captured(read_env), "");
    ck_assert(!env.log && !env.kill && !env.disable && !env.dump[0] && !env.llvm[0] && !env.cpu[0]);

    setenv("TRACEJIT_LOG", "breaks, fusion,,memory", 1);
    setenv("TRACEJIT_NO", "jit,threads", 1);
    setenv("TRACEJIT_DUMP", "/some/dir", 1);
    setenv("TRACEJIT_LLVM", "/some/module.so", 1);
    setenv("TRACEJIT_CPU", "avx2", 1);
    setenv("TRACEJIT_DISABLE", "1", 1);
    ck_assert_str_eq(captured(read_env), "");
    ck_assert_uint_eq(env.log, 1u << TJ_LOG_BREAKS | 1u << TJ_LOG_FUSION | 1u << TJ_LOG_MEMORY);
    ck_assert(tj_env_off(&env, TJ_KILL_JIT) && tj_env_off(&env, TJ_KILL_THREADS) && !tj_env_off(&env, TJ_KILL_FUSE));
    ck_assert_str_eq(env.dump, "/some/dir");
    ck_assert_str_eq(env.llvm, "/some/module.so");
    ck_assert_str_eq(env.cpu, "avx2");
    ck_assert(env.disable);

    setenv("TRACEJIT_LOG", "all", 1);
    setenv("TRACEJIT_DISABLE", "0", 1);
    read_env();
    ck_assert_uint_eq(env.log, (1u << TJ_LOG_TOPICS) - 1);
    ck_assert(!env.disable);

    // Unknown words are told once, known ones beside them still count.
    char big[1000];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    setenv("TRACEJIT_LOG", "break,kernels", 1);
    setenv("TRACEJIT_NO", "all", 1);
    setenv("TRACEJIT_CPU", "avx1024", 1);
    setenv("TRACEJIT_DISABLE", "yes", 1);
    setenv("TRACEJIT_DUMP", big, 1);
    const char *said = captured(read_env);
    ck_assert_ptr_nonnull(strstr(said, "tracejit: TRACEJIT_LOG: unknown word 'break' (known: recompiles, breaks,"));
    ck_assert_ptr_nonnull(strstr(said, "tracejit: TRACEJIT_NO: unknown word 'all'"));
    ck_assert_ptr_nonnull(
        strstr(said, "tracejit: TRACEJIT_CPU: unknown word 'avx1024' (known: portable, avx2, avx512)"));
    ck_assert_ptr_nonnull(strstr(said, "tracejit: TRACEJIT_DISABLE: unknown word 'yes'"));
    ck_assert_ptr_nonnull(strstr(said, "tracejit: TRACEJIT_DUMP: ignored, longer than 511 bytes"));
    ck_assert_uint_eq(env.log, 1u << TJ_LOG_KERNELS);
    ck_assert(!env.kill && !env.cpu[0] && !env.disable && !env.dump[0]);
    ck_assert_str_eq(captured(read_env), "");
    clear_env();
}
END_TEST

static void log_lines(void) {
    char big[3000];
    memset(big, 'y', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    errno = ENOTTY;
    tj_log(&env, TJ_LOG_BREAKS, "item at %s:%d", "gen.c", 88);
    tj_log(&env, TJ_LOG_FUSION, "not asked for");
    tj_log(&env, TJ_LOG_BREAKS, "%s", big);
    tj_test_fail_at(0);
    tj_log(&env, TJ_LOG_BREAKS, "%s", big);
    (void)tj_test_failed();
    ck_assert_int_eq(errno, ENOTTY);
}

START_TEST(log_line) {
    env = (struct tj_env){.log = 1u << TJ_LOG_BREAKS};
    char *said = captured(log_lines);
    ck_assert(!strncmp(said, "tracejit: item at gen.c:88\ntracejit: yyy", 40));
    char *second = strchr(said, '\n') + 1, *third = strchr(second, '\n') + 1;
    ck_assert_int_eq(third - second, 10 + 2999 + 1);
    ck_assert_uint_eq(strlen(third), 1024); // no memory: cut
    ck_assert_int_eq(third[1023], '\n');
}
END_TEST

static void dump_twice(void) {
    tj_dump(&env, "a/../b\n.txt", "first", 5);
    tj_dump(&env, "a/../b\n.txt", "2nd", 3);
}

START_TEST(dump) {
    char dir[] = "/tmp/tj_test_XXXXXX", path[128], text[16] = "";
    ck_assert_ptr_nonnull(mkdtemp(dir));
    env = (struct tj_env){0};
    ck_assert_str_eq(captured(dump_twice), "");
    snprintf(env.dump, sizeof env.dump, "%s/new", dir);
    ck_assert_str_eq(captured(dump_twice), "");
    snprintf(path, sizeof path, "%s/new/a_.._b_.txt", dir);
    FILE *f = fopen(path, "r");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fread(text, 1, sizeof text, f), 3);
    fclose(f);
    ck_assert_str_eq(text, "2nd");
    ck_assert_int_eq(unlink(path), 0);
    snprintf(path, sizeof path, "%s/new", dir);
    ck_assert_int_eq(rmdir(path), 0);
    ck_assert_int_eq(rmdir(dir), 0);
    // A directory that can't be made is told, not fatal.
    snprintf(env.dump, sizeof env.dump, "%s/no/such", dir);
    errno = ENOTTY;
    ck_assert_ptr_nonnull(strstr(captured(dump_twice), "tracejit: dump /tmp/tj_test_"));
    ck_assert_int_eq(errno, ENOTTY);
}
END_TEST

// ---- cpu, dl, execmem -----------------------------------------------------------------------

START_TEST(cpu) {
    struct tj_cpu best, c;
    tj_cpu_detect("", &best);
    ck_assert_uint_ge(best.l1, 8 << 10);
    ck_assert_uint_ge(best.l2, best.l1);
    ck_assert_uint_ge(best.l3, best.l1);
    ck_assert_uint_gt(strlen(best.name), 0);
#if defined(__x86_64__)
    ck_assert((best.level >= TJ_CPU_AVX2) == (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")));
    ck_assert((best.level >= TJ_CPU_AVX512) ==
              (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && best.level >= TJ_CPU_AVX2));
#endif
    for (int l = TJ_CPU_PORTABLE; l <= TJ_CPU_AVX512; l++) {
        tj_cpu_detect(tj_cpu_level_name((enum tj_cpu_level)l), &c);
        ck_assert_int_eq(c.level, l < (int)best.level ? l : (int)best.level);
        ck_assert(c.level == TJ_CPU_AVX512 || (!c.vnni && !c.avx512_bf16));
    }
    tj_cpu_detect("pentium", &c);
    ck_assert_int_eq(c.level, best.level);
    tj_cpu_detect(NULL, &c);
    ck_assert_int_eq(c.level, best.level);
}
END_TEST

START_TEST(dl) {
    char err[512];
    void *lib = tj_dl_open("", "libm.so.6", NULL, err, sizeof err);
    ck_assert_ptr_nonnull(lib);
    ck_assert_str_eq(err, "");
    ck_assert_ptr_nonnull(tj_dl_sym(lib, "cos"));
    ck_assert_ptr_null(tj_dl_sym(lib, "no_such_symbol"));
    ck_assert_ptr_null(tj_dl_sym(NULL, "cos"));
    tj_dl_close(lib);
    tj_dl_close(NULL);
    // What the user names is used or reported, never replaced.
    ck_assert_ptr_null(tj_dl_open("/no/such/file.so", "libm.so.6", NULL, err, sizeof err));
    ck_assert_ptr_nonnull(strstr(err, "/no/such/file.so"));
    const char *const dirs[] = {"/no/such/dir", NULL};
    ck_assert_ptr_null(tj_dl_open("", "libno_such.so", dirs, err, sizeof err));
    ck_assert_ptr_nonnull(strstr(err, "libno_such.so"));
    ck_assert_ptr_null(tj_dl_open(NULL, "libno_such.so", dirs, err, 0));
    ck_assert_ptr_null(tj_dl_open(NULL, "libno_such.so", dirs, err, 8));
    ck_assert_uint_lt(strlen(err), 8);
    // A file beside this program comes first; one that is no shared object is named, and the search goes on.
    char self[PATH_MAX], junk[PATH_MAX + 32];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    ck_assert_int_gt(n, 0);
    self[n] = '\0';
    *strrchr(self, '/') = '\0';
    snprintf(junk, sizeof junk, "%s/libtj_junk_%d.so", self, (int)getpid());
    FILE *f = fopen(junk, "w");
    ck_assert_ptr_nonnull(f);
    fputs("not a shared object", f);
    fclose(f);
    ck_assert_ptr_null(tj_dl_open("", strrchr(junk, '/') + 1, dirs, err, sizeof err));
    unlink(junk);
    ck_assert_ptr_nonnull(strstr(err, junk));
}
END_TEST

#if defined(__x86_64__)
static const unsigned char forty_two[] = {0xB8, 42, 0, 0, 0, 0xC3}; // mov eax, 42; ret
#elif defined(__aarch64__)
static const unsigned char forty_two[] = {0x40, 0x05, 0x80, 0x52, 0xC0, 0x03, 0x5F, 0xD6}; // mov w0, 42; ret
#endif

// "r-xp" of the mapping that holds p.
static void protection(const void *p, char out[5]) {
    out[0] = '\0';
    FILE *f = fopen("/proc/self/maps", "r");
    ck_assert_ptr_nonnull(f);
    char text[512];
    while (fgets(text, sizeof text, f)) {
        uintptr_t from, to;
        char prot[8];
        if (sscanf(text, "%" SCNxPTR "-%" SCNxPTR " %4s", &from, &to, prot) == 3 && (uintptr_t)p >= from &&
            (uintptr_t)p < to) {
            memcpy(out, prot, 5);
        }
    }
    fclose(f);
}

START_TEST(executable_memory) {
    struct tj_exec e = {0};
    char prot[5];
    if (!tj_exec_allowed()) {
        TJ_ASSERT_STATUS(tj_exec_map(forty_two, sizeof forty_two, &e), TRACE_ERR_UNAVAILABLE);
        return;
    }
    TJ_ASSERT_OK(tj_exec_map(forty_two, sizeof forty_two, &e));
    int (*f)(void);
    memcpy(&f, &e.base, sizeof f);
    ck_assert_int_eq(f(), 42);
    protection(e.base, prot);
    ck_assert_str_eq(prot, "r-xp");
    tj_exec_unmap(&e);
    ck_assert_ptr_null(e.base);
    tj_exec_unmap(&e);

    TJ_ASSERT_OK(tj_exec_reserve(5000, &e));
    ck_assert_uint_ge(e.bytes, 5000);
    ck_assert_uint_eq(e.bytes % (size_t)sysconf(_SC_PAGESIZE), 0);
    protection(e.base, prot);
    ck_assert_str_eq(prot, "rw-p");
    memcpy((char *)e.base + 4096, forty_two, sizeof forty_two);
    TJ_ASSERT_OK(tj_exec_seal(&e));
    void *at = (char *)e.base + 4096;
    memcpy(&f, &at, sizeof f);
    ck_assert_int_eq(f(), 42);
    tj_exec_unmap(&e);

    TJ_ASSERT_STATUS(tj_exec_reserve(SIZE_MAX - 10, &e), TRACE_ERR_MEMORY);
    ck_assert_ptr_null(e.base);
    TJ_ASSERT_STATUS(tj_exec_reserve(SIZE_MAX / 4, &e), TRACE_ERR_MEMORY);
    tj_test_fail_at(0);
    TJ_ASSERT_STATUS(tj_exec_map(forty_two, sizeof forty_two, &e), TRACE_ERR_MEMORY);
    ck_assert(tj_test_failed());

    tj_exec_forbid = true;
    ck_assert(!tj_exec_allowed());
    TJ_ASSERT_STATUS(tj_exec_map(forty_two, sizeof forty_two, &e), TRACE_ERR_UNAVAILABLE);
    ck_assert_ptr_null(e.base);
    tj_exec_forbid = false;
}
END_TEST

// ---- threads --------------------------------------------------------------------------------

START_TEST(processor_count) {
    int n = tj_cpu_count();
    ck_assert_int_ge(n, 1);
    ck_assert_int_le(n, sysconf(_SC_NPROCESSORS_CONF));
    cpu_set_t all, one;
    ck_assert_int_eq(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (CPU_ISSET(i, &all)) {
            CPU_SET(i, &one);
            break;
        }
    }
    ck_assert_int_eq(sched_setaffinity(0, sizeof one, &one), 0);
    ck_assert_int_eq(tj_cpu_count(), 1);
    ck_assert_int_eq(sched_setaffinity(0, sizeof all, &all), 0);
    ck_assert_int_eq(tj_cpu_count(), n);
}
END_TEST

static void put(const char *dir, const char *name, const char *text) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    for (char *s = path + strlen(dir) + 1; (s = strchr(s, '/')); s++) {
        *s = '\0';
        (void)mkdir(path, 0777);
        *s = '/';
    }
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    fclose(f);
}

static int quota(const char *dir, const char *self_text) {
    char self[256];
    put(dir, "self", self_text);
    snprintf(self, sizeof self, "%s/self", dir);
    return tj_cgroup_cpus(self, dir);
}

START_TEST(cgroup_quota) {
    char dir[] = "/tmp/tj_test_XXXXXX", cmd[64];
    ck_assert_ptr_nonnull(mkdtemp(dir));
    put(dir, "a/b/cpu.max", "max 100000\n");
    put(dir, "a/cpu.max", "350000 100000\n");
    put(dir, "c/cpu.max", "10000 100000\n");
    put(dir, "cpu,cpuacct/v1/cpu.cfs_quota_us", "200000\n");
    put(dir, "cpu,cpuacct/v1/cpu.cfs_period_us", "100000\n");
    put(dir, "cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    put(dir, "cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    ck_assert_int_eq(quota(dir, "0::/a/b\n"), 4);     // the group above limits, rounded up
    ck_assert_int_eq(quota(dir, "0::/a/b/x/y\n"), 4); // a group without the file
    ck_assert_int_eq(quota(dir, "0::/c\n"), 1);
    ck_assert_int_eq(quota(dir, "0::/\n"), INT_MAX);
    ck_assert_int_eq(quota(dir, "3:cpuset:/v1\n"), INT_MAX);
    ck_assert_int_eq(quota(dir, "9:name=systemd:/x\n2:cpu,cpuacct:/v1/deeper\n0::/\n"), 2);
    put(dir, "cpu.max", "junk");
    ck_assert_int_eq(quota(dir, "0::/\n"), INT_MAX);
    put(dir, "cpu.max", "600000 100000"); // in a container the path is the host's, the mount the container's
    ck_assert_int_eq(quota(dir, "0::/system.slice/docker-0123.scope\n"), 6);
    ck_assert_int_eq(quota(dir, "garbage\n\n"), INT_MAX);
    ck_assert_int_eq(tj_cgroup_cpus("/no/such/file", dir), INT_MAX);
    snprintf(cmd, sizeof cmd, "rm -r %s", dir);
    ck_assert_int_eq(system(cmd), 0);
}
END_TEST

enum { TASKS = 257 };
struct count {
    _Atomic int runs[TASKS];
    struct tj_pool *pool;
    _Atomic int nested;
};

static void count_task(void *arg, size_t i) {
    struct count *c = arg;
    atomic_fetch_add_explicit(&c->runs[i], 1, memory_order_relaxed);
}

static void nested_task(void *arg, size_t i) {
    struct count *c = arg;
    struct count *inner = calloc(1, sizeof *inner);
    ck_assert_ptr_nonnull(inner);
    pthread_t *self = malloc(sizeof *self);
    free(self);
    tj_pool_run(c->pool, 5, count_task, inner);
    for (int k = 0; k < 5; k++) {
        atomic_fetch_add(&c->nested, atomic_load(&inner->runs[k]));
    }
    free(inner);
    count_task(arg, i);
}

static void check_counts(const struct count *c, size_t n, int each) {
    for (size_t i = 0; i < TASKS; i++) {
        int runs = atomic_load(&c->runs[i]);
        if (runs != (i < n ? each : 0)) {
            ck_abort_msg("task %zu of %zu ran %d times, not %d", i, n, runs, each);
        }
    }
}

START_TEST(pool_runs_each_task_once) {
    static const int threads[] = {1, 2, 3, 8};
    for (size_t t = 0; t < TJ_COUNT(threads); t++) {
        struct tj_pool *p = tj_pool_create(threads[t], NULL, NULL);
        ck_assert_ptr_nonnull(p);
        ck_assert_int_eq(tj_pool_threads(p), threads[t]);
        for (int round = 0; round < 300; round++) {
            struct count c = {.pool = p};
            size_t n = (size_t)round % (TASKS + 1);
            tj_pool_run(p, n, count_task, &c);
            check_counts(&c, n, 1);
        }
        struct count c = {.pool = p};
        tj_pool_run(p, 17, nested_task, &c);
        check_counts(&c, 17, 1);
        ck_assert_int_eq(c.nested, 17 * 5);
        tj_pool_destroy(p);
    }
    tj_pool_destroy(NULL);
    struct tj_pool *p = tj_pool_create(0, NULL, NULL);
    ck_assert_int_eq(tj_pool_threads(p), tj_cpu_count());
    tj_pool_destroy(p);
}
END_TEST

// Gaps of all lengths between jobs: workers spin, go to sleep, sleep.
START_TEST(pool_sleeps_and_wakes) {
    struct tj_pool *p = tj_pool_create(3, NULL, NULL);
    uint64_t seed = 3;
    for (int round = 0; round < 400; round++) {
        struct count c = {.pool = p};
        uint64_t until = tj_now_ns() + tj_test_random(&seed) % 60000;
        while (tj_now_ns() < until) {}
        if (round % 40 == 0) {
            usleep(2000);
        }
        tj_pool_run(p, 6, count_task, &c);
        check_counts(&c, 6, 1);
    }
    tj_pool_destroy(p);
}
END_TEST

static void slow_task(void *arg, size_t i) {
    usleep(i == 0 ? 0 : 1000); // owner and workers wait for each other asleep
    count_task(arg, i);
}

START_TEST(pool_waits_for_slow_tasks) {
    struct tj_pool *p = tj_pool_create(4, NULL, NULL);
    for (int round = 0; round < 40; round++) {
        struct count c = {.pool = p};
        tj_pool_run(p, 5, slow_task, &c);
        check_counts(&c, 5, 1);
    }
    tj_pool_destroy(p);
}
END_TEST

static void *hammer(void *arg) {
    struct tj_pool *p = arg;
    for (int round = 0; round < (UNDER_TSAN ? 1000 : 6000); round++) {
        struct count c = {.pool = p};
        size_t n = 2 + (size_t)round % 7;
        tj_pool_run(p, n, count_task, &c);
        for (size_t i = 0; i < n; i++) {
            if (atomic_load(&c.runs[i]) != 1) {
                return (void *)"a task ran not once";
            }
        }
    }
    return NULL;
}

START_TEST(pool_entered_by_many_threads) {
    struct tj_pool *p = tj_pool_create(3, NULL, NULL);
    pthread_t t[4];
    for (size_t i = 0; i < TJ_COUNT(t); i++) {
        ck_assert_int_eq(pthread_create(&t[i], NULL, hammer, p), 0);
    }
    for (size_t i = 0; i < TJ_COUNT(t); i++) {
        void *bad;
        pthread_join(t[i], &bad);
        ck_assert_msg(!bad, "%s", (char *)bad);
    }
    tj_pool_destroy(p);
}
END_TEST

// Rounding of double arithmetic as it happens: fegetround() asks the x87 unit.
static int rounding(void) {
    volatile double one = 1, tiny = 1e-30;
    return one + tiny > 1 ? FE_UPWARD : -one - tiny < -1 ? FE_DOWNWARD : one - tiny < 1 ? FE_TOWARDZERO : FE_TONEAREST;
}

struct seen {
    _Atomic int workers, wrong_name, open_signals, wrong_fp;
    pthread_t owner;
};

static void look_task(void *arg, size_t i) {
    (void)i;
    struct seen *s = arg;
    usleep(500); // so that every thread gets one
    if (pthread_equal(pthread_self(), s->owner)) {
        return;
    }
    char name[16];
    sigset_t set;
    atomic_fetch_add(&s->workers, 1);
    pthread_getname_np(pthread_self(), name, sizeof name);
    if (strncmp(name, "tracejit-", 9) != 0) {
        atomic_fetch_add(&s->wrong_name, 1);
    }
    pthread_sigmask(SIG_SETMASK, NULL, &set);
    if (!sigismember(&set, SIGINT) || !sigismember(&set, SIGTERM) || !sigismember(&set, SIGUSR1) ||
        !sigismember(&set, SIGPROF) || !sigismember(&set, SIGALRM) || sigismember(&set, SIGSEGV)) {
        atomic_fetch_add(&s->open_signals, 1);
    }
    if (fegetround() != FE_TONEAREST || rounding() != FE_TONEAREST) {
        atomic_fetch_add(&s->wrong_fp, 1);
    }
}

START_TEST(pool_workers_are_no_part_of_the_host) {
    struct seen s = {.owner = pthread_self()};
    sigset_t before, after;
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    struct tj_pool *p = tj_pool_create(3, NULL, NULL);
    fesetround(FE_UPWARD);
    tj_pool_run(p, 20, look_task, &s);
    ck_assert_int_eq(rounding(), FE_UPWARD);
    fesetround(FE_TONEAREST);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    ck_assert(!memcmp(&before, &after, sizeof(unsigned long)));
    ck_assert_int_gt(s.workers, 0);
    ck_assert_int_eq(s.wrong_name, 0);
    ck_assert_int_eq(s.open_signals, 0);
    ck_assert_int_eq(s.wrong_fp, 0);
    tj_pool_destroy(p);
}
END_TEST

static _Atomic int owning; // 0 before the first job, 1 while jobs run, 2: stop

static void *own(void *arg) {
    struct count c = {.pool = arg};
    do {
        tj_pool_run(arg, 8, count_task, &c);
        int first = 0;
        (void)atomic_compare_exchange_strong(&owning, &first, 1);
    } while (atomic_load(&owning) != 2);
    return NULL;
}

START_TEST(pool_after_fork) {
    if (UNDER_TSAN) {
        return; // it refuses threads in the child of a threaded parent
    }
    struct tj_pool *p = tj_pool_create(3, NULL, NULL);
    struct count c = {.pool = p};
    tj_pool_run(p, 8, count_task, &c);
    check_counts(&c, 8, 1);
    usleep(50000); // a worker that is still starting holds locks of a sanitizer's allocator, for ever in the child
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        bool ok = true;
        for (int round = 1; round <= 100; round++) {
            tj_pool_run(p, 8, count_task, &c);
            for (int i = 0; i < 8; i++) {
                ok &= atomic_load(&c.runs[i]) == 1 + round;
            }
        }
        struct seen s = {.owner = pthread_self()};
        tj_pool_run(p, 20, look_task, &s);
        ok &= s.workers > 0; // the child has workers of its own by now
        tj_pool_destroy(p);
        _exit(ok ? 0 : 1);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    // A child that does nothing but drop the pool, and one made while another thread owns it.
    pid = fork();
    if (pid == 0) {
        tj_pool_destroy(p);
        _exit(0);
    }
    waitpid(pid, &status, 0);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    pthread_t t;
    ck_assert_int_eq(pthread_create(&t, NULL, own, p), 0);
    while (!atomic_load(&owning)) { // started, for the same reason
        sched_yield();
    }
    for (int k = 0; k < 20; k++) {
        pid = fork();
        if (pid == 0) {
            alarm(20);
            struct count mine = {.pool = p};
            tj_pool_run(p, 8, count_task, &mine);
            bool ok = true;
            for (int i = 0; i < 8; i++) {
                ok &= atomic_load(&mine.runs[i]) == 1;
            }
            tj_pool_destroy(p);
            _exit(ok ? 0 : 1);
        }
        waitpid(pid, &status, 0);
        ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "child %d: status %x", k, (unsigned)status);
    }
    atomic_store(&owning, 2);
    pthread_join(t, NULL);
    tj_pool_run(p, 8, count_task, &c);
    check_counts(&c, 8, 2);
    tj_pool_destroy(p);
}
END_TEST

struct host {
    int calls, mode;
};

static void host_for(void *user, size_t n, void (*body)(void *, size_t), void *arg) {
    struct host *h = user;
    h->calls++;
    int keep = rounding();
    fesetround(h->mode);
    for (size_t i = n; i-- > 0;) {
        body(arg, i);
        ck_assert_int_eq(rounding(), h->mode);
    }
    fesetround(keep);
}

static void nearest_task(void *arg, size_t i) {
    ck_assert_int_eq(rounding(), FE_TONEAREST);
    nested_task(arg, i);
}

START_TEST(pool_of_the_host) {
    struct host h = {.mode = FE_DOWNWARD};
    struct tj_pool *p = tj_pool_create(4, host_for, &h);
    struct count c = {.pool = p};
    tj_pool_run(p, 9, nearest_task, &c);
    check_counts(&c, 9, 1);
    ck_assert_int_eq(h.calls, 1); // nested calls run inline
    ck_assert_int_eq(c.nested, 9 * 5);
    tj_pool_destroy(p);
}
END_TEST

START_TEST(pool_without_memory) {
    tj_test_fail_at(0);
    ck_assert_ptr_null(tj_pool_create(2, NULL, NULL));
    ck_assert(tj_test_failed());
    for (size_t k = 0; k < 4; k++) { // no handles, no workers, one worker
        struct tj_pool *p = tj_pool_create(3, NULL, NULL);
        struct count c = {.pool = p};
        tj_test_fail_at(k);
        tj_pool_run(p, 50, count_task, &c);
        (void)tj_test_failed();
        check_counts(&c, 50, 1);
        tj_pool_destroy(p);
    }
}
END_TEST

START_TEST(floating_point_environment) {
    tj_fpenv e;
    tj_fpenv_enter(&e);
    ck_assert(!e.changed);
    tj_fpenv_leave(&e);
#if defined(__x86_64__)
    unsigned host = 0x1F80 | 0x8040 | 0x6000; // flush to zero, denormals are zero, toward zero
    unsigned keep = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(host);
    tj_fpenv_enter(&e);
    ck_assert(e.changed);
    unsigned inside = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(inside | 0x20); // a kernel rounds
    tj_fpenv_leave(&e);
    unsigned outside = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(keep);
    ck_assert_uint_eq(inside, 0x1F80);
    ck_assert_uint_eq(outside, host);
#endif
    fesetround(FE_DOWNWARD);
    tj_fpenv_enter(&e);
    int in = rounding();
    tj_fpenv_leave(&e);
    int out = rounding();
    fesetround(FE_TONEAREST);
    ck_assert_int_eq(in, FE_TONEAREST);
    ck_assert_int_eq(out, FE_DOWNWARD);
}
END_TEST

TJ_TEST_MAIN("lib", dtypes, sizes, allocation, errors, arena, text_buffer, hash, environment, log_line, dump, cpu, dl,
             executable_memory, processor_count, cgroup_quota, pool_runs_each_task_once, pool_sleeps_and_wakes,
             pool_waits_for_slow_tasks, pool_entered_by_many_threads, pool_workers_are_no_part_of_the_host,
             pool_after_fork, pool_of_the_host, pool_without_memory, floating_point_environment)
