// lib/dl.h: run-time loading of shared objects.
#ifndef TJ_LIB_DL_H
#define TJ_LIB_DL_H
#include "base.h"

// Opens env_path alone when it isn't "": what the user named is loaded or reported, never replaced. Else the first that
// loads of: `name` beside this library, in each of dirs (NULL-terminated), plain `name`; RTLD_NOW | RTLD_LOCAL.
// NULL + message in err; always so in a program that is linked statically: what it loaded would bring a second C
// library.
void *tj_dl_open(const char *env_path, const char *name, const char *const *dirs, char *err, size_t cap);
bool tj_dl_static(void); // the program is linked statically
void *tj_dl_sym(void *lib, const char *symbol);
void tj_dl_close(void *lib);
#endif
