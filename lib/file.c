// lib/file.c: small files as a whole: reading with a limit, replacing by renaming a new one; files written in pieces.
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static void say(char *why, size_t cap, const char *what, int error) {
    char text[100];
    (void)snprintf(why, cap, "%s: %s", what, strerror_r(error, text, sizeof text));
}

char *tj_file_read(const char *path, size_t limit, size_t *n, char *why, size_t cap) {
    int saved = errno, fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    char *p = NULL;
    *n = 0;
    if (fd < 0) {
        say(why, cap, "can't be opened", errno);
    } else if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
        (void)snprintf(why, cap, "is no regular file");
    } else if ((uint64_t)st.st_size > limit) {
        (void)snprintf(why, cap, "has %lld bytes, more than %zu", (long long)st.st_size, limit);
    } else if (!(p = tj_malloc((size_t)st.st_size + 1))) {
        (void)snprintf(why, cap, "%s", "");
    } else {
        ssize_t k = 1;
        while (*n < (size_t)st.st_size && (k > 0 || errno == EINTR)) {
            k = read(fd, p + *n, (size_t)st.st_size - *n);
            if (k == 0)
                break; // has become shorter
            if (k > 0)
                *n += (size_t)k;
        }
        if (k < 0) {
            say(why, cap, "can't be read", errno);
            tj_free(p);
            p = NULL;
        } else {
            p[*n] = '\0';
        }
    }
    if (fd >= 0)
        (void)close(fd);
    errno = saved;
    return p;
}

static bool write_all(int fd, const char *p, size_t n) {
    while (n) {
        ssize_t k = write(fd, p, n);
        if (k < 0 && errno != EINTR)
            return false;
        if (k > 0) {
            p += k;
            n -= (size_t)k;
        }
    }
    return true;
}

bool tj_file_replace(const char *path, const void *data, size_t n, char *why, size_t cap) {
    int saved = errno;
    size_t size = strlen(path) + sizeof ".XXXXXX";
    char *temp = tj_malloc(size);
    bool ok = false;
    if (!temp) {
        (void)snprintf(why, cap, "%s", "");
        return false;
    }
    (void)snprintf(temp, size, "%s.XXXXXX", path);
    int fd = mkostemp(temp, O_CLOEXEC);
    if (fd < 0) {
        say(why, cap, "can't be made", errno);
    } else {
        ok = write_all(fd, data, n) && !fchmod(fd, 0644);
        if (close(fd))
            ok = false;
        if (ok)
            ok = !rename(temp, path);
        if (!ok) {
            say(why, cap, "can't be written", errno);
            (void)unlink(temp);
        }
    }
    tj_free(temp);
    errno = saved;
    return ok;
}

int tj_file_create(const char *path, char *why, size_t cap) {
    int saved = errno, fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        say(why, cap, "can't be made", errno);
    errno = saved;
    return fd;
}

bool tj_file_write_at(int fd, uint64_t at, const void *data, size_t n) {
    int saved = errno;
    const char *p = data;
    while (n) {
        ssize_t k = pwrite(fd, p, n, (off_t)at);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            break;
        p += k;
        at += (uint64_t)k;
        n -= (size_t)k;
    }
    errno = saved;
    return n == 0;
}

void tj_file_cut(int fd, uint64_t size) {
    int saved = errno;
    int failed = ftruncate(fd, (off_t)size); // then nothing more can be done for the file
    (void)failed;
    errno = saved;
}

void tj_file_close(int fd) {
    int saved = errno;
    (void)close(fd);
    errno = saved;
}
