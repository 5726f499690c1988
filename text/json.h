// A strict JSON reader (RFC 8259), and a writer of strings.
#ifndef JSON_H
#define JSON_H

#include "system/system.h"

enum { JSON_MAX_DEPTH = 64 };
typedef enum { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT } JsonType;

typedef struct Json {
    JsonType type;
    bool boolean;
    bool is_integer;                // a number without fraction or exponent that fits int64_t:
    int64_t integer;                // this one
    double number;
    const char *text;  // of a string: UTF-8, which may hold zero bytes; a zero byte follows it too
    size_t len;
    size_t n;                       // elements of an array, members of an object
    const struct Json *first;       // the first of these
    const struct Json *next;        // the one after this, NULL after the last
    const char *key;                // of an object's member, likewise zero-terminated
    size_t key_len;
} Json;

// Reads text[0..len), one value with only white space around it. NULL: it is not JSON, not UTF-8,
// deeper than JSON_MAX_DEPTH, has a number that no double holds, half a surrogate pair or a key
// twice, or there is no memory; the message says at which byte, counted from 0. json_free frees the
// returned root and all values below it; it takes no other value.
const Json *json_parse(const char *text, size_t len, heads_error *err);
void json_free(const Json *root);
bool json_has_key(const Json *member, const char *key);
// The member `key` of an object; NULL: there is none, or it is no object.
const Json *json_get(const Json *object, const char *key);
// Writes text[0..len) as a JSON string with its quotes to out, which has room for 6 len + 2 bytes;
// what is not UTF-8 becomes U+FFFD, a byte at a time. Returns how many bytes it wrote.
size_t json_spell(char *out, const char *text, size_t len);

#endif
