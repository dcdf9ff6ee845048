// trace/dynamic.h: traces of the same ops over other extents: comparing them, and which extents become symbols.
#ifndef TJ_TRACE_DYNAMIC_H
#define TJ_TRACE_DYNAMIC_H
#include "backend.h"

// Same ops, operands, attributes, dtypes, ranks and leaf classes; extents and amounts of padding may differ. hash: of
// what alike compares.
bool tj_trace_alike(const struct tj_trace *a, const struct tj_trace *b);
uint64_t tj_trace_alike_hash(const struct tj_trace *t);
// Whether result extents of the op are arguments rather than consequences of its operands.
bool tj_shape_is_argument(uint16_t op);

// Masks for the trace, all zero; false: out of memory. free: takes zeroed ones, too.
bool tj_dynamic_init(struct tj_dynamic *d, const struct tj_trace *t);
void tj_dynamic_free(struct tj_dynamic *d);
bool tj_dynamic_any(const struct tj_dynamic *d, const struct tj_trace *t);
// Adds the extents of leaves and arguments in which two traces that are alike differ; those of another mask.
void tj_dynamic_differ(struct tj_dynamic *d, const struct tj_trace *a, const struct tj_trace *b);
void tj_dynamic_merge(struct tj_dynamic *d, const struct tj_dynamic *from, const struct tj_trace *t);
bool tj_dynamic_equal(const struct tj_dynamic *a, const struct tj_dynamic *b, const struct tj_trace *t);
// An expression over symbols ("x0.1*4") for people: "(dim 1 of input 0)*4". Returns buf.
const char *tj_symbol_text(const struct tj_trace *t, const char *expr, char *buf, size_t cap);
// Whether all extents in which the two differ are symbols.
bool tj_dynamic_covers(const struct tj_dynamic *d, const struct tj_trace *a, const struct tj_trace *b);

// Tensors as a trace describes its leaves, for a compile without a run: hints of strides. One block, freed with
// tj_free(*leaves); false: out of memory.
bool tj_shadow_leaves(const struct tj_trace *t, struct tj_leaf **leaves);
#endif
