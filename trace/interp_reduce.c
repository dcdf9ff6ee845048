// trace/interp_reduce.c: reductions, softmax and norms of the interpreter, in the documented order.
#include "interp.h"

// What is summed of an element x, c being a value of the row.
enum term { TERM_PLAIN, TERM_SQUARE, TERM_CENTERED, TERM_EXP };

// Sum of n elements in row-major order: element i goes to partial i mod 64 of block i / 4096; the partials join by
// halving, the blocks as a balanced binary tree by number: a stack where two subtrees of equal size join at once and
// the rest at the end, the rightmost first.
#define SUM(T, NAME, EXP)                                                                                              \
    static T NAME(struct tj_walk w, tj_dtype d, int64_t n, enum term term, T c) {                                      \
        T stack[64], buf[TJ_RED_BLOCK];                                                                                \
        int depth = 0;                                                                                                 \
        for (int64_t at = 0, block = 0; at < n; at += TJ_RED_BLOCK, block++) {                                         \
            int64_t m = n - at < TJ_RED_BLOCK ? n - at : TJ_RED_BLOCK;                                                 \
            tj_walk_read(&w, d, m, buf);                                                                               \
            for (int64_t i = 0; i < m && term != TERM_PLAIN; i++) {                                                    \
                T x = buf[i], t = x - c;                                                                               \
                buf[i] = term == TERM_SQUARE ? x * x : (term == TERM_CENTERED ? t * t : EXP(t));                       \
            }                                                                                                          \
            T part[TJ_RED_PARTIALS] = {0};                                                                             \
            for (int64_t i = 0; i < m; i++) {                                                                          \
                part[i % TJ_RED_PARTIALS] += buf[i];                                                                   \
            }                                                                                                          \
            for (int half = TJ_RED_PARTIALS / 2; half > 0; half /= 2) {                                                \
                for (int i = 0; i < half; i++) {                                                                       \
                    part[i] += part[i + half];                                                                         \
                }                                                                                                      \
            }                                                                                                          \
            stack[depth++] = part[0];                                                                                  \
            for (int64_t b = block; b & 1; b >>= 1, depth--) {                                                         \
                stack[depth - 2] += stack[depth - 1];                                                                  \
            }                                                                                                          \
        }                                                                                                              \
        if (depth == 0) {                                                                                              \
            return 0;                                                                                                  \
        }                                                                                                              \
        for (; depth > 1; depth--) {                                                                                   \
            stack[depth - 2] += stack[depth - 1];                                                                      \
        }                                                                                                              \
        return stack[0];                                                                                               \
    }
SUM(float, sum_float, tj_exp_f32)
SUM(double, sum_double, exp)

// Integers: the order is of no consequence.
static int64_t sum_int(struct tj_walk w, tj_dtype d, int64_t n) {
    union tj_chunk c;
    uint64_t s = 0;
    for (int64_t at = 0; at < n; at += TJ_CHUNK) {
        int64_t m = n - at < TJ_CHUNK ? n - at : TJ_CHUNK;
        tj_walk_read(&w, d, m, &c);
        for (int64_t i = 0; i < m; i++) {
            s += (uint64_t)c.i[i];
        }
    }
    return (int64_t)s;
}

// Largest (sign 1) or smallest (-1) of n > 0 elements; NaN wins. *index: its first place.
#define EXTREME(T, NAME, MEMBER, MAX, MIN)                                                                             \
    static T NAME(struct tj_walk w, tj_dtype d, int64_t n, bool max, int64_t *index) {                                 \
        union tj_chunk c;                                                                                              \
        T best = 0, first = 0;                                                                                         \
        *index = 0;                                                                                                    \
        for (int64_t at = 0; at < n; at += TJ_CHUNK) {                                                                 \
            int64_t m = n - at < TJ_CHUNK ? n - at : TJ_CHUNK;                                                         \
            tj_walk_read(&w, d, m, &c);                                                                                \
            for (int64_t i = 0; i < m; i++) {                                                                          \
                T x = c.MEMBER[i];                                                                                     \
                if (at + i == 0) {                                                                                     \
                    best = first = x;                                                                                  \
                    continue;                                                                                          \
                }                                                                                                      \
                bool better = max ? x > first : x < first;                                                             \
                if (better || (x != x && first == first)) {                                                            \
                    first = x;                                                                                         \
                    *index = at + i;                                                                                   \
                }                                                                                                      \
                best = max ? MAX(best, x) : MIN(best, x);                                                              \
            }                                                                                                          \
        }                                                                                                              \
        return best;                                                                                                   \
    }
#define INT_MAX_OF(a, b) ((a) > (b) ? (a) : (b))
#define INT_MIN_OF(a, b) ((a) < (b) ? (a) : (b))
EXTREME(float, extreme_float, f, tj_max_f32, tj_min_f32)
EXTREME(double, extreme_double, d, tj_max_f64, tj_min_f64)
EXTREME(int64_t, extreme_int, i, INT_MAX_OF, INT_MIN_OF)

static bool any_of(struct tj_walk w, tj_dtype d, int64_t n, bool what) {
    union tj_chunk c;
    for (int64_t at = 0; at < n; at += TJ_CHUNK) {
        int64_t m = n - at < TJ_CHUNK ? n - at : TJ_CHUNK;
        tj_walk_read(&w, d, m, &c);
        for (int64_t i = 0; i < m; i++) {
            if ((c.i[i] != 0) == what) {
                return true;
            }
        }
    }
    return false;
}

// One result of a reduction over the n elements that w walks.
static void reduce_one(const struct tj_node *node, const struct tj_attr_reduce *a, const struct tj_walk *w, tj_dtype d,
                       int64_t n, union tj_chunk *out) {
    enum tj_iclass cls = tj_iclass_of(d);
    bool max = node->op == TJ_OP_AMAX || node->op == TJ_OP_ARGMAX;
    int64_t index;
    switch (node->op) {
    case TJ_OP_SUM:
    case TJ_OP_MEAN:
    case TJ_OP_VAR:
        if (cls == TJ_I_INT) {
            out->i[0] = sum_int(*w, d, n);
        } else if (cls == TJ_I_FLOAT) {
            float s = sum_float(*w, d, n, TERM_PLAIN, 0.0f);
            if (node->op == TJ_OP_VAR) {
                int64_t div = n > a->correction ? n - a->correction : 0;
                s = sum_float(*w, d, n, TERM_CENTERED, s / (float)n) / (float)div;
            }
            out->f[0] = node->op == TJ_OP_MEAN ? s / (float)n : s;
        } else {
            double s = sum_double(*w, d, n, TERM_PLAIN, 0.0);
            if (node->op == TJ_OP_VAR) {
                int64_t div = n > a->correction ? n - a->correction : 0;
                s = sum_double(*w, d, n, TERM_CENTERED, s / (double)n) / (double)div;
            }
            out->d[0] = node->op == TJ_OP_MEAN ? s / (double)n : s;
        }
        break;
    case TJ_OP_AMAX:
    case TJ_OP_AMIN:
        if (cls == TJ_I_FLOAT) {
            out->f[0] = extreme_float(*w, d, n, max, &index);
        } else if (cls == TJ_I_DOUBLE) {
            out->d[0] = extreme_double(*w, d, n, max, &index);
        } else {
            out->i[0] = extreme_int(*w, d, n, max, &index);
        }
        break;
    case TJ_OP_ARGMAX:
    case TJ_OP_ARGMIN:
        if (cls == TJ_I_FLOAT) {
            (void)extreme_float(*w, d, n, max, &index);
        } else if (cls == TJ_I_DOUBLE) {
            (void)extreme_double(*w, d, n, max, &index);
        } else {
            (void)extreme_int(*w, d, n, max, &index);
        }
        out->i[0] = index;
        break;
    case TJ_OP_ANY: out->i[0] = any_of(*w, d, n, true); break;
    default: out->i[0] = !any_of(*w, d, n, false); break; // ALL
    }
}

void tj_interp_reduce(const struct tj_interp *it, tj_ref n) {
    const struct tj_node *node = tj_inode(it, n);
    const struct tj_attr_reduce *a = tj_node_attr(it->t, node);
    struct tj_iview x = tj_iview_of(it, tj_iin(it, n, 0)), out = tj_iview_of(it, n);
    struct tj_iview outer[2] = {{.p = out.p, .dtype = out.dtype}, {.p = x.p, .dtype = x.dtype}};
    struct tj_iview inner = {.p = x.p, .dtype = x.dtype};
    size_t kept = 0, to = 0;
    int64_t count = 1;
    for (size_t d = 0; d < x.rank; d++) {
        if (a->mask >> d & 1) {
            inner.dims[inner.rank] = x.dims[d];
            inner.st[inner.rank++] = x.st[d];
            count *= x.dims[d];
            to += a->keepdim ? 1 : 0;
            continue;
        }
        outer[0].dims[kept] = x.dims[d];
        outer[0].st[kept] = out.st[to++];
        outer[1].st[kept++] = x.st[d];
    }
    struct tj_walk rows, row;
    tj_walk_init(&rows, outer[0].dims, kept, outer, 2);
    tj_walk_init(&row, inner.dims, inner.rank, &inner, 1);
    for (; tj_walk_run(&rows, 1) > 0; tj_walk_advance(&rows, 1)) {
        union tj_chunk v;
        row.p[0] = rows.p[1];
        reduce_one(node, a, &row, x.dtype, count, &v);
        tj_istore(out.dtype, rows.p[0], 0, 1, &v);
    }
}

// ---- rows ----------------------------------------------------------------------------------------------------------

// One row: x and the result, and where the op has them, weight and bias, each with its own walk.
struct row {
    struct tj_walk x, out, w, b;
    tj_dtype dtype;
    int64_t n;
};

// ((x - mean) r) w + b, x r w, e / s, (x - m) - l: element by element in blocks.
#define ROW(T, NAME, SUM_OF, MEMBER, MAX_OF, EXP, LOG, SQRT)                                                           \
    static void NAME(struct row r, enum tj_op op, T eps) {                                                             \
        T count = (T)r.n, c = 0, s = 0;                                                                                \
        int64_t index;                                                                                                 \
        switch (op) {                                                                                                  \
        case TJ_OP_SOFTMAX:                                                                                            \
        case TJ_OP_LOG_SOFTMAX:                                                                                        \
            c = MAX_OF(r.x, r.dtype, r.n, true, &index);                                                               \
            s = SUM_OF(r.x, r.dtype, r.n, TERM_EXP, c);                                                                \
            s = op == TJ_OP_SOFTMAX ? s : LOG(s);                                                                      \
            break;                                                                                                     \
        case TJ_OP_LAYER_NORM:                                                                                         \
            c = SUM_OF(r.x, r.dtype, r.n, TERM_PLAIN, 0) / count;                                                      \
            s = SUM_OF(r.x, r.dtype, r.n, TERM_CENTERED, c) / count;                                                   \
            s = 1 / SQRT(s + eps);                                                                                     \
            break;                                                                                                     \
        default:                                                                                                       \
            s = SUM_OF(r.x, r.dtype, r.n, TERM_SQUARE, 0) / count;                                                     \
            s = 1 / SQRT(s + eps);                                                                                     \
            break;                                                                                                     \
        }                                                                                                              \
        union tj_chunk x, w, b;                                                                                        \
        for (int64_t at = 0; at < r.n; at += TJ_CHUNK) {                                                               \
            int64_t m = r.n - at < TJ_CHUNK ? r.n - at : TJ_CHUNK;                                                     \
            tj_walk_read(&r.x, r.dtype, m, &x);                                                                        \
            if (op == TJ_OP_LAYER_NORM || op == TJ_OP_RMS_NORM) {                                                      \
                tj_walk_read(&r.w, r.dtype, m, &w);                                                                    \
            }                                                                                                          \
            if (op == TJ_OP_LAYER_NORM) {                                                                              \
                tj_walk_read(&r.b, r.dtype, m, &b);                                                                    \
            }                                                                                                          \
            for (int64_t i = 0; i < m; i++) {                                                                          \
                T v = x.MEMBER[i];                                                                                     \
                switch (op) {                                                                                          \
                case TJ_OP_SOFTMAX: v = EXP(v - c) / s; break;                                                         \
                case TJ_OP_LOG_SOFTMAX: v = (v - c) - s; break;                                                        \
                case TJ_OP_LAYER_NORM:                                                                                 \
                    v = ((v - c) * s) * w.MEMBER[i];                                                                   \
                    v = v + b.MEMBER[i];                                                                               \
                    break;                                                                                             \
                default: v = (v * s) * w.MEMBER[i]; break;                                                             \
                }                                                                                                      \
                x.MEMBER[i] = v;                                                                                       \
            }                                                                                                          \
            tj_walk_write(&r.out, r.dtype, m, &x);                                                                     \
        }                                                                                                              \
    }
ROW(float, row_float, sum_float, f, extreme_float, tj_exp_f32, tj_log_f32, sqrtf)
ROW(double, row_double, sum_double, d, extreme_double, exp, log, sqrt)

void tj_interp_row(const struct tj_interp *it, tj_ref n) {
    const struct tj_node *node = tj_inode(it, n);
    bool norm = node->op == TJ_OP_LAYER_NORM || node->op == TJ_OP_RMS_NORM;
    struct tj_iview out = tj_iview_of(it, n), v[4] = {out};
    size_t nv = 2;
    double eps = 0.0;
    for (uint32_t k = 0; k < (norm ? node->nin - 1 : 1); k++) {
        struct tj_iview o = tj_iview_of(it, tj_iin(it, n, k));
        v[1 + k] = tj_iview_expand(&o, out.dims, out.rank);
        nv = 2 + k;
    }
    size_t first = out.rank, last = out.rank; // dims of a row
    if (norm) {
        const struct tj_attr_norm *a = tj_node_attr(it->t, node);
        struct tj_iview e = tj_iview_of(it, tj_iin(it, n, node->nin - 1));
        eps = tj_iload_f64(e.dtype, e.p);
        first = out.rank - (size_t)a->ndim;
    } else if (out.rank > 0) {
        const struct tj_attr_dim *a = tj_node_attr(it->t, node);
        first = (size_t)a->dim;
        last = first + 1;
    }
    struct tj_iview outer[4], inner[4];
    for (size_t k = 0; k < nv; k++) {
        outer[k] = inner[k] = (struct tj_iview){.p = v[k].p, .dtype = v[k].dtype};
        for (size_t d = 0; d < out.rank; d++) {
            struct tj_iview *part = d >= first && d < last ? &inner[k] : &outer[k];
            part->dims[part->rank] = out.dims[d];
            part->st[part->rank++] = v[k].st[d];
        }
    }
    struct row r = {.dtype = out.dtype, .n = 1};
    struct tj_walk *walks[4] = {&r.out, &r.x, &r.w, &r.b}, rows;
    for (size_t k = 0; k < nv; k++) {
        tj_walk_init(walks[k], inner[k].dims, inner[k].rank, &inner[k], 1);
    }
    r.n = r.x.left;
    if (r.n == 0) {
        return;
    }
    tj_walk_init(&rows, outer[0].dims, outer[0].rank, outer, nv);
    for (; tj_walk_run(&rows, 1) > 0; tj_walk_advance(&rows, 1)) {
        for (size_t k = 0; k < nv; k++) {
            walks[k]->p[0] = rows.p[k];
        }
        if (tj_iclass_of(out.dtype) == TJ_I_DOUBLE) {
            row_double(r, (enum tj_op)node->op, eps);
        } else {
            row_float(r, (enum tj_op)node->op, (float)eps);
        }
    }
}
