// lib/ceiling.h: what the machine can do at most, measured: copy bandwidth and multiply-adds.
#ifndef TJ_LIB_CEILING_H
#define TJ_LIB_CEILING_H
#include "cpu.h"
#include "threads.h"

enum { TJ_CEILING_SIZES = 4 };
// Figures are per nanosecond: GB/s, GFLOP/s. [0]: one thread, [1]: all threads of the pool.
struct tj_ceiling {
    int threads;
    uint64_t bytes[TJ_CEILING_SIZES]; // read and written by one copy; the last one is larger than the caches
    double copy[TJ_CEILING_SIZES][2]; // bytes read and written
    double fma[2];                    // f32 operations, a multiply-add counts two
};
// Takes some tens of milliseconds. False: out of memory.
bool tj_ceiling_measure(struct tj_pool *pool, const struct tj_cpu *cpu, struct tj_ceiling *out);
// Bandwidth for a kernel that moves so many bytes: that of the smallest measured copy at least as large.
double tj_ceiling_copy(const struct tj_ceiling *c, uint64_t bytes, bool all_threads);
#endif
