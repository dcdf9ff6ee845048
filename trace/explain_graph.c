// trace/explain_graph.c: the picture of a plan: ops in layers, coloured by the kernel that computes them, as SVG.
//
// Layers are longest paths from the inputs. An edge over several layers gets a point in each of them, so that it passes
// between boxes. Points of a layer are ordered by the mean place of their neighbours in the layer before (then behind),
// several times over; then each moves as near to its neighbours as the order allows.
#include "explain.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    MAX_DRAWN = 400,   // ops
    MAX_POINTS = 6000, // boxes and points of edges
    WIDTH = 152,
    HEIGHT = 42,
    GAP_X = 20,
    GAP_Y = 34,
    THIN = 14, // width of a point of an edge
    MARGIN = 14,
    SWEEPS = 8
};

struct point {
    tj_ref node; // TJ_NIL: an edge passes
    uint32_t layer, place;
    double x, want;
};
struct edge { // between neighbouring layers
    uint32_t from, to;
};
struct picture {
    const struct tj_explain_plan *p;
    const struct tj_trace *t;
    struct tj_arena *a;
    uint32_t *point_of; // node -> point, UINT32_MAX: not drawn
    struct point *points;
    uint32_t npoints;
    struct edge *edges;
    uint32_t nedges, capedges;
    uint32_t *first_edge;                // edges of a layer's points downwards begin here
    uint32_t nlayers, *layer_at, *order; // points of layer l: order[layer_at[l] .. layer_at[l + 1])
    uint32_t left_out;
    double width, height;
};

unsigned tj_explain_hue(uint32_t kernel) {
    return (unsigned)((kernel * 137u + 210u) % 360u);
} // golden angle: far apart

// ---- what is drawn --------------------------------------------------------------------------------------------------

static bool shows_leaf(const struct tj_trace *t, tj_ref n) {
    if (t->nodes[n].op != TJ_OP_LEAF)
        return false;
    const struct tj_leaf_key *k = &t->leafkeys[((const struct tj_attr_leaf *)tj_node_attr(t, &t->nodes[n]))->index];
    return k->input || k->flags & (TJ_LEAF_CARRIED | TJ_LEAF_WRITTEN); // weights would hide the rest
}

static bool choose(struct picture *g) {
    const struct tj_trace *t = g->t;
    const struct tj_segment *s = &g->p->entry->seg;
    bool *live = TJ_ARENA_NEW(g->a, bool, t->nnodes + 1);
    g->point_of = TJ_ARENA_NEW(g->a, uint32_t, t->nnodes + 1);
    uint32_t *layer = TJ_ARENA_NEW(g->a, uint32_t, t->nnodes + 1);
    g->points = TJ_ARENA_NEW(g->a, struct point, MAX_POINTS);
    if (g->a->failed)
        return false;
    for (uint32_t i = 0; i < s->nouts; i++)
        live[s->outs[i]] = true;
    for (uint32_t i = 0; i < s->nwrites; i++)
        live[s->writes[i]] = true;
    uint32_t edges = 0;
    for (uint32_t i = t->nnodes; i-- > 0;) {
        g->point_of[i] = UINT32_MAX;
        const tj_ref *in = tj_node_in(t, &t->nodes[i]);
        for (uint32_t k = 0; live[i] && k < t->nodes[i].nin; k++)
            live[in[k]] = true;
    }
    for (uint32_t i = 0; i < t->nnodes; i++) {
        if (!live[i] || !(tj_explain_is_op(t, i) || shows_leaf(t, i)))
            continue;
        if (g->npoints == MAX_DRAWN) {
            g->left_out++;
            continue;
        }
        const tj_ref *in = tj_node_in(t, &t->nodes[i]);
        for (uint32_t k = 0; k < t->nodes[i].nin; k++) {
            if (g->point_of[in[k]] == UINT32_MAX)
                continue;
            layer[i] = layer[in[k]] + 1 > layer[i] ? layer[in[k]] + 1 : layer[i];
            edges++;
        }
        g->point_of[i] = g->npoints;
        g->points[g->npoints++] = (struct point){.node = i, .layer = layer[i]};
    }
    // Inputs stand right above their first user.
    for (uint32_t i = 0; i < g->npoints; i++) {
        struct point *q = &g->points[i];
        uint32_t low = UINT32_MAX;
        if (tj_explain_is_op(t, q->node))
            continue;
        for (uint32_t u = 0; u < g->npoints; u++) {
            const struct tj_node *d = &t->nodes[g->points[u].node];
            for (uint32_t k = 0; k < d->nin; k++) {
                if (tj_node_in(t, d)[k] == q->node && g->points[u].layer < low)
                    low = g->points[u].layer;
            }
        }
        q->layer = low != UINT32_MAX && low > 0 ? low - 1 : 0;
    }
    g->capedges = edges + MAX_POINTS;
    g->edges = TJ_ARENA_NEW(g->a, struct edge, g->capedges + 1);
    return !g->a->failed;
}

static void connect(struct picture *g) {
    uint32_t boxes = g->npoints;
    for (uint32_t b = 0; b < boxes; b++) {
        const struct tj_node *d = &g->t->nodes[g->points[b].node];
        const tj_ref *in = tj_node_in(g->t, d);
        for (uint32_t k = 0; k < d->nin; k++) {
            uint32_t from = g->point_of[in[k]];
            bool twice = false;
            for (uint32_t j = 0; j < k; j++)
                twice = twice || in[j] == in[k];
            if (from == UINT32_MAX || twice || g->nedges >= g->capedges)
                continue;
            while (g->points[from].layer + 1 < g->points[b].layer && g->npoints < MAX_POINTS &&
                   g->nedges < g->capedges) {
                uint32_t pass = g->npoints++;
                g->points[pass] = (struct point){.node = TJ_NIL, .layer = g->points[from].layer + 1};
                g->edges[g->nedges++] = (struct edge){from, pass};
                from = pass;
            }
            if (g->nedges < g->capedges)
                g->edges[g->nedges++] = (struct edge){from, b};
        }
    }
}

// ---- places ---------------------------------------------------------------------------------------------------------

static double width_of(const struct point *q) { return q->node == TJ_NIL ? THIN : WIDTH; }

static bool into_layers(struct picture *g) {
    for (uint32_t i = 0; i < g->npoints; i++)
        g->nlayers = g->points[i].layer + 1 > g->nlayers ? g->points[i].layer + 1 : g->nlayers;
    g->layer_at = TJ_ARENA_NEW(g->a, uint32_t, g->nlayers + 2);
    g->order = TJ_ARENA_NEW(g->a, uint32_t, g->npoints + 1);
    g->first_edge = TJ_ARENA_NEW(g->a, uint32_t, g->nlayers + 2);
    struct edge *sorted = TJ_ARENA_NEW(g->a, struct edge, g->nedges + 1);
    if (g->a->failed)
        return false;
    for (uint32_t i = 0; i < g->npoints; i++)
        g->layer_at[g->points[i].layer + 1]++;
    for (uint32_t i = 0; i < g->nedges; i++)
        g->first_edge[g->points[g->edges[i].from].layer + 1]++;
    for (uint32_t l = 0; l <= g->nlayers; l++) {
        g->layer_at[l + 1] += l < g->nlayers ? g->layer_at[l] : 0;
        g->first_edge[l + 1] += l < g->nlayers ? g->first_edge[l] : 0;
    }
    for (uint32_t i = 0; i < g->npoints; i++) { // layer_at[l] moves to the end of l; moved back below
        g->points[i].place = g->layer_at[g->points[i].layer];
        g->order[g->layer_at[g->points[i].layer]++] = i;
    }
    for (uint32_t i = 0; i < g->nedges; i++)
        sorted[g->first_edge[g->points[g->edges[i].from].layer]++] = g->edges[i];
    for (uint32_t l = g->nlayers; l > 0; l--) {
        g->layer_at[l] = g->layer_at[l - 1];
        g->first_edge[l] = g->first_edge[l - 1];
    }
    g->layer_at[0] = g->first_edge[0] = 0;
    g->edges = sorted;
    for (uint32_t l = 0; l < g->nlayers; l++) {
        double x = 0;
        for (uint32_t i = g->layer_at[l]; i < g->layer_at[l + 1]; i++) {
            struct point *q = &g->points[g->order[i]];
            q->x = x + width_of(q) / 2;
            x += width_of(q) + GAP_X;
        }
    }
    return true;
}

// Where the points of layer l would like to be: at the mean of their neighbours above, or below.
static void wishes(struct picture *g, uint32_t l, bool down) {
    for (uint32_t i = g->layer_at[l]; i < g->layer_at[l + 1]; i++) {
        g->points[g->order[i]].want = 0;
        g->points[g->order[i]].place = 0;
    }
    uint32_t from = down ? (l ? g->first_edge[l - 1] : 0) : g->first_edge[l];
    uint32_t to = down ? (l ? g->first_edge[l] : 0) : g->first_edge[l + 1];
    for (uint32_t e = from; e < to; e++) {
        struct point *q = &g->points[down ? g->edges[e].to : g->edges[e].from];
        const struct point *o = &g->points[down ? g->edges[e].from : g->edges[e].to];
        if (q->layer != l) // an edge that got no points
            continue;
        q->want += o->x;
        q->place++;
    }
    for (uint32_t i = g->layer_at[l]; i < g->layer_at[l + 1]; i++) {
        struct point *q = &g->points[g->order[i]];
        q->want = q->place ? q->want / q->place : q->x;
    }
}

static void sort_layer(struct picture *g, uint32_t l) {
    for (uint32_t i = g->layer_at[l] + 1; i < g->layer_at[l + 1]; i++) {
        uint32_t q = g->order[i], k = i;
        for (; k > g->layer_at[l] && g->points[g->order[k - 1]].want > g->points[q].want; k--)
            g->order[k] = g->order[k - 1];
        g->order[k] = q;
    }
}

// In the order they have, none nearer to the next than it may be, on the whole where they want to be.
static void place_layer(struct picture *g, uint32_t l) {
    double end = -1e18, shift = 0;
    uint32_t n = g->layer_at[l + 1] - g->layer_at[l];
    for (uint32_t i = g->layer_at[l]; i < g->layer_at[l + 1]; i++) {
        struct point *q = &g->points[g->order[i]];
        double half = width_of(q) / 2;
        q->x = q->want - half < end ? end + half : q->want;
        end = q->x + half + GAP_X;
        shift += q->want - q->x;
    }
    for (uint32_t i = g->layer_at[l]; n && i < g->layer_at[l + 1]; i++)
        g->points[g->order[i]].x += shift / n;
}

static void arrange(struct picture *g) {
    for (uint32_t s = 0; s < SWEEPS; s++) {
        bool down = s % 2 == 0;
        for (uint32_t i = 0; i < g->nlayers; i++) {
            uint32_t l = down ? i : g->nlayers - 1 - i;
            wishes(g, l, down);
            if (s < SWEEPS - 2)
                sort_layer(g, l);
            place_layer(g, l);
        }
    }
    double low = 1e18, high = -1e18;
    for (uint32_t i = 0; i < g->npoints; i++) {
        double half = width_of(&g->points[i]) / 2;
        low = g->points[i].x - half < low ? g->points[i].x - half : low;
        high = g->points[i].x + half > high ? g->points[i].x + half : high;
    }
    for (uint32_t i = 0; i < g->npoints; i++)
        g->points[i].x += MARGIN - low;
    g->width = g->npoints ? high - low + 2 * MARGIN : 2 * MARGIN;
    g->height = g->nlayers * (HEIGHT + GAP_Y) - GAP_Y + 2 * MARGIN;
}

static double top_of(const struct point *q) { return MARGIN + q->layer * (double)(HEIGHT + GAP_Y); }

// ---- drawing --------------------------------------------------------------------------------------------------------

static void draw_edges(const struct picture *g, struct tj_strbuf *sb) {
    tj_sb_puts(sb, "<g class=\"edges\">");
    for (uint32_t i = 0; i < g->nedges; i++) {
        const struct point *a = &g->points[g->edges[i].from], *b = &g->points[g->edges[i].to];
        bool out = a->node == TJ_NIL, end = b->node != TJ_NIL;
        double y0 = top_of(a) + (out ? HEIGHT / 2.0 : HEIGHT), y1 = top_of(b) + (end ? 0 : HEIGHT / 2.0);
        double bend = (y1 - y0) * 0.5;
        tj_sb_printf(sb, "<path d=\"M%.1f %.1fC%.1f %.1f %.1f %.1f %.1f %.1f\"%s/>", a->x, y0, a->x, y0 + bend, b->x,
                     y1 - bend, b->x, y1, end ? " marker-end=\"url(#tip)\"" : "");
    }
    tj_sb_puts(sb, "</g>");
}

// A frame around the boxes of a kernel, when no other box lies in it.
static void draw_frames(const struct picture *g, struct tj_strbuf *sb) {
    for (uint32_t k = 0; k < g->p->report.nkernels; k++) {
        double x0 = 1e18, x1 = -1e18, y0 = 1e18, y1 = -1e18;
        uint32_t n = 0;
        for (uint32_t i = 0; i < g->npoints; i++) {
            const struct point *q = &g->points[i];
            if (q->node == TJ_NIL || g->p->kernel_of[q->node] != k)
                continue;
            n++;
            x0 = q->x - WIDTH / 2.0 < x0 ? q->x - WIDTH / 2.0 : x0;
            x1 = q->x + WIDTH / 2.0 > x1 ? q->x + WIDTH / 2.0 : x1;
            y0 = top_of(q) < y0 ? top_of(q) : y0;
            y1 = top_of(q) + HEIGHT > y1 ? top_of(q) + HEIGHT : y1;
        }
        bool alone = n > 1;
        for (uint32_t i = 0; alone && i < g->npoints; i++) {
            const struct point *q = &g->points[i];
            if (q->node != TJ_NIL && g->p->kernel_of[q->node] != k)
                alone = q->x + WIDTH / 2.0 < x0 || q->x - WIDTH / 2.0 > x1 || top_of(q) > y1 || top_of(q) + HEIGHT < y0;
        }
        if (alone)
            tj_sb_printf(
                sb,
                "<rect class=\"frame h\" style=\"--h:%u\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"12\"/>",
                tj_explain_hue(k), x0 - 8, y0 - 8, x1 - x0 + 16, y1 - y0 + 16);
    }
}

static void cut(const char *s, size_t room, char *out, size_t cap) {
    size_t n = strlen(s);
    if (n <= room) {
        (void)snprintf(out, cap, "%s", s);
        return;
    }
    while (room > 0 && ((unsigned char)s[room] & 0xC0) == 0x80) // not within a character
        room--;
    (void)snprintf(out, cap, "%.*s\xE2\x80\xA6", (int)room, s);
}

static void draw_box(const struct picture *g, const struct point *q, const char *id, struct tj_strbuf *sb) {
    const struct tj_trace *t = g->t;
    tj_ref n = q->node;
    uint32_t kernel = g->p->kernel_of[n], mem = g->p->kept_of[n];
    bool leaf = !tj_explain_is_op(t, n), view = tj_ops[t->nodes[n].op].cls == TJ_VIEW;
    char name[120], type[160], where[300], shortened[80], bytes[32], line[1200];
    if (leaf)
        (void)tj_explain_leaf(t, (uint32_t)((const struct tj_attr_leaf *)tj_node_attr(t, &t->nodes[n]))->index, name,
                              sizeof name);
    else
        (void)snprintf(name, sizeof name, "%s", tj_ops[t->nodes[n].op].name);
    (void)tj_explain_type(g->p, n, type, sizeof type);
    tj_sb_printf(sb, "<a class=\"n h%s%s%s%s\" style=\"--h:%u\" href=\"#%so%u\"", leaf ? " leaf" : "",
                 view ? " view" : "", mem != UINT32_MAX ? " mem" : "", kernel == UINT32_MAX ? " free" : "",
                 kernel == UINT32_MAX ? 0 : tj_explain_hue(kernel), id, n);
    if (kernel != UINT32_MAX)
        tj_sb_printf(sb, " data-k=\"%sk%u\"", id, kernel);
    tj_sb_puts(sb, "><title>");
    (void)snprintf(line, sizeof line, "%s  %s, %s", name, type,
                   tj_explain_quantity(tj_explain_bytes(t, n), "B", bytes, sizeof bytes));
    tj_sb_html(sb, line);
    if (!leaf) {
        tj_sb_puts(sb, "\n");
        tj_sb_html(sb, tj_loc_text(t->locs[n], where, sizeof where)[0] ? where : "place unknown");
    }
    if (kernel != UINT32_MAX) {
        (void)snprintf(line, sizeof line, "\nkernel %u: %s", kernel, g->p->report.kernels[kernel].name);
        tj_sb_html(sb, line);
    } else if (!leaf) {
        tj_sb_puts(sb, view ? "\na view: computes nothing" : "\nin no kernel: folded into others");
    }
    if (mem != UINT32_MAX) {
        tj_sb_puts(sb, "\nin memory: ");
        tj_explain_kept(t, &g->p->report.kept[mem], line, sizeof line);
        tj_sb_html(sb, line);
    } else if (!leaf && kernel != UINT32_MAX) {
        tj_sb_puts(sb, "\nno memory of its own");
    }
    double x = q->x - WIDTH / 2.0, y = top_of(q);
    tj_sb_printf(sb, "</title><rect x=\"%.1f\" y=\"%.1f\" width=\"%d\" height=\"%d\" rx=\"%d\"/>", x, y, WIDTH, HEIGHT,
                 leaf ? HEIGHT / 2 : 8);
    cut(name, kernel == UINT32_MAX ? 20 : 16, shortened, sizeof shortened);
    tj_sb_printf(sb, "<text class=\"o\" x=\"%.1f\" y=\"%.1f\"%s>", leaf ? q->x : x + 10, y + 18,
                 leaf ? " text-anchor=\"middle\"" : "");
    tj_sb_html(sb, shortened);
    cut(type, 22, shortened, sizeof shortened);
    tj_sb_printf(sb, "</text><text class=\"t\" x=\"%.1f\" y=\"%.1f\"%s>", leaf ? q->x : x + 10, y + 33,
                 leaf ? " text-anchor=\"middle\"" : "");
    tj_sb_html(sb, shortened);
    tj_sb_puts(sb, "</text>");
    if (kernel != UINT32_MAX)
        tj_sb_printf(sb, "<text class=\"k\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">k%u</text>", x + WIDTH - 9,
                     y + 18, kernel);
    tj_sb_puts(sb, "</a>");
}

void tj_explain_graph(const struct tj_explain_plan *p, const char *id, struct tj_arena *a, struct tj_strbuf *sb) {
    struct picture g = {.p = p, .t = &p->entry->trace, .a = a};
    if (!choose(&g)) {
        sb->failed = true;
        return;
    }
    connect(&g);
    if (!into_layers(&g)) {
        sb->failed = true;
        return;
    }
    arrange(&g);
    // A wide picture shrinks to three quarters where there is no room, then scrolls in its box.
    tj_sb_printf(sb,
                 "<div class=\"graph\"><div class=\"scroll\"><svg role=\"img\" aria-label=\"ops of the plan\" "
                 "style=\"width:%.0fpx;min-width:%.0fpx\" viewBox=\"0 0 %.0f %.0f\">",
                 g.width, g.width * 0.75, g.width, g.height);
    draw_frames(&g, sb);
    draw_edges(&g, sb);
    for (uint32_t i = 0; i < g.npoints; i++) {
        if (g.points[i].node != TJ_NIL)
            draw_box(&g, &g.points[i], id, sb);
    }
    tj_sb_puts(sb, "</svg></div>");
    if (g.left_out)
        tj_sb_printf(sb, "<p class=\"note\">The first %d ops are drawn; %u more are in the list of ops.</p>", MAX_DRAWN,
                     g.left_out);
    tj_sb_puts(
        sb, "<p class=\"info\" aria-live=\"polite\">Boxes of one colour run as one kernel; a bold edge below means the "
            "value is stored in memory. Hover or tap a box for its host line.</p></div>");
}
