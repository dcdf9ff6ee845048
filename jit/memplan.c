// jit/memplan.c: offsets of temporary buffers in a plan's arena.
#include "cpu_backend.h"

// Best placement is a packing problem; largest-first with the lowest offset that fits is within a few percent of it on
// the graphs of networks, and n is small. `scratch` holds the order of placement.
bool tj_memplan(size_t n, const size_t *bytes, const uint32_t *first, const uint32_t *last, size_t *offset,
                size_t *total, uint32_t *scratch) {
    *total = 0;
    for (size_t i = 0; i < n; i++) { // insertion sort: stable, so equal plans place equally
        size_t j = i;
        for (; j > 0 && bytes[scratch[j - 1]] < bytes[i]; j--)
            scratch[j] = scratch[j - 1];
        scratch[j] = (uint32_t)i;
    }
    for (size_t k = 0; k < n; k++) {
        uint32_t b = scratch[k];
        if (bytes[b] > SIZE_MAX / 2)
            return false;
        size_t size = (bytes[b] + TJ_ALIGN - 1) & ~(size_t)(TJ_ALIGN - 1), at = 0;
        for (bool moved = true; moved;) {
            moved = false;
            for (size_t j = 0; j < k; j++) {
                uint32_t o = scratch[j];
                if (last[o] < first[b] || last[b] < first[o])
                    continue;
                size_t end = offset[o] + ((bytes[o] + TJ_ALIGN - 1) & ~(size_t)(TJ_ALIGN - 1));
                if (at < end && offset[o] < at + size) {
                    at = end;
                    moved = true;
                }
            }
        }
        offset[b] = at;
        if (at > SIZE_MAX / 2 - size)
            return false;
        if (at + size > *total)
            *total = at + size;
    }
    return true;
}
