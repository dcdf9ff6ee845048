// trace/check.h: checked runs: what comparing (check.c) and finding the op to blame (check_find.c) share.
#ifndef TJ_TRACE_CHECK_H
#define TJ_TRACE_CHECK_H
#include "region.h"

// The leaves of a segment with other memory behind those that the segment writes, and those that overlap them.
struct tj_shadow {
    struct tj_leaf *leaves;       // one a leaf; what isn't copied is the original tensor
    struct trace_tensor *tensors; // the copies; st NULL: not copied
    struct tj_storage *storages;
    struct tj_shadow_range { // memory of copies that overlap each other
        const unsigned char *from;
        size_t bytes;
        unsigned char *mem, *at; // allocated, and where `from` lies in it
    } * ranges;
    uint32_t nleaves, nranges;
};
struct tj_check {
    struct tj_box *box;
    const struct tj_segment *seg;
    struct tj_entry *entry;
    const struct tj_run_args *args;
    struct tj_shadow before;     // content before the run
    struct tj_shadow interp;     // as the interpreter writes it
    struct tj_shadow own;        // as the plan writes it, when it may not touch the tensors themselves
    bool apart;                  // that is so
    struct trace_tensor **outs;  // the interpreter's
    struct tj_data_error theirs; // its data error
};
// Where two values differ.
struct tj_difference {
    int64_t index; // row-major
    char got[48], want[48];
};
// The op to blame.
struct tj_blame {
    tj_ref node;
    struct tj_difference diff;
    enum {
        TJ_BLAME_DIFFERS, // no more is known: `note` says why
        TJ_BLAME_OP,      // it is wrong given the plan's own operands
        TJ_BLAME_FUSED,   // it is so only in some kernels
    } how;
    char note[320]; // why no more is known, or ""
};

tj_status tj_shadow_make(trace_context *ctx, const struct tj_segment *s, const struct tj_leaf *leaves,
                         struct tj_shadow *out);
void tj_shadow_copy(struct tj_shadow *to, const struct tj_leaf *from); // element by element
void tj_shadow_free(trace_context *ctx, struct tj_shadow *s);

// Whether two tensors of equal shape and dtype have the same bits, any NaN being like any other.
bool tj_check_same(const struct trace_tensor *got, const struct trace_tensor *want, struct tj_difference *d);
void tj_check_text(tj_dtype d, const void *element, char *buf, size_t cap);
double tj_check_float(const struct trace_tensor *t, int64_t i); // element of a contiguous tensor of floats
// The leaf that UPDATE n writes.
uint32_t tj_check_leaf(const struct tj_trace *t, tj_ref n);

// Looks for the op whose value is wrong, given that the values of `first` differ. False: none is; what differs is what
// contractions may differ by.
bool tj_check_find(struct tj_check *c, tj_ref first, const struct tj_difference *d, struct tj_blame *b);
#endif
