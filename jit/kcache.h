// jit/kcache.h: compiled kernels of a context, shared by all its plans; one compile however many threads ask.
#ifndef TJ_JIT_KCACHE_H
#define TJ_JIT_KCACHE_H
#include "module.h"

struct tj_kcache;
// A compiled kernel or tile. Counted by the plans that use it; its code stays mapped while anyone holds it.
struct tj_kentry;

// compile: turns a batch of units into code (the module's compile with its compiler).
typedef tj_status (*tj_compile_fn)(void *user, struct tj_unit *units, size_t n, struct tj_compile_result *out);
struct tj_kcache *tj_kcache_create(tj_compile_fn compile, void *user, uint64_t code_limit);
void tj_kcache_destroy(struct tj_kcache *c); // no entry may be held any more

struct tj_kcache_stats {
    uint32_t compiled;
    uint64_t emit_ns, codegen_ns, code_bytes;
};
// Finds or compiles every unit (kind and loop/gemm filled by the caller), all missing ones in one batch; entries[i]
// gets a reference. On failure no reference is held. Blocks while another thread compiles one of them; no lock is held
// while compiling. `st` gets what this call compiled.
tj_status tj_kcache_get(struct tj_kcache *c, const struct tj_unit *units, size_t n, struct tj_kentry **entries,
                        struct tj_kcache_stats *st);
void tj_kcache_put(struct tj_kcache *c, struct tj_kentry *e);
// Test hook: told what is about to be compiled, under the keys that the cache has; may put other units in their place.
extern void (*tj_unit_hook)(struct tj_unit *units, size_t n);
struct tj_kernel_code tj_kentry_code(const struct tj_kentry *e);
size_t tj_kcache_trim(struct tj_kcache *c);    // drops what nobody holds; bytes of code unmapped
uint64_t tj_kcache_bytes(struct tj_kcache *c); // code mapped now
#endif
