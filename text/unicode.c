// Characters: UTF-8, classes, normalisation forms.
#include "text/unicode.h"

#include <stdlib.h>
#include <string.h>

#include "text/unicode_tables.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

const char *find_bytes(const char *text, size_t len, const char *what, size_t n) {
    for (size_t i = 0; n <= len && i <= len - n; i++)
        if (memcmp(text + i, what, n) == 0) return text + i;
    return NULL;
}

// ---- classes ----

// The value of the range that contains c: the low bits of the last entry whose upper bits are at
// most c.
static uint32_t run_value(const uint32_t *runs, size_t n, uint32_t c, int shift) {
    size_t low = 0, high = n;  // the answer is in low..high-1
    while (high - low > 1) {
        size_t mid = (low + high) / 2;
        if (runs[mid] >> shift <= c) low = mid;
        else high = mid;
    }
    return runs[low] & ((1u << shift) - 1);
}

uint16_t unicode_class(uint32_t c) { return FLAGS[run_value(CLASSES, COUNT(CLASSES), c, 11)]; }

static uint8_t combining_class(uint32_t c) {
    return c < 0x300 ? 0 : (uint8_t)run_value(COMBINING, COUNT(COMBINING), c, 8);
}

bool unicode_in_ranges(const uint32_t (*ranges)[2], size_t n, uint32_t c) {
    size_t low = 0, high = n;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (ranges[mid][1] < c) low = mid + 1;
        else high = mid;
    }
    return low < n && ranges[low][0] <= c;
}

#define IN(table, c) unicode_in_ranges(table, COUNT(table), c)

bool unicode_is_control(uint32_t c) { return c == 0 || IN(CONTROLS, c); }

bool unicode_is_accent(uint32_t c) { return c >= 0x300 && IN(ACCENTS, c); }

bool unicode_is_combining(uint32_t c) {
    if (c < 0x300) return false;
    bool mark = unicode_class(c) & MARK;
    return mark != IN(STRIPPED_BUT_MARK, c);
}

bool unicode_joins(uint32_t before, uint32_t c) {
    if (before == '\r' && c == '\n') return true;
    if (before < 0x300 && c < 0x300) return false;
    if (IN(UNJOINED, before) || IN(UNJOINED, c)) return false;
    bool mark = unicode_class(c) & MARK;
    return mark != IN(JOINING_BUT_MARK, c) || IN(PREPENDED, before);
}

bool unicode_is_ideograph(uint32_t c) { return c >= 0x3400 && IN(IDEOGRAPHS, c); }

uint32_t unicode_lower(uint32_t c) {
    if (c < 0x80) return 'A' <= c && c <= 'Z' ? c + 32 : c;
    size_t low = 0, high = COUNT(LOWER_CASE);
    while (low < high) {
        size_t mid = (low + high) / 2;
        if ((uint32_t)LOWER_CASE[mid][1] < c) low = mid + 1;
        else high = mid;
    }
    if (low == COUNT(LOWER_CASE)) return c;
    const int32_t *run = LOWER_CASE[low];
    bool inside = (uint32_t)run[0] <= c && ((int32_t)c - run[0]) % run[2] == 0;
    return inside ? (uint32_t)((int32_t)c + run[3]) : c;
}

// ---- UTF-8 ----

// Bounds of the second byte exclude overlong forms, surrogates and characters above U+10FFFF.
static bool second_byte_fits(uint8_t first, uint8_t second) {
    uint8_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    uint8_t high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    return low <= second && second <= high;
}

size_t utf8_decode(const uint8_t *text, size_t len, uint32_t *c, bool *whole) {
    uint8_t first = text[0];
    *whole = true;
    *c = first;
    if (first < 0x80) return 1;
    size_t need = first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
    *c = REPLACEMENT;
    if (need == 0) return 1;
    uint32_t value = first & (0x7Fu >> need);
    for (size_t i = 1; i < need; i++) {
        if (i == len) {
            *whole = false;
            return i;
        }
        if (i == 1 ? !second_byte_fits(first, text[1]) : (text[i] & 0xC0) != 0x80) return i;
        value = value << 6 | (text[i] & 0x3F);
    }
    *c = value;
    return need;
}

size_t utf8_length(const char *text, size_t len) {
    uint32_t c;
    bool whole;
    if (len == 0) return 0;
    size_t n = utf8_decode((const uint8_t *)text, len, &c, &whole);
    bool written_out = n == 3 && (uint8_t)text[0] == 0xEF;  // the text has U+FFFD itself
    return c != REPLACEMENT || written_out ? n : 0;
}

size_t utf8_encode(uint32_t c, uint8_t out[4]) {
    if (c < 0x80) return out[0] = (uint8_t)c, 1;
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, c >>= 6) out[i] = (uint8_t)(0x80 | (c & 0x3F));
    out[0] = (uint8_t)(0xF00u >> n | c);
    return n;
}

// ---- normalisation forms (Unicode Standard Annex 15): decompose, order the marks, compose ----

enum { HANGUL = 0xAC00, HANGUL_L = 0x1100, HANGUL_V = 0x1161, HANGUL_T = 0x11A7 };
enum { N_L = 19, N_V = 21, N_T = 28 };

typedef struct {
    uint32_t *chars;
    uint8_t *ccc;  // combining class of each
    size_t n, room;
} Decomposed;

static bool append(Decomposed *d, uint32_t c) {
    if (d->n == d->room) {
        size_t room = d->room * 2 + 64;
        uint32_t *chars = realloc(d->chars, room * sizeof *chars);
        if (chars) d->chars = chars;
        uint8_t *ccc = realloc(d->ccc, room);
        if (ccc) d->ccc = ccc;
        if (!chars || !ccc) return false;
        d->room = room;
    }
    d->chars[d->n] = c;
    d->ccc[d->n++] = combining_class(c);
    return true;
}

static int compare_decomposed(const void *key, const void *row) {
    uint32_t a = *(const uint32_t *)key, b = *(const uint32_t *)row;
    return (a > b) - (a < b);
}

// Appends form KD of c. 0: that is the same as form D, -1: no memory.
static int decompose_compatible(Decomposed *d, uint32_t c) {
    size_t low = 0, high = COUNT(COMPATIBLE);
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (COMPATIBLE[mid][1] < c) low = mid + 1;
        else high = mid;
    }
    const uint32_t *run = COMPATIBLE[low];
    if (low < COUNT(COMPATIBLE) && run[0] <= c) return append(d, run[2] + c - run[0]) ? 1 : -1;
    const uint32_t *row = bsearch(&c, COMPATIBLE_LONG, COUNT(COMPATIBLE_LONG) - 1,
                                  sizeof *COMPATIBLE_LONG, compare_decomposed);
    if (!row) return 0;
    for (uint32_t i = row[1]; i < row[3]; i++)  // row[3]: where the next one begins
        if (!append(d, COMPATIBLE_TEXT[i])) return -1;
    return 1;
}

static bool decompose(Decomposed *d, uint32_t c) {
    if (c - HANGUL < N_L * N_V * N_T) {
        uint32_t s = c - HANGUL, t = s % N_T;
        return append(d, HANGUL_L + s / (N_V * N_T)) && append(d, HANGUL_V + s / N_T % N_V) &&
               (t == 0 || append(d, HANGUL_T + t));
    }
    const uint32_t *row = bsearch(&c, DECOMPOSITIONS, COUNT(DECOMPOSITIONS), sizeof *DECOMPOSITIONS,
                                  compare_decomposed);
    if (!row) return append(d, c);
    return decompose(d, row[1]) && (row[2] == 0 || append(d, row[2]));
}

// Sorts a run of marks by class, keeping equal ones in order: by insertion if it is short, else by
// counting into `spare`.
static bool order_marks(uint32_t *chars, uint8_t *ccc, size_t n) {
    if (n <= 32) {
        for (size_t i = 1; i < n; i++) {
            uint32_t c = chars[i];
            uint8_t k = ccc[i];
            size_t j = i;
            for (; j > 0 && ccc[j - 1] > k; j--) chars[j] = chars[j - 1], ccc[j] = ccc[j - 1];
            chars[j] = c, ccc[j] = k;
        }
        return true;
    }
    uint32_t *spare = malloc(n * sizeof *spare);
    if (!spare) return false;
    memcpy(spare, chars, n * sizeof *spare);
    size_t start[257] = {0};
    for (size_t i = 0; i < n; i++) start[ccc[i] + 1]++;
    for (int k = 0; k < 256; k++) start[k + 1] += start[k];
    for (size_t i = 0; i < n; i++) chars[start[ccc[i]]++] = spare[i];
    for (size_t i = 0, k = 0; k < 256; k++)  // start[k] is now the end of class k
        for (; i < start[k]; i++) ccc[i] = (uint8_t)k;
    free(spare);
    return true;
}

// Orders the marks after each character.
static bool order_all(Decomposed *d) {
    bool ok = true;
    for (size_t i = 0, end; ok && i < d->n; i = end + 1) {
        for (end = i; end < d->n && d->ccc[end]; end++) {}
        ok = order_marks(d->chars + i, d->ccc + i, end - i);
    }
    return ok;
}

// The character that first and second compose to, or 0.
static uint32_t compose(uint32_t first, uint32_t second) {
    if (first - HANGUL_L < N_L && second - HANGUL_V < N_V)
        return HANGUL + ((first - HANGUL_L) * N_V + second - HANGUL_V) * N_T;
    if (first - HANGUL < N_L * N_V * N_T && (first - HANGUL) % N_T == 0 &&
        second - HANGUL_T - 1 < N_T - 1)
        return first + second - HANGUL_T;
    size_t low = 0, high = COUNT(COMPOSITIONS);
    while (low < high) {
        size_t mid = (low + high) / 2;
        const uint32_t *row = DECOMPOSITIONS[COMPOSITIONS[mid]];
        if (row[1] == first && row[2] == second) return row[0];
        if (row[1] < first || (row[1] == first && row[2] < second)) low = mid + 1;
        else high = mid;
    }
    return 0;
}

// Writes the composed characters to out, which has room for d->n, and returns their number. A mark
// joins the last starter unless a starter or a mark of its class or higher stays between them.
static size_t compose_all(const Decomposed *d, uint32_t *out) {
    size_t n = 0, starter = SIZE_MAX;
    int last = -1;  // class of what lies between the starter and here; -1: nothing
    for (size_t i = 0; i < d->n; i++) {
        uint32_t whole =
            starter != SIZE_MAX && last < d->ccc[i] ? compose(out[starter], d->chars[i]) : 0;
        if (whole) {
            out[starter] = whole;
            continue;
        }
        if (d->ccc[i] == 0) starter = n, last = -1;
        else last = d->ccc[i];
        out[n++] = d->chars[i];
    }
    return n;
}

ptrdiff_t normal_form(uint32_t **chars, size_t n, int form) {
    // A character below this without a mark after it stays as it is.
    uint32_t plain_below = form & COMPATIBLE_FORM ? 0xA0 : form & COMPOSED_FORM ? 0x300 : 0xC0;
    size_t plain = 0;
    while (plain < n && (*chars)[plain] < plain_below) plain++;
    if (plain == n) return (ptrdiff_t)n;
    Decomposed d = {0};
    bool ok = true;
    for (size_t i = 0; ok && i < n; i++) {
        uint32_t c = (*chars)[i];
        bool alone = c < plain_below && (i + 1 == n || (*chars)[i + 1] < 0x300);
        int done = alone || !(form & COMPATIBLE_FORM) ? 0 : decompose_compatible(&d, c);
        ok = done > 0 || (done == 0 && (alone ? append(&d, c) : decompose(&d, c)));
    }
    ok = ok && order_all(&d);
    uint32_t *out = ok ? realloc(*chars, (d.n + 1) * sizeof *out) : NULL;
    ptrdiff_t count = -1;
    if (out) {
        *chars = out;
        count = (ptrdiff_t)d.n;
        if (form & COMPOSED_FORM) count = (ptrdiff_t)compose_all(&d, out);
        else memcpy(out, d.chars, d.n * sizeof *out);
    }
    free(d.chars);
    free(d.ccc);
    return count;
}
