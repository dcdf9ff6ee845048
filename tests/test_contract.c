// tests/test_contract.c: matmul, convolution, attention and row copies against plain loops: the exact chain bit for
// bit, a bound from double, any strides, any number of threads, with compiled tiles where the compiler module is built
// and with tiles in C everywhere.
#include "tj_test.h"

#include <unistd.h>

#include "../jit/module.h"
#include "../kernels/contract_impl.h"
#include "../lib/dl.h"
#include "../trace/math.h"

// An assertion for inner loops: libcheck's own writes to a pipe each time.
#define MUST(cond, ...)                                                                                                \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            ck_abort_msg(__VA_ARGS__);                                                                                 \
        }                                                                                                              \
    } while (0)

// ---- tiles ----------------------------------------------------------------------------------------------------------

static struct tj_gemm_tile descs[TJ_CONTRACT_TILES];
static enum tj_cpu_level level;

// Element n of row k of B.
#define B_AT(type)                                                                                                     \
    (d->flags & TJ_TILE_OFFSETS ? (const type *)(const void *)((const char *)g->b + g->offsets[k])                     \
                                : (const type *)g->b + k * nr)[n]
#define REF(type, fused, b_at)                                                                                         \
    for (int m = 0; m < d->mr; m++) {                                                                                  \
        type *c = (type *)((unsigned char *)g->c + m * g->ldc);                                                        \
        for (int n = 0; n < nr; n++) {                                                                                 \
            type acc = g->mode == TJ_TILE_CHAIN ? c[n] : 0;                                                            \
            for (int64_t k = 0; k < g->k; k++) {                                                                       \
                acc = fused(((const type *)g->a[m])[k], b_at, acc);                                                    \
            }                                                                                                          \
            c[n] = acc;                                                                                                \
        }                                                                                                              \
    }

static void reference_tile(const struct tj_gemm_args *g, const struct tj_gemm_tile *d) {
    int nr = d->nv * tj_gemm_width(level, d->dtype);
    MUST(g->mode != TJ_TILE_ADD, "a tile was asked to add");
    if (d->b == TRACE_F16) {
        REF(float, fmaf, tj_f16_to_f32(B_AT(uint16_t)))
    } else if (d->b == TRACE_BF16) {
        REF(float, fmaf, tj_bf16_to_f32(B_AT(uint16_t)))
    } else if (d->dtype == TRACE_F32) {
        REF(float, fmaf, B_AT(float))
    } else {
        REF(double, fma, B_AT(double))
    }
}
static void tile0(const struct tj_gemm_args *g) { reference_tile(g, &descs[0]); }
static void tile1(const struct tj_gemm_args *g) { reference_tile(g, &descs[1]); }
static void tile2(const struct tj_gemm_args *g) { reference_tile(g, &descs[2]); }
static void tile3(const struct tj_gemm_args *g) { reference_tile(g, &descs[3]); }

static const struct tj_module_api *module;
static void *compiler;
static struct tj_exec codes[256]; // of the compiled tiles
static size_t ncodes;
static struct {
    struct tj_gemm_tile d;
    const void *code;
} cached[256];
static size_t ncached;
static bool compiled; // the tiles of this pass come from the module

static const struct tj_module_host host = {tj_malloc,     tj_free,         tj_exec_reserve, tj_exec_seal,
                                           tj_exec_unmap, tj_thread_start, tj_stack_left};

static bool open_module(void) {
    char self[1024], err[512];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) {
        return false;
    }
    self[n] = '\0';
    *strrchr(self, '/') = '\0';
    const char *env = getenv("TRACEJIT_LLVM");
    void *lib = tj_dl_open(env ? env : "", "libtracejit-llvm.so", (const char *const[]){self, NULL}, err, sizeof err);
    void *sym = lib ? tj_dl_sym(lib, "tj_llvm_module") : NULL;
    if (!sym) {
        return false;
    }
    const struct tj_module_api *(*entry)(void);
    memcpy(&entry, &sym, sizeof entry);
    module = entry();
    return true;
}

static const void *compile_tile(const struct tj_gemm_tile *d) {
    for (size_t i = 0; i < ncached; i++) {
        if (!memcmp(&cached[i].d, d, sizeof *d)) {
            return cached[i].code;
        }
    }
    struct tj_unit u = {.kind = TJ_UNIT_GEMM, .gemm = *d};
    struct tj_compile_result r = {0};
    snprintf(u.symbol, sizeof u.symbol, "tile%zu", ncached);
    tj_status s = module->compile(compiler, &u, 1, false, &r);
    MUST(s == TRACE_OK, "tile %dx%d: %s", d->mr, d->nv, r.error);
    ck_assert_uint_lt(ncodes, TJ_COUNT(codes));
    codes[ncodes++] = r.code;
    ck_assert_uint_lt(ncached, TJ_COUNT(cached));
    cached[ncached].d = *d;
    cached[ncached].code = u.entry[0];
    return cached[ncached++].code;
}

static void bind(struct tj_contract *c) {
    static void (*const refs[])(const struct tj_gemm_args *) = {tile0, tile1, tile2, tile3};
    struct tj_gemm_tile t[TJ_CONTRACT_TILES];
    size_t n = tj_contract_tiles(c, t, TJ_CONTRACT_TILES);
    ck_assert_uint_le(n, TJ_CONTRACT_TILES);
    for (size_t i = 0; i < n; i++) {
        const void *code;
        descs[i] = t[i];
        if (compiled) {
            code = compile_tile(&t[i]);
        } else {
            memcpy(&code, &refs[i], sizeof code);
        }
        tj_contract_bind(c, i, code);
    }
}

// ---- tensors --------------------------------------------------------------------------------------------------------

static uint64_t seed = 1;
static double rnd(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)(seed >> 33) / (double)(1u << 30) - 1.0;
}
static int64_t pick(int64_t n) {
    rnd();
    return (int64_t)((seed >> 33) % (uint64_t)n);
}

struct tensor {
    struct tj_view v;
    void *block;
};
// A tensor whose dims lie in memory in the order `perm` (outermost first; NULL: as they are), with `pad` elements more
// between rows of the innermost dim. Filled with random numbers; what is around it with NaN.
static struct tensor make(tj_dtype d, int rank, const int64_t *dims, const int *perm, int64_t pad) {
    struct tensor t = {.v = {.dtype = (uint8_t)d, .rank = (uint8_t)rank}};
    int64_t n = 1, step = 1;
    for (int i = rank - 1; i >= 0; i--) {
        int p = perm ? perm[i] : i;
        t.v.dims[p] = dims[p];
        t.v.strides[p] = step;
        step *= dims[p] + (i == rank - 1 ? pad : 0);
    }
    n = step + 16;
    size_t size = tj_elem_bytes(d);
    t.block = tj_aligned_alloc((size_t)n * size);
    ck_assert_ptr_nonnull(t.block);
    t.v.p = (unsigned char *)t.block + 8 * size;
    for (int64_t i = 0; i < n; i++) {
        double x = rnd();
        switch (d) {
        case TRACE_F32: ((float *)t.block)[i] = (float)x; break;
        case TRACE_F64: ((double *)t.block)[i] = x; break;
        case TRACE_F16:
            ((uint16_t *)t.block)[i] = tj_f32_to_f16((float)x * (i % 7 ? 1 : 1e-5f));
            break; // subnormals too
        case TRACE_BF16: ((uint16_t *)t.block)[i] = tj_f32_to_bf16((float)x); break;
        case TRACE_I32: ((int32_t *)t.block)[i] = (int32_t)(x * 1e9); break;
        case TRACE_I64: ((int64_t *)t.block)[i] = (int64_t)(x * 1e18); break;
        default: ((uint8_t *)t.block)[i] = (uint8_t)(x > 0); break;
        }
    }
    return t;
}
static void drop(struct tensor *t) { tj_aligned_free(t->block); }

static int64_t at(const struct tj_view *v, const int64_t *i) {
    int64_t o = 0;
    for (int d = 0; d < v->rank; d++) {
        o += i[d] * v->strides[d];
    }
    return o;
}
static double get(const struct tj_view *v, const int64_t *i) {
    switch (v->dtype) {
    case TRACE_F32: return (double)((const float *)(void *)v->p)[at(v, i)];
    case TRACE_F64: return ((const double *)(void *)v->p)[at(v, i)];
    case TRACE_F16: return (double)tj_f16_to_f32(((const uint16_t *)(void *)v->p)[at(v, i)]);
    case TRACE_BF16: return (double)tj_bf16_to_f32(((const uint16_t *)(void *)v->p)[at(v, i)]);
    default: return v->p[at(v, i)];
    }
}

// ---- steps ----------------------------------------------------------------------------------------------------------

// A step of constants, made from views.
struct step {
    struct tj_step st;
    struct tj_exprs x;
    struct tj_ex_node nodes[256];
};
static tj_ex constant(struct step *s, int64_t v) {
    s->nodes[s->x.n] = (struct tj_ex_node){.op = TJ_EX_CONST, .value = v};
    return s->x.n++;
}
static void geom(struct step *s, struct tj_geom *g, const struct tj_view *v) {
    g->dtype = v->dtype;
    g->rank = v->rank;
    for (int d = 0; d < v->rank; d++) {
        g->dims[d] = constant(s, v->dims[d]);
        g->strides[d] = constant(s, v->strides[d]);
    }
}
static void step_init(struct step *s, int kind, const struct tj_contract_args *a) {
    memset(s, 0, sizeof *s);
    s->x.nodes = s->nodes;
    constant(s, 0);
    constant(s, 1);
    s->st.kind = (uint8_t)kind;
    geom(s, &s->st.out, &a->out);
    geom(s, &s->st.a, &a->a);
    geom(s, &s->st.b, &a->b);
    geom(s, &s->st.c, &a->c);
    geom(s, &s->st.d, &a->d);
}

static struct tj_pool *pools[4]; // kept for the process: one a test
static int *seen;                // times the epilogue saw an element
static int64_t seen_cols;
static bool whole_rows;
static _Atomic int busy[8];
static void note(void *arg, int slot, int64_t r0, int64_t r1, int64_t c0, int64_t c1) {
    (void)arg;
    MUST(!atomic_exchange(&busy[slot], 1), "two epilogues in slot %d", slot);
    if (whole_rows) {
        MUST(c0 == 0 && c1 == seen_cols, "part of a row");
    }
    for (int64_t r = r0; r < r1; r++) {
        for (int64_t c = c0; c < c1; c++) {
            seen[r * seen_cols + c]++;
        }
    }
    atomic_store(&busy[slot], 0);
}

// Runs a step with 1, 2 and 3 threads, packed or not, with an epilogue of either kind, and checks that all give the
// same bytes in a->out. The result of the first is left there.
static void run_all(struct step *s, struct tj_contract_args *a) {
    static const struct tj_cpu no_cpu;
    struct tj_cpu cpu = no_cpu;
    cpu.level = level;
    cpu.l2 = 512 * 1024;
    struct tj_contract *c;
    TJ_ASSERT_OK(tj_contract_create(&s->st, &s->x, &cpu, 3, &c));
    bind(c);
    const int r = a->out.rank;
    size_t elems = 1;
    int64_t span = 1;
    for (int d = 0; d < r; d++) {
        elems *= (size_t)a->out.dims[d];
        span += (a->out.dims[d] - 1) * a->out.strides[d];
    }
    size_t bytes = elems ? (size_t)span * tj_elem_bytes(a->out.dtype) : 0;
    unsigned char *first = malloc(bytes + 1);
    seen = calloc(elems + 1, sizeof *seen);
    ck_assert(first && seen);
    seen_cols = r ? a->out.dims[r - 1] : 1;
    void *packed = NULL;
    size_t pack = tj_contract_pack_bytes(c, &a->b);
    if (pack) {
        packed = tj_aligned_alloc(pack);
        tj_contract_pack(c, &a->b, packed);
    }
    bool contracts = s->st.kind != TJ_STEP_COPY && s->st.kind != TJ_STEP_INDEX_COPY;
    for (int variant = 0; variant < 12; variant++) {
        int threads = variant % 3 + 1;
        struct tj_contract_args b = *a;
        b.threads = threads;
        b.packed = variant & 1 ? packed : NULL;
        b.epilogue_rows_whole = whole_rows = variant >= 6;
        size_t ws;
        ck_assert(tj_contract_workspace(c, &b, &ws));
        b.workspace = tj_aligned_alloc(ws + 64);
        memset(b.workspace, 0xFF, ws + 64);
        if (threads > 1 && !pools[threads]) {
            pools[threads] = tj_pool_create(threads, NULL, NULL);
        }
        b.pool = pools[threads];
        b.epilogue = contracts ? note : NULL;
        memset(seen, 0, elems * sizeof *seen);
        tj_contract_run(c, &b);
        for (size_t i = 0; i < elems && contracts; i++) {
            MUST(seen[i] == 1, "element %zu went to the epilogue %d times", i, seen[i]);
        }
        for (int i = 0; i < 64; i++) {
            MUST(b.workspace[ws + (size_t)i] == 0xFF, "wrote past the workspace");
        }
        if (variant == 0) {
            memcpy(first, a->out.p, bytes);
        } else {
            MUST(!memcmp(first, a->out.p, bytes), "other bits with %d threads, variant %d", threads, variant);
        }
        tj_aligned_free(b.workspace);
    }
    tj_aligned_free(packed);
    free(first);
    free(seen);
    tj_contract_free(c);
}

// A view of f16 or bf16 as dense f32.
static struct tensor widened_copy(const struct tj_view *v) {
    struct tensor t = make(TRACE_F32, v->rank, v->dims, NULL, 0);
    int64_t n = tj_view_count(v, v->rank);
    for (int64_t i = 0; i < n; i++) {
        int64_t index[TJ_MAX_RANK], rest = i;
        for (int d = v->rank - 1; d >= 0; d--) {
            index[d] = rest % v->dims[d];
            rest /= v->dims[d];
        }
        ((float *)(void *)t.v.p)[i] = (float)get(v, index);
    }
    return t;
}

// What a step gave for operands a, b, c of 16 bits, it gives for their values in f32: the same bits.
static void same_as_wide(const struct step *s, const struct tj_contract_args *a) {
    const bool half = tj_is_half(a->a.dtype) || tj_is_half(a->b.dtype) || tj_is_half(a->c.dtype);
    if (tj_view_empty(&a->out) || !half) {
        return;
    }
    struct tensor w[3] = {widened_copy(&a->a), widened_copy(&a->b), widened_copy(&a->c)};
    struct tensor out = make(TRACE_F32, a->out.rank, a->out.dims, NULL, 0);
    struct tj_contract_args b = *a;
    struct step st;
    b.a = w[0].v;
    b.b = w[1].v;
    b.c = w[2].v;
    b.out = out.v;
    step_init(&st, s->st.kind, &b);
    st.st.causal = s->st.causal;
    st.st.has_mask = s->st.has_mask;
    st.st.gqa = s->st.gqa;
    run_all(&st, &b);
    struct tensor got = widened_copy(&a->out);
    MUST(!memcmp(got.v.p, out.v.p, (size_t)tj_view_count(&out.v, out.v.rank) * sizeof(float)),
         "other bits than those of the operands in f32");
    drop(&w[0]), drop(&w[1]), drop(&w[2]), drop(&out), drop(&got);
}

// A chain as the contract defines it.
struct chain {
    bool f32;
    int64_t k;
    double sum, acc; // of finished blocks; of this one
    bool any;
};
static void chain_add(struct chain *c, double a, double b) {
    if (c->k && c->k % TJ_KBLOCK == 0) {
        c->sum = !c->any ? c->acc : c->f32 ? (double)((float)c->sum + (float)c->acc) : c->sum + c->acc;
        c->any = true;
        c->acc = 0;
    }
    bool fused = level != TJ_CPU_PORTABLE || !compiled;
#if defined(__aarch64__)
    fused = true;
#endif
    if (c->f32) {
        float x = (float)a, y = (float)b, z = (float)c->acc, p = x * y;
        c->acc = (double)(fused ? fmaf(x, y, z) : p + z);
    } else {
        double p = a * b;
        c->acc = fused ? fma(a, b, c->acc) : p + c->acc;
    }
    c->k++;
}
static double chain_end(const struct chain *c, bool has_bias, double bias) {
    double r = !c->any ? c->acc : c->f32 ? (double)((float)c->sum + (float)c->acc) : c->sum + c->acc;
    if (has_bias) {
        r = c->f32 ? (double)((float)r + (float)bias) : r + bias;
    }
    return r;
}
static void expect(const struct tj_view *out, const int64_t *i, double want, const char *what) {
    double got = get(out, i);
    MUST(got == want, "%s [%d %d %d %d]: %.9g, not %.9g", what, (int)i[0], (int)i[1], (int)i[2], (int)i[3], got, want);
}

// Runs body with tiles in C at every level, and with compiled ones at the levels this machine has.
static void each_tile_kind(void (*body)(void)) {
    struct tj_cpu cpu;
    tj_cpu_detect("", &cpu);
    compiled = false;
    for (level = TJ_CPU_PORTABLE; level <= TJ_CPU_AVX512; level++) {
        // AVX2 code outside the tiles needs the processor.
        if (level == TJ_CPU_PORTABLE || cpu.level >= TJ_CPU_AVX2) {
            body();
        }
    }
    if (!module && !open_module()) {
        return;
    }
    for (level = TJ_CPU_PORTABLE; level <= cpu.level; level++) {
        char err[512];
        struct tj_cpu lower;
        tj_cpu_detect(tj_cpu_level_name(level), &lower);
        MUST(!module->create(&host, &lower, &compiler, err, sizeof err), "%s", err);
        compiled = true;
        body();
        compiled = false;
        module->destroy(compiler);
        for (ncached = 0; ncodes > 0;) {
            tj_exec_unmap(&codes[--ncodes]);
        }
    }
}

// ---- matmul ---------------------------------------------------------------------------------------------------------

struct mm {
    int64_t batch, m, n, k;
    int flags; // 1: a transposed, 2: b transposed, 4: bias, 8: b shared by the batches, 16: out transposed, 32: padded
               // rows
};

static tj_dtype wide(tj_dtype d) { return tj_is_half((uint8_t)d) ? TRACE_F32 : d; }

// a, b and the bias may be of any of the 16-bit dtypes and f32; results of f32 then.
static void matmul_mixed(tj_dtype da, tj_dtype db, tj_dtype dbias, struct mm s) {
    const tj_dtype d = wide(da);
    static const int swap[] = {0, 2, 1};
    struct tensor a = make(da, 3, (int64_t[]){s.batch, s.m, s.k}, s.flags & 1 ? swap : NULL, s.flags & 32 ? 5 : 0);
    struct tensor b =
        make(db, 3, (int64_t[]){s.flags & 8 ? 1 : s.batch, s.k, s.n}, s.flags & 2 ? swap : NULL, s.flags & 32 ? 3 : 0);
    struct tensor bias = make(dbias, 1, (int64_t[]){s.n}, NULL, 0);
    struct tensor out = make(d, 3, (int64_t[]){s.batch, s.m, s.n}, s.flags & 16 ? swap : NULL, s.flags & 32 ? 7 : 0);
    if (s.flags & 8) {
        b.v.dims[0] = s.batch;
        b.v.strides[0] = 0;
    }
    struct tj_contract_args args = {.out = out.v, .a = a.v, .b = b.v, .c = bias.v};
    struct step st;
    step_init(&st, TJ_STEP_MATMUL, &args);
    st.st.has_bias = s.flags & 4;
    run_all(&st, &args);
    char what[96];
    snprintf(what, sizeof what, "%dx%dx%dx%d %s %s %s flags %d", (int)s.batch, (int)s.m, (int)s.n, (int)s.k,
             tj_dtypes[da].name, tj_dtypes[db].name, tj_dtypes[dbias].name, s.flags);
    for (int64_t q = 0; q < s.batch; q++) {
        for (int64_t i = 0; i < s.m; i++) {
            for (int64_t j = 0; j < s.n; j++) {
                struct chain c = {.f32 = d == TRACE_F32};
                for (int64_t k = 0; k < s.k; k++) {
                    chain_add(&c, get(&a.v, (int64_t[]){q, i, k}), get(&b.v, (int64_t[]){q, k, j}));
                }
                int64_t at4[4] = {q, i, j, 0};
                expect(&out.v, at4, chain_end(&c, st.st.has_bias, get(&bias.v, (int64_t[]){j})), what);
            }
        }
    }
    drop(&a), drop(&b), drop(&bias), drop(&out);
}

static void matmul_case(tj_dtype d, struct mm s) { matmul_mixed(d, d, d, s); }

static void matmul_body(void) {
    static const struct mm cases[] = {
        {1, 1, 1, 1, 0},     {1, 1, 70, 33, 4},   {1, 2, 100, 17, 2},   {1, 3, 65, 20, 6}, {1, 4, 50, 31, 0},
        {1, 5, 16, 8, 1},    {1, 7, 9, 12, 4},    {1, 8, 75, 64, 2},    {1, 13, 23, 5, 3}, {1, 50, 33, 40, 36},
        {3, 6, 17, 10, 8},   {2, 20, 40, 7, 12},  {4, 5, 6, 7, 0},      {2, 9, 30, 11, 3}, {3, 11, 5, 9, 16},
        {1, 30, 20, 0, 4},   {1, 3, 20, 0, 0},    {1, 0, 5, 5, 0},      {1, 5, 0, 5, 0},   {0, 5, 5, 5, 0},
        {1, 9, 18, 1024, 0}, {1, 4, 30, 1025, 2}, {1, 7, 10, 2100, 4},  {5, 1, 40, 30, 8}, {1, 200, 70, 60, 0},
        {2, 130, 9, 33, 33}, {1, 64, 300, 70, 6}, {1, 17, 260, 600, 0},
    };
    for (size_t i = 0; i < TJ_COUNT(cases); i++) {
        matmul_case(TRACE_F32, cases[i]);
        if (i % 3 == 0) {
            matmul_case(TRACE_F64, cases[i]);
        }
    }
    for (int i = 0; i < 20; i++) {
        struct mm s = {1 + pick(3), 1 + pick(40), 1 + pick(80), pick(60), (int)pick(64)};
        matmul_case(TRACE_F32, s);
    }
}
START_TEST(matmul) { each_tile_kind(matmul_body); }
END_TEST

// f16, bf16 and f32 in all mixes: rows from 1 to 9, odd columns, tails of k, blocks of k, b as it is and transposed.
static void halves_body(void) {
    static const tj_dtype d[] = {TRACE_F32, TRACE_F16, TRACE_BF16};
    static const struct mm cases[] = {
        {1, 1, 131, 37, 0}, {1, 1, 67, 1030, 6}, {2, 3, 33, 19, 12},  {3, 2, 50, 8, 2},
        {1, 6, 40, 70, 5},  {1, 64, 49, 33, 38}, {2, 5, 17, 9, 32},   {1, 1, 9, 2, 3},
        {1, 4, 20, 0, 4},   {4, 1, 100, 31, 40}, {1, 3, 45, 2085, 0}, {1, 6, 20, 1500, 4},
    };
    for (int mix = 0; mix < 27; mix++) {
        tj_dtype a = d[mix % 3], b = d[mix / 3 % 3], bias = d[mix / 9];
        for (size_t i = (size_t)mix % 3; i < TJ_COUNT(cases); i += 3) {
            matmul_mixed(a, b, bias, cases[i]);
        }
    }
    for (int64_t m = 1; m <= 9; m++) {
        int64_t k = 7 + 3 * m;
        matmul_mixed(d[m % 3], d[1], d[2], (struct mm){1, m, 71, k, 4});
        matmul_mixed(d[m % 3], d[2], d[1], (struct mm){1, m, 71, k, 6});
    }
}
START_TEST(halves) { each_tile_kind(halves_body); }
END_TEST

START_TEST(refused) {
    struct tensor a = make(TRACE_I32, 2, (int64_t[]){7, 9}, NULL, 0),
                  b = make(TRACE_I32, 2, (int64_t[]){9, 11}, NULL, 0);
    struct tensor out = make(TRACE_I32, 2, (int64_t[]){7, 11}, NULL, 0);
    struct tj_contract_args args = {.out = out.v, .a = a.v, .b = b.v};
    struct step st;
    struct tj_cpu cpu;
    struct tj_contract *c;
    tj_cpu_detect("", &cpu);
    step_init(&st, TJ_STEP_MATMUL, &args);
    TJ_ASSERT_STATUS(tj_contract_create(&st.st, &st.x, &cpu, 1, &c), TRACE_ERR_COMPILE);
    ck_assert_ptr_null(c);
    drop(&a), drop(&b), drop(&out);
}
END_TEST

static bool no_memory(size_t bytes) {
    (void)bytes;
    return false;
}
START_TEST(no_memory_left) {
    struct tensor t = make(TRACE_F32, 2, (int64_t[]){2, 2}, NULL, 0);
    struct tj_contract_args args = {.out = t.v, .a = t.v, .b = t.v};
    struct step st;
    struct tj_cpu cpu;
    struct tj_contract *c;
    tj_cpu_detect("", &cpu);
    step_init(&st, TJ_STEP_MATMUL, &args);
    tj_alloc_hook = no_memory;
    tj_status s = tj_contract_create(&st.st, &st.x, &cpu, 1, &c);
    tj_alloc_hook = NULL;
    TJ_ASSERT_STATUS(s, TRACE_ERR_MEMORY);
    ck_assert_ptr_null(c);
    tj_contract_free(c);
    drop(&t);
}
END_TEST

// Sizes that were hints when the tiles were chosen and are others when it runs.
static void other_sizes_body(void) {
    static const int64_t hints[] = {1, 2, 4, 8, 64}, sizes[] = {1, 3, 10, 37};
    for (size_t h = 0; h < TJ_COUNT(hints); h++) {
        for (size_t z = 0; z < TJ_COUNT(sizes); z++) {
            int64_t m = sizes[z], n = 3 + sizes[z] * 2, k = sizes[z] + 5;
            struct tensor a = make(TRACE_F32, 2, (int64_t[]){m, k}, NULL, 0),
                          b = make(TRACE_F32, 2, (int64_t[]){k, n}, NULL, 0);
            struct tensor out = make(TRACE_F32, 2, (int64_t[]){m, n}, NULL, 0);
            struct tj_contract_args args = {.out = out.v, .a = a.v, .b = b.v}, hinted = args;
            hinted.out.dims[0] = hinted.a.dims[0] = hints[h];
            hinted.out.dims[1] = hinted.b.dims[1] = hints[h] * 3;
            struct step st;
            step_init(&st, TJ_STEP_MATMUL, &hinted);
            run_all(&st, &args);
            for (int64_t i = 0; i < m; i++) {
                for (int64_t j = 0; j < n; j++) {
                    struct chain c = {.f32 = true};
                    for (int64_t q = 0; q < k; q++) {
                        chain_add(&c, get(&a.v, (int64_t[]){i, q}), get(&b.v, (int64_t[]){q, j}));
                    }
                    expect(&out.v, (int64_t[]){i, j, 0, 0}, chain_end(&c, false, 0), "hinted");
                }
            }
            drop(&a), drop(&b), drop(&out);
        }
    }
}
START_TEST(other_sizes) { each_tile_kind(other_sizes_body); }
END_TEST

// ---- convolution ----------------------------------------------------------------------------------------------------

struct cv {
    int64_t n, c, h, w, o, kh, kw, stride[2], pad[2], dil[2], groups;
    int flags; // 1: bias, 2: channels last input, 4: weights permuted, 8: out permuted
};

static void conv_mixed(tj_dtype dx, tj_dtype dw, tj_dtype dbias, struct cv s) {
    const tj_dtype d = wide(dx);
    static const int last[] = {0, 2, 3, 1};
    int64_t oh = (s.h + 2 * s.pad[0] - s.dil[0] * (s.kh - 1) - 1) / s.stride[0] + 1;
    int64_t ow = (s.w + 2 * s.pad[1] - s.dil[1] * (s.kw - 1) - 1) / s.stride[1] + 1;
    struct tensor x = make(dx, 4, (int64_t[]){s.n, s.c, s.h, s.w}, s.flags & 2 ? last : NULL, 0);
    struct tensor w = make(dw, 4, (int64_t[]){s.o, s.c / s.groups, s.kh, s.kw}, s.flags & 4 ? last : NULL, 0);
    struct tensor bias = make(dbias, 1, (int64_t[]){s.o}, NULL, 0);
    struct tensor out = make(d, 4, (int64_t[]){s.n, s.o, oh, ow}, s.flags & 8 ? last : NULL, 0);
    struct tj_contract_args args = {.out = out.v, .a = x.v, .b = w.v, .c = bias.v};
    struct step st;
    step_init(&st, TJ_STEP_CONV2D, &args);
    st.st.has_bias = s.flags & 1;
    st.st.conv = (struct tj_attr_conv){
        s.flags & 1, {s.stride[0], s.stride[1]}, {s.pad[0], s.pad[1]}, {s.dil[0], s.dil[1]}, s.groups};
    run_all(&st, &args);
    char what[128];
    snprintf(what, sizeof what, "conv %dx%dx%dx%d o %d k %dx%d groups %d flags %d", (int)s.n, (int)s.c, (int)s.h,
             (int)s.w, (int)s.o, (int)s.kh, (int)s.kw, (int)s.groups, s.flags);
    int64_t ci = s.c / s.groups, co = s.o / s.groups;
    for (int64_t n = 0; n < s.n; n++) {
        for (int64_t o = 0; o < s.o; o++) {
            for (int64_t y = 0; y < oh; y++) {
                for (int64_t q = 0; q < ow; q++) {
                    struct chain c = {.f32 = d == TRACE_F32};
                    for (int64_t k = 0; k < ci * s.kh * s.kw; k++) {
                        int64_t ch = k / (s.kh * s.kw), ky = k / s.kw % s.kh, kx = k % s.kw;
                        int64_t iy = y * s.stride[0] + ky * s.dil[0] - s.pad[0],
                                ix = q * s.stride[1] + kx * s.dil[1] - s.pad[1];
                        bool in = iy >= 0 && iy < s.h && ix >= 0 && ix < s.w;
                        double xv = in ? get(&x.v, (int64_t[]){n, o / co * ci + ch, iy, ix}) : 0;
                        chain_add(&c, get(&w.v, (int64_t[]){o, ch, ky, kx}), xv);
                    }
                    int64_t i[] = {n, o, y, q};
                    expect(&out.v, i, chain_end(&c, s.flags & 1, get(&bias.v, (int64_t[]){o})), what);
                }
            }
        }
    }
    drop(&x), drop(&w), drop(&bias), drop(&out);
}

static void conv_case(tj_dtype d, struct cv s) { conv_mixed(d, d, d, s); }

static void conv_body(void) {
    static const tj_dtype mixes[][3] = {{TRACE_F16, TRACE_F16, TRACE_F16},
                                        {TRACE_BF16, TRACE_BF16, TRACE_BF16},
                                        {TRACE_F32, TRACE_F16, TRACE_BF16},
                                        {TRACE_BF16, TRACE_F32, TRACE_F32}};
    static const struct cv cases[] = {
        {1, 1, 5, 5, 1, 3, 3, {1, 1}, {0, 0}, {1, 1}, 1, 0},    {2, 3, 8, 8, 16, 3, 3, {1, 1}, {1, 1}, {1, 1}, 1, 1},
        {1, 8, 12, 10, 6, 1, 1, {1, 1}, {0, 0}, {1, 1}, 1, 1},  {1, 4, 20, 30, 7, 3, 3, {1, 1}, {0, 0}, {1, 1}, 1, 0},
        {1, 3, 17, 19, 8, 5, 3, {2, 2}, {2, 1}, {1, 1}, 1, 1},  {1, 6, 11, 9, 6, 3, 3, {1, 1}, {1, 1}, {1, 1}, 6, 1},
        {2, 4, 9, 13, 8, 3, 3, {2, 1}, {1, 2}, {2, 2}, 2, 0},   {1, 6, 30, 31, 12, 3, 3, {1, 1}, {1, 1}, {1, 1}, 3, 9},
        {1, 5, 7, 7, 4, 7, 7, {3, 3}, {3, 3}, {1, 1}, 1, 2},    {1, 3, 10, 10, 5, 2, 4, {3, 2}, {0, 1}, {2, 1}, 1, 4},
        {1, 2, 6, 6, 3, 3, 3, {1, 1}, {4, 4}, {1, 1}, 1, 1},    {1, 130, 5, 6, 9, 3, 3, {1, 1}, {1, 1}, {1, 1}, 1, 1},
        {1, 4, 40, 50, 24, 3, 3, {1, 1}, {1, 1}, {1, 1}, 1, 1}, {3, 4, 1, 1, 5, 1, 1, {1, 1}, {0, 0}, {1, 1}, 1, 0},
        {1, 3, 9, 9, 4, 3, 3, {2, 2}, {1, 1}, {3, 2}, 1, 6},    {0, 3, 9, 9, 4, 3, 3, {1, 1}, {1, 1}, {1, 1}, 1, 1},
    };
    for (size_t i = 0; i < TJ_COUNT(cases); i++) {
        conv_case(TRACE_F32, cases[i]);
        if (i % 4 == 1) {
            conv_case(TRACE_F64, cases[i]);
        }
        conv_mixed(mixes[i % 4][0], mixes[i % 4][1], mixes[i % 4][2], cases[i]);
    }
    for (int i = 0; i < 12; i++) {
        int64_t g = 1 + pick(3), kh = 1 + pick(4), kw = 1 + pick(4), dh = 1 + pick(2), dw = 1 + pick(2);
        struct cv s = {1 + pick(2),
                       g * (1 + pick(3)),
                       4 + kh * dh + pick(9),
                       4 + kw * dw + pick(30),
                       g * (1 + pick(9)),
                       kh,
                       kw,
                       {1 + pick(3), 1 + pick(3)},
                       {pick(3), pick(3)},
                       {dh, dw},
                       g,
                       (int)pick(16)};
        conv_case(TRACE_F32, s);
        conv_mixed(mixes[i % 4][0], mixes[i % 4][1], mixes[i % 4][2], s);
    }
}
START_TEST(conv2d) { each_tile_kind(conv_body); }
END_TEST

// ---- attention ------------------------------------------------------------------------------------------------------

struct at_case {
    int64_t b, hq, hkv, l, s, e, ev;
    int flags; // 1: causal, 2: bool mask, 4: float mask, 8: mask broadcast, 16: heads inside rows, 32: hide row 1
};

static void attention_mixed(tj_dtype dq, tj_dtype dk, tj_dtype dv, struct at_case s) {
    const tj_dtype d = wide(dq);
    static const int inside[] = {0, 2, 1, 3};
    const int *perm = s.flags & 16 ? inside : NULL;
    struct tensor q = make(dq, 4, (int64_t[]){s.b, s.hq, s.l, s.e}, perm, 0),
                  k = make(dk, 4, (int64_t[]){s.b, s.hkv, s.s, s.e}, perm, 0);
    struct tensor v = make(dv, 4, (int64_t[]){s.b, s.hkv, s.s, s.ev}, perm, 0),
                  out = make(d, 4, (int64_t[]){s.b, s.hq, s.l, s.ev}, perm, 0);
    bool small = s.flags & 8;
    tj_dtype md = s.flags & 2 ? TRACE_BOOL : d;
    struct tensor mask = make(md, 4, (int64_t[]){small ? 1 : s.b, small ? 1 : s.hq, s.l, s.s}, NULL, 0);
    if (small) {
        mask.v.dims[0] = s.b;
        mask.v.dims[1] = s.hq;
        mask.v.strides[0] = mask.v.strides[1] = 0;
    }
    if (s.flags & 32) {
        for (int64_t j = 0; j < s.s; j++) {
            mask.v.p[s.s + j] = 0;
        }
    }
    struct tj_contract_args args = {.out = out.v, .a = q.v, .b = k.v, .c = v.v, .d = mask.v, .scale = 0.35};
    struct step st;
    step_init(&st, TJ_STEP_SDPA, &args);
    st.st.causal = s.flags & 1;
    st.st.has_mask = (s.flags & 6) != 0;
    st.st.gqa = s.hq != s.hkv;
    run_all(&st, &args);
    same_as_wide(&st, &args);
    double *p = calloc((size_t)s.s + 1, sizeof *p);
    for (int64_t b = 0; b < s.b; b++) {
        for (int64_t h = 0; h < s.hq; h++) {
            for (int64_t i = 0; i < s.l; i++) {
                int64_t hk = h / (s.hq / s.hkv);
                double top = -INFINITY, sum = 0;
                for (int64_t j = 0; j < s.s; j++) {
                    p[j] = 0;
                    for (int64_t e = 0; e < s.e; e++) {
                        p[j] += get(&q.v, (int64_t[]){b, h, i, e}) * get(&k.v, (int64_t[]){b, hk, j, e});
                    }
                    p[j] *= 0.35;
                    double m = s.flags & 6 ? get(&mask.v, (int64_t[]){b, h, i, j}) : 0;
                    p[j] = s.flags & 2 ? (m != 0 ? p[j] : -INFINITY) : p[j] + m;
                    p[j] = s.flags & 1 && j > i ? -INFINITY : p[j];
                    top = fmax(top, p[j]);
                }
                for (int64_t j = 0; j < s.s; j++) {
                    p[j] = top == -INFINITY ? 0 : exp(p[j] - top);
                    sum += p[j];
                }
                for (int64_t e = 0; e < s.ev; e++) {
                    double want = 0, bound = 0;
                    for (int64_t j = 0; j < s.s && sum > 0; j++) {
                        double x = p[j] * get(&v.v, (int64_t[]){b, hk, j, e}) / sum;
                        want += x;
                        bound += fabs(x);
                    }
                    double got = get(&out.v, (int64_t[]){b, h, i, e});
                    double eps = d == TRACE_F32 ? 0x1p-23 : 0x1p-52;
                    MUST(fabs(got - want) <= (bound + 1e-3) * eps * (20 + 2 * (double)(s.e + s.s)),
                         "attention %dx%dx%dx%d flags %d at %d %d %d: %.9g, not %.9g", (int)s.b, (int)s.hq, (int)s.l,
                         (int)s.s, s.flags, (int)h, (int)i, (int)e, got, want);
                    MUST(sum > 0 || got == 0, "a row without keys is not 0");
                }
            }
        }
    }
    free(p);
    drop(&q), drop(&k), drop(&v), drop(&out), drop(&mask);
}

static void attention_case(tj_dtype d, struct at_case s) { attention_mixed(d, d, d, s); }

static void attention_body(void) {
    static const tj_dtype d[] = {TRACE_F16, TRACE_BF16, TRACE_F32};
    static const struct at_case cases[] = {
        {1, 1, 1, 1, 1, 1, 1, 0},      {1, 2, 2, 17, 17, 16, 16, 0},  {2, 4, 2, 9, 33, 8, 12, 0},
        {1, 3, 3, 40, 40, 20, 20, 1},  {1, 2, 1, 70, 50, 16, 8, 1},   {1, 2, 2, 20, 70, 9, 33, 1},
        {1, 4, 4, 30, 37, 16, 16, 2},  {1, 2, 2, 12, 19, 16, 16, 12}, {1, 2, 2, 12, 19, 16, 16, 5},
        {1, 1, 1, 12, 19, 16, 16, 34}, {2, 8, 2, 1, 45, 32, 32, 16},  {1, 2, 2, 25, 25, 16, 40, 17},
        {1, 1, 1, 5, 0, 8, 8, 0},      {1, 1, 1, 0, 5, 8, 8, 0},      {1, 1, 1, 3, 1500, 8, 8, 0},
        {2, 8, 4, 1, 50, 64, 80, 2},   {1, 2, 2, 4, 33, 24, 72, 1},   {1, 2, 1, 2, 40, 5, 7, 20},
        {1, 16, 16, 60, 60, 8, 8, 9},
    };
    for (size_t i = 0; i < TJ_COUNT(cases); i++) {
        attention_case(TRACE_F32, cases[i]);
        if (i % 3 == 0) {
            attention_case(TRACE_F64, cases[i]);
        }
        attention_mixed(d[i % 3], d[i % 2], d[i % 2], cases[i]);
        if (i % 3 == 1) {
            attention_mixed(TRACE_F32, d[i % 2], d[(i + 1) % 2], cases[i]);
        }
    }
}
START_TEST(attention) { each_tile_kind(attention_body); }
END_TEST

START_TEST(softmax_row) {
    enum { N = 77 };
    float x[N];
    for (int pass = 0; pass < 200; pass++) {
        double want[N], sum = 0, top = -INFINITY;
        for (int i = 0; i < N; i++) {
            x[i] = (float)(rnd() * (pass < 100 ? 5 : 120));
            top = fmax(top, (double)x[i]);
        }
        for (int i = 0; i < N; i++) {
            want[i] = exp((double)(x[i] - (float)top));
            sum += want[i];
        }
        struct tj_cpu cpu;
        tj_cpu_detect("", &cpu);
        float y[N], base[N];
        memcpy(y, x, sizeof x);
        memcpy(base, x, sizeof x);
        struct tj_softmax_row r = {.x = y, .n = N, .scale = 1}, r2 = {.x = base, .n = N, .scale = 1};
        float s = tj_softmax_f32(&r, cpu.level >= TJ_CPU_AVX2), s2 = tj_softmax_f32(&r2, false);
        ck_assert(s == s2 && !memcmp(y, base, sizeof y));
        ck_assert_double_lt(fabs((double)s - sum), sum * 1e-6);
        for (int i = 0; i < N; i++) {
            double err = want[i] < 0x1p-125 ? fabs((double)y[i] - want[i]) / 0x1p-126
                                            : fabs((double)y[i] - want[i]) / want[i] * 0x1p23;
            MUST(err < 2, "exp(%g): %g, not %g", (double)x[i] - top, (double)y[i], want[i]);
        }
    }
}
END_TEST

// Every f16 and bf16 there is, at both levels: runs, and the tail of one.
START_TEST(widened) {
    struct tj_cpu cpu;
    tj_cpu_detect("", &cpu);
    for (int pass = 0; pass < 4; pass++) {
        const bool fast = pass & 1;
        const tj_dtype d = pass & 2 ? TRACE_F16 : TRACE_BF16;
        if (fast && cpu.level < TJ_CPU_AVX2) {
            continue;
        }
        uint16_t in[37];
        float out[38];
        for (uint32_t first = 0; first < 65536; first += 37) {
            for (uint32_t i = 0; i < 37; i++) {
                in[i] = (uint16_t)(first + i);
            }
            out[37] = 5;
            tj_widen(out, in, 37, (uint8_t)d, fast);
            MUST(out[37] == 5, "one element more was written");
            for (uint32_t i = 0; i < 37; i++) {
                float want = d == TRACE_F16 ? tj_f16_to_f32(in[i]) : tj_bf16_to_f32(in[i]), got = out[i];
                MUST(!memcmp(&want, &got, sizeof want) || (want != want && got != got), "%s %04x: %.9g, not %.9g",
                     tj_dtypes[d].name, in[i], (double)got, (double)want);
            }
        }
    }
}
END_TEST

// ---- copies ---------------------------------------------------------------------------------------------------------

START_TEST(copies) {
    static const int perm[] = {2, 0, 1};
    struct tensor a = make(TRACE_F32, 3, (int64_t[]){4, 50, 130}, perm, 0),
                  out = make(TRACE_F32, 3, (int64_t[]){4, 50, 130}, NULL, 3);
    struct tj_contract_args args = {.out = out.v, .a = a.v};
    struct step st;
    step_init(&st, TJ_STEP_COPY, &args);
    run_all(&st, &args);
    for (int64_t i = 0; i < 4 * 50 * 130; i++) {
        int64_t at3[] = {i / 6500, i / 130 % 50, i % 130};
        MUST(get(&out.v, at3) == get(&a.v, at3), "copied wrong");
    }
    drop(&a), drop(&out);
}
END_TEST

START_TEST(index_copy) {
    struct tensor out = make(TRACE_F32, 3, (int64_t[]){3, 6, 5}, NULL, 0),
                  src = make(TRACE_F32, 3, (int64_t[]){3, 4, 5}, NULL, 0);
    struct tensor old = make(TRACE_F32, 3, (int64_t[]){3, 6, 5}, NULL, 0);
    memcpy(old.v.p, out.v.p, 90 * 4);
    int64_t index[] = {2, 5, 2, 6};
    struct tj_data_error err = {0};
    struct tj_contract_args args = {.out = out.v, .b = src.v, .err = &err, .node = 7};
    args.a = (struct tj_view){.p = (unsigned char *)index, .dtype = TRACE_I64, .rank = 1, .dims = {4}, .strides = {1}};
    struct step st;
    step_init(&st, TJ_STEP_INDEX_COPY, &args);
    st.st.dim = 1;
    run_all(&st, &args);
    ck_assert_uint_eq(err.set, 2);
    ck_assert_int_eq(err.index, 6);
    ck_assert_int_eq(err.extent, 6);
    ck_assert_uint_eq(err.node, 7);
    for (int64_t i = 0; i < 90; i++) {
        int64_t at3[] = {i / 30, i / 5 % 6, i % 5};
        int64_t from = at3[1] == 2 ? 2 : at3[1] == 5 ? 1 : -1; // the second index 2 wins
        double want = from < 0 ? get(&old.v, at3) : get(&src.v, (int64_t[]){at3[0], from, at3[2]});
        ck_assert(get(&out.v, at3) == want);
    }
    drop(&out), drop(&src), drop(&old);
}
END_TEST

START_TEST(overflow) {
    // Extents whose packed form can't be counted are refused when the workspace is sized.
    struct tj_contract_args args = {.threads = 2};
    args.out = (struct tj_view){.dtype = TRACE_F32, .rank = 2, .dims = {4000, INT64_C(1) << 40}, .strides = {0, 1}};
    args.a = (struct tj_view){.dtype = TRACE_F32, .rank = 2, .dims = {4000, INT64_C(1) << 40}, .strides = {0, 1}};
    args.b = (struct tj_view){
        .dtype = TRACE_F32, .rank = 2, .dims = {INT64_C(1) << 40, INT64_C(1) << 40}, .strides = {0, 0}};
    struct step st;
    step_init(&st, TJ_STEP_MATMUL, &args);
    struct tj_cpu cpu;
    tj_cpu_detect("", &cpu);
    struct tj_contract *c;
    TJ_ASSERT_OK(tj_contract_create(&st.st, &st.x, &cpu, 2, &c));
    size_t bytes;
    ck_assert(!tj_contract_workspace(c, &args, &bytes));
    tj_contract_free(c);
}
END_TEST

TJ_TEST_MAIN("contract", matmul, refused, no_memory_left, other_sizes, conv2d, attention, softmax_row, copies,
             index_copy, overflow, halves, widened)
