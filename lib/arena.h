// lib/arena.h: bump allocator for one compile; everything in it dies together.
#ifndef TJ_LIB_ARENA_H
#define TJ_LIB_ARENA_H
#include "base.h"

struct tj_arena {
    struct tj_arena_block *head; // newest block
    bool failed;                 // an allocation failed; checked once at the end of a phase
};
// Zeroed memory, 16-aligned; NULL on failure (and `failed` is set).
void *tj_arena_alloc(struct tj_arena *a, size_t bytes);
char *tj_arena_strdup(struct tj_arena *a, const char *s);
void tj_arena_free(struct tj_arena *a); // frees all blocks; the arena is usable again
#define TJ_ARENA_NEW(a, type, n) ((type *)tj_arena_alloc((a), sizeof(type) * (size_t)(n)))
#endif
