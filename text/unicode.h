// Characters: UTF-8, classes, and normalisation forms, as in the `tokenizers` library
// (unicode_tables.h).
#ifndef UNICODE_H
#define UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { REPLACEMENT = 0xFFFD };  // stands for bytes that are not UTF-8

// The class of a character: any of these flags. The comments name categories of Unicode 16, its
// script Han, and regular expressions' white space; DIGITS, PUNCTUATION and WORD are tests of
// `tokenizers` itself.
enum {
    UPPER = 1 << 0,        // Lu, Lt
    LOWER = 1 << 1,        // Ll
    CASELESS = 1 << 2,     // Lm, Lo
    MARK = 1 << 3,         // M
    NUMBER = 1 << 4,       // N
    PUNCT = 1 << 5,        // P
    SYMBOL = 1 << 6,       // S
    SPACE = 1 << 7,        // \s
    DIGITS = 1 << 8,       // what the pre-tokenizer Digits cuts
    PUNCTUATION = 1 << 9,  // what the pre-tokenizer Punctuation cuts
    WORD = 1 << 10,        // \w, beside an added token that has to be a single word
    DECIMAL = 1 << 11,     // Nd
    HAN = 1 << 12,         // Han
    LETTER = UPPER | LOWER | CASELESS,
};
uint16_t unicode_class(uint32_t c);

// Decodes the character at text[0..len), len > 0, into *c and returns its bytes, 1..4. If it is not
// UTF-8, *c is REPLACEMENT, and the bytes are the longest beginning of a character, or one byte.
// *whole false: the text ended inside a character that more bytes might complete.
size_t utf8_decode(const uint8_t *text, size_t len, uint32_t *c, bool *whole);
// The bytes of the character at text[0..len), 0 if there is none: bad, cut short, overlong or a
// surrogate.
size_t utf8_length(const char *text, size_t len);
// Writes a character and returns its bytes, 1..4.
size_t utf8_encode(uint32_t c, uint8_t out[4]);

// Where what[n], n > 0, first stands in text[len]; NULL: nowhere.
const char *find_bytes(const char *text, size_t len, const char *what, size_t n);

// Replaces n *chars, malloc'd, by their normalisation form, and returns the new number. -1: no
// memory, and *chars is as it was. Time is nearly linear in n.
enum { FORM_D, COMPOSED_FORM = 1, COMPATIBLE_FORM = 2 };  // 0 to 3: D, C, KD, KC
ptrdiff_t normal_form(uint32_t **chars, size_t n, int form);

// Whether c is in one of n ranges, ascending, with their ends.
bool unicode_in_ranges(const uint32_t (*ranges)[2], size_t n, uint32_t c);
bool unicode_is_combining(uint32_t c);  // that StripAccents drops
// Whether c belongs to the grapheme that ends with `before`; exact for graphemes of up to 5 bytes.
bool unicode_joins(uint32_t before, uint32_t c);
// Characters that BERT's normalizer drops, or pads with spaces, as in `tokenizers`.
bool unicode_is_control(uint32_t c);
bool unicode_is_accent(uint32_t c);     // Mn
bool unicode_is_ideograph(uint32_t c);
uint32_t unicode_lower(uint32_t c);     // U+0130 stays: it becomes two characters

#endif
