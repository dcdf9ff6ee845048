// jit/kcache.c: table of compiled kernels, keyed on the kernel's whole content.
//
// Entries are found by hash and confirmed by content. An entry is inserted in state COMPILING before the lock is
// dropped, so that a second thread asking for the same kernel waits for the first instead of compiling again. What one
// call compiles shares one mapping (a batch); the mapping goes when its last entry goes. Entries nobody holds are kept
// for the next plan until the code they keep mapped exceeds the limit, then dropped oldest first.
#include "kcache.h"
#include "cpu_backend.h"

#include <stdio.h>

#include "../lib/hash.h"
#include "../lib/threads.h"

void (*tj_unit_hook)(struct tj_unit *units, size_t n);

struct tj_batch {
    uint32_t live; // entries that still point into it
    struct tj_exec code;
};
enum entry_state { COMPILING, READY, FAILED };
struct tj_kentry {
    struct tj_kentry *next; // hash chain
    uint64_t hash;
    enum tj_unit_kind kind;
    struct tj_kernel *loop; // copy of the key, LOOP
    struct tj_gemm_tile gemm;
    enum entry_state state;
    uint32_t process; // that compiles it: in a child of fork nobody finishes what the parent was compiling
    uint32_t refs;
    uint64_t stamp; // when it was last put back
    struct tj_kernel_code code;
    struct tj_batch *batch;
};
#define BUCKETS 512
struct tj_kcache {
    tj_mutex lock;
    tj_cond done; // some entry left COMPILING
    struct tj_kentry *buckets[BUCKETS];
    tj_compile_fn compile;
    void *user;
    uint64_t limit, bytes; // of mapped code
    uint64_t clock, serial;
};

struct tj_kcache *tj_kcache_create(tj_compile_fn compile, void *user, uint64_t code_limit) {
    struct tj_kcache *c = tj_calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->compile = compile;
    c->user = user;
    c->limit = code_limit;
    return c;
}

static void entry_free(struct tj_kcache *c, struct tj_kentry *e) {
    if (e->batch && --e->batch->live == 0) {
        c->bytes -= e->batch->code.bytes;
        tj_exec_unmap(&e->batch->code);
        tj_free(e->batch);
    }
    tj_free(e->loop);
    tj_free(e);
}

static void unlink_entry(struct tj_kcache *c, struct tj_kentry *e) {
    struct tj_kentry **p = &c->buckets[e->hash % BUCKETS];
    while (*p != e)
        p = &(*p)->next;
    *p = e->next;
}

void tj_kcache_destroy(struct tj_kcache *c) {
    if (!c)
        return;
    for (size_t b = 0; b < BUCKETS; b++) {
        for (struct tj_kentry *e = c->buckets[b], *n; e; e = n) {
            n = e->next;
            entry_free(c, e);
        }
    }
    tj_free(c);
}

static uint64_t unit_hash(const struct tj_unit *u) {
    if (tj_hash_collide)
        return 1;
    return u->kind == TJ_UNIT_LOOP ? tj_kernel_hash(u->loop) : tj_hash_bytes(&u->gemm, sizeof u->gemm, 7);
}

static bool unit_matches(const struct tj_kentry *e, const struct tj_unit *u) {
    if (e->kind != u->kind)
        return false;
    if (u->kind == TJ_UNIT_LOOP)
        return tj_kernel_equal(e->loop, u->loop);
    return memcmp(&e->gemm, &u->gemm, sizeof u->gemm) == 0;
}

static bool left_behind(const struct tj_kentry *e) { return e->state == COMPILING && e->process != tj_process(); }

static struct tj_kentry *find(struct tj_kcache *c, const struct tj_unit *u, uint64_t hash) {
    for (struct tj_kentry *e = c->buckets[hash % BUCKETS]; e; e = e->next)
        if (e->hash == hash && e->state != FAILED && !left_behind(e) && unit_matches(e, u))
            return e;
    return NULL;
}

static struct tj_kentry *insert(struct tj_kcache *c, const struct tj_unit *u, uint64_t hash) {
    struct tj_kentry *e = tj_calloc(1, sizeof *e);
    if (!e)
        return NULL;
    if (u->kind == TJ_UNIT_LOOP && !(e->loop = tj_kernel_copy(u->loop))) {
        tj_free(e);
        return NULL;
    }
    e->kind = u->kind;
    e->gemm = u->gemm;
    e->hash = hash;
    e->process = tj_process();
    e->next = c->buckets[hash % BUCKETS];
    c->buckets[hash % BUCKETS] = e;
    return e;
}

// Drops unheld entries, oldest first, until the mapped code is under the limit. A batch is unmapped only when all its
// entries are gone, so this frees whole batches where it can.
static void trim(struct tj_kcache *c) {
    while (c->bytes > c->limit) {
        struct tj_kentry *oldest = NULL;
        for (size_t b = 0; b < BUCKETS; b++)
            for (struct tj_kentry *e = c->buckets[b]; e; e = e->next)
                if (!e->refs && e->state == READY && (!oldest || e->stamp < oldest->stamp))
                    oldest = e;
        if (!oldest)
            return;
        unlink_entry(c, oldest);
        entry_free(c, oldest);
    }
}

static void put_locked(struct tj_kcache *c, struct tj_kentry *e) {
    e->stamp = ++c->clock;
    if (--e->refs == 0 && e->state == FAILED) {
        unlink_entry(c, e);
        entry_free(c, e);
    }
}

void tj_kcache_put(struct tj_kcache *c, struct tj_kentry *e) {
    if (!e)
        return;
    tj_lock(&c->lock);
    put_locked(c, e);
    trim(c);
    tj_unlock(&c->lock);
}

// Compiles the units whose entries this call inserted; on return none of them is COMPILING.
static tj_status compile_mine(struct tj_kcache *c, struct tj_unit *mine, struct tj_kentry **entries, size_t n,
                              struct tj_kcache_stats *st) {
    struct tj_compile_result res;
    memset(&res, 0, sizeof res);
    struct tj_batch *batch = tj_calloc(1, sizeof *batch);
    if (TJ_UNLIKELY(tj_unit_hook != NULL))
        tj_unit_hook(mine, n);
    tj_status s = batch ? c->compile(c->user, mine, n, &res) : TRACE_ERR_MEMORY;
    tj_lock(&c->lock);
    if (!s) {
        batch->live = (uint32_t)n;
        batch->code = res.code;
        c->bytes += res.code.bytes;
        st->compiled += (uint32_t)n;
        st->emit_ns += res.emit_ns;
        st->codegen_ns += res.codegen_ns;
        st->code_bytes += res.code.bytes;
    }
    for (size_t i = 0; i < n; i++) {
        entries[i]->state = s ? FAILED : READY;
        if (s)
            continue;
        entries[i]->batch = batch;
        // Object to function pointer: POSIX guarantees it, ISO C has no cast for it.
        memcpy(&entries[i]->code.fn, &mine[i].entry[0], sizeof(void *));
        memcpy(&entries[i]->code.fn2, &mine[i].entry[1], sizeof(void *));
    }
    trim(c);
    tj_cond_wake(&c->done);
    tj_unlock(&c->lock);
    if (!s)
        return TRACE_OK;
    tj_free(batch);
    if (s == TRACE_ERR_MEMORY && !res.error[0])
        return tj_fail(s, "out of memory while compiling %zu kernels", n);
    return tj_fail(s, "the compiler failed: %s", res.error[0] ? res.error : "no reason given");
}

tj_status tj_kcache_get(struct tj_kcache *c, const struct tj_unit *units, size_t n, struct tj_kentry **entries,
                        struct tj_kcache_stats *st) {
    struct tj_unit *mine = tj_calloc(n ? n : 1, sizeof *mine);
    struct tj_kentry **mine_e = tj_calloc(n ? n : 1, sizeof *mine_e);
    size_t nmine = 0, got = 0;
    tj_status s = TRACE_OK;
    if (!mine || !mine_e) {
        s = tj_fail(TRACE_ERR_MEMORY, "out of memory for %zu kernels", n);
        goto out;
    }
    tj_lock(&c->lock);
    for (; got < n; got++) {
        uint64_t h = unit_hash(&units[got]);
        struct tj_kentry *e = find(c, &units[got], h);
        if (!e) {
            if (!(e = insert(c, &units[got], h)))
                break;
            mine[nmine] = units[got];
            mine[nmine].loop = e->loop;
            (void)snprintf(mine[nmine].symbol, sizeof mine[nmine].symbol, "tj_%llu", (unsigned long long)c->serial++);
            mine_e[nmine++] = e;
        }
        e->refs++;
        entries[got] = e;
    }
    tj_unlock(&c->lock);
    if (got < n)
        s = tj_fail(TRACE_ERR_MEMORY, "out of memory for %zu kernels", n);
    if (nmine) { // compiled even when the rest failed: other threads may already wait for them
        tj_status cs = compile_mine(c, mine, mine_e, nmine, st);
        if (!s)
            s = cs;
    }
    tj_lock(&c->lock);
    for (size_t i = 0; i < got; i++) {
        while (entries[i]->state == COMPILING)
            tj_cond_wait(&c->done, &c->lock, TJ_FOREVER);
        if (entries[i]->state == FAILED && !s)
            s = tj_fail(TRACE_ERR_COMPILE, "the compiler failed in another thread");
    }
    if (s)
        for (size_t i = 0; i < got; i++)
            put_locked(c, entries[i]);
    tj_unlock(&c->lock);
out:
    tj_free(mine);
    tj_free(mine_e);
    return s;
}

struct tj_kernel_code tj_kentry_code(const struct tj_kentry *e) {
    return e->code;
}

uint64_t tj_kcache_bytes(struct tj_kcache *c) {
    tj_lock(&c->lock);
    uint64_t b = c->bytes;
    tj_unlock(&c->lock);
    return b;
}

// ---- compiling ------------------------------------------------------------------------------------------------------

tj_status tj_jit_compile(struct tj_jit *jit, struct tj_unit *units, size_t n, unsigned want,
                         struct tj_compile_result *out) {
    const struct tj_exec_host *before = tj_exec_from; // a callback of the host's memory may compile
    tj_exec_from = jit->exec.map ? &jit->exec : NULL;
    tj_status s = jit->api->compile(jit->compiler, units, n, want, out);
    tj_exec_from = before;
    return s;
}
