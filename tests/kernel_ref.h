// tests/kernel_ref.h: builds loop kernels by hand and evaluates them an element at a time, as jit/kernel.h defines
// them.
#ifndef TJ_TESTS_KERNEL_REF_H
#define TJ_TESTS_KERNEL_REF_H
#include "../jit/kernel.h"
#include "tj_test.h"

#define MUST(cond, ...)                                                                                                \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            ck_abort_msg(__VA_ARGS__);                                                                                 \
        }                                                                                                              \
    } while (0)

enum { MAX_INS = 128, MAX_ACC = 32, MAX_BUF = 16 };
struct buffer {
    unsigned char *map, *p; // p: element 0
    size_t map_bytes, bytes;
};
// A kernel with its arguments.
struct kb {
    struct tj_kernel k;
    struct tj_kins ins[MAX_INS];
    struct tj_kaccess acc[MAX_ACC];
    int64_t ivals[64];
    union tj_scalar svals[16];
    struct buffer buf[MAX_BUF];
    uint8_t buf_dtype[MAX_BUF];
    uint8_t pass, level; // of what is added next
};
// A value: the member its dtype computes in.
struct sv {
    bool known;
    int64_t i;
    float f;
    double d;
};
struct ref {
    struct kb *b;
    unsigned char **bufs;
    int64_t coord[TJ_KDIMS];
    struct sv v[MAX_INS];
    struct sv reduced[MAX_INS]; // results of REDUCE for this row
    bool error;
    int64_t error_index;
};

void kb_init(struct kb *b, enum tj_kernel_kind kind, int ndims, int npar, int npasses, const int64_t *extents);
uint16_t kb_ival(struct kb *b, int64_t v);
tj_kv kb_add(struct kb *b, int op, int dtype, int64_t imm, int nin, ...);
tj_kv kb_again(struct kb *b, tj_kv v);
size_t kb_width(int dtype);
int kb_buffer(struct kb *b, int dtype, int64_t elems);
bool kb_guard_intact(const struct buffer *f);
void kb_free(struct kb *b);
int kb_access(struct kb *b, int buf, const int64_t *strides, int64_t offset);
int64_t kb_extent(const struct kb *b, int d);
void kb_contiguous(const struct kb *b, int64_t *strides);
int64_t kb_elements(const struct kb *b);
int kb_compute(int dtype);
tj_kv kb_input(struct kb *b, int dtype);
tj_kv kb_output(struct kb *b, int dtype, tj_kv v);
tj_kv kb_const(struct kb *b, int dtype, double v);
tj_kv kb_sval(struct kb *b, int dtype, double v);
int kb_class(int dtype);
struct sv kb_load_value(const unsigned char *p, int dtype);
void kb_store_value(unsigned char *p, int dtype, struct sv v);
void kb_evaluate(struct ref *s);
#endif
