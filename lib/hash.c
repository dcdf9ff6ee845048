// lib/hash.c: multiply-fold hash, 16 bytes a step.
#include "hash.h"

bool tj_hash_collide;

static uint64_t load(const unsigned char *p, size_t n) {
    uint64_t v = 0;
    memcpy(&v, p, n);
    return v;
}

uint64_t tj_hash_bytes(const void *data, size_t n, uint64_t seed) {
    if (TJ_UNLIKELY(tj_hash_collide)) {
        return 0;
    }
    const unsigned char *p = data;
    uint64_t h = tj_hash_mix(seed, n);
    for (; n >= 16; n -= 16, p += 16) {
        h = tj_hash_mix(load(p, 8) ^ h, load(p + 8, 8));
    }
    if (n) {
        uint64_t a = load(p, n < 8 ? n : 8);
        h = tj_hash_mix(a ^ h, n > 8 ? load(p + 8, n - 8) : 0);
    }
    return h;
}
