// tests/program_eval.h: runs a tj_program element by element in plain C, without any compiler.
#ifndef PROGRAM_EVAL_H
#define PROGRAM_EVAL_H
#include "../jit/program.h"
#include "../trace/backend.h"

// TRACE_OK, or an error with text: an access outside its buffer, an overflow, no memory. Kernels are verified first.
tj_status program_eval(const struct tj_program *p, const struct tj_run_args *args);
#endif
