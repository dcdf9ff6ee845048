// lib/execmem.c: executable memory. Pages are written while they can't run, and run once they can't be written.
#include "execmem.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "perf.h"

bool tj_exec_forbid;
_Thread_local const struct tj_exec_host *tj_exec_from;

static tj_status forbidden(const char *call, int err) {
    return tj_fail(TRACE_ERR_UNAVAILABLE, "the system forbids executable memory (%s: %s)", call, strerror(err));
}

tj_status tj_exec_reserve(size_t n, struct tj_exec *out) {
    *out = (struct tj_exec){0};
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (n > PTRDIFF_MAX - page) {
        return tj_fail(TRACE_ERR_MEMORY, "code of %zu bytes", n);
    }
    size_t bytes = n ? (n + page - 1) / page * page : page;
    if (tj_alloc_hook && !tj_alloc_hook(bytes)) {
        return tj_fail(TRACE_ERR_MEMORY, "no memory for %zu bytes of code", bytes);
    }
    int saved = errno;
    const struct tj_exec_host *host = tj_exec_from;
    if (host) {
        void *m = host->map(host->user, bytes);
        if (!m || (uintptr_t)m % page) {
            if (m) {
                host->unmap(host->user, m, bytes);
            }
            return tj_fail(TRACE_ERR_MEMORY,
                           m ? "code_map gave memory that is not page-aligned"
                             : "code_map of the context refused %zu bytes",
                           bytes);
        }
        *out = (struct tj_exec){.base = m, .bytes = bytes, .host = host};
        return TRACE_OK;
    }
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        tj_status st = tj_fail(TRACE_ERR_MEMORY, "no memory for %zu bytes of code: %s", bytes, strerror(errno));
        errno = saved;
        return st;
    }
    *out = (struct tj_exec){.base = p, .bytes = bytes};
    return TRACE_OK;
}

tj_status tj_exec_seal(struct tj_exec *e) {
    if (tj_exec_forbid) {
        return forbidden("test hook", EACCES);
    }
    int saved = errno;
    if (e->host) {
        if (e->host->seal(e->host->user, e->base, e->bytes)) {
            return tj_fail(TRACE_ERR_UNAVAILABLE, "code_seal of the context refused %zu bytes", e->bytes);
        }
    } else if (mprotect(e->base, e->bytes, PROT_READ | PROT_EXEC)) {
        // ENOMEM: the kernel's limit on the number of mappings.
        tj_status st = errno == ENOMEM ? tj_fail(TRACE_ERR_MEMORY, "no memory to seal %zu bytes of code", e->bytes)
                                       : forbidden("mprotect", errno);
        errno = saved;
        return st;
    }
    __builtin___clear_cache((char *)e->base, (char *)e->base + e->bytes);
    return tj_frames_add(&e->frames);
}

tj_status tj_exec_map(const void *code, size_t n, struct tj_exec *out) {
    tj_status st = tj_exec_reserve(n, out);
    if (st) {
        return st;
    }
    memcpy(out->base, code, n);
    st = tj_exec_seal(out);
    if (st) {
        tj_exec_unmap(out);
    }
    return st;
}

void tj_exec_unmap(struct tj_exec *e) {
    if (e->base) {
        tj_perf_remove(e->debug);
        tj_frames_remove(&e->frames);
        if (e->host) {
            e->host->unmap(e->host->user, e->base, e->bytes);
        } else {
            (void)munmap(e->base, e->bytes);
        }
    }
    *e = (struct tj_exec){0};
}

bool tj_exec_allowed(void) {
    static _Atomic int known; // 0 not yet, 1 allowed, -1 forbidden
    if (tj_exec_forbid) {
        return false;
    }
    int k = atomic_load_explicit(&known, memory_order_relaxed);
    if (!k) {
        int saved = errno;
        size_t page = (size_t)sysconf(_SC_PAGESIZE);
        void *p = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) {
            errno = saved;
            return true; // out of memory says nothing about permission
        }
        k = mprotect(p, page, PROT_READ | PROT_EXEC) ? -1 : 1;
        (void)munmap(p, page);
        atomic_store_explicit(&known, k, memory_order_relaxed);
        errno = saved;
    }
    return k > 0;
}
