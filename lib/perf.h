// lib/perf.h: generated code under its names for perf and GDB.
//
// perf reads /tmp/perf-PID.map, one line a function. GDB is told through the interface of its manual ("JIT Compilation
// Interface"): it puts a breakpoint on __jit_debug_register_code, and reads from __jit_debug_descriptor a list of
// object files in memory. It finds both names in the symbol table of each object, local symbols included; so each copy
// of the library in a process has its own, hidden, and stripping one of its symbols takes the names from GDB and
// nothing else.
#ifndef TJ_LIB_PERF_H
#define TJ_LIB_PERF_H
#include "execmem.h"

struct tj_code_symbol {
    const char *name;
    const void *at;
    size_t bytes;
};
// Tells both of the functions in `code`, whose unmapping takes them back from GDB. Names are cleaned of what a line or
// a demangler would trip over. False: out of memory, or the map can't be written; errno tells.
bool tj_perf_add(struct tj_exec *code, const struct tj_code_symbol *symbols, size_t n);
void tj_perf_remove(void *debug); // tj_exec_unmap does it
#endif
