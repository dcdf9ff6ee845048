// trace/reason.h: why a plan doesn't serve a segment: the first guard that differs, in words and numbers.
#ifndef TJ_TRACE_REASON_H
#define TJ_TRACE_REASON_H
#include "region.h"

// Why `old` doesn't serve the segment. declared: declared inputs, for naming leaves. A symbolic plan is asked for the
// guard that is missed.
void tj_reason_find(const struct tj_entry *old, const struct tj_segment *s, uint32_t declared, struct tj_recompile *r);
// Nodes from the first on that are alike up to shapes; how far the leaves are apart, dtype and rank counting more.
uint32_t tj_common_ops(const struct tj_trace *a, const struct tj_trace *b);
uint32_t tj_leaf_distance(const struct tj_trace *a, const struct tj_trace *b);
#endif
