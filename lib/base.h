// lib/base.h: words every file uses: statuses, dtype descriptors, checked sizes, allocation.
#ifndef TJ_LIB_BASE_H
#define TJ_LIB_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "../include/tracejit.h"

#define TJ_MAX_RANK 8
#define TJ_ALIGN 64 // alignment of every tensor buffer and workspace the library allocates
#define TJ_COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define TJ_PRINTF(f, a) __attribute__((format(printf, f, a)))
#define TJ_LIKELY(x) __builtin_expect(!!(x), 1)
#define TJ_UNLIKELY(x) __builtin_expect(!!(x), 0)

typedef enum trace_status tj_status;
typedef enum trace_dtype tj_dtype;

// memcmp that takes NULL for an empty array.
static inline bool tj_same(const void *a, const void *b, size_t bytes) { return !bytes || !memcmp(a, b, bytes); }

// ---- dtypes ---------------------------------------------------------------------------------

enum tj_dtype_class { TJ_CLASS_BOOL, TJ_CLASS_UINT, TJ_CLASS_INT, TJ_CLASS_FLOAT };

struct tj_dtype_info {
    const char *name;     // "f32"
    uint8_t cls;          // enum tj_dtype_class
    uint8_t bits;         // bits of one element (of a block dtype: of its decoded element)
    uint16_t block_elems; // elements a storage block holds (1 for plain dtypes)
    uint16_t block_bytes; // bytes a storage block takes
    uint8_t compute;      // dtype values have in registers (f16, bf16 -> f32; else itself)
    uint8_t rank;         // promotion order inside a class
};
extern const struct tj_dtype_info tj_dtypes[]; // indexed by enum trace_dtype; tj_dtype_count entries
extern const size_t tj_dtype_count;

static inline bool tj_dtype_valid(int d) { return d >= 0 && (size_t)d < tj_dtype_count; }
static inline bool tj_is_half(uint8_t d) { return d == TRACE_F16 || d == TRACE_BF16; }
static inline bool tj_is_float(tj_dtype d) { return tj_dtypes[d].cls == TJ_CLASS_FLOAT; }
// Bytes of one element of a plain dtype.
static inline size_t tj_elem_bytes(tj_dtype d) { return tj_dtypes[d].block_bytes; }
// Copies n bools: any byte but 0 becomes 1. dst may be src.
void tj_copy_bools(unsigned char *dst, const unsigned char *src, size_t n);

// ---- checked sizes --------------------------------------------------------------------------

// All size arithmetic on user extents goes through these; false = negative input or overflow.
bool tj_size_mul(int64_t a, int64_t b, int64_t *out);
bool tj_size_add(int64_t a, int64_t b, int64_t *out);
bool tj_numel(const int64_t *dims, size_t rank, int64_t *out); // product of extents
bool tj_tensor_bytes(tj_dtype d, int64_t numel, size_t *out);  // rounded up to whole blocks
// Row-major strides in elements of a contiguous tensor. Extents are known not to overflow.
// A distance between elements, `by` times over; 0 where that overflows: of a dim of extent 1, or of an empty tensor.
static inline int64_t tj_stride_times(int64_t stride, int64_t by) {
    int64_t r;
    return __builtin_mul_overflow(stride, by, &r) ? 0 : r;
}
void tj_contiguous_strides(const int64_t *dims, size_t rank, int64_t *strides);

// ---- allocation -----------------------------------------------------------------------------

// Library bookkeeping memory. NULL on failure (zero bytes give a valid pointer). Tests count and fail
// these through tj_alloc_hook.
void *tj_malloc(size_t bytes);
void *tj_calloc(size_t n, size_t bytes); // checked for overflow
void *tj_realloc(void *p, size_t bytes);
void tj_free(void *p);
char *tj_strdup(const char *s);
// Tensor and workspace memory, TJ_ALIGN-aligned.
void *tj_aligned_alloc(size_t bytes);
void tj_aligned_free(void *p);
// Grows *array (elements of `size` bytes, *cap of them) to hold at least n; false leaves it untouched.
bool tj_grow(void **array, uint32_t *cap, uint32_t n, size_t size);
// Test hook: when set, asked before every allocation (all of the above); false makes it fail.
extern bool (*tj_alloc_hook)(size_t bytes);

// ---- errors ---------------------------------------------------------------------------------

// Records the calling thread's last error and returns st. Text is cut at TJ_ERROR_MAX.
#define TJ_ERROR_MAX 1024
tj_status tj_fail(tj_status st, const char *fmt, ...) TJ_PRINTF(2, 3);
const char *tj_last_error(void); // of the calling thread, "" when none
tj_status tj_last_status(void);  // status that goes with it
uint64_t tj_failures(void);      // calls of tj_fail by this thread, to tell new errors from old ones
// The thread's last error, kept while code runs whose errors are its own.
struct tj_error {
    tj_status status;
    uint64_t failures;
    char text[TJ_ERROR_MAX];
};
void tj_error_save(struct tj_error *e);
void tj_error_restore(const struct tj_error *e);
const char *tj_status_name(tj_status); // "TRACE_ERR_SHAPE"

#endif
