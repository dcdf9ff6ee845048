// lib/unwind.c: registers frame descriptions with the unwinder of the process, libgcc_s.
//
// backtrace, C++ exceptions and profilers all go through that one shared object, so it is looked for by name rather
// than linked: a copy of it inside this library would be asked by nobody. A reference is held while anything is
// registered, and none is left after that.
#include "unwind.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>

#define UNWINDER "libgcc_s.so.1"
#define RECORD (24 * sizeof(void *)) // the unwinder's own takes 6 to 8

typedef void add_fn(const void *begin, void *record);
typedef void *remove_fn(const void *begin);

// The unwinder's lock isn't for signal handlers: one that unwinds must not find this thread in the middle.
static void block_signals(sigset_t *old) {
    sigset_t all;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, old);
}

tj_status tj_frames_add(struct tj_frames *f) {
    add_fn *add;
    uint32_t first = 0;
    int saved = errno;
    f->object = f->lib = NULL;
    if (f->begin && f->bytes >= sizeof first)
        memcpy(&first, f->begin, sizeof first);
    if (!first)
        return TRACE_OK; // nothing is described
    f->object = tj_calloc(1, RECORD);
    if (!f->object)
        return tj_fail(TRACE_ERR_MEMORY, "out of memory for the frames of compiled code");
    f->lib = dlopen(UNWINDER, RTLD_LAZY | RTLD_LOCAL);
    void *sym = f->lib && dlsym(f->lib, "__deregister_frame_info") ? dlsym(f->lib, "__register_frame_info") : NULL;
    if (sym) {
        sigset_t old;
        memcpy(&add, &sym, sizeof add);
        block_signals(&old);
        add(f->begin, f->object);
        (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    } else {
        tj_free(f->object);
        f->object = NULL;
        if (f->lib)
            (void)dlclose(f->lib);
        f->lib = NULL;
    }
    errno = saved;
    return TRACE_OK;
}

void tj_frames_remove(struct tj_frames *f) {
    if (f->object) {
        remove_fn *forget;
        sigset_t old;
        int saved = errno;
        void *sym = dlsym(f->lib, "__deregister_frame_info");
        memcpy(&forget, &sym, sizeof forget);
        block_signals(&old);
        (void)forget(f->begin);
        (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
        (void)dlclose(f->lib);
        errno = saved;
    }
    tj_free(f->object);
    *f = (struct tj_frames){0};
}
