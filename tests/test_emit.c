// tests/test_emit.c: emitted loop kernels against a scalar evaluation of the same kernel: directed cases and random
// ones, bit for bit, on every feature level that the machine runs. Buffers end at unreadable pages.
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../jit/module.h"
#include "../kernels/transpose.h"
#include "../lib/dl.h"
#include "../lib/threads.h"
#include "../trace/math.h"
#include "kernel_ref.h"

// ---- the module -----------------------------------------------------------------------------------------------------

static const struct tj_module_api *module;
static void *compilers[3];
static enum tj_cpu_level best;
static const struct tj_module_host host = {malloc,          free,         tj_exec_reserve, tj_exec_seal, tj_exec_unmap,
                                           tj_thread_start, tj_stack_left};

static bool have_module(void) {
    if (module) {
        return true;
    }
    char path[4096], err[512] = "";
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 64);
    MUST(n > 0, "readlink");
    path[n] = 0;
    for (int up = 0; up < 2 && strrchr(path, '/'); up++) {
        *strrchr(path, '/') = 0;
        size_t len = strlen(path);
        (void)snprintf(path + len, sizeof path - len, "/libtracejit-llvm.so");
        if (!access(path, R_OK)) {
            break;
        }
        path[len] = 0;
    }
    const char *env = getenv("TRACEJIT_LLVM");
    void *lib = tj_dl_open(env ? env : path, "libtracejit-llvm.so", (const char *const[]){NULL}, err, sizeof err);
    if (!lib) {
        printf("no compiler module: %s\n", err);
        return false;
    }
    const struct tj_module_api *(*get)(void) = NULL;
    *(void **)&get = tj_dl_sym(lib, "tj_llvm_module");
    MUST(get, "no tj_llvm_module");
    module = get();
    MUST(module->abi == TJ_MODULE_ABI, "abi");
    struct tj_cpu cpu;
    tj_cpu_detect("", &cpu);
    best = cpu.level;
    for (int l = TJ_CPU_PORTABLE; l <= TJ_CPU_AVX512; l++) {
#if !defined __x86_64__
        if (l > TJ_CPU_PORTABLE) {
            break;
        }
#endif
        cpu.level = (enum tj_cpu_level)l;
        MUST(!module->create(&host, &cpu, &compilers[l], err, sizeof err), "create %s: %s",
             tj_cpu_level_name(cpu.level), err);
    }
    return true;
}

static float h_fmodf(float a, float b) { return fmodf(a, b); }
static const void *helpers[TJ_HELPERS];
static void fill_helpers(void) {
#define H(which, f) helpers[which] = (const void *)(intptr_t)(f)
    H(TJ_H_FMODF, h_fmodf);
    H(TJ_H_FMOD, fmod);
    H(TJ_H_POW, pow);
    H(TJ_H_EXP, exp);
    H(TJ_H_LOG, log);
    H(TJ_H_SIN, sin);
    H(TJ_H_COS, cos);
    H(TJ_H_TANH, tanh);
    H(TJ_H_ERF, erf);
    H(TJ_H_LOG1P, log1p);
    for (unsigned i = 0; i < 4; i++) {
        H(TJ_H_TURN + i, tj_transpose_for(TJ_CPU_PORTABLE, i, true));
        H(TJ_H_TURN_ALL + i, tj_transpose_for(TJ_CPU_PORTABLE, i, false));
    }
#undef H
}

static bool same(const unsigned char *a, const unsigned char *b, int dtype) {
    struct sv x = kb_load_value(a, dtype), y = kb_load_value(b, dtype);
    int c = kb_class(dtype);
    if (c == 'f' && x.f != x.f && y.f != y.f) {
        return true;
    }
    if (c == 'd' && x.d != x.d && y.d != y.d) {
        return true;
    }
    return !memcmp(a, b, kb_width(dtype));
}

static void show(const struct tj_compile_result *r) {
    if (getenv("TJ_SHOW")) {
        fprintf(stderr, "%s\n%s\n", r->ir ? r->ir : "", r->asm_text ? r->asm_text : "");
    }
}

// The code of the last kernel: lengths that make no other kernel need no new code.
static struct {
    struct tj_kernel *k;
    struct tj_exec code;
    void *entry[2];
} last[3];
static void compile(const struct tj_kernel *k, int l, const char *what, void **entry) {
    if (!last[l].k || !tj_kernel_equal(last[l].k, k)) {
        struct tj_unit u = {.kind = TJ_UNIT_LOOP, .loop = k, .symbol = "k"};
        struct tj_compile_result out;
        tj_status st = module->compile(compilers[l], &u, 1, getenv("TJ_SHOW") != NULL, &out);
        MUST(!st, "%s, level %d: %s", what, l, out.error);
        if (l == (int)best) {
            show(&out);
        }
        free(out.ir);
        free(out.asm_text);
        if (last[l].k) {
            tj_exec_unmap(&last[l].code);
            tj_free(last[l].k);
        }
        last[l].k = tj_kernel_copy(k);
        last[l].code = out.code;
        memcpy(last[l].entry, u.entry, sizeof u.entry);
    }
    memcpy(entry, last[l].entry, sizeof last[l].entry);
}

// All levels of each kernel with TJ_ALL (make test-ops); else each kernel at one level, in turn.
static bool takes_level(const struct tj_kernel *k, int l) {
    static struct tj_kernel *previous;
    static unsigned turn;
    static int all = -1;
    if (all < 0) {
        all = getenv("TJ_ALL") != NULL;
    }
    if (!previous || !tj_kernel_equal(previous, k)) {
        tj_free(previous);
        previous = tj_kernel_copy(k);
        turn++;
    }
    return all || (int)(turn % (TJ_CPU_AVX512 + 1)) == l;
}

// Compiles for every level, runs where the machine can, in pieces of the launch box, and compares all buffers.
static void compare(struct kb *b, const char *what) {
    struct tj_kernel *k = &b->k;
    unsigned char *input[MAX_BUF], *want[MAX_BUF], *live[MAX_BUF];
    char err[256] = "";
    MUST(tj_kernel_verify(k, err, sizeof err), "%s: %s", what, err);
    for (int i = 0; i < k->nbufs; i++) {
        input[i] = malloc(b->buf[i].bytes + 1);
        want[i] = malloc(b->buf[i].bytes + 1);
        memcpy(input[i], b->buf[i].p, b->buf[i].bytes);
        memcpy(want[i], input[i], b->buf[i].bytes);
        live[i] = b->buf[i].p;
    }
    static struct ref s;
    s = (struct ref){.b = b, .bufs = want};
    kb_evaluate(&s);
    int nd = k->ndims;
    int64_t rows = 1, cols = k->kind == TJ_K_ROWS ? 1 : kb_extent(b, nd - 1), row_elems = 1;
    for (int d = 0; d < (k->kind == TJ_K_POINTWISE ? nd - 1 : k->npar); d++) {
        rows *= kb_extent(b, d);
    }
    for (int d = k->npar; d < nd - (k->kind == TJ_K_COLS); d++) {
        row_elems *= kb_extent(b, d);
    }
    for (int l = TJ_CPU_PORTABLE; l <= TJ_CPU_AVX512; l++) {
        if (!compilers[l] || !takes_level(k, l)) {
            continue;
        }
        void *entry[2];
        compile(k, l, what, entry);
        for (int whole = 0; whole < 2 && l <= (int)best; whole++) {
            for (int i = 0; i < k->nbufs; i++) {
                memcpy(b->buf[i].p, input[i], b->buf[i].bytes);
            }
            struct tj_data_error de = {0};
            uint32_t sites[4] = {70, 71, 72, 73};
            size_t scratch = tj_kernel_scratch(k, row_elems);
            struct tj_kargs a = {
                .bufs = live, .ivals = b->ivals, .svals = b->svals, .err = &de, .sites = sites, .helpers = helpers};
            a.scratch = tj_aligned_alloc(scratch + 64);
            tj_kernel_fn fn = NULL, fn2 = NULL;
            *(void **)&fn = entry[0];
            *(void **)&fn2 = entry[1];
            if (k->split) {
                int64_t blocks = (row_elems + 4095) / 4096;
                a.partials = malloc((size_t)(rows * blocks) * 8 + 8);
                MUST(fn2, "no second phase");
                for (int64_t r = 0; r < rows * blocks; r++) {
                    fn(&a, r, r + 1, 0, 1);
                }
                fn2(&a, 0, rows, 0, 1);
                free(a.partials);
            } else if (whole) {
                fn(&a, 0, rows, 0, cols);
            } else {
                int64_t c = cols > 5 ? cols / 3 : cols, r = rows > 2 ? rows / 2 : rows; // in uneven pieces
                fn(&a, r, rows, c, cols);
                fn(&a, 0, r, 0, c);
                fn(&a, r, rows, 0, k->kind == TJ_K_ROWS ? 0 : c);
                if (c < cols) {
                    fn(&a, 0, r, c, cols);
                }
            }
            tj_aligned_free(a.scratch);
            for (int i = 0; i < k->nbufs; i++) {
                size_t w = kb_width(b->buf_dtype[i]);
                MUST(kb_guard_intact(&b->buf[i]), "%s, level %d: wrote below buffer %d", what, l, i);
                for (size_t at = 0; at < b->buf[i].bytes; at += w) {
                    if (!same(b->buf[i].p + at, want[i] + at, b->buf_dtype[i])) {
                        struct sv g = kb_load_value(b->buf[i].p + at, b->buf_dtype[i]),
                                  e = kb_load_value(want[i] + at, b->buf_dtype[i]);
                        ck_abort_msg("%s, level %d, buffer %d (%s), element %zu: %lld %a %a, not %lld %a %a", what, l,
                                     i, tj_dtypes[b->buf_dtype[i]].name, at / w, (long long)g.i, (double)g.f, g.d,
                                     (long long)e.i, (double)e.f, e.d);
                    }
                }
            }
            MUST((atomic_load(&de.set) == 2) == s.error, "%s: data error %d", what, de.set);
            if (s.error) {
                MUST(de.node == 71 && de.kind == 1 && de.extent == 9, "%s: error fields", what);
            }
        }
    }
    for (int i = 0; i < k->nbufs; i++) {
        memcpy(b->buf[i].p, input[i], b->buf[i].bytes);
        free(input[i]);
        free(want[i]);
    }
}

// ---- values ---------------------------------------------------------------------------------------------------------

static const double specials[] = {
    0.0,           -0.0,   1.0,     -1.0,  0.5,    -0.5,  2.0,     3.0,     NAN,  INFINITY, -INFINITY, 1e-40,
    -1e-40,        1e30,   -1e30,   88.7,  -103.9, 104.5, 1e-20,   131072,  1e9,  -2.5,     1.5,       2147483648.0,
    -2147483649.0, 9.3e18, -9.3e18, 255.7, 256.0,  -0.9,  65519.9, 65520.0, 6e-8, 3.4e38};
static void fill(struct kb *b, uint64_t seed, bool tame) {
    for (int i = 0; i < b->k.nbufs; i++) {
        size_t w = kb_width(b->buf_dtype[i]);
        for (size_t at = 0; at < b->buf[i].bytes; at += w) {
            uint64_t r = tj_test_random(&seed);
            struct sv v = {0};
            double x = (double)tj_test_uniform(&seed) * (r & 64 ? 4 : r & 128 ? 100 : 1);
            if (!tame && r % 5 == 0) {
                x = specials[(r >> 8) % TJ_COUNT(specials)];
            }
            v.d = x;
            v.f = (float)x;
            static const int64_t ints[] = {0, 1, -1, 2, 7, -7, INT32_MIN, INT32_MAX, INT64_MIN, INT64_MAX, 255, 3};
            v.i = r % 3 == 0 && !tame ? ints[(r >> 8) % TJ_COUNT(ints)] : (int64_t)(r >> 16) % 19 - 9;
            v.i = b->buf_dtype[i] == TRACE_BOOL ? v.i & 1 : v.i;
            kb_store_value(b->buf[i].p + at, b->buf_dtype[i], v);
        }
    }
}

#define SKIP_WITHOUT_MODULE                                                                                            \
    if (!have_module()) {                                                                                              \
        return;                                                                                                        \
    }                                                                                                                  \
    fill_helpers()

// ---- tests ----------------------------------------------------------------------------------------------------------

static const int float_unary[] = {
    TJ_OP_NEG,  TJ_OP_ABS,        TJ_OP_SIGN,      TJ_OP_FLOOR, TJ_OP_CEIL,        TJ_OP_TRUNC, TJ_OP_ROUND,
    TJ_OP_FRAC, TJ_OP_RECIPROCAL, TJ_OP_SQUARE,    TJ_OP_CUBE,  TJ_OP_RSQUARE,     TJ_OP_SQRT,  TJ_OP_RSQRT,
    TJ_OP_EXP,  TJ_OP_LOG,        TJ_OP_SIN,       TJ_OP_COS,   TJ_OP_TANH,        TJ_OP_ERF,   TJ_OP_SIGMOID,
    TJ_OP_RELU, TJ_OP_GELU,       TJ_OP_GELU_TANH, TJ_OP_SILU,  TJ_OP_LOGICAL_NOT, TJ_OP_ISNAN, TJ_OP_ISINF};
static const int binary[] = {TJ_OP_ADD,       TJ_OP_SUB,         TJ_OP_MUL,        TJ_OP_DIV,        TJ_OP_FLOOR_DIVIDE,
                             TJ_OP_REMAINDER, TJ_OP_FMOD,        TJ_OP_POW,        TJ_OP_MAXIMUM,    TJ_OP_MINIMUM,
                             TJ_OP_EQ,        TJ_OP_NE,          TJ_OP_LT,         TJ_OP_LE,         TJ_OP_GT,
                             TJ_OP_GE,        TJ_OP_LOGICAL_AND, TJ_OP_LOGICAL_OR, TJ_OP_LOGICAL_XOR};
static const int int_unary[] = {TJ_OP_NEG,  TJ_OP_ABS,  TJ_OP_SIGN,        TJ_OP_FLOOR,       TJ_OP_ROUND, TJ_OP_SQUARE,
                                TJ_OP_CUBE, TJ_OP_RELU, TJ_OP_BITWISE_NOT, TJ_OP_LOGICAL_NOT, TJ_OP_ISNAN};
static const int int_binary[] = {
    TJ_OP_ADD,     TJ_OP_SUB,         TJ_OP_MUL,         TJ_OP_FLOOR_DIVIDE, TJ_OP_REMAINDER,  TJ_OP_FMOD, TJ_OP_POW,
    TJ_OP_MAXIMUM, TJ_OP_MINIMUM,     TJ_OP_EQ,          TJ_OP_NE,           TJ_OP_LT,         TJ_OP_LE,   TJ_OP_GT,
    TJ_OP_GE,      TJ_OP_LOGICAL_AND, TJ_OP_BITWISE_AND, TJ_OP_BITWISE_OR,   TJ_OP_BITWISE_XOR};
static const int bool_binary[] = {TJ_OP_ADD, TJ_OP_MUL, TJ_OP_MAXIMUM, TJ_OP_MINIMUM,
                                  TJ_OP_EQ,  TJ_OP_LT,  TJ_OP_GE,      TJ_OP_BITWISE_XOR};
static const int all_dtypes[] = {TRACE_BOOL, TRACE_U8,   TRACE_I32, TRACE_I64,
                                 TRACE_F16,  TRACE_BF16, TRACE_F32, TRACE_F64};

static bool gives_bool(int op) {
    return (op >= TJ_OP_EQ && op <= TJ_OP_LOGICAL_XOR) || op == TJ_OP_LOGICAL_NOT || op == TJ_OP_ISNAN ||
           op == TJ_OP_ISINF;
}
static void one_op(int op, int dtype, int nin, int64_t n) {
    struct kb b;
    kb_init(&b, TJ_K_POINTWISE, 1, 1, 1, &n);
    tj_kv x = kb_input(&b, dtype), y = nin > 1 ? kb_input(&b, dtype) : TJ_KNONE,
          z = nin > 2 ? kb_input(&b, dtype) : TJ_KNONE;
    int rd = gives_bool(op) ? TRACE_BOOL : dtype;
    tj_kv r = kb_add(&b, op, rd, 0, nin, x, y, z);
    if (rd == TRACE_F16 || rd == TRACE_BF16) {
        r = kb_add(&b, TJ_KOP_ROUND, rd, rd, 1, r);
    }
    (void)kb_output(&b, rd, r);
    fill(&b, (uint64_t)op * 977 + (uint64_t)dtype, false);
    char what[64];
    (void)snprintf(what, sizeof what, "%s %s", op < TJ_OP_COUNT ? tj_ops[op].name : "kop", tj_dtypes[dtype].name);
    compare(&b, what);
    kb_free(&b);
}

START_TEST(float_ops) {
    SKIP_WITHOUT_MODULE;
    static const int dts[] = {TRACE_F32, TRACE_F64, TRACE_F16, TRACE_BF16};
    for (size_t d = 0; d < TJ_COUNT(dts); d++) {
        for (size_t i = 0; i < TJ_COUNT(float_unary); i++) {
            one_op(float_unary[i], dts[d], 1, 1003);
        }
        for (size_t i = 0; i < TJ_COUNT(binary); i++) {
            one_op(binary[i], dts[d], 2, 1003);
        }
        one_op(TJ_OP_CLAMP, dts[d], 3, 1003);
        one_op(TJ_OP_SOFTPLUS, dts[d], 3, 1003);
        one_op(TJ_KOP_FMA, dts[d], 3, 301);
    }
}
END_TEST

// Clamps between scalars take a shorter way.
START_TEST(bounds) {
    SKIP_WITHOUT_MODULE;
    static const double b2[] = {0.0, -0.0, NAN, 1.0, -1.0, INFINITY, -INFINITY};
    for (size_t l = 0; l < TJ_COUNT(b2); l++) {
        for (size_t h = 0; h < TJ_COUNT(b2); h++) {
            int64_t n = 200;
            int dt = (l + h) % 3 ? TRACE_F32 : TRACE_F64;
            struct kb b;
            kb_init(&b, TJ_K_POINTWISE, 1, 1, 1, &n);
            tj_kv x = kb_input(&b, dt), lo = kb_sval(&b, dt, b2[l]), hi = kb_sval(&b, dt, b2[h]);
            (void)kb_output(&b, dt, kb_add(&b, TJ_OP_CLAMP, dt, 0, 3, x, lo, hi));
            (void)kb_output(&b, dt, kb_add(&b, TJ_OP_MAXIMUM, dt, 0, 2, x, lo));
            (void)kb_output(&b, dt, kb_add(&b, TJ_OP_MINIMUM, dt, 0, 2, lo, x));
            fill(&b, l * 7 + h, false);
            compare(&b, "bounds");
            kb_free(&b);
        }
    }
}
END_TEST

START_TEST(int_ops) {
    SKIP_WITHOUT_MODULE;
    static const int dts[] = {TRACE_I32, TRACE_I64, TRACE_U8};
    for (size_t d = 0; d < TJ_COUNT(dts); d++) {
        for (size_t i = 0; i < TJ_COUNT(int_unary); i++) {
            one_op(int_unary[i], dts[d], 1, 203);
        }
        for (size_t i = 0; i < TJ_COUNT(int_binary); i++) {
            one_op(int_binary[i], dts[d], 2, 403);
        }
        one_op(TJ_OP_CLAMP, dts[d], 3, 203);
    }
    for (size_t i = 0; i < TJ_COUNT(bool_binary); i++) {
        one_op(bool_binary[i], TRACE_BOOL, 2, 99);
    }
    one_op(TJ_OP_BITWISE_NOT, TRACE_BOOL, 1, 99);
    one_op(TJ_OP_LOGICAL_NOT, TRACE_BOOL, 1, 99);
}
END_TEST

START_TEST(casts) {
    SKIP_WITHOUT_MODULE;
    for (size_t f = 0; f < TJ_COUNT(all_dtypes); f++) {
        for (size_t t = 0; t < TJ_COUNT(all_dtypes); t++) {
            int64_t n = 517;
            struct kb b;
            kb_init(&b, TJ_K_POINTWISE, 1, 1, 1, &n);
            tj_kv x = kb_input(&b, all_dtypes[f]);
            (void)kb_output(&b, all_dtypes[t], kb_add(&b, TJ_OP_CAST, all_dtypes[t], 0, 1, x));
            fill(&b, f * 31 + t, false);
            char what[64];
            (void)snprintf(what, sizeof what, "cast %s to %s", tj_dtypes[all_dtypes[f]].name,
                           tj_dtypes[all_dtypes[t]].name);
            compare(&b, what);
            kb_free(&b);
        }
    }
}
END_TEST

// Every length around the vector widths, light and heavy bodies (two bodies, one shared body).
START_TEST(tails) {
    SKIP_WITHOUT_MODULE;
    for (int heavy = 0; heavy < 2; heavy++) {
        for (size_t d = 0; d < TJ_COUNT(all_dtypes); d++) {
            for (int64_t n = 1; n <= 67; n += n < 34 ? 1 : 11) {
                int64_t ext[2] = {3, n};
                struct kb b;
                kb_init(&b, TJ_K_POINTWISE, 2, 2, 1, ext);
                tj_kv x = kb_input(&b, all_dtypes[d]);
                tj_kv r = kb_add(&b, TJ_OP_CAST, TRACE_F32, 0, 1, x);
                r = kb_add(&b, TJ_OP_MUL, TRACE_F32, 0, 2, r, kb_sval(&b, TRACE_F32, 1.5));
                if (heavy) {
                    r = kb_add(&b, TJ_OP_GELU, TRACE_F32, 0, 1, r);
                    r = kb_add(&b, TJ_OP_TANH, TRACE_F32, 0, 1, r);
                    r = kb_add(&b, TJ_OP_LOG, TRACE_F32, 0, 1, r);
                }
                (void)kb_output(&b, TRACE_F32, r);
                (void)kb_output(&b, all_dtypes[d], kb_add(&b, TJ_OP_CAST, all_dtypes[d], 0, 1, r));
                fill(&b, (uint64_t)n, true);
                compare(&b, heavy ? "heavy tail" : "tail");
                kb_free(&b);
            }
        }
    }
}
END_TEST

START_TEST(strides) {
    SKIP_WITHOUT_MODULE;
    int64_t ext[3] = {3, 5, 21};
    for (int big = 0; big < 2; big++) { // more than a tile
        int64_t size[2] = {big ? 150 : 33, big ? 40 : 5};
        struct kb b;
        kb_init(&b, TJ_K_POINTWISE, 2, 2, 1, size);
        int t = kb_buffer(&b, TRACE_F32, size[0] * size[1]);
        (void)kb_output(&b, TRACE_F32,
                        kb_add(&b, TJ_KOP_LOAD, TRACE_F32, kb_access(&b, t, (int64_t[]){1, size[0]}, 0), 0));
        fill(&b, 9, false);
        compare(&b, "transpose");
        kb_free(&b);
    }
    for (size_t d = 0; d < TJ_COUNT(all_dtypes); d++) {
        struct kb b;
        int dt = all_dtypes[d];
        kb_init(&b, TJ_K_POINTWISE, 3, 3, 1, ext);
        int t = kb_buffer(&b, dt, 3 * 5 * 21), c = kb_buffer(&b, dt, 21), r = kb_buffer(&b, dt, 5),
            o = kb_buffer(&b, dt, 3 * 5 * 21 * 2);
        tj_kv x = kb_add(&b, TJ_KOP_LOAD, dt, kb_access(&b, t, (int64_t[]){1, 3, 15}, 0), 0);     // transposed
        tj_kv y = kb_add(&b, TJ_KOP_LOAD, dt, kb_access(&b, c, (int64_t[]){0, 0, 1}, 0), 0);      // a row
        tj_kv z = kb_add(&b, TJ_KOP_LOAD, dt, kb_access(&b, r, (int64_t[]){0, 1, 0}, 0), 0);      // a column
        tj_kv f = kb_add(&b, TJ_KOP_LOAD, dt, kb_access(&b, t, (int64_t[]){105, 21, -1}, 20), 0); // flipped
        tj_kv w = kb_add(&b, TJ_KOP_LOAD, dt, kb_access(&b, c, (int64_t[]){0, 0, 0}, 7), 0);      // one element
        int add = dt == TRACE_BOOL ? TJ_OP_BITWISE_XOR : TJ_OP_ADD;
        x = kb_add(&b, add, dt, 0, 2, x, y);
        x = kb_add(&b, add, dt, 0, 2, x, z);
        x = kb_add(&b, add, dt, 0, 2, x, f);
        x = kb_add(&b, add, dt, 0, 2, x, w);
        if (dt == TRACE_F16 || dt == TRACE_BF16) {
            x = kb_add(&b, TJ_KOP_ROUND, dt, dt, 1, x);
        }
        (void)kb_output(&b, dt, x);
        (void)kb_add(&b, TJ_KOP_STORE, 0, kb_access(&b, o, (int64_t[]){210, 42, 2}, 1), 1, x); // scattered
        tj_kv co = kb_add(&b, TJ_KOP_COORD, TRACE_I64, kb_access(&b, -1, (int64_t[]){100, 10, 3}, 5), 0);
        (void)kb_output(&b, TRACE_I64, co);
        fill(&b, d, true);
        compare(&b, "strides");
        kb_free(&b);
    }
}
END_TEST

// Masked loads and stores, indices from memory, masks that vary and that don't.
// Accesses that are transposed tile by tile: read, written, both; moves, and values computed on the way.
static void turned_kernel(int dt, const int64_t *ext, bool in, bool out, bool moves, const char *what) {
    struct kb b;
    kb_init(&b, TJ_K_POINTWISE, 3, 3, 1, ext);
    int64_t n = ext[0] * ext[1] * ext[2], gap = ext[1] + 1;
    int64_t turned[3] = {gap * ext[2], 1, gap}, packed[3] = {ext[1] * ext[2], 1, ext[1]};
    int64_t unit[3] = {ext[1] * ext[2], ext[2], 1};
    int x = kb_buffer(&b, dt, ext[0] * ext[2] * gap - 1); // the last gap isn't there
    int from = kb_access(&b, x, in ? turned : unit, 0);
    tj_kv v = kb_add(&b, TJ_KOP_LOAD, dt, from, 0);
    if (!moves) {
        int y = kb_buffer(&b, dt, n);
        tj_kv w = kb_add(&b, TJ_KOP_LOAD, dt, kb_access(&b, y, unit, 0), 0);
        v = kb_add(&b, dt == TRACE_BOOL ? TJ_OP_LOGICAL_OR : TJ_OP_MAXIMUM, dt, 0, 2, v, w);
    }
    int z = kb_buffer(&b, dt, n);
    int to = kb_access(&b, z, out ? packed : unit, 0);
    (void)kb_add(&b, TJ_KOP_STORE, 0, to, 1, v);
    b.acc[from].vec = in ? TJ_VEC_TURNED : b.acc[from].vec;
    b.acc[to].vec = out ? TJ_VEC_TURNED : b.acc[to].vec;
    fill(&b, (uint64_t)n, true);
    compare(&b, what);
    kb_free(&b);
}
START_TEST(turned) {
    static const int64_t rows[] = {2, 3, 4, 5, 7, 8, 13, 70}, cols[] = {2, 17, 130, 700};
    for (unsigned d = 0; d < TJ_COUNT(all_dtypes); d++) {
        for (int form = 1; form < 4; form++) {
            for (unsigned i = 0; i < TJ_COUNT(rows) * TJ_COUNT(cols); i++) {
                int64_t ext[3] = {i & 1 ? 1 : 2, rows[i % TJ_COUNT(rows)], cols[i / TJ_COUNT(rows)]};
                turned_kernel(all_dtypes[d], ext, form & 1, form & 2, i % 3 == 0, "turned");
            }
        }
    }
}
END_TEST

// Every size up to some blocks, sides with and without gaps, against the definition.
START_TEST(transposes) {
    enum { N = 21, WIDE = 140 };
    uint64_t seed = 7;
    for (unsigned form = 0; form < 16; form++) {
        size_t w = (size_t)1 << (form & 3);
        enum tj_cpu_level level = form & 4 ? best : TJ_CPU_PORTABLE;
        tj_transpose_fn f = tj_transpose_for(level, form & 3, form & 8);
        for (int64_t i = 0; i < N * N * 3; i++) {
            int64_t r = i % N, c = i / N % N, gap = i / (N * N);
            r = r == N - 1 ? WIDE : r;
            c = c == N - 1 ? WIDE : c;
            int64_t ds = r + (gap == 1 ? 3 : 0), ss = c + (gap == 2 ? 1 : 0);
            size_t ns = r ? (size_t)((r - 1) * ss + c) * w : 0, nd = (size_t)(c * ds) * w;
            unsigned char *s = malloc(ns + 1), *d = malloc(nd + 1), *want = malloc(nd + 1);
            MUST(s && d && want, "memory");
            for (size_t k = 0; k < ns; k++) {
                s[k] = (unsigned char)tj_test_random(&seed);
            }
            memset(d, 0x5a, nd + 1);
            memset(want, 0x5a, nd + 1);
            for (int64_t k = 0; k < r * c; k++) {
                memcpy(want + (size_t)(k % c * ds + k / c) * w, s + (size_t)(k / c * ss + k % c) * w, w);
            }
            f(d, ds, s, ss, r, c);
            MUST(!memcmp(d, want, nd + 1), "transpose of %zu bytes, form %u: %d x %d, gap %d", w, form, (int)r, (int)c,
                 (int)gap);
            free(s);
            free(d);
            free(want);
        }
    }
}
END_TEST

START_TEST(masks) {
    SKIP_WITHOUT_MODULE;
    for (size_t d = 0; d < TJ_COUNT(all_dtypes); d++) {
        for (int64_t n = 5; n < 40; n += 17) {
            int64_t ext[2] = {4, n};
            int dt = all_dtypes[d];
            struct kb b;
            kb_init(&b, TJ_K_POINTWISE, 2, 2, 1, ext);
            int x = kb_buffer(&b, dt, 4 * (n - 3)), idx = kb_buffer(&b, TRACE_I64, n), tab = kb_buffer(&b, dt, 9 * n),
                ri = kb_buffer(&b, TRACE_I64, 4);
            tj_kv col = kb_add(&b, TJ_KOP_COORD, TRACE_I64, kb_access(&b, -1, (int64_t[]){0, 1}, 0), 0);
            tj_kv row = kb_add(&b, TJ_KOP_COORD, TRACE_I64, kb_access(&b, -1, (int64_t[]){1, 0}, 0), 0);
            tj_kv m = kb_add(&b, TJ_OP_GE, TRACE_BOOL, 0, 2, col, kb_const(&b, TRACE_I64, 3));
            tj_kv rm = kb_add(&b, TJ_OP_NE, TRACE_BOOL, 0, 2, row, kb_const(&b, TRACE_I64, 2));
            // pad: columns from 3 on read x[row, col - 3]
            tj_kv p = kb_add(&b, TJ_KOP_LOAD, dt, kb_access(&b, x, (int64_t[]){n - 3, 1}, -3), 1, m);
            tj_kv both = kb_add(&b, TJ_OP_LOGICAL_AND, TRACE_BOOL, 0, 2, m, rm);
            tj_kv q = kb_add(&b, TJ_KOP_LOAD, dt, kb_access(&b, x, (int64_t[]){n - 3, 1}, -3), 1, both);
            tj_kv s = kb_add(&b, TJ_KOP_LOAD, dt, kb_access(&b, tab, (int64_t[]){n, 1}, 0), 1, rm); // whole rows masked
            tj_kv i = kb_add(&b, TJ_KOP_LOAD, TRACE_I64, kb_access(&b, idx, (int64_t[]){0, 1}, 0), 0);
            tj_kv ok = kb_add(&b, TJ_OP_GE, TRACE_BOOL, 0, 2, i, kb_const(&b, TRACE_I64, 0));
            tj_kv ok2 = kb_add(&b, TJ_OP_LT, TRACE_BOOL, 0, 2, i, kb_const(&b, TRACE_I64, 9));
            ok = kb_add(&b, TJ_OP_LOGICAL_AND, TRACE_BOOL, 0, 2, ok, ok2);
            int ga = kb_access(&b, tab, (int64_t[]){0, 1}, 0);
            b.acc[ga].vec = TJ_VEC_STRIDED;
            b.acc[ga].nindirect = 1;
            b.acc[ga].ind_value[0] = i;
            b.acc[ga].ind_stride[0] = kb_ival(&b, n);
            tj_kv g = kb_add(&b, TJ_KOP_LOAD, dt, ga, 1, ok);
            // rows chosen by an index that doesn't vary along the vector dim
            tj_kv j = kb_add(&b, TJ_KOP_LOAD, TRACE_I64, kb_access(&b, ri, (int64_t[]){1, 0}, 0), 0);
            tj_kv rok = kb_add(&b, TJ_OP_GE, TRACE_BOOL, 0, 2, j, kb_const(&b, TRACE_I64, 0));
            tj_kv rok2 = kb_add(&b, TJ_OP_LT, TRACE_BOOL, 0, 2, j, kb_const(&b, TRACE_I64, 9));
            rok = kb_add(&b, TJ_OP_LOGICAL_AND, TRACE_BOOL, 0, 2, rok, rok2);
            int ra = kb_access(&b, tab, (int64_t[]){0, 1}, 0);
            b.acc[ra].nindirect = 1;
            b.acc[ra].ind_value[0] = j;
            b.acc[ra].ind_stride[0] = kb_ival(&b, n);
            tj_kv e = kb_add(&b, TJ_KOP_LOAD, dt, ra, 1, rok);
            tj_kv u = kb_add(&b, TJ_KOP_LOAD, dt, kb_access(&b, tab, (int64_t[]){1, 0}, 0), 1,
                             m); // one element, lanes masked
            (void)kb_output(&b, dt, p);
            (void)kb_output(&b, dt, q);
            (void)kb_output(&b, dt, s);
            (void)kb_output(&b, dt, g);
            (void)kb_output(&b, dt, e);
            (void)kb_output(&b, dt, u);
            int64_t st[2] = {n, 1}, st2[2] = {2 * n, 2};
            int o = kb_buffer(&b, dt, 4 * n), o2 = kb_buffer(&b, dt, 8 * n), o3 = kb_buffer(&b, dt, 4 * n);
            (void)kb_add(&b, TJ_KOP_STORE, 0, kb_access(&b, o, st, 0), 2, p, both);
            (void)kb_add(&b, TJ_KOP_STORE, 0, kb_access(&b, o2, st2, 0), 2, p, m);
            (void)kb_add(&b, TJ_KOP_STORE, 0, kb_access(&b, o3, st, 0), 2, g, rm);
            fill(&b, d * 7 + (uint64_t)n, false);
            compare(&b, "masks");
            kb_free(&b);
        }
    }
}
END_TEST

START_TEST(in_place) {
    SKIP_WITHOUT_MODULE;
    for (int64_t n = 1; n < 60; n += 7) {
        int64_t ext[2] = {2, n}, st[2] = {n, 1};
        struct kb b;
        kb_init(&b, TJ_K_POINTWISE, 2, 2, 1, ext);
        int x = kb_buffer(&b, TRACE_F32, 2 * n);
        int a = kb_access(&b, x, st, 0);
        tj_kv v = kb_add(&b, TJ_KOP_LOAD, TRACE_F32, a, 0);
        v = kb_add(&b, TJ_OP_ADD, TRACE_F32, 0, 2, v, kb_const(&b, TRACE_F32, 1));
        (void)kb_add(&b, TJ_KOP_STORE, 0, a, 1, v);
        fill(&b, 5, true);
        // in one piece: a second one would add again
        compare(&b, "in place");
        kb_free(&b);
    }
}
END_TEST

START_TEST(checks) {
    SKIP_WITHOUT_MODULE;
    for (int bad = -1; bad < 37; bad += 6) {
        for (int uniform = 0; uniform < 2; uniform++) {
            int64_t ext[2] = {uniform ? 37 : 1, uniform ? 3 : 37};
            struct kb b;
            kb_init(&b, TJ_K_POINTWISE, 2, 2, 1, ext);
            int idx = kb_buffer(&b, TRACE_I64, 37), tab = kb_buffer(&b, TRACE_F32, 9);
            tj_kv i = kb_add(&b, TJ_KOP_LOAD, TRACE_I64, kb_access(&b, idx, (int64_t[]){uniform, !uniform}, 0), 0);
            tj_kv ok = kb_add(&b, TJ_OP_LT, TRACE_BOOL, 0, 2, i, kb_const(&b, TRACE_I64, 9));
            tj_kv ok2 = kb_add(&b, TJ_OP_GE, TRACE_BOOL, 0, 2, i, kb_const(&b, TRACE_I64, 0));
            ok = kb_add(&b, TJ_OP_LOGICAL_AND, TRACE_BOOL, 0, 2, ok, ok2);
            (void)kb_add(&b, TJ_KOP_CHECK, 0, 1 << 24 | 1, 3, ok, i, kb_const(&b, TRACE_I64, 9));
            int a = kb_access(&b, tab, (int64_t[]){0, 0}, 0);
            b.acc[a].nindirect = 1;
            b.acc[a].ind_value[0] = i;
            b.acc[a].ind_stride[0] = 1;
            b.acc[a].vec = uniform ? TJ_VEC_ZERO : TJ_VEC_STRIDED;
            (void)kb_output(&b, TRACE_F32, kb_add(&b, TJ_KOP_LOAD, TRACE_F32, a, 1, ok));
            b.k.nsites = 4;
            fill(&b, 3, true);
            for (int64_t k = 0; k < 37; k++) {
                ((int64_t *)(void *)b.buf[idx].p)[k] = k == bad ? (bad & 1 ? -5 : 1234567890123) : k % 9;
            }
            compare(&b, "checks");
            kb_free(&b);
        }
    }
}
END_TEST

// ---- reductions -----------------------------------------------------------------------------------------------------

static const int reds[] = {TJ_RED_SUM, TJ_RED_MAX, TJ_RED_MIN, TJ_RED_ARGMAX, TJ_RED_ARGMIN, TJ_RED_ANY, TJ_RED_ALL};

static void one_reduction(enum tj_kernel_kind kind, int red, int dtype, const int64_t *ext, int ndims, int npar,
                          bool split, bool tame) {
    struct kb b;
    kb_init(&b, kind, ndims, npar, 1, ext);
    b.k.split = split;
    tj_kv x = kb_input(&b, dtype);
    if (red == TJ_RED_ANY || red == TJ_RED_ALL) {
        x = kb_add(&b, TJ_OP_CAST, TRACE_BOOL, 0, 1, x);
    } else if (red == TJ_RED_SUM && (dtype == TRACE_BOOL || dtype == TRACE_U8 || dtype == TRACE_I32)) {
        x = kb_add(&b, TJ_OP_CAST, TRACE_I64, 0, 1, x);
    }
    int in = kb_compute(b.ins[x].dtype), rd = red == TJ_RED_ARGMAX || red == TJ_RED_ARGMIN ? TRACE_I64 : in;
    b.level = TJ_ROWLEVEL;
    tj_kv r = kb_add(&b, TJ_KOP_REDUCE, rd, red, 1, x);
    b.pass = 1;
    int64_t st[TJ_KDIMS] = {0}, n = 1;
    if (kind == TJ_K_COLS) {
        st[ndims - 1] = 1;
        n = ext[ndims - 1];
    }
    for (int d = npar; d-- > 0;) {
        st[d] = n;
        n *= ext[d];
    }
    int o = kb_buffer(&b, rd, n);
    (void)kb_add(&b, TJ_KOP_STORE, 0, kb_access(&b, o, st, 0), 1, r);
    fill(&b, (uint64_t)(red * 100 + dtype) + (uint64_t)ext[0], tame);
    char what[128];
    (void)snprintf(what, sizeof what, "kind %d reduction %d %s [%lld, %lld, %lld] npar %d", kind, red,
                   tj_dtypes[dtype].name, (long long)ext[0], ndims > 1 ? (long long)ext[1] : 0,
                   ndims > 2 ? (long long)ext[2] : 0, npar);
    compare(&b, what);
    kb_free(&b);
}

START_TEST(row_reductions) {
    SKIP_WITHOUT_MODULE;
    static const int64_t lengths[] = {1, 2, 7, 8, 9, 31, 63, 64, 65, 100, 1000, 4096, 4097, 12289, 50000};
    for (size_t r = 0; r < TJ_COUNT(reds); r++) {
        for (size_t d = 0; d < TJ_COUNT(all_dtypes); d++) {
            for (size_t l = 0; l < TJ_COUNT(lengths); l++) {
                if (r && lengths[l] > 5000) {
                    continue;
                }
                one_reduction(TJ_K_ROWS, reds[r], all_dtypes[d], (int64_t[]){lengths[l] > 2000 ? 2 : 3, lengths[l]}, 2,
                              1, false, l & 1);
            }
        }
    }
    one_reduction(TJ_K_ROWS, TJ_RED_SUM, TRACE_F32, (int64_t[]){777}, 1, 0, false, true);
    one_reduction(TJ_K_ROWS, TJ_RED_SUM, TRACE_F32, (int64_t[]){3, 0}, 2, 1, false, true);
}
END_TEST

START_TEST(uncollapsed_reductions) {
    SKIP_WITHOUT_MODULE;
    for (size_t r = 0; r < TJ_COUNT(reds); r++) {
        for (size_t d = 0; d < TJ_COUNT(all_dtypes); d++) {
            one_reduction(TJ_K_ROWS, reds[r], all_dtypes[d], (int64_t[]){3, 5, 13}, 3, 1, false, d & 1);
        }
    }
    one_reduction(TJ_K_ROWS, TJ_RED_SUM, TRACE_F32, (int64_t[]){2, 99, 97}, 3, 1, false, true);
    one_reduction(TJ_K_ROWS, TJ_RED_SUM, TRACE_F64, (int64_t[]){2, 64, 128}, 3, 1, false, true);
    one_reduction(TJ_K_ROWS, TJ_RED_SUM, TRACE_F32, (int64_t[]){17, 33, 31}, 3, 0, false, true);
}
END_TEST

START_TEST(column_reductions) {
    SKIP_WITHOUT_MODULE;
    for (int64_t n = 1; n < 300; n += 43) {
        one_reduction(TJ_K_COLS, TJ_RED_CHAIN, TRACE_F32, (int64_t[]){3, n, 21}, 3, 1, false, true);
        one_reduction(TJ_K_COLS, TJ_RED_CHAIN, TRACE_F64, (int64_t[]){5, n, 33}, 3, 0, false, true);
    }
    static const int64_t lengths[] = {1, 3, 33, 64, 65, 200, 4096, 4100, 9000};
    for (size_t r = 0; r < TJ_COUNT(reds); r++) {
        for (size_t d = 0; d < TJ_COUNT(all_dtypes); d++) {
            for (size_t l = 0; l < TJ_COUNT(lengths); l += r && d % 3 ? 2 : 1) {
                one_reduction(TJ_K_COLS, reds[r], all_dtypes[d], (int64_t[]){2, lengths[l], lengths[l] > 300 ? 5 : 37},
                              3, 1, false, l & 1);
            }
        }
    }
    one_reduction(TJ_K_COLS, TJ_RED_SUM, TRACE_F32, (int64_t[]){5, 9, 21}, 3, 0, false, true);
    one_reduction(TJ_K_COLS, TJ_RED_SUM, TRACE_F32, (int64_t[]){50, 100, 3}, 3, 0, false, true);
}
END_TEST

START_TEST(split_reductions) {
    SKIP_WITHOUT_MODULE;
    static const int64_t lengths[] = {1, 4095, 4096, 4097, 8192, 20000, 50001};
    for (size_t l = 0; l < TJ_COUNT(lengths); l++) {
        one_reduction(TJ_K_ROWS, TJ_RED_SUM, TRACE_F32, (int64_t[]){2, lengths[l]}, 2, 1, true, true);
        one_reduction(TJ_K_ROWS, TJ_RED_SUM, TRACE_F64, (int64_t[]){2, lengths[l]}, 2, 1, true, true);
        one_reduction(TJ_K_ROWS, TJ_RED_MAX, TRACE_F32, (int64_t[]){lengths[l]}, 1, 0, true, false);
        one_reduction(TJ_K_ROWS, TJ_RED_ANY, TRACE_U8, (int64_t[]){lengths[l]}, 1, 0, true, true);
    }
}
END_TEST

// softmax with the exponentials kept, and the variance of rows: several passes, row buffers, row values, epilogues.
START_TEST(softmax_rows) {
    SKIP_WITHOUT_MODULE;
    static const int64_t lengths[] = {1, 5, 8, 10, 16, 33, 64, 100, 1000, 5000};
    for (int cache = 0; cache < 2; cache++) {
        for (size_t l = 0; l < TJ_COUNT(lengths); l++) {
            int64_t ext[2] = {3, lengths[l]};
            struct kb b;
            kb_init(&b, TJ_K_ROWS, 2, 1, 3, ext);
            tj_kv x = kb_input(&b, TRACE_F32);
            tj_kv max = kb_add(&b, TJ_KOP_REDUCE, TRACE_F32, TJ_RED_MAX, 1, x);
            b.ins[max].level = TJ_ROWLEVEL;
            b.pass = 1;
            tj_kv d = kb_add(&b, TJ_OP_SUB, TRACE_F32, 0, 2, kb_again(&b, x), max);
            tj_kv e = kb_add(&b, TJ_OP_EXP, TRACE_F32, 0, 1, d);
            if (cache) {
                b.ins[e].flags = TJ_KF_CACHE;
            }
            tj_kv sum = kb_add(&b, TJ_KOP_REDUCE, TRACE_F32, TJ_RED_SUM, 1, e);
            b.ins[sum].level = TJ_ROWLEVEL;
            b.pass = 2;
            b.level = TJ_ROWLEVEL;
            tj_kv lg = kb_add(&b, TJ_OP_LOG, TRACE_F32, 0, 1, sum);
            b.level = TJ_FULL;
            tj_kv y = kb_add(&b, TJ_OP_DIV, TRACE_F32, 0, 2, kb_again(&b, e), sum);
            (void)kb_output(&b, TRACE_F32, y);
            (void)kb_output(&b, TRACE_F32, kb_add(&b, TJ_OP_SUB, TRACE_F32, 0, 2, kb_again(&b, d), lg));
            fill(&b, l, true);
            compare(&b, "softmax");
            kb_free(&b);
        }
    }
}
END_TEST

static void norm(enum tj_kernel_kind kind, const int64_t *ext, int ndims, int npar, int dtype, bool cache) {
    struct kb b;
    kb_init(&b, kind, ndims, npar, 3, ext);
    int64_t n = 1;
    for (int d = npar; d < ndims - (kind == TJ_K_COLS); d++) {
        n *= ext[d];
    }
    int f = kb_compute(dtype);
    tj_kv x = kb_input(&b, dtype), r = kb_input(&b, dtype);
    tj_kv h = kb_add(&b, TJ_OP_ADD, f, 0, 2, x, r);
    b.ins[h].flags = cache ? TJ_KF_CACHE : 0;
    tj_kv count = kb_const(&b, f, (double)n), eps = kb_sval(&b, f, 1e-5);
    tj_kv sum = kb_add(&b, TJ_KOP_REDUCE, f, TJ_RED_SUM, 1, h);
    b.ins[sum].level = TJ_ROWLEVEL;
    b.pass = 1;
    b.level = TJ_ROWLEVEL;
    tj_kv mean = kb_add(&b, TJ_OP_DIV, f, 0, 2, sum, count);
    b.level = TJ_FULL;
    tj_kv c = kb_add(&b, TJ_OP_SUB, f, 0, 2, kb_again(&b, h), mean);
    tj_kv sq = kb_add(&b, TJ_OP_SQUARE, f, 0, 1, c);
    tj_kv var = kb_add(&b, TJ_KOP_REDUCE, f, TJ_RED_SUM, 1, sq);
    b.ins[var].level = TJ_ROWLEVEL;
    b.pass = 2;
    b.level = TJ_ROWLEVEL;
    tj_kv v = kb_add(&b, TJ_OP_DIV, f, 0, 2, var, count);
    v = kb_add(&b, TJ_OP_ADD, f, 0, 2, v, eps);
    v = kb_add(&b, TJ_OP_RSQRT, f, 0, 1, v);
    int64_t st[TJ_KDIMS] = {0};
    int64_t m = 1;
    if (kind == TJ_K_COLS) {
        st[ndims - 1] = 1;
        m = ext[ndims - 1];
    }
    for (int d = npar; d-- > 0;) {
        st[d] = m;
        m *= ext[d];
    }
    int mb = kb_buffer(&b, f, m);
    (void)kb_add(&b, TJ_KOP_STORE, 0, kb_access(&b, mb, st, 0), 1, mean);
    b.level = TJ_FULL;
    int64_t wst[TJ_KDIMS] = {0};
    wst[ndims - 1] = 1;
    int wb = kb_buffer(&b, f, ext[ndims - 1]);
    tj_kv w = kb_add(&b, TJ_KOP_LOAD, f, kb_access(&b, wb, wst, 0), 0);
    tj_kv y = kb_add(&b, TJ_OP_MUL, f, 0, 2, kb_again(&b, c), v);
    y = kb_add(&b, TJ_OP_MUL, f, 0, 2, y, w);
    if (dtype != f) {
        y = kb_add(&b, TJ_KOP_ROUND, dtype, dtype, 1, y);
    }
    (void)kb_output(&b, dtype, y);
    fill(&b, (uint64_t)ext[0] + (uint64_t)dtype, true);
    compare(&b, "norm");
    kb_free(&b);
}
START_TEST(norms) {
    SKIP_WITHOUT_MODULE;
    static const int dts[] = {TRACE_F32, TRACE_F64, TRACE_F16, TRACE_BF16};
    for (size_t d = 0; d < TJ_COUNT(dts); d++) {
        for (int cache = 0; cache < 2; cache++) {
            norm(TJ_K_ROWS, (int64_t[]){4, 77}, 2, 1, dts[d], cache);
            norm(TJ_K_ROWS, (int64_t[]){2, 4200}, 2, 1, dts[d], cache);
            norm(TJ_K_ROWS, (int64_t[]){2, 3, 10}, 3, 2, dts[d], cache);
            norm(TJ_K_ROWS, (int64_t[]){2, 7, 11}, 3, 1, dts[d], cache);
        }
        norm(TJ_K_COLS, (int64_t[]){2, 40, 19}, 3, 1, dts[d], false);
        norm(TJ_K_COLS, (int64_t[]){30, 100}, 2, 0, dts[d], false);
        norm(TJ_K_COLS, (int64_t[]){6, 7, 33}, 3, 0, dts[d], false);
    }
}
END_TEST

// ---- random kernels -------------------------------------------------------------------------------------------------

static void random_kernel(uint64_t seed) {
    uint64_t s = seed * 77 + 1;
#define PICK(n) ((int)(tj_test_random(&s) % (uint64_t)(n)))
    int kind = PICK(3), ndims = 1 + PICK(3) + (kind == TJ_K_COLS),
        npar = kind == TJ_K_POINTWISE ? ndims : PICK(ndims - (kind == TJ_K_COLS));
    int64_t ext[TJ_KDIMS];
    for (int d = 0; d < ndims; d++) {
        static const int64_t lens[] = {1, 2, 3, 5, 9, 17, 24, 65};
        ext[d] = lens[PICK(d == ndims - 1 ? 8 : 5)];
    }
    int npasses = kind == TJ_K_POINTWISE ? 1 : 1 + PICK(3);
    struct kb b;
    kb_init(&b, (enum tj_kernel_kind)kind, ndims, npar, npasses, ext);
    tj_kv pool[MAX_INS];
    int n = 0;
    for (int p = 0; p < npasses; p++) {
        b.pass = (uint8_t)p;
        for (int i = 0; i < (p ? 1 : 3) && b.k.nbufs < 8; i++) { // inputs: dims at random
            int64_t st[TJ_KDIMS], size = 1, off = PICK(3);
            for (int d = ndims; d-- > 0;) {
                bool used = PICK(4) > 0;
                st[d] = used ? size : 0;
                size *= used ? ext[d] : 1;
            }
            int scale = PICK(5) == 0 ? 2 : 1;
            for (int d = 0; d < ndims; d++) {
                st[d] *= scale;
            }
            int dt = PICK(3) ? TRACE_F32 : all_dtypes[PICK(8)];
            int buf = kb_buffer(&b, dt, size * scale + off);
            pool[n++] = kb_add(&b, TJ_KOP_LOAD, dt, kb_access(&b, buf, st, off), 0);
        }
        if (PICK(2)) {
            int64_t st[TJ_KDIMS] = {0};
            st[PICK(ndims)] = PICK(3);
            pool[n++] = kb_add(&b, TJ_KOP_COORD, TRACE_I64, kb_access(&b, -1, st, 1), 0);
        }
        pool[n++] = kb_sval(&b, TRACE_F32, 0.75);
        int ops = 2 + PICK(6);
        for (int i = 0; i < ops; i++) {
            tj_kv x = kb_again(&b, pool[PICK(n)]), y = kb_again(&b, pool[PICK(n)]);
            int dt = b.ins[x].dtype;
            if (PICK(5) == 0) {
                int to = all_dtypes[PICK(8)];
                pool[n++] = kb_add(&b, TJ_OP_CAST, to, 0, 1, x);
                continue;
            }
            int f = dt == TRACE_F16 || dt == TRACE_BF16 ? dt : kb_compute(dt);
            if (b.ins[y].dtype != dt) {
                y = kb_add(&b, TJ_OP_CAST, dt, 0, 1, y);
            }
            int op = kb_class(dt) != 'i'
                         ? (PICK(2) ? float_unary[PICK(TJ_COUNT(float_unary))] : binary[PICK(TJ_COUNT(binary))])
                     : dt == TRACE_BOOL ? bool_binary[PICK(TJ_COUNT(bool_binary))]
                                        : int_binary[PICK(TJ_COUNT(int_binary))];
            bool un = false;
            for (size_t k = 0; k < TJ_COUNT(float_unary); k++) {
                un = un || (kb_class(dt) != 'i' && float_unary[k] == op);
            }
            tj_kv r = kb_add(&b, op, gives_bool(op) ? TRACE_BOOL : f, 0, un ? 1 : 2, x, y);
            if (b.ins[r].dtype == TRACE_F16 || b.ins[r].dtype == TRACE_BF16) {
                r = kb_add(&b, TJ_KOP_ROUND, b.ins[r].dtype, b.ins[r].dtype, 1, r);
            }
            if (PICK(3) == 0 && kind == TJ_K_ROWS && ndims - npar == 1) {
                b.ins[r].flags = TJ_KF_CACHE;
            }
            pool[n++] = r;
        }
        if (kind == TJ_K_POINTWISE || PICK(3) == 0 || p == npasses - 1) {
            tj_kv x = kb_again(&b, pool[n - 1]);
            (void)kb_output(&b, b.ins[x].dtype, x);
        }
        if (kind != TJ_K_POINTWISE) {
            tj_kv x = kb_again(&b, pool[n - 1]);
            int red = b.ins[x].dtype == TRACE_BOOL ? TJ_RED_ANY + PICK(2) : PICK(3);
            if (red == TJ_RED_SUM && kb_class(b.ins[x].dtype) == 'i' && b.ins[x].dtype != TRACE_I64) {
                x = kb_add(&b, TJ_OP_CAST, TRACE_I64, 0, 1, x);
            }
            int rd = kb_compute(b.ins[x].dtype);
            b.level = TJ_ROWLEVEL;
            tj_kv r = kb_add(&b, TJ_KOP_REDUCE, rd, red, 1, x);
            b.pass = (uint8_t)(p + 1);
            int64_t st[TJ_KDIMS] = {0}, m = 1;
            if (kind == TJ_K_COLS) {
                st[ndims - 1] = 1;
                m = ext[ndims - 1];
            }
            for (int d = npar; d-- > 0;) {
                st[d] = m;
                m *= ext[d];
            }
            int o = kb_buffer(&b, rd, m);
            (void)kb_add(&b, TJ_KOP_STORE, 0, kb_access(&b, o, st, 0), 1, r);
            b.level = TJ_FULL;
            pool[n++] = r;
        }
    }
    fill(&b, seed, seed & 1);
    char what[64];
    (void)snprintf(what, sizeof what, "random kernel %llu", (unsigned long long)seed);
    compare(&b, what);
    kb_free(&b);
}

START_TEST(random_kernels) {
    SKIP_WITHOUT_MODULE;
    const char *from = getenv("TJ_SEED"), *count = getenv("TJ_COUNT");
    uint64_t s0 = from ? strtoull(from, NULL, 10) : 0, n = count              ? strtoull(count, NULL, 10)
                                                           : getenv("TJ_ALL") ? 300
                                                                              : 90;
    for (uint64_t s = s0; s < s0 + n; s++) {
        random_kernel(s);
    }
}
END_TEST

// ---- the module itself ----------------------------------------------------------------------------------------------

START_TEST(batches) {
    SKIP_WITHOUT_MODULE;
    enum { N = 12 };
    static struct kb b[N];
    struct tj_unit u[N];
    int64_t n = 100;
    for (int i = 0; i < N; i++) {
        kb_init(&b[i], TJ_K_POINTWISE, 1, 1, 1, &n);
        tj_kv x = kb_input(&b[i], TRACE_F32);
        x = kb_add(&b[i], TJ_OP_SIN, TRACE_F32, 0, 1, x);
        x = kb_add(&b[i], TJ_OP_ADD, TRACE_F32, 0, 2, x, kb_const(&b[i], TRACE_F32, i));
        (void)kb_output(&b[i], TRACE_F32, x);
        fill(&b[i], (uint64_t)i, false);
        u[i] = (struct tj_unit){.kind = TJ_UNIT_LOOP, .loop = &b[i].k};
        (void)snprintf(u[i].symbol, sizeof u[i].symbol, "kernel_%d", i);
    }
    struct tj_compile_result out;
    MUST(!module->compile(compilers[best], u, N, false, &out), "%s", out.error);
    MUST(!out.ir && !out.asm_text && out.codegen_ns > 0, "result fields");
    for (int i = 0; i < N; i++) {
        unsigned char *bufs[2] = {b[i].buf[0].p, b[i].buf[1].p};
        struct tj_kargs a = {.bufs = bufs, .ivals = b[i].ivals, .svals = b[i].svals, .helpers = helpers};
        tj_kernel_fn fn = NULL;
        *(void **)&fn = u[i].entry[0];
        fn(&a, 0, 1, 0, n);
        for (int64_t k = 0; k < n; k++) {
            float want = tj_sin_f32(((float *)(void *)bufs[0])[k]) + (float)i;
            MUST(same((unsigned char *)&want, bufs[1] + 4 * k, TRACE_F32), "kernel %d element %lld", i, (long long)k);
        }
        kb_free(&b[i]);
    }
    tj_exec_unmap(&out.code);
}
END_TEST

static bool refuse_seal;
static tj_status failing_seal(struct tj_exec *e) { return refuse_seal ? TRACE_ERR_UNAVAILABLE : tj_exec_seal(e); }
static int allocs_left;
static void *failing_alloc(size_t n) { return allocs_left-- > 0 ? malloc(n) : NULL; }

// Bad kernels and failing hosts are statuses, and the compiler goes on.
START_TEST(failures) {
    SKIP_WITHOUT_MODULE;
    struct tj_module_host h = host;
    h.exec_seal = failing_seal;
    h.alloc = failing_alloc;
    allocs_left = 1000;
    struct tj_cpu cpu;
    char err[256];
    tj_cpu_detect("", &cpu);
    void *c;
    MUST(!module->create(&h, &cpu, &c, err, sizeof err), "%s", err);
    int64_t n = 10;
    struct kb b;
    kb_init(&b, TJ_K_POINTWISE, 1, 1, 1, &n);
    (void)kb_output(&b, TRACE_F32, kb_add(&b, TJ_OP_EXP, TRACE_F32, 0, 1, kb_input(&b, TRACE_F32)));
    struct tj_unit u = {.kind = TJ_UNIT_LOOP, .loop = &b.k, .symbol = "k"};
    struct tj_compile_result out;
    refuse_seal = true;
    ck_assert_int_eq(module->compile(c, &u, 1, false, &out), TRACE_ERR_UNAVAILABLE);
    ck_assert(out.error[0] && !out.code.base);
    refuse_seal = false;
    bool done = false;
    for (int k = 0; !done && k < 100; k++) {
        allocs_left = k;
        tj_status st = module->compile(c, &u, 1, false, &out);
        ck_assert(st == TRACE_OK || st == TRACE_ERR_MEMORY);
        done = st == TRACE_OK;
    }
    ck_assert(done);
    tj_exec_unmap(&out.code);
    allocs_left = 1000;
    b.ins[1].in[0] = 2; // after its user
    ck_assert_int_eq(module->compile(c, &u, 1, false, &out), TRACE_ERR_COMPILE);
    ck_assert(strstr(out.error, "operand"));
    b.ins[1].in[0] = 0;
    ck_assert_int_eq(module->compile(c, &u, 1, false, &out), TRACE_OK);
    tj_exec_unmap(&out.code);
    module->destroy(c);
    kb_free(&b);
}
END_TEST

TJ_TEST_MAIN("emit", float_ops, bounds, int_ops, casts, tails, strides, turned, transposes, masks, in_place, checks,
             row_reductions, uncollapsed_reductions, column_reductions, split_reductions, softmax_rows, norms,
             random_kernels, batches, failures)
