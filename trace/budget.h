// trace/budget.h: limits of what a region or a context may compile and keep, and what happens when one is reached.
#ifndef TJ_TRACE_BUDGET_H
#define TJ_TRACE_BUDGET_H
#include "../include/tracejit.h"
#include "../lib/base.h"

#include <stdatomic.h>

#define TJ_BUDGETS (TRACE_BUDGET_KERNELS + 1)
struct tj_budget {
    _Atomic int64_t limit[TJ_BUDGETS]; // 0: none. COMPILE_MS in ns
    _Atomic int64_t used[TJ_BUDGETS];
    _Atomic uint8_t policy[TJ_BUDGETS];
    _Atomic uint32_t told; // bit a budget: a run without a plan was reported
};
enum tj_verdict { TJ_ALLOWED, TJ_WIDE /* with all extents of inputs symbolic */, TJ_INTERPRET, TJ_REFUSED };
struct tj_budget_answer {
    enum tj_verdict verdict;
    int what;     // enum trace_budget that decided, or -1
    bool context; // the context's
    int64_t used, limit;
    bool extents; // symbols would have spared the compile: a plan differs in extents alone
};
struct trace_region;
// Asks for one more compile in r and takes it from both budgets unless it is not allowed (given back by
// tj_budget_return). Any lock may be held.
void tj_budget_ask(struct trace_region *r, struct tj_budget_answer *out);
// Whether a compile would be allowed now; asks for none.
bool tj_budget_open(const struct trace_region *r);
void tj_budget_return(struct trace_region *r);
// A plan was made or dropped. kernels: compiled for it.
void tj_budget_made(struct trace_region *r, uint64_t ns, uint32_t kernels, uint64_t code);
void tj_budget_dropped(struct trace_region *r, uint64_t code);
// The region goes, and its plans with it.
void tj_budget_gone(struct trace_region *r);
// Whether plans have to go; the limit into *what.
bool tj_budget_exceeded(const struct tj_budget *b, int *what);
// The event of a decision; with TJ_REFUSED also the error text, status TRACE_ERR_BUDGET.
void tj_budget_tell(struct trace_region *r, const struct tj_budget_answer *a, const char *site);
const char *tj_budget_name(int what);
#endif
