#include "wordpiece.h"

#include <stdlib.h>

#include "unicode.h"

// ---- the normalizer ----

// Leaves the characters out that `out` finds, and makes white space a space if `clean`.
static size_t filter(uint32_t *chars, size_t n, bool (*out)(uint32_t), bool clean) {
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        if (out(chars[i])) continue;
        chars[kept++] = clean && unicode_class(chars[i]) & SPACE ? ' ' : chars[i];
    }
    return kept;
}

static bool pad_ideographs(uint32_t **chars, size_t *n) {
    size_t found = 0, to = 0;
    for (size_t i = 0; i < *n; i++) found += unicode_is_ideograph((*chars)[i]);
    if (!found) return true;
    uint32_t *padded = malloc((*n + 2 * found) * sizeof *padded);
    if (!padded) return false;
    for (size_t i = 0; i < *n; i++) {
        bool pad = unicode_is_ideograph((*chars)[i]);
        if (pad) padded[to++] = ' ';
        padded[to++] = (*chars)[i];
        if (pad) padded[to++] = ' ';
    }
    free(*chars);
    *chars = padded;
    *n = to;
    return true;
}

static bool lower(uint32_t **chars, size_t *n) {
    enum { DOTTED_I = 0x130, DOT_ABOVE = 0x307 };
    size_t found = 0, to = 0;
    for (size_t i = 0; i < *n; i++) {
        found += (*chars)[i] == DOTTED_I;
        (*chars)[i] = unicode_lower((*chars)[i]);
    }
    if (!found) return true;
    uint32_t *longer = malloc((*n + found) * sizeof *longer);
    if (!longer) return false;
    for (size_t i = 0; i < *n; i++) {
        bool dotted = (*chars)[i] == DOTTED_I;
        longer[to++] = dotted ? 'i' : (*chars)[i];
        if (dotted) longer[to++] = DOT_ABOVE;
    }
    free(*chars);
    *chars = longer;
    *n = to;
    return true;
}

bool bert_normalize(int step, uint32_t **chars, size_t *n) {
    if (step == NORM_PAD_IDEOGRAPHS) return pad_ideographs(chars, n);
    if (step == NORM_LOWER) return lower(chars, n);
    if (step == NORM_STRIP_ACCENTS) {
        ptrdiff_t count = normal_form(chars, *n, FORM_D);
        if (count < 0) return false;
        *n = (size_t)count;
    }
    bool clean = step == NORM_CLEAN;
    *n = filter(*chars, *n, clean ? unicode_is_control : unicode_is_accent, clean);
    return true;
}

// ---- the model ----

size_t wordpiece(const uint8_t *text, size_t len, size_t longest, FindToken *find, const void *arg,
                 int *ids) {
    size_t n = 0;
    for (size_t at = 0, end; at < len; at = end) {
        int id = -1;
        end = at + longest < len ? at + longest : len;
        for (; end > at; end--) {
            bool whole = end == len || (text[end] & 0xC0) != 0x80;  // no character is cut
            if (whole && (id = find(arg, text + at, end - at)) >= 0) break;
        }
        if (id < 0) return 0;
        ids[n++] = id;
    }
    return n;
}
