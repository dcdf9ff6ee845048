/* A small JSON reader for test data. Numbers keep their integer value, which a double would round. */
#ifndef TEST_JSON_H
#define TEST_JSON_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum json_kind { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };
struct json {
    enum json_kind kind;
    const char *key;           /* of a member, else NULL */
    struct json *child, *next; /* first element or member; the next one of the same parent */
    size_t n;                  /* elements or members */
    const char *text;          /* JSON_STRING */
    bool integer;              /* JSON_NUMBER without fraction or exponent that fits i */
    int64_t i;                 /* JSON_NUMBER with integer, JSON_BOOL */
    double f;                  /* JSON_NUMBER */
};
/* Parses a whole text, which is changed and has to outlive the tree. NULL: *error tells why, *at where. */
struct json *json_parse(char *text, const char **error, size_t *at);
void json_free(struct json *j);
const struct json *json_get(const struct json *object, const char *key); /* NULL when absent */
const char *json_text(const struct json *object, const char *key);       /* of a string member, or NULL */
#endif
