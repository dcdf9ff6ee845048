// lib/cpu.c: processor features and cache sizes.
#include "cpu.h"

#include <stdio.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

static const char *const level_names[] = {"portable", "avx2", "avx512"};

const char *tj_cpu_level_name(enum tj_cpu_level l) { return level_names[l]; }

#if defined(__x86_64__)
static uint64_t enabled_state(void) { // what the system saves at a switch: XCR0
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

static void features(struct tj_cpu *c) {
    unsigned a, b, cx, d, b7, c7, d7, a71, b71, c71, d71;
    if (!__get_cpuid(1, &a, &b, &cx, &d) || !(cx >> 27 & 1)) { // OSXSAVE
        return;
    }
    bool fma = cx >> 12 & 1, avx = cx >> 28 & 1, f16c = cx >> 29 & 1;
    uint64_t state = enabled_state();
    if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d7)) {
        return;
    }
    if (!((state & 6) == 6 && avx && fma && f16c && (b7 >> 5 & 1))) {
        return;
    }
    c->level = TJ_CPU_AVX2;
    const unsigned f_dq_bw_vl = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
    if ((state & 0xE6) == 0xE6 && (b7 & f_dq_bw_vl) == f_dq_bw_vl) {
        c->level = TJ_CPU_AVX512;
        c->vnni = c7 >> 11 & 1;
        c->avx512_bf16 = __get_cpuid_count(7, 1, &a71, &b71, &c71, &d71) && (a71 >> 5 & 1);
    }
}

static void model_name(char name[64]) {
    unsigned r[12];
    for (unsigned i = 0; i < 3; i++) {
        if (!__get_cpuid(0x80000002 + i, &r[4 * i], &r[4 * i + 1], &r[4 * i + 2], &r[4 * i + 3])) {
            return;
        }
    }
    char text[49] = {0};
    memcpy(text, r, 48);
    const char *p = text + strspn(text, " ");
    size_t n = strlen(p);
    while (n && p[n - 1] == ' ') {
        n--;
    }
    if (n) {
        snprintf(name, 64, "%.*s", (int)n, p);
    }
}
#else
static void features(struct tj_cpu *c) { (void)c; }
static void model_name(char name[64]) { (void)name; }
#endif

// Text of one small file, without the line end; false when it can't be read.
static bool read_word(const char *path, char *buf, size_t cap) {
    FILE *f = fopen(path, "re");
    if (!f) {
        return false;
    }
    bool ok = fgets(buf, (int)cap, f) != NULL;
    (void)fclose(f);
    if (ok) {
        buf[strcspn(buf, "\n")] = '\0';
    }
    return ok;
}

// The size of cpu0's data cache of a level, 0 when unknown.
static size_t cache_bytes(int level) {
    for (int i = 0; i < 8; i++) {
        char path[96], word[32];
        int lv = 0;
        unsigned long kib = 0;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/level", i);
        if (!read_word(path, word, sizeof word)) {
            break;
        }
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/type", i);
        if (sscanf(word, "%d", &lv) != 1 || lv != level || !read_word(path, word, sizeof word) || word[0] == 'I') {
            continue;
        }
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
        if (read_word(path, word, sizeof word) && sscanf(word, "%luK", &kib) == 1) {
            return (size_t)kib << 10;
        }
    }
    static const int names[] = {_SC_LEVEL1_DCACHE_SIZE, _SC_LEVEL2_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE};
    long n = sysconf(names[level - 1]);
    return n > 0 ? (size_t)n : 0;
}

void tj_cpu_detect(const char *level_name, struct tj_cpu *out) {
    *out = (struct tj_cpu){.level = TJ_CPU_PORTABLE, .name = "unknown"};
    features(out);
    model_name(out->name);
    out->l1 = cache_bytes(1);
    out->l2 = cache_bytes(2);
    out->l3 = cache_bytes(3);
    // Machines that tell nothing (some containers) get sizes every current processor has.
    out->l1 = out->l1 ? out->l1 : 32 << 10;
    out->l2 = out->l2 ? out->l2 : 512 << 10;
    out->l3 = out->l3 ? out->l3 : out->l2;
    for (int l = 0; level_name && l < (int)TJ_COUNT(level_names); l++) {
        if (!strcmp(level_name, level_names[l]) && l < (int)out->level) {
            out->level = (enum tj_cpu_level)l;
        }
    }
    if (out->level < TJ_CPU_AVX512) {
        out->avx512_bf16 = out->vnni = false;
    }
}
