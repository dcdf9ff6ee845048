// trace/overlap.c: whether two strided tensors have a byte in common.
//
// A byte of a lies at lo_a plus a sum of strides times coordinates, one of b likewise. With the coordinates of b
// counted from their ends, the two are the same byte where sum c_k*x_k = s, with all c_k > 0 and 0 <= x_k <= n_k: a
// bounded sum. It is looked for from the largest coefficient on. What is left has to be within what the smaller ones
// can reach, and a multiple of their common divisor, so that for strides that lie inside each other there are one or
// two values to try at each step, and two coefficients are decided without trying. A search that takes longer is given
// up.
#include "tensor.h"

enum { TERMS = 2 * TJ_MAX_RANK + 1, STEPS = 4096 };

struct search {
    struct {
        int64_t c, n; // coefficient, largest coordinate
    } term[TERMS];
    int64_t reach[TERMS + 1]; // the most that terms from k on can give
    int64_t step[TERMS + 1];  // their greatest common divisor
    uint32_t n, left;         // terms; tries left
};

static int64_t gcd(int64_t a, int64_t b) {
    while (b) {
        int64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

struct tj_span tj_tensor_span(const struct trace_tensor *t) {
    size_t elem = tj_elem_bytes((tj_dtype)t->dtype);
    uintptr_t lo = (uintptr_t)t->st->data + (uintptr_t)t->offset * elem, n = t->numel ? 1 : 0;
    for (size_t i = 0; n && i < t->rank; i++) {
        n += t->dims[i] > 1 ? (uintptr_t)(t->dims[i] - 1) * (uintptr_t)t->strides[i] : 0;
    }
    return (struct tj_span){lo, lo + n * elem};
}

static void add_term(struct search *s, int64_t c, int64_t n) {
    uint32_t i = 0;
    while (i < s->n && s->term[i].c > c) {
        i++;
    }
    if (i < s->n && s->term[i].c == c) {
        s->term[i].n += n;
        return;
    }
    memmove(&s->term[i + 1], &s->term[i], (s->n - i) * sizeof s->term[0]);
    s->term[i].c = c;
    s->term[i].n = n;
    s->n++;
}

static void add_terms(struct search *s, const struct trace_tensor *t, int64_t unit) {
    for (size_t i = 0; i < t->rank; i++) {
        if (t->dims[i] > 1 && t->strides[i]) {
            add_term(s, t->strides[i] * unit, t->dims[i] - 1);
        }
    }
}

// The least x >= from with c*x = v modulo m, which gcd(c, m) divides.
static int64_t congruent(int64_t c, int64_t v, int64_t m, int64_t from) {
    int64_t g = gcd(c, m), mod = m / g, a = c / g % mod, r0 = mod, r1 = a, t0 = 0, t1 = 1;
    while (r1) { // t0 becomes the inverse of a
        int64_t q = r0 / r1, r = r0 - q * r1, t = t0 - q * t1;
        r0 = r1;
        r1 = r;
        t0 = t1;
        t1 = t;
    }
    t0 = t0 < 0 ? t0 + mod : t0;
    int64_t x = (int64_t)((__int128)(v / g % mod) * t0 % mod), first = from % mod;
    return from + (x >= first ? x - first : x - first + mod);
}

static enum tj_sharing find(struct search *s, uint32_t k, int64_t v) {
    if (v == 0) {
        return TJ_SHARED;
    }
    if (k == s->n || v > s->reach[k] || v % s->step[k]) {
        return TJ_APART;
    }
    int64_t c = s->term[k].c, rest = s->reach[k + 1], lo = v > rest ? (v - rest - 1) / c + 1 : 0, hi = v / c;
    hi = hi < s->term[k].n ? hi : s->term[k].n;
    if (k + 1 == s->n) {
        return v % c == 0 && v / c == hi ? TJ_SHARED : TJ_APART;
    }
    int64_t m = s->step[k + 1], x = congruent(c, v, m, lo), by = m / gcd(c, m);
    for (; x <= hi; x += by) {
        if (k + 2 == s->n) { // what is left is a multiple of the last coefficient, and within its reach
            return TJ_SHARED;
        }
        if (s->left-- == 0) {
            s->left = 0;
            return TJ_UNDECIDED;
        }
        enum tj_sharing r = find(s, k + 1, v - c * x);
        if (r != TJ_APART) {
            return r;
        }
    }
    return TJ_APART;
}

enum tj_sharing tj_tensors_share(const struct trace_tensor *a, const struct trace_tensor *b) {
    if (!a->numel || !b->numel || !a->st || !b->st) {
        return TJ_APART;
    }
    if (!a->st->data != !b->st->data || (!a->st->data && a->st != b->st)) {
        return TJ_APART; // placeholders share memory with their own views only
    }
    struct tj_span x = tj_tensor_span(a), y = tj_tensor_span(b);
    if (x.hi <= y.lo || y.hi <= x.lo) {
        return TJ_APART;
    }
    if (x.lo == y.lo || (!a->layout && !b->layout)) {
        return TJ_SHARED;
    }
    int64_t ea = (int64_t)tj_elem_bytes((tj_dtype)a->dtype), eb = (int64_t)tj_elem_bytes((tj_dtype)b->dtype);
    // From the first byte of a to the last of b: what the coordinates of a and the reversed ones of b add up to.
    int64_t v = (int64_t)(y.hi - 1 - x.lo), unit = 1;
    struct search s = {.n = 0, .left = STEPS};
    if (ea == eb && (y.lo > x.lo ? y.lo - x.lo : x.lo - y.lo) % (uintptr_t)ea == 0) {
        unit = ea; // whole elements
        v = (v - (ea - 1)) / ea;
    } else {
        add_term(&s, 1, ea + eb - 2);
    }
    add_terms(&s, a, ea / unit);
    add_terms(&s, b, eb / unit);
    for (uint32_t k = s.n; k-- > 0;) {
        s.reach[k] = s.reach[k + 1] + s.term[k].c * s.term[k].n;
        s.step[k] = gcd(s.term[k].c, s.step[k + 1]);
    }
    return find(&s, 0, v);
}
