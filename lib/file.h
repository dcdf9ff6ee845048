// lib/file.h: small files as a whole; files that are written in pieces.
#ifndef TJ_LIB_FILE_H
#define TJ_LIB_FILE_H
#include "base.h"

// Reads a file of at most `limit` bytes into memory of the caller's (tj_free), with a NUL behind it. NULL: *why is what
// went wrong, in words; "" when out of memory.
char *tj_file_read(const char *path, size_t limit, size_t *n, char *why, size_t cap);
// Replaces the content of a file: readers see the old one or the new one. False: *why; the old one is as it was.
bool tj_file_replace(const char *path, const void *data, size_t n, char *why, size_t cap);
// An empty file to write to, -1: *why. Pieces go where the caller says; false: not all of it was written.
int tj_file_create(const char *path, char *why, size_t cap);
bool tj_file_write_at(int fd, uint64_t at, const void *data, size_t n);
void tj_file_cut(int fd, uint64_t size); // drops what lies behind
void tj_file_close(int fd);
#endif
