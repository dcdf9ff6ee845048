// lib/arena.c: bump allocator. Blocks come zeroed from calloc and are never reused, so neither is cleared again.
#include "arena.h"

enum { FIRST_BLOCK = 16 << 10, LAST_BLOCK = 1 << 20 };

struct tj_arena_block {
    struct tj_arena_block *next; // older block
    size_t used, cap;            // bytes of data
    _Alignas(16) char data[];
};

void *tj_arena_alloc(struct tj_arena *a, size_t bytes) {
    if (bytes > PTRDIFF_MAX / 2) {
        a->failed = true;
        return NULL;
    }
    bytes = (bytes + 15) & ~(size_t)15;
    struct tj_arena_block *b = a->head;
    if (!b || bytes > b->cap - b->used) {
        size_t cap = !b ? FIRST_BLOCK : b->cap < LAST_BLOCK / 2 ? b->cap * 2 : LAST_BLOCK;
        if (cap < bytes) {
            cap = bytes;
        }
        struct tj_arena_block *fresh = tj_calloc(1, sizeof *fresh + cap);
        if (!fresh) {
            a->failed = true;
            return NULL;
        }
        fresh->cap = cap;
        // The older block keeps its place in front when it has more room left than the new one will have.
        if (b && cap - bytes < b->cap - b->used) {
            fresh->used = bytes;
            fresh->next = b->next;
            b->next = fresh;
            return fresh->data;
        }
        fresh->next = b;
        a->head = b = fresh;
    }
    void *p = b->data + b->used;
    b->used += bytes;
    return p;
}

char *tj_arena_strdup(struct tj_arena *a, const char *s) {
    size_t n = strlen(s) + 1;
    char *copy = tj_arena_alloc(a, n);
    return copy ? memcpy(copy, s, n) : NULL;
}

void tj_arena_free(struct tj_arena *a) {
    for (struct tj_arena_block *b = a->head, *next; b; b = next) {
        next = b->next;
        tj_free(b);
    }
    *a = (struct tj_arena){0};
}
