// jit/module.h: the table through which the library talks to its private compiler module (libtracejit-llvm.so).
//
// The module contains LLVM and every *_llvm.c file. It is loaded at the first compile and exports one function,
// tj_llvm_module. It calls nothing of the library but what tj_module_host gives it, takes no signal handler, runs
// nothing when the process ends, reads no environment, and turns LLVM's fatal errors into TRACE_ERR_COMPILE.
#ifndef TJ_JIT_MODULE_H
#define TJ_JIT_MODULE_H
#include "../lib/cpu.h"
#include "../lib/perf.h"
#include "../lib/threads.h"
#include "kernel.h"

#define TJ_MODULE_ABI 4
// One thing to compile. The batch of a plan goes into one LLVM module.
enum tj_unit_kind { TJ_UNIT_LOOP, TJ_UNIT_GEMM };
// f32/f64 micro-kernel: C[m, n] (+)= sum over k of A[m*lda + k*ska] * B[k*nr + n], one fma chain over ascending k an
// element. B is packed in panels of nr columns, in f16 or bf16 where b says so. See kernels/gemm.h for the tile
// contract.
struct tj_gemm_tile {
    uint8_t dtype;    // TRACE_F32, TRACE_F64
    uint8_t b;        // of B: dtype; with F32 also TRACE_F16, TRACE_BF16
    uint8_t mr, nv;   // rows; vectors of the level's width a row (nr = nv * width)
    uint8_t a_packed; // A comes in panels of mr rows (A[k*mr + m]) instead of rows lda apart
    uint8_t flags;    // kernels/gemm.h's
};
struct tj_unit {
    enum tj_unit_kind kind;
    const struct tj_kernel *loop;
    struct tj_gemm_tile gemm;
    char symbol[64];   // unique in the batch: chosen by the caller
    const char *label; // name for people, up to TJ_LABEL bytes; NULL when nobody asks for it
    void *entry[2];    // out: code addresses (entry[1]: phase 2 of split kernels)
};
struct tj_compile_result {
    struct tj_exec code; // holds all units; unmapped by whoever owns the batch
    uint64_t emit_ns, codegen_ns;
    char error[512];                // on failure
    char *ir, *asm_text;            // when asked for (malloc'ed by host->alloc), else NULL
    struct tj_code_symbol *symbols; // when asked for: all functions, one block by host->alloc; NULL: none
    size_t nsymbols;
};
enum { TJ_LABEL = 192 };
enum { TJ_WANT_TEXT = 1, TJ_WANT_SYMBOLS = 2 };
struct tj_module_host { // what the module may call
    void *(*alloc)(size_t);
    void (*free)(void *);
    tj_status (*exec_reserve)(size_t n, struct tj_exec *out);
    tj_status (*exec_seal)(struct tj_exec *e);
    void (*exec_unmap)(struct tj_exec *e);
    int (*thread_start)(pthread_t *t, size_t stack, bool faults, void *(*f)(void *), void *arg);
    size_t (*stack_left)(void);
};
struct tj_module_api {
    uint32_t abi;
    const char *llvm_version; // "22.1.8"
    // A compiler for one feature level; thread-safe: compiles are serialised inside. On failure a message in err.
    // TRACE_ERR_BUSY, also of compile: no thread can be started now, and the caller's stack is too small.
    tj_status (*create)(const struct tj_module_host *host, const struct tj_cpu *cpu, void **compiler, char *err,
                        size_t cap);
    void (*destroy)(void *compiler);
    tj_status (*compile)(void *compiler, struct tj_unit *units, size_t n, unsigned want, struct tj_compile_result *out);
};
const struct tj_module_api *tj_llvm_module(void); // the module's only exported symbol
#endif
