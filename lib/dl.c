// lib/dl.c: run-time loading of shared objects.
#include "dl.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <unistd.h>

// Directory of the object this code is in: the shared library, or the program it is linked into.
static bool own_dir(char *buf, size_t cap) {
    Dl_info info;
    struct link_map *map = NULL;
    // A function pointer becomes an object pointer here as POSIX wants for dladdr.
    if (!dladdr1((void *)(uintptr_t)&own_dir, &info, (void **)&map, RTLD_DL_LINKMAP)) {
        return false;
    }
    if (map && map->l_name && strchr(map->l_name, '/')) {
        if ((size_t)snprintf(buf, cap, "%s", map->l_name) >= cap) {
            return false;
        }
    } else { // the main program has no name there, and argv[0] may be relative to a directory left since
        ssize_t n = readlink("/proc/self/exe", buf, cap - 1);
        if (n <= 0) {
            return false;
        }
        buf[n] = '\0';
    }
    char *slash = strrchr(buf, '/');
    if (!slash) {
        return false;
    }
    slash[slash == buf] = '\0';
    return true;
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

void *tj_dl_open(const char *env_path, const char *name, const char *const *dirs, char *err, size_t cap) {
    char dummy[1], dir[PATH_MAX];
    if (!cap) {
        err = dummy;
        cap = 1;
    }
    err[0] = '\0';
    if (env_path && env_path[0]) {
        return open_path(env_path, err, cap);
    }
    void *lib = own_dir(dir, sizeof dir) ? open_in(dir, name, err, cap) : NULL;
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
