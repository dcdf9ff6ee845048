// jit/memplan.c: offsets of temporary buffers in a plan's arena.
//
// Best placement is a packing problem; largest-first with the lowest offset that fits is within a few percent of it on
// the graphs of networks. Plain loops find that offset among few buffers. Among many, a tree over time holds what is
// occupied: each of its nodes stands for a stretch of steps and has two sets of intervals, of the buffers that are
// alive all over the stretch, and of those that are alive anywhere in it. The steps of a buffer's life are a few whole
// stretches; what it may not touch is in the first sets above those, and in their own second ones.
#include "cpu_backend.h"

enum { FEW = 64 };

static size_t rounded(size_t bytes) { return (bytes + TJ_ALIGN - 1) & ~(size_t)(TJ_ALIGN - 1); }

struct stretch {
    size_t low, high;
};
struct space { // intervals apart from each other, rising
    struct stretch *at;
    uint32_t n, cap;
};
struct tree {
    uint32_t leaves;               // steps, rounded up to a power of two
    struct space *all, *any;       // by node: 1 is the root, 2i and 2i + 1 are the halves of i
    const struct space *sets[192]; // that the buffer at hand may not touch
    uint32_t nsets;
};

// The first interval that ends behind `from`.
static uint32_t behind(const struct space *s, size_t from) {
    uint32_t low = 0, high = s->n;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (s->at[mid].high > from)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

static bool occupy(struct space *s, size_t low, size_t high) {
    uint32_t i = low ? behind(s, low - 1) : 0, end = i; // those that touch it become one with it
    while (end < s->n && s->at[end].low <= high) {
        low = s->at[end].low < low ? s->at[end].low : low;
        high = s->at[end].high > high ? s->at[end].high : high;
        end++;
    }
    if (i == end && !tj_grow((void **)&s->at, &s->cap, s->n + 1, sizeof *s->at))
        return false;
    if (i == end || end - i > 1)
        memmove(&s->at[i + 1], &s->at[end], (s->n - end) * sizeof *s->at);
    s->n = s->n + 1 - (end - i);
    s->at[i] = (struct stretch){low, high};
    return true;
}

// Sets that a buffer alive in [first, last] has to look at. node stands for [low, low + size).
static void gather(struct tree *t, uint32_t node, uint32_t low, uint32_t size, uint32_t first, uint32_t last) {
    if (last < low || first >= low + size)
        return;
    bool whole = first <= low && low + size - 1 <= last;
    const struct space *s = whole ? &t->any[node] : &t->all[node];
    if (s->n)
        t->sets[t->nsets++] = s;
    if (whole)
        return;
    gather(t, 2 * node, low, size / 2, first, last);
    gather(t, 2 * node + 1, low + size / 2, size / 2, first, last);
}

static bool put(struct tree *t, uint32_t node, uint32_t low, uint32_t size, uint32_t first, uint32_t last, size_t from,
                size_t to) {
    if (last < low || first >= low + size)
        return true;
    if (!occupy(&t->any[node], from, to))
        return false;
    if (first <= low && low + size - 1 <= last)
        return occupy(&t->all[node], from, to);
    return put(t, 2 * node, low, size / 2, first, last, from, to) &&
           put(t, 2 * node + 1, low + size / 2, size / 2, first, last, from, to);
}

static bool tree_open(struct tree *t, size_t n, const uint32_t *last) {
    uint32_t end = 0;
    for (size_t i = 0; i < n; i++)
        end = last[i] > end ? last[i] : end;
    t->nsets = 0;
    for (t->leaves = 1; t->leaves <= end; t->leaves *= 2)
        if (t->leaves > UINT32_MAX / 8)
            return false;
    t->all = tj_calloc(4 * (size_t)t->leaves, sizeof *t->all);
    t->any = t->all ? t->all + 2 * (size_t)t->leaves : NULL;
    return t->all != NULL;
}

static void tree_close(struct tree *t) {
    for (size_t i = 0; t->all && i < 4 * (size_t)t->leaves; i++)
        tj_free(t->all[i].at);
    tj_free(t->all);
}

static size_t lowest(const struct tree *t, size_t size) {
    size_t at = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t k = 0; k < t->nsets; k++) {
            const struct space *s = t->sets[k];
            for (uint32_t i = behind(s, at); i < s->n && s->at[i].low < at + size; i++) {
                at = s->at[i].high;
                moved = true;
            }
        }
    }
    return at;
}

// The same by looking at each buffer placed before the k-th.
static size_t lowest_of(uint32_t k, const uint32_t *order, const size_t *bytes, const uint32_t *first,
                        const uint32_t *last, const size_t *offset) {
    uint32_t b = order[k];
    size_t size = rounded(bytes[b]), at = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t j = 0; j < k; j++) {
            uint32_t o = order[j];
            if (last[o] < first[b] || last[b] < first[o])
                continue;
            size_t end = offset[o] + rounded(bytes[o]);
            if (at < end && offset[o] < at + size) {
                at = end;
                moved = true;
            }
        }
    }
    return at;
}

// By falling size; stable, so that equal plans place equally.
static void sort_sizes(uint32_t *order, uint32_t n, const size_t *bytes, uint32_t *spare) {
    for (uint32_t i = 0; i < n; i++)
        order[i] = i;
    if (!spare) {
        for (uint32_t i = 1; i < n; i++) {
            uint32_t b = order[i], j = i;
            for (; j > 0 && bytes[order[j - 1]] < bytes[b]; j--)
                order[j] = order[j - 1];
            order[j] = b;
        }
        return;
    }
    for (uint32_t run = 1; run < n; run *= 2) {
        for (uint32_t at = 0; at < n; at += 2 * run) {
            uint32_t mid = n - at < run ? n : at + run, end = n - at < 2 * run ? n : at + 2 * run, a = at, b = mid;
            for (uint32_t i = at; i < end; i++)
                spare[i] = b == end || (a < mid && bytes[order[a]] >= bytes[order[b]]) ? order[a++] : order[b++];
        }
        memcpy(order, spare, n * sizeof *order);
    }
}

bool tj_memplan(size_t n, const size_t *bytes, const uint32_t *first, const uint32_t *last, size_t *offset,
                size_t *total, uint32_t *scratch) {
    struct tree t = {.all = NULL};
    uint32_t *spare = n > FEW ? tj_malloc(n * sizeof *spare) : NULL;
    bool many = n > FEW && tree_open(&t, n, last), ok = true;
    *total = 0;
    sort_sizes(scratch, (uint32_t)n, bytes, spare);
    for (uint32_t k = 0; k < n && ok; k++) {
        uint32_t b = scratch[k];
        offset[b] = 0;
        if (!bytes[b])
            continue; // and all that follow
        if (bytes[b] > SIZE_MAX / 2) {
            ok = false;
            break;
        }
        size_t size = rounded(bytes[b]);
        if (many) {
            t.nsets = 0;
            gather(&t, 1, 0, t.leaves, first[b], last[b]);
            offset[b] = lowest(&t, size);
        } else {
            offset[b] = lowest_of(k, scratch, bytes, first, last, offset);
        }
        ok = offset[b] <= SIZE_MAX / 2 - size;
        if (ok && offset[b] + size > *total)
            *total = offset[b] + size;
        // Without memory for the tree the loops go on from here.
        many = many && ok && put(&t, 1, 0, t.leaves, first[b], last[b], offset[b], offset[b] + size);
    }
    tree_close(&t);
    tj_free(spare);
    return ok;
}
