// trace/explain_html.c: trace_explain as one self-contained page: no file, font or script from elsewhere.
//
// Everything works without the script, which only shows a box's text below the picture and marks its kernel. Every
// string that comes from the host goes through tj_sb_html.
#include <stdio.h>
#include <stdlib.h>

#include "explain.h"

enum {
    GRAPHS = 8,        // plans of a region whose graph is drawn: those with most hits
    LISTING = 96 << 10 // bytes of a kernel's code shown
};

// clang-format off
static const char style[] =
    ":root{color-scheme:light dark;--bg:#f6f7f9;--card:#fff;--line:#dfe3e8;--ink:#1a2026;--soft:#5b6672;--accent:#2563c9;"
    "--bar:#dde6f3;--good:#1b7f4b;--warn:#a75b00;--code:#f1f3f6}"
    ".h{--fill:hsl(var(--h) 70% 90%);--edge:hsl(var(--h) 45% 45%);--pale:hsl(var(--h) 70% 96%)}"
    "@media(prefers-color-scheme:dark){.h{--fill:hsl(var(--h) 38% 24%);--edge:hsl(var(--h) 50% 58%);"
    "--pale:hsl(var(--h) 40% 13%)}}"
    "@media(prefers-color-scheme:dark){:root{--bg:#12161b;--card:#1a2027;--line:#2d3640;--ink:#e4e9ee;--soft:#98a4b1;"
    "--accent:#7fb0ff;--bar:#26313f;--good:#63cf97;--warn:#f0ab57;--code:#141a20}}"
    "*{box-sizing:border-box}"
    "body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,-apple-system,\"Segoe UI\",Roboto,sans-serif;"
    "overflow-wrap:anywhere}"
    "main,header.top,footer{max-width:1240px;margin:0 auto;padding:0 16px}"
    "header.top{padding-top:28px;padding-bottom:4px}"
    "h1{font-size:1.7rem;line-height:1.2;margin:0 0 6px;letter-spacing:-.02em}h1 small{font-weight:400;color:var(--soft)}"
    "h2{font-size:1.35rem;margin:34px 0 10px;letter-spacing:-.01em}h3{font-size:1.02rem;margin:22px 0 8px}"
    "p{margin:4px 0}.soft,.note{color:var(--soft)}.note{font-size:.86rem}"
    "code,.mono{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.86em}"
    "a{color:var(--accent)}nav{display:flex;flex-wrap:wrap;gap:8px;margin:14px 0}"
    "nav a{background:var(--card);border:1px solid var(--line);border-radius:99px;padding:3px 12px;text-decoration:none}"
    ".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(118px,1fr));gap:10px;margin:12px 0}"
    ".tile{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:9px 12px}"
    ".tile b{display:block;font-size:1.3rem;line-height:1.25;font-variant-numeric:tabular-nums}"
    ".tile span{color:var(--soft);font-size:.82rem}"
    ".card,details.plan{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:12px 16px;margin:12px 0}"
    "details.plan>summary{cursor:pointer;margin:-12px -16px;padding:12px 16px;display:flex;flex-wrap:wrap;gap:2px 14px;"
    "align-items:baseline}details.plan[open]>summary{border-bottom:1px solid var(--line);margin-bottom:12px}"
    "summary b{font-size:1.02rem}summary .soft{font-size:.9rem}"
    "details>summary::marker{color:var(--soft)}"
    ".cols{display:grid;gap:18px}.cols>*{min-width:0}"
    "@media(min-width:1000px){.cols{grid-template-columns:minmax(300px,42fr) 58fr}.cols .graph{position:sticky;top:10px}}"
    ".scroll{overflow:auto;max-width:100%;max-height:74vh;border:1px solid var(--line);border-radius:10px;background:var(--bg)}"
    ".scroll svg{display:block;margin:0 auto;max-width:100%;height:auto}"
    ".parts{display:grid;gap:0 28px;grid-template-columns:repeat(auto-fit,minmax(min(100%,330px),1fr))}.parts>*{min-width:0}"
    ".info{font-size:.86rem;color:var(--soft);white-space:pre-line;min-height:2.6em;margin-top:8px}"
    ".edges path{fill:none;stroke:var(--soft);stroke-width:1.3;opacity:.75}"
    ".frame{fill:var(--pale);stroke:var(--edge);stroke-dasharray:3 4;opacity:.8}"
    ".n rect{fill:var(--fill);stroke:var(--edge);stroke-width:1.2}.n text{fill:var(--ink)}"
    ".n .o{font:600 13px system-ui,sans-serif}.n .t,.n .k{font:11px ui-monospace,Menlo,Consolas,monospace}"
    ".n .t,.n .k{opacity:.75}.n.free rect{fill:var(--card);stroke:var(--soft)}.n.view rect{stroke-dasharray:4 3}"
    ".n.leaf rect{fill:none;stroke:var(--soft);stroke-dasharray:none}"
    ".n.mem rect{filter:drop-shadow(0 3px 0 var(--edge))}"
    ".n:hover rect,.n:focus rect,.n.on rect{stroke-width:2.6}.n:focus{outline:none}.n.same rect{stroke-width:2.2}"
    "table{border-collapse:collapse;width:100%;font-size:.9rem}th{text-align:left;color:var(--soft);font-weight:500;"
    "border-bottom:1px solid var(--line)}td,th{padding:5px 10px 5px 0;vertical-align:top}"
    "td.num,th.num{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}"
    ".wide{overflow-x:auto;max-width:100%}.wide table{min-width:520px}"
    "ul.kernels,ul.lines{list-style:none;margin:0;padding:0}"
    "ul.kernels>li{border-top:1px solid var(--line);padding:9px 0 9px 12px;border-left:5px solid var(--edge);margin:0 0 4px;"
    "border-radius:3px}ul.kernels>li:target,ul.kernels>li.on{background:var(--pale)}"
    ".kh{display:flex;flex-wrap:wrap;gap:2px 10px;align-items:baseline;justify-content:space-between}"
    ".bars{display:grid;grid-template-columns:repeat(3,minmax(0,1fr));gap:10px;margin:6px 0 2px}"
    ".bar{font-size:.8rem;color:var(--soft)}.bar b{color:var(--ink);font-weight:600;font-variant-numeric:tabular-nums}"
    ".bar i{display:block;height:7px;border-radius:4px;background:var(--bar);overflow:hidden;margin-top:3px}"
    ".bar i s{display:block;height:100%;border-radius:4px;background:var(--edge);text-decoration:none}"
    ".saved i s{background:var(--good)}"
    "li details{margin-top:4px;font-size:.9rem}li details summary{cursor:pointer;color:var(--soft)}"
    "pre{background:var(--code);border:1px solid var(--line);border-radius:8px;padding:10px;overflow:auto;max-height:60vh;"
    "font:12px/1.45 ui-monospace,Menlo,Consolas,monospace;white-space:pre;overflow-wrap:normal;margin:6px 0}"
    "ul.lines>li{padding:5px 0;border-top:1px solid var(--line);font-size:.9rem}ul.lines>li:first-child{border-top:0}"
    ".recompiles>li{display:grid;grid-template-columns:5.2em 1fr auto;gap:0 10px}.recompiles code{margin-left:8px;"
    "color:var(--soft)}li:target{background:var(--bar)}.tag{display:inline-block;border:1px solid currentColor;border-radius:99px;padding:0 8px;"
    "font-size:.76rem;color:var(--soft);margin-right:6px;white-space:nowrap}.tag.why{color:var(--warn)}"
    ".break{border-left:5px solid var(--warn)}.advice{color:var(--good)}"
    ".phase{display:flex;height:9px;border-radius:5px;overflow:hidden;background:var(--bar);margin:5px 0 3px}"
    ".phase s{display:block}.p0{background:#4f8ef0}.p1{background:#27a37a}.p2{background:#c78b1f}"
    ".dot{display:inline-block;width:9px;height:9px;border-radius:3px;margin:0 4px 0 10px}.dot:first-child{margin-left:0}"
    ".hist{display:grid;grid-template-columns:minmax(90px,auto) 1fr auto;gap:3px 10px;align-items:center;font-size:.86rem}"
    ".hist i{height:12px;border-radius:4px;background:var(--bar);overflow:hidden}.hist i s{display:block;height:100%;"
    "background:var(--accent)}footer{padding-top:26px;padding-bottom:40px;color:var(--soft);font-size:.84rem}"
    "@media(max-width:560px){body{font-size:14px}.bars{grid-template-columns:1fr}.card,details.plan{padding:12px}"
    "details.plan>summary{margin:-12px;padding:12px}details.plan[open]>summary{margin-bottom:12px}.scroll{max-height:62vh}}";
static const char script[] =
    "document.addEventListener('click',function(e){var a=e.target.closest&&e.target.closest('a.n');if(!a)return;"
    "e.preventDefault();var g=a.closest('.graph'),k=a.getAttribute('data-k');"
    "g.querySelector('.info').textContent=a.querySelector('title').textContent;"
    "g.querySelectorAll('a.n').forEach(function(b){b.classList.toggle('on',b===a);"
    "b.classList.toggle('same',!!k&&b!==a&&b.getAttribute('data-k')===k)});"
    "g.closest('details.plan').querySelectorAll('ul.kernels>li').forEach(function(l){l.classList.toggle('on',l.id===k)})});"
    "document.querySelectorAll('.scroll').forEach(function(b){b.scrollLeft=(b.scrollWidth-b.clientWidth)/2});"
    "function opened(){var t=location.hash&&document.getElementById(location.hash.slice(1));"
    "for(;t;t=t.parentElement)if(t.tagName==='DETAILS')t.open=true}addEventListener('hashchange',opened);opened();";
// clang-format on

static void put(struct tj_strbuf *sb, const char *text) { tj_sb_html(sb, text ? text : ""); }

static void tile(struct tj_strbuf *sb, uint64_t n, const char *what) {
    tj_sb_printf(sb, "<div class=\"tile\"><b>%llu</b><span>%s</span></div>", (unsigned long long)n, what);
}

static void put_where(struct tj_strbuf *sb, const char *where) {
    tj_sb_puts(sb, "<code>");
    put(sb, where && where[0] ? where : "place unknown");
    tj_sb_puts(sb, "</code>");
}

static double percent(double part, double of) {
    double p = of > 0 ? 100 * part / of : 0;
    return p > 100 ? 100 : p < 0 ? 0 : p;
}

// label: what the value is of, before or behind it.
static void bar(struct tj_strbuf *sb, const char *cls, const char *before, const char *value, const char *behind,
                double share) {
    tj_sb_printf(sb, "<div class=\"bar%s\">%s<b>", cls, before);
    put(sb, value);
    tj_sb_printf(sb, "</b>%s<i><s style=\"width:%.1f%%\"></s></i></div>", behind, share);
}

// ---- a plan ---------------------------------------------------------------------------------------------------------

struct largest { // of a plan's kernels: what full bars stand for
    double ns;
    uint64_t moved;
};

static void kernel_bars(struct tj_strbuf *sb, const struct tj_explain *x, const struct tj_explain_region *g,
                        const struct tj_explain_kernel *k, const struct largest *most) {
    char a[32], text[160];
    uint64_t moved = k->r->bytes_read + k->r->bytes_written;
    tj_sb_puts(sb, "<div class=\"bars\">");
    if (k->r->runs) {
        bar(sb, "", "time ", tj_explain_time((double)k->r->best_ns, a, sizeof a), "",
            percent((double)k->r->best_ns, most->ns));
        double share = k->ideal_ns / (double)k->r->best_ns;
        char behind[80];
        (void)snprintf(text, sizeof text, "%.0f%%", 100 * share);
        (void)snprintf(behind, sizeof behind, " of %s, %d thread%s", k->compute ? "arithmetic" : "memory",
                       k->all_threads ? x->ceiling->threads : 1, k->all_threads ? "s" : "");
        if (k->ideal_ns > 0)
            bar(sb, "", "", text, behind, percent(share, 1));
        else
            bar(sb, "", "ceiling ", "unknown", "", 0);
    } else {
        bar(sb, "", "time ", g->profiled ? "no run yet" : "not measured", "", 0);
        bar(sb, "", "ceiling allows ", k->ideal_ns > 0 ? tj_explain_time(k->ideal_ns, a, sizeof a) : "unknown", "", 0);
    }
    bar(sb, "", "moves ", tj_explain_quantity(moved, "B", a, sizeof a), "",
        percent((double)moved, (double)most->moved));
    tj_sb_puts(sb, "</div>");
}

static void kernel_code(struct tj_strbuf *sb, const struct tj_explain_kernel *k) {
    if (k->no_code) {
        tj_sb_puts(sb, "<p class=\"note\">");
        put(sb, k->no_code);
        tj_sb_puts(sb, "</p>");
    }
    if (!k->code)
        return;
    size_t n = strlen(k->code);
    size_t lines = 0;
    for (const char *c = k->code; *c; c++)
        lines += *c == '\n';
    tj_sb_printf(sb, "<details class=\"code\"><summary>generated code, %zu lines</summary><pre>", lines);
    if (n <= LISTING) {
        put(sb, k->code);
        tj_sb_puts(sb, "</pre></details>");
        return;
    }
    char *part = tj_malloc(LISTING + 1);
    if (!part) {
        sb->failed = true;
        return;
    }
    memcpy(part, k->code, LISTING);
    part[LISTING] = '\0';
    put(sb, part);
    tj_free(part);
    tj_sb_printf(sb, "\n...</pre><p class=\"note\">The first %d of %zu bytes.</p></details>", LISTING, n);
}

static void kernel(struct tj_strbuf *sb, const struct tj_explain *x, const struct tj_explain_region *g,
                   const struct tj_explain_plan *p, uint32_t i, const char *id, const struct largest *most) {
    const struct tj_explain_kernel *k = &p->kernels[i];
    const struct tj_trace *t = &p->entry->trace;
    char where[300], a[32], b[32], c[32], d[32];
    tj_sb_printf(sb, "<li class=\"h\" id=\"%sk%u\" style=\"--h:%u\"><div class=\"kh\"><span><b>k%u</b> ", id, i,
                 tj_explain_hue(i), i);
    put(sb, k->r->name);
    tj_sb_printf(sb, " <span class=\"tag\">%s</span></span>", k->r->kind);
    if (k->r->node < t->nnodes)
        put_where(sb, tj_loc_text(t->locs[k->r->node], where, sizeof where));
    tj_sb_puts(sb, "</div>");
    kernel_bars(sb, x, g, k, most);
    tj_sb_printf(sb, "<details><summary>%u op%s, reads %s, writes %s, saves %s</summary><ul class=\"lines\">",
                 k->r->nops, k->r->nops == 1 ? "" : "s", tj_explain_quantity(k->r->bytes_read, "B", a, sizeof a),
                 tj_explain_quantity(k->r->bytes_written, "B", b, sizeof b),
                 tj_explain_quantity(k->saved, "B", c, sizeof c));
    for (uint32_t o = 0; o < k->r->nops; o++) {
        char type[160];
        tj_sb_printf(sb, "<li><b>%s</b> <code>", tj_ops[t->nodes[k->r->ops[o]].op].name);
        put(sb, tj_explain_type(p, k->r->ops[o], type, sizeof type));
        tj_sb_puts(sb, "</code> ");
        put_where(sb, tj_loc_text(t->locs[k->r->ops[o]], where, sizeof where));
        tj_sb_puts(sb, "</li>");
    }
    tj_sb_printf(sb, "</ul><p class=\"note\">%s estimated", tj_explain_quantity(k->r->flops, "flop", d, sizeof d));
    if (k->r->runs)
        tj_sb_printf(
            sb, "; %s at best, %s on average of %llu timed runs", tj_explain_time((double)k->r->best_ns, a, sizeof a),
            tj_explain_time((double)k->r->total_ns / (double)k->r->runs, b, sizeof b), (unsigned long long)k->r->runs);
    if (k->r->runs && k->r->timed_bytes != k->r->bytes_read + k->r->bytes_written)
        tj_sb_printf(sb, "; the best time is of runs that moved %s",
                     tj_explain_quantity(k->r->timed_bytes, "B", d, sizeof d));
    if (k->ideal_ns > 0)
        tj_sb_printf(sb, "; the ceiling allows %s", tj_explain_time(k->ideal_ns, c, sizeof c));
    tj_sb_puts(sb, ".</p></details>");
    kernel_code(sb, k);
    tj_sb_puts(sb, "</li>");
}

static void memory(struct tj_strbuf *sb, const struct tj_explain_plan *p) {
    const struct tj_trace *t = &p->entry->trace;
    char text[900], op[300], a[32];
    uint32_t reasons = 0;
    for (uint32_t i = 0; i < p->report.nkept; i++)
        reasons += p->report.kept[i].why != TJ_KEPT_OUTPUT;
    tj_sb_printf(sb, "<h3>Values in memory, and why</h3>");
    if (!reasons)
        tj_sb_puts(sb, "<p class=\"soft\">Results only: everything else is computed on the way.</p>");
    tj_sb_puts(sb, "<ul class=\"lines\">");
    for (uint32_t i = 0; i < p->report.nkept; i++) {
        const struct tj_kept_report *k = &p->report.kept[i];
        if (k->why == TJ_KEPT_OUTPUT)
            continue;
        tj_explain_kept(t, k, text, sizeof text);
        tj_sb_printf(sb, "<li><span class=\"tag why\">%s</span><b>", tj_kept_word(k->why));
        put(sb, tj_op_text(t, k->node, op, sizeof op));
        tj_sb_printf(sb, "</b>, %s: ", tj_explain_quantity(k->bytes, "B", a, sizeof a));
        const char *after = strstr(text, ": ");
        put(sb, after ? after + 2 : text);
        tj_sb_puts(sb, "</li>");
    }
    uint32_t outs = 0;
    for (uint32_t i = 0; i < p->report.nkept; i++) {
        const struct tj_kept_report *k = &p->report.kept[i];
        if (k->why != TJ_KEPT_OUTPUT)
            continue;
        tj_sb_puts(sb, outs++ ? ", " : "<li><span class=\"tag\">results</span>");
        put(sb, tj_op_text(t, k->node, op, sizeof op));
    }
    tj_sb_puts(sb, outs ? "</li></ul>" : "</ul>");
}

static void inputs(struct tj_strbuf *sb, const struct tj_explain_plan *p) {
    const struct tj_trace *t = &p->entry->trace;
    char name[80], type[160];
    tj_sb_puts(sb, "<details><summary class=\"soft\">signature: inputs and captured tensors</summary>");
    if (p->entry->symbolic)
        tj_sb_puts(sb,
                   "<p class=\"note\">The plan serves other extents, too: x0.1 is whatever dim 1 of tensor x0 of this "
                   "list has. Bytes and operations are those of the shapes it was made with.</p>");
    tj_sb_puts(sb, "<ul class=\"lines\">");
    for (uint32_t i = 0; i < t->nnodes; i++) {
        if (t->nodes[i].op != TJ_OP_LEAF)
            continue;
        uint32_t leaf = (uint32_t)((const struct tj_attr_leaf *)tj_node_attr(t, &t->nodes[i]))->index;
        if (p->entry->symbolic)
            tj_sb_printf(sb, "<li><span class=\"tag\">x%u</span>%s <code>", leaf,
                         tj_explain_leaf(t, leaf, name, sizeof name));
        else
            tj_sb_printf(sb, "<li>%s <code>", tj_explain_leaf(t, leaf, name, sizeof name));
        put(sb, tj_explain_type(p, i, type, sizeof type));
        tj_sb_printf(sb, "</code>%s%s</li>",
                     t->leafkeys[leaf].layout ? " <span class=\"tag\">not contiguous</span>" : "",
                     t->leafkeys[leaf].flags & TJ_LEAF_WRITTEN ? " <span class=\"tag\">written</span>" : "");
    }
    tj_sb_puts(sb, "</ul></details>");
}

static void op_list(struct tj_strbuf *sb, const struct tj_explain_plan *p, const char *id) {
    const struct tj_trace *t = &p->entry->trace;
    char type[160], where[300];
    tj_sb_puts(sb, "<details><summary class=\"soft\">recorded ops</summary><ul class=\"lines\">");
    for (uint32_t i = 0; i < t->nnodes; i++) {
        if (!tj_explain_is_op(t, i))
            continue;
        tj_sb_printf(sb, "<li id=\"%so%u\"><b>%s</b> <code>", id, i, tj_ops[t->nodes[i].op].name);
        put(sb, tj_explain_type(p, i, type, sizeof type));
        tj_sb_puts(sb, "</code> ");
        put_where(sb, tj_loc_text(t->locs[i], where, sizeof where));
        if (p->kernel_of[i] != UINT32_MAX)
            tj_sb_printf(sb, " <a href=\"#%sk%u\">k%u</a>", id, p->kernel_of[i], p->kernel_of[i]);
        tj_sb_puts(sb, "</li>");
    }
    tj_sb_puts(sb, "</ul></details>");
}

static void compile_time(struct tj_strbuf *sb, const struct tj_entry *e) {
    static const char *const names[] = {"schedule", "emit", "codegen"};
    const uint64_t ns[] = {e->info.schedule_ns, e->info.emit_ns, e->info.codegen_ns};
    double all = (double)(ns[0] + ns[1] + ns[2]);
    char a[32];
    if (all <= 0)
        return;
    tj_sb_puts(sb, "<div class=\"phase\">");
    for (int i = 0; i < 3; i++)
        tj_sb_printf(sb, "<s class=\"p%d\" style=\"width:%.1f%%\"></s>", i, percent((double)ns[i], all));
    tj_sb_puts(sb, "</div><p class=\"note\">");
    for (int i = 0; i < 3; i++)
        tj_sb_printf(sb, "<span class=\"dot p%d\"></span>%s %s", i, names[i],
                     tj_explain_time((double)ns[i], a, sizeof a));
    tj_sb_printf(sb, "; %u kernel%s compiled for it</p>", e->info.new_kernels, e->info.new_kernels == 1 ? "" : "s");
}

static void plan(struct tj_strbuf *sb, const struct tj_explain *x, const struct tj_explain_region *g, uint32_t region,
                 const struct tj_explain_plan *p, bool open, bool draw) {
    const struct tj_entry *e = p->entry;
    const struct tj_trace *t = &e->trace;
    char id[48], a[32];
    (void)snprintf(id, sizeof id, "r%up%u", region, p->number);
    tj_sb_printf(sb, "<details class=\"plan\" id=\"%s\"%s><summary><b>plan %u</b><span>ends at <code>", id,
                 open ? " open" : "", p->number);
    put(sb, e->site);
    tj_sb_printf(
        sb, "</code></span><span class=\"soft\">%u ops in %u kernels, %llu hit%s, made in %.1f ms</span></summary>",
        t->nnodes - t->nleaves - t->nparams, p->report.nkernels, (unsigned long long)p->hits, p->hits == 1 ? "" : "s",
        e->ms);
    tj_sb_printf(sb, "<p><span class=\"tag%s\">%s</span>", p->why ? " why" : "", p->why ? "recompile" : "made");
    if (p->why) {
        put(sb, p->why);
        if (p->where && p->where[0]) {
            tj_sb_puts(sb, " ");
            put_where(sb, p->where);
        }
    } else {
        tj_sb_puts(sb, e->trimmed ? "later runs store across the break only what was used"
                                  : "the first graph that ends there");
    }
    tj_sb_printf(sb, " <span class=\"soft\">at %s</span></p>", tj_explain_time(p->at_ms * 1e6, a, sizeof a));
    compile_time(sb, e);
    if (!p->reported) {
        tj_sb_puts(sb, "<p class=\"soft\">The interpreter runs it op by op.</p>");
        inputs(sb, p);
        op_list(sb, p, id);
        tj_sb_puts(sb, "</details>");
        return;
    }
    struct largest most = {0, 0};
    uint64_t saved = 0, moved = 0;
    for (uint32_t i = 0; i < p->report.nkernels; i++) {
        const struct tj_explain_kernel *k = &p->kernels[i];
        uint64_t n = k->r->bytes_read + k->r->bytes_written;
        most.ns = (double)k->r->best_ns > most.ns ? (double)k->r->best_ns : most.ns;
        most.moved = n > most.moved ? n : most.moved;
        moved += n;
        saved += k->saved;
    }
    tj_sb_puts(sb, "<div class=\"cols\">");
    if (draw) {
        struct tj_arena arena = {0};
        tj_explain_graph(p, id, &arena, sb);
        tj_arena_free(&arena);
    }
    tj_sb_puts(sb, "<div>");
    char b[32];
    tj_sb_printf(sb, "<div class=\"bars h\" style=\"--h:150;grid-template-columns:1fr;margin-bottom:12px\">");
    char text[120];
    (void)snprintf(text, sizeof text, "%s moved, %s saved by fusing", tj_explain_quantity(moved, "B", a, sizeof a),
                   tj_explain_quantity(saved, "B", b, sizeof b));
    bar(sb, " saved", "memory traffic of a run: ", text, "", percent((double)saved, (double)(saved + moved)));
    tj_sb_puts(sb, "</div><ul class=\"kernels\">");
    for (uint32_t i = 0; i < p->report.nkernels; i++)
        kernel(sb, x, g, p, i, id, &most);
    tj_sb_puts(sb, "</ul>");
    memory(sb, p);
    tj_sb_puts(sb, "</div></div>");
    if (!draw)
        tj_sb_printf(sb, "<p class=\"note\">Graphs are drawn for the %d plans that ran most.</p>", GRAPHS);
    inputs(sb, p);
    op_list(sb, p, id);
    tj_sb_puts(sb, "</details>");
}

// ---- a region -------------------------------------------------------------------------------------------------------

static void segments(struct tj_strbuf *sb, const struct tj_explain_region *g, uint32_t region) {
    tj_sb_puts(sb,
               "<h3>Segments</h3><p class=\"note\">A run ends a segment at each break and at trace_end; each kind of "
               "end has its plans.</p><ul class=\"lines\">");
    for (uint32_t i = 0; i < g->nplans; i++) {
        const struct tj_entry *e = g->plans[i].entry;
        uint64_t hits = 0;
        bool seen = false;
        for (uint32_t k = 0; k < g->nplans; k++) {
            bool same = !strcmp(g->plans[k].entry->site, e->site);
            seen = seen || (same && k < i);
            hits += same ? g->plans[k].hits : 0;
        }
        if (seen)
            continue;
        tj_sb_puts(sb, "<li>ends at <code>");
        put(sb, e->site);
        tj_sb_printf(sb, "</code>: %llu hit%s on", (unsigned long long)hits, hits == 1 ? "" : "s");
        for (uint32_t k = 0; k < g->nplans; k++) {
            if (!strcmp(g->plans[k].entry->site, e->site))
                tj_sb_printf(sb, " <a href=\"#r%up%u\">plan %u</a>", region, g->plans[k].number, g->plans[k].number);
        }
        tj_sb_puts(sb, "</li>");
    }
    tj_sb_puts(sb, g->nplans ? "</ul>" : "<li class=\"soft\">No plan: nothing has run here, or op by op.</li></ul>");
}

static void breaks(struct tj_strbuf *sb, const struct tj_explain_region *g) {
    tj_sb_puts(sb, "<h3>Graph breaks</h3>");
    if (!g->nbreaks)
        tj_sb_puts(sb, "<p class=\"soft\">None: every run is one graph.</p>");
    else
        tj_sb_puts(sb,
                   "<p class=\"note\">Where a value was read in the middle of a run, and what to write instead.</p>");
    for (uint32_t i = 0; i < g->nbreaks; i++) {
        const struct tj_explain_break *b = &g->breaks[i];
        char a[32];
        tj_sb_puts(sb, "<div class=\"card break\"><p><b>");
        put(sb, b->lint ? "unused condition" : b->op);
        tj_sb_puts(sb, "</b> ");
        put_where(sb, b->where);
        if (b->made) {
            tj_sb_puts(sb, " needs ");
            put(sb, b->made);
        }
        tj_sb_puts(sb, "</p>");
        if (!b->lint)
            tj_sb_printf(sb, "<p class=\"soft\">%llu times, %s each</p>", (unsigned long long)b->count,
                         tj_explain_time((double)b->ns / (double)(b->count ? b->count : 1), a, sizeof a));
        tj_sb_puts(sb, "<p class=\"advice\">");
        put(sb, b->lint ? "probably `if (handle)`, which is always true; read it with trace_item_i64, or choose with "
                          "trace_where"
                        : b->remedy);
        tj_sb_puts(sb, "</p></div>");
    }
}

static void recompiles(struct tj_strbuf *sb, const struct tj_explain_region *g) {
    tj_sb_puts(sb, "<h3>Recompiles</h3>");
    if (!g->nrecompiles) {
        tj_sb_puts(sb, "<p class=\"soft\">None.</p>");
        return;
    }
    if (g->recompiles_before)
        tj_sb_printf(sb, "<p class=\"note\">%llu earlier ones are not kept.</p>",
                     (unsigned long long)g->recompiles_before);
    tj_sb_puts(sb, "<ul class=\"lines recompiles\">");
    for (uint32_t i = 0; i < g->nrecompiles; i++) {
        const struct tj_explain_recompile *q = &g->recompiles[i];
        char a[32], b[32];
        tj_sb_printf(sb, "<li><span class=\"soft\">%s</span><span>", tj_explain_time(q->at_ms * 1e6, a, sizeof a));
        put(sb, q->text);
        tj_sb_puts(sb, " ");
        put_where(sb, q->where);
        tj_sb_printf(sb, "</span><b>%s</b></li>", tj_explain_time(q->ms * 1e6, b, sizeof b));
    }
    tj_sb_puts(sb, "</ul>");
}

// What the declared inputs looked like, run by run; where only few dims differ from run to run, that says it all.
static void buckets(struct tj_strbuf *sb, const struct tj_explain_region *g) {
    struct tj_bucket_count b[16];
    double waste;
    for (uint32_t i = 0; i < g->region->nbuckets; i++) {
        uint32_t n = tj_bucket_counts(g->region, i, &g->shapes, b, TJ_COUNT(b), &waste);
        uint64_t most = 1;
        for (uint32_t k = 0; k < n; k++)
            most = b[k].runs > most ? b[k].runs : most;
        tj_sb_printf(sb, "<h3>Buckets of dim %u of input %u: %.1f%% padding</h3><div class=\"hist\">",
                     g->region->buckets[i].dim, g->region->buckets[i].input, waste);
        for (uint32_t k = 0; k < n; k++)
            tj_sb_printf(sb, "<code>up to %lld</code><i><s style=\"width:%.1f%%\"></s></i><span>%llu</span>",
                         (long long)b[k].size, percent((double)b[k].runs, (double)most), (unsigned long long)b[k].runs);
        tj_sb_puts(sb, "</div>");
    }
}

static void shapes(struct tj_strbuf *sb, const struct tj_profile_view *v) {
    enum { SHOWN = 12 };
    uint64_t rest = v->other;
    if (!v->total)
        return;
    tj_sb_puts(sb, "<h3>Input shapes seen</h3><div class=\"hist\">");
    for (uint32_t i = 0; i < v->n; i++) {
        const struct tj_profile_combination *c = &v->rows[i];
        if (i >= SHOWN) {
            rest += c->count;
            continue;
        }
        tj_sb_puts(sb, "<code>");
        for (uint32_t k = 0; k < c->ninputs; k++) {
            tj_sb_printf(sb, "%s%s", k ? " " : "", tj_dtypes[c->inputs[k].dtype].name);
            tj_sb_dims(sb, c->inputs[k].dims, c->inputs[k].rank);
        }
        tj_sb_printf(sb, "%s</code><i><s style=\"width:%.1f%%\"></s></i><span>%llu</span>",
                     c->ninputs ? "" : "no inputs", percent((double)c->count, (double)v->rows[0].count),
                     (unsigned long long)c->count);
    }
    if (rest)
        tj_sb_printf(sb, "<span class=\"soft\">others</span><i><s style=\"width:%.1f%%\"></s></i><span>%llu</span>",
                     percent((double)rest, v->n ? (double)v->rows[0].count : (double)rest), (unsigned long long)rest);
    tj_sb_puts(sb, "</div>");
}

static void region(struct tj_strbuf *sb, const struct tj_explain *x, uint32_t i) {
    const struct tj_explain_region *g = &x->regions[i];
    const trace_stats *s = &g->stats;
    tj_sb_printf(sb, "<section id=\"r%u\"><h2>Region <em>", i);
    put(sb, g->region->name);
    tj_sb_puts(sb, "</em></h2><div class=\"tiles\">");
    tile(sb, s->runs, "runs");
    tile(sb, g->nplans, g->nplans == 1 ? "plan" : "plans");
    tile(sb, s->hits, "plan hits");
    tile(sb, s->recompiles, "recompiles");
    tile(sb, s->breaks, "graph breaks");
    tile(sb, s->fused_away, "ops fused away");
    tj_sb_puts(sb, "</div>");
    if (!g->nplans && !g->nbreaks && !g->nrecompiles) {
        tj_sb_puts(sb, "<p class=\"soft\">No plan: nothing has run here, or op by op.</p></section>");
        return;
    }
    tj_sb_puts(sb, "<div class=\"parts\"><div>");
    segments(sb, g, i);
    tj_sb_puts(sb, "</div><div>");
    breaks(sb, g);
    tj_sb_puts(sb, "</div></div><div class=\"parts\"><div>");
    recompiles(sb, g);
    tj_sb_puts(sb, "</div><div>");
    shapes(sb, &g->shapes);
    buckets(sb, g);
    tj_sb_puts(sb, "</div></div>");
    tj_sb_puts(sb, g->nplans ? "<h3>Plans</h3>" : "");
    for (uint32_t p = 0; p < g->nplans; p++)
        plan(sb, x, g, i, &g->plans[p], tj_explain_hot(g, p, 1), tj_explain_hot(g, p, GRAPHS));
    tj_sb_puts(sb, "</section>");
}

// ---- the page -------------------------------------------------------------------------------------------------------

static void ceilings(struct tj_strbuf *sb, const struct tj_ceiling *c) {
    char b[32];
    if (!c)
        return;
    tj_sb_puts(
        sb, "<details class=\"card\"><summary>ceilings of this machine, measured</summary><div class=\"wide\"><table>"
            "<thead><tr><th>what</th><th class=\"num\">one thread</th>");
    tj_sb_printf(sb, "<th class=\"num\">%d thread%s</th></tr></thead><tbody>", c->threads, c->threads == 1 ? "" : "s");
    for (int i = 0; i < TJ_CEILING_SIZES; i++)
        tj_sb_printf(
            sb, "<tr><td>copy that moves %s</td><td class=\"num\">%.1f GB/s</td><td class=\"num\">%.1f GB/s</td></tr>",
            tj_explain_quantity(c->bytes[i], "B", b, sizeof b), c->copy[i][0], c->copy[i][1]);
    tj_sb_printf(
        sb,
        "<tr><td>f32 multiply-adds</td><td class=\"num\">%.1f Gflop/s</td><td class=\"num\">%.1f Gflop/s</td></tr>"
        "</tbody></table></div><p class=\"note\">A kernel is held against the copy of its size, and against all "
        "threads once the ceiling of one is above 25 us. More than 100%% means that it moves less than was "
        "counted, since caches hold what the kernel before wrote, or that the machine was busy when the "
        "ceilings were measured.</p></details>",
        c->fma[0], c->fma[1]);
}

void tj_explain_html(const struct tj_explain *x, struct tj_strbuf *sb) {
    tj_sb_puts(sb, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
                   "content=\"width=device-width,initial-scale=1\"><title>tracejit: ");
    put(sb, x->whole_context ? "all regions" : x->regions[0].region->name);
    tj_sb_puts(sb, "</title><style>");
    tj_sb_puts(sb, style);
    tj_sb_puts(
        sb, "</style></head><body><svg width=\"0\" height=\"0\" style=\"position:absolute\" aria-hidden=\"true\"><defs>"
            "<marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"6\" markerHeight=\"6\" "
            "orient=\"auto\"><path d=\"M0 0L8 4L0 8z\" fill=\"#8793a0\"/></marker></defs></svg>"
            "<header class=\"top\"><h1>tracejit <small>explains ");
    put(sb, x->whole_context ? "all regions" : x->regions[0].region->name);
    tj_sb_printf(sb, "</small></h1><p class=\"soft\">version %s, ", trace_version());
    put(sb, x->ctx->describe);
    tj_sb_puts(sb, "</p>");
    if (x->compiler[0]) {
        tj_sb_puts(sb, "<p class=\"soft\">compiler ");
        put(sb, x->compiler);
        tj_sb_puts(sb, "</p>");
    }
    if (x->nregions > 1) {
        tj_sb_puts(sb, "<nav>");
        for (uint32_t i = 0; i < x->nregions; i++) {
            tj_sb_printf(sb, "<a href=\"#r%u\">", i);
            put(sb, x->regions[i].region->name);
            tj_sb_puts(sb, "</a>");
        }
        tj_sb_puts(sb, "</nav>");
    }
    ceilings(sb, x->ceiling);
    tj_sb_puts(sb, "</header><main>");
    if (x->whole_context) {
        tj_sb_puts(sb, "<div class=\"tiles\">");
        tile(sb, x->stats.runs, "runs in all");
        tile(sb, x->stats.graphs, "plans made");
        tile(sb, x->stats.kernels, "kernels compiled");
        tile(sb, x->stats.bytes_code / 1000, "kB of code");
        tile(sb, x->stats.bytes_live / 1000, "kB of tensors");
        tj_sb_puts(sb, "</div>");
    }
    for (uint32_t i = 0; i < x->nregions; i++)
        region(sb, x, i);
    tj_sb_puts(
        sb, "</main><footer>Written by tracejit. Bytes and operations are counted from the recorded shapes; times are "
            "those of runs after trace_region_profile.</footer><script>");
    tj_sb_puts(sb, script);
    tj_sb_puts(sb, "</script></body></html>\n");
}
