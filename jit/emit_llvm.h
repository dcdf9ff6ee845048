// jit/emit_llvm.h: what the files that emit LLVM IR share: the state of one module being built, and builder wrappers.
//
// A value is a scalar or a vector of lanes; wrappers that make constants or types take an example value (`like`) and
// give what fits it, so that the same code emits both. bool is i1, u8 is i8, f16 and bf16 values are float.
#ifndef TJ_JIT_EMIT_LLVM_H
#define TJ_JIT_EMIT_LLVM_H
#include <llvm-c/Core.h>
#include <llvm-c/TargetMachine.h>

#include "module.h"

typedef LLVMValueRef tj_lv;
typedef LLVMTypeRef tj_lt;
typedef LLVMBasicBlockRef tj_lb;

struct tj_emit {
    const struct tj_module_host *host;
    LLVMContextRef ctx;
    LLVMModuleRef module;
    LLVMBuilderRef b;  // where code goes
    LLVMBuilderRef eb; // entry block of the function being built: allocas and what holds for the whole call
    enum tj_cpu_level level;
    bool x86;
    bool fma;                  // the level has fused multiply-add as an instruction
    bool f16c;                 // ... and conversions of f16
    unsigned width;            // f32 lanes of a register
    LLVMAttributeRef attrs[8]; // of every function
    unsigned nattrs;
    const char *tune; // processor that code is scheduled for
    tj_lt i1, i8, i16, i32, i64, f32, f64, half, ptr, none;
    tj_lv fn;       // function being built
    tj_lv check_fn; // the module's function that records a data error, once needed
    char *err;      // text of a failure
    size_t cap;
};

// ---- types and constants ------------------------------------------------------------------------------------------

unsigned tj_e_lanes(tj_lv v); // 0: scalar
tj_lt tj_e_type(struct tj_emit *e, tj_lt elem, unsigned lanes);
tj_lt tj_e_as(struct tj_emit *e, tj_lv like, tj_lt elem); // elem with the lanes of `like`
tj_lt tj_e_value_type(struct tj_emit *e, uint8_t dtype);  // of a value in a register
tj_lt tj_e_memory_type(struct tj_emit *e, uint8_t dtype);
tj_lv tj_e_int(tj_lt t, int64_t v); // t: integer type or vector of it
tj_lv tj_e_float(tj_lt t, double v);
tj_lv tj_e_i64(struct tj_emit *e, int64_t v);
tj_lv tj_e_i32(struct tj_emit *e, int32_t v);
tj_lv tj_e_iota(struct tj_emit *e, tj_lt elem, unsigned lanes);
tj_lv tj_e_splat(LLVMBuilderRef b, tj_lv scalar, unsigned lanes); // lanes 0: the scalar itself

// ---- functions, blocks, loops -------------------------------------------------------------------------------------

tj_lv tj_e_function(struct tj_emit *e, const char *name, tj_lt type,
                    bool external);        // sets e->fn; the entry block is open
void tj_e_function_end(struct tj_emit *e); // after the return was built
// An internal function of the module, shared by its kernels: NULL and state saved when it is to be emitted now, up to
// tj_e_nested_end, else the function.
struct tj_nested {
    LLVMBuilderRef b, eb;
    tj_lv fn;
};
tj_lv tj_e_nested(struct tj_emit *e, struct tj_nested *n, const char *name, tj_lt type);
tj_lv tj_e_nested_end(struct tj_emit *e, struct tj_nested *n); // returns void; gives the function
tj_lv tj_e_invoke(struct tj_emit *e, tj_lv fn, tj_lv *args, unsigned n);
tj_lb tj_e_block(struct tj_emit *e, const char *name);
void tj_e_at(struct tj_emit *e, tj_lb block);
tj_lb tj_e_here(struct tj_emit *e);
tj_lv tj_e_alloca(struct tj_emit *e, tj_lt t, unsigned align, const char *name);
tj_lv tj_e_call(struct tj_emit *e, const char *intrinsic, tj_lt *over, unsigned nover, tj_lv *args, unsigned n);

// for (i = start; i < end; i += step), signed; nothing runs when start >= end.
struct tj_loop_state {
    tj_lb pre, head, exit;
    tj_lv i, end, step;
};
void tj_e_loop(struct tj_emit *e, struct tj_loop_state *l, tj_lv start, tj_lv end, tj_lv step, const char *name);
void tj_e_loop_end(struct tj_emit *e, struct tj_loop_state *l);
// if (c) { } [else { }]
struct tj_if_state {
    tj_lb then, other, exit;
    tj_lb from[2];
};
void tj_e_if(struct tj_emit *e, struct tj_if_state *s, tj_lv c, bool likely_set, bool likely);
void tj_e_else(struct tj_emit *e, struct tj_if_state *s);
void tj_e_end(struct tj_emit *e, struct tj_if_state *s);
tj_lv tj_e_phi2(struct tj_emit *e, struct tj_if_state *s, tj_lv a,
                tj_lv b); // right after tj_e_end: a from then, b from else

// ---- memory and lanes ---------------------------------------------------------------------------------------------

tj_lv tj_e_gep(struct tj_emit *e, tj_lt elem, tj_lv p, tj_lv i);
tj_lv tj_e_load(struct tj_emit *e, tj_lt t, tj_lv p, unsigned align);
void tj_e_store(struct tj_emit *e, tj_lv v, tj_lv p, unsigned align);
tj_lv tj_e_masked_load(struct tj_emit *e, tj_lt t, tj_lv p, unsigned align, tj_lv mask); // other lanes: 0
void tj_e_masked_store(struct tj_emit *e, tj_lv v, tj_lv p, unsigned align, tj_lv mask);
tj_lv tj_e_shuffle(struct tj_emit *e, tj_lv a, tj_lv b, const int *index, unsigned n);
tj_lv tj_e_any(struct tj_emit *e, tj_lv mask); // some lane set; a scalar is itself
tj_lv tj_e_all(struct tj_emit *e, tj_lv mask);

// ---- arithmetic ---------------------------------------------------------------------------------------------------

tj_lv tj_e_unary(struct tj_emit *e, const char *intrinsic, tj_lv x);
tj_lv tj_e_binary(struct tj_emit *e, const char *intrinsic, tj_lv x, tj_lv y);
tj_lv tj_e_fma(struct tj_emit *e, tj_lv a, tj_lv b, tj_lv c);
tj_lv tj_e_bits(struct tj_emit *e, tj_lv x);      // float lanes as integers of their size
tj_lv tj_e_unbits(struct tj_emit *e, tj_lv x);    // and back
tj_lv tj_e_half_from(struct tj_emit *e, tj_lv x); // f32 to the bits of f16 (i16), rounded
tj_lv tj_e_half_to(struct tj_emit *e, tj_lv bits);
tj_lv tj_e_bf16_from(struct tj_emit *e, tj_lv x);
tj_lv tj_e_bf16_to(struct tj_emit *e, tj_lv bits);

// math_llvm.c: the functions of trace/math.h, f32, operation by operation. NULL: not one of them.
tj_lv tj_e_math(struct tj_emit *e, unsigned op, tj_lv a, tj_lv b, tj_lv c);
// pointwise_llvm.c: value of a pointwise instruction from its operands (in: NULL where absent). args: struct tj_kargs.
tj_lv tj_e_pointwise(struct tj_emit *e, const struct tj_kernel *k, unsigned i, tj_lv const *in, tj_lv args);

tj_lv tj_e_extreme(struct tj_emit *e, tj_lv a, tj_lv b, bool max); // floats: tj_max, tj_min of trace/math.h

// loop_llvm.c: adds a loop kernel's functions (symbol, and symbol.2 for phase 2 of split kernels) to the module.
tj_status tj_emit_loop(struct tj_emit *e, const struct tj_kernel *k, const char *symbol);
// object_llvm.c: loads a relocatable object into sealed executable memory. `lookup` finds its symbols afterwards.
struct tj_object;
tj_status tj_object_load(const struct tj_module_host *host, const void *data, size_t n, struct tj_exec *out,
                         void *(*external)(const char *name), struct tj_object **symbols, char *err, size_t cap);
void *tj_object_lookup(const struct tj_object *o, const char *name);
void tj_object_symbols(const struct tj_module_host *host, const struct tj_object *o, struct tj_code_symbol **out,
                       size_t *n); // all functions, in one block; NULL: out of memory
void tj_object_free(const struct tj_module_host *host, struct tj_object *o);
#endif
