// lib/log.c: the environment, log lines, dump files.
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char *const topics[TJ_LOG_TOPICS] = {
    [TJ_LOG_RECOMPILES] = "recompiles", [TJ_LOG_BREAKS] = "breaks", [TJ_LOG_FUSION] = "fusion",
    [TJ_LOG_KERNELS] = "kernels",       [TJ_LOG_CACHE] = "cache",   [TJ_LOG_TRACE] = "trace",
    [TJ_LOG_MEMORY] = "memory",         [TJ_LOG_ERRORS] = "errors",
};
static const char *const kills[TJ_KILLS] = {
    [TJ_KILL_FUSE] = "fuse",       [TJ_KILL_EPILOGUE] = "epilogue", [TJ_KILL_SIMPLIFY] = "simplify",
    [TJ_KILL_PREPACK] = "prepack", [TJ_KILL_REUSE] = "reuse",       [TJ_KILL_JIT] = "jit",
    [TJ_KILL_STREAM] = "stream",   [TJ_KILL_THREADS] = "threads",
};
static const char *const levels[] = {"portable", "avx2", "avx512"};

// ---- lines ----------------------------------------------------------------------------------

// A pipe that nobody reads and a limit on file sizes raise signals, which would end a host for the sake of a log line:
// they are blocked meanwhile, and taken off. False: errno tells why not all was written.
bool tj_write_all(int fd, const char *s, size_t n) {
    sigset_t block, old, pending;
    (void)sigemptyset(&block);
    (void)sigaddset(&block, SIGPIPE);
    (void)sigaddset(&block, SIGXFSZ);
    if (pthread_sigmask(SIG_BLOCK, &block, &old)) {
        return false;
    }
    bool had = sigpending(&pending) || sigismember(&pending, SIGPIPE) || sigismember(&pending, SIGXFSZ);
    int err = 0;
    while (n && !err) {
        ssize_t w = write(fd, s, n);
        if (w > 0) {
            s += w;
            n -= (size_t)w;
        } else if (w == 0 || errno != EINTR) {
            err = w == 0 ? EIO : errno;
        }
    }
    if ((err == EPIPE || err == EFBIG) && !had) {
        static const struct timespec now = {0, 0};
        (void)sigtimedwait(&block, NULL, &now);
    }
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    errno = err;
    return !err;
}

static TJ_PRINTF(1, 0) void line(const char *fmt, va_list ap) {
    int saved = errno;
    static const char prefix[] = "tracejit: ";
    enum { HEAD = sizeof prefix - 1 };
    char small[1024], *text = small;
    va_list again;
    va_copy(again, ap);
    memcpy(small, prefix, HEAD);
    int n = vsnprintf(small + HEAD, sizeof small - HEAD, fmt, ap);
    if (n >= (int)(sizeof small - HEAD)) {
        char *big = tj_malloc(HEAD + (size_t)n + 1);
        if (big) {
            memcpy(big, prefix, HEAD);
            (void)vsnprintf(big + HEAD, (size_t)n + 1, fmt, again);
            text = big;
        } else {
            n = (int)(sizeof small - HEAD - 1);
        }
    }
    va_end(again);
    if (n >= 0) {
        text[HEAD + n] = '\n';
        (void)tj_write_all(STDERR_FILENO, text, HEAD + (size_t)n + 1);
    }
    if (text != small) {
        tj_free(text);
    }
    errno = saved;
}

// Written whatever the topics are.
static TJ_PRINTF(1, 2) void warn(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    line(fmt, ap);
    va_end(ap);
}

void tj_log(const struct tj_env *e, enum tj_log_topic t, const char *fmt, ...) {
    if (!tj_env_logs(e, t)) {
        return;
    }
    va_list ap;
    va_start(ap, fmt);
    line(fmt, ap);
    va_end(ap);
}

// ---- environment ----------------------------------------------------------------------------

// Variables are read again for each context; what is wrong with one is said once in a process.
enum variable { VAR_LOG, VAR_NO, VAR_DUMP, VAR_LLVM, VAR_CPU, VAR_DISABLE, VAR_CHECK, VAR_PERF, VAR_TIMELINE, VARS };
static const char *const variables[VARS] = {
    "TRACEJIT_LOG",     "TRACEJIT_NO",    "TRACEJIT_DUMP", "TRACEJIT_LLVM",     "TRACEJIT_CPU",
    "TRACEJIT_DISABLE", "TRACEJIT_CHECK", "TRACEJIT_PERF", "TRACEJIT_TIMELINE",
};
static _Atomic bool reported[VARS];

// A program that runs with more rights than its caller doesn't take orders from that caller's environment.
static const char *variable(enum variable v) {
    const char *s = secure_getenv(variables[v]);
    return s ? s : "";
}

// Bits of the words (separated by commas, colons or spaces) of a variable. all: what the word "all" stands for.
static uint32_t words(enum variable v, const char *const *names, int n, uint32_t all) {
    static const char separators[] = ",:; ";
    uint32_t bits = 0;
    bool unknown = false, quiet = atomic_load(&reported[v]);
    for (const char *s = variable(v); *s;) {
        size_t len = strcspn(s, separators);
        int i = 0;
        while (i < n && !(strlen(names[i]) == len && !memcmp(names[i], s, len))) {
            i++;
        }
        if (i < n) {
            bits |= 1u << i;
        } else if (all && len == 3 && !memcmp(s, "all", 3)) {
            bits |= all;
        } else if (len) {
            unknown = true;
            if (!quiet) {
                char known[256] = "";
                for (int k = 0, at = 0; k < n; k++) {
                    at += snprintf(known + at, sizeof known - (size_t)at, "%s%s", k ? ", " : "", names[k]);
                }
                warn("%s: unknown word '%.*s' (known: %s%s)", variables[v], (int)(len > 64 ? 64 : len), s, known,
                     all ? ", all" : "");
            }
        }
        s += len;
        s += strspn(s, separators);
    }
    if (unknown) {
        atomic_store(&reported[v], true);
    }
    return bits;
}

static void copy(enum variable v, char *out, size_t cap) {
    const char *s = variable(v);
    if (strlen(s) < cap) {
        strcpy(out, s);
        return;
    }
    out[0] = '\0';
    if (!atomic_exchange(&reported[v], true)) {
        warn("%s: ignored, longer than %zu bytes", variables[v], cap - 1);
    }
}

// A path, absolute: the host may change its directory before it is used.
static void copy_path(enum variable v, char *out, size_t cap) {
    copy(v, out, cap);
    char cwd[PATH_MAX];
    size_t n = strlen(out);
    if (!n || out[0] == '/' || !getcwd(cwd, sizeof cwd) || cwd[0] != '/') {
        return;
    }
    size_t dir = strlen(cwd);
    if (dir + 1 + n < cap) {
        memmove(out + dir + 1, out, n + 1);
        memcpy(out, cwd, dir);
        out[dir] = '/';
    }
}

void tj_env_read(struct tj_env *e) {
    *e = (struct tj_env){0};
    e->log = words(VAR_LOG, topics, TJ_LOG_TOPICS, (1u << TJ_LOG_TOPICS) - 1);
    e->kill = words(VAR_NO, kills, TJ_KILLS, 0);
    copy_path(VAR_DUMP, e->dump, sizeof e->dump);
    copy_path(VAR_TIMELINE, e->timeline, sizeof e->timeline);
    if (strchr(variable(VAR_LLVM), '/')) {
        copy_path(VAR_LLVM, e->llvm, sizeof e->llvm);
    } else { // a name that the loader searches for
        copy(VAR_LLVM, e->llvm, sizeof e->llvm);
    }
    if (words(VAR_CPU, levels, (int)TJ_COUNT(levels), 0)) {
        copy(VAR_CPU, e->cpu, sizeof e->cpu);
    }
    static const char *const off_on[] = {"0", "1"};
    e->disable = words(VAR_DISABLE, off_on, 2, 0) & 2;
    e->check = words(VAR_CHECK, off_on, 2, 0) & 2;
    e->perf = words(VAR_PERF, off_on, 2, 0) & 2;
}

// ---- dump files -----------------------------------------------------------------------------

void tj_dump(const struct tj_env *e, const char *name, const char *text, size_t n) {
    if (!e->dump[0]) {
        return;
    }
    int saved = errno;
    char path[PATH_MAX];
    int at = snprintf(path, sizeof path, "%s/", e->dump);
    int len = snprintf(path + at, sizeof path - (size_t)at, "%s", name);
    if (at + len >= (int)sizeof path) {
        warn("dump %.64s: path too long", name);
        return;
    }
    for (char *p = path + at; *p; p++) { // names hold region names, which are the host's
        if (*p == '/' || (unsigned char)*p < 0x20 || *p == 0x7F) {
            *p = '_';
        }
    }
    (void)mkdir(e->dump, 0777);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        warn("dump %s: %s", path, strerror(errno));
    } else {
        int bad = tj_write_all(fd, text, n) ? 0 : errno;
        if (close(fd) && !bad) {
            bad = errno;
        }
        if (bad) {
            warn("dump %s: %s", path, strerror(bad));
        }
    }
    errno = saved;
}
