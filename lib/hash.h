// lib/hash.h: 64-bit multiply-fold hash for in-memory tables. Never an identity: hits are confirmed.
#ifndef TJ_LIB_HASH_H
#define TJ_LIB_HASH_H
#include "base.h"

uint64_t tj_hash_bytes(const void *p, size_t n, uint64_t seed);
static inline uint64_t tj_hash_mix(uint64_t a, uint64_t b) {
    __uint128_t m = (__uint128_t)(a ^ 0x9E3779B97F4A7C15u) * (b ^ 0xD6E8FEB86659FD93u);
    return (uint64_t)m ^ (uint64_t)(m >> 64);
}
// Test hook: when true every table hash is a constant, so that only field compares tell entries apart.
extern bool tj_hash_collide;
#endif
