// jit/perf.c: names of kernels for people, and telling perf and GDB of them.
#include <errno.h>
#include <stdio.h>

#include "../lib/perf.h"
#include "cpu_backend.h"

// "tracejit:digits:mul_add_relu(digits.c:148)": the region, the ops, the host line of the result. A kernel that several
// plans share keeps the name it got first.
static void label(char *buf, const struct tj_segment *seg, const struct tj_step *st, const struct tj_unit *u) {
    const char *region = seg->name ? seg->name : "eager", *ops = st->name ? st->name : "kernel";
    if (u->kind == TJ_UNIT_LOOP && u->loop->name)
        ops = u->loop->name;
    size_t n = strlen(region);
    if (!strncmp(ops, region, n) && ops[n] == '.') // the kernel's own name begins with the region's
        ops += n + 1;
    struct tj_loc loc = st->node < seg->trace->nnodes ? seg->trace->locs[st->node] : TJ_LOC(NULL, 0);
    const char *slash = loc.file ? strrchr(loc.file, '/') : NULL, *file = slash ? slash + 1 : loc.file;
    char tile[24] = "", where[64] = "";
    if (u->kind == TJ_UNIT_GEMM)
        (void)snprintf(tile, sizeof tile, "_tile_%dx%d", u->gemm.mr, u->gemm.nv);
    if (file)
        (void)snprintf(where, sizeof where, "(%.40s:%d)", file, (int)loc.line);
    (void)snprintf(buf, TJ_LABEL, "tracejit:%.48s:%.60s%s%s", region, ops, tile, where);
    for (char *p = buf + sizeof "tracejit:"; *p && p < buf + strlen(buf) - strlen(where); p++)
        *p = *p == '.' ? '_' : *p;
}

tj_status tj_perf_label(const struct tj_segment *seg, const struct tj_step *st, struct tj_unit *units, size_t n) {
    for (size_t i = 0; i < n; i++) {
        char *buf = tj_malloc(TJ_LABEL);
        if (!buf)
            return tj_fail(TRACE_ERR_MEMORY, "out of memory for the names of %zu kernels", n);
        label(buf, seg, st, &units[i]);
        units[i].label = buf;
    }
    return TRACE_OK;
}

// Functions that aren't kernels themselves (what kernels of a batch share) have the names they were emitted with.
void tj_perf_tell(const struct tj_env *env, const struct tj_unit *units, size_t n, struct tj_compile_result *res) {
    enum { EXTRA = 16 };
    size_t cap = res->nsymbols * (TJ_LABEL + EXTRA), used = 0;
    char *names = res->symbols && res->nsymbols ? tj_malloc(cap) : NULL;
    if (!names) {
        tj_log(env, TJ_LOG_ERRORS, "perf: no names for %zu kernels: out of memory", n);
        return;
    }
    for (size_t i = 0; i < res->nsymbols; i++) {
        const char *have = res->symbols[i].name, *phase = "";
        char *name = names + used;
        const struct tj_unit *u = NULL;
        for (size_t k = 0; k < n && !u; k++) {
            size_t len = strlen(units[k].symbol);
            if (!strncmp(have, units[k].symbol, len) && (!have[len] || !strcmp(have + len, ".2"))) {
                u = &units[k];
                phase = have[len] ? ":join" : "";
            }
        }
        if (u && u->label)
            used += (size_t)snprintf(name, TJ_LABEL + EXTRA, "%s%s", u->label, phase) + 1;
        else
            used += (size_t)snprintf(name, TJ_LABEL, "tracejit:%.80s", have) + 1;
        res->symbols[i].name = name;
    }
    if (!tj_perf_add(&res->code, res->symbols, res->nsymbols))
        tj_log(env, TJ_LOG_ERRORS, "perf: the map /tmp/perf-PID.map could not be written: %s", strerror(errno));
    tj_free(names);
}
