// lib/execmem.h: executable memory: map, write, seal; never writable and executable at once.
#ifndef TJ_LIB_EXECMEM_H
#define TJ_LIB_EXECMEM_H
#include "unwind.h"

// A host's own executable memory; as trace_context_options has it.
struct tj_exec_host {
    void *(*map)(void *user, size_t bytes);
    int (*seal)(void *user, void *p, size_t bytes);
    void (*unmap)(void *user, void *p, size_t bytes);
    void *user;
};
struct tj_exec {
    void *base;                      // mapping; NULL when empty
    size_t bytes;                    // rounded up to pages
    struct tj_frames frames;         // inside it; set between reserve and seal
    void *debug;                     // what perf.h has told of it, or NULL
    const struct tj_exec_host *host; // whose memory it is; NULL: the system's. Outlives it
};
// Where this thread's next reservations come from; NULL: the system.
extern _Thread_local const struct tj_exec_host *tj_exec_from;
// Copies n bytes in and seals them read+execute. TRACE_ERR_UNAVAILABLE when the system forbids it (SELinux,
// seccomp, MDWE). Reading data placed in the same mapping is legal.
tj_status tj_exec_map(const void *code, size_t n, struct tj_exec *out);
// Two-step form for relocation against the final address: reserve (writable), then seal.
tj_status tj_exec_reserve(size_t n, struct tj_exec *out);
// Sealing makes the frames known to the unwinder, unmapping takes them back.
tj_status tj_exec_seal(struct tj_exec *e);
void tj_exec_unmap(struct tj_exec *e);
bool tj_exec_allowed(void); // probes once by mapping a page
extern bool tj_exec_forbid; // test hook: behave as if forbidden
#endif
