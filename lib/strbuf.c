// lib/strbuf.c: growing text buffer.
#include "strbuf.h"

#include <errno.h>
#include <inttypes.h>
#include <locale.h>
#include <stdarg.h>
#include <stdio.h>

// Room for n more bytes and the NUL.
static bool reserve(struct tj_strbuf *b, size_t n) {
    if (b->failed || n >= PTRDIFF_MAX - b->n) {
        b->failed = true;
        return false;
    }
    size_t need = b->n + n + 1;
    if (need <= b->cap) {
        return true;
    }
    size_t cap = b->cap < 128 ? 256 : b->cap * 2;
    if (cap < need) {
        cap = need;
    }
    char *s = tj_realloc(b->s, cap);
    if (!s) {
        b->failed = true;
        return false;
    }
    b->s = s;
    b->cap = cap;
    return true;
}

void tj_sb_printf(struct tj_strbuf *b, const char *fmt, ...) {
    if (!reserve(b, 0)) {
        return;
    }
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(b->s + b->n, b->cap - b->n, fmt, ap);
    if (n < 0) {
        b->failed = true;
        b->s[b->n] = '\0';
    } else if ((size_t)n < b->cap - b->n) {
        b->n += (size_t)n;
    } else if (reserve(b, (size_t)n)) {
        (void)vsnprintf(b->s + b->n, b->cap - b->n, fmt, again);
        b->n += (size_t)n;
    } else {
        b->s[b->n] = '\0';
    }
    va_end(again);
    va_end(ap);
}

static void append(struct tj_strbuf *b, const char *s, size_t n) {
    if (reserve(b, n)) {
        memcpy(b->s + b->n, s, n);
        b->n += n;
        b->s[b->n] = '\0';
    }
}

void tj_sb_puts(struct tj_strbuf *b, const char *s) { append(b, s, strlen(s)); }

// Bytes of the well-formed UTF-8 sequence at s, 0 when there is none.
static size_t utf8(const unsigned char *s) {
    size_t n = s[0] < 0x80                   ? 1
               : s[0] >= 0xC2 && s[0] < 0xE0 ? 2
               : (s[0] & 0xF0) == 0xE0       ? 3
               : s[0] >= 0xF0 && s[0] < 0xF5 ? 4
                                             : 0;
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xC0) != 0x80) {
            return 0;
        }
    }
    bool overlong = (s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xF0 && s[1] < 0x90);
    bool surrogate = s[0] == 0xED && s[1] >= 0xA0, beyond = s[0] == 0xF4 && s[1] >= 0x90;
    return overlong || surrogate || beyond ? 0 : n;
}

// Names come from the host: bytes that aren't UTF-8 become U+FFFD, so the text always parses.
void tj_sb_json(struct tj_strbuf *b, const char *s) {
    append(b, "\"", 1);
    for (const unsigned char *p = (const unsigned char *)s; *p;) {
        size_t n = utf8(p);
        if (n == 0) {
            tj_sb_puts(b, "\\ufffd");
            n = 1;
        } else if (*p == '"' || *p == '\\') {
            append(b, (const char[]){'\\', (char)*p}, 2);
        } else if (*p < 0x20 || *p == 0x7F) {
            tj_sb_printf(b, "\\u%04x", *p);
        } else {
            append(b, (const char *)p, n);
        }
        p += n;
    }
    append(b, "\"", 1);
}

// Text and attribute values alike. Control characters, which no page may hold, become U+FFFD as broken bytes do.
void tj_sb_html(struct tj_strbuf *b, const char *s) {
    for (const unsigned char *p = (const unsigned char *)s; *p;) {
        size_t n = utf8(p);
        const char *as = *p == '&'   ? "&amp;"
                         : *p == '<' ? "&lt;"
                         : *p == '>' ? "&gt;"
                         : *p == '"' ? "&quot;"
                         : *p == 39  ? "&#39;"
                                     : NULL;
        if (n == 0 || *p == 0x7F || (*p < 0x20 && *p != '\n' && *p != '\t')) {
            tj_sb_puts(b, "\xEF\xBF\xBD");
            n = 1;
        } else if (as) {
            tj_sb_puts(b, as);
        } else {
            append(b, (const char *)p, n);
        }
        p += n;
    }
}

void tj_sb_dims(struct tj_strbuf *b, const int64_t *dims, size_t rank) {
    append(b, "[", 1);
    for (size_t i = 0; i < rank; i++) {
        tj_sb_printf(b, i ? ", %" PRId64 : "%" PRId64, dims[i]);
    }
    append(b, "]", 1);
}

void tj_sb_free(struct tj_strbuf *b) {
    tj_free(b->s);
    *b = (struct tj_strbuf){0};
}

void tj_plain_numbers_enter(struct tj_plain_numbers *n) {
    int saved = errno;
    locale_t c = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
    n->plain = (void *)c;
    n->before = c ? (void *)uselocale(c) : NULL;
    errno = saved;
}

void tj_plain_numbers_leave(const struct tj_plain_numbers *n) {
    if (n->plain) {
        (void)uselocale((locale_t)n->before);
        freelocale((locale_t)n->plain);
    }
}
