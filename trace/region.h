// trace/region.h: regions, their runs and plan tables: what region, break, cache, eager, stats and report share.
#ifndef TJ_TRACE_REGION_H
#define TJ_TRACE_REGION_H
#include "context.h"
#include "dynamic.h"

#define TJ_SLOTS 64         // run objects a region keeps; threads beyond get one of their own for a run
#define TJ_HINTS 16         // plans a run object remembers by hash
#define TJ_PREDICT 8        // plans a run object remembers by the number of the segment in the run
#define TJ_REPLAYS 4        // recordings a run object replays without looking them up
#define TJ_REASONS 32       // recompiles a region keeps for reports
#define TJ_SITES 1024       // places of breaks that a region tells apart
#define TJ_CREDIT_MAX 255   // hits that count for a plan's survival
#define TJ_PROFILE_ROWS 256 // combinations of input shapes that a region counts

#define TJ_BUCKET_DIMS 8
struct tj_bucket_dim {
    uint32_t input, dim;
    int kind;      // enum trace_buckets
    uint32_t most; // LEARNED: buckets at most
    _Atomic(struct tj_bucket_sizes *) sizes;
};

// ---- plan tables (cache.c) ----------------------------------------------------------------------------------------

// Where a segment of a region ends: the readback, or trace_end. Tells a first compile from a recompile; not a guard.
struct tj_site {
    struct tj_loc loc;
    const char *kind;            // "end", "item", "read", "data", "print", "write"; literal
    bool first;                  // no segment of the run came before
    const struct tj_entry *like; // another plan of the same place, or NULL
    bool ahead;                  // no run asks for it: trace_warmup
};
// Why a plan was made although there was one for the place.
struct tj_recompile {
    int input, dim; // declared first, then captured; -1: none
    bool varies;    // a constant of the plan that nearly served, seen with another value
    int64_t from, to;
    char text[700];
};
enum tj_entry_state { TJ_E_COMPILING, TJ_E_READY, TJ_E_DROPPED };
// One signature and its plan. Keyed on the trace's keyed arrays, outs and writes; a symbolic one on what traces that
// are alike have in common, and on the guards of its plan. Immutable once READY but for counters.
struct tj_entry {
    atomic_int refs;
    _Atomic uint8_t state;  // enum tj_entry_state
    _Atomic uint8_t credit; // hits since the clock hand last halved it
    atomic_bool evicted;    // no longer in the table
    uint32_t process;       // that makes it, while COMPILING
    const void *maker;      // address of tj_current of the thread that entered it
    uint64_t asked_ns;      // when it was entered
    _Atomic uint64_t hits;
    bool symbolic;              // extents in `dyn` are symbols
    bool shadowed;              // made from the trace of another plan, not from that of the run that asked
    uint64_t hash;              // exact ones: of everything
    uint64_t family;            // of what traces that are alike have in common; 0: the region makes exact plans only
    struct tj_recompile reason; // written by the maker
    struct tj_dynamic dyn;
    struct tj_capacity caps[TJ_BUCKET_DIMS];
    struct tj_segment seg; // trace, outs and writes are the entry's own
    struct tj_trace trace;
    struct tj_plan *plan; // NULL: the interpreter runs it
    struct tj_plan_info info;
    trace_context *ctx; // the region keeps it alive
    tj_status failed;   // why it was dropped
    char site[96];      // "end", "item at gen.c:88"
    uint64_t site_key;
    double ms;         // time to make it
    uint64_t made_ns;  // when it was made
    char *why, *where; // made because of a recompile: its reason and host line. Under the cache's lock
    char **files;      // own copies of the places' file names
    uint32_t nfiles;
    uint32_t declared;              // declared inputs, for naming leaves
    bool trimmed;                   // made from another plan of the same ops by storing less
    struct tj_entry *next;          // bucket chain
    struct tj_entry *next_relative; // chain of its family's bucket
};
// What is known of the ops run at a break: which of their values later code used.
struct tj_learned {
    atomic_int refs;
    uint64_t hash;
    struct tj_trace trace;
    tj_ref target; // the value read there, or TJ_NIL
    uint32_t nwrites;
    tj_ref *writes;
    _Atomic uint64_t *used;  // bit a node: stored for later code
    atomic_bool learning;    // no run over it has come to its end yet: everything is stored
    struct tj_learned *next; // bucket chain
};
struct tj_break_site { // one line of the break report
    const char *kind;  // literal
    char *where, *op, *made, *remedy;
    uint64_t key;
    bool lint;
    _Atomic uint64_t count, ns;
    struct tj_break_site *next, *chain; // of the region, the latest first; of its bucket
};
struct tj_reason {      // one line of the recompile report
    char *text, *where; // owned
    int input, dim;     // as in the event
    int64_t from, to;
    double ms;
    uint64_t at_ns;
};
struct tj_cache {
    tj_mutex lock;         // never held while compiling or running
    tj_cond ready;         // an entry left COMPILING
    uint32_t max, n, hand; // entries allowed, there, and where the clock hand is
    struct tj_entry **ring;
    uint32_t capring;
    uint32_t nbuckets;          // power of two
    struct tj_entry **buckets;  // exact entries, by hash
    struct tj_entry **families; // all entries, by family
    uint32_t process;           // in which ring and buckets were changed last
    struct tj_learned **records;
    uint32_t nrecords;
    _Atomic uint64_t code;                           // bytes of code of the plans here
    struct tj_break_site *sites, **sitetab, *others; // sitetab: NULL until there is one; others: beyond TJ_SITES
    uint32_t nsites;
    struct tj_reason reasons[TJ_REASONS];
    uint64_t nreasons;
};

// ---- runs ---------------------------------------------------------------------------------------------------------

struct tj_scope {
    struct trace_region *region;
    struct tj_loc begin;
    struct tj_run *resume; // run, and its scope, that was the innermost one before
    uint32_t resume_at;
    bool fullgraph;
    bool skipped; // begin returned false; `status` and `text` say why
    tj_status status;
    char *text;         // owned, may be NULL
    uint32_t mark;      // nodes recorded when it began
    uint32_t ndeferred; // deferred forms when it began
    uint32_t npool;     // autoreleased handles when it began
    uint32_t flushes;   // segments run when it began
    uint32_t nloops;    // loops open when it began
};
// A value that is read when the run ends, without a break.
struct tj_deferred {
    tj_ref node;                 // TJ_NIL once resolved or dropped
    struct trace_tensor *later;  // item_later: the handle to fill; holds a reference
    struct trace_tensor *tensor; // print_later: the result, once there
    char *name;                  // print_later, owned
    bool print;
    struct tj_loc loc;
};
// A handle that an eager scope releases at its end.
struct tj_pooled {
    struct trace_tensor *tensor;
    uint32_t retained; // times the host has retained it, and not released since
};
// Where a value that a break has run came from, to learn whether later code uses it.
struct tj_origin {
    uint32_t instance; // index into instances + 1; 0: none
    tj_ref sub;        // its node there
};
struct tj_use { // of a value, by node `user`
    tj_ref user;
    uint32_t next; // index + 1, in rising order of users
};
struct tj_instance {           // one break of this run
    struct tj_learned *record; // holds a reference
    struct tj_entry *entry;    // plan that ran; holds a reference; NULL until then
    uint32_t must, nmust;      // nodes (of the record's trace) stored whether used or not: range of `musts`
    tj_ref target;             // node of the run that was read at the first of equal ones, or TJ_NIL
};
enum tj_box_state { TJ_BOX_IDLE, TJ_BOX_ACTIVE, TJ_BOX_ORPHAN };
// A run object: the run, and what region and break keep beside it. Reused by the region, so that a steady run allocates
// nothing.
struct tj_box {
    struct tj_run run;        // first: a run's box is found by a cast
    _Atomic int state;        // enum tj_box_state. ORPHAN: the region was released while this run was open
    bool pooled;              // in the region's slots
    atomic_bool cancel;       // the run is to stop between steps
    _Atomic uint32_t process; // the run's
    struct tj_box *prev_extra, *next_extra; // of those not in slots; under the context's lock
    struct tj_counters count;               // only the thread that has the box adds
    // who holds it, for messages of other threads
    _Atomic(const char *) begin_file;
    _Atomic int begin_line;
    // plans seen lately; each holds a reference
    struct tj_entry *hints[TJ_HINTS], *predict[TJ_PREDICT];
    uint32_t segment;               // segments run so far
    uint32_t flushes;               // of these, at breaks
    uint32_t declared;              // declared inputs of the outermost begin
    uint64_t ran;                   // ticks plans of this run have run
    bool missed;                    // some segment had no plan
    uint64_t begun_ns;              // when the run began, 0: no timeline was written then
    struct tj_entry *ended;         // plan of the run's last segment; borrowed from the hints, NULL: none
    struct tj_profile_box *profile; // shapes of its latest runs (profile.c); NULL: none yet
    // replay mode (replay.c)
    struct tj_replay *replays[TJ_REPLAYS]; // the last one used is the first
    struct tj_replay *replay;              // of the open run; NULL: it records
    bool note;                             // the run records, and its end compares with other runs
    const char *later;                     // the run's first deferred form: its name, or NULL; and where
    struct tj_loc later_at;
    struct tj_signature *sig; // of the run's inputs, when it is noted
    uint64_t *ids;            // of the inputs
    uint32_t nsig, capsig, capids;
    uint64_t sig_hash;
    struct tj_out_rule *rules; // of its outputs
    uint32_t nrules, caprules;
    struct tj_loc broke_at; // the first graph break of the run
    const char *broke_call; // literal; NULL: none
    bool touched;           // something was learned at a break
    bool rolled;            // some nodes were rolled back: segments have to be extracted
    bool scope_failed;      // an inlined scope failed since; its error below
    tj_status scope_status;
    char scope_error[TJ_ERROR_MAX];
    const char *op;                          // single-op run: the op, for messages
    struct tj_capacity caps[TJ_BUCKET_DIMS]; // of the segment
    uint32_t unlearned;                      // segments since buckets were to be learned
    uint32_t lean;                           // runs since one needed much of the arrays
    // scratch
    tj_ref *outs, *writes, *subouts, *subwrites, *stored;
    uint32_t capouts, capwrites, capsubouts, capsubwrites, capstored;
    struct trace_tensor **outt;
    uint32_t capoutt;
    uint32_t *outmap;
    struct trace_tensor **handles; // of trace_end's outputs
    uint32_t capoutmap, caphandles;
    struct tj_trace sub; // extracted segment
    tj_ref *map;         // node of the run -> node of sub, while extracting
    uint16_t *mark;      // MARK_* a node, kept over the run
    struct tj_origin *origin;
    uint32_t *groups; // scratch: one a group of leaves
    uint32_t capmap, capmark, caporigin, capgroups;
    uint32_t nmark; // nodes with a valid mark and origin
    tj_ref *need;   // nodes of the segment being extracted, and others that have marks, ascending where it says so
    uint32_t nneed, capneed;
    tj_ref *path; // scratch of a walk to users
    uint32_t cappath;
    struct tj_use *uses; // of nodes by later ones: chains from first_use, made while the region learns
    tj_ref *first_use, *last_use, *same_root, *last_root; // index + 1 of a use; the next node of the same root
    uint32_t nuses, capuses, capfirst_use, caplast_use, capsame_root, caplast_root;
    uint32_t nused;  // nodes whose uses are there
    uint32_t nlater; // deferred forms whose values are marked
    struct tj_instance *instances;
    uint32_t ninstances, capinstances;
    tj_ref *musts;
    uint32_t nmusts, capmusts;
    struct tj_deferred *deferred;
    uint32_t ndeferred, capdeferred;
    struct tj_pooled *pool; // of an eager scope
    uint32_t npool, cappool;
};
// Number of the innermost of a run's scopes; run may be NULL.
static inline uint32_t tj_run_top(const struct tj_run *run) { return run && run->nscopes ? run->nscopes - 1 : 0; }
static inline struct tj_box *tj_box_of(struct tj_run *run) { return (struct tj_box *)(void *)run; }
// Adds to a counter of one's own box: a plain add that other threads may read.
#define TJ_BUMP(c, f, n)                                                                                               \
    atomic_store_explicit(&(c)->f, atomic_load_explicit(&(c)->f, memory_order_relaxed) + (uint64_t)(n),                \
                          memory_order_relaxed)

// Shapes that the declared inputs had (profile.h).
struct tj_profile {
    tj_mutex lock; // of what follows, of the rows' counts and of the list of boxes
    struct tj_profile_row *rows[TJ_PROFILE_ROWS];
    uint32_t n;
    uint64_t other; // runs of combinations that are kept no more
    struct tj_profile_box *boxes;
    uint32_t epoch; // one more when a fork left the table in the middle of a change
};
struct tj_bound_dim {
    uint32_t input, dim;
    int64_t min, max;
};
struct tj_recordings { // in replay.c
    struct tj_recording **buckets, *newest, *oldest;
    uint32_t nbuckets, n; // nbuckets: power of two; 0: none yet
    uint32_t process;     // in which it was changed last
};
enum tj_backend_stage { TJ_BACKEND_UNTRIED, TJ_BACKEND_STARTING, TJ_BACKEND_READY, TJ_BACKEND_NONE };
struct trace_region {
    atomic_int refs;    // the user's handle, and runs that outlive it
    trace_context *ctx; // holds a reference, but for the hidden region of single-op runs
    char *name;
    trace_region_options opt; // as given, defaults filled
    bool hidden;
    struct tj_counters count; // totals of boxes that are gone, and of what isn't a run's
    uint64_t born_ticks, born_ns;
    _Atomic(struct tj_box *) slots[TJ_SLOTS];
    struct tj_box *extra; // runs beyond the slots
    struct tj_cache cache;
    struct tj_budget budget;
    struct tj_profile profile;
    struct tj_warm *warm;     // the youngest recording, for plans ahead of runs (warmup.c); under the profile's lock
    atomic_bool warm_pending; // a loaded profile waits for a recording
    struct tj_bucket_dim buckets[TJ_BUCKET_DIMS]; // of trace_region_buckets
    uint32_t nbuckets;
    struct tj_bound_dim *bounds; // of trace_region_dynamic
    uint32_t nbounds, capbounds;
    atomic_bool begun;           // a run has begun: bounds stay as they are
    bool released;               // by the host: nothing is compiled in the background any more. Under that lock
    tj_status background_failed; // first failure not told yet, and its text. Under that lock
    char background_error[TJ_ERROR_MAX];
    atomic_bool fallback_reported;
    atomic_bool profiled;             // runs time their kernels (trace_region_profile)
    _Atomic uint32_t serial;          // of dumped plans
    struct tj_recordings recordings;  // of replay mode; under the cache's lock
    _Atomic size_t plan_bytes;        // workspace that the plan compiled last would need when bound
    _Atomic size_t bound_bytes;       // that of the plan bound last; 0: none
    _Atomic int backend;              // of the hidden region: enum tj_backend_stage of the context's compiler
    uint32_t backend_process;         // process that starts it
    struct trace_region *prev, *next; // list of the context
};

tj_status tj_region_new(trace_context *ctx, const char *name, const trace_region_options *opt, bool hidden,
                        struct trace_region **out);
void tj_region_drop(struct trace_region *r); // one reference
// One more, unless the last one has gone and the region is on its way out. The context's lock is held.
bool tj_region_retain_live(struct trace_region *r);
// Frees what run objects hold that are idle: their arrays, recordings in hand, hints of plans.
void tj_region_trim(struct trace_region *r);
// A plan was dropped: idle run objects and recordings let go of it, so that its code and memory go, too.
void tj_region_forget(struct trace_region *r, const struct tj_entry *e);
// A run object for this thread, reset and with a new generation; NULL on failure. give: back to the region.
struct tj_box *tj_box_take(struct trace_region *r);
void tj_box_give(struct tj_box *box);

// Opens a run of r on this thread without making it current; NULL: refused.
struct tj_box *tj_run_open(struct trace_region *r);
// Outputs, deferred forms and the last segment of a run (region_out.c); those of an eager scope.
tj_status tj_finish(struct tj_box *box, trace_tensor **out, size_t n, struct tj_loc loc);
tj_status tj_finish_eager(struct tj_box *box, trace_tensor **out, size_t n, struct tj_loc loc);
// Outputs of a scope inlined into the eager scope of `run`, made when it had `from` handles: those that aren't its own,
// or are named twice, become handles of their own. False: failed.
bool tj_eager_outs(struct tj_run *run, trace_tensor **out, size_t n, uint32_t from, struct tj_loc loc);
// The tensor of the leaf that is the root of n, or NULL when the root is computed.
struct trace_tensor *tj_root_tensor(const struct tj_run *run, tj_ref n);
// Writes not executed yet into box->writes; false when out of memory.
bool tj_pending_writes(struct tj_box *box, uint32_t *n);
// Ticks of the processor's own clock where it has a cheap one: the vdso costs as much as recording an op on some
// machines. Counters of time hold ticks until they are read.
static inline uint64_t tj_ticks(void) {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    uint64_t v;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(v));
    return v;
#else
    return tj_now_ns();
#endif
}
// Text "name (file:line)" of a node's op into buf.
const char *tj_op_text(const struct tj_trace *t, tj_ref n, char *buf, size_t cap);
const char *tj_loc_text(struct tj_loc loc, char *buf, size_t cap); // "file:line" or ""

// ---- segments (cache.c) -------------------------------------------------------------------------------------------

bool tj_same_refs(const tj_ref *a, uint32_t na, const tj_ref *b, uint32_t nb);
// Whether the entry is of the same ops, outputs and writes, up to extents.
bool tj_relatives(const struct tj_entry *e, const struct tj_segment *s);
tj_status tj_cache_init(struct tj_cache *c, uint32_t max);
void tj_cache_free(struct tj_cache *c);
// The plan of a segment: found, waited for, or made. The box's hints keep *out; the next call may drop it. trimmed:
// made ahead of time, *out is NULL.
tj_status tj_segment_plan(struct tj_box *box, const struct tj_segment *seg, const struct tj_site *site, bool trimmed,
                          struct tj_entry **out);
void tj_entry_put(struct tj_entry *e);
// Whether a run's steps are timed: for trace_region_profile, or a timeline.
static inline bool tj_watched(const struct tj_box *b) {
    return atomic_load_explicit(&b->run.region->profiled, memory_order_relaxed) || tj_timeline_on(b->run.ctx);
}
struct tj_watching { // one run of a segment, watched
    struct tj_watch watch;
    struct tj_box *box;
    const struct tj_segment *seg;
    uint64_t from_ns; // 0: no timeline
};
// In timeline.c. end: e ran it, NULL: the interpreter.
const struct tj_watch *tj_watch_start(struct tj_box *b, const struct tj_segment *seg, struct tj_watching *w);
void tj_watch_end(struct tj_watching *w, const struct tj_entry *e);
// Runs a segment with its plan: outs are tensors made by the caller. Data errors become TRACE_ERR_DEVICE.
tj_status tj_segment_run(struct tj_box *box, const struct tj_segment *seg, struct tj_entry *e,
                         struct trace_tensor *const *outs);
// The same with a plan, checked: the run also goes through the interpreter (check.c). bind: on copies, without results.
tj_status tj_check_run(struct tj_box *box, const struct tj_segment *seg, struct tj_entry *e,
                       const struct tj_run_args *args);
tj_status tj_check_bind(struct tj_box *box, const struct tj_segment *seg, struct tj_entry *e);
static inline bool tj_checks(const struct trace_region *r) { return r->opt.check || r->ctx->env.check; }
// The text and status of a data error of the segment.
tj_status tj_segment_error(const struct tj_segment *s, const struct tj_data_error *err);
struct tj_learned *tj_learned_get(struct trace_region *r, const struct tj_trace *t, tj_ref target, const tj_ref *writes,
                                  uint32_t nwrites); // found or made, with a reference; NULL: out of memory
void tj_learned_put(struct tj_learned *rec);
struct tj_break_site *tj_break_site_get(struct trace_region *r, struct tj_loc loc, const char *kind, bool lint,
                                        bool *fresh);

// Makes an entry that is in the table as COMPILING, publishes and reports it. leaves: of its trace; similar: the plan
// that nearly served, or NULL. On failure `text` (TJ_ERROR_MAX) has the message; it may be set on success, when the
// interpreter took over: the status is TRACE_ERR_COMPILE then.
tj_status tj_entry_make(struct trace_region *r, struct tj_counters *count, struct tj_entry *e,
                        const struct tj_leaf *leaves, const struct tj_site *site, struct tj_entry *similar, char *text);
// An entry whose compile was queued goes: those that wait for it get st.
void tj_entry_cancel(struct trace_region *r, struct tj_entry *e, tj_status st);
// In a child of fork: takes over an entry that a thread of the parent was to make; false: nobody has to.
bool tj_entry_adopt(struct trace_region *r, struct tj_entry *e);

// ---- background (background.c) ------------------------------------------------------------------------------------

// Queues a compile, whose references the job takes: to `similar` the caller's, to r and e its own. False: it can't be
// done there.
bool tj_background_add(struct trace_region *r, struct tj_entry *e, const struct tj_segment *s,
                       const struct tj_site *site, struct tj_entry *similar);
// Whether the interpreter is estimated to run s in less time than compiling takes.
bool tj_background_interpret(trace_context *ctx, const struct tj_segment *s);
bool tj_background_here(trace_context *ctx);               // on the thread that compiles
void tj_background_forget(struct trace_region *r);         // the host releases r
void tj_background_cancel(trace_context *ctx);             // takes all off the queue, for good
bool tj_background_join(trace_context *ctx, uint64_t end); // waits until `end` and ends the thread
void tj_background_free(trace_context *ctx);

// ---- breaks (break.c) ---------------------------------------------------------------------------------------------

// Grows marks and origins to the run's nodes.
bool tj_break_grow(struct tj_box *box);
// Runs what has to run for the values box->outs[0..nouts): they and all pending writes. Extracts the segment unless the
// run has had no break. outt[i] get the results (owned).
tj_status tj_break_finish(struct tj_box *box, uint32_t nouts, uint32_t nwrites, const struct tj_site *site, bool run_it,
                          struct trace_tensor **outt);
// The same run's plan, without running it: seg and *e are valid until the run goes on. nouts of box->outs.
tj_status tj_break_plan(struct tj_box *box, uint32_t nouts, uint32_t nwrites, const struct tj_site *site,
                        struct tj_segment *seg, struct tj_entry **e);
// The stored value n is used by what comes after the break that stored it.
void tj_break_used(struct tj_box *box, tj_ref n);
// After a run that ended well: makes the plans that later runs will use, so that they compile nothing.
void tj_break_learn(struct tj_box *box);
void tj_break_reset(struct tj_box *box);
// Reports one-element bools that nothing uses.
void tj_break_lint(struct tj_box *box, uint32_t nouts);
// Capacities of a segment by the region's buckets (bucket.c); whether a size has one.
void tj_bucket_fill(struct tj_box *box, struct tj_segment *s);
bool tj_bucket_covers(const struct tj_bucket_dim *d, int64_t size);
void tj_bucket_free(struct trace_region *r);
// A segment with the region's options.
void tj_segment_fill(struct tj_box *box, struct tj_segment *s, const struct tj_trace *t, const tj_ref *outs,
                     uint32_t nouts, const tj_ref *writes, uint32_t nwrites);
// A graph break: runs what is needed for value n (TJ_NIL: only the writes). about: what the host writes next, or NULL.
tj_status tj_graph_break(struct tj_box *box, tj_ref n, const struct trace_tensor *about, const struct tj_site *site,
                         const char *call);
// Whether pending writes of the run reach the memory of tensor t.
bool tj_written_here(struct tj_box *box, const struct trace_tensor *t);
// Prints a tensor as trace_print does.
void tj_print_tensor(const struct trace_tensor *t, const char *name);

// ---- replay mode (replay.c) ---------------------------------------------------------------------------------------

extern _Atomic int tj_replay_regions; // how many regions of that mode the process has
// Whether the run opened over these inputs is a replay: then the run holds what it needs. Else it records; b->note.
bool tj_replay_begin(struct tj_box *b, trace_tensor *const *in, size_t n);
tj_status tj_replay_end(struct tj_box *b, trace_tensor **out, size_t n, struct tj_loc loc);
void tj_replay_drop(struct tj_box *b); // lets go of what the open replay holds
// Of a run that is noted, before it runs: where its outputs come from. outmap: computed output or UINT32_MAX.
void tj_replay_outs(struct tj_box *b, trace_tensor *const *out, size_t n, const uint32_t *outmap);
void tj_replay_note(struct tj_box *b);                                   // after it: compares with the runs before
void tj_replay_forget(struct trace_region *r, const struct tj_entry *e); // of a plan that was dropped
void tj_replay_box_forget(struct tj_box *b, const struct tj_entry *e);
void tj_replay_box_clear(struct tj_box *b); // what an idle run object holds for its next replays
void tj_replay_box_free(struct tj_box *b);
void tj_replay_region_free(struct trace_region *r);
// What the plan of an open replay was made from.
const struct tj_trace *tj_replay_trace(const struct tj_replay *p);

// ---- bound plans (bind.c) -----------------------------------------------------------------------------------------

// Binds what the run has recorded instead of running it.
tj_status tj_bind(struct tj_box *box, const trace_bind_options *o, trace_bound **out, struct tj_loc loc);

// ---- context, statistics ------------------------------------------------------------------------------------------

// Copies a sized options struct (its size first) over zeroed defaults; an error when unknown fields are set.
tj_status tj_options_copy(void *dst, size_t size, const void *src, const char *what);
// Compiler of the context, started at the first call; false: none, the interpreter runs everything (reported once).
bool tj_context_backend(trace_context *ctx, struct trace_region *r);
// No thread can be started to compile on: told once, until one could. no_thread: it isn't tried for this graph.
void tj_context_threadless(trace_context *ctx, const struct trace_region *r, const char *why);
bool tj_context_no_thread(trace_context *ctx);
// Tells, once, that workers of the pool can't be started.
void tj_context_pool_short(trace_context *ctx, const struct trace_region *r);
// "LLVM 22.1.8, avx2" once the compiler has started, or why there is none, or "" before the first miss.
void tj_compiler_text(const trace_context *ctx, char *buf, size_t cap);
void tj_stats_sum(struct trace_region *r, struct tj_counters *sum); // region's counters and its boxes'
void tj_stats_add(struct tj_counters *to, struct tj_counters *from);
// As the public functions, with the context's lock held.
void tj_region_stats_locked(struct trace_region *r, trace_stats *stats);
void tj_context_stats_locked(trace_context *ctx, trace_stats *stats);
#endif
