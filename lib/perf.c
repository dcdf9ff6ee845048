// lib/perf.c: the perf map of this process, and GDB's list of object files in memory.
#include "perf.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log.h"
#include "threads.h"

// ---- GDB's interface: names and layouts are its
// -----------------------------------------------------------------------

enum { JIT_NOACTION, JIT_REGISTER, JIT_UNREGISTER };
struct jit_code_entry {
    struct jit_code_entry *next_entry, *prev_entry;
    const char *symfile_addr;
    uint64_t symfile_size;
};
struct jit_descriptor {
    uint32_t version, action_flag;
    struct jit_code_entry *relevant_entry, *first_entry;
};
extern struct jit_descriptor __jit_debug_descriptor;
struct jit_descriptor __jit_debug_descriptor = {1, JIT_NOACTION, NULL, NULL};

void __jit_debug_register_code(void);
__attribute__((noinline, used)) void __jit_debug_register_code(void) { __asm__ volatile("" ::: "memory"); }

// One a mapping of code; its object file and the lines of the perf map follow it.
struct debug {
    struct jit_code_entry entry; // first: GDB's list is the list of these
    uint32_t process;            // whose perf map has it
    size_t nlines;
    char *lines;
};
static tj_mutex lock; // of the list

static void tell(uint32_t action, struct jit_code_entry *e) {
    __jit_debug_descriptor.action_flag = action;
    __jit_debug_descriptor.relevant_entry = e;
    __jit_debug_register_code();
    __jit_debug_descriptor.action_flag = JIT_NOACTION;
    __jit_debug_descriptor.relevant_entry = NULL;
}

// ---- an object file with symbols and frames
// ---------------------------------------------------------------------------

enum { S_NULL, S_TEXT, S_FRAMES, S_SYMBOLS, S_NAMES, SECTIONS };
static const char section_names[] = "\0.text\0.eh_frame\0.symtab\0.strtab";
enum { AT_TEXT = 1, AT_FRAMES = 7, AT_SYMBOLS = 17, AT_NAMES = 25 };
#if defined __aarch64__
#define MACHINE EM_AARCH64
#else
#define MACHINE EM_X86_64
#endif

struct image {
    Elf64_Ehdr header;
    Elf64_Shdr sections[SECTIONS];
};

static size_t clean_name(const char *from, char *to) {
    size_t n = 0;
    for (; from[n]; n++) {
        unsigned char c = (unsigned char)from[n];
        bool keep = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || strchr("_.:()+-", c);
        to[n] = keep ? (char)c : '_';
    }
    to[n] = '\0';
    return n + 1;
}

// A relocatable file whose sections have addresses: the code itself stays where it is, frames are copied.
static void fill_image(unsigned char *at, const struct tj_exec *code, const struct tj_code_symbol *symbols, size_t n) {
    struct image *m = (struct image *)(void *)at;
    size_t frames = sizeof *m, syms = (frames + code->frames.bytes + 7) & ~(size_t)7;
    size_t names = syms + (n + 1) * sizeof(Elf64_Sym), used = sizeof section_names;
    memcpy(m->header.e_ident, ELFMAG, SELFMAG);
    m->header.e_ident[EI_CLASS] = ELFCLASS64;
    m->header.e_ident[EI_DATA] = ELFDATA2LSB;
    m->header.e_ident[EI_VERSION] = EV_CURRENT;
    m->header.e_type = ET_REL;
    m->header.e_machine = MACHINE;
    m->header.e_version = EV_CURRENT;
    m->header.e_shoff = offsetof(struct image, sections);
    m->header.e_ehsize = sizeof m->header;
    m->header.e_shentsize = sizeof m->sections[0];
    m->header.e_shnum = SECTIONS;
    m->header.e_shstrndx = S_NAMES;
    Elf64_Sym *s = (Elf64_Sym *)(void *)(at + syms);
    memcpy(at + names, section_names, sizeof section_names);
    for (size_t i = 0; i < n; i++) {
        s[i + 1] = (Elf64_Sym){.st_name = (Elf64_Word)used,
                               .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC),
                               .st_shndx = S_TEXT,
                               .st_value = (uintptr_t)symbols[i].at - (uintptr_t)code->base,
                               .st_size = symbols[i].bytes};
        used += clean_name(symbols[i].name, (char *)at + names + used);
    }
    m->sections[S_TEXT] = (Elf64_Shdr){.sh_name = AT_TEXT,
                                       .sh_type = SHT_NOBITS,
                                       .sh_flags = SHF_ALLOC | SHF_EXECINSTR,
                                       .sh_addr = (uintptr_t)code->base,
                                       .sh_size = code->bytes,
                                       .sh_addralign = 16};
    m->sections[S_FRAMES] = (Elf64_Shdr){.sh_name = AT_FRAMES,
                                         .sh_type = SHT_PROGBITS,
                                         .sh_flags = SHF_ALLOC,
                                         .sh_addr = (uintptr_t)code->frames.begin,
                                         .sh_offset = frames,
                                         .sh_size = code->frames.bytes,
                                         .sh_addralign = 8};
    m->sections[S_SYMBOLS] = (Elf64_Shdr){.sh_name = AT_SYMBOLS,
                                          .sh_type = SHT_SYMTAB,
                                          .sh_offset = syms,
                                          .sh_size = (n + 1) * sizeof(Elf64_Sym),
                                          .sh_link = S_NAMES,
                                          .sh_info = 1,
                                          .sh_addralign = 8,
                                          .sh_entsize = sizeof(Elf64_Sym)};
    m->sections[S_NAMES] = (Elf64_Shdr){
        .sh_name = AT_NAMES, .sh_type = SHT_STRTAB, .sh_offset = names, .sh_size = used, .sh_addralign = 1};
    if (code->frames.bytes)
        memcpy(at + frames, code->frames.begin, code->frames.bytes);
}

// ---- the perf map
// -----------------------------------------------------------------------------------------------------

// In /tmp, which others write to as well: only a plain file of this user's is appended to.
static bool append(const char *text, size_t n) {
    char path[64];
    (void)snprintf(path, sizeof path, "/tmp/perf-%ld.map", (long)getpid());
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0644);
    if (fd < 0)
        return false;
    struct stat st;
    bool ok = !fstat(fd, &st);
    if (ok && (!S_ISREG(st.st_mode) || st.st_uid != geteuid())) {
        errno = EPERM;
        ok = false;
    }
    ok = ok && tj_write_all(fd, text, n);
    int err = errno;
    if (close(fd) && ok)
        return false;
    errno = err;
    return ok;
}

// A child of fork has a map of its own, which starts with the code it inherited. The lock is held.
static bool write_maps(void) {
    bool ok = true;
    for (struct jit_code_entry *e = __jit_debug_descriptor.first_entry; e; e = e->next_entry) {
        struct debug *d = (struct debug *)(void *)e;
        if (d->process == tj_process())
            continue;
        if (append(d->lines, d->nlines))
            d->process = tj_process();
        else
            ok = false; // the next one tries again
    }
    return ok;
}

bool tj_perf_add(struct tj_exec *code, const struct tj_code_symbol *symbols, size_t n) {
    size_t names = 0, image = sizeof(struct image) + code->frames.bytes + 8 + (n + 1) * sizeof(Elf64_Sym);
    for (size_t i = 0; i < n; i++)
        names += strlen(symbols[i].name) + 1;
    image += sizeof section_names + names;
    size_t lines = names + n * 40 + 1, head = (sizeof(struct debug) + 15) & ~(size_t)15;
    struct debug *d = tj_calloc(1, head + image + lines);
    if (!d) {
        errno = ENOMEM;
        return false;
    }
    unsigned char *at = (unsigned char *)d + head;
    fill_image(at, code, symbols, n);
    d->entry.symfile_addr = (const char *)at;
    d->entry.symfile_size = image;
    d->lines = (char *)at + image;
    for (size_t i = 0; i < n; i++) {
        d->nlines += (size_t)snprintf(d->lines + d->nlines, 40, "%lx %lx ", (unsigned long)(uintptr_t)symbols[i].at,
                                      (unsigned long)symbols[i].bytes);
        d->nlines += clean_name(symbols[i].name, d->lines + d->nlines);
        d->lines[d->nlines - 1] = '\n';
    }
    int saved = errno;
    (void)tj_lock(&lock);
    struct jit_code_entry *first = __jit_debug_descriptor.first_entry;
    d->entry.next_entry = first;
    if (first)
        first->prev_entry = &d->entry;
    __jit_debug_descriptor.first_entry = &d->entry;
    tell(JIT_REGISTER, &d->entry);
    bool ok = write_maps();
    tj_unlock(&lock);
    code->debug = d;
    if (ok)
        errno = saved;
    return ok;
}

void tj_perf_remove(void *debug) {
    struct debug *d = debug;
    if (!d)
        return;
    (void)tj_lock(&lock);
    if (d->entry.prev_entry)
        d->entry.prev_entry->next_entry = d->entry.next_entry;
    else
        __jit_debug_descriptor.first_entry = d->entry.next_entry;
    if (d->entry.next_entry)
        d->entry.next_entry->prev_entry = d->entry.prev_entry;
    tell(JIT_UNREGISTER, &d->entry);
    tj_unlock(&lock);
    tj_free(d);
}
