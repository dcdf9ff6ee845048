// trace/timeline.c: Chrome trace events, written while the program runs.
#include "timeline.h"

#include <stdio.h>
#include <stdlib.h>

#include "../lib/file.h"
#include "../lib/strbuf.h"

enum {
    ROOM = 1 << 18, // bytes of a buffer
    COMMA = 2,      // between events
    TAIL = 160      // room for the end of the list
};
static const char head[] = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n";

struct buffer {
    size_t n;
    uint64_t events;
    char text[COMMA + ROOM + TAIL]; // a comma, which the first piece of a file leaves out; the events; the end
};
// Made at the first start and kept until the context goes: threads may look at it at any time.
struct tj_timeline {
    tj_mutex lock;
    tj_cond done; // a buffer has been written
    bool open;    // the file is
    bool writing; // some thread writes the buffer that isn't filled
    int fd;
    // Read without the lock by threads that add.
    _Atomic uint32_t process; // that started it
    _Atomic uint32_t pid;
    _Atomic uint64_t session; // by which threads know whether they have told their names
    _Atomic uint64_t start_ns;
    uint64_t at; // where the next piece goes
    uint64_t written, dropped;
    unsigned filling; // buffer
    struct buffer buffers[2];
};

static _Atomic uint64_t sessions; // numbers of starts, of all contexts

// ---- writing --------------------------------------------------------------------------------------------------------

// As long whatever the counts are, so that it fits where the last one did when the disk is full.
static size_t ending(const struct tj_timeline *t, char *buf, size_t cap) {
    return (size_t)snprintf(
        buf, cap, "\n],\"otherData\":{\"library\":\"tracejit %s\",\"events\":%20llu,\"dropped_events\":%20llu}}\n",
        trace_version(), (unsigned long long)t->written, (unsigned long long)t->dropped);
}

// Writes the buffer being filled, while nobody writes the other one. The lock is held, but not while writing.
static void flush(struct tj_timeline *t) {
    struct buffer *b = &t->buffers[t->filling];
    t->writing = true;
    t->filling ^= 1;
    t->buffers[t->filling].n = t->buffers[t->filling].events = 0;
    t->written += b->events; // as the end of the list says, which goes out with the piece
    bool first = t->at == sizeof head - 1 || !b->events;
    const char *from = first ? b->text + COMMA : b->text;
    size_t n = b->n + (first ? 0 : COMMA), tail = ending(t, b->text + COMMA + b->n, TAIL);
    uint64_t at = t->at;
    int fd = t->fd;
    tj_unlock(&t->lock);
    bool ok = tj_file_write_at(fd, at, from, n + tail);
    (void)tj_lock(&t->lock);
    if (ok) {
        t->at = at + n;
    } else { // disk full, say: the list ends where it ended
        char end[TAIL];
        t->written -= b->events;
        t->dropped += b->events;
        tail = ending(t, end, sizeof end);
        (void)tj_file_write_at(fd, t->at, end, tail);
        tj_file_cut(fd, t->at + tail);
    }
    t->writing = false;
    tj_cond_wake(&t->done);
}

static void append(struct tj_timeline *t, const struct tj_strbuf *sb) {
    (void)tj_lock(&t->lock);
    if (t->open && t->buffers[t->filling].n + sb->n + COMMA > ROOM && !t->writing)
        flush(t);
    struct buffer *b = &t->buffers[t->filling];
    if (t->open && (sb->failed || !sb->n || b->n + sb->n + COMMA > ROOM)) {
        t->dropped++;
    } else if (t->open) {
        char *to = b->text + COMMA + b->n;
        size_t comma = b->events ? COMMA : 0;
        memcpy(to, ",\n", comma);
        memcpy(to + comma, sb->s, sb->n);
        b->n += comma + sb->n;
        b->events++;
    }
    tj_unlock(&t->lock);
}

// ---- events ---------------------------------------------------------------------------------------------------------

static void put_time(struct tj_strbuf *sb, const char *key, uint64_t ns) {
    tj_sb_printf(sb, ",\"%s\":%llu.%03u", key, (unsigned long long)(ns / 1000), (unsigned)(ns % 1000));
}

static void put_string(struct tj_strbuf *sb, const char *before, const char *key, const char *value) {
    tj_sb_printf(sb, "%s\"%s\":", before, key);
    tj_sb_json(sb, value);
}

// The first event of a thread is its name.
static void introduce(struct tj_timeline *t) {
    static _Thread_local uint64_t introduced;
    if (introduced == t->session)
        return;
    introduced = t->session;
    struct tj_strbuf sb = {0};
    char name[32];
    tj_thread_name(name, sizeof name);
    tj_sb_printf(&sb, "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%u,\"tid\":%u,\"args\":{", t->pid,
                 tj_thread_id());
    put_string(&sb, "", "name", name[0] ? name : "thread");
    tj_sb_puts(&sb, "}}");
    append(t, &sb);
    tj_sb_free(&sb);
}

void tj_timeline_add(trace_context *ctx, uint64_t from, uint64_t to, const struct tj_timeline_event *e) {
    struct tj_timeline *t = atomic_load_explicit(&ctx->timeline, memory_order_acquire);
    if (!t || !tj_timeline_on(ctx) || t->process != tj_process())
        return;
    introduce(t);
    struct tj_strbuf sb = {0};
    char where[300];
    uint64_t start = t->start_ns, begin = from > start ? from - start : 0;
    put_string(&sb, "{", "name", e->name);
    tj_sb_printf(&sb, ",\"cat\":\"%s\",\"ph\":\"%s\",\"pid\":%u,\"tid\":%u", e->category, to ? "X" : "i", t->pid,
                 tj_thread_id());
    put_time(&sb, "ts", begin);
    if (to)
        put_time(&sb, "dur", to > from ? to - from : 0);
    else
        tj_sb_puts(&sb, ",\"s\":\"t\"");
    tj_sb_puts(&sb, ",\"args\":{");
    const char *sep = "";
    if (e->region && !e->region->hidden) {
        put_string(&sb, sep, "region", e->region->name);
        sep = ",";
    }
    if (tj_loc_text(e->where, where, sizeof where)[0]) {
        put_string(&sb, sep, "where", where);
        sep = ",";
    }
    if (e->what) {
        put_string(&sb, sep, "what", e->what);
        sep = ",";
    }
    if (e->counted)
        tj_sb_printf(&sb, "%s\"%s\":%llu", sep, e->counted, (unsigned long long)e->count);
    tj_sb_puts(&sb, "}}");
    append(t, &sb);
    tj_sb_free(&sb);
}

void tj_timeline_compile(const struct trace_region *r, const struct tj_entry *e, struct tj_loc where) {
    static const char *const parts[] = {"schedule", "emit", "codegen"};
    const uint64_t ns[] = {e->info.schedule_ns, e->info.emit_ns, e->info.codegen_ns};
    if (!tj_timeline_on(r->ctx))
        return;
    uint64_t whole = (uint64_t)(e->ms * 1e6), from = e->made_ns - whole, to = e->made_ns;
    char name[160];
    (void)snprintf(name, sizeof name, "compile %s", e->site);
    struct tj_timeline_event v = {.category = "compile",
                                  .name = name,
                                  .region = r,
                                  .where = where,
                                  .what = e->why       ? e->why
                                          : e->trimmed ? "later runs store across the break only what was used"
                                                       : "first graph that ends there",
                                  .counted = "kernels_compiled",
                                  .count = e->info.new_kernels};
    tj_timeline_add(r->ctx, from, to, &v);
    // Only their lengths are known: they follow each other up to the end.
    uint64_t sum = ns[0] + ns[1] + ns[2], at = sum < whole ? to - sum : from;
    for (int i = 0; i < 3; i++) {
        uint64_t end = at + ns[i] < to ? at + ns[i] : to;
        v = (struct tj_timeline_event){.category = "compile", .name = parts[i], .region = r};
        if (ns[i])
            tj_timeline_add(r->ctx, at, end, &v);
        at = end;
    }
}

// ---- watched runs ---------------------------------------------------------------------------------------------------

static void kernel_step(void *arg, const char *kernel, tj_ref node, uint64_t from, uint64_t to) {
    const struct tj_watching *w = arg;
    const struct tj_trace *t = w->seg->trace;
    struct tj_timeline_event e = {
        .category = "kernel", .name = kernel ? kernel : "kernel", .region = w->box->run.region};
    if (node < t->nnodes)
        e.where = t->locs[node];
    tj_timeline_add(w->box->run.ctx, from, to, &e);
}

const struct tj_watch *tj_watch_start(struct tj_box *b, const struct tj_segment *seg, struct tj_watching *w) {
    bool on = tj_timeline_on(b->run.ctx);
    *w = (struct tj_watching){.box = b, .seg = seg, .from_ns = on ? tj_now_ns() : 0};
    w->watch.measure = atomic_load_explicit(&b->run.region->profiled, memory_order_relaxed);
    w->watch.step = on ? kernel_step : NULL;
    w->watch.arg = w;
    return &w->watch;
}

void tj_watch_end(struct tj_watching *w, const struct tj_entry *e) {
    if (!w->from_ns)
        return;
    char name[120];
    (void)snprintf(name, sizeof name, "segment: %s", e ? e->site : "interpreted");
    const struct tj_trace *t = w->seg->trace;
    struct tj_timeline_event v = {.category = "segment",
                                  .name = name,
                                  .region = w->box->run.region,
                                  .what = e && e->plan ? NULL : "the interpreter ran it",
                                  .counted = "ops",
                                  .count = t->nnodes - t->nleaves - t->nparams};
    tj_timeline_add(w->box->run.ctx, w->from_ns, tj_now_ns(), &v);
}

// ---- start and stop -------------------------------------------------------------------------------------------------

tj_status trace_timeline_start(trace_context *ctx, const char *path) {
    if (!ctx || !path)
        return tj_fail(TRACE_ERR_ARGUMENT, "trace_timeline_start: NULL %s", ctx ? "path" : "context");
    struct tj_timeline *t = atomic_load(&ctx->timeline), *none = NULL;
    if (!t) {
        if (!(t = tj_calloc(1, sizeof *t)))
            return tj_fail(TRACE_ERR_MEMORY, "trace_timeline_start: out of memory");
        if (!atomic_compare_exchange_strong(&ctx->timeline, &none, t)) {
            tj_free(t);
            t = none;
        }
    }
    tj_status st = TRACE_OK;
    char why[160], tail[TAIL];
    (void)tj_lock(&t->lock);
    if (t->open && t->process != tj_process()) { // of the parent: fork left it here
        tj_file_close(t->fd);
        t->open = false;
    }
    if (t->open) {
        st = tj_fail(TRACE_ERR_STATE, "trace_timeline_start: a timeline is being written; trace_timeline_stop ends it");
    } else if ((t->fd = tj_file_create(path, why, sizeof why)) < 0) {
        st = tj_fail(TRACE_ERR_ARGUMENT, "trace_timeline_start: '%.300s' %s", path, why);
    } else {
        t->process = tj_process();
        t->pid = tj_process_id();
        t->session = atomic_fetch_add(&sessions, 1) + 1;
        t->start_ns = tj_now_ns();
        t->at = sizeof head - 1;
        t->written = t->dropped = t->filling = 0;
        t->writing = false;
        t->buffers[0].n = t->buffers[0].events = 0;
        memcpy(t->buffers[0].text, ",\n", COMMA);
        memcpy(t->buffers[1].text, ",\n", COMMA);
        size_t n = ending(t, tail, sizeof tail);
        if (!tj_file_write_at(t->fd, 0, head, sizeof head - 1) || !tj_file_write_at(t->fd, t->at, tail, n)) {
            tj_file_close(t->fd);
            st = tj_fail(TRACE_ERR_ARGUMENT, "trace_timeline_start: '%.300s' can't be written", path);
        } else {
            t->open = true;
            atomic_store(&ctx->timeline_on, true);
        }
    }
    tj_unlock(&t->lock);
    return st;
}

static tj_status stop(trace_context *ctx, struct tj_timeline *t) {
    (void)tj_lock(&t->lock);
    atomic_store(&ctx->timeline_on, false);
    while (t->open && t->writing && t->process == tj_process())
        tj_cond_wait(&t->done, &t->lock, TJ_FOREVER);
    tj_status st = TRACE_OK;
    if (!t->open || t->process != tj_process()) {
        st = tj_fail(TRACE_ERR_STATE, "trace_timeline_stop: no timeline is being written");
    } else {
        uint64_t lost = t->dropped;
        do
            flush(t);                          // also when the buffer is empty: for the count of dropped events
        while (t->buffers[t->filling].events); // of threads that were at it, while the lock was free
        t->open = false;
        tj_file_close(t->fd);
        if (t->dropped > lost)
            st = tj_fail(TRACE_ERR_ARGUMENT, "trace_timeline_stop: the last %llu events can't be written",
                         (unsigned long long)(t->dropped - lost));
    }
    tj_unlock(&t->lock);
    return st;
}

tj_status trace_timeline_stop(trace_context *ctx) {
    if (!ctx)
        return tj_fail(TRACE_ERR_ARGUMENT, "trace_timeline_stop: NULL context");
    struct tj_timeline *t = atomic_load(&ctx->timeline);
    return t ? stop(ctx, t) : tj_fail(TRACE_ERR_STATE, "trace_timeline_stop: no timeline is being written");
}

void tj_timeline_flush(trace_context *ctx) {
    struct tj_timeline *t = atomic_load(&ctx->timeline);
    if (!t || t->process != tj_process())
        return;
    (void)tj_lock(&t->lock);
    if (t->open && !t->writing)
        flush(t);
    tj_unlock(&t->lock);
}

void tj_timeline_run(struct tj_box *b, uint64_t ended, struct tj_loc loc, const char *failed) {
    const struct tj_trace *t = &b->run.trace;
    bool replay = b->replay != NULL;
    struct tj_timeline_event e = {.category = "run",
                                  .name = b->run.region->name,
                                  .region = b->run.region,
                                  .where = loc,
                                  .what = failed   ? failed
                                          : replay ? "the body was skipped"
                                                   : NULL,
                                  .counted = failed ? "failed" : NULL,
                                  .count = 1};
    tj_timeline_add(b->run.ctx, b->begun_ns, tj_now_ns(), &e);
    e = (struct tj_timeline_event){.category = "record",
                                   .name = "body",
                                   .region = b->run.region,
                                   .where = b->run.begin,
                                   .counted = "ops",
                                   .count = t->nnodes - t->nleaves - t->nparams};
    if (!replay)
        tj_timeline_add(b->run.ctx, b->begun_ns, ended, &e);
}

void tj_timeline_free(trace_context *ctx) {
    struct tj_timeline *t = atomic_load(&ctx->timeline);
    if (t && t->open && t->process == tj_process())
        (void)stop(ctx, t);
    tj_free(t);
}

void tj_timeline_environment(trace_context *ctx) {
    static _Atomic unsigned files; // a process may have several contexts, each gets a file
    if (!ctx->env.timeline[0])
        return;
    char path[sizeof ctx->env.timeline + 16];
    unsigned n = atomic_fetch_add(&files, 1);
    if (n)
        (void)snprintf(path, sizeof path, "%s.%u", ctx->env.timeline, n + 1);
    else
        (void)snprintf(path, sizeof path, "%s", ctx->env.timeline);
    if (trace_timeline_start(ctx, path)) {
        struct tj_env env = ctx->env;
        env.log |= 1u << TJ_LOG_ERRORS;
        tj_log(&env, TJ_LOG_ERRORS, "TRACEJIT_TIMELINE: %s", tj_last_error());
    }
}
