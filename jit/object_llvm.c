// jit/object_llvm.c: loads a relocatable ELF object into executable memory: lays out sections, relocates, seals.
#include <elf.h>
#include <stdio.h>

#include "emit_llvm.h"

enum { STUB = 16 }; // bytes of a jump to an address anywhere, or of an entry of the address table

struct symbol {
    const char *name;
    void *address;
    size_t bytes;
    bool global, function;
};
struct tj_object {
    struct symbol *symbols;
    size_t n, nnames;
    char *names;
};
struct load {
    const struct tj_module_host *host;
    const unsigned char *data;
    size_t n;
    const Elf64_Ehdr *eh;
    const Elf64_Shdr *sections;
    uint64_t *place; // offset of every allocated section in the mapping, UINT64_MAX: not loaded
    const Elf64_Sym *syms;
    size_t nsyms;
    const char *str;
    size_t nstr;
    uint64_t *stub; // offset of a symbol's stub, 0: none
    size_t used, stubs_end;
    unsigned frames; // section that describes frames for unwinding; 0: none
    unsigned char *base;
    void *(*external)(const char *name);
    char *err;
    size_t cap;
};

static tj_status broken(struct load *l, const char *what) {
    (void)snprintf(l->err, l->cap, "object file: %s", what);
    return TRACE_ERR_COMPILE;
}

static bool inside(const struct load *l, uint64_t off, uint64_t size) { return off <= l->n && size <= l->n - off; }

static const char *name_of(const struct load *l, const Elf64_Sym *s) {
    return s->st_name < l->nstr && memchr(l->str + s->st_name, 0, l->nstr - s->st_name) ? l->str + s->st_name : "";
}

static bool is_frames(const struct load *l, const Elf64_Shdr *s) {
    static const char name[] = ".eh_frame";
    if (l->eh->e_shstrndx >= l->eh->e_shnum) {
        return false;
    }
    const Elf64_Shdr *names = &l->sections[l->eh->e_shstrndx];
    return inside(l, names->sh_offset, names->sh_size) && s->sh_name < names->sh_size &&
           names->sh_size - s->sh_name >= sizeof name &&
           !memcmp(l->data + names->sh_offset + s->sh_name, name, sizeof name);
}

// Checks the headers, finds the symbol table, gives every loaded section its place.
static tj_status layout(struct load *l) {
    const Elf64_Ehdr *eh = l->eh = (const Elf64_Ehdr *)(const void *)l->data;
    if (l->n < sizeof *eh || memcmp(eh->e_ident, ELFMAG, SELFMAG) || eh->e_ident[EI_CLASS] != ELFCLASS64 ||
        eh->e_type != ET_REL || eh->e_shentsize != sizeof(Elf64_Shdr) || eh->e_shoff % 8 ||
        !inside(l, eh->e_shoff, (uint64_t)eh->e_shnum * sizeof(Elf64_Shdr))) {
        return broken(l, "not a relocatable ELF64");
    }
    l->sections = (const Elf64_Shdr *)(const void *)(l->data + eh->e_shoff);
    l->place = l->host->alloc((size_t)eh->e_shnum * sizeof *l->place + 1);
    if (!l->place) {
        return TRACE_ERR_MEMORY;
    }
    uint64_t at = 0;
    for (unsigned i = 0; i < eh->e_shnum; i++) {
        const Elf64_Shdr *s = &l->sections[i];
        l->place[i] = UINT64_MAX;
        if (s->sh_type != SHT_NOBITS && s->sh_type != SHT_NULL && !inside(l, s->sh_offset, s->sh_size)) {
            return broken(l, "section outside the file");
        }
        if (s->sh_type == SHT_SYMTAB) {
            if (s->sh_link >= eh->e_shnum || s->sh_offset % 8 ||
                !inside(l, l->sections[s->sh_link].sh_offset, l->sections[s->sh_link].sh_size)) {
                return broken(l, "symbol table");
            }
            l->syms = (const Elf64_Sym *)(const void *)(l->data + s->sh_offset);
            l->nsyms = s->sh_size / sizeof(Elf64_Sym);
            l->str = (const char *)l->data + l->sections[s->sh_link].sh_offset;
            l->nstr = l->sections[s->sh_link].sh_size;
        }
        bool frames = is_frames(l, s);
        if (!(s->sh_flags & SHF_ALLOC) || (s->sh_type != SHT_PROGBITS && s->sh_type != SHT_NOBITS && !frames)) {
            continue;
        }
        if (s->sh_flags & (SHF_WRITE | SHF_TLS)) {
            if (s->sh_size) {
                return broken(l, "writable data");
            }
            continue;
        }
        uint64_t align = s->sh_addralign ? s->sh_addralign : 1;
        if (align > 4096 || (align & (align - 1)) || s->sh_size > (UINT64_C(1) << 30)) {
            return broken(l, "section size");
        }
        at = (at + align - 1) & ~(align - 1);
        l->place[i] = at;
        at += s->sh_size;
        if (frames) {
            if (l->frames) {
                return broken(l, "frames in two places");
            }
            l->frames = i;
            at += 4; // the zero that ends them
        }
        if (at > (UINT64_C(1) << 30)) {
            return broken(l, "too large");
        }
    }
    l->used = (size_t)((at + STUB - 1) & ~(uint64_t)(STUB - 1));
    return l->syms ? TRACE_OK : broken(l, "no symbol table");
}

// Address of symbol i once loaded; NULL when it isn't defined here.
static unsigned char *defined(const struct load *l, size_t i) {
    const Elf64_Sym *s = &l->syms[i];
    if (s->st_shndx == SHN_UNDEF || s->st_shndx >= l->eh->e_shnum || l->place[s->st_shndx] == UINT64_MAX ||
        s->st_value > l->sections[s->st_shndx].sh_size) {
        return NULL;
    }
    return l->base + l->place[s->st_shndx] + s->st_value;
}

static bool wants_table(unsigned machine, unsigned type) {
    return machine == EM_X86_64 &&
           (type == R_X86_64_GOTPCREL || type == R_X86_64_GOTPCRELX || type == R_X86_64_REX_GOTPCRELX);
}

// Counts the stubs that relocations need, so that one mapping holds everything.
static tj_status count_stubs(struct load *l) {
    l->stub = l->host->alloc(l->nsyms * sizeof *l->stub + 1);
    if (!l->stub) {
        return TRACE_ERR_MEMORY;
    }
    memset(l->stub, 0, l->nsyms * sizeof *l->stub);
    size_t at = l->used;
    for (unsigned i = 0; i < l->eh->e_shnum; i++) {
        const Elf64_Shdr *s = &l->sections[i];
        if (s->sh_type == SHT_REL) {
            return broken(l, "relocations without addends");
        }
        if (s->sh_type != SHT_RELA || s->sh_info >= l->eh->e_shnum || l->place[s->sh_info] == UINT64_MAX) {
            continue;
        }
        if (s->sh_offset % 8) {
            return broken(l, "relocations");
        }
        const Elf64_Rela *r = (const Elf64_Rela *)(const void *)(l->data + s->sh_offset);
        for (size_t k = 0; k < s->sh_size / sizeof *r; k++) {
            size_t sym = ELF64_R_SYM(r[k].r_info);
            if (sym >= l->nsyms) {
                return broken(l, "symbol index");
            }
            bool undefined = l->syms[sym].st_shndx == SHN_UNDEF;
            if ((undefined || wants_table(l->eh->e_machine, (unsigned)ELF64_R_TYPE(r[k].r_info))) && !l->stub[sym]) {
                l->stub[sym] = at;
                at += 2 * STUB; // a jump and a table entry
            }
        }
    }
    l->stubs_end = at;
    return TRACE_OK;
}

static tj_status fill_stubs(struct load *l) {
    for (size_t i = 0; i < l->nsyms; i++) {
        if (!l->stub[i]) {
            continue;
        }
        void *to = defined(l, i);
        if (!to) {
            const char *name = name_of(l, &l->syms[i]);
            to = l->external(name);
            if (!to) {
                (void)snprintf(l->err, l->cap, "emitted code calls '%s', which the library doesn't have", name);
                return TRACE_ERR_COMPILE;
            }
        }
        unsigned char *p = l->base + l->stub[i];
        if (l->eh->e_machine == EM_X86_64) {
            static const unsigned char jump[] = {0xff, 0x25, 10, 0, 0, 0}; // jmp *10(%rip): the table entry
            memcpy(p, jump, sizeof jump);
        } else {
            static const uint32_t jump[] = {0x58000090, 0xd61f0200}; // ldr x16, .+16; br x16
            memcpy(p, jump, sizeof jump);
        }
        memcpy(p + STUB, &to, sizeof to);
    }
    return TRACE_OK;
}

static bool put32(unsigned char *p, int64_t v, bool is_signed) {
    if (is_signed ? v != (int32_t)v : v != (int64_t)(uint32_t)v) {
        return false;
    }
    uint32_t w = (uint32_t)v;
    memcpy(p, &w, 4);
    return true;
}

static bool relocate_x86(unsigned type, unsigned char *p, int64_t s, int64_t a, int64_t table) {
    int64_t at = (int64_t)(intptr_t)p;
    switch (type) {
    case R_X86_64_64: {
        int64_t v = s + a;
        memcpy(p, &v, 8);
        return true;
    }
    case R_X86_64_PC32:
    case R_X86_64_PLT32: return put32(p, s + a - at, true);
    case R_X86_64_32: return put32(p, s + a, false);
    case R_X86_64_32S: return put32(p, s + a, true);
    case R_X86_64_PC64: {
        int64_t v = s + a - at;
        memcpy(p, &v, 8);
        return true;
    }
    case R_X86_64_GOTPCREL:
    case R_X86_64_GOTPCRELX:
    case R_X86_64_REX_GOTPCRELX: return put32(p, table + a - at, true);
    default: return false;
    }
}

static bool patch(unsigned char *p, uint32_t keep, uint32_t bits) {
    uint32_t w;
    memcpy(&w, p, 4);
    w = (w & keep) | bits;
    memcpy(p, &w, 4);
    return true;
}

static bool relocate_arm64(unsigned type, unsigned char *p, int64_t s, int64_t a) {
    int64_t at = (int64_t)(intptr_t)p, v = s + a, low = v & 4095;
    switch (type) {
    case R_AARCH64_ABS64: memcpy(p, &v, 8); return true;
    case R_AARCH64_PREL32: return put32(p, v - at, true);
    case R_AARCH64_PREL64:
        v -= at;
        memcpy(p, &v, 8);
        return true;
    case R_AARCH64_CALL26:
    case R_AARCH64_JUMP26:
        v -= at;
        return v >= -(INT64_C(1) << 27) && v < (INT64_C(1) << 27) &&
               patch(p, 0xfc000000, (uint32_t)(v >> 2) & 0x3ffffff);
    case R_AARCH64_ADR_PREL_PG_HI21:
        v = (v >> 12) - (at >> 12);
        return v >= -(1 << 20) && v < (1 << 20) &&
               patch(p, 0x9f00001f, ((uint32_t)v & 3) << 29 | ((uint32_t)(v >> 2) & 0x7ffff) << 5);
    case R_AARCH64_ADD_ABS_LO12_NC:
    case R_AARCH64_LDST8_ABS_LO12_NC: return patch(p, 0xffc003ff, (uint32_t)low << 10);
    case R_AARCH64_LDST16_ABS_LO12_NC: return patch(p, 0xffc003ff, (uint32_t)(low >> 1) << 10);
    case R_AARCH64_LDST32_ABS_LO12_NC: return patch(p, 0xffc003ff, (uint32_t)(low >> 2) << 10);
    case R_AARCH64_LDST64_ABS_LO12_NC: return patch(p, 0xffc003ff, (uint32_t)(low >> 3) << 10);
    case R_AARCH64_LDST128_ABS_LO12_NC: return patch(p, 0xffc003ff, (uint32_t)(low >> 4) << 10);
    default: return false;
    }
}

static tj_status relocate(struct load *l) {
    for (unsigned i = 0; i < l->eh->e_shnum; i++) {
        const Elf64_Shdr *s = &l->sections[i];
        if (s->sh_type != SHT_RELA || s->sh_info >= l->eh->e_shnum || l->place[s->sh_info] == UINT64_MAX) {
            continue;
        }
        const Elf64_Shdr *target = &l->sections[s->sh_info];
        const Elf64_Rela *r = (const Elf64_Rela *)(const void *)(l->data + s->sh_offset);
        for (size_t k = 0; k < s->sh_size / sizeof *r; k++) {
            size_t sym = ELF64_R_SYM(r[k].r_info);
            unsigned type = (unsigned)ELF64_R_TYPE(r[k].r_info);
            unsigned char *to = defined(l, sym);
            if (r[k].r_offset > target->sh_size || target->sh_size - r[k].r_offset < 4 || (!to && !l->stub[sym])) {
                return broken(l, "relocation");
            }
            to = to ? to : l->base + l->stub[sym];
            unsigned char *p = l->base + l->place[s->sh_info] + r[k].r_offset;
            int64_t addr = (int64_t)(intptr_t)to, table = (int64_t)(intptr_t)(l->base + l->stub[sym] + STUB);
            bool ok = l->eh->e_machine == EM_X86_64    ? relocate_x86(type, p, addr, r[k].r_addend, table)
                      : l->eh->e_machine == EM_AARCH64 ? relocate_arm64(type, p, addr, r[k].r_addend)
                                                       : false;
            if (!ok) {
                (void)snprintf(l->err, l->cap, "object file: relocation type %u of machine %u", type, l->eh->e_machine);
                return TRACE_ERR_COMPILE;
            }
        }
    }
    return TRACE_OK;
}

static tj_status keep_symbols(struct load *l, struct tj_object **out) {
    struct tj_object *o = l->host->alloc(sizeof *o + l->nsyms * sizeof *o->symbols + l->nstr + 1);
    if (!o) {
        return TRACE_ERR_MEMORY;
    }
    o->symbols = (struct symbol *)(void *)(o + 1);
    o->names = (char *)(o->symbols + l->nsyms);
    memcpy(o->names, l->str, l->nstr);
    o->names[l->nstr] = 0;
    o->nnames = l->nstr + 1;
    o->n = 0;
    for (size_t i = 0; i < l->nsyms; i++) {
        const Elf64_Sym *s = &l->syms[i];
        bool global = ELF64_ST_BIND(s->st_info) == STB_GLOBAL, function = ELF64_ST_TYPE(s->st_info) == STT_FUNC;
        if ((global || function) && defined(l, i) && s->st_name < l->nstr) {
            o->symbols[o->n++] =
                (struct symbol){o->names + s->st_name, defined(l, i), (size_t)s->st_size, global, function};
        }
    }
    *out = o;
    return TRACE_OK;
}

static tj_status load(struct load *l, struct tj_exec *out, struct tj_object **symbols) {
    tj_status st = layout(l);
    st = st ? st : count_stubs(l);
    st = st ? st : l->host->exec_reserve(l->stubs_end, out);
    if (st) {
        return st;
    }
    l->base = out->base;
    for (unsigned i = 0; i < l->eh->e_shnum; i++) {
        const Elf64_Shdr *s = &l->sections[i];
        if (l->place[i] != UINT64_MAX && s->sh_type != SHT_NOBITS) {
            memcpy(l->base + l->place[i], l->data + s->sh_offset, (size_t)s->sh_size);
        }
    }
    st = fill_stubs(l);
    st = st ? st : relocate(l);
    st = st ? st : keep_symbols(l, symbols);
    if (l->frames) {
        out->frames.begin = l->base + l->place[l->frames];
        out->frames.bytes = (size_t)l->sections[l->frames].sh_size;
    }
    return st ? st : l->host->exec_seal(out);
}

tj_status tj_object_load(const struct tj_module_host *host, const void *data, size_t n, struct tj_exec *out,
                         void *(*external)(const char *name), struct tj_object **symbols, char *err, size_t cap) {
    struct load l = {.host = host, .data = data, .n = n, .external = external, .err = err, .cap = cap};
    *symbols = NULL;
    *out = (struct tj_exec){0};
    err[0] = 0;
    tj_status st = load(&l, out, symbols);
    host->free(l.place);
    host->free(l.stub);
    if (st) {
        if (!err[0]) {
            (void)snprintf(err, cap, "%s",
                           st == TRACE_ERR_MEMORY ? "out of memory" : "the system forbids executable memory");
        }
        tj_object_free(host, *symbols);
        *symbols = NULL;
        if (out->base) {
            host->exec_unmap(out);
        }
        *out = (struct tj_exec){0};
    }
    return st;
}

void *tj_object_lookup(const struct tj_object *o, const char *name) {
    for (size_t i = 0; i < o->n; i++) {
        if (o->symbols[i].global && !strcmp(o->symbols[i].name, name)) {
            return o->symbols[i].address;
        }
    }
    return NULL;
}

void tj_object_symbols(const struct tj_module_host *host, const struct tj_object *o, struct tj_code_symbol **out,
                       size_t *n) {
    struct tj_code_symbol *s = host->alloc(o->n * sizeof *s + o->nnames);
    *out = s;
    *n = 0;
    if (!s) {
        return;
    }
    char *names = (char *)(s + o->n);
    memcpy(names, o->names, o->nnames);
    for (size_t i = 0; i < o->n; i++) {
        if (o->symbols[i].function) {
            s[(*n)++] = (struct tj_code_symbol){names + (o->symbols[i].name - o->names), o->symbols[i].address,
                                                o->symbols[i].bytes};
        }
    }
}

void tj_object_free(const struct tj_module_host *host, struct tj_object *o) {
    if (o) {
        host->free(o);
    }
}
