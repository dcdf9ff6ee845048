// trace/event.c: events: counted, logged, told to the host.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "timeline.h"

const char *tj_loc_text(struct tj_loc loc, char *buf, size_t cap) {
    if (loc.file)
        (void)snprintf(buf, cap, "%s:%d", loc.file, (int)loc.line);
    else if (cap)
        buf[0] = '\0';
    return buf;
}

const char *tj_op_text(const struct tj_trace *t, tj_ref n, char *buf, size_t cap) {
    char where[200];
    struct tj_loc loc = n < t->nnodes ? t->locs[n] : TJ_LOC(NULL, 0);
    const char *op = n < t->nnodes ? tj_call_name(t, n) : "value";
    (void)tj_loc_text(loc, where, sizeof where);
    (void)snprintf(buf, cap, where[0] ? "%s (%s)" : "%s", op, where);
    return buf;
}

static const struct {
    enum tj_log_topic topic;
    const char *prefix; // the line users look for begins with it
} kinds[] = {
    [TRACE_EVENT_COMPILE] = {TJ_LOG_RECOMPILES, "compiling new graph"},
    [TRACE_EVENT_RECOMPILE] = {TJ_LOG_RECOMPILES, "compiling new graph"},
    [TRACE_EVENT_BREAK] = {TJ_LOG_BREAKS, "graph break"},
    [TRACE_EVENT_EVICT] = {TJ_LOG_CACHE, "plan evicted"},
    [TRACE_EVENT_FALLBACK] = {TJ_LOG_ERRORS, "fallback"},
    [TRACE_EVENT_LINT] = {TJ_LOG_BREAKS, "unused condition"},
    [TRACE_EVENT_REPLAY] = {TJ_LOG_BREAKS, "no replay"},
    [TRACE_EVENT_CHECK] = {TJ_LOG_ERRORS, "check failed"},
    [TRACE_EVENT_BUDGET] = {TJ_LOG_RECOMPILES, "budget"},
};

void tj_event(trace_context *ctx, const struct trace_region *r, enum trace_event_kind kind, struct tj_loc where,
              int input, int dim, int64_t from, int64_t to, double ms, const char *fmt, ...) {
    // A fallback is never silent: without a callback it's a line on stderr, whatever TRACEJIT_LOG says.
    // So is a failed check, which is a line whether there's a callback or not.
    bool logged = tj_env_logs(&ctx->env, kinds[kind].topic) || kind == TRACE_EVENT_CHECK ||
                  (kind == TRACE_EVENT_FALLBACK && !ctx->opt.on_event);
    bool drawn = tj_timeline_on(ctx) && kind != TRACE_EVENT_BREAK && kind != TRACE_EVENT_COMPILE; // drawn by others
    if (!logged && !ctx->opt.on_event && !drawn)
        return;
    char what[TJ_ERROR_MAX], place[256];
    va_list ap;
    va_start(ap, fmt);
    if (vsnprintf(what, sizeof what, fmt, ap) < 0)
        what[0] = '\0';
    va_end(ap);
    (void)tj_loc_text(where, place, sizeof place);
    const char *name = r && !r->hidden ? r->name : "";
    if (drawn)
        tj_timeline_add(
            ctx, tj_now_ns(), 0,
            &(struct tj_timeline_event){
                .category = "event", .name = kinds[kind].prefix, .region = r, .where = where, .what = what});
    if (logged) {
        struct tj_env env = ctx->env;
        env.log |= 1u << kinds[kind].topic;
        if (name[0])
            tj_log(&env, kinds[kind].topic, "%s: region '%s': %s%s%s%s (%.1f ms)", kinds[kind].prefix, name, what,
                   place[0] ? " [" : "", place, place[0] ? "]" : "", ms);
        else
            tj_log(&env, kinds[kind].topic, "%s: %s%s%s%s (%.1f ms)", kinds[kind].prefix, what, place[0] ? " [" : "",
                   place, place[0] ? "]" : "", ms);
    }
    if (ctx->opt.on_event) {
        trace_event e = {.size = sizeof e,
                         .kind = kind,
                         .region = name,
                         .where = place,
                         .what = what,
                         .input = input,
                         .dim = dim,
                         .from = from,
                         .to = to,
                         .ms = ms};
        struct tj_callout c;
        tj_callout_enter(&c);
        ctx->opt.on_event(ctx->opt.event_user, &e);
        tj_callout_leave(&c);
    }
}
