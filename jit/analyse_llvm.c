// jit/analyse_llvm.c: where each instruction of a loop kernel is computed, and what each pass needs.
#include <stdio.h>

#include "loop_llvm.h"

tj_status tj_l_refuse(struct gen *g, const char *what, unsigned i) {
    (void)snprintf(g->e->err, g->e->cap, "kernel %s: %s (instruction %u)", g->k->name ? g->k->name : "", what, i);
    return TRACE_ERR_COMPILE;
}

// ---- analysis -----------------------------------------------------------------------------------------------------

bool tj_l_has_access(unsigned op) { return op == TJ_KOP_LOAD || op == TJ_KOP_STORE || op == TJ_KOP_COORD; }

static void deeper(struct gen *g, unsigned i, enum place at, unsigned ready, bool varies) {
    g->place[i] = (uint8_t)(at > g->place[i] ? at : g->place[i]);
    g->ready[i] = (uint8_t)(ready > g->ready[i] ? ready : g->ready[i]);
    g->varies[i] = g->varies[i] || varies;
}

static void inherit(struct gen *g, unsigned i, tj_kv from) {
    deeper(g, i, g->place[from], g->ready[from], g->varies[from]);
}

static void analyse_access(struct gen *g, unsigned i, unsigned a) {
    const struct tj_kaccess *s = &g->k->access[a];
    for (unsigned d = 0; d < g->k->ndims; d++) {
        if (s->stride[d]) {
            deeper(g, i, tj_l_dim_place(g, d), 0, d == g->vdim);
        }
    }
    bool wild = s->stride[g->vdim] > 1;
    for (unsigned d = 0; d < s->nindirect; d++) {
        inherit(g, i, s->ind_value[d]);
        wild = wild || (g->varies[s->ind_value[d]] && s->ind_stride[d]);
    }
    g->acc[a].turned = s->vec == TJ_VEC_TURNED;
    g->acc[a].gather = wild && !g->acc[a].turned;
}

static tj_status find_places(struct gen *g) {
    const struct tj_kernel *k = g->k;
    for (unsigned i = 0; i < k->nins; i++) {
        const struct tj_kins *s = &k->ins[i];
        for (unsigned n = 0; n < 6; n++) {
            if (s->in[n] != TJ_KNONE && s->in[n] >= i) {
                return tj_l_refuse(g, "operand after its user", i);
            }
        }
        if (s->op == TJ_KOP_REDUCE) {
            deeper(g, i, k->kind == TJ_K_COLS ? AT_MID : AT_ROW, s->pass + 1u, k->kind == TJ_K_COLS);
            g->varies[i] = k->kind == TJ_K_COLS;
            continue;
        }
        for (unsigned n = 0; n < 6; n++) {
            if (s->in[n] != TJ_KNONE) {
                inherit(g, i, s->in[n]);
            }
        }
        if (tj_l_has_access(s->op)) {
            if (s->imm < 0 || s->imm >= k->naccess) {
                return tj_l_refuse(g, "access number", i);
            }
            analyse_access(g, i, (unsigned)s->imm);
        }
        if (s->op == TJ_KOP_STORE) {
            bool row = k->kind != TJ_K_POINTWISE && s->level == TJ_ROWLEVEL;
            if (row) {
                deeper(g, i, k->kind == TJ_K_COLS ? AT_MID : AT_ROW, s->pass, false);
                if (g->place[i] > (k->kind == TJ_K_COLS ? AT_MID : AT_ROW)) {
                    return tj_l_refuse(g, "row store of something that isn't a row's", i);
                }
            } else {
                deeper(g, i, AT_BODY, 0, true);
            }
        }
    }
    return TRACE_OK;
}

bool tj_l_inner(const struct gen *g, unsigned i) { // recomputed or kept a pass
    return g->place[i] == AT_BODY || (g->k->kind != TJ_K_COLS && g->place[i] == AT_MID);
}

// What each pass has to compute, from its roots backwards; what it can read from a row buffer of an earlier pass.
static void find_needs(struct gen *g) {
    const struct tj_kernel *k = g->k;
    bool row_buffers = k->kind == TJ_K_ROWS && k->ndims - k->npar == 1;
    for (unsigned i = k->nins; i-- > 0;) {
        const struct tj_kins *s = &k->ins[i];
        g->needed[i] = g->needed[i] || s->op == TJ_KOP_STORE || s->op == TJ_KOP_CHECK;
        if (!g->needed[i]) {
            continue;
        }
        for (unsigned n = 0; n < 6; n++) {
            if (s->in[n] != TJ_KNONE) {
                g->needed[s->in[n]] = true;
            }
        }
        for (unsigned d = 0; tj_l_has_access(s->op) && d < k->access[s->imm].nindirect; d++) {
            g->needed[k->access[s->imm].ind_value[d]] = true;
        }
    }
    int caches = 0;
    for (unsigned i = 0; i < k->nins; i++) {
        g->cache[i] = k->ins[i].flags & TJ_KF_CACHE ? caches++ : -1;
    }
    unsigned npasses = k->npasses ? k->npasses : 1;
    for (unsigned p = g->phase == FIRST ? 1 : npasses; p-- > 0;) {
        uint8_t *need = g->need + (size_t)p * k->nins;
        for (unsigned i = k->nins; i-- > 0;) {
            const struct tj_kins *s = &k->ins[i];
            bool root = (s->op == TJ_KOP_STORE || s->op == TJ_KOP_CHECK) && tj_l_inner(g, i) && s->pass == p;
            root = root || (s->op == TJ_KOP_REDUCE && g->needed[i] && s->pass == p);
            if (root || need[i] & 4) { // 4: a later pass wants it in its row buffer
                need[i] |= 1;
            }
            if (!(need[i] & 1)) {
                continue;
            }
            tj_kv from[8];
            unsigned nfrom = 0;
            for (unsigned n = 0; n < 6; n++) {
                if (s->in[n] != TJ_KNONE) {
                    from[nfrom++] = s->in[n];
                }
            }
            for (unsigned d = 0; tj_l_has_access(s->op) && d < k->access[s->imm].nindirect; d++) {
                from[nfrom++] = k->access[s->imm].ind_value[d];
            }
            for (unsigned n = 0; n < nfrom; n++) {
                tj_kv o = from[n];
                if (!tj_l_inner(g, o) || need[o] & 3) {
                    continue;
                }
                bool kept = row_buffers && g->cache[o] >= 0 && k->ins[o].pass < p && g->varies[o];
                kept = kept && !(g->phase == SECOND && k->ins[o].pass == 0);
                need[o] |= kept ? 2 : 1;
                if (kept) {
                    g->need[(size_t)k->ins[o].pass * k->nins + o] |= 4;
                }
            }
        }
    }
}

static void find_splats(struct gen *g) {
    const struct tj_kernel *k = g->k;
    for (unsigned i = 0; i < k->nins; i++) {
        const struct tj_kins *s = &k->ins[i];
        bool vector = g->varies[i] || (s->op == TJ_KOP_REDUCE);
        for (unsigned n = 0; n < 6 && vector && g->needed[i]; n++) {
            bool mask = (s->op == TJ_KOP_LOAD && n == 0) || (s->op == TJ_KOP_STORE && n == 1);
            if (s->in[n] != TJ_KNONE && (!mask || g->acc[s->imm].gather)) {
                g->splat[s->in[n]] = true;
            }
        }
        if (s->op == TJ_KOP_LOAD || s->op == TJ_KOP_STORE) {
            g->acc[s->imm].used |= g->place[i] >= AT_MID && g->needed[i];
        }
    }
}

// Rough number of machine instructions of a pass's body.
unsigned tj_l_weight(const struct gen *g, unsigned p) {
    unsigned sum = 0;
    for (unsigned i = 0; i < g->k->nins; i++) {
        if (!tj_l_inner(g, i) || !(g->need[(size_t)p * g->k->nins + i] & 1)) {
            continue;
        }
        switch (g->k->ins[i].op) {
        case TJ_OP_LOG:
        case TJ_OP_SIN:
        case TJ_OP_COS:
        case TJ_OP_ERF:
        case TJ_OP_GELU:
        case TJ_OP_GELU_TANH:
        case TJ_OP_SOFTPLUS: sum += 40; break;
        case TJ_OP_POW: sum += 80; break;
        case TJ_OP_EXP:
        case TJ_OP_TANH:
        case TJ_OP_SIGMOID:
        case TJ_OP_SILU: sum += 24; break;
        case TJ_OP_FLOOR_DIVIDE:
        case TJ_OP_REMAINDER:
        case TJ_OP_FMOD: sum += 30; break;
        case TJ_OP_CLAMP: sum += 12; break;
        case TJ_OP_MAXIMUM:
        case TJ_OP_MINIMUM:
        case TJ_OP_CAST: sum += 6; break;
        case TJ_KOP_CHECK: sum += 12; break;
        case TJ_KOP_LOAD:
        case TJ_KOP_STORE: sum += g->acc[g->k->ins[i].imm].gather ? 30 : g->k->ins[i].in[1] != TJ_KNONE ? 10 : 2; break;
        default: sum += 2; break;
        }
    }
    return sum;
}

tj_status tj_l_analyse(struct gen *g) {
    tj_status st = find_places(g);
    if (!st) {
        find_needs(g);
        find_splats(g);
    }
    return st;
}
