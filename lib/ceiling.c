// lib/ceiling.c: the machine's measured ceilings: short loops, timed.
#include "ceiling.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

enum {
    CHAINS = 10, // independent, so that latency doesn't count
    TURNS = 12   // of every measurement
};

// ---- multiply-adds --------------------------------------------------------------------------

// `turns` multiply-adds of every chain; returns what can't be left out. Operations of a turn in *flops.
#if defined(__x86_64__)
__attribute__((target("avx512f"))) static float fma_avx512(uint64_t turns, double *flops) {
    __m512 a[CHAINS], m = _mm512_set1_ps(0.999f), p = _mm512_set1_ps(0.001f);
    for (int i = 0; i < CHAINS; i++) {
        a[i] = _mm512_set1_ps((float)i);
    }
    for (uint64_t t = 0; t < turns; t++) {
#pragma GCC unroll 10
        for (int i = 0; i < CHAINS; i++) {
            a[i] = _mm512_fmadd_ps(a[i], m, p);
        }
    }
    for (int i = 1; i < CHAINS; i++) {
        a[0] = _mm512_add_ps(a[0], a[i]);
    }
    *flops = 2.0 * 16 * CHAINS;
    return _mm512_reduce_add_ps(a[0]);
}
__attribute__((target("avx2,fma"))) static float fma_avx2(uint64_t turns, double *flops) {
    __m256 a[CHAINS], m = _mm256_set1_ps(0.999f), p = _mm256_set1_ps(0.001f);
    for (int i = 0; i < CHAINS; i++) {
        a[i] = _mm256_set1_ps((float)i);
    }
    for (uint64_t t = 0; t < turns; t++) {
#pragma GCC unroll 10
        for (int i = 0; i < CHAINS; i++) {
            a[i] = _mm256_fmadd_ps(a[i], m, p);
        }
    }
    for (int i = 1; i < CHAINS; i++) {
        a[0] = _mm256_add_ps(a[0], a[i]);
    }
    *flops = 2.0 * 8 * CHAINS;
    return _mm256_cvtss_f32(a[0]);
}
static float fma_portable(uint64_t turns, double *flops) {
    __m128 a[CHAINS], m = _mm_set1_ps(0.999f), p = _mm_set1_ps(0.001f);
    for (int i = 0; i < CHAINS; i++) {
        a[i] = _mm_set1_ps((float)i);
    }
    for (uint64_t t = 0; t < turns; t++) {
#pragma GCC unroll 10
        for (int i = 0; i < CHAINS; i++) {
            a[i] = _mm_add_ps(_mm_mul_ps(a[i], m), p);
        }
    }
    for (int i = 1; i < CHAINS; i++) {
        a[0] = _mm_add_ps(a[0], a[i]);
    }
    *flops = 2.0 * 4 * CHAINS;
    return _mm_cvtss_f32(a[0]);
}
static float multiply_add(enum tj_cpu_level level, uint64_t turns, double *flops) {
    return level == TJ_CPU_AVX512 ? fma_avx512(turns, flops)
           : level == TJ_CPU_AVX2 ? fma_avx2(turns, flops)
                                  : fma_portable(turns, flops);
}
#elif defined(__aarch64__)
static float multiply_add(enum tj_cpu_level level, uint64_t turns, double *flops) {
    (void)level;
    float32x4_t a[CHAINS], m = vdupq_n_f32(0.999f), p = vdupq_n_f32(0.001f);
    for (int i = 0; i < CHAINS; i++) {
        a[i] = vdupq_n_f32((float)i);
    }
    for (uint64_t t = 0; t < turns; t++) {
#pragma GCC unroll 10
        for (int i = 0; i < CHAINS; i++) {
            a[i] = vfmaq_f32(p, a[i], m);
        }
    }
    for (int i = 1; i < CHAINS; i++) {
        a[0] = vaddq_f32(a[0], a[i]);
    }
    *flops = 2.0 * 4 * CHAINS;
    return vgetq_lane_f32(a[0], 0);
}
#else
static float multiply_add(enum tj_cpu_level level, uint64_t turns, double *flops) {
    (void)level;
    float a[CHAINS];
    for (int i = 0; i < CHAINS; i++) {
        a[i] = (float)i;
    }
    for (uint64_t t = 0; t < turns; t++) {
        for (int i = 0; i < CHAINS; i++) {
            a[i] = a[i] * 0.999f + 0.001f;
        }
    }
    for (int i = 1; i < CHAINS; i++) {
        a[0] += a[i];
    }
    *flops = 2.0 * CHAINS;
    return a[0];
}
#endif

// ---- timing ---------------------------------------------------------------------------------

struct job {
    enum tj_cpu_level level;
    unsigned char *from, *to;
    size_t bytes;   // of one thread's copy
    uint64_t turns; // copies, or multiply-adds of a chain
    _Atomic float sink;
};

static void fma_task(void *arg, size_t i) {
    struct job *j = arg;
    double flops;
    (void)i;
    atomic_store_explicit(&j->sink, multiply_add(j->level, j->turns, &flops), memory_order_relaxed);
}

static void copy_task(void *arg, size_t i) {
    struct job *j = arg;
    unsigned char *to = j->to + i * j->bytes, *from = j->from + i * j->bytes;
    for (uint64_t t = 0; t < j->turns; t++) {
        memcpy(to, from, j->bytes);
        __asm__ volatile("" : : "r"(to), "r"(from) : "memory"); // every copy is made
    }
}

// Best time of a dozen: others may use the machine, too.
static uint64_t best_of(struct tj_pool *pool, size_t threads, int turns, tj_task task, struct job *j) {
    uint64_t best = UINT64_MAX;
    for (int k = 0; k < turns; k++) {
        uint64_t t0 = tj_now_ns();
        if (threads == 1) {
            task(j, 0);
        } else {
            tj_pool_run(pool, threads, task, j);
        }
        uint64_t t = tj_now_ns() - t0;
        best = t < best ? t : best;
    }
    return best ? best : 1;
}

bool tj_ceiling_measure(struct tj_pool *pool, const struct tj_cpu *cpu, struct tj_ceiling *out) {
    *out = (struct tj_ceiling){.threads = tj_pool_threads(pool)};
    if (out->threads < 1) {
        out->threads = 1;
    }
    // The largest copy is half of it in each buffer, twice the last cache in all.
    size_t half = cpu->l3 > (size_t)8 << 20 ? cpu->l3 : (size_t)8 << 20;
    half = half > (size_t)32 << 20 ? (size_t)32 << 20 : half;
    size_t l1 = cpu->l1 ? cpu->l1 : (size_t)32 << 10, l2 = cpu->l2 ? cpu->l2 : (size_t)512 << 10;
    size_t sizes[TJ_CEILING_SIZES] = {l1 / 4, l2 / 4, 0, half}; // of one buffer
    sizes[2] = l2 * 2 > half / 4 ? half / 4 : l2 * 2;
    struct job j = {.level = cpu->level, .from = tj_aligned_alloc(half), .to = tj_aligned_alloc(half)};
    bool ok = j.from && j.to;
    if (ok) {
        memset(j.from, 1, half);
        memset(j.to, 1, half);
    }
    for (int s = 0; ok && s < TJ_CEILING_SIZES; s++) {
        out->bytes[s] = 2 * (uint64_t)sizes[s];
        for (int all = 0; all < 2; all++) {
            size_t n = all ? (size_t)out->threads : 1;
            // Each thread has a part of the buffers: what the caches hold is what they hold of one kernel's data.
            j.bytes = sizes[s] / n & ~(size_t)63;
            if (!j.bytes) {
                out->copy[s][all] = out->copy[s][0];
                continue;
            }
            j.turns = ((size_t)1 << 20) / sizes[s] + 1;
            if (s < TJ_CEILING_SIZES - 1 && n > 1) {
                j.turns *= 4; // starting threads shouldn't count
            }
            uint64_t ns = best_of(pool, n, s == TJ_CEILING_SIZES - 1 ? 2 : TURNS, copy_task, &j);
            out->copy[s][all] = 2.0 * (double)j.bytes * (double)n * (double)j.turns / (double)ns;
        }
        if (out->copy[s][1] < out->copy[s][0]) { // one thread is among all
            out->copy[s][1] = out->copy[s][0];
        }
    }
    tj_aligned_free(j.from);
    tj_aligned_free(j.to);
    for (int all = 0; ok && all < 2; all++) {
        double flops = 0;
        size_t n = all ? (size_t)out->threads : 1;
        j.turns = all ? 20000 : 10000;
        (void)multiply_add(j.level, 1, &flops);
        uint64_t ns = best_of(pool, n, TURNS, fma_task, &j);
        out->fma[all] = flops * (double)j.turns * (double)n / (double)ns;
    }
    if (out->fma[1] < out->fma[0]) {
        out->fma[1] = out->fma[0];
    }
    return ok;
}

double tj_ceiling_copy(const struct tj_ceiling *c, uint64_t bytes, bool all_threads) {
    int s = 0;
    while (s < TJ_CEILING_SIZES - 1 && bytes > c->bytes[s]) {
        s++;
    }
    return c->copy[s][all_threads];
}
