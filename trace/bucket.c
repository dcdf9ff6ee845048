// trace/bucket.c: buckets of an input's dim: sizes that runs are prepared for, declared or learned.
#include <stdlib.h>

#include "profile.h"

#define MAX_LEARNED 16 // buckets that are learned for a dim
#define LEARN_RUNS 64  // runs seen before buckets are learned

struct tj_bucket_sizes { // immutable once published
    uint32_t n;
    int64_t size[]; // ascending
};

static int64_t power(int64_t v) {
    int64_t p = 1;
    while (p < v && p <= INT64_MAX / 2)
        p *= 2;
    return p < v ? v : p;
}

static int64_t capacity(const struct tj_bucket_sizes *s, int64_t v) {
    for (uint32_t i = 0; s && i < s->n; i++) {
        if (s->size[i] >= v)
            return s->size[i];
    }
    return power(v);
}

// ---- learning -------------------------------------------------------------------------------------------------------

// At most `most` sizes for which the runs seen waste least: dynamic programming over the values that occurred.
static struct tj_bucket_sizes *fit(const struct tj_profile_value *v, uint32_t n, uint32_t most) {
    uint32_t k = most < n ? most : n;
    struct tj_bucket_sizes *out = tj_malloc(sizeof *out + k * sizeof out->size[0]);
    double *waste = tj_malloc(((size_t)k + 1) * (n + 1) * sizeof *waste);
    uint32_t *from = tj_malloc(((size_t)k + 1) * (n + 1) * sizeof *from);
    if (out && waste && from) {
        for (uint32_t i = 0; i <= n; i++)
            waste[i] = i ? 1e300 : 0;
        for (uint32_t b = 1; b <= k; b++) {
            for (uint32_t i = 0; i <= n; i++) { // values before i in b buckets
                double *w = &waste[(size_t)b * (n + 1) + i], cost = 0;
                *w = i ? 1e300 : 0;
                for (uint32_t j = i; j-- > 0;) { // the last bucket begins at value j
                    cost += (double)v[j].count * (double)(v[i - 1].value - v[j].value);
                    double with = waste[(size_t)(b - 1) * (n + 1) + j] + cost;
                    if (with < *w) {
                        *w = with;
                        from[(size_t)b * (n + 1) + i] = j;
                    }
                }
            }
        }
        out->n = k;
        for (uint32_t b = k, i = n; b > 0; b--) {
            out->size[b - 1] = v[i - 1].value;
            i = from[(size_t)b * (n + 1) + i];
        }
    } else {
        tj_free(out);
        out = NULL;
    }
    tj_free(waste);
    tj_free(from);
    return out;
}

// Learns the sizes of a dim when enough runs were seen. They stay: a plan belongs to its bucket.
static void learn(struct trace_region *r, struct tj_bucket_dim *d) {
    struct tj_profile_view view;
    struct tj_profile_value *values = NULL;
    if (!tj_profile_read(r, &view))
        return; // the next run tries again
    int64_t n = view.total >= LEARN_RUNS ? tj_profile_values(&view, d->input, d->dim, &values) : 0;
    struct tj_bucket_sizes *s = n > 0 ? fit(values, (uint32_t)n, d->most) : NULL, *none = NULL;
    if (s && !atomic_compare_exchange_strong(&d->sizes, &none, s))
        tj_free(s);
    tj_free(values);
    tj_profile_view_free(&view);
}

// ---- of a segment ---------------------------------------------------------------------------------------------------

void tj_bucket_fill(struct tj_box *b, struct tj_segment *s) {
    struct trace_region *r = b->run.region;
    s->caps = b->caps;
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        struct tj_bucket_dim *d = &r->buckets[i];
        if (d->kind == TRACE_BUCKETS_LEARNED && !atomic_load_explicit(&d->sizes, memory_order_acquire) &&
            ++b->unlearned % LEARN_RUNS == 0)
            learn(r, d);
        const struct tj_bucket_sizes *sizes = atomic_load_explicit(&d->sizes, memory_order_acquire);
        for (uint32_t k = 0; k < s->trace->nleaves; k++) {
            const struct tj_leaf_key *key = &s->trace->leafkeys[k];
            if (key->input != d->input + 1 || d->dim >= key->rank)
                continue;
            int64_t size = tj_shape_dims(s->trace, key->shape)[d->dim];
            b->caps[s->ncaps++] = (struct tj_capacity){k, d->dim, capacity(sizes, size)};
            break;
        }
    }
}

bool tj_bucket_covers(const struct tj_bucket_dim *d, int64_t size) {
    const struct tj_bucket_sizes *s = atomic_load_explicit(&d->sizes, memory_order_acquire);
    return d->kind != TRACE_BUCKETS_LIST || !s || size <= s->size[s->n - 1];
}

uint32_t tj_bucket_counts(const struct trace_region *r, uint32_t i, const struct tj_profile_view *v,
                          struct tj_bucket_count *out, uint32_t cap, double *waste) {
    const struct tj_bucket_dim *d = &r->buckets[i];
    const struct tj_bucket_sizes *s = atomic_load_explicit(&d->sizes, memory_order_acquire);
    struct tj_profile_value *values = NULL;
    int64_t n = tj_profile_values(v, d->input, d->dim, &values);
    uint32_t found = 0;
    double sizes = 0, rounded = 0;
    for (int64_t k = 0; k < n; k++) {
        int64_t size = capacity(s, values[k].value);
        if (!found || (out[found - 1].size != size && found < cap))
            out[found++] = (struct tj_bucket_count){size, 0};
        out[found - 1].size = size;
        out[found - 1].runs += values[k].count;
        sizes += (double)values[k].value * (double)values[k].count;
        rounded += (double)size * (double)values[k].count;
    }
    *waste = rounded > 0 ? 100 * (rounded - sizes) / rounded : 0;
    tj_free(values);
    return found;
}

void tj_bucket_free(struct trace_region *r) {
    for (uint32_t i = 0; i < r->nbuckets; i++)
        tj_free(atomic_load(&r->buckets[i].sizes));
}

// ---- public ---------------------------------------------------------------------------------------------------------

static tj_status bad(const struct trace_region *r, const char *why) {
    return tj_fail(TRACE_ERR_ARGUMENT, "trace_region_buckets: region '%s': %s", r->name, why);
}

enum trace_status trace_region_buckets(trace_region *r, int input, int dim, enum trace_buckets kind,
                                       const int64_t *sizes, size_t n) {
    if (!r)
        return tj_fail(TRACE_ERR_ARGUMENT, "trace_region_buckets: NULL region");
    if (input < 0 || input >= TJ_PROFILE_INPUTS || dim < 0 || dim >= TJ_MAX_RANK)
        return bad(r, "no such input or dim");
    if ((unsigned)kind > TRACE_BUCKETS_LEARNED)
        return bad(r, "no such kind of buckets");
    if (r->opt.dynamic == TRACE_DYNAMIC_OFF)
        return bad(r, "its extents are exact (TRACE_DYNAMIC_OFF); buckets need symbols");
    if (kind == TRACE_BUCKETS_LIST ? !sizes || !n || n > 1024 : sizes != NULL)
        return bad(r, kind == TRACE_BUCKETS_LIST ? "a list of 1 to 1024 sizes is wanted" : "sizes go with LIST only");
    if (kind == TRACE_BUCKETS_LEARNED && n > MAX_LEARNED)
        return bad(r, "at most 16 buckets are learned");
    for (size_t i = 0; sizes && i < n; i++) {
        if (sizes[i] < 1 || (i && sizes[i] <= sizes[i - 1]))
            return bad(r, "sizes have to be positive and ascending");
    }
    for (uint32_t i = 0; sizes && i < r->nbounds; i++) {
        if (r->bounds[i].input == (uint32_t)input && r->bounds[i].dim == (uint32_t)dim &&
            r->bounds[i].max > sizes[n - 1])
            return tj_fail(TRACE_ERR_ARGUMENT,
                           "trace_region_buckets: region '%s': the last bucket of dim %d of input %d is %lld, but its "
                           "declared bound is %lld",
                           r->name, dim, input, (long long)sizes[n - 1], (long long)r->bounds[i].max);
    }
    if (atomic_load(&r->begun))
        return tj_fail(TRACE_ERR_STATE, "trace_region_buckets: region '%s' has begun already; declare buckets before",
                       r->name);
    struct tj_bucket_sizes *own = NULL;
    if (sizes) {
        own = tj_malloc(sizeof *own + n * sizeof own->size[0]);
        if (!own)
            return tj_fail(TRACE_ERR_MEMORY, "trace_region_buckets: out of memory");
        own->n = (uint32_t)n;
        memcpy(own->size, sizes, n * sizeof *sizes);
    }
    tj_lock(&r->ctx->lock);
    uint32_t i = 0;
    while (i < r->nbuckets && (r->buckets[i].input != (uint32_t)input || r->buckets[i].dim != (uint32_t)dim))
        i++;
    bool room = i < TJ_BUCKET_DIMS;
    if (room) { // declared again: the later ones count
        struct tj_bucket_dim *d = &r->buckets[i];
        tj_free(i < r->nbuckets ? atomic_load(&d->sizes) : NULL);
        d->input = (uint32_t)input;
        d->dim = (uint32_t)dim;
        d->kind = (int)kind;
        d->most = n ? (uint32_t)n : 4;
        atomic_store(&d->sizes, own);
        r->nbuckets = i < r->nbuckets ? r->nbuckets : i + 1;
    }
    tj_unlock(&r->ctx->lock);
    if (!room)
        tj_free(own);
    return room ? TRACE_OK : bad(r, "eight dims have buckets already");
}
