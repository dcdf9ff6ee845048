/* A small JSON reader for test data: RFC 8259 without surrogate pairs, nesting up to 64. */
#include "json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct reader {
    char *p;
    const char *error;
};

static struct json *value(struct reader *r, int depth);

static void blanks(struct reader *r) {
    while (*r->p == ' ' || *r->p == '\n' || *r->p == '\t' || *r->p == '\r')
        r->p++;
}

/* A string, unescaped in place; NULL on error. r->p is at the opening quote. */
static char *string(struct reader *r) {
    if (*r->p != '"')
        return r->error = "a string was expected", NULL;
    char *start = ++r->p, *to = start;
    while (*r->p != '"') {
        unsigned c = (unsigned char)*r->p++;
        if (c < ' ')
            return r->error = "string without end, or a control character", NULL;
        if (c == '\\') {
            static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";
            const char *e = *r->p ? strchr(from, *r->p) : NULL;
            if (e) {
                c = (unsigned char)into[e - from];
                r->p++;
            } else {
                char digits[5] = {0}, *end;
                if (*r->p != 'u')
                    return r->error = "unknown escape", NULL;
                strncpy(digits, r->p + 1, 4);
                c = (unsigned)strtoul(digits, &end, 16);
                if (end != digits + 4 || !c || (c >= 0xd800 && c < 0xe000))
                    return r->error = "bad \\u escape", NULL;
                r->p += 5;
                if (c >= 0x800)
                    *to++ = (char)(0xe0 | c >> 12);
                if (c >= 0x80)
                    *to++ = (char)(c >= 0x800 ? 0x80 | (c >> 6 & 63) : 0xc0 | c >> 6);
                if (c >= 0x80)
                    c = 0x80 | (c & 63);
            }
        }
        *to++ = (char)c;
    }
    r->p++;
    *to = 0;
    return start;
}

static bool number(struct reader *r, struct json *j) {
    char *end;
    size_t n = strspn(r->p, "+-0123456789.eE");
    if (!n)
        return r->error = "a value was expected", false;
    errno = 0;
    j->kind = JSON_NUMBER;
    j->f = strtod(r->p, &end);
    if (end != r->p + n)
        return r->error = "malformed number", false;
    errno = 0;
    j->i = strtoll(r->p, &end, 10);
    j->integer = end == r->p + n && errno == 0;
    r->p += n;
    return true;
}

static bool list(struct reader *r, struct json *j, int depth, char close) {
    struct json **tail = &j->child;
    j->kind = close == '}' ? JSON_OBJECT : JSON_ARRAY;
    r->p++;
    for (blanks(r); *r->p != close; blanks(r)) {
        char *key = NULL;
        if (j->n) {
            if (*r->p++ != ',')
                return r->error = "',' was expected", false;
            blanks(r);
        }
        if (close == '}') {
            if (!(key = string(r)))
                return false;
            blanks(r);
            if (*r->p++ != ':')
                return r->error = "':' was expected", false;
        }
        struct json *element = value(r, depth + 1);
        if (!element)
            return false;
        element->key = key;
        *tail = element;
        tail = &element->next;
        j->n++;
    }
    r->p++;
    return true;
}

static struct json *value(struct reader *r, int depth) {
    struct json *j = calloc(1, sizeof *j);
    bool ok = true;
    if (!j || depth > 64) {
        r->error = j ? "nested too deeply" : "out of memory";
        free(j);
        return NULL;
    }
    blanks(r);
    if (*r->p == '{' || *r->p == '[') {
        ok = list(r, j, depth, *r->p == '{' ? '}' : ']');
    } else if (*r->p == '"') {
        j->kind = JSON_STRING;
        ok = (j->text = string(r)) != NULL;
    } else if (!strncmp(r->p, "true", 4) || !strncmp(r->p, "null", 4)) {
        j->kind = *r->p == 't' ? JSON_BOOL : JSON_NULL;
        j->i = *r->p == 't';
        r->p += 4;
    } else if (!strncmp(r->p, "false", 5)) {
        j->kind = JSON_BOOL;
        r->p += 5;
    } else {
        ok = number(r, j);
    }
    if (ok)
        return j;
    json_free(j);
    return NULL;
}

struct json *json_parse(char *text, const char **error, size_t *at) {
    struct reader r = {text, NULL};
    struct json *j = value(&r, 0);
    if (j) {
        blanks(&r);
        if (*r.p) {
            r.error = "text after the value";
            json_free(j);
            j = NULL;
        }
    }
    *error = r.error;
    *at = (size_t)(r.p - text);
    return j;
}

void json_free(struct json *j) {
    while (j) { /* siblings in a loop, children by recursion: bounded by the depth */
        struct json *next = j->next;
        json_free(j->child);
        free(j);
        j = next;
    }
}

const struct json *json_get(const struct json *object, const char *key) {
    if (!object || object->kind != JSON_OBJECT)
        return NULL;
    for (const struct json *m = object->child; m; m = m->next)
        if (!strcmp(m->key, key))
            return m;
    return NULL;
}

const char *json_text(const struct json *object, const char *key) {
    const struct json *m = json_get(object, key);
    return m && m->kind == JSON_STRING ? m->text : NULL;
}
