// lib/unwind.h: tells the process's unwinder where the frames of generated code are described.
#ifndef TJ_LIB_UNWIND_H
#define TJ_LIB_UNWIND_H
#include "base.h"

struct tj_frames {
    const void *begin; // contents of an .eh_frame section, relocated, ended by four zero bytes; NULL: none
    size_t bytes;      // without these
    void *object;      // the unwinder's record of them
    void *lib;         // the unwinder
};
// Registers begin. TRACE_OK too where the process can have no unwinder that would be told (no libgcc_s): then nothing
// unwinds through the code. TRACE_ERR_MEMORY.
tj_status tj_frames_add(struct tj_frames *f);
void tj_frames_remove(struct tj_frames *f); // before the memory goes
#endif
