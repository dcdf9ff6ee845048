// trace/break_read.c: reading tensors and recorded values: item, read, data, print, and the deferred forms.
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "record.h"
#include "region.h"
#include "repeat.h"

// ---- reading --------------------------------------------------------------------------------------------------------

struct reading {
    tj_dtype dtype;
    size_t rank;
    int64_t dims[TJ_MAX_RANK], strides[TJ_MAX_RANK], numel;
    const unsigned char *data;
    struct tj_storage *st; // kept while reading; NULL: the run keeps it
};

// A mistake with a recorded value fails its run; one with a tensor only the call.
static tj_status TJ_PRINTF(5, 6)
    read_fail(bool value, tj_status st, const char *call, struct tj_loc loc, const char *fmt, ...) {
    char text[TJ_ERROR_MAX];
    va_list ap;
    va_start(ap, fmt);
    if (vsnprintf(text, sizeof text, fmt, ap) < 0)
        text[0] = '\0';
    va_end(ap);
    struct tj_run *run = tj_current;
    if (!value)
        tj_current = NULL;
    st = tj_op_fail(st, call, loc, "%s", text);
    tj_current = run;
    return st;
}

static tj_status null_handle(const char *call, struct tj_loc loc) {
    const struct tj_run *run = tj_current;
    if (run && run->failed)
        return tj_fail(run->failed, "%s", run->error);
    if (tj_last_status())
        return tj_last_status(); // the NULL came of that failure, whose text stays
    return tj_op_fail(TRACE_ERR_ARGUMENT, call, loc, "the tensor is NULL");
}

static const unsigned char *at(const struct tj_storage *st, tj_dtype d, int64_t offset) {
    return st->data ? st->data + offset * (int64_t)tj_elem_bytes(d) : NULL;
}

static void reading_of(struct reading *r, const struct trace_tensor *t, const struct tj_storage *st) {
    r->dtype = (tj_dtype)t->dtype;
    r->rank = t->rank;
    r->numel = t->numel;
    memcpy(r->dims, t->dims, sizeof r->dims);
    memcpy(r->strides, t->strides, sizeof r->strides);
    r->data = at(st, r->dtype, t->offset);
}

// What a caller asks of the shape before anything runs for it.
typedef tj_status (*shape_check)(void *arg, bool value, const char *call, struct tj_loc loc, tj_dtype d,
                                 const int64_t *dims, size_t rank);

static tj_status read_value(struct tj_box *b, tj_ref n, const struct tj_site *site, const char *call,
                            struct reading *r) {
    struct tj_run *run = &b->run;
    struct tj_place v;
    if (run->compile_only)
        return tj_op_fail(TRACE_ERR_STATE, call, site->loc,
                          "the run has a placeholder among its inputs: it compiles only, there is no value to read");
    if (tj_value_view(run, n, &v)) { // memory from outside: read in place once its writes have run
        if (run->written && tj_written_here(b, v.tensor)) {
            tj_status st = tj_graph_break(b, TJ_NIL, NULL, site, call);
            if (st)
                return st;
        }
        r->dtype = (tj_dtype)run->trace.nodes[n].dtype;
        r->rank = v.rank;
        memcpy(r->dims, v.dims, sizeof r->dims);
        memcpy(r->strides, v.strides, sizeof r->strides);
        (void)tj_numel(r->dims, r->rank, &r->numel);
        r->data = at(v.tensor->st, r->dtype, v.offset);
        return TRACE_OK;
    }
    if (run->values[n].state == TJ_V_STORED) {
        tj_break_used(b, n);
    } else {
        tj_status st = tj_graph_break(b, n, NULL, site, call);
        if (st)
            return st;
    }
    const struct trace_tensor *t = run->values[n].tensor;
    reading_of(r, t, t->st);
    return TRACE_OK;
}

static tj_status read_tensor(trace_tensor *t, const struct tj_site *site, const char *call, struct reading *r) {
    struct tj_run *run = tj_current;
    if (t->state == TJ_T_DEFERRED)
        return read_fail(false, TRACE_ERR_STATE, call, site->loc,
                         "the value comes with trace_end of the run that made the handle (trace_item_later)");
    if (t->state == TJ_T_FAILED)
        return read_fail(false, TRACE_ERR_STATE, call, site->loc, "the run that would have made the value failed");
    if (run && !run->eager && run->written && run->ctx == t->ctx && tj_written_here(tj_box_of(run), t)) {
        tj_status st = run->failed ? tj_fail(run->failed, "%s", run->error)
                                   : tj_graph_break(tj_box_of(run), TJ_NIL, NULL, site, call);
        if (st)
            return st;
    }
    r->st = tj_tensor_storage(t);
    if (r->st->flags & TJ_ST_PLACEHOLDER) {
        tj_storage_drop(r->st);
        r->st = NULL;
        return read_fail(false, TRACE_ERR_STATE, call, site->loc, "a placeholder has no content");
    }
    reading_of(r, t, r->st);
    return TRACE_OK;
}

static tj_status make_readable(trace_tensor *t, const char *call, const char *kind, struct tj_loc loc,
                               shape_check check, void *arg, struct reading *r) {
    struct tj_run *run = tj_current;
    struct tj_site site = {loc, kind, true, NULL, false};
    memset(r, 0, sizeof *r);
    if (!t)
        return null_handle(call, loc);
    if (t == TRACE_NONE)
        return tj_op_fail(TRACE_ERR_ARGUMENT, call, loc, "TRACE_NONE has no content");
    if (!tj_is_value(t)) {
        tj_status st = check ? check(arg, false, call, loc, (tj_dtype)t->dtype, t->dims, t->rank) : TRACE_OK;
        if (run)
            site.first = tj_box_of(run)->flushes == 0;
        return st ? st : read_tensor(t, &site, call, r);
    }
    if (!run)
        return tj_op_fail(TRACE_ERR_DEAD, call, loc,
                          "a recorded value is used after its run; trace_end gives handles that stay");
    if (run->failed)
        return tj_fail(run->failed, "%s", run->error);
    tj_ref n = tj_resolve(run, t, call, loc);
    if (n == TJ_NIL)
        return run->failed ? run->failed : tj_last_status();
    const struct tj_node *node = &run->trace.nodes[n];
    if (check) {
        tj_status st = check(arg, true, call, loc, (tj_dtype)node->dtype, tj_shape_dims(&run->trace, node->shape),
                             tj_shape_rank(&run->trace, node->shape));
        if (st)
            return st;
    }
    struct tj_box *b = tj_box_of(run);
    site.first = b->flushes == 0;
    return read_value(b, n, &site, call, r);
}

// Makes the content of t readable. On success the caller drops r->st.
static tj_status read_begin(trace_tensor *t, const char *call, const char *kind, struct tj_loc loc, shape_check check,
                            void *arg, struct reading *r) {
    tj_fpenv env;
    tj_host_effect(call, loc);
    struct tj_run *back = tj_run_go(t, loc);
    tj_fpenv_enter(&env);
    tj_status st = make_readable(t, call, kind, loc, check, arg, r);
    tj_fpenv_leave(&env);
    (void)tj_run_switch(back);
    return st;
}

static tj_status check_bytes(void *arg, bool value, const char *call, struct tj_loc loc, tj_dtype d,
                             const int64_t *dims, size_t rank) {
    int64_t n;
    size_t want = 0, have = *(const size_t *)arg;
    if (!tj_numel(dims, rank, &n) || !tj_tensor_bytes(d, n, &want) || want != have) {
        char text[TJ_DIMS_TEXT];
        return read_fail(value, TRACE_ERR_ARGUMENT, call, loc, "%zu bytes of room, and the tensor (%s%s) has %zu", have,
                         tj_dtypes[d].name, tj_dims_text(text, sizeof text, dims, rank), want);
    }
    return TRACE_OK;
}

static tj_status check_single(void *arg, bool value, const char *call, struct tj_loc loc, tj_dtype d,
                              const int64_t *dims, size_t rank) {
    int64_t n;
    (void)arg;
    if (!tj_numel(dims, rank, &n) || n != 1) {
        char text[TJ_DIMS_TEXT];
        return read_fail(value, TRACE_ERR_SHAPE, call, loc, "the tensor (%s%s) has not one element; use trace_read",
                         tj_dtypes[d].name, tj_dims_text(text, sizeof text, dims, rank));
    }
    return TRACE_OK;
}

tj_status trace_read_at(trace_tensor *t, void *dst, size_t bytes, const char *file, int line) {
    struct tj_loc loc = TJ_LOC(file, line);
    struct reading r;
    if (t && !dst && bytes)
        return read_fail(false, TRACE_ERR_ARGUMENT, "trace_read", loc, "dst is NULL");
    tj_status st = read_begin(t, "trace_read", "read", loc, check_bytes, &bytes, &r);
    if (st)
        return st;
    int64_t strides[TJ_MAX_RANK];
    tj_contiguous_strides(r.dims, r.rank, strides);
    if (r.numel)
        tj_copy_strided(dst, strides, r.data, r.strides, r.dims, r.rank, r.dtype);
    tj_storage_drop(r.st);
    return TRACE_OK;
}

tj_status trace_data_at(trace_tensor *t, const void **data, const char *file, int line) {
    struct tj_loc loc = TJ_LOC(file, line);
    struct reading r;
    if (!data)
        return read_fail(false, TRACE_ERR_ARGUMENT, "trace_data", loc, "no place for the pointer (NULL)");
    *data = NULL;
    tj_status st = read_begin(t, "trace_data", "data", loc, NULL, NULL, &r);
    if (st)
        return st;
    tj_storage_drop(r.st); // the handle keeps it
    if (tj_layout_of(r.dims, r.strides, r.rank)) {
        char text[TJ_DIMS_TEXT];
        struct tj_run *back = tj_run_go(t, loc);
        st = read_fail(tj_is_value(t), TRACE_ERR_STATE, "trace_data", loc,
                       "the tensor (%s%s) is not contiguous; take trace_contiguous of it, or copy with trace_read",
                       tj_dtypes[r.dtype].name, tj_dims_text(text, sizeof text, r.dims, r.rank));
        (void)tj_run_switch(back);
        return st;
    }
    static const unsigned char empty[TJ_ALIGN]; // an empty tensor has a pointer too
    *data = r.data ? r.data : empty;
    return TRACE_OK;
}

// ---- elements -------------------------------------------------------------------------------------------------------

static double half_value(uint16_t h) {
    int e = h >> 10 & 31, m = h & 1023;
    double v = e == 31 ? (m ? NAN : INFINITY) : ldexp(e ? m + 1024 : m, (e ? e : 1) - 25);
    return h & 0x8000 ? -v : v;
}

struct element {
    bool is_int;
    int64_t i;
    double f;
};

static struct element convert(const unsigned char *p, tj_dtype d) {
    struct element e = {true, 0, 0};
    union {
        uint32_t u;
        float f;
    } w = {0};
    uint16_t h;
    int32_t i32;
    switch (d) {
    case TRACE_BOOL: e.i = *p != 0; break;
    case TRACE_U8: e.i = *p; break;
    case TRACE_I32: memcpy(&i32, p, sizeof i32), e.i = i32; break;
    case TRACE_I64: memcpy(&e.i, p, sizeof e.i); break;
    case TRACE_F16: memcpy(&h, p, sizeof h), e.is_int = false, e.f = half_value(h); break;
    case TRACE_BF16: memcpy(&h, p, sizeof h), w.u = (uint32_t)h << 16, e.is_int = false, e.f = (double)w.f; break;
    case TRACE_F32: memcpy(&w.f, p, sizeof w.f), e.is_int = false, e.f = (double)w.f; break;
    case TRACE_F64: memcpy(&e.f, p, sizeof e.f), e.is_int = false; break;
    }
    return e;
}

// A caller that takes denormals for zero gets them nevertheless.
static struct element load(const unsigned char *p, tj_dtype d) {
    tj_fpenv env;
    tj_fpenv_enter(&env);
    struct element e = convert(p, d);
    tj_fpenv_leave(&env);
    return e;
}

// Toward zero, saturating; NaN gives 0: as a cast of the library does.
static int64_t to_i64(struct element e) {
    if (e.is_int)
        return e.i;
    if (isnan(e.f))
        return 0;
    if (e.f >= 9223372036854775808.0)
        return INT64_MAX;
    if (e.f < -9223372036854775808.0)
        return INT64_MIN;
    return (int64_t)e.f;
}

tj_status trace_item_i64_at(trace_tensor *t, int64_t *v, const char *file, int line) {
    struct tj_loc loc = TJ_LOC(file, line);
    struct reading r;
    if (!v)
        return read_fail(false, TRACE_ERR_ARGUMENT, "trace_item_i64", loc, "no place for the value (NULL)");
    *v = 0;
    tj_status st = read_begin(t, "trace_item_i64", "item", loc, check_single, NULL, &r);
    if (st)
        return st;
    *v = to_i64(load(r.data, r.dtype));
    tj_storage_drop(r.st);
    return TRACE_OK;
}

tj_status trace_item_f64_at(trace_tensor *t, double *v, const char *file, int line) {
    struct tj_loc loc = TJ_LOC(file, line);
    struct reading r;
    if (!v)
        return read_fail(false, TRACE_ERR_ARGUMENT, "trace_item_f64", loc, "no place for the value (NULL)");
    *v = NAN;
    tj_status st = read_begin(t, "trace_item_f64", "item", loc, check_single, NULL, &r);
    if (st)
        return st;
    struct element e = load(r.data, r.dtype);
    *v = e.is_int ? (double)e.i : e.f;
    tj_storage_drop(r.st);
    return TRACE_OK;
}

// ---- printing -------------------------------------------------------------------------------------------------------

#define PRINTED 256 // elements printed of a tensor

// Written in pieces: printing needs no memory.
struct line {
    char text[1000];
    size_t n;
};
static void line_flush(struct line *l) {
    (void)fwrite(l->text, 1, l->n, stderr);
    l->n = 0;
}
static void put(struct line *l, const char *s) {
    for (; *s; s++) {
        if (l->n == sizeof l->text)
            line_flush(l);
        l->text[l->n++] = *s;
    }
}

static void print_reading(const struct reading *r, const char *name) {
    struct line l = {.n = 0};
    int64_t at_dim[TJ_MAX_RANK] = {0};
    char number[TJ_DIMS_TEXT];
    flockfile(stderr); // other threads' lines come before or after
    put(&l, name ? name : "tensor");
    put(&l, " = ");
    put(&l, tj_dtypes[r->dtype].name);
    put(&l, tj_dims_text(number, sizeof number, r->dims, r->rank));
    put(&l, r->numel ? " " : " []");
    for (size_t d = 0; d < r->rank && r->numel; d++)
        put(&l, "[");
    for (int64_t k = 0; k < r->numel; k++) {
        int64_t off = 0;
        for (size_t d = 0; d < r->rank; d++)
            off += at_dim[d] * r->strides[d];
        struct element e = load(r->data + off * (int64_t)tj_elem_bytes(r->dtype), r->dtype);
        if (r->dtype == TRACE_BOOL)
            (void)snprintf(number, sizeof number, "%s", e.i ? "true" : "false");
        else if (e.is_int)
            (void)snprintf(number, sizeof number, "%lld", (long long)e.i);
        else
            (void)snprintf(number, sizeof number, r->dtype == TRACE_F64 ? "%.17g" : "%.9g", e.f);
        for (char *p = number; *p; p++)
            *p = *p == ',' ? '.' : *p; // the host's locale may have another point
        put(&l, number);
        if (k + 1 == PRINTED && r->numel > PRINTED) {
            (void)snprintf(number, sizeof number, ", ... %lld more", (long long)(r->numel - PRINTED));
            put(&l, number);
            break;
        }
        size_t closed = 0;
        for (size_t d = r->rank; d-- > 0;) {
            if (++at_dim[d] < r->dims[d])
                break;
            at_dim[d] = 0;
            closed++;
        }
        for (size_t d = 0; d < closed; d++)
            put(&l, "]");
        if (k + 1 < r->numel) {
            put(&l, ", ");
            for (size_t d = 0; d < closed; d++)
                put(&l, "[");
        }
    }
    put(&l, "\n");
    line_flush(&l);
    funlockfile(stderr);
}

void tj_print_tensor(const struct trace_tensor *t, const char *name) {
    struct reading r;
    memset(&r, 0, sizeof r);
    reading_of(&r, t, t->st);
    print_reading(&r, name);
}

tj_status trace_print_at(trace_tensor *t, const char *name, const char *file, int line) {
    struct tj_loc loc = TJ_LOC(file, line);
    struct reading r;
    tj_status st = read_begin(t, "trace_print", "print", loc, NULL, NULL, &r);
    if (st)
        return st;
    print_reading(&r, name);
    tj_storage_drop(r.st);
    return TRACE_OK;
}

// ---- deferred forms -------------------------------------------------------------------------------------------------

// The node whose value a deferred form of t gives: as it is now, whatever is written later. TJ_NIL: failed.
static tj_ref deferred_node(struct tj_run *run, trace_tensor *t, const char *call, struct tj_loc loc) {
    struct tj_place v;
    if (TJ_UNLIKELY(run->nloops) && tj_repeat_readback(run, call, loc))
        return TJ_NIL;
    tj_ref n = tj_resolve(run, t, call, loc);
    if (n == TJ_NIL || !tj_value_view(run, n, &v))
        return n;
    trace_tensor *copy = trace_clone_at(t, loc.file, loc.line); // memory from outside: what it holds now
    return copy ? tj_resolve(run, copy, call, loc) : TJ_NIL;
}

static struct tj_deferred *add_deferred(struct tj_box *b, const char *call, struct tj_loc loc) {
    if (!tj_grow((void **)&b->deferred, &b->capdeferred, b->ndeferred + 1, sizeof *b->deferred)) {
        (void)tj_op_fail(TRACE_ERR_MEMORY, call, loc, "out of memory");
        return NULL;
    }
    return &b->deferred[b->ndeferred];
}

static trace_tensor *item_later(trace_tensor *t, struct tj_loc loc) {
    struct tj_run *run = tj_current;
    const char *call = "trace_item_later";
    if (!t || t == TRACE_NONE)
        return (void)(t ? tj_op_fail(TRACE_ERR_ARGUMENT, call, loc, "TRACE_NONE has no content")
                        : null_handle(call, loc)),
               NULL;
    if (!tj_is_value(t) && (!run || run->eager)) // it is there already
        return run ? tj_tensor_again(t, call, loc) : trace_retain(t);
    if (!run)
        return (void)tj_op_fail(TRACE_ERR_DEAD, call, loc,
                                "a recorded value is used after its run; trace_end gives handles that stay"),
               NULL;
    if (run->failed)
        return NULL;
    struct tj_box *b = tj_box_of(run);
    tj_ref n = deferred_node(run, t, call, loc);
    if (n == TJ_NIL)
        return NULL;
    struct tj_deferred *d = add_deferred(b, call, loc);
    if (!d)
        return NULL;
    const struct tj_node *node = &run->trace.nodes[n];
    struct trace_tensor *later =
        tj_tensor_deferred(run->ctx, (tj_dtype)node->dtype, tj_shape_dims(&run->trace, node->shape),
                           tj_shape_rank(&run->trace, node->shape), call, loc);
    if (!later)
        return (void)tj_op_fail(TRACE_ERR_MEMORY, call, loc, "out of memory"), NULL;
    *d = (struct tj_deferred){.node = n, .later = trace_retain(later), .loc = loc};
    b->ndeferred++;
    return later;
}

trace_tensor *trace_item_later_at(trace_tensor *t, const char *file, int line) {
    struct tj_run *back = tj_run_go(t, TJ_LOC(file, line));
    trace_tensor *later = item_later(t, TJ_LOC(file, line));
    (void)tj_run_switch(back);
    return later;
}

static tj_status print_later(trace_tensor *t, const char *name, struct tj_loc loc) {
    struct tj_run *run = tj_current;
    const char *call = "trace_print_later";
    if (!t)
        return null_handle(call, loc);
    if (t == TRACE_NONE)
        return tj_op_fail(TRACE_ERR_ARGUMENT, call, loc, "TRACE_NONE has no content");
    if (!run || run->eager)
        return trace_print_at(t, name, loc.file, loc.line);
    if (run->failed)
        return tj_fail(run->failed, "%s", run->error);
    struct tj_box *b = tj_box_of(run);
    tj_ref n = deferred_node(run, t, call, loc);
    if (n == TJ_NIL)
        return run->failed ? run->failed : tj_last_status();
    struct tj_deferred *d = add_deferred(b, call, loc);
    char *copy = d ? tj_strdup(name ? name : "tensor") : NULL;
    if (!copy)
        return tj_op_fail(TRACE_ERR_MEMORY, call, loc, "out of memory");
    *d = (struct tj_deferred){.node = n, .name = copy, .print = true, .loc = loc};
    b->ndeferred++;
    return TRACE_OK;
}

tj_status trace_print_later_at(trace_tensor *t, const char *name, const char *file, int line) {
    struct tj_run *back = tj_run_go(t, TJ_LOC(file, line));
    tj_status st = print_later(t, name, TJ_LOC(file, line));
    (void)tj_run_switch(back);
    return st;
}
