// trace/timeline.h: what happens in a context as Chrome trace events, for Perfetto and the like.
//
// Events become text at once and go into one of two buffers under a lock held for a copy; whoever fills a buffer writes
// it, without the lock, while others fill the second. When both are full an event is dropped and counted. The file is
// valid JSON after every write: the end of the list is written behind each piece, and overwritten by the next.
#ifndef TJ_TRACE_TIMELINE_H
#define TJ_TRACE_TIMELINE_H
#include "region.h"

struct tj_timeline_event {
    const char *category; // literal: "run", "record", "segment", "kernel", "compile", "break", "event"
    const char *name;
    const struct trace_region *region; // may be NULL
    struct tj_loc where;
    const char *what;    // reason or advice, or NULL
    const char *counted; // literal: name of `count`, or NULL
    uint64_t count;
};
// A span of the calling thread, or (to 0) a moment. Nothing when no timeline is written.
void tj_timeline_add(trace_context *ctx, uint64_t from_ns, uint64_t to_ns, const struct tj_timeline_event *e);
void tj_timeline_free(trace_context *ctx); // ends it
void tj_timeline_flush(trace_context *ctx);
// A run that ends, the body of which ended at `ended`. failed: the error's text, or NULL.
void tj_timeline_run(struct tj_box *b, uint64_t ended, struct tj_loc loc, const char *failed);
// The timeline that TRACEJIT_TIMELINE asks for; a file that can't be made is a line on stderr.
void tj_timeline_environment(trace_context *ctx);
// A plan that was made, with its parts.
void tj_timeline_compile(const struct trace_region *r, const struct tj_entry *e, struct tj_loc where);
#endif
