// trace/repeats.h: whether two recordings differ in how often a loop of the host ran.
#ifndef TJ_TRACE_REPEATS_H
#define TJ_TRACE_REPEATS_H
#include "ir.h"

struct tj_repeats {
    char where[240];  // "model.c:20-31": the lines of the ops that repeat
    int64_t from, to; // times they were recorded, and are now
};
// True when one of the traces is the other with some ops repeated more often, as far as ops and their lines tell.
bool tj_repeats_find(const struct tj_trace *old, const struct tj_trace *now, struct tj_repeats *out);
#endif
