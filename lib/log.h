// lib/log.h: log topics of TRACEJIT_LOG and the environment, both read once at context creation.
#ifndef TJ_LIB_LOG_H
#define TJ_LIB_LOG_H
#include "base.h"

enum tj_log_topic {
    TJ_LOG_RECOMPILES,
    TJ_LOG_BREAKS,
    TJ_LOG_FUSION,
    TJ_LOG_KERNELS,
    TJ_LOG_CACHE,
    TJ_LOG_TRACE,
    TJ_LOG_MEMORY,
    TJ_LOG_ERRORS,
    TJ_LOG_TOPICS
};

struct tj_env {
    uint32_t log;       // bit per tj_log_topic; "all" sets every bit
    bool disable;       // TRACEJIT_DISABLE=1: every op is a single-op run
    bool check;         // TRACEJIT_CHECK=1: every plan run is compared with the interpreter
    bool perf;          // TRACEJIT_PERF=1: kernels are told to perf and to GDB
    char timeline[512]; // TRACEJIT_TIMELINE: file of trace events, "" when unset
    char dump[512];     // TRACEJIT_DUMP directory, "" when unset
    char llvm[512];     // TRACEJIT_LLVM: path of the compiler module, "" for the default search
    char cpu[64];       // TRACEJIT_CPU: portable, avx2, avx512: forces a feature level; "" for the best
    uint32_t kill;      // bit per TRACEJIT_NO=<name,...> optimisation switch, see tj_kill
};
enum tj_kill {
    TJ_KILL_FUSE,
    TJ_KILL_EPILOGUE,
    TJ_KILL_SIMPLIFY,
    TJ_KILL_PREPACK,
    TJ_KILL_REUSE,
    TJ_KILL_JIT,
    TJ_KILL_STREAM,
    TJ_KILL_THREADS,
    TJ_KILLS
};
// Names: fuse, epilogue, simplify, prepack, reuse, jit, stream, threads. Unknown words are reported once to stderr.
void tj_env_read(struct tj_env *e);
static inline bool tj_env_off(const struct tj_env *e, enum tj_kill k) { return e->kill >> k & 1; }
static inline bool tj_env_logs(const struct tj_env *e, enum tj_log_topic t) { return e->log >> t & 1; }
// One line "tracejit: <text>\n" to stderr, written with one write; errno is preserved.
void tj_log(const struct tj_env *e, enum tj_log_topic t, const char *fmt, ...) TJ_PRINTF(3, 4);
// Writes all of it, raising no signal; false: errno tells why not.
bool tj_write_all(int fd, const char *s, size_t n);
// Writes text to <dump>/<name>; no-op without TRACEJIT_DUMP; a failure is logged, never an error.
void tj_dump(const struct tj_env *e, const char *name, const char *text, size_t n);
#endif
