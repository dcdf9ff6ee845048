// trace/explain.h: what trace_explain tells, gathered once and written as text, JSON or a page.
#ifndef TJ_TRACE_EXPLAIN_H
#define TJ_TRACE_EXPLAIN_H
#include "../lib/arena.h"
#include "../lib/ceiling.h"
#include "../lib/strbuf.h"
#include "profile.h"

struct tj_explain_kernel {
    const struct tj_kernel_report *r;
    uint64_t saved;      // bytes not moved because intermediates got no memory
    double ideal_ns;     // time that the machine's ceilings allow; 0: unknown
    bool compute;        // multiply-adds are what limits it, else memory
    bool all_threads;    // held against all threads
    const char *code;    // assembly, when asked for; in the plan
    const char *no_code; // why there is none
};
struct tj_explain_plan {
    struct tj_entry *entry; // holds a reference
    uint32_t number;        // in the order they were made
    uint64_t hits;
    const char *why, *where; // why it was made again; NULL: the first of its place
    double at_ms;            // when, since the region was made
    bool reported;           // the backend told about its kernels
    struct tj_plan_report report;
    struct tj_explain_kernel *kernels;
    uint32_t *kernel_of; // one a node: the first kernel that computes it, UINT32_MAX: none
    uint32_t *kept_of;   // one a node: its line of report.kept, UINT32_MAX: no memory of its own
};
struct tj_explain_break {
    const char *kind, *where, *op, *made, *remedy;
    uint64_t count, ns;
    bool lint;
};
struct tj_explain_recompile {
    const char *text, *where;
    int input, dim;
    int64_t from, to;
    double ms, at_ms;
};
struct tj_explain_region {
    struct trace_region *region; // holds a reference when `held`
    bool held;
    bool profiled;
    trace_stats stats;
    struct tj_explain_plan *plans;
    uint32_t nplans;
    struct tj_explain_break *breaks;
    uint32_t nbreaks;
    struct tj_explain_recompile *recompiles; // the latest, oldest first
    uint32_t nrecompiles;
    uint64_t recompiles_before; // of which nothing is kept
    struct tj_profile_view shapes;
};
struct tj_explain {
    struct tj_arena arena;
    trace_context *ctx;
    char compiler[320];
    trace_stats stats;                // of the context
    bool whole_context;               // all regions
    const struct tj_ceiling *ceiling; // NULL: not measured, out of memory
    struct tj_explain_region *regions;
    uint32_t nregions;
};
// All of it about one region, or (r NULL) about a context. code: with generated code. Ended by free in any case.
tj_status tj_explain_gather(trace_context *ctx, struct trace_region *r, bool code, struct tj_explain *x);
void tj_explain_free(struct tj_explain *x);
// Whether a plan is among the n of its region that were timed most often, or, when none was, hit most often.
bool tj_explain_hot(const struct tj_explain_region *g, uint32_t plan, uint32_t n);
void tj_explain_html(const struct tj_explain *x, struct tj_strbuf *sb); // explain_html.c
// The picture of a plan's ops as SVG in its own scroll box (explain_graph.c). id: prefix of the boxes' anchors.
void tj_explain_graph(const struct tj_explain_plan *p, const char *id, struct tj_arena *a, struct tj_strbuf *sb);
unsigned tj_explain_hue(uint32_t kernel); // of its colour
// Copies a finished text out, as the report functions promise; frees sb.
tj_status tj_report_out(struct tj_strbuf *sb, const char *call, char *buf, size_t cap, size_t *need);

// ---- words that all formats share -----------------------------------------------------------------------------------

// "f32[8, 16]" of a node; symbolic extents with their expression: "f32[x0.0=8, 16]".
const char *tj_explain_type(const struct tj_explain_plan *p, tj_ref n, char *buf, size_t cap);
// The expression of a symbolic extent; false: it's a constant.
bool tj_explain_extent(const struct tj_explain_plan *p, tj_ref n, uint32_t dim, char *buf, size_t cap);
uint64_t tj_explain_bytes(const struct tj_trace *t, tj_ref n); // of its value
bool tj_explain_is_op(const struct tj_trace *t, tj_ref n);     // not a leaf, scalar or parameter
// "input 0", "captured tensor 2", "value 1 kept across the break".
const char *tj_explain_leaf(const struct tj_trace *t, uint32_t leaf, char *buf, size_t cap);
const char *tj_explain_quantity(uint64_t n, const char *unit, char *buf, size_t cap); // "1.5 MB"
const char *tj_explain_time(double ns, char *buf, size_t cap);                        // "12.3 us"
// A sentence: why the value on a line of `kept` has memory.
void tj_explain_kept(const struct tj_trace *t, const struct tj_kept_report *k, char *buf, size_t cap);
#endif
