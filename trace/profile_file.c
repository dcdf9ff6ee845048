// trace/profile_file.c: the shapes that runs of a region had, as a file: writing, reading, checking what is read.
//
// Text, a line each:
//     tracejit-profile 1            version
//     region "encoder"              quotes, backslashes and bytes below 32 or above 126 are \xHH
//     count 1042 0:f32[8,512] 1:i64[8]
//     other 12                      runs of combinations that are not listed
//     end 1                         number of count lines
// A count line has the runs and, in ascending order, the declared inputs: number, dtype, extents. Nothing is taken from
// a file that differs from this in any way.
#include <stdio.h>

#include "../lib/file.h"
#include "../lib/strbuf.h"
#include "profile.h"
#include "warmup.h"

#define LIMIT ((size_t)4 << 20) // bytes of a file
#define HEAD "tracejit-profile 1"

// ---- writing -------------------------------------------------------------------------------------------------------

static void put_name(struct tj_strbuf *sb, const char *name) {
    tj_sb_puts(sb, "region \"");
    for (const unsigned char *p = (const unsigned char *)name; *p; p++)
        tj_sb_printf(sb, *p < 32 || *p > 126 || *p == '"' || *p == '\\' ? "\\x%02X" : "%c", *p);
    tj_sb_puts(sb, "\"\n");
}

static void put_combination(struct tj_strbuf *sb, const struct tj_profile_combination *c) {
    tj_sb_printf(sb, "count %llu", (unsigned long long)c->count);
    for (uint32_t i = 0; i < c->ninputs; i++) {
        const struct tj_profile_shape *s = &c->inputs[i];
        tj_sb_printf(sb, " %u:%s[", s->input, tj_dtypes[s->dtype].name);
        for (uint32_t d = 0; d < s->rank; d++)
            tj_sb_printf(sb, d ? ",%lld" : "%lld", (long long)s->dims[d]);
        tj_sb_puts(sb, "]");
    }
    tj_sb_puts(sb, "\n");
}

enum trace_status trace_profile_save(trace_region *r, const char *path) {
    if (!r || !path)
        return tj_fail(TRACE_ERR_ARGUMENT, "trace_profile_save: NULL %s", r ? "path" : "region");
    struct tj_profile_view v;
    struct tj_strbuf sb = {0};
    char why[200];
    if (!tj_profile_read(r, &v))
        return TRACE_ERR_MEMORY;
    tj_sb_puts(&sb, HEAD "\n");
    put_name(&sb, r->name);
    for (uint32_t i = 0; i < v.n; i++)
        put_combination(&sb, &v.rows[i]);
    tj_sb_printf(&sb, "other %llu\nend %u\n", (unsigned long long)v.other, v.n);
    tj_profile_view_free(&v);
    tj_status st = TRACE_OK;
    if (sb.failed)
        st = tj_fail(TRACE_ERR_MEMORY, "region '%s': out of memory for its profile", r->name);
    else if (!tj_file_replace(path, sb.s, sb.n, why, sizeof why))
        st = why[0] ? tj_fail(TRACE_ERR_ARGUMENT, "region '%s': trace_profile_save: '%.300s' %s", r->name, path, why)
                    : tj_fail(TRACE_ERR_MEMORY, "region '%s': out of memory for its profile", r->name);
    tj_sb_free(&sb);
    return st;
}

// ---- reading -------------------------------------------------------------------------------------------------------

struct reader {
    const char *p, *end;
    uint32_t line;
    const char *wrong; // what, in words; NULL: nothing yet
};

static bool wrong(struct reader *q, const char *what) {
    if (!q->wrong)
        q->wrong = what;
    return false;
}

static bool at(const struct reader *q, const char *word) {
    size_t n = strlen(word);
    return (size_t)(q->end - q->p) >= n && !memcmp(q->p, word, n);
}

static bool take(struct reader *q, const char *word, const char *what) {
    if (!at(q, word))
        return wrong(q, what);
    q->p += strlen(word);
    return true;
}

static bool end_line(struct reader *q) {
    if (!take(q, "\n", "more on the line than there should be"))
        return false;
    q->line++;
    return true;
}

// A decimal number up to max, without a sign or leading zeros.
static bool number(struct reader *q, uint64_t max, uint64_t *v) {
    const char *from = q->p;
    *v = 0;
    for (; q->p < q->end && *q->p >= '0' && *q->p <= '9'; q->p++) {
        uint64_t d = (uint64_t)(*q->p - '0');
        if (*v > (max - d) / 10 || d > max)
            return wrong(q, "a number is too large");
        *v = *v * 10 + d;
    }
    return (q->p > from && (*from != '0' || q->p == from + 1)) || wrong(q, "a number is missing");
}

static int hex(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1; }

static bool region_name(struct reader *q, const char *name) {
    if (!take(q, "region \"", "there should be the region's name"))
        return false;
    const unsigned char *want = (const unsigned char *)name;
    bool same = true;
    while (q->p < q->end && *q->p != '"' && *q->p != '\n') {
        int c = (unsigned char)*q->p++;
        if (c == '\\') {
            if (q->end - q->p < 3 || q->p[0] != 'x' || hex(q->p[1]) < 0 || hex(q->p[2]) < 0)
                return wrong(q, "an escape other than \\xHH");
            c = hex(q->p[1]) << 4 | hex(q->p[2]);
            q->p += 3;
        }
        same = same && *want == c && c;
        want += same;
    }
    if (!take(q, "\"", "the region's name does not end"))
        return false;
    return (same && !*want) || wrong(q, "it is of another region");
}

// One input: its dims behind *dims.
static bool shape(struct reader *q, struct tj_profile_shape *s, int64_t **dims) {
    uint64_t v;
    if (!number(q, TJ_PROFILE_INPUTS - 1, &v) || !take(q, ":", "there should be a colon"))
        return false;
    s->input = (uint32_t)v;
    size_t d = 0;
    while (d < tj_dtype_count && !at(q, tj_dtypes[d].name))
        d++;
    if (d == tj_dtype_count)
        return wrong(q, "a dtype that there is none of");
    q->p += strlen(tj_dtypes[d].name);
    s->dtype = (uint8_t)d;
    s->rank = 0;
    s->dims = *dims;
    if (!take(q, "[", "there should be a bracket"))
        return false;
    while (!at(q, "]")) {
        if (s->rank == TJ_MAX_RANK)
            return wrong(q, "more than 8 dims");
        if ((s->rank && !take(q, ",", "there should be a comma")) || !number(q, INT64_MAX, &v))
            return false;
        *(*dims)++ = (int64_t)v;
        s->rank++;
    }
    q->p++;
    int64_t numel;
    size_t bytes;
    return (tj_numel(s->dims, s->rank, &numel) && tj_tensor_bytes((tj_dtype)d, numel, &bytes)) ||
           wrong(q, "the size of a shape overflows");
}

struct parsed {
    struct tj_profile_combination *rows;
    struct tj_profile_shape *shapes;
    int64_t *dims;
    uint32_t n;
    uint64_t other;
};

static bool parse(struct reader *q, const char *name, struct parsed *f) {
    struct tj_profile_shape *s = f->shapes;
    int64_t *dims = f->dims;
    uint64_t v;
    if (!take(q, "tracejit-profile ", "it is no profile"))
        return false;
    if (!number(q, UINT32_MAX, &v) || (v != 1 && !wrong(q, "a version other than 1")) || !end_line(q) ||
        !region_name(q, name) || !end_line(q))
        return false;
    while (at(q, "count ")) {
        if (f->n == TJ_PROFILE_ROWS)
            return wrong(q, "more than 256 combinations");
        struct tj_profile_combination *c = &f->rows[f->n];
        *c = (struct tj_profile_combination){0, 0, s};
        if (!take(q, "count ", "") || !number(q, UINT64_MAX, &c->count) || (!c->count && !wrong(q, "a count of zero")))
            return false;
        while (at(q, " ")) {
            q->p++;
            if (c->ninputs == TJ_PROFILE_INPUTS)
                return wrong(q, "too many inputs");
            if (!shape(q, s, &dims))
                return false;
            if (c->ninputs && s[-1].input >= s->input)
                return wrong(q, "the inputs do not ascend");
            s++;
            c->ninputs++;
        }
        if (!end_line(q))
            return false;
        f->n++;
    }
    if (!take(q, "other ", "there should be a count or the others") || !number(q, UINT64_MAX, &f->other) ||
        !end_line(q) || !take(q, "end ", "there should be the end") || !number(q, UINT32_MAX, &v))
        return false;
    if (v != f->n)
        return wrong(q, "lines are missing: the end tells another number of combinations");
    if (!end_line(q))
        return false;
    return q->p == q->end || wrong(q, "there is more behind the end");
}

static tj_status load(struct trace_region *r, const char *path, const char *text, size_t n) {
    // A shape takes at least four characters (" 0:[]" with a dtype), an extent two.
    struct parsed f = {.rows = tj_malloc(TJ_PROFILE_ROWS * sizeof *f.rows),
                       .shapes = tj_malloc((n / 4 + 2) * sizeof *f.shapes),
                       .dims = tj_malloc((n / 2 + 2) * sizeof *f.dims)};
    struct reader q = {text, text + n, 1, NULL};
    tj_status st = TRACE_OK;
    if (!f.rows || !f.shapes || !f.dims)
        st = tj_fail(TRACE_ERR_MEMORY, "region '%s': trace_profile_load: out of memory", r->name);
    else if (!parse(&q, r->name, &f))
        st = tj_fail(TRACE_ERR_ARGUMENT, "region '%s': trace_profile_load: '%.300s' line %u: %s", r->name, path, q.line,
                     q.p == q.end && q.line > 1 ? "the file ends too early" : q.wrong);
    else if (!tj_profile_add(r, f.rows, f.n, f.other))
        st = TRACE_ERR_MEMORY;
    tj_free(f.rows);
    tj_free(f.shapes);
    tj_free(f.dims);
    return st;
}

enum trace_status trace_profile_load(trace_region *r, const char *path) {
    if (!r || !path)
        return tj_fail(TRACE_ERR_ARGUMENT, "trace_profile_load: NULL %s", r ? "path" : "region");
    char why[200];
    size_t n;
    char *text = tj_file_read(path, LIMIT, &n, why, sizeof why);
    if (!text)
        return why[0] ? tj_fail(TRACE_ERR_ARGUMENT, "region '%s': trace_profile_load: '%.300s' %s", r->name, path, why)
                      : tj_fail(TRACE_ERR_MEMORY, "region '%s': trace_profile_load: out of memory", r->name);
    tj_status st = load(r, path, text, n);
    tj_free(text);
    return st ? st : tj_warm_loaded(r);
}
