// lib/dl.c: run-time loading of shared objects.
#include "dl.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <unistd.h>

// Path of the object this code is in, as the loader has it: the shared library, or the program it is linked into.
static bool loaded_path(char *buf, size_t cap) {
    Dl_info info;
    struct link_map *map = NULL;
    // A function pointer becomes an object pointer here as POSIX wants for dladdr.
    if (!dladdr1((void *)(uintptr_t)&loaded_path, &info, (void **)&map, RTLD_DL_LINKMAP)) {
        return false;
    }
    if (map && map->l_name && strchr(map->l_name, '/')) {
        return (size_t)snprintf(buf, cap, "%s", map->l_name) < cap;
    }
    // The main program has no name there, and argv[0] may be relative to a directory left since.
    ssize_t n = readlink("/proc/self/exe", buf, cap - 1);
    if (n <= 0) {
        return false;
    }
    buf[n] = '\0';
    return true;
}

// The same as the system has it: absolute whatever the working directory was at load time, links followed.
static bool mapped_path(char *buf, size_t cap) {
    FILE *f = fopen("/proc/self/maps", "re");
    if (!f) {
        return false;
    }
    char line[PATH_MAX + 128];
    bool found = false;
    while (!found && fgets(line, sizeof line, f)) {
        uintptr_t from, to;
        int at = 0;
        found = sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %*s %*s %*s %*s %n", &from, &to, &at) == 2 && at &&
                (uintptr_t)&mapped_path >= from && (uintptr_t)&mapped_path < to && line[at] == '/';
        if (found) {
            line[strcspn(line, "\n")] = '\0';
            found = (size_t)snprintf(buf, cap, "%s", line + at) < cap;
            break;
        }
    }
    (void)fclose(f);
    return found;
}

static void *open_path(const char *path, char *err, size_t cap) {
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!lib) {
        const char *why = dlerror();
        size_t n = strlen(err);
        snprintf(err + n, cap - n, "%s%s", n ? "; " : "", why ? why : path);
    }
    return lib;
}

static void *open_in(const char *dir, const char *name, char *err, size_t cap) {
    char path[PATH_MAX];
    if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, name) >= sizeof path || access(path, F_OK)) {
        return NULL; // a file that isn't there is no news; one that doesn't load is
    }
    return open_path(path, err, cap);
}

// The file `name` beside the object at `path`.
static void *open_beside(char *path, const char *name, char *err, size_t cap) {
    char *slash = strrchr(path, '/');
    if (!slash) {
        return NULL;
    }
    slash[slash == path] = '\0';
    return open_in(path, name, err, cap);
}

// The main program asks for no dynamic linker. Not all that it is asked is: a linker started by hand is no program's.
static int asks_for_linker(struct dl_phdr_info *info, size_t size, void *found) {
    (void)size;
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type == PT_INTERP) {
            *(bool *)found = true;
        }
    }
    return 1; // the first object is the program
}

bool tj_dl_static(void) {
    bool found = false;
    return dl_iterate_phdr(asks_for_linker, &found) == 1 && !found;
}

void *tj_dl_open(const char *env_path, const char *name, const char *const *dirs, char *err, size_t cap) {
    char dummy[1], path[PATH_MAX];
    if (!cap) {
        err = dummy;
        cap = 1;
    }
    err[0] = '\0';
    if (tj_dl_static()) {
        snprintf(err, cap, "a statically linked program can load no shared object; link it dynamically");
        return NULL;
    }
    if (env_path && env_path[0]) {
        return open_path(env_path, err, cap);
    }
    void *lib = loaded_path(path, sizeof path) ? open_beside(path, name, err, cap) : NULL;
    if (!lib && mapped_path(path, sizeof path)) {
        lib = open_beside(path, name, err, cap);
    }
    for (; !lib && dirs && *dirs; dirs++) {
        lib = open_in(*dirs, name, err, cap);
    }
    if (!lib) {
        lib = open_path(name, err, cap);
    }
    if (lib) {
        err[0] = '\0';
    }
    return lib;
}

void *tj_dl_sym(void *lib, const char *symbol) { return lib ? dlsym(lib, symbol) : NULL; }

void tj_dl_close(void *lib) {
    if (lib) {
        dlclose(lib);
    }
}
