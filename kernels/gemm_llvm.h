// kernels/gemm_llvm.h: emission of matmul tiles into an LLVM module.
#ifndef TJ_KERNELS_GEMM_LLVM_H
#define TJ_KERNELS_GEMM_LLVM_H
#include <llvm-c/Core.h>

#include "gemm.h"

// Adds the function `symbol`, void(ptr to struct tj_gemm_args), to the module. Returns it, or NULL and a text in err
// for a descriptor that makes no sense.
LLVMValueRef tj_emit_gemm(LLVMModuleRef module, const struct tj_gemm_tile *tile, enum tj_cpu_level level,
                          const char *symbol, char *err, size_t cap);
#endif
