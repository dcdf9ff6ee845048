// jit/backend_cpu.c: the CPU backend: loads the compiler module and ties cache, plans and packed weights together.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "../kernels/transpose.h"
#include "../lib/dl.h"
#include "../lib/strbuf.h"
#include "cpu_backend.h"

#define MODULE "libtracejit-llvm.so"
#ifndef TJ_LLVM_DEFAULT_DIR
#define TJ_LLVM_DEFAULT_DIR ""
#endif

// Function pointers as data, as kernels load them. POSIX guarantees the representation.
#define HELPER(slot, f, type)                                                                                          \
    do {                                                                                                               \
        type fn_ = f;                                                                                                  \
        memcpy(&jit->helpers[slot], &fn_, sizeof(void *));                                                             \
    } while (0)
typedef double (*fn1)(double);
typedef double (*fn2)(double, double);
typedef float (*fn2f)(float, float);

static void fill_helpers(struct tj_jit *jit) {
    HELPER(TJ_H_FMODF, fmodf, fn2f);
    HELPER(TJ_H_FMOD, fmod, fn2);
    HELPER(TJ_H_POW, pow, fn2);
    HELPER(TJ_H_EXP, exp, fn1);
    HELPER(TJ_H_LOG, log, fn1);
    HELPER(TJ_H_SIN, sin, fn1);
    HELPER(TJ_H_COS, cos, fn1);
    HELPER(TJ_H_TANH, tanh, fn1);
    HELPER(TJ_H_ERF, erf, fn1);
    HELPER(TJ_H_LOG1P, log1p, fn1);
    for (unsigned i = 0; i < 4; i++) {
        HELPER(TJ_H_TURN + i, tj_transpose_for(jit->ctx->cpu.level, i, true), tj_transpose_fn);
        HELPER(TJ_H_TURN_ALL + i, tj_transpose_for(jit->ctx->cpu.level, i, false), tj_transpose_fn);
    }
}

static tj_status compile_units(void *user, struct tj_unit *units, size_t n, struct tj_compile_result *out) {
    struct tj_jit *jit = user;
    const struct tj_env *env = &jit->ctx->env;
    unsigned want = (env->dump[0] ? TJ_WANT_TEXT : 0) | (env->perf ? TJ_WANT_SYMBOLS : 0);
    tj_status s = tj_jit_compile(jit, units, n, want, out);
    if (!s && env->perf)
        tj_perf_tell(env, units, n, out);
    tj_free(out->symbols);
    out->symbols = NULL;
    unsigned serial = out->ir || out->asm_text ? atomic_fetch_add(&jit->dump_serial, 1) : 0;
    char name[64];
    if (out->ir) {
        (void)snprintf(name, sizeof name, "batch-%u.ll", serial);
        tj_dump(env, name, out->ir, strlen(out->ir));
        tj_free(out->ir);
    }
    if (out->asm_text) {
        (void)snprintf(name, sizeof name, "batch-%u.s", serial);
        tj_dump(env, name, out->asm_text, strlen(out->asm_text));
        tj_free(out->asm_text);
    }
    if (!s && tj_env_logs(env, TJ_LOG_KERNELS)) {
        for (size_t i = 0; i < n; i++) {
            if (units[i].kind == TJ_UNIT_LOOP)
                tj_log(env, TJ_LOG_KERNELS, "compiled kernel %s: %s, %u instructions", units[i].symbol,
                       units[i].loop->name ? units[i].loop->name : "?", units[i].loop->nins);
            else
                tj_log(env, TJ_LOG_KERNELS, "compiled tile %s: %u rows x %u vectors", units[i].symbol, units[i].gemm.mr,
                       units[i].gemm.nv);
        }
        tj_log(env, TJ_LOG_KERNELS, "compiled %zu kernels in %.2f ms", n,
               (double)(out->emit_ns + out->codegen_ns) / 1e6);
    }
    return s;
}

static const struct tj_module_host host = {tj_malloc,     tj_free,         tj_exec_reserve, tj_exec_seal,
                                           tj_exec_unmap, tj_thread_start, tj_stack_left};

// The host's memory of code, as calls out to the host.
static void *code_map(void *user, size_t bytes) {
    trace_context *ctx = user;
    struct tj_callout c;
    tj_callout_enter(&c);
    void *p = ctx->opt.code_map(ctx->opt.code_user, bytes);
    tj_callout_leave(&c);
    return p;
}

static int code_seal(void *user, void *p, size_t bytes) {
    trace_context *ctx = user;
    struct tj_callout c;
    tj_callout_enter(&c);
    int no = ctx->opt.code_seal(ctx->opt.code_user, p, bytes);
    tj_callout_leave(&c);
    return no;
}

static void code_unmap(void *user, void *p, size_t bytes) {
    trace_context *ctx = user;
    struct tj_callout c;
    tj_callout_enter(&c);
    ctx->opt.code_unmap(ctx->opt.code_user, p, bytes);
    tj_callout_leave(&c);
}

static void jit_free(struct tj_jit *jit) {
    tj_kcache_destroy(jit->kernels);
    if (jit->compiler)
        jit->api->destroy(jit->compiler);
    // A module that has worked stays mapped: LLVM's own statics are never freed, so closing it would lose them, and the
    // next context starts faster.
    if (jit->dl && !jit->api)
        tj_dl_close(jit->dl);
    tj_free(jit);
}

static tj_status cpu_create(trace_context *ctx, void **state) {
    char err[256] = "";
    *state = NULL;
    if (!ctx->opt.code_map && !tj_exec_allowed())
        return tj_fail(TRACE_ERR_UNAVAILABLE, "the system forbids executable memory; programs run in the interpreter");
    struct tj_jit *jit = tj_calloc(1, sizeof *jit);
    if (!jit)
        return tj_fail(TRACE_ERR_MEMORY, "out of memory for the compiler");
    jit->ctx = ctx;
    if (ctx->opt.code_map)
        jit->exec = (struct tj_exec_host){code_map, code_seal, code_unmap, ctx};
    fill_helpers(jit);
    static const char *const dirs[] = {TJ_LLVM_DEFAULT_DIR, NULL};
    jit->dl = tj_dl_open(ctx->env.llvm, MODULE, dirs[0][0] ? dirs : dirs + 1, err, sizeof err);
    void *sym = jit->dl ? tj_dl_sym(jit->dl, "tj_llvm_module") : NULL;
    const struct tj_module_api *(*get)(void);
    memcpy(&get, &sym, sizeof get);
    tj_status s = TRACE_OK;
    if (!jit->dl)
        s = tj_fail(TRACE_ERR_UNAVAILABLE,
                    "the compiler module " MODULE " did not load (%s); set TRACEJIT_LLVM to its path", err);
    else if (!sym)
        s = tj_fail(TRACE_ERR_UNAVAILABLE, MODULE " is not a tracejit compiler module");
    else if (!(jit->api = get()) || jit->api->abi != TJ_MODULE_ABI)
        s = tj_fail(TRACE_ERR_UNAVAILABLE, MODULE " is of another version: install both parts of one build");
    else if ((s = jit->api->create(&host, &ctx->cpu, &jit->compiler, err, sizeof err)))
        s = tj_fail(s, "the compiler did not start: %s", err);
    else if (!(jit->kernels = tj_kcache_create(compile_units, jit, ctx->opt.code_limit)))
        s = tj_fail(TRACE_ERR_MEMORY, "out of memory for the compiler");
    if (s) {
        jit_free(jit);
        return s;
    }
    *state = jit;
    return TRACE_OK;
}

static void cpu_destroy(void *state) {
    if (state)
        jit_free(state);
}

static void cpu_compiler_name(void *state, char *buf, size_t cap) {
    struct tj_jit *jit = state;
    (void)snprintf(buf, cap, "LLVM %s, %s", jit->api->llvm_version, tj_cpu_level_name(jit->ctx->cpu.level));
}

static size_t cpu_drop_idle(void *state, int kind) {
    struct tj_jit *jit = state;
    switch (kind) {
    case TJ_IDLE_WORKSPACES: return tj_plans_trim(jit);
    case TJ_IDLE_PACKED: tj_pack_trim(jit); return 0; // their memory is kept for the next
    default: return tj_kcache_trim(jit->kernels);
    }
}

static size_t cpu_idle(void *state) { return tj_plans_idle(state); }

const struct tj_backend tj_backend_cpu = {
    .name = "cpu",
    .create = cpu_create,
    .destroy = cpu_destroy,
    .compile = tj_plan_compile,
    .run = tj_plan_run,
    .serves = tj_plan_serves,
    .bind = tj_plan_bind,
    .bound_run = tj_bound_plan_run,
    .bound_release = tj_bound_plan_free,
    .release = tj_plan_release,
    .packed_free = tj_pack_free_all,
    .drop_idle = cpu_drop_idle,
    .idle = cpu_idle,
    .describe = tj_plan_describe,
    .report = tj_plan_report,
    .code = tj_plan_code,
    .extent = tj_plan_extent,
    .compiler_name = cpu_compiler_name,
};
