// trace/replay.c: replay mode: runs of a region whose body is skipped, because two runs before recorded the same.
//
// A recording belongs to a signature: dtype, exact extents and strides, kind of memory and identity pattern of the
// declared inputs. The first two runs of a signature record as in any region; when both had the same plan, scalars,
// integer arguments, captured tensors and outputs, and nothing that a skipped body would miss, the third is a replay:
// the plan runs over this run's inputs and the captured tensors, which the recording holds. A signature for which that
// isn't so records for ever, and says why once.
//
// A body may have captured the very tensor that was given as an input, which nothing recorded can tell from a use of
// that input. So an input that was the same tensor in all runs of a recording has to be that tensor in a replay; once a
// run over another one has recorded the same, it may be any. A run that differs because such a tensor, or a captured
// one, now is or isn't an input, is another case of the signature, with a recording of its own.
//
// What a thread replays with (leaves, memory of outputs) hangs on its run object, so that a steady replay takes no lock
// of the region and allocates nothing.
#include <stdio.h>

#include "../lib/hash.h"
#include "record.h"
#include "region.h"

#define KEEP_BYTES ((size_t)1 << 20) // larger results aren't kept for the next run
#define BUCKETS 256                  // of a region's recordings at most
#define CASES 8                      // recordings of a signature that a run is compared with

// What has to be equal in a declared input.
struct tj_signature {
    uint8_t dtype, rank;
    uint16_t same;  // first input with the same handle
    uint32_t flags; // of its storage
    int64_t dims[TJ_MAX_RANK], strides[TJ_MAX_RANK];
};
_Static_assert(sizeof(struct tj_signature) == 8 + 16 * TJ_MAX_RANK, "signatures are hashed and compared as bytes");

enum out_kind {
    OUT_COMPUTED, // result `index` of the plan
    OUT_INPUT,    // declared input `index` itself
    OUT_TENSOR,   // a captured tensor itself
    OUT_VIEW      // a view of leaf `index`
};
struct tj_out_rule {
    uint32_t kind, index;
    struct trace_tensor *tensor; // TENSOR: a reference of the recording
    uint32_t dtype, rank;        // VIEW: place in the leaf's tensor
    int64_t offset, dims[TJ_MAX_RANK], strides[TJ_MAX_RANK];
};

enum recording_state { SEEN, READY, REFUSED };
struct tj_recording {
    atomic_int refs;
    _Atomic int state; // enum recording_state
    uint64_t hash;
    uint32_t ninputs, nleaves, nparams, nrules;
    struct tj_signature *inputs;
    _Atomic uint64_t *ids;         // one an input: the tensor it has to be; 0: any
    struct tj_entry *entry;        // a reference
    struct tj_trace trace;         // what was recorded: the entry's, or own for a symbolic plan
    struct trace_tensor **sources; // one a leaf: the captured handle, a reference; NULL: declared
    struct tj_param *params;
    struct tj_out_rule *rules;
    bool returns_input, writes;
    struct tj_recording *chain, *newer, *older; // of the region: of its bucket, by age; under its cache's lock
    bool listed;
};

// A recording in the hands of one run object.
struct tj_replay {
    struct tj_recording *rec; // a reference
    struct tj_trace trace;    // the plan's, with the leaves and parameters below
    struct tj_segment seg;
    struct tj_leaf *leaves;
    struct trace_tensor *snaps;   // what the leaves point to
    struct tj_storage **held;     // one a leaf: storage of a captured tensor when it was last used, a reference
    struct trace_tensor **outs;   // results of the last replay, a reference each
    struct trace_tensor **inputs; // of the run, a reference each where outputs need them
    uint32_t entered;             // leaves of the open run that are held
    uint32_t age;                 // replays since the last recorded run
};

_Atomic int tj_replay_regions;

// ---- recordings -----------------------------------------------------------------------------------------------------

static void recording_put(struct tj_recording *rec) {
    if (!rec || atomic_fetch_sub_explicit(&rec->refs, 1, memory_order_acq_rel) != 1)
        return;
    for (uint32_t i = 0; rec->sources && i < rec->nleaves; i++) {
        if (rec->sources[i])
            tj_tensor_drop(rec->sources[i]);
    }
    for (uint32_t i = 0; rec->rules && i < rec->nrules; i++) {
        if (rec->rules[i].tensor)
            tj_tensor_drop(rec->rules[i].tensor);
    }
    if (rec->entry && rec->entry->symbolic)
        tj_trace_free(&rec->trace);
    tj_entry_put(rec->entry);
    tj_free(rec->inputs);
    tj_free((void *)rec->ids);
    tj_free(rec->sources);
    tj_free(rec->params);
    tj_free(rec->rules);
    tj_free(rec);
}

void tj_replay_region_free(struct trace_region *r) {
    for (struct tj_recording *rec = r->recordings.newest, *older; rec; rec = older) {
        older = rec->older;
        recording_put(rec);
    }
    tj_free(r->recordings.buckets);
    memset(&r->recordings, 0, sizeof r->recordings);
}

static void *copy_of(const void *src, size_t n, size_t size) {
    void *p = tj_malloc(n * size);
    if (p && n)
        memcpy(p, src, n * size);
    return p;
}

static void retain(struct trace_tensor *t) { (void)atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed); }

// What the run of b recorded; NULL: out of memory.
static struct tj_recording *recording_new(const struct tj_box *b, enum recording_state state) {
    const struct tj_trace *t = &b->run.trace;
    struct tj_recording *rec = tj_calloc(1, sizeof *rec);
    if (!rec)
        return NULL;
    atomic_init(&rec->refs, 1);
    atomic_init(&rec->state, state);
    rec->hash = b->sig_hash;
    rec->ninputs = b->nsig;
    rec->inputs = copy_of(b->sig, b->nsig, sizeof *rec->inputs);
    rec->ids = tj_calloc(b->nsig, sizeof *rec->ids);
    if (!rec->inputs || !rec->ids) {
        recording_put(rec);
        return NULL;
    }
    for (uint32_t i = 0; i < b->nsig; i++)
        atomic_init(&rec->ids[i], b->ids[i]);
    if (state == REFUSED)
        return rec;
    rec->params = copy_of(t->params, t->nparams, sizeof *rec->params);
    rec->rules = copy_of(b->rules, b->nrules, sizeof *rec->rules);
    rec->sources = tj_calloc(t->nleaves, sizeof *rec->sources);
    if (rec->rules)
        rec->nrules = b->nrules;
    for (uint32_t i = 0; i < rec->nrules; i++) {
        if (rec->rules[i].tensor)
            retain(rec->rules[i].tensor);
        rec->returns_input |= rec->rules[i].kind == OUT_INPUT;
    }
    if (!rec->params || !rec->rules || !rec->sources) {
        recording_put(rec);
        return NULL;
    }
    rec->nparams = t->nparams;
    rec->nleaves = t->nleaves;
    for (uint32_t i = 0; i < t->nleaves; i++) {
        rec->writes |= t->leafkeys[i].flags & TJ_LEAF_WRITTEN;
        if (!t->leafkeys[i].input) {
            rec->sources[i] = t->leaves[i].source;
            retain(rec->sources[i]);
        }
    }
    rec->entry = b->ended;
    (void)atomic_fetch_add_explicit(&rec->entry->refs, 1, memory_order_relaxed);
    rec->trace = rec->entry->trace;
    if (rec->entry->symbolic) { // made from other extents; its file names stay when the host's code goes
        tj_trace_init(&rec->trace);
        if (!tj_trace_copy(&rec->trace, t)) {
            recording_put(rec);
            return NULL;
        }
        memcpy(rec->trace.locs, rec->entry->trace.locs, t->nnodes * sizeof *t->locs);
    }
    return rec;
}

// ---- the region's recordings; the lock of its cache is held
// ----------------------------------------------------------

// Found by signature, in a table; beyond max_graphs the longest unused goes. False: no memory. In a child of fork,
// where a thread of the parent may have been changing them, they are forgotten.
static bool table(struct trace_region *r) {
    struct tj_recordings *t = &r->recordings;
    if (TJ_UNLIKELY(t->process != tj_process())) {
        *t = (struct tj_recordings){.process = tj_process()};
        uint32_t n = 16;
        while (n < r->opt.max_graphs && n < BUCKETS)
            n *= 2;
        t->buckets = tj_calloc(n, sizeof(struct tj_recording *));
        t->nbuckets = t->buckets ? n : 0;
    }
    if (!t->buckets)
        t->process = 0;
    return t->buckets != NULL;
}

static struct tj_recording **bucket(const struct tj_recordings *t, uint64_t hash) {
    return &t->buckets[hash & (t->nbuckets - 1)];
}

static void enter_recording(struct tj_recordings *t, struct tj_recording *rec) {
    struct tj_recording **p = bucket(t, rec->hash);
    rec->chain = *p;
    *p = rec;
    rec->newer = NULL;
    rec->older = t->newest;
    *(t->newest ? &t->newest->newer : &t->oldest) = rec;
    t->newest = rec;
    t->n++;
    rec->listed = true;
}

// The list's reference is the caller's.
static void unlist(struct tj_recordings *t, struct tj_recording *rec) {
    struct tj_recording **p = bucket(t, rec->hash);
    while (*p && *p != rec)
        p = &(*p)->chain;
    rec->listed = false;
    if (!*p)
        return;
    *p = rec->chain;
    *(rec->newer ? &rec->newer->older : &t->newest) = rec->older;
    *(rec->older ? &rec->older->newer : &t->oldest) = rec->newer;
    t->n--;
}

// The recordings of the box's signature, the youngest first, with references.
static uint32_t find(const struct tj_box *b, struct tj_recording **out) {
    struct trace_region *r = b->run.region;
    uint32_t n = 0;
    struct tj_recording *rec = table(r) ? *bucket(&r->recordings, b->sig_hash) : NULL;
    for (; rec && n < CASES; rec = rec->chain) {
        if (rec->hash == b->sig_hash && rec->ninputs == b->nsig &&
            tj_same(rec->inputs, b->sig, b->nsig * sizeof *b->sig)) {
            (void)atomic_fetch_add_explicit(&rec->refs, 1, memory_order_relaxed);
            out[n++] = rec;
        }
    }
    return n;
}

// Takes a recording off the region's list; the list's reference is the caller's. False: it was off already.
static bool unlink_recording(struct trace_region *r, struct tj_recording *rec) {
    tj_lock(&r->cache.lock);
    bool there = table(r) && rec->listed;
    if (there)
        unlist(&r->recordings, rec);
    tj_unlock(&r->cache.lock);
    return there;
}

// ---- signatures -----------------------------------------------------------------------------------------------------

static bool usable(const struct tj_run *run, const struct trace_tensor *t) {
    return t && t != TRACE_NONE && !tj_is_value(t) && t->ctx == run->ctx && t->state == TJ_T_READY;
}

// Up to the flags of the storage, which are looked at once it is held.
static bool same_inputs(const struct tj_run *run, const struct tj_recording *rec, trace_tensor *const *in, size_t n) {
    if (rec->ninputs != n)
        return false;
    for (size_t i = 0; i < n; i++) {
        const struct tj_signature *s = &rec->inputs[i];
        const struct trace_tensor *t = in[i];
        if (!usable(run, t) || t->dtype != s->dtype || t->rank != s->rank)
            return false;
        uint64_t id = atomic_load_explicit(&rec->ids[i], memory_order_relaxed);
        if (TJ_UNLIKELY(id && id != t->id))
            return false;
        for (int d = 0; d < t->rank; d++) {
            if (t->dims[d] != s->dims[d] || t->strides[d] != s->strides[d])
                return false;
        }
        for (size_t k = 0; k <= i; k++) {
            if (in[k] != t)
                continue;
            if (k != s->same)
                return false;
            break;
        }
    }
    return true;
}

static bool fill_signature(struct tj_box *b, trace_tensor *const *in, size_t n) {
    if (n > UINT16_MAX || !tj_grow((void **)&b->sig, &b->capsig, (uint32_t)n, sizeof *b->sig) ||
        !tj_grow((void **)&b->ids, &b->capids, (uint32_t)n, sizeof *b->ids))
        return false;
    b->nsig = (uint32_t)n;
    for (size_t i = 0; i < n; i++) {
        struct trace_tensor *t = in[i];
        struct tj_signature *s = &b->sig[i];
        if (!usable(&b->run, t))
            return false;
        struct tj_storage *st = tj_tensor_storage(t);
        if (!st)
            return false;
        memset(s, 0, sizeof *s);
        s->dtype = t->dtype;
        s->rank = t->rank;
        s->flags = st->flags;
        b->ids[i] = t->id;
        while (in[s->same] != t)
            s->same++;
        memcpy(s->dims, t->dims, t->rank * sizeof *t->dims);
        memcpy(s->strides, t->strides, t->rank * sizeof *t->strides);
        tj_storage_drop(st);
    }
    b->sig_hash = tj_hash_bytes(b->sig, n * sizeof *b->sig, n);
    return true;
}

// ---- instances ------------------------------------------------------------------------------------------------------

static void replay_free(struct tj_replay *p) {
    if (!p)
        return;
    for (uint32_t i = 0; p->held && i < p->rec->nleaves; i++)
        tj_storage_drop(p->held[i]);
    for (uint32_t i = 0; p->outs && i < p->seg.nouts; i++) {
        if (p->outs[i])
            tj_tensor_drop(p->outs[i]);
    }
    tj_free(p->leaves);
    tj_free(p->snaps);
    tj_free(p->held);
    tj_free(p->outs);
    tj_free(p->inputs);
    recording_put(p->rec);
    tj_free(p);
}

void tj_replay_forget(struct trace_region *r, const struct tj_entry *e) {
    struct tj_recordings *t = &r->recordings;
    struct tj_recording *gone = NULL;
    tj_lock(&r->cache.lock);
    for (struct tj_recording *rec = table(r) ? t->oldest : NULL, *newer; rec; rec = newer) {
        newer = rec->newer;
        if (rec->entry != e)
            continue;
        unlist(t, rec);
        rec->chain = gone;
        gone = rec;
    }
    tj_unlock(&r->cache.lock);
    while (gone) {
        struct tj_recording *next = gone->chain;
        recording_put(gone);
        gone = next;
    }
}

void tj_replay_box_forget(struct tj_box *b, const struct tj_entry *e) {
    for (size_t i = 0; i < TJ_REPLAYS; i++) {
        if (!b->replays[i] || b->replays[i]->rec->entry != e)
            continue;
        replay_free(b->replays[i]);
        b->replays[i] = NULL;
    }
}

void tj_replay_box_clear(struct tj_box *b) {
    for (size_t i = 0; i < TJ_REPLAYS; i++) {
        replay_free(b->replays[i]);
        b->replays[i] = NULL;
    }
}

void tj_replay_box_free(struct tj_box *b) {
    tj_replay_box_clear(b);
    tj_free(b->sig);
    tj_free(b->ids);
    tj_free(b->rules);
}

// rec: a reference, taken over.
static struct tj_replay *replay_new(struct tj_box *b, struct tj_recording *rec) {
    struct tj_replay *p = tj_calloc(1, sizeof *p);
    if (!p) {
        recording_put(rec);
        return NULL;
    }
    uint32_t n = rec->nleaves;
    p->rec = rec;
    p->trace = rec->trace;
    p->seg = rec->entry->seg;
    p->leaves = tj_calloc(n, sizeof *p->leaves);
    p->snaps = tj_calloc(n, sizeof *p->snaps);
    p->held = tj_calloc(n, sizeof(struct tj_storage *));
    p->outs = tj_calloc(p->seg.nouts, sizeof(struct trace_tensor *));
    p->inputs = tj_calloc(rec->ninputs, sizeof(struct trace_tensor *));
    if (!p->leaves || !p->snaps || !p->held || !p->outs || !p->inputs) {
        replay_free(p);
        return NULL;
    }
    p->trace.leaves = p->leaves;
    p->trace.params = rec->params;
    p->seg.trace = &p->trace;
    for (uint32_t i = 0; i < n; i++) {
        struct trace_tensor *s = &p->snaps[i];
        const struct trace_tensor *t = rec->sources[i];
        const struct tj_leaf_key *k = &p->trace.leafkeys[i];
        atomic_init(&s->refs, 1);
        s->dtype = k->dtype;
        s->rank = k->rank;
        s->layout = k->layout;
        memcpy(s->dims, tj_shape_dims(&p->trace, k->shape), k->rank * sizeof *s->dims);
        memcpy(s->strides, k->input ? rec->inputs[k->input - 1].strides : t->strides, k->rank * sizeof *s->strides);
        (void)tj_numel(s->dims, s->rank, &s->numel);
        s->offset = t ? t->offset : 0;
        s->ctx = b->run.ctx;
        s->internal = true;
        p->leaves[i] = (struct tj_leaf){s, NULL};
    }
    return p;
}

const struct tj_trace *tj_replay_trace(const struct tj_replay *p) { return &p->trace; }

// ---- begin ----------------------------------------------------------------------------------------------------------

static void leave(struct tj_replay *p, uint32_t process) {
    for (uint32_t i = 0; i < p->entered; i++) {
        struct tj_storage *st = p->snaps[i].st;
        tj_reader_leave(st, process);
        p->snaps[i].st = NULL;
        if (!p->rec->sources[i])
            tj_storage_drop(st);
    }
    p->entered = 0;
    for (uint32_t i = 0; p->rec->returns_input && i < p->rec->ninputs; i++) {
        if (p->inputs[i])
            tj_tensor_drop(p->inputs[i]);
        p->inputs[i] = NULL;
    }
}

void tj_replay_drop(struct tj_box *b) {
    leave(b->replay, b->run.process);
    b->replay = NULL;
}

enum answer {
    REPLAY,
    RECORD,
    OTHER, // another kind of memory: another recording, if any
    CLASH  // written memory overlaps other operands
};

// Holds the content that the leaves have now.
static enum answer enter(struct tj_replay *p, trace_tensor *const *in) {
    const struct tj_recording *rec = p->rec;
    for (uint32_t i = 0; i < rec->nleaves; i++) {
        struct trace_tensor *s = &p->snaps[i], *t = rec->sources[i];
        if (t) {
            for (;;) { // trace_write may give it other memory
                if (p->held[i] != __atomic_load_n(&t->st, __ATOMIC_RELAXED)) {
                    tj_storage_drop(p->held[i]);
                    p->held[i] = tj_tensor_storage(t);
                }
                tj_reader_enter(p->held[i]);
                if (TJ_LIKELY(p->held[i] == __atomic_load_n(&t->st, __ATOMIC_RELAXED)))
                    break;
                tj_reader_leave(p->held[i], tj_process());
            }
            s->st = p->held[i];
        } else {
            uint32_t k = p->trace.leafkeys[i].input - 1;
            s->st = tj_tensor_storage(in[k]);
            s->offset = in[k]->offset;
            tj_reader_enter(s->st);
            if (s->st->flags != rec->inputs[k].flags) {
                p->entered = i + 1;
                leave(p, tj_process());
                return OTHER;
            }
        }
        p->entered = i + 1;
    }
    // Written memory must still be apart from the rest: with groups of overlapping leaves nothing is replayed.
    for (uint32_t i = 0; rec->writes && i < rec->nleaves; i++) {
        if (!(p->trace.leafkeys[i].flags & TJ_LEAF_WRITTEN))
            continue;
        for (uint32_t k = 0; k < rec->nleaves; k++) {
            if (k != i && tj_tensors_overlap(&p->snaps[i], &p->snaps[k])) {
                leave(p, tj_process());
                return CLASH; // a case of its own, replayed only where an input is a captured tensor
            }
        }
    }
    for (uint32_t i = 0; rec->returns_input && i < rec->ninputs; i++) {
        p->inputs[i] = in[i];
        retain(in[i]);
    }
    return REPLAY;
}

// Opens a replay with the instance in slot i, whose inputs match. RECORD: b->note says whether the run is noted.
static enum answer try_slot(struct tj_box *b, size_t i, trace_tensor *const *in, size_t n) {
    struct trace_region *r = b->run.region;
    struct tj_replay *p = b->replays[i];
    bool gone = atomic_load_explicit(&p->rec->entry->evicted, memory_order_relaxed);
    bool ready = atomic_load_explicit(&p->rec->state, memory_order_acquire) == READY;
    if (TJ_UNLIKELY(gone || !ready)) {
        // A plan that was dropped is made again by runs that record; they begin anew.
        if (gone && unlink_recording(r, p->rec))
            recording_put(p->rec);
        b->replays[i] = NULL;
        replay_free(p);
        b->note = gone && fill_signature(b, in, n);
        return RECORD;
    }
    enum answer a = enter(p, in);
    if (TJ_UNLIKELY(a != REPLAY))
        return a;
    if (TJ_UNLIKELY(r->opt.replay_check && ++p->age >= r->opt.replay_check)) {
        p->age = 0;
        leave(p, tj_process());
        b->note = fill_signature(b, in, n);
        return RECORD;
    }
    if (i) { // the last one used is the first
        b->replays[i] = b->replays[0];
        b->replays[0] = p;
    }
    static const char text[] = "the run is a replay: trace_begin said to skip the body";
    b->replay = p;
    b->run.failed = TRACE_ERR_STATE; // ops of a host that doesn't look at trace_begin's answer record nothing
    memcpy(b->run.error, text, sizeof text);
    return REPLAY;
}

static bool ids_match(const struct tj_recording *rec, const struct tj_box *b) {
    for (uint32_t i = 0; i < b->nsig; i++) {
        uint64_t id = atomic_load_explicit(&rec->ids[i], memory_order_relaxed);
        if (id && id != b->ids[i])
            return false;
    }
    return true;
}

bool tj_replay_begin(struct tj_box *b, trace_tensor *const *in, size_t n) {
    struct trace_region *r = b->run.region;
    bool clash = false;
    for (size_t i = 0; i < TJ_REPLAYS; i++) {
        if (!b->replays[i] || !same_inputs(&b->run, b->replays[i]->rec, in, n))
            continue;
        enum answer a = try_slot(b, i, in, n);
        clash |= a == CLASH;
        if (a == REPLAY || a == RECORD)
            return a == REPLAY;
    }
    if (clash)
        return false;
    b->note = fill_signature(b, in, n);
    if (!b->note)
        return false;
    struct tj_recording *cases[CASES], *rec = NULL;
    tj_lock(&r->cache.lock);
    uint32_t found = find(b, cases);
    tj_unlock(&r->cache.lock);
    bool refused = false;
    for (uint32_t i = 0; i < found; i++) {
        int state = atomic_load_explicit(&cases[i]->state, memory_order_acquire);
        refused |= state == REFUSED;
        if (!rec && state == READY && ids_match(cases[i], b))
            rec = cases[i];
        else
            recording_put(cases[i]);
    }
    struct tj_replay *p = rec ? replay_new(b, rec) : NULL;
    if (!p) {
        b->note = !rec && !refused;
        return false;
    }
    replay_free(b->replays[TJ_REPLAYS - 1]);
    memmove(b->replays + 1, b->replays, (TJ_REPLAYS - 1) * sizeof *b->replays);
    b->replays[0] = p;
    b->note = false;
    return try_slot(b, 0, in, n) == REPLAY;
}

// ---- end ------------------------------------------------------------------------------------------------------------

static bool reusable(struct trace_tensor *t) {
    return t && atomic_load_explicit(&t->refs, memory_order_acquire) == 1 &&
           atomic_load_explicit(&t->st->refs, memory_order_acquire) == 1 && t->st->flags & TJ_ST_OWNED &&
           !atomic_load_explicit(&t->st->packed, memory_order_relaxed);
}

// Memory for the plan's results: what the host has released is taken again.
static bool make_outs(struct tj_box *b, struct tj_replay *p) {
    for (uint32_t i = 0; i < p->seg.nouts; i++) {
        struct trace_tensor *t = p->outs[i];
        if (TJ_LIKELY(reusable(t))) {
            (void)atomic_fetch_add_explicit(&t->st->version, 1, memory_order_relaxed);
            continue;
        }
        const struct tj_node *n = &p->trace.nodes[p->seg.outs[i]];
        if (t)
            tj_tensor_drop(t);
        p->outs[i] = tj_tensor_new(b->run.ctx, (tj_dtype)n->dtype, tj_shape_dims(&p->trace, n->shape),
                                   tj_shape_rank(&p->trace, n->shape), tj_ops[n->op].name, TJ_LOC(NULL, 0));
        if (!p->outs[i])
            return false;
    }
    return true;
}

static struct trace_tensor *deliver(struct tj_replay *p, const struct tj_out_rule *o) {
    struct trace_tensor *t = o->kind == OUT_COMPUTED ? p->outs[o->index]
                             : o->kind == OUT_INPUT  ? p->inputs[o->index]
                                                     : o->tensor;
    if (o->kind == OUT_VIEW) {
        const struct trace_tensor *leaf = &p->snaps[o->index];
        return tj_tensor_view(leaf->st, (tj_dtype)o->dtype, o->dims, o->strides, o->rank, leaf->offset + o->offset,
                              "view", TJ_LOC(NULL, 0));
    }
    retain(t);
    return t;
}

tj_status tj_replay_end(struct tj_box *b, trace_tensor **out, size_t n, struct tj_loc loc) {
    struct tj_replay *p = b->replay;
    struct tj_run *run = &b->run;
    struct tj_recording *rec = p->rec;
    run->failed = TRACE_OK;
    run->error[0] = '\0';
    if (TJ_UNLIKELY(n != rec->nrules)) {
        atomic_store(&rec->state, REFUSED);
        return tj_op_fail(TRACE_ERR_ARGUMENT, "trace_end", loc,
                          "the run is a replay of one with %u outputs, and %zu are asked for", rec->nrules, n);
    }
    for (uint32_t i = 0; rec->writes && i < rec->nleaves; i++) {
        if (p->trace.leafkeys[i].flags & TJ_LEAF_WRITTEN && atomic_load(&p->snaps[i].st->pins_packed))
            return tj_op_fail(TRACE_ERR_BUSY, "trace_end", loc,
                              "the run writes a tensor of which a live bound plan has a packed copy; release the bound "
                              "plan, run, bind again");
    }
    if (!make_outs(b, p))
        return tj_last_status();
    tj_status st = tj_segment_run(b, &p->seg, rec->entry, p->outs);
    for (uint32_t i = 0; rec->writes && i < rec->nleaves; i++) {
        if (p->trace.leafkeys[i].flags & TJ_LEAF_WRITTEN)
            (void)atomic_fetch_add_explicit(&p->snaps[i].st->version, 1, memory_order_release);
    }
    for (size_t i = 0; i < n && !st; i++) {
        out[i] = deliver(p, &rec->rules[i]);
        if (out[i])
            continue;
        st = tj_last_status();
        while (i-- > 0)
            trace_release(out[i]);
        break;
    }
    for (uint32_t i = 0; i < p->seg.nouts; i++) {
        if (TJ_UNLIKELY(st || p->outs[i]->st->bytes > KEEP_BYTES || run->ctx->opt.memory_limit)) {
            tj_tensor_drop(p->outs[i]);
            p->outs[i] = NULL;
        }
    }
    return st;
}

// ---- what a recorded run says ---------------------------------------------------------------------------------------

void tj_replay_outs(struct tj_box *b, trace_tensor *const *out, size_t n, const uint32_t *outmap) {
    struct tj_run *run = &b->run;
    if (!tj_grow((void **)&b->rules, &b->caprules, (uint32_t)n, sizeof *b->rules)) {
        b->note = false;
        return;
    }
    b->nrules = (uint32_t)n;
    for (size_t i = 0; i < n; i++) {
        struct tj_out_rule *o = &b->rules[i];
        struct trace_tensor *t = out[i];
        struct tj_place v = {.source = NULL};
        memset(o, 0, sizeof *o);
        if (outmap[i] != UINT32_MAX) {
            o->index = outmap[i]; // OUT_COMPUTED
            continue;
        }
        if (tj_is_value(t)) {
            tj_ref ref = tj_resolve(run, t, "trace_end", TJ_LOC(NULL, 0));
            if (ref == TJ_NIL || !tj_value_view(run, ref, &v)) {
                b->note = false; // stored by a break: not replayed anyway
                return;
            }
            t = v.source;
        }
        uint32_t leaf = 0;
        while (leaf < run->trace.nleaves &&
               (t ? run->trace.leaves[leaf].source != t : run->trace.leaves[leaf].tensor != v.tensor))
            leaf++;
        bool known = leaf < run->trace.nleaves;
        if (!t) {
            o->kind = OUT_VIEW;
            o->index = leaf;
            o->dtype = v.tensor->dtype;
            o->rank = (uint32_t)v.rank;
            o->offset = v.offset - v.tensor->offset;
            memcpy(o->dims, v.dims, v.rank * sizeof *v.dims);
            memcpy(o->strides, v.strides, v.rank * sizeof *v.strides);
            b->note &= known;
        } else if (known && run->trace.leafkeys[leaf].input) {
            o->kind = OUT_INPUT;
            o->index = run->trace.leafkeys[leaf].input - 1;
        } else {
            o->kind = OUT_TENSOR;
            o->tensor = t;
        }
    }
}

struct why {
    struct tj_loc loc;
    char text[500];
};

// The first op that has node n as an operand; TJ_NIL: none.
static tj_ref user_of(const struct tj_trace *t, tj_ref n) {
    for (tj_ref i = n + 1; i < t->nnodes; i++) {
        const tj_ref *in = tj_node_in(t, &t->nodes[i]);
        for (uint32_t k = 0; k < t->nodes[i].nin; k++) {
            if (in[k] == n)
                return i;
        }
    }
    return TJ_NIL;
}

// The node of leaf or parameter `index`.
static tj_ref node_of(const struct tj_trace *t, enum tj_op op, uint32_t index) {
    for (tj_ref i = 0; i < t->nnodes; i++) {
        if (t->nodes[i].op == op && ((const struct tj_attr_leaf *)tj_node_attr(t, &t->nodes[i]))->index == index)
            return i;
    }
    return TJ_NIL;
}

static void at_user(const struct tj_trace *t, tj_ref n, struct why *why, char *op, size_t cap) {
    tj_ref user = n == TJ_NIL ? TJ_NIL : user_of(t, n);
    (void)snprintf(op, cap, "an op");
    if (user != TJ_NIL) {
        why->loc = t->locs[user];
        (void)tj_op_text(t, user, op, cap);
    }
}

// Why the body of this run can't be skipped, whatever other runs record. False: it can.
static bool unsafe(const struct tj_box *b, struct why *why) {
    const struct tj_run *run = &b->run;
    const struct tj_trace *t = &run->trace;
    char op[300];
    *why = (struct why){.loc = TJ_LOC(NULL, 0)};
    if (run->host_call) {
        why->loc = run->host_at;
        (void)snprintf(why->text, sizeof why->text, "%s in the body: the host would miss it; call it after trace_end",
                       run->host_call);
    } else if (b->flushes || run->broke) {
        why->loc = b->broke_at;
        (void)snprintf(why->text, sizeof why->text, "graph break in the body (%s)",
                       b->broke_call ? b->broke_call : "?");
    } else if (b->later) {
        why->loc = b->later_at;
        (void)snprintf(why->text, sizeof why->text, "%s in the body: the host would miss it; make the value an output",
                       b->later);
    } else if (b->rolled) {
        (void)snprintf(why->text, sizeof why->text, "a region inside it failed");
    } else {
        for (uint32_t i = 0; i < t->nleaves; i++) {
            if (!t->leafkeys[i].group && (t->leafkeys[i].input || t->leaves[i].source))
                continue;
            at_user(t, node_of(t, TJ_OP_LEAF, i), why, op, sizeof op);
            (void)snprintf(why->text, sizeof why->text, "%s uses memory that another tensor of the body shares", op);
            return true;
        }
        return false;
    }
    return true;
}

// Whether the run recorded what rec holds; else why tells the difference.
static bool same(const struct tj_recording *rec, const struct tj_box *b, struct why *why) {
    const struct tj_trace *t = &b->run.trace, *old = &rec->trace;
    const struct tj_segment *s = &b->ended->seg, *o = &rec->entry->seg;
    char op[300];
    *why = (struct why){.loc = TJ_LOC(NULL, 0)};
    if ((rec->entry != b->ended || rec->entry->symbolic) && !tj_trace_equal(old, t)) {
        tj_ref i = 0;
        while (i < old->nnodes && i < t->nnodes && old->nodes[i].op == t->nodes[i].op &&
               old->nodes[i].dtype == t->nodes[i].dtype && old->nodes[i].nin == t->nodes[i].nin &&
               old->nodes[i].nattr == t->nodes[i].nattr &&
               !memcmp(tj_node_attr(old, &old->nodes[i]), tj_node_attr(t, &t->nodes[i]), t->nodes[i].nattr * 8u) &&
               !memcmp(tj_node_in(old, &old->nodes[i]), tj_node_in(t, &t->nodes[i]), t->nodes[i].nin * sizeof(tj_ref)))
            i++;
        if (i < t->nnodes) {
            why->loc = t->locs[i];
            (void)snprintf(why->text, sizeof why->text, "the body recorded other ops, from %s on",
                           tj_op_text(t, i, op, sizeof op));
        } else {
            (void)snprintf(why->text, sizeof why->text, "the body recorded fewer ops, or other shapes");
        }
        return false;
    }
    for (uint32_t i = 0; i < rec->nparams; i++) {
        const struct tj_param *x = &rec->params[i], *y = &t->params[i];
        if (!memcmp(&x->v, &y->v, sizeof x->v))
            continue;
        at_user(t, node_of(t, TJ_OP_SCALAR, i), why, op, sizeof op);
        if (tj_is_float((tj_dtype)y->dtype))
            (void)snprintf(why->text, sizeof why->text, "a scalar of %s was %g, is %g; make it a declared input", op,
                           x->v.f, y->v.f);
        else
            (void)snprintf(why->text, sizeof why->text,
                           "an integer argument of %s was %lld, is %lld; make it a declared input", op,
                           (long long)x->v.i, (long long)y->v.i);
        return false;
    }
    for (uint32_t i = 0; i < rec->nleaves; i++) {
        if (t->leafkeys[i].input || t->leaves[i].source == rec->sources[i])
            continue;
        at_user(t, node_of(t, TJ_OP_LEAF, i), why, op, sizeof op);
        (void)snprintf(why->text, sizeof why->text,
                       "%s was given another captured tensor than before; make it a declared input", op);
        return false;
    }
    bool outs = rec->nrules == b->nrules && tj_same(rec->rules, b->rules, b->nrules * sizeof *b->rules);
    if (rec->entry != b->ended)
        outs = outs && s->nouts == o->nouts && s->nwrites == o->nwrites &&
               tj_same(s->outs, o->outs, s->nouts * sizeof *s->outs) &&
               tj_same(s->writes, o->writes, s->nwrites * sizeof *s->writes);
    if (!outs)
        (void)snprintf(why->text, sizeof why->text, "other outputs are asked for, or other tensors are written");
    return outs;
}

static void tell(const struct tj_box *b, const struct why *why, bool stale) {
    const struct tj_run *run = &b->run;
    tj_event(run->ctx, run->region, TRACE_EVENT_REPLAY, why->loc.file ? why->loc : run->begin, -1, -1, 0, 0, 0,
             stale ? "stale replay: %s; results of replays since the last recorded run may be wrong, and the region "
                     "records from now on"
                   : "the body runs every time: %s",
             why->text);
}

// Whether the run may differ from what rec holds because a tensor that one of them captured (or gave as an output) was
// an input of the other.
static bool another_case(const struct tj_recording *rec, const struct tj_box *b) {
    const struct tj_trace *t = &b->run.trace;
    for (uint32_t k = 0; k < b->nsig; k++) {
        uint64_t id = atomic_load_explicit(&rec->ids[k], memory_order_relaxed);
        for (uint32_t i = 0; id && i < t->nleaves; i++) {
            if (!t->leafkeys[i].input && t->leaves[i].source && t->leaves[i].source->id == id)
                return true;
        }
        for (uint32_t i = 0; id && i < b->nrules; i++) {
            if (b->rules[i].tensor && b->rules[i].tensor->id == id)
                return true;
        }
        for (uint32_t i = 0; i < rec->nleaves; i++) {
            if (rec->sources[i] && rec->sources[i]->id == b->ids[k])
                return true;
        }
        for (uint32_t i = 0; i < rec->nrules; i++) {
            if (rec->rules[i].tensor && rec->rules[i].tensor->id == b->ids[k])
                return true;
        }
    }
    return false;
}

// The run recorded what rec holds.
static void confirm(struct tj_recording *rec, const struct tj_box *b) {
    int seen = SEEN;
    for (uint32_t i = 0; i < b->nsig; i++) {
        if (atomic_load_explicit(&rec->ids[i], memory_order_relaxed) != b->ids[i])
            atomic_store_explicit(&rec->ids[i], 0, memory_order_relaxed);
    }
    (void)atomic_compare_exchange_strong(&rec->state, &seen, READY);
}

// What the run says of the recordings of its signature. False: there is none for it; the caller enters one.
static bool compare(struct tj_box *b, struct tj_recording **cases, uint32_t n, bool bad, struct why *why) {
    struct why differs;
    for (uint32_t i = 0; i < n && !bad; i++) {
        if (atomic_load(&cases[i]->state) != REFUSED && same(cases[i], b, &differs)) {
            confirm(cases[i], b);
            return true;
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        if (atomic_load(&cases[i]->state) == REFUSED)
            return true;
    }
    for (uint32_t i = 0; i < n; i++) {
        int state = atomic_load(&cases[i]->state);
        bool would = state == READY && ids_match(cases[i], b); // have been replayed
        if (bad ? state == READY && !would : another_case(cases[i], b))
            continue;
        if (!bad)
            (void)same(cases[i], b, why);
        // Whoever refuses it tells.
        if (atomic_exchange(&cases[i]->state, REFUSED) != REFUSED)
            tell(b, why, would);
        return true;
    }
    return false;
}

void tj_replay_note(struct tj_box *b) {
    struct trace_region *r = b->run.region;
    struct tj_recordings *t = &r->recordings;
    struct tj_recording *cases[CASES], *old = NULL;
    struct why why;
    if (b->run.compile_only)
        return;
    bool bad = unsafe(b, &why);
    if (!bad && !b->ended)
        return; // nothing to run, or the plan isn't there yet
    tj_lock(&r->cache.lock);
    uint32_t n = find(b, cases);
    tj_unlock(&r->cache.lock);
    bool known = compare(b, cases, n, bad, &why);
    for (uint32_t i = 0; i < n; i++)
        recording_put(cases[i]);
    struct tj_recording *fresh = known ? NULL : recording_new(b, bad ? REFUSED : SEEN);
    if (!fresh)
        return; // no memory: the next run tries again
    tj_lock(&r->cache.lock);
    bool room = table(r);
    if (room) {
        enter_recording(t, fresh);
        if (t->n > r->opt.max_graphs) { // the oldest goes
            old = t->oldest;
            unlist(t, old);
        }
    }
    tj_unlock(&r->cache.lock);
    recording_put(room ? old : fresh);
    if (bad)
        tell(b, &why, false);
}
