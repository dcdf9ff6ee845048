// jit/cpu_backend.h: state of the CPU backend in one context, shared by plan, pack and backend.
#ifndef TJ_JIT_CPU_BACKEND_H
#define TJ_JIT_CPU_BACKEND_H
#include "../kernels/contract.h"
#include "../trace/region.h"
#include "kcache.h"

struct tj_jit {
    trace_context *ctx;
    void *dl;                        // the compiler module
    const struct tj_module_api *api; // its table
    void *compiler;
    struct tj_kcache *kernels;
    tj_mutex pack_lock;              // guards every storage's set of packed copies
    tj_cond pack_done;               // a copy has been filled
    struct tj_packed_set *packed;    // the sets
    uint32_t pack_epoch;             // one more when fork left them in the middle of a change
    tj_mutex plans_lock;             // guards what follows
    struct tj_plan *plans, *sweep;   // all plans; the next one that is looked at for workspaces unused for long
    _Atomic uint32_t round;          // times all of them were looked at
    atomic_uint dump_serial;         // numbers the files of TRACEJIT_DUMP
    const void *helpers[TJ_HELPERS]; // C functions kernels may call
    struct tj_exec_host exec;        // the host's executable memory; map NULL: the system's
};

// Compiles units into memory of the context's choice.
tj_status tj_jit_compile(struct tj_jit *jit, struct tj_unit *units, size_t n, unsigned want,
                         struct tj_compile_result *out);

// ---- names of kernels (perf.c) --------------------------------------------------------------------------------------

// Gives the units of a step labels (tj_malloc).
tj_status tj_perf_label(const struct tj_segment *seg, const struct tj_step *st, struct tj_unit *units, size_t n);
// Tells perf and GDB of what was compiled; a failure is logged.
void tj_perf_tell(const struct tj_env *env, const struct tj_unit *units, size_t n, struct tj_compile_result *res);

// ---- packed weights (pack.c) ----------------------------------------------------------------------------------------

// A repacked copy of (a view of) a storage. It belongs to the storage and its version: superseded copies go when the
// last run that uses them has ended, the current one with the storage.
struct tj_packed;
struct tj_packed_set; // those of a storage
// Finds or makes the copy of `w` (a view of st at element offset `offset`) in the form c wants, with a reference. NULL:
// there is no room for it; w is used as it lies. must: whatever the bound of the storage's set is (a bound plan).
struct tj_packed *tj_pack_get(struct tj_jit *jit, struct tj_storage *st, const struct tj_contract *c,
                              const struct tj_view *w, int64_t offset, bool must);
const void *tj_packed_data(const struct tj_packed *p);
void tj_pack_put(struct tj_packed *p); // NULL is fine
void tj_pack_free_all(struct tj_storage *st);
void tj_pack_trim(struct tj_jit *jit); // drops copies that nobody uses now

// ---- memory planning (memplan.c) ------------------------------------------------------------------------------------

// Places n buffers of bytes[i], live in steps [first[i], last[i]], in one arena: fills offset[i] (TJ_ALIGN-aligned) and
// *total so that buffers live at the same time do not overlap. Largest first, lowest fitting offset. False on overflow.
bool tj_memplan(size_t n, const size_t *bytes, const uint32_t *first, const uint32_t *last, size_t *offset,
                size_t *total, uint32_t *scratch /* n entries */);

// ---- plans (plan.c) -------------------------------------------------------------------------------------------------

tj_status tj_plan_compile(void *state, const struct tj_segment *seg, struct tj_plan **out, struct tj_plan_info *info);
tj_status tj_plan_run(struct tj_plan *p, const struct tj_run_args *args);
bool tj_plan_serves(const struct tj_plan *p, const struct tj_trace *t, struct tj_guard_miss *why);
tj_status tj_plan_bind(struct tj_plan *p, const struct tj_run_args *args, struct tj_bind *o,
                       struct tj_bound_plan **out);
void tj_bound_plan_run(struct tj_bound_plan *b);
void tj_bound_plan_free(struct tj_bound_plan *b); // NULL is fine
void tj_plan_release(struct tj_plan *p);
size_t tj_plans_trim(struct tj_jit *jit); // drops the workspaces that no run uses now; their bytes
size_t tj_plans_idle(struct tj_jit *jit); // bytes of those
void tj_plan_describe(const struct tj_plan *p, struct tj_strbuf *sb);

// ---- reports (plan_report.c) ----------------------------------------------------------------------------------------

struct tj_step_notes {    // what is kept of a step for reports
    struct tj_step_time { // of watched runs; under the plan's lock
        uint64_t runs, total_ns;
        uint64_t best_ns, bytes, flops; // the best time of those that moved most, and what they did
    } time;
    _Atomic(char *) code; // its assembly, once somebody asked
};
struct tj_step_work {
    uint64_t read, written, flops;
    bool f64;
};
// What a step does: with the values of a run's expressions, or (vals NULL) at the recorded shapes.
void tj_step_work(const struct tj_program *g, const struct tj_step *st, const int64_t *vals, struct tj_step_work *out);
void tj_plan_times(const struct tj_plan *p, uint32_t i, struct tj_step_time *out);
tj_status tj_plan_report(const struct tj_plan *p, struct tj_arena *a, struct tj_plan_report *out);
bool tj_plan_extent(const struct tj_plan *p, tj_ref node, uint32_t dim, char *buf, size_t cap);
tj_status tj_plan_code(struct tj_plan *p, uint32_t kernel, const char **text);
// In plan.c: what they read of it. units: room for 1 + TJ_CONTRACT_TILES.
size_t tj_plan_step_units(const struct tj_plan *p, uint32_t i, struct tj_unit *units);
uint64_t tj_plan_step_packed(const struct tj_plan *p, uint32_t i); // bytes of its repacked weight, recorded shapes
const struct tj_program *tj_plan_program(const struct tj_plan *p);
struct tj_step_notes *tj_plan_notes(const struct tj_plan *p);
struct tj_jit *tj_plan_jit(const struct tj_plan *p);
#endif
