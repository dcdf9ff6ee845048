// lib/file.h: small files as a whole.
#ifndef TJ_LIB_FILE_H
#define TJ_LIB_FILE_H
#include "base.h"

// Reads a file of at most `limit` bytes into memory of the caller's (tj_free), with a NUL behind it. NULL: *why is what
// went wrong, in words; "" when out of memory.
char *tj_file_read(const char *path, size_t limit, size_t *n, char *why, size_t cap);
// Replaces the content of a file: readers see the old one or the new one. False: *why; the old one is as it was.
bool tj_file_replace(const char *path, const void *data, size_t n, char *why, size_t cap);
#endif
