// jit/kernel.c: key, copy, checks and text of loop kernels.
#include "kernel.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "../lib/hash.h"
#include "../lib/strbuf.h"

// Fields that decide code, without padding and pointers.
struct head {
    uint8_t kind, ndims, npar, npasses, stream, split;
    uint16_t nins, naccess, nbufs, nivals, nsvals, nsites;
    uint16_t extent[TJ_KDIMS];
};
_Static_assert(sizeof(struct head) == 6 + 12 + 2 * TJ_KDIMS, "hashed as bytes");
_Static_assert(sizeof(struct tj_kins) == 32, "hashed as bytes");
_Static_assert(sizeof(struct tj_kaccess) == 6 + 2 * TJ_KDIMS + 2 + 8, "hashed as bytes");

static struct head head_of(const struct tj_kernel *k) {
    struct head h = {k->kind,    k->ndims, k->npar,   k->npasses, k->stream, k->split, k->nins,
                     k->naccess, k->nbufs, k->nivals, k->nsvals,  k->nsites, {0}};
    memcpy(h.extent, k->extent, sizeof h.extent);
    return h;
}

uint64_t tj_kernel_hash(const struct tj_kernel *k) {
    struct head h = head_of(k);
    uint64_t hash = tj_hash_bytes(&h, sizeof h, 0x6b65726e);
    hash = tj_hash_bytes(k->ins, k->nins * sizeof *k->ins, hash);
    return tj_hash_bytes(k->access, k->naccess * sizeof *k->access, hash);
}

bool tj_kernel_equal(const struct tj_kernel *a, const struct tj_kernel *b) {
    struct head ha = head_of(a), hb = head_of(b);
    return memcmp(&ha, &hb, sizeof ha) == 0 && memcmp(a->ins, b->ins, a->nins * sizeof *a->ins) == 0 &&
           (a->naccess == 0 || memcmp(a->access, b->access, a->naccess * sizeof *a->access) == 0);
}

struct tj_kernel *tj_kernel_copy(const struct tj_kernel *k) {
    size_t ins = k->nins * sizeof *k->ins, acc = k->naccess * sizeof *k->access, locs = k->nins * sizeof *k->locs;
    const char *name = k->name ? k->name : "";
    size_t text = strlen(name) + 1;
    for (size_t i = 0; k->locs && i < k->nins; i++) {
        text += k->locs[i].file ? strlen(k->locs[i].file) + 1 : 0;
    }
    size_t at_ins = (sizeof *k + 15) & ~(size_t)15, at_acc = at_ins + ((ins + 15) & ~(size_t)15);
    size_t at_locs = at_acc + ((acc + 15) & ~(size_t)15), at_text = at_locs + (k->locs ? locs : 0);
    char *block = tj_malloc(at_text + text);
    if (!block) {
        return NULL;
    }
    struct tj_kernel *c = (struct tj_kernel *)(void *)block;
    *c = *k;
    c->ins = memcpy(block + at_ins, k->ins, ins);
    c->access = (struct tj_kaccess *)(void *)(block + at_acc);
    if (acc) {
        memcpy(c->access, k->access, acc);
    }
    char *s = block + at_text;
    c->name = strcpy(s, name);
    s += strlen(name) + 1;
    if (k->locs) {
        c->locs = memcpy(block + at_locs, k->locs, locs);
        for (size_t i = 0; i < k->nins; i++) {
            const char *file = k->locs[i].file;
            if (!file) {
                continue;
            }
            if (i && k->locs[i - 1].file == file) {
                c->locs[i].file = c->locs[i - 1].file;
                continue;
            }
            c->locs[i].file = strcpy(s, file);
            s += strlen(file) + 1;
        }
    }
    return c;
}

size_t tj_kernel_scratch(const struct tj_kernel *k, int64_t row_elems) {
    const bool huge = (uint64_t)row_elems > SIZE_MAX / 64;
    size_t n = 0, row = (((size_t)row_elems + TJ_ROW_PAD - 1) & ~(size_t)(TJ_ROW_PAD - 1)) * TJ_ROW_ELEM;
    for (size_t i = 0; i < k->nins; i++) {
        if (k->ins[i].flags & TJ_KF_CACHE && huge) {
            return SIZE_MAX / 2; // no such room
        }
        n += k->ins[i].flags & TJ_KF_CACHE ? row : 0;
        n += k->kind == TJ_K_COLS && k->ins[i].op == TJ_KOP_REDUCE ? TJ_COLS_PARTIALS : 0;
    }
    return n;
}

bool tj_kernel_turns(const struct tj_kernel *k) {
    for (int a = 0; a < k->naccess; a++) {
        if (k->access[a].vec == TJ_VEC_TURNED) {
            return true;
        }
    }
    return false;
}

static bool bad(char *err, size_t cap, const char *fmt, ...) TJ_PRINTF(3, 4);
static bool bad(char *err, size_t cap, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(err, cap, fmt, ap);
    va_end(ap);
    return false;
}

static bool is_pointwise(uint16_t op) { return op < TJ_OP_COUNT && tj_ops[op].cls == TJ_POINTWISE; }

bool tj_kernel_verify(const struct tj_kernel *k, char *err, size_t cap) {
    if (k->kind > TJ_K_COLS || k->ndims < 1 || k->ndims > TJ_KDIMS || k->npar > k->ndims) {
        return bad(err, cap, "kind %d, %d dims, %d parallel", k->kind, k->ndims, k->npar);
    }
    // COLS: the last dim is parallel and not counted in npar.
    int reduced = k->ndims - k->npar - (k->kind == TJ_K_COLS);
    if (k->kind == TJ_K_POINTWISE ? reduced != 0 || k->npasses != 1 : reduced < 1 || k->npasses < 1) {
        return bad(err, cap, "%d reduced dims, %d passes", reduced, k->npasses);
    }
    for (int d = 0; d < k->ndims; d++) {
        if (k->extent[d] >= k->nivals) {
            return bad(err, cap, "extent %d: ival %d of %d", d, k->extent[d], k->nivals);
        }
    }
    for (int a = 0; a < k->naccess; a++) {
        const struct tj_kaccess *x = &k->access[a];
        bool ok = x->offset < k->nivals && x->nindirect <= 2;
        for (int d = 0; ok && d < TJ_KDIMS; d++) {
            ok = x->stride[d] < k->nivals && (d < k->ndims || x->stride[d] == 0);
        }
        for (int d = 0; ok && d < x->nindirect; d++) {
            ok =
                x->ind_stride[d] < k->nivals && x->ind_value[d] < k->nins && k->ins[x->ind_value[d]].dtype == TRACE_I64;
        }
        if (ok && x->vec == TJ_VEC_TURNED) {
            ok = k->kind == TJ_K_POINTWISE && k->ndims > 1 && !x->nindirect && x->stride[k->ndims - 1] > 1 &&
                 x->stride[k->ndims - 2] == 1;
        }
        if (!ok) {
            return bad(err, cap, "access %d", a);
        }
    }
    for (int i = 0; i < k->nins; i++) {
        const struct tj_kins *in = &k->ins[i];
        int nin = 0, need = 0;
        if (is_pointwise(in->op)) {
            nin = need = tj_ops[in->op].nin;
        } else {
            switch (in->op) {
            case TJ_KOP_CONST: break;
            case TJ_KOP_SVAL:
            case TJ_KOP_IVAL:
                if (in->imm < 0 || in->imm >= (in->op == TJ_KOP_SVAL ? k->nsvals : k->nivals)) {
                    return bad(err, cap, "%%%d: argument %" PRId64, i, in->imm);
                }
                break;
            case TJ_KOP_LOAD: nin = 1; break;
            case TJ_KOP_COORD: break;
            case TJ_KOP_STORE:
                nin = 2;
                need = 1;
                break;
            case TJ_KOP_ROUND:
            case TJ_KOP_REDUCE: nin = need = 1; break;
            case TJ_KOP_CHECK:
                nin = 4;
                need = 2;
                if ((in->imm & 0xffffff) >= k->nsites) {
                    return bad(err, cap, "%%%d: error site", i);
                }
                break;
            case TJ_KOP_FMA: nin = need = 3; break;
            default: return bad(err, cap, "%%%d: op %d", i, in->op);
            }
        }
        if (in->op == TJ_KOP_REDUCE && in->imm == TJ_RED_CHAIN && k->kind != TJ_K_COLS) {
            return bad(err, cap, "%%%d: a chain that isn't down a column", i);
        }
        bool access = in->op == TJ_KOP_LOAD || in->op == TJ_KOP_STORE || in->op == TJ_KOP_COORD;
        if (access && (in->imm < 0 || in->imm >= k->naccess)) {
            return bad(err, cap, "%%%d: access %" PRId64, i, in->imm);
        }
        if (access && in->op != TJ_KOP_COORD && k->access[in->imm].buf >= k->nbufs) {
            return bad(err, cap, "%%%d: buffer", i);
        }
        if (access && k->access[in->imm].vec == TJ_VEC_TURNED &&
            (in->op == TJ_KOP_COORD || in->in[in->op == TJ_KOP_STORE] != TJ_KNONE)) {
            return bad(err, cap, "%%%d: turned, but masked or no memory", i);
        }
        if (in->pass > k->npasses || ((in->level == TJ_FULL || in->op == TJ_KOP_REDUCE) && in->pass >= k->npasses)) {
            return bad(err, cap, "%%%d: pass %d of %d", i, in->pass, k->npasses);
        }
        uint16_t deps[8];
        int ndeps = 0;
        for (int j = 0; j < 6; j++) {
            if (in->in[j] == TJ_KNONE) {
                if (j < need) {
                    return bad(err, cap, "%%%d: operand %d missing", i, j);
                }
                continue;
            }
            if (j >= nin) {
                return bad(err, cap, "%%%d: operand %d unexpected", i, j);
            }
            deps[ndeps++] = in->in[j];
        }
        if (access) {
            const struct tj_kaccess *x = &k->access[in->imm];
            for (int j = 0; j < x->nindirect; j++) {
                deps[ndeps++] = x->ind_value[j];
            }
        }
        for (int j = 0; j < ndeps; j++) {
            if (deps[j] >= i) {
                return bad(err, cap, "%%%d: operand %%%d is not before it", i, deps[j]);
            }
            const struct tj_kins *d = &k->ins[deps[j]];
            if (d->op == TJ_KOP_STORE || d->op == TJ_KOP_CHECK) {
                return bad(err, cap, "%%%d: operand %%%d has no value", i, deps[j]);
            }
            if (in->op == TJ_KOP_REDUCE) {
                if (d->level != TJ_FULL || d->pass > in->pass || (d->pass < in->pass && !(d->flags & TJ_KF_CACHE))) {
                    return bad(err, cap, "%%%d: reduces %%%d of pass %d", i, deps[j], d->pass);
                }
            } else if (d->level == TJ_ROWLEVEL) {
                if (d->pass + (d->op == TJ_KOP_REDUCE) > in->pass) {
                    return bad(err, cap, "%%%d: row value %%%d is not ready", i, deps[j]);
                }
            } else if (in->level == TJ_ROWLEVEL) {
                return bad(err, cap, "%%%d: row value of element value %%%d", i, deps[j]);
            } else if (d->pass > in->pass || (d->pass < in->pass && !(d->flags & TJ_KF_CACHE))) {
                return bad(err, cap, "%%%d: pass %d, operand %%%d pass %d", i, in->pass, deps[j], d->pass);
            }
        }
        if (in->level == TJ_ROWLEVEL && k->kind == TJ_K_POINTWISE) {
            return bad(err, cap, "%%%d: row value in a pointwise kernel", i);
        }
    }
    return true;
}

static void dump_access(const struct tj_kernel *k, const struct tj_kaccess *x, bool memory, struct tj_strbuf *sb) {
    static const char *const vec[] = {"zero", "unit", "strided", "turned"};
    if (memory) {
        tj_sb_printf(sb, " b%d.%s", x->buf, tj_dtypes[x->dtype].name);
    }
    tj_sb_printf(sb, "[i%d", x->offset);
    for (int d = 0; d < k->ndims; d++) {
        if (x->stride[d] == 1) {
            tj_sb_printf(sb, " + d%d", d);
        } else if (x->stride[d]) {
            tj_sb_printf(sb, " + d%d*i%d", d, x->stride[d]);
        }
    }
    for (int d = 0; d < x->nindirect; d++) {
        tj_sb_printf(sb, " + %%%d*i%d", x->ind_value[d], x->ind_stride[d]);
    }
    tj_sb_printf(sb, "] %s", vec[x->vec % 4]);
}

void tj_kernel_dump(const struct tj_kernel *k, struct tj_strbuf *sb) {
    static const char *const kinds[] = {"pointwise", "rows", "cols"};
    static const char *const kops[] = {"const", "sval",   "ival",  "coord", "load", "store",
                                       "round", "reduce", "check", "fma",   "divn"};
    static const char *const reds[] = {"sum", "max", "min", "any", "all", "argmax", "argmin", "chain"};
    tj_sb_printf(sb, "kernel %s: %s, %d passes%s%s, dims", k->name ? k->name : "", kinds[k->kind % 3], k->npasses,
                 k->stream ? ", stream" : "", k->split ? ", split" : "");
    for (int d = 0; d < k->ndims; d++) {
        bool par = d < k->npar || k->kind == TJ_K_POINTWISE || (k->kind == TJ_K_COLS && d == k->ndims - 1);
        tj_sb_printf(sb, " %s%d=i%d", par ? "d" : "r", d, k->extent[d]);
    }
    tj_sb_puts(sb, "\n");
    for (int i = 0; i < k->nins; i++) {
        const struct tj_kins *in = &k->ins[i];
        bool none = in->op == TJ_KOP_STORE || in->op == TJ_KOP_CHECK;
        tj_sb_printf(sb, "  ");
        if (k->kind != TJ_K_POINTWISE) {
            tj_sb_printf(sb, "%s%d ", in->level == TJ_ROWLEVEL ? "row" : "p", in->pass);
        }
        if (!none) {
            tj_sb_printf(sb, "%%%d:%s = ", i, tj_dtypes[in->dtype].name);
        }
        tj_sb_puts(sb, in->op < TJ_OP_COUNT ? tj_ops[in->op].name
                                            : kops[in->op - TJ_KOP_CONST < 11 ? in->op - TJ_KOP_CONST : 10]);
        for (int j = 0; j < 6; j++) {
            if (in->in[j] != TJ_KNONE) {
                tj_sb_printf(sb, " %%%d", in->in[j]);
            }
        }
        switch (in->op) {
        case TJ_KOP_CONST:
            if (tj_is_float((tj_dtype)in->dtype)) {
                double d;
                memcpy(&d, &in->imm, sizeof d);
                tj_sb_printf(sb, " %.17g", d);
            } else {
                tj_sb_printf(sb, " %" PRId64, in->imm);
            }
            break;
        case TJ_KOP_SVAL: tj_sb_printf(sb, " s%" PRId64, in->imm); break;
        case TJ_KOP_IVAL: tj_sb_printf(sb, " i%" PRId64, in->imm); break;
        case TJ_KOP_COORD:
        case TJ_KOP_LOAD:
        case TJ_KOP_STORE: dump_access(k, &k->access[in->imm], in->op != TJ_KOP_COORD, sb); break;
        case TJ_KOP_ROUND: tj_sb_printf(sb, " %s", tj_dtypes[in->imm].name); break;
        case TJ_KOP_REDUCE: tj_sb_printf(sb, " %s", reds[in->imm % 8]); break;
        case TJ_KOP_CHECK: tj_sb_printf(sb, " kind %d site %d", (int)(in->imm >> 24), (int)(in->imm & 0xffffff)); break;
        default: break;
        }
        if (in->flags & TJ_KF_CACHE) {
            tj_sb_puts(sb, " cached");
        }
        tj_sb_puts(sb, "\n");
    }
}
