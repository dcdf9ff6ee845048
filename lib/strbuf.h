// lib/strbuf.h: growing text buffer for dumps, reports and messages.
#ifndef TJ_LIB_STRBUF_H
#define TJ_LIB_STRBUF_H
#include "base.h"

struct tj_strbuf {
    char *s;       // NUL-terminated once anything was added; NULL before
    size_t n, cap; // length without the NUL; capacity
    bool failed;   // out of memory; text is cut
};
void tj_sb_printf(struct tj_strbuf *b, const char *fmt, ...) TJ_PRINTF(2, 3);
void tj_sb_puts(struct tj_strbuf *b, const char *s);
void tj_sb_json(struct tj_strbuf *b, const char *s);                    // quoted and escaped JSON string
void tj_sb_html(struct tj_strbuf *b, const char *s);                    // escaped for HTML text and attributes
void tj_sb_dims(struct tj_strbuf *b, const int64_t *dims, size_t rank); // "[2, 3]"
void tj_sb_free(struct tj_strbuf *b);
// Numbers with a point on this thread, whatever the host's locale says. Nests; does nothing when out of memory.
struct tj_plain_numbers {
    void *plain, *before;
};
void tj_plain_numbers_enter(struct tj_plain_numbers *n);
void tj_plain_numbers_leave(const struct tj_plain_numbers *n);
#endif
