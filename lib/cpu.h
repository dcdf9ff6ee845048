// lib/cpu.h: processor features and cache sizes, read once.
#ifndef TJ_LIB_CPU_H
#define TJ_LIB_CPU_H
#include "base.h"

enum tj_cpu_level { TJ_CPU_PORTABLE, TJ_CPU_AVX2, TJ_CPU_AVX512 }; // AVX2 = AVX2+FMA+F16C; AVX512 = F+BW+DQ+VL too
struct tj_cpu {
    enum tj_cpu_level level; // best the machine has, lowered by TRACEJIT_CPU
    bool avx512_bf16, vnni;
    size_t l1, l2, l3; // bytes of data cache one core sees
    char name[64];     // model name
};
// level_name: "" = best; "portable", "avx2", "avx512" = force (never above what the machine has).
void tj_cpu_detect(const char *level_name, struct tj_cpu *out);
const char *tj_cpu_level_name(enum tj_cpu_level l);
#endif
