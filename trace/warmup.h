// trace/warmup.h: plans made ahead of runs, for other shapes of a region's inputs: from its youngest recording.
#ifndef TJ_TRACE_WARMUP_H
#define TJ_TRACE_WARMUP_H
#include "region.h"

// ---- other shapes of a recorded trace (infer_again.c) -------------------------------------------------------------

// An extent of a declared input as recorded, and as it is to be.
struct tj_extent {
    int64_t from, to;
};
// The trace t with other extents of its leaves: dims has TJ_MAX_RANK of them a leaf (ranks stay). Extents of results
// follow from the ops; those that were arguments of an op (reshape, expand, lengths of slices, counts) are found among
// map and the values recorded before: an extent equal to one there, or to a product or ratio of those in map, becomes
// the new one; of several ways the first that fits all ops later on. out: freshly initialised; its leaves have no
// tensors. at: node of t -> node of out, room for t's nodes. TRACE_ERR_SHAPE when nothing fits: the error names op,
// place and shapes.
tj_status tj_trace_again(const struct tj_trace *t, const int64_t *dims, const struct tj_extent *map, size_t nmap,
                         struct tj_trace *out, tj_ref *at);

// ---- the youngest recording of a region (warmup.c) ----------------------------------------------------------------

// Keeps what the run of b has recorded, which made a plan: at its end, nouts of b->outs and nwrites of b->writes.
void tj_warm_keep(struct tj_box *b, uint32_t nouts, uint32_t nwrites);
// Makes the plans for the most frequent shapes of a loaded profile.
void tj_warm_pending(struct tj_box *b);
// A profile was loaded: makes them now, or once there is a recording.
tj_status tj_warm_loaded(struct trace_region *r);
void tj_warm_free(struct trace_region *r);
#endif
