// A strict JSON reader (RFC 8259), and a writer of strings.
#ifndef JSON_H
#define JSON_H

#include "model.h"

enum { JSON_MAX_DEPTH = 64 };
typedef enum { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT } JsonType;

typedef struct Json {
    JsonType type;
    bool boolean;
    bool is_integer;                // written without fraction and exponent, and an int64
    int64_t integer;                // then
    double number;
    const char *text;  // of a string: UTF-8, which may hold zero bytes; a zero byte follows it too
    size_t len;
    size_t n;                       // of an array or object: how many it has
    const struct Json *first;       // the first of them
    const struct Json *next;        // the one after this, NULL after the last
    const char *key;                // of an object's member, likewise zero-terminated
    size_t key_len;
} Json;

// Reads text[0..len), one value with nothing but white space around it. NULL: it is not JSON, not
// UTF-8, deeper than JSON_MAX_DEPTH, has a number that no double holds, half a surrogate pair or a
// key twice; the message says at which byte, counted from 0. json_free frees all that hangs on what
// this returned, and only that may be given to it.
const Json *json_parse(const char *text, size_t len, Error *err);
void json_free(const Json *root);
// An object's member of that name; NULL: it has none, or is no object.
const Json *json_get(const Json *object, const char *key);
// text[0..len) as a JSON string with its quotes, malloc'd and zero-terminated; what is not UTF-8
// becomes U+FFFD, a byte at a time. NULL: no memory.
char *json_quote(const char *text, size_t len, size_t *out_len);

#endif
