// lib/base.c: dtype table, checked sizes, allocation, the calling thread's last error.
#include "base.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

// ---- dtypes ---------------------------------------------------------------------------------

// f16 and bf16 have the same rank: neither holds the other, so together they promote to f32.
const struct tj_dtype_info tj_dtypes[] = {
    [TRACE_BOOL] = {"bool", TJ_CLASS_BOOL, 8, 1, 1, TRACE_BOOL, 0},
    [TRACE_U8] = {"u8", TJ_CLASS_UINT, 8, 1, 1, TRACE_U8, 0},
    [TRACE_I32] = {"i32", TJ_CLASS_INT, 32, 1, 4, TRACE_I32, 0},
    [TRACE_I64] = {"i64", TJ_CLASS_INT, 64, 1, 8, TRACE_I64, 1},
    [TRACE_F16] = {"f16", TJ_CLASS_FLOAT, 16, 1, 2, TRACE_F32, 0},
    [TRACE_BF16] = {"bf16", TJ_CLASS_FLOAT, 16, 1, 2, TRACE_F32, 0},
    [TRACE_F32] = {"f32", TJ_CLASS_FLOAT, 32, 1, 4, TRACE_F32, 1},
    [TRACE_F64] = {"f64", TJ_CLASS_FLOAT, 64, 1, 8, TRACE_F64, 2},
};
const size_t tj_dtype_count = TJ_COUNT(tj_dtypes);

// ---- checked sizes --------------------------------------------------------------------------

bool tj_size_mul(int64_t a, int64_t b, int64_t *out) { return a >= 0 && b >= 0 && !__builtin_mul_overflow(a, b, out); }

bool tj_size_add(int64_t a, int64_t b, int64_t *out) { return a >= 0 && b >= 0 && !__builtin_add_overflow(a, b, out); }

// An empty tensor's other extents must not overflow either: its strides are made of them.
bool tj_numel(const int64_t *dims, size_t rank, int64_t *out) {
    int64_t n = 1;
    bool empty = false;
    for (size_t i = 0; i < rank; i++) {
        empty |= dims[i] == 0;
        if (!tj_size_mul(n, dims[i] == 0 ? 1 : dims[i], &n)) {
            return false;
        }
    }
    *out = empty ? 0 : n;
    return true;
}

bool tj_tensor_bytes(tj_dtype d, int64_t numel, size_t *out) {
    if (!tj_dtype_valid((int)d) || numel < 0) {
        return false;
    }
    const struct tj_dtype_info *t = &tj_dtypes[d];
    int64_t blocks = numel / t->block_elems + (numel % t->block_elems != 0);
    int64_t bytes;
    if (!tj_size_mul(blocks, t->block_bytes, &bytes) || bytes > PTRDIFF_MAX) {
        return false;
    }
    *out = (size_t)bytes;
    return true;
}

void tj_contiguous_strides(const int64_t *dims, size_t rank, int64_t *strides) {
    int64_t s = 1;
    for (size_t i = rank; i-- > 0;) {
        strides[i] = s;
        s *= dims[i] > 0 ? dims[i] : 1;
    }
}

void tj_copy_bools(unsigned char *dst, const unsigned char *src, size_t n) {
    const uint64_t low = UINT64_C(0x7F7F7F7F7F7F7F7F), one = UINT64_C(0x0101010101010101);
    for (; n >= 8; dst += 8, src += 8, n -= 8) {
        uint64_t x;
        memcpy(&x, src, 8);
        x = (x | ((x & low) + low)) >> 7 & one; // the sum carries into a byte's top bit where a lower one is set
        memcpy(dst, &x, 8);
    }
    for (size_t i = 0; i < n; i++) {
        dst[i] = src[i] != 0;
    }
}

// ---- allocation -----------------------------------------------------------------------------

bool (*tj_alloc_hook)(size_t bytes);

static bool refused(size_t bytes) { return TJ_UNLIKELY(tj_alloc_hook != NULL) && !tj_alloc_hook(bytes); }

// The host's errno is left alone: a failure is a status here.
static void *keep_errno(void *p, int saved) {
    errno = saved;
    return p;
}

void *tj_malloc(size_t bytes) {
    int saved = errno;
    return refused(bytes) ? NULL : keep_errno(malloc(bytes ? bytes : 1), saved);
}

void *tj_calloc(size_t n, size_t bytes) {
    size_t all;
    int saved = errno;
    if (__builtin_mul_overflow(n, bytes, &all) || refused(all)) {
        return NULL;
    }
    return keep_errno(calloc(1, all ? all : 1), saved);
}

void *tj_realloc(void *p, size_t bytes) {
    int saved = errno;
    return refused(bytes) ? NULL : keep_errno(realloc(p, bytes ? bytes : 1), saved);
}

void tj_free(void *p) { free(p); }

char *tj_strdup(const char *s) {
    size_t n = strlen(s) + 1;
    char *copy = tj_malloc(n);
    if (copy) {
        memcpy(copy, s, n);
    }
    return copy;
}

void *tj_aligned_alloc(size_t bytes) {
    void *p;
    int saved = errno;
    if (bytes > PTRDIFF_MAX || refused(bytes)) {
        return NULL;
    }
    return keep_errno(posix_memalign(&p, TJ_ALIGN, bytes ? bytes : 1) ? NULL : p, saved);
}

void tj_aligned_free(void *p) { free(p); }

bool tj_grow(void **array, uint32_t *cap, uint32_t n, size_t size) {
    if (n <= *cap) {
        return true;
    }
    uint64_t want = (uint64_t)*cap + *cap / 2;
    if (want < 8) {
        want = 8;
    }
    if (want < n) {
        want = n;
    }
    if (want > UINT32_MAX) {
        want = UINT32_MAX;
    }
    size_t bytes;
    if (__builtin_mul_overflow((size_t)want, size, &bytes)) {
        return false;
    }
    void *p = tj_realloc(*array, bytes);
    if (!p) {
        return false;
    }
    *array = p;
    *cap = (uint32_t)want;
    return true;
}

// ---- errors ---------------------------------------------------------------------------------

static _Thread_local char last_text[TJ_ERROR_MAX];
static _Thread_local tj_status last_status;
static _Thread_local uint64_t failures;

tj_status tj_fail(tj_status st, const char *fmt, ...) {
    int saved = errno;
    char text[TJ_ERROR_MAX]; // the arguments may point into the old text
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n < 0) {
        text[0] = '\0';
    }
    memcpy(last_text, text, n >= (int)sizeof text ? sizeof text : strlen(text) + 1);
    last_status = st;
    failures++;
    errno = saved;
    return st;
}

const char *tj_last_error(void) { return last_text; }
tj_status tj_last_status(void) { return last_status; }
uint64_t tj_failures(void) { return failures; }

void tj_error_save(struct tj_error *e) {
    e->status = last_status;
    e->failures = failures;
    memcpy(e->text, last_text, strlen(last_text) + 1);
}

void tj_error_restore(const struct tj_error *e) {
    if (failures != e->failures) {
        last_status = e->status;
        failures = e->failures;
        memcpy(last_text, e->text, strlen(e->text) + 1);
    }
}

const char *tj_status_name(tj_status st) {
    static const char *const names[] = {
#define NAME(s) [s] = #s
        NAME(TRACE_OK),          NAME(TRACE_ERR_ARGUMENT), NAME(TRACE_ERR_SHAPE),       NAME(TRACE_ERR_DTYPE),
        NAME(TRACE_ERR_MEMORY),  NAME(TRACE_ERR_BREAK),    NAME(TRACE_ERR_STATE),       NAME(TRACE_ERR_DEAD),
        NAME(TRACE_ERR_COMPILE), NAME(TRACE_ERR_DEVICE),   NAME(TRACE_ERR_UNAVAILABLE), NAME(TRACE_ERR_BUDGET),
        NAME(TRACE_ERR_BUSY),    NAME(TRACE_ERR_TIMEOUT),  NAME(TRACE_ERR_SHUTDOWN),
#undef NAME
    };
    return (unsigned)st < TJ_COUNT(names) && names[st] ? names[st] : "unknown status";
}
