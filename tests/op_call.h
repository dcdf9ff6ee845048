/* Calls a public op by its name: for golden values, semantics cases and the fuzzer. */
#ifndef OP_CALL_H
#define OP_CALL_H
#include "../include/tracejit.h"

#define OP_MAX_IN 8
#define OP_MAX_ATTR 12
#define OP_MAX_OUT 16

struct op_attr {
    char name[24];
    char kind; /* 'i' integers, 'f' doubles, 's' one word */
    size_t n;  /* values, at most 16 */
    int64_t i[16];
    double f[16];
    char s[24];
};

struct op_args {
    trace_context *ctx;
    size_t nin, nattr;
    trace_tensor *in[OP_MAX_IN]; /* TRACE_NONE: absent */
    struct op_attr attr[OP_MAX_ATTR];
};

/* What an op takes, for callers that make up arguments. */
enum op_shape {
    OP_UNARY,  /* x */
    OP_BINARY, /* a, b; or a and attr scalar */
    OP_REDUCE, /* x, attrs dims, keepdim */
    OP_SPECIAL /* see op_call.c */
};
struct op_entry {
    const char *name;
    enum op_shape shape;
    trace_tensor *(*unary)(trace_tensor *);
    trace_tensor *(*binary)(trace_tensor *, trace_tensor *);
    trace_tensor *(*with_f)(trace_tensor *, double);
    trace_tensor *(*with_i)(trace_tensor *, int64_t);
    trace_tensor *(*reduce)(trace_tensor *, const int64_t *, size_t, bool);
    size_t (*special)(const struct op_args *, trace_tensor **); /* gives the number of results */
};
extern const struct op_entry op_table[];
extern const size_t op_table_size;

const struct op_entry *op_find(const char *name); /* NULL: no such op */
/* An op that writes and returns its first operand: its name ends in '_'. The result is not a new reference. */
bool op_in_place(const char *name);
const struct op_attr *op_attr_find(const struct op_args *a, const char *name);
int64_t op_attr_i(const struct op_args *a, const char *name, int64_t otherwise);
double op_attr_f(const struct op_args *a, const char *name, double otherwise);
bool op_dtype(const char *name, enum trace_dtype *d); /* "f32" ... */
/* Results go to out; gives their number, 0 when the op has no form for these arguments. Results may be NULL: failed. */
size_t op_call(const struct op_entry *e, const struct op_args *a, trace_tensor *out[OP_MAX_OUT]);

size_t op_dtype_size(enum trace_dtype d);
/* An element as a double (exact but for i64 beyond 2^53), and back, rounding once to nearest even. */
double op_load(enum trace_dtype d, const void *p, size_t i);
void op_store(enum trace_dtype d, void *p, size_t i, double v);
#endif
