// trace/profile.h: which shapes the declared inputs of a region have had, and how often.
//
// Every successful run counts one for the combination of shapes that its declared inputs had. A region keeps
// TJ_PROFILE_ROWS combinations; when another comes, the coldest is merged into the others, of which only the sum is
// known. A run object counts what it has seen lately by itself, so that a steady run writes no memory of others.
#ifndef TJ_TRACE_PROFILE_H
#define TJ_TRACE_PROFILE_H
#include "region.h"

#define TJ_PROFILE_INPUTS 256 // declared inputs that count; a run with more isn't told apart

// The lock over a region's counts. In a child of fork they start anew when a thread of the parent was changing them.
void tj_profile_lock(struct tj_profile *p);
// Counts a run that has ended well. t: what it recorded, or what the plan that it replays was made from.
void tj_profile_run(struct tj_box *b, const struct tj_trace *t);
void tj_profile_box_free(struct tj_box *b);
void tj_profile_free(struct trace_region *r);

// ---- reading: a copy, while others run ----------------------------------------------------------------------------

struct tj_profile_shape {
    uint32_t input; // declared input; one that is the same tensor as an earlier one has no shape
    uint8_t dtype, rank;
    const int64_t *dims; // of the view
};
struct tj_profile_combination {
    uint64_t count;
    uint32_t ninputs;
    const struct tj_profile_shape *inputs; // ascending by input
};
struct tj_profile_view {
    struct tj_profile_combination *rows; // the most frequent first
    uint32_t n;
    uint64_t other, total; // total: of the rows and the others
    void *memory;
};
// False: out of memory (the error is set). Freed with tj_profile_view_free, on failure too.
bool tj_profile_read(struct trace_region *r, struct tj_profile_view *v);
void tj_profile_view_free(struct tj_profile_view *v);
// Values that dim `dim` of a declared input had, ascending, with the runs that had them; *out is the caller's
// (tj_free). Combinations in which the input has no such dim don't count. -1: out of memory (the error is set).
struct tj_profile_value {
    int64_t value;
    uint64_t count;
};
int64_t tj_profile_values(const struct tj_profile_view *v, uint32_t input, uint32_t dim, struct tj_profile_value **out);
// The buckets that the values of bucketed dim i of r fall into, ascending, for reports: at most `cap`, the last one
// takes the rest. *waste: percent by which they round the sizes seen up. 0: none, or out of memory.
struct tj_bucket_count {
    int64_t size;
    uint64_t runs;
};
uint32_t tj_bucket_counts(const struct trace_region *r, uint32_t i, const struct tj_profile_view *v,
                          struct tj_bucket_count *out, uint32_t cap, double *waste);
// Adds counts read from a file: all of them, or none when out of memory (the error is set).
bool tj_profile_add(struct trace_region *r, const struct tj_profile_combination *rows, uint32_t n, uint64_t other);
#endif
