// trace/explain_text.c: trace_explain as text and as JSON.
#include <stdio.h>

#include "explain.h"

static const char *lost(const char *s) { return s ? s : ""; }

// ---- text -----------------------------------------------------------------------------------------------------------

static void text_ops(struct tj_strbuf *sb, const struct tj_trace *t, const struct tj_kernel_report *k) {
    char op[300];
    for (uint32_t i = 0; i < k->nops; i++)
        tj_sb_printf(sb, "%s%s", i ? ", " : "", tj_op_text(t, k->ops[i], op, sizeof op));
}

static void text_kernel(struct tj_strbuf *sb, const struct tj_explain *x, const struct tj_explain_region *g,
                        const struct tj_explain_plan *p, uint32_t i) {
    const struct tj_explain_kernel *k = &p->kernels[i];
    char a[32], b[32], c[32], d[32];
    tj_sb_printf(sb, "    kernel %u: %s (%s)\n      ops: ", i, k->r->name, k->r->kind);
    text_ops(sb, &p->entry->trace, k->r);
    tj_sb_printf(sb, "\n      reads %s, writes %s, saves %s; %s (estimated)\n",
                 tj_explain_quantity(k->r->bytes_read, "B", a, sizeof a),
                 tj_explain_quantity(k->r->bytes_written, "B", b, sizeof b),
                 tj_explain_quantity(k->saved, "B", c, sizeof c),
                 tj_explain_quantity(k->r->flops, "flop", d, sizeof d));
    if (k->r->packed)
        tj_sb_printf(sb, "      weight: a repacked copy of %s, kept with its tensor\n",
                     tj_explain_quantity(k->r->packed, "B", a, sizeof a));
    if (!k->r->runs) {
        tj_sb_puts(sb, g->profiled ? "      not measured yet: no run since trace_region_profile\n"
                                   : "      not measured: run with trace_region_profile(region, true)\n");
        return;
    }
    tj_sb_printf(
        sb, "      %s at best, %s on average of %llu runs", tj_explain_time((double)k->r->best_ns, a, sizeof a),
        tj_explain_time((double)k->r->total_ns / (double)k->r->runs, b, sizeof b), (unsigned long long)k->r->runs);
    if (k->ideal_ns > 0)
        tj_sb_printf(sb, "; %.0f%% of what %s allows on %d thread%s", 100 * k->ideal_ns / (double)k->r->best_ns,
                     k->compute ? "arithmetic" : "memory", k->all_threads ? x->ceiling->threads : 1,
                     k->all_threads ? "s" : "");
    tj_sb_puts(sb, "\n");
}

static void text_plan(struct tj_strbuf *sb, const struct tj_explain *x, const struct tj_explain_region *g,
                      const struct tj_explain_plan *p) {
    const struct tj_entry *e = p->entry;
    const struct tj_trace *t = &e->trace;
    char name[80], type[160], text[900], a[32];
    tj_sb_printf(
        sb,
        "  plan %u, ends at %s: %u ops%s; made at %.1f ms in %.1f ms (schedule %.2f, emit %.2f, codegen %.2f); %llu hits\n",
        p->number, e->site, t->nnodes - t->nleaves - t->nparams, e->plan ? "" : ", interpreted", p->at_ms, e->ms,
        (double)e->info.schedule_ns / 1e6, (double)e->info.emit_ns / 1e6, (double)e->info.codegen_ns / 1e6,
        (unsigned long long)p->hits);
    tj_sb_printf(sb, "    made because: %s%s%s%s\n",
                 p->why       ? p->why
                 : e->trimmed ? "later runs store across the break only what was used"
                              : "first graph that ends there",
                 p->where && p->where[0] ? " [" : "", lost(p->where), p->where && p->where[0] ? "]" : "");
    for (uint32_t i = 0; i < t->nnodes; i++) {
        if (t->nodes[i].op != TJ_OP_LEAF)
            continue;
        uint32_t leaf = (uint32_t)((const struct tj_attr_leaf *)tj_node_attr(t, &t->nodes[i]))->index;
        if (e->symbolic)
            tj_sb_printf(sb, "    x%u, ", leaf);
        tj_sb_printf(sb, "%s%s: %s\n", e->symbolic ? "" : "    ", tj_explain_leaf(t, leaf, name, sizeof name),
                     tj_explain_type(p, i, type, sizeof type));
    }
    if (!p->reported) {
        tj_sb_puts(sb, "    its kernels are not known: the interpreter runs it op by op\n");
        return;
    }
    for (uint32_t i = 0; i < p->report.nkernels; i++)
        text_kernel(sb, x, g, p, i);
    for (uint32_t i = 0; i < p->report.nkept; i++) {
        const struct tj_kept_report *k = &p->report.kept[i];
        char op[300];
        tj_explain_kept(t, k, text, sizeof text);
        tj_sb_printf(sb, "    in memory: %s, %s, %s\n", tj_op_text(t, k->node, op, sizeof op),
                     tj_explain_quantity(k->bytes, "B", a, sizeof a), text);
    }
}

static void put_combination(struct tj_strbuf *sb, const struct tj_profile_combination *c) {
    for (uint32_t i = 0; i < c->ninputs; i++) {
        tj_sb_printf(sb, "%sinput %u %s", i ? ", " : "", c->inputs[i].input, tj_dtypes[c->inputs[i].dtype].name);
        tj_sb_dims(sb, c->inputs[i].dims, c->inputs[i].rank);
    }
    if (!c->ninputs)
        tj_sb_puts(sb, "no declared inputs");
}

static void text_shapes(struct tj_strbuf *sb, const struct tj_profile_view *v) {
    enum { SHOWN = 20 };
    uint64_t rest = v->other;
    for (uint32_t i = 0; i < v->n; i++) {
        if (i >= SHOWN) {
            rest += v->rows[i].count;
            continue;
        }
        tj_sb_printf(sb, "  shapes in %llu of %llu runs: ", (unsigned long long)v->rows[i].count,
                     (unsigned long long)v->total);
        put_combination(sb, &v->rows[i]);
        tj_sb_puts(sb, "\n");
    }
    if (rest)
        tj_sb_printf(sb, "  other shapes in %llu runs\n", (unsigned long long)rest);
}

static void text_buckets(struct tj_strbuf *sb, const struct tj_explain_region *g) {
    struct tj_bucket_count b[16];
    double waste;
    for (uint32_t i = 0; i < g->region->nbuckets; i++) {
        uint32_t n = tj_bucket_counts(g->region, i, &g->shapes, b, TJ_COUNT(b), &waste);
        tj_sb_printf(sb, "  buckets of dim %u of input %u:", g->region->buckets[i].dim, g->region->buckets[i].input);
        for (uint32_t k = 0; k < n; k++)
            tj_sb_printf(sb, "%s up to %lld in %llu runs", k ? "," : "", (long long)b[k].size,
                         (unsigned long long)b[k].runs);
        if (n)
            tj_sb_printf(sb, "; %.1f%% of it padding\n", waste);
        else
            tj_sb_puts(sb, " no runs yet\n");
    }
}

static void json_buckets(struct tj_strbuf *sb, const struct tj_explain_region *g) {
    struct tj_bucket_count b[16];
    double waste;
    tj_sb_puts(sb, "\"buckets\":[");
    for (uint32_t i = 0; i < g->region->nbuckets; i++) {
        uint32_t n = tj_bucket_counts(g->region, i, &g->shapes, b, TJ_COUNT(b), &waste);
        tj_sb_printf(sb, "%s{\"input\":%u,\"dim\":%u,\"padding_percent\":%.2f,\"sizes\":[", i ? "," : "",
                     g->region->buckets[i].input, g->region->buckets[i].dim, waste);
        for (uint32_t k = 0; k < n; k++)
            tj_sb_printf(sb, "%s{\"size\":%lld,\"runs\":%llu}", k ? "," : "", (long long)b[k].size,
                         (unsigned long long)b[k].runs);
        tj_sb_puts(sb, "]}");
    }
    tj_sb_puts(sb, "],");
}

static void text_region(struct tj_strbuf *sb, const struct tj_explain *x, const struct tj_explain_region *g) {
    const trace_stats *s = &g->stats;
    tj_sb_printf(sb, "region '%s': %llu runs, %u plan%s, %llu hits, %llu misses, %llu recompiles, %llu breaks\n",
                 g->region->name, (unsigned long long)s->runs, g->nplans, g->nplans == 1 ? "" : "s",
                 (unsigned long long)s->hits, (unsigned long long)s->misses, (unsigned long long)s->recompiles,
                 (unsigned long long)s->breaks);
    for (uint32_t i = 0; i < g->nplans; i++)
        text_plan(sb, x, g, &g->plans[i]);
    text_shapes(sb, &g->shapes);
    text_buckets(sb, g);
    if (g->recompiles_before)
        tj_sb_printf(sb, "  %llu earlier recompiles are not kept\n", (unsigned long long)g->recompiles_before);
    for (uint32_t i = 0; i < g->nrecompiles; i++) {
        const struct tj_explain_recompile *q = &g->recompiles[i];
        tj_sb_printf(sb, "  recompile at %.1f ms: %s%s%s%s (%.1f ms)\n", q->at_ms, lost(q->text),
                     q->where && q->where[0] ? " [" : "", lost(q->where), q->where && q->where[0] ? "]" : "", q->ms);
    }
    for (uint32_t i = 0; i < g->nbreaks; i++) {
        const struct tj_explain_break *b = &g->breaks[i];
        if (b->lint)
            tj_sb_printf(sb, "  unused condition: %s: probably `if (handle)`; read it with trace_item_i64\n",
                         lost(b->where));
        else
            tj_sb_printf(sb, "  graph break: %s at %s needs %s: %llu times, %.3f ms each; %s\n", lost(b->op),
                         b->where && b->where[0] ? b->where : "place unknown", b->made ? b->made : "a value",
                         (unsigned long long)b->count, (double)b->ns / 1e6 / (double)(b->count ? b->count : 1),
                         lost(b->remedy));
    }
}

static void text(struct tj_strbuf *sb, const struct tj_explain *x) {
    tj_sb_printf(sb, "tracejit %s: %s\n", trace_version(), x->ctx->describe);
    if (x->compiler[0])
        tj_sb_printf(sb, "compiler %s\n", x->compiler);
    if (x->ceiling) {
        char b[32];
        tj_sb_puts(sb, "ceilings measured, one thread / all: copy");
        for (int i = 0; i < TJ_CEILING_SIZES; i++)
            tj_sb_printf(sb, "%s %.0f / %.0f GB/s (%s)", i ? "," : "", x->ceiling->copy[i][0], x->ceiling->copy[i][1],
                         tj_explain_quantity(x->ceiling->bytes[i], "B", b, sizeof b));
        tj_sb_printf(sb, "; multiply-add %.0f / %.0f Gflop/s\n", x->ceiling->fma[0], x->ceiling->fma[1]);
    }
    for (uint32_t i = 0; i < x->nregions; i++)
        text_region(sb, x, &x->regions[i]);
}

// ---- JSON -----------------------------------------------------------------------------------------------------------

static void member(struct tj_strbuf *sb, const char *before, const char *key, const char *value) {
    tj_sb_printf(sb, "%s\"%s\":", before, key);
    if (value)
        tj_sb_json(sb, value);
    else
        tj_sb_puts(sb, "null");
}

static void json_loc(struct tj_strbuf *sb, const struct tj_trace *t, tj_ref n) {
    char where[300];
    member(sb, ",", "where", tj_loc_text(t->locs[n], where, sizeof where));
}

static void json_dims(struct tj_strbuf *sb, const struct tj_trace *t, tj_ref n) {
    const struct tj_node *d = &t->nodes[n];
    member(sb, ",", "dtype", tj_dtypes[d->dtype].name);
    tj_sb_puts(sb, ",\"shape\":");
    tj_sb_dims(sb, tj_shape_dims(t, d->shape), tj_shape_rank(t, d->shape));
}

// What the extents are in a symbolic plan; null where they are constants.
static void json_extents(struct tj_strbuf *sb, const struct tj_explain_plan *p, tj_ref n) {
    const struct tj_trace *t = &p->entry->trace;
    size_t rank = tj_shape_rank(t, t->nodes[n].shape);
    char e[160];
    tj_sb_puts(sb, ",\"symbols\":[");
    for (uint32_t i = 0; i < rank; i++) {
        tj_sb_puts(sb, i ? "," : "");
        if (tj_explain_extent(p, n, i, e, sizeof e))
            tj_sb_json(sb, e);
        else
            tj_sb_puts(sb, "null");
    }
    tj_sb_puts(sb, "]");
}

static void json_kernel(struct tj_strbuf *sb, const struct tj_explain_plan *p, uint32_t i) {
    const struct tj_explain_kernel *k = &p->kernels[i];
    const struct tj_trace *t = &p->entry->trace;
    member(sb, i ? ",{" : "{", "name", k->r->name);
    member(sb, ",", "kind", k->r->kind);
    if (k->r->node < t->nnodes)
        json_loc(sb, t, k->r->node);
    tj_sb_puts(sb, ",\"ops\":[");
    for (uint32_t o = 0; o < k->r->nops; o++)
        tj_sb_printf(sb, "%s%u", o ? "," : "", k->r->ops[o]);
    tj_sb_printf(
        sb,
        "],\"bytes_read\":%llu,\"bytes_written\":%llu,\"bytes_saved\":%llu,\"bytes_packed\":%llu,\"flops\":%llu,"
        "\"ideal_ns\":%.1f,"
        "\"limit\":\"%s\",\"threads\":\"%s\",\"measured\":",
        (unsigned long long)k->r->bytes_read, (unsigned long long)k->r->bytes_written, (unsigned long long)k->saved,
        (unsigned long long)k->r->packed, (unsigned long long)k->r->flops, k->ideal_ns,
        k->compute ? "arithmetic" : "memory", k->all_threads ? "all" : "one");
    if (k->r->runs)
        tj_sb_printf(
            sb, "{\"runs\":%llu,\"best_ns\":%llu,\"best_moved\":%llu,\"mean_ns\":%.1f,\"share_of_ceiling\":%.4f}}",
            (unsigned long long)k->r->runs, (unsigned long long)k->r->best_ns, (unsigned long long)k->r->timed_bytes,
            (double)k->r->total_ns / (double)k->r->runs, k->ideal_ns / (double)k->r->best_ns);
    else
        tj_sb_puts(sb, "null}");
}

static void json_node(struct tj_strbuf *sb, const struct tj_explain_plan *p, tj_ref n) {
    const struct tj_trace *t = &p->entry->trace;
    const struct tj_node *d = &t->nodes[n];
    char name[80];
    tj_sb_printf(sb, "%s{\"node\":%u", n ? "," : "", n);
    member(sb, ",", "op", tj_ops[d->op].name);
    if (d->op == TJ_OP_LEAF)
        member(
            sb, ",", "leaf",
            tj_explain_leaf(t, (uint32_t)((const struct tj_attr_leaf *)tj_node_attr(t, d))->index, name, sizeof name));
    json_dims(sb, t, n);
    json_extents(sb, p, n);
    json_loc(sb, t, n);
    tj_sb_puts(sb, ",\"in\":[");
    for (uint32_t i = 0; i < d->nin; i++)
        tj_sb_printf(sb, "%s%u", i ? "," : "", tj_node_in(t, d)[i]);
    tj_sb_printf(sb, "],\"bytes\":%llu,\"in_memory\":%s,\"kernels\":[", (unsigned long long)tj_explain_bytes(t, n),
                 p->kept_of[n] != UINT32_MAX ? "true" : "false");
    const char *sep = "";
    for (uint32_t k = 0; k < p->report.nkernels; k++) {
        for (uint32_t o = 0; o < p->report.kernels[k].nops; o++) {
            if (p->report.kernels[k].ops[o] == n) {
                tj_sb_printf(sb, "%s%u", sep, k);
                sep = ",";
            }
        }
    }
    tj_sb_puts(sb, "]}");
}

static void json_plan(struct tj_strbuf *sb, const struct tj_explain_plan *p) {
    const struct tj_entry *e = p->entry;
    const struct tj_trace *t = &e->trace;
    char text_[900];
    tj_sb_printf(sb, "%s{\"plan\":%u", p->number ? "," : "", p->number);
    member(sb, ",", "site", e->site);
    tj_sb_printf(sb, ",\"first\":%s", p->why ? "false" : "true");
    member(sb, ",", "reason", p->why);
    member(sb, ",", "where", p->where);
    tj_sb_printf(sb,
                 ",\"at_ms\":%.3f,\"ms\":%.3f,\"schedule_ns\":%llu,\"emit_ns\":%llu,\"codegen_ns\":%llu,\"hits\":%llu,"
                 "\"interpreted\":%s,\"bytes_code\":%llu,\"bytes_workspace\":%llu,\"graph\":[",
                 p->at_ms, e->ms, (unsigned long long)e->info.schedule_ns, (unsigned long long)e->info.emit_ns,
                 (unsigned long long)e->info.codegen_ns, (unsigned long long)p->hits, e->plan ? "false" : "true",
                 (unsigned long long)e->info.bytes_code, (unsigned long long)e->info.bytes_workspace);
    for (uint32_t i = 0; i < t->nnodes; i++)
        json_node(sb, p, i);
    tj_sb_puts(sb, "],\"kernels\":[");
    for (uint32_t i = 0; i < p->report.nkernels; i++)
        json_kernel(sb, p, i);
    tj_sb_puts(sb, "],\"in_memory\":[");
    for (uint32_t i = 0; i < p->report.nkept; i++) {
        const struct tj_kept_report *k = &p->report.kept[i];
        tj_sb_printf(sb, "%s{\"node\":%u,\"bytes\":%llu,\"output\":%d", i ? "," : "", k->node,
                     (unsigned long long)k->bytes, k->out);
        member(sb, ",", "why", tj_kept_word(k->why));
        tj_explain_kept(t, k, text_, sizeof text_);
        member(sb, ",", "text", text_);
        if (k->user < t->nnodes)
            tj_sb_printf(sb, ",\"user\":%u}", k->user);
        else
            tj_sb_puts(sb, ",\"user\":null}");
    }
    tj_sb_puts(sb, "]}");
}

static void json_region(struct tj_strbuf *sb, const struct tj_explain_region *g, bool first) {
    member(sb, first ? "{" : ",{", "region", g->region->name);
    tj_sb_printf(sb, ",\"profiled\":%s,\"counters\":{", g->profiled ? "true" : "false");
    const char *sep = "";
#define X(f)                                                                                                           \
    tj_sb_printf(sb, "%s\"" #f "\":%llu", sep, (unsigned long long)g->stats.f);                                        \
    sep = ",";
    TJ_STATS(X)
#undef X
    tj_sb_puts(sb, "},");
    json_buckets(sb, g);
    tj_sb_printf(sb, "\"shapes\":{\"runs\":%llu,\"other\":%llu,\"seen\":[", (unsigned long long)g->shapes.total,
                 (unsigned long long)g->shapes.other);
    for (uint32_t i = 0; i < g->shapes.n; i++) {
        const struct tj_profile_combination *c = &g->shapes.rows[i];
        tj_sb_printf(sb, "%s{\"runs\":%llu,\"inputs\":[", i ? "," : "", (unsigned long long)c->count);
        for (uint32_t k = 0; k < c->ninputs; k++) {
            tj_sb_printf(sb, "%s{\"input\":%u,\"dtype\":\"%s\",\"shape\":", k ? "," : "", c->inputs[k].input,
                         tj_dtypes[c->inputs[k].dtype].name);
            tj_sb_dims(sb, c->inputs[k].dims, c->inputs[k].rank);
            tj_sb_puts(sb, "}");
        }
        tj_sb_puts(sb, "]}");
    }
    tj_sb_puts(sb, "]},\"plans\":[");
    for (uint32_t i = 0; i < g->nplans; i++)
        json_plan(sb, &g->plans[i]);
    tj_sb_printf(sb, "],\"recompiles_not_kept\":%llu,\"recompiles\":[", (unsigned long long)g->recompiles_before);
    for (uint32_t i = 0; i < g->nrecompiles; i++) {
        const struct tj_explain_recompile *q = &g->recompiles[i];
        member(sb, i ? ",{" : "{", "reason", q->text);
        member(sb, ",", "where", q->where);
        tj_sb_printf(sb, ",\"input\":%d,\"dim\":%d,\"from\":%lld,\"to\":%lld,\"ms\":%.3f,\"at_ms\":%.3f}", q->input,
                     q->dim, (long long)q->from, (long long)q->to, q->ms, q->at_ms);
    }
    tj_sb_puts(sb, "],\"breaks\":[");
    for (uint32_t i = 0; i < g->nbreaks; i++) {
        const struct tj_explain_break *b = &g->breaks[i];
        member(sb, i ? ",{" : "{", "where", b->where);
        member(sb, ",", "kind", b->lint ? "unused condition" : b->kind);
        member(sb, ",", "op", b->op);
        member(sb, ",", "value", b->made);
        member(sb, ",", "advice", b->remedy);
        tj_sb_printf(sb, ",\"count\":%llu,\"ns\":%llu}", (unsigned long long)b->count, (unsigned long long)b->ns);
    }
    tj_sb_puts(sb, "]}");
}

static void json(struct tj_strbuf *sb, const struct tj_explain *x) {
    member(sb, "{", "version", trace_version());
    member(sb, ",", "device", x->ctx->describe);
    member(sb, ",", "compiler", x->compiler);
    tj_sb_puts(sb, ",\"ceiling\":");
    if (x->ceiling) {
        tj_sb_printf(sb, "{\"threads\":%d,\"copy\":[", x->ceiling->threads);
        for (int i = 0; i < TJ_CEILING_SIZES; i++)
            tj_sb_printf(sb, "%s{\"bytes\":%llu,\"one_thread_gbs\":%.2f,\"all_threads_gbs\":%.2f}", i ? "," : "",
                         (unsigned long long)x->ceiling->bytes[i], x->ceiling->copy[i][0], x->ceiling->copy[i][1]);
        tj_sb_printf(sb, "],\"one_thread_gflops\":%.2f,\"all_threads_gflops\":%.2f}", x->ceiling->fma[0],
                     x->ceiling->fma[1]);
    } else {
        tj_sb_puts(sb, "null");
    }
    tj_sb_puts(sb, ",\"regions\":[");
    for (uint32_t i = 0; i < x->nregions; i++)
        json_region(sb, &x->regions[i], i == 0);
    tj_sb_puts(sb, "]}\n");
}

// ---- the call -------------------------------------------------------------------------------------------------------

tj_status trace_explain(const trace_region *region, enum trace_format f, char *buf, size_t cap, size_t *need) {
    if (need)
        *need = 0;
    if (!region)
        return tj_fail(TRACE_ERR_ARGUMENT, "trace_explain: the region is NULL");
    if (cap && !buf)
        return tj_fail(TRACE_ERR_ARGUMENT, "trace_explain: cap is %zu, but buf is NULL", cap);
    if (cap)
        buf[0] = '\0';
    if (f == TRACE_FORMAT_PROMETHEUS)
        return tj_fail(TRACE_ERR_ARGUMENT,
                       "trace_explain: an explanation is no set of metrics; use TRACE_FORMAT_TEXT, JSON or HTML, or "
                       "trace_context_report for Prometheus");
    if (f != TRACE_FORMAT_TEXT && f != TRACE_FORMAT_JSON && f != TRACE_FORMAT_HTML)
        return tj_fail(TRACE_ERR_ARGUMENT, "trace_explain: format %d is none", (int)f);
    trace_region *r = (trace_region *)(uintptr_t)region; // counters are read through non-const pointers
    struct tj_explain x;
    struct tj_strbuf sb = {0};
    tj_fpenv env;
    tj_fpenv_enter(&env);
    struct tj_plain_numbers numbers;
    tj_plain_numbers_enter(&numbers); // the host's locale may write 1,5
    tj_status st = tj_explain_gather(r->ctx, r, f == TRACE_FORMAT_HTML, &x);
    if (!st) {
        if (f == TRACE_FORMAT_HTML)
            tj_explain_html(&x, &sb);
        else if (f == TRACE_FORMAT_JSON)
            json(&sb, &x);
        else
            text(&sb, &x);
    }
    tj_explain_free(&x);
    tj_plain_numbers_leave(&numbers);
    tj_fpenv_leave(&env);
    return st ? st : tj_report_out(&sb, "trace_explain", buf, cap, need);
}
