// trace/report.c: what a context has done, as text, JSON, a page or for Prometheus.
#include <stdio.h>

#include "explain.h"

// ---- text -----------------------------------------------------------------------------------------------------------

static void text_counters(struct tj_strbuf *sb, const trace_stats *s, const char *indent) {
    tj_sb_printf(sb, "%sruns %llu (%llu failed), plan hits %llu, misses %llu, plans made %llu, recompiles %llu\n",
                 indent, (unsigned long long)s->runs, (unsigned long long)s->errors, (unsigned long long)s->hits,
                 (unsigned long long)s->misses, (unsigned long long)s->graphs, (unsigned long long)s->recompiles);
    tj_sb_printf(
        sb, "%sops recorded %llu, ops fused away %llu, kernels compiled %llu, launched %llu, interpreted ops %llu\n",
        indent, (unsigned long long)s->ops_recorded, (unsigned long long)s->fused_away, (unsigned long long)s->kernels,
        (unsigned long long)s->launches, (unsigned long long)s->interpreted_ops);
    tj_sb_printf(sb, "%sgraph breaks %llu, evictions %llu, nested regions %llu, ops outside regions %llu\n", indent,
                 (unsigned long long)s->breaks, (unsigned long long)s->evictions, (unsigned long long)s->nested,
                 (unsigned long long)s->eager_ops);
    if (s->checks)
        tj_sb_printf(sb, "%sruns checked against the interpreter %llu, different %llu\n", indent,
                     (unsigned long long)s->checks, (unsigned long long)s->check_failures);
    if (s->bucket_bytes)
        tj_sb_printf(sb, "%sworkspaces of buckets: %.1f%% padding\n", indent,
                     100.0 * (double)s->padding_bytes / (double)s->bucket_bytes);
    tj_sb_printf(sb, "%sms: recording %.3f, running %.3f (worst run %.3f), compiling %.3f\n", indent,
                 (double)s->record_ns / 1e6, (double)s->run_ns / 1e6, (double)s->worst_run_ns / 1e6,
                 (double)(s->schedule_ns + s->emit_ns + s->codegen_ns) / 1e6);
}

static void text_bytes(struct tj_strbuf *sb, const trace_stats *s) {
    tj_sb_printf(sb, "bytes: tensors and workspaces %llu (idle workspaces %llu), kept for the next %llu, code %llu\n",
                 (unsigned long long)s->bytes_live, (unsigned long long)s->bytes_idle,
                 (unsigned long long)s->bytes_kept, (unsigned long long)s->bytes_code);
    tj_sb_printf(sb, "packed weights: %llu bytes in %llu copies", (unsigned long long)s->bytes_packed,
                 (unsigned long long)s->packed_copies);
    if (s->packed_dropped || s->packed_refused)
        tj_sb_printf(sb, "; %llu made room for others, %llu operands found no room and were used as they lie",
                     (unsigned long long)s->packed_dropped, (unsigned long long)s->packed_refused);
    tj_sb_puts(sb, "\n");
}

// Lines of a longer text, indented.
static void text_lines(struct tj_strbuf *sb, const char *text, const char *indent) {
    while (text && *text) {
        size_t n = strcspn(text, "\n");
        tj_sb_printf(sb, "%s%.*s\n", indent, (int)n, text);
        text += n + (text[n] == '\n');
    }
}

static void describe_plan(const struct tj_entry *e, struct tj_strbuf *sb) {
    if (e->plan && e->ctx->backend->describe)
        e->ctx->backend->describe(e->plan, sb);
    else
        tj_sb_puts(sb, "run op by op in the interpreter");
}

// Values that have memory of their own, and why nothing computes them on the way.
static void text_kept(struct tj_strbuf *sb, const struct tj_entry *e) {
    struct tj_arena a = {0};
    struct tj_plan_report r;
    if (e->plan && e->ctx->backend->report && !e->ctx->backend->report(e->plan, &a, &r)) {
        for (uint32_t i = 0; i < r.nkept; i++) {
            char op[300], why[900];
            tj_explain_kept(&e->trace, &r.kept[i], why, sizeof why);
            tj_sb_printf(sb, "    in memory: %s, %llu bytes, %s\n",
                         tj_op_text(&e->trace, r.kept[i].node, op, sizeof op), (unsigned long long)r.kept[i].bytes,
                         why);
        }
    }
    tj_arena_free(&a);
}

static void text_region(struct tj_strbuf *sb, struct trace_region *r) {
    trace_stats s = {.size = sizeof s};
    tj_region_stats_locked(r, &s);
    tj_sb_printf(sb, "region '%s'\n", r->name);
    text_counters(sb, &s, "  ");
    struct tj_cache *c = &r->cache;
    tj_lock(&c->lock);
    uint64_t from = c->nreasons > TJ_REASONS ? c->nreasons - TJ_REASONS : 0;
    for (uint64_t i = from; i < c->nreasons; i++) {
        const struct tj_reason *q = &c->reasons[i % TJ_REASONS];
        tj_sb_printf(sb, "  recompile: %s (%.1f ms)\n", q->text ? q->text : "reason lost, out of memory", q->ms);
    }
    for (const struct tj_break_site *b = c->sites; b; b = b->next) {
        if (b->lint)
            tj_sb_printf(sb, "  unused condition: %s\n", b->where);
        else
            tj_sb_printf(sb, "  graph break: %s at %s needs %s: %llu times, %.3f ms each; %s\n",
                         b->op ? b->op : b->kind, b->where[0] ? b->where : "place unknown",
                         b->made ? b->made : "a value", (unsigned long long)atomic_load(&b->count),
                         (double)atomic_load(&b->ns) / 1e6 /
                             (double)(atomic_load(&b->count) ? atomic_load(&b->count) : 1),
                         b->remedy ? b->remedy : "read it after trace_end");
    }
    for (uint32_t i = 0; i < c->n; i++) {
        const struct tj_entry *e = c->ring[i];
        if (atomic_load(&e->state) != TJ_E_READY)
            continue;
        tj_sb_printf(sb, "  plan %u (%s): %u nodes, %u kernels, %llu bytes of code, %.1f ms to make\n", i, e->site,
                     e->trace.nnodes, e->info.kernels, (unsigned long long)e->info.bytes_code, e->ms);
        struct tj_strbuf plan = {0};
        describe_plan(e, &plan);
        text_lines(sb, plan.s, "    ");
        tj_sb_free(&plan);
        text_kept(sb, e);
    }
    tj_unlock(&c->lock);
}

// ---- JSON -----------------------------------------------------------------------------------------------------------

static void json_counters(struct tj_strbuf *sb, const trace_stats *s) {
    const char *sep = "";
    tj_sb_puts(sb, "{");
#define X(f)                                                                                                           \
    tj_sb_printf(sb, "%s\"" #f "\":%llu", sep, (unsigned long long)s->f);                                              \
    sep = ",";
    TJ_STATS(X)
#undef X
    tj_sb_puts(sb, "}");
}

static void json_region(struct tj_strbuf *sb, struct trace_region *r) {
    trace_stats s = {.size = sizeof s};
    tj_region_stats_locked(r, &s);
    tj_sb_puts(sb, "{\"name\":");
    tj_sb_json(sb, r->name);
    tj_sb_puts(sb, ",\"counters\":");
    json_counters(sb, &s);
    struct tj_cache *c = &r->cache;
    tj_lock(&c->lock);
    tj_sb_puts(sb, ",\"recompiles\":[");
    uint64_t from = c->nreasons > TJ_REASONS ? c->nreasons - TJ_REASONS : 0;
    for (uint64_t i = from; i < c->nreasons; i++) {
        const struct tj_reason *q = &c->reasons[i % TJ_REASONS];
        tj_sb_puts(sb, i > from ? ",{\"reason\":" : "{\"reason\":");
        tj_sb_json(sb, q->text ? q->text : "");
        tj_sb_printf(sb, ",\"us\":%llu}", (unsigned long long)(q->ms * 1e3));
    }
    tj_sb_puts(sb, "],\"breaks\":[");
    const char *sep = "";
    for (const struct tj_break_site *b = c->sites; b; b = b->next) {
        tj_sb_printf(sb, "%s{\"where\":", sep);
        tj_sb_json(sb, b->where);
        tj_sb_puts(sb, ",\"kind\":");
        tj_sb_json(sb, b->kind);
        tj_sb_puts(sb, ",\"op\":");
        tj_sb_json(sb, b->op ? b->op : "");
        tj_sb_puts(sb, ",\"value\":");
        tj_sb_json(sb, b->made ? b->made : "");
        tj_sb_puts(sb, ",\"remedy\":");
        tj_sb_json(sb, b->remedy ? b->remedy : "");
        tj_sb_printf(sb, ",\"count\":%llu,\"ns\":%llu}", (unsigned long long)atomic_load(&b->count),
                     (unsigned long long)atomic_load(&b->ns));
        sep = ",";
    }
    tj_sb_puts(sb, "],\"plans\":[");
    sep = "";
    for (uint32_t i = 0; i < c->n; i++) {
        const struct tj_entry *e = c->ring[i];
        if (atomic_load(&e->state) != TJ_E_READY)
            continue;
        tj_sb_printf(sb, "%s{\"site\":", sep);
        tj_sb_json(sb, e->site);
        tj_sb_printf(sb,
                     ",\"nodes\":%u,\"kernels\":%u,\"bytes_code\":%llu,\"us\":%llu,\"interpreted\":%s,\"schedule\":",
                     e->trace.nnodes, e->info.kernels, (unsigned long long)e->info.bytes_code,
                     (unsigned long long)(e->ms * 1e3), e->plan ? "false" : "true");
        struct tj_strbuf plan = {0};
        describe_plan(e, &plan);
        tj_sb_json(sb, plan.s ? plan.s : "");
        tj_sb_free(&plan);
        tj_sb_puts(sb, "}");
        sep = ",";
    }
    tj_unlock(&c->lock);
    tj_sb_puts(sb, "]}");
}

// ---- Prometheus -----------------------------------------------------------------------------------------------------

// A label's value: backslash, quote and newline escaped.
static void label(struct tj_strbuf *sb, const char *s) {
    for (; *s; s++) {
        char c[3] = {*s, 0, 0};
        if (*s == '\\' || *s == '"' || *s == '\n') {
            c[0] = '\\';
            c[1] = *s == '\n' ? 'n' : *s;
        }
        tj_sb_puts(sb, c);
    }
}

static bool is_gauge(const char *name) {
    static const char *const gauges[] = {"bytes_live",    "bytes_kept",   "bytes_idle",    "bytes_code",
                                         "bytes_packed",  "plans",        "packed_copies", "recordings",
                                         "break_records", "break_places", "worst_run_ns"};
    for (size_t i = 0; i < TJ_COUNT(gauges); i++) {
        if (!strcmp(name, gauges[i]))
            return true;
    }
    return false;
}

static void prometheus(struct tj_strbuf *sb, trace_context *ctx) {
    trace_stats s = {.size = sizeof s};
    tj_context_stats_locked(ctx, &s);
#define X(f)                                                                                                           \
    tj_sb_printf(sb, "# TYPE tracejit_" #f "%s %s\ntracejit_" #f "%s %llu\n", is_gauge(#f) ? "" : "_total",            \
                 is_gauge(#f) ? "gauge" : "counter", is_gauge(#f) ? "" : "_total", (unsigned long long)s.f);
    TJ_STATS(X)
#undef X
#define X(f)                                                                                                           \
    tj_sb_printf(sb, "# TYPE tracejit_region_" #f "%s %s\n", is_gauge(#f) ? "" : "_total",                             \
                 is_gauge(#f) ? "gauge" : "counter");                                                                  \
    for (struct trace_region *r = ctx->regions; r; r = r->next) {                                                      \
        trace_stats rs = {.size = sizeof rs};                                                                          \
        tj_region_stats_locked(r, &rs);                                                                                \
        tj_sb_printf(sb, "tracejit_region_" #f "%s{region=\"", is_gauge(#f) ? "" : "_total");                          \
        label(sb, r->name);                                                                                            \
        tj_sb_printf(sb, "\"} %llu\n", (unsigned long long)rs.f);                                                      \
    }
    TJ_STATS(X)
#undef X
}

// ---- the call -------------------------------------------------------------------------------------------------------

void tj_compiler_text(const trace_context *ctx, char *buf, size_t cap) {
    int state = atomic_load_explicit(&ctx->eager->backend, memory_order_acquire);
    buf[0] = '\0';
    if (state == TJ_BACKEND_READY && ctx->backend->compiler_name)
        ctx->backend->compiler_name(ctx->backend_state, buf, cap);
    else if (state == TJ_BACKEND_NONE)
        (void)snprintf(buf, cap, "none: %s", ctx->backend_why);
}

tj_status trace_context_report(const trace_context *context, enum trace_format f, char *buf, size_t cap, size_t *need) {
    if (need)
        *need = 0;
    if (!context)
        return tj_fail(TRACE_ERR_ARGUMENT, "trace_context_report: NULL context");
    if (cap && !buf)
        return tj_fail(TRACE_ERR_ARGUMENT, "trace_context_report: cap is %zu, but buf is NULL", cap);
    if (cap)
        buf[0] = '\0';
    if ((int)f < TRACE_FORMAT_TEXT || f > TRACE_FORMAT_HTML)
        return tj_fail(TRACE_ERR_ARGUMENT, "trace_context_report: format %d is none", (int)f);
    trace_context *ctx = (trace_context *)(uintptr_t)context;
    struct tj_strbuf sb = {0};
    tj_fpenv env;
    tj_fpenv_enter(&env);
    struct tj_plain_numbers numbers;
    tj_plain_numbers_enter(&numbers); // the host's locale may write 1,5
    if (f == TRACE_FORMAT_HTML) {
        struct tj_explain x;
        tj_status st = tj_explain_gather(ctx, NULL, true, &x);
        if (!st)
            tj_explain_html(&x, &sb);
        tj_explain_free(&x);
        tj_plain_numbers_leave(&numbers);
        tj_fpenv_leave(&env);
        return st ? st : tj_report_out(&sb, "trace_context_report", buf, cap, need);
    }
    tj_lock(&ctx->lock);
    trace_stats s = {.size = sizeof s};
    tj_context_stats_locked(ctx, &s);
    char compiler[320];
    tj_compiler_text(ctx, compiler, sizeof compiler);
    if (f == TRACE_FORMAT_PROMETHEUS) {
        prometheus(&sb, ctx);
    } else if (f == TRACE_FORMAT_JSON) {
        tj_sb_puts(&sb, "{\"version\":");
        tj_sb_json(&sb, trace_version());
        tj_sb_puts(&sb, ",\"device\":");
        tj_sb_json(&sb, ctx->describe);
        tj_sb_puts(&sb, ",\"compiler\":");
        tj_sb_json(&sb, compiler);
        tj_sb_puts(&sb, ",\"counters\":");
        json_counters(&sb, &s);
        tj_sb_puts(&sb, ",\"regions\":[");
        for (struct trace_region *r = ctx->regions; r; r = r->next) {
            json_region(&sb, r);
            if (r->next)
                tj_sb_puts(&sb, ",");
        }
        tj_sb_puts(&sb, "]}\n");
    } else {
        tj_sb_printf(&sb, "tracejit %s: %s\n", trace_version(), ctx->describe);
        if (compiler[0])
            tj_sb_printf(&sb, "compiler %s\n", compiler);
        text_counters(&sb, &s, "");
        text_bytes(&sb, &s);
        for (struct trace_region *r = ctx->regions; r; r = r->next)
            text_region(&sb, r);
    }
    tj_unlock(&ctx->lock);
    tj_plain_numbers_leave(&numbers);
    tj_fpenv_leave(&env);
    return tj_report_out(&sb, "trace_context_report", buf, cap, need);
}
