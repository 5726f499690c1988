#include "text/normalize.h"

#include "text/grow.h"
#include "text/unicode.h"

// ---- loading ----

static uint32_t word_at(const uint8_t *p) {
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

// The value is the size of the double array (u32), the double array, and zero-terminated texts.
static int load_charsmap(Normalizer *z, Reader *r) {
    const char *key = "tokenizer.charsmap";
    const Meta *meta = read_meta(r, key);
    if (!meta) return 0;
    const uint8_t *map;
    if (read_bytes(r, key, meta->count, UINT8_MAX, &map)) return -1;
    size_t trie = meta->count < 4 ? 0 : word_at(map);
    if (trie < 4 || trie % 4 || trie > meta->count - 4)
        return fail(r->err, "metadata %s: it has %zu bytes, and a trie of %zu of them", key,
                    meta->count, trie);
    z->n_units = trie / 4;
    z->charsmap = map + 4;
    z->texts = map + 4 + trie;
    z->text_bytes = meta->count - 4 - trie;
    return 0;
}

static int load_replacements(Normalizer *z, Reader *r) {
    size_t n_chars;
    Ints chars;
    const Meta *repeats = read_meta(r, "tokenizer.replace.repeats");
    if (!repeats) return 0;
    z->n_replace = repeats->count;
    if (read_bytes(r, "tokenizer.replace.repeats", z->n_replace, 1, &z->repeats) ||
        read_offsets(r, "tokenizer.replace.begin", 2 * z->n_replace, &z->replace, &n_chars) ||
        read_ints(r, "tokenizer.replace.chars", n_chars, 0, 0x10FFFF, &chars))
        return -1;
    z->replace_chars = chars.v;
    for (size_t i = 0; i < z->n_replace; i++)
        if (z->replace[2 * i] == z->replace[2 * i + 1])
            return fail(r->err, "metadata tokenizer.replace.begin: what replacement %zu replaces "
                        "is empty", i);
    return 0;
}

int load_normalizer(Normalizer *z, Reader *r) {
    if (read_ints(r, "tokenizer.normalizer", SIZE_MAX, 1, N_NORM - 1, &z->steps) ||
        load_charsmap(z, r) || load_replacements(z, r))
        return -1;
    if (z->steps.n > MAX_STEPS)
        return fail(r->err, "metadata tokenizer.normalizer: more than %d steps", MAX_STEPS);
    size_t replacements = 0;
    for (size_t i = 0; i < z->steps.n; i++) {
        int step = z->steps.v[i];
        replacements += step == NORM_REPLACE;
        if ((step == NORM_CHARSMAP || step == NORM_LONGEST_CHARSMAP) && !z->n_units)
            return fail(r->err, "metadata tokenizer.normalizer: step %d needs tokenizer.charsmap",
                        step);
    }
    if (replacements != z->n_replace)
        return fail(r->err, "metadata tokenizer.replace.repeats: %zu replacements for %zu steps",
                    z->n_replace, replacements);
    return 0;
}

const char *normalizer_name(int step) {
    static const char *const names[N_NORM] = {
        NULL, "NFC", "prepend \u2581", "space to \u2581", "prepend space", "clean",
        "pad ideographs", "strip accents", "lower case", "NFD", "NFKC", "NFKD", "no marks",
        "charsmap", "charsmap", "strip left", "strip right", "replace", "NMT", "squeeze spaces",
    };
    return names[step];
}

// ---- a new text, written character by character ----

typedef struct {
    uint32_t *chars;
    size_t n, chars_room;
} Output;

static bool put(Output *out, uint32_t c) {
    if (!RESERVE(out, chars, out->n + 1)) return false;
    out->chars[out->n++] = c;
    return true;
}

// Replaces *chars by the output, if ok; returns ok.
static bool finish(Output *out, bool ok, uint32_t **chars, size_t *n) {
    if (!ok) {
        free(out->chars);
        return false;
    }
    *n = out->n;
    if (!out->chars) return true;
    free(*chars);
    *chars = out->chars;
    return true;
}

static bool prepend(uint32_t c, uint32_t **chars, size_t *n) {
    if (*n == 0) return true;
    uint32_t *longer = realloc(*chars, (*n + 1) * sizeof *longer);
    if (!longer) return false;
    memmove(longer + 1, longer, *n * sizeof *longer);
    longer[0] = c;
    *chars = longer;
    *n += 1;
    return true;
}

// ---- the charsmap: a trie in a double array, as Darts-clone lays it out ----

// Bits of a unit: 0-7 the byte that leads to its node, 8 whether a key ends there, 9 and 10-30 the
// distance to its children. Where a key ends, the first child is its value, which has bit 31 set.
static uint32_t unit_at(const Normalizer *z, size_t node) {
    return node < z->n_units ? word_at(z->charsmap + 4 * node) : 1u << 31;
}

static size_t children(uint32_t unit) { return (size_t)(unit >> 10) << (unit >> 9 & 1) * 8; }

// Finds the shortest or the longest key that chars[0..n) begins with; returns its characters, 0:
// none. *text: where its replacement begins.
static size_t find_key(const Normalizer *z, const uint32_t *chars, size_t n, bool longest,
                       size_t *text) {
    enum { MOST = 64 };  // a damaged trie may go in circles
    size_t node = children(unit_at(z, 0)), found = 0;
    for (size_t i = 0; i < n && i < MOST && (longest || !found); i++) {
        uint8_t bytes[4];
        size_t len = utf8_encode(chars[i], bytes);
        uint32_t unit = 0;
        for (size_t k = 0; k < len; k++) {
            node ^= bytes[k];
            unit = unit_at(z, node);
            if (!bytes[k] || (unit & (1u << 31 | 0xFF)) != bytes[k]) return found;
            node ^= children(unit);
        }
        if (unit >> 8 & 1) {
            *text = unit_at(z, node) & ~(1u << 31);
            found = i + 1;
        }
    }
    return found;
}

static bool put_text(const Normalizer *z, size_t at, Output *out) {
    bool whole;
    uint32_t c;
    while (at < z->text_bytes && z->texts[at]) {
        at += utf8_decode(z->texts + at, z->text_bytes - at, &c, &whole);
        if (!put(out, c)) return false;
    }
    return true;
}

static size_t utf8_bytes(const uint32_t *chars, size_t n) {
    uint8_t bytes[4];
    size_t len = 0;
    for (size_t i = 0; i < n; i++) len += utf8_encode(chars[i], bytes);
    return len;
}

// As in `tokenizers`: a grapheme of up to 5 bytes that begins with a key becomes the replacement of
// the shortest such key. In other graphemes each character is looked up by itself.
static bool map_graphemes(const Normalizer *z, uint32_t **chars, size_t *n) {
    enum { MOST = 5 };
    const uint32_t *c = *chars;
    Output out = {0};
    bool ok = true;
    for (size_t i = 0, end; ok && i < *n; i = end) {
        size_t text;
        for (end = i + 1; end < *n && unicode_joins(c[end - 1], c[end]);) end++;
        bool small = end - i <= MOST && utf8_bytes(c + i, end - i) <= MOST;
        if (small && find_key(z, c + i, end - i, false, &text)) {
            ok = put_text(z, text, &out);
            continue;
        }
        for (size_t k = i; ok && k < end; k++)
            ok = find_key(z, c + k, 1, false, &text) ? put_text(z, text, &out) : put(&out, c[k]);
    }
    return finish(&out, ok, chars, n);
}

// As in SentencePiece: replaces the longest key at each place.
static bool map_longest(const Normalizer *z, uint32_t **chars, size_t *n) {
    const uint32_t *c = *chars;
    Output out = {0};
    bool ok = true;
    for (size_t i = 0, len, text; ok && i < *n; i += len ? len : 1) {
        len = find_key(z, c + i, *n - i, true, &text);
        ok = len ? put_text(z, text, &out) : put(&out, c[i]);
    }
    return finish(&out, ok, chars, n);
}

// ---- the other steps ----

static bool starts_with(const uint32_t *chars, size_t n, const int32_t *what, size_t len) {
    if (len > n) return false;
    for (size_t i = 0; i < len; i++)
        if (chars[i] != (uint32_t)what[i]) return false;
    return true;
}

static bool replace(const Normalizer *z, size_t which, uint32_t **chars, size_t *n) {
    const int32_t *begin = z->replace + 2 * which, *what = z->replace_chars + begin[0];
    size_t len = (size_t)(begin[1] - begin[0]);
    Output out = {0};
    bool ok = true;
    for (size_t i = 0; ok && i < *n;) {
        if (!starts_with(*chars + i, *n - i, what, len)) {
            ok = put(&out, (*chars)[i++]);
            continue;
        }
        for (int32_t k = begin[1]; ok && k < begin[2]; k++)
            ok = put(&out, (uint32_t)z->replace_chars[k]);
        i += len;
        while (z->repeats[which] && i < *n && (*chars)[i] == (uint32_t)what[len - 1]) i++;
    }
    return finish(&out, ok, chars, n);
}

// The rules for neural machine translation: fewer control characters, more spaces.
static void nmt(uint32_t *chars, size_t *n) {
    static const uint32_t spaces[] = {'\t', '\n', '\f', '\r', 0x1680, 0x200B, 0x200C, 0x200D,
                                      0x200E, 0x200F, 0x2028, 0x2029, SPACE_MARK, 0xFEFF,
                                      REPLACEMENT};
    size_t kept = 0;
    for (size_t i = 0; i < *n; i++) {
        uint32_t c = chars[i];
        for (size_t k = 0; k < sizeof spaces / sizeof *spaces; k++)
            if (c == spaces[k]) c = ' ';
        bool dropped = (0 < c && c < ' ') || c == 0x7F || c == 0x8F || c == 0x9F;
        if (!dropped) chars[kept++] = c;
    }
    *n = kept;
}

static void drop(uint32_t *chars, size_t *n, bool (*dropped)(uint32_t c)) {
    size_t kept = 0;
    for (size_t i = 0; i < *n; i++)
        if (!dropped(chars[i])) chars[kept++] = chars[i];
    *n = kept;
}

static void clean(uint32_t *chars, size_t *n) {
    drop(chars, n, unicode_is_control);
    for (size_t i = 0; i < *n; i++)
        if (unicode_class(chars[i]) & SPACE) chars[i] = ' ';
}

static bool pad_ideographs(uint32_t **chars, size_t *n) {
    Output out = {0};
    bool ok = true;
    for (size_t i = 0; ok && i < *n; i++) {
        uint32_t c = (*chars)[i];
        bool pad = unicode_is_ideograph(c);
        ok = (!pad || put(&out, ' ')) && put(&out, c) && (!pad || put(&out, ' '));
    }
    return finish(&out, ok, chars, n);
}

static bool lower(uint32_t **chars, size_t *n) {
    enum { DOTTED_I = 0x130, DOT_ABOVE = 0x307 };
    Output out = {0};
    bool ok = true;
    for (size_t i = 0; ok && i < *n; i++) {
        uint32_t c = (*chars)[i];
        ok = c == DOTTED_I ? put(&out, 'i') && put(&out, DOT_ABOVE) : put(&out, unicode_lower(c));
    }
    return finish(&out, ok, chars, n);
}

// Drops white space that SentencePiece calls extra: spaces at both ends, marks at the end, and all
// but one of several spaces.
static void squeeze(uint32_t *chars, size_t *n) {
    size_t kept = 0;
    for (size_t i = 0; i < *n; i++)
        if (chars[i] != ' ' || (kept > 0 && chars[kept - 1] != ' ')) chars[kept++] = chars[i];
    while (kept > 0 && (chars[kept - 1] == ' ' || chars[kept - 1] == SPACE_MARK)) kept--;
    *n = kept;
}

static void strip(bool left, uint32_t *chars, size_t *n) {
    size_t i = 0;
    while (!left && *n > 0 && unicode_class(chars[*n - 1]) & SPACE) *n -= 1;
    while (left && i < *n && unicode_class(chars[i]) & SPACE) i++;
    *n -= i;
    memmove(chars, chars + i, *n * sizeof *chars);
}

static bool change_form(int form, uint32_t **chars, size_t *n) {
    ptrdiff_t count = normal_form(chars, *n, form);
    if (count < 0) return false;
    *n = (size_t)count;
    return true;
}

// The steps that never make a text longer.
static void in_place(int step, uint32_t *chars, size_t *n) {
    if (step == NORM_NO_MARKS) drop(chars, n, unicode_is_combining);
    else if (step == NORM_CLEAN) clean(chars, n);
    else if (step == NORM_NMT) nmt(chars, n);
    else if (step == NORM_SQUEEZE) squeeze(chars, n);
    else if (step == NORM_STRIP_LEFT || step == NORM_STRIP_RIGHT)
        strip(step == NORM_STRIP_LEFT, chars, n);
    else
        for (size_t i = 0; i < *n; i++)  // NORM_SPACES_TO_MARK
            if (chars[i] == ' ') chars[i] = SPACE_MARK;
}

bool normalize(const Normalizer *z, uint32_t **chars, size_t *n) {
    bool ok = true;
    for (size_t i = 0, replaced = 0; ok && i < z->steps.n; i++) {
        int step = z->steps.v[i];
        switch (step) {
        case NORM_NFC: ok = change_form(COMPOSED_FORM, chars, n); break;
        case NORM_NFD: ok = change_form(FORM_D, chars, n); break;
        case NORM_NFKC: ok = change_form(COMPOSED_FORM | COMPATIBLE_FORM, chars, n); break;
        case NORM_NFKD: ok = change_form(COMPATIBLE_FORM, chars, n); break;
        case NORM_PREPEND_MARK: ok = prepend(SPACE_MARK, chars, n); break;
        case NORM_PREPEND_SPACE: ok = prepend(' ', chars, n); break;
        case NORM_PAD_IDEOGRAPHS: ok = pad_ideographs(chars, n); break;
        case NORM_LOWER: ok = lower(chars, n); break;
        case NORM_STRIP_ACCENTS:
            ok = change_form(FORM_D, chars, n);
            drop(*chars, n, unicode_is_accent);
            break;
        case NORM_CHARSMAP: ok = map_graphemes(z, chars, n); break;
        case NORM_LONGEST_CHARSMAP: ok = map_longest(z, chars, n); break;
        case NORM_REPLACE: ok = replace(z, replaced++, chars, n); break;
        default: in_place(step, *chars, n);
        }
    }
    return ok;
}
