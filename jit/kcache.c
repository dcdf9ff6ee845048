// jit/kcache.c: table of compiled kernels, keyed on the kernel's whole content.
//
// Entries are found by hash and confirmed by content. An entry is inserted in state COMPILING before the lock is
// dropped, so that a second thread asking for the same kernel waits for the first instead of compiling again. What one
// call compiles shares one mapping (a batch); the mapping goes when its last entry goes. Entries nobody holds are kept
// for the next plan until the code they keep mapped exceeds the limit, then dropped oldest first. The table grows with
// the entries, so that looking one up and dropping one take the same time whatever their number.
#include "kcache.h"
#include "cpu_backend.h"

#include <stdio.h>

#include "../lib/hash.h"
#include "../lib/threads.h"

void (*tj_unit_hook)(struct tj_unit *units, size_t n);

struct tj_batch {
    struct tj_batch *next; // of those to be unmapped
    uint32_t live;         // entries that still point into it
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
    uint32_t process;  // that compiles it: in a child of fork nobody finishes what the parent was compiling
    const void *maker; // address of tj_current of the thread that compiles it, and
    const void *call;  // of something of its call of tj_kcache_get
    tj_status failed;  // FAILED: why
    uint32_t refs;
    struct tj_kentry *newer, *older; // of those nobody holds
    struct tj_kernel_code code;
    struct tj_batch *batch;
};
#define BUCKETS 512 // at first
struct tj_kcache {
    tj_mutex lock;
    tj_cond done; // some entry left COMPILING
    struct tj_kentry **buckets;
    size_t nbuckets, n;                // buckets: a power of two; entries
    struct tj_kentry *newest, *oldest; // of those nobody holds
    tj_compile_fn compile;
    void *user;
    uint64_t limit, bytes; // of mapped code
    uint64_t serial;
    struct tj_batch *dead; // to be unmapped when the lock is given up
};

struct tj_kcache *tj_kcache_create(tj_compile_fn compile, void *user, uint64_t code_limit) {
    struct tj_kcache *c = tj_calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->buckets = tj_calloc(BUCKETS, sizeof(struct tj_kentry *));
    if (!c->buckets) {
        tj_free(c);
        return NULL;
    }
    c->nbuckets = BUCKETS;
    c->compile = compile;
    c->user = user;
    c->limit = code_limit;
    return c;
}

// Gives up the lock. Code goes without it, as what unmaps it may be the host's, and call the library.
static void unlock_kernels(struct tj_kcache *c) {
    struct tj_batch *b = c->dead;
    c->dead = NULL;
    tj_unlock(&c->lock);
    while (b) {
        struct tj_batch *next = b->next;
        tj_exec_unmap(&b->code);
        tj_free(b);
        b = next;
    }
}

static struct tj_kentry **bucket(const struct tj_kcache *c, uint64_t hash) { return &c->buckets[hash % c->nbuckets]; }

static void entry_free(struct tj_kcache *c, struct tj_kentry *e) {
    if (e->batch && --e->batch->live == 0) {
        c->bytes -= e->batch->code.bytes;
        e->batch->next = c->dead;
        c->dead = e->batch;
    }
    tj_free(e->loop);
    tj_free(e);
}

static void unlink_entry(struct tj_kcache *c, struct tj_kentry *e) {
    struct tj_kentry **p = bucket(c, e->hash);
    while (*p != e)
        p = &(*p)->next;
    *p = e->next;
    c->n--;
}

static void keep(struct tj_kcache *c, struct tj_kentry *e) {
    e->newer = NULL;
    e->older = c->newest;
    *(c->newest ? &c->newest->newer : &c->oldest) = e;
    c->newest = e;
}

static void hold(struct tj_kcache *c, struct tj_kentry *e) {
    if (e->refs++ || e->state == COMPILING)
        return;
    *(e->newer ? &e->newer->older : &c->newest) = e->older;
    *(e->older ? &e->older->newer : &c->oldest) = e->newer;
}

void tj_kcache_destroy(struct tj_kcache *c) {
    if (!c)
        return;
    for (size_t b = 0; b < c->nbuckets; b++) {
        for (struct tj_kentry *e = c->buckets[b], *n; e; e = n) {
            n = e->next;
            entry_free(c, e);
        }
    }
    (void)tj_lock(&c->lock);
    unlock_kernels(c);
    tj_free(c->buckets);
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

// Nobody will finish it: its thread is of another process, or waits for this call, made in a callback of its compile.
static bool left_behind(const struct tj_kentry *e, const void *call) {
    return e->state == COMPILING && (e->process != tj_process() || (e->maker == &tj_current && e->call != call));
}

static struct tj_kentry *find(struct tj_kcache *c, const struct tj_unit *u, uint64_t hash, const void *call) {
    for (struct tj_kentry *e = *bucket(c, hash); e; e = e->next)
        if (e->hash == hash && e->state != FAILED && !left_behind(e, call) && unit_matches(e, u))
            return e;
    return NULL;
}

// In a child of fork, where a thread of the parent was in the middle of a change, the order is made anew.
static void lock_kernels(struct tj_kcache *c) {
    if (TJ_LIKELY(!tj_lock(&c->lock)))
        return;
    c->newest = c->oldest = NULL;
    c->dead = NULL;
    c->n = 0;
    for (size_t b = 0; b < c->nbuckets; b++) {
        for (struct tj_kentry *e = c->buckets[b]; e; e = e->next, c->n++) {
            if (!e->refs && e->state == READY)
                keep(c, e);
        }
    }
}

// Without memory for it the chains get longer.
static void grow(struct tj_kcache *c) {
    struct tj_kentry **old = c->buckets, **more = c->n < c->nbuckets ? NULL : tj_calloc(2 * c->nbuckets, sizeof *more);
    if (!more)
        return;
    size_t n = c->nbuckets;
    for (size_t b = 0; b < n; b++) {
        for (struct tj_kentry *e = old[b], *next; e; e = next) {
            struct tj_kentry **p = &more[e->hash % (2 * n)];
            next = e->next;
            e->next = *p;
            *p = e;
        }
    }
    c->buckets = more;
    c->nbuckets = 2 * n;
    tj_free(old);
}

static struct tj_kentry *insert(struct tj_kcache *c, const struct tj_unit *u, uint64_t hash, const void *call) {
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
    e->maker = &tj_current;
    e->call = call;
    grow(c);
    struct tj_kentry **p = bucket(c, hash);
    e->next = *p;
    *p = e;
    c->n++;
    return e;
}

// Drops entries that nobody holds, oldest first, until at most `most` bytes of code are mapped. A batch is unmapped
// only when all its entries are gone, so this frees whole batches where it can.
static void trim(struct tj_kcache *c, uint64_t most) {
    while (c->bytes > most && c->oldest) {
        struct tj_kentry *e = c->oldest;
        hold(c, e);
        unlink_entry(c, e);
        entry_free(c, e);
    }
}

static void put_locked(struct tj_kcache *c, struct tj_kentry *e) {
    if (--e->refs)
        return;
    if (e->state == FAILED) {
        unlink_entry(c, e);
        entry_free(c, e);
        return;
    }
    keep(c, e);
}

void tj_kcache_put(struct tj_kcache *c, struct tj_kentry *e) {
    if (!e)
        return;
    lock_kernels(c);
    put_locked(c, e);
    trim(c, c->limit);
    unlock_kernels(c);
}

size_t tj_kcache_trim(struct tj_kcache *c) {
    lock_kernels(c);
    uint64_t before = c->bytes;
    trim(c, 0);
    uint64_t now = c->bytes;
    unlock_kernels(c);
    return (size_t)(before - now);
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
    lock_kernels(c);
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
        entries[i]->failed = s;
        if (s)
            continue;
        entries[i]->batch = batch;
        // Object to function pointer: POSIX guarantees it, ISO C has no cast for it.
        memcpy(&entries[i]->code.fn, &mine[i].entry[0], sizeof(void *));
        memcpy(&entries[i]->code.fn2, &mine[i].entry[1], sizeof(void *));
    }
    trim(c, c->limit);
    tj_cond_wake(&c->done);
    unlock_kernels(c);
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
    lock_kernels(c);
    for (; got < n; got++) {
        uint64_t h = unit_hash(&units[got]);
        struct tj_kentry *e = find(c, &units[got], h, mine);
        if (!e) {
            if (!(e = insert(c, &units[got], h, mine)))
                break;
            mine[nmine] = units[got];
            mine[nmine].loop = e->loop;
            (void)snprintf(mine[nmine].symbol, sizeof mine[nmine].symbol, "tj_%llu", (unsigned long long)c->serial++);
            mine_e[nmine++] = e;
        }
        hold(c, e);
        entries[got] = e;
    }
    unlock_kernels(c);
    if (got < n)
        s = tj_fail(TRACE_ERR_MEMORY, "out of memory for %zu kernels", n);
    if (nmine) { // compiled even when the rest failed: other threads may already wait for them
        tj_status cs = compile_mine(c, mine, mine_e, nmine, st);
        if (!s)
            s = cs;
    }
    lock_kernels(c);
    for (size_t i = 0; i < got; i++) {
        while (entries[i]->state == COMPILING)
            tj_cond_wait(&c->done, &c->lock, TJ_FOREVER);
        if (entries[i]->state == FAILED && !s)
            s = tj_fail(entries[i]->failed, "the compiler failed in another thread");
    }
    if (s)
        for (size_t i = 0; i < got; i++)
            put_locked(c, entries[i]);
    unlock_kernels(c);
out:
    tj_free(mine);
    tj_free(mine_e);
    return s;
}

struct tj_kernel_code tj_kentry_code(const struct tj_kentry *e) {
    return e->code;
}

uint64_t tj_kcache_bytes(struct tj_kcache *c) {
    lock_kernels(c);
    uint64_t b = c->bytes;
    unlock_kernels(c);
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
