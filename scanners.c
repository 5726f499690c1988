// The scanners of the pre-tokenizers: hand-written matchers for the regular expressions that tokenizers are made with.
#include "scanners.h"

#include "unicode.h"

// The end of the run of characters of a class that begins at i.
static size_t run(const Text *t, size_t i, size_t end, int cls) {
    while (i < end && t->cls[i] & cls) i++;
    return i;
}

static size_t run_without(const Text *t, size_t i, size_t end, int cls) {
    while (i < end && !(t->cls[i] & cls)) i++;
    return i;
}

static bool is_newline(uint32_t c) { return c == '\r' || c == '\n'; }

// The end of 's 't 're 've 'm 'll 'd at i, or i.
static size_t scan_contraction(const Text *t, size_t i, size_t end, bool any_case) {
    if (t->c[i] != '\'' || i + 1 == end) return i;
    uint32_t c[2] = {t->c[i + 1], i + 2 < end ? t->c[i + 2] : 0};
    for (int k = 0; any_case && k < 2; k++) {
        if ('A' <= c[k] && c[k] <= 'Z') c[k] += 'a' - 'A';
        else if (c[k] == 0x17F) c[k] = 's';  // the long s is the only other character that folds to one of these
    }
    if (c[0] == 's' || c[0] == 't' || c[0] == 'm' || c[0] == 'd') return i + 2;
    bool two = ((c[0] == 'r' || c[0] == 'v') && c[1] == 'e') || (c[0] == 'l' && c[1] == 'l');
    return two ? i + 3 : i;
}

// \s*[\r\n]+ where lines is set, then \s+(?!\S)|\s+: a run of white space leaves its last character to the word after it.
static size_t scan_spaces(const Text *t, size_t i, size_t end, bool lines) {
    size_t j = i, after_newline = i;
    for (; j < end && t->cls[j] & SPACE; j++)
        if (is_newline(t->c[j])) after_newline = j + 1;
    if (lines && after_newline > i) return after_newline;
    return j < end && j > i + 1 ? j - 1 : j;
}

// What follows the words: \p{N}{1,most}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+ with s->cls for \p{L}, and with
// / among the line ends where `slash` is set.
static size_t scan_after_words(const Scanner *s, const Text *t, size_t i, size_t end, bool slash) {
    if (t->cls[i] & NUMBER) {
        size_t most = end - i < s->most ? end - i : s->most;
        return run(t, i, i + most, NUMBER);
    }
    size_t begin = i + (t->c[i] == ' ');
    size_t j = run_without(t, begin, end, SPACE | NUMBER | s->cls);
    if (j == begin) return scan_spaces(t, i, end, true);
    while (j < end && (is_newline(t->c[j]) || (slash && t->c[j] == '/'))) j++;
    return j;
}

// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
static size_t scan_gpt2(const Scanner *s, const Text *t, size_t i, size_t end) {
    size_t j = scan_contraction(t, i, end, false);
    if (j > i) return j;
    size_t begin = i + (t->c[i] == ' ');
    if ((j = run(t, begin, end, s->cls)) > begin || (j = run(t, begin, end, NUMBER)) > begin ||
        (j = run_without(t, begin, end, SPACE | NUMBER | s->cls)) > begin)
        return j;
    return scan_spaces(t, i, end, false);
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+ with s->cls for \p{L}, then scan_after_words
static size_t scan_llama3(const Scanner *s, const Text *t, size_t i, size_t end) {
    size_t j = scan_contraction(t, i, end, true);
    if (j > i) return j;
    bool lead = !(t->cls[i] & (NUMBER | s->cls)) && !is_newline(t->c[i]);
    if ((j = run(t, i + lead, end, s->cls)) > i + lead) return j;
    return scan_after_words(s, t, i, end, false);
}

// With U = [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] and W = [\p{Ll}\p{Lm}\p{Lo}\p{M}]: U*W+ at i, or i. U takes all it can, and gives
// back as far as the last character that is a W too.
static size_t scan_u_star_w(const Text *t, size_t i, size_t end) {
    size_t j = i, after_w = i;
    for (; j < end && t->cls[j] & (UPPER | CASELESS | MARK); j++)
        if (t->cls[j] & (CASELESS | MARK)) after_w = j + 1;
    size_t k = run(t, j, end, LOWER | CASELESS | MARK);
    return k > j ? k : after_w;
}

// [^\r\n\p{L}\p{N}]?U*W+(?i:'s|..)?|[^\r\n\p{L}\p{N}]?U+W*(?i:'s|..)?, then scan_after_words. Where U+W* has its turn
// there is no W at all, so W* is empty.
static size_t scan_o200k(const Scanner *s, const Text *t, size_t i, size_t end) {
    bool lead = !(t->cls[i] & (NUMBER | LETTER)) && !is_newline(t->c[i]);
    size_t j = scan_u_star_w(t, i + lead, end);
    if (j == i + lead) j = lead ? scan_u_star_w(t, i, end) : i;
    if (j == i && (j = run(t, i + lead, end, UPPER | CASELESS | MARK)) == i + lead) j = i;
    if (j == i) return scan_after_words(s, t, i, end, true);
    return s->contractions && j < end ? scan_contraction(t, j, end, true) : j;
}

// [!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
static size_t scan_deepseek3(const Scanner *s, const Text *t, size_t i, size_t end) {
    size_t j = i + 1;
    if (t->c[i] < 128 && t->cls[i] & (PUNCT | SYMBOL)) {
        while (j < end && t->c[j] < 128 && t->cls[j] & LETTER) j++;
        if (j > i + 1) return j;
    }
    bool lead = !(t->cls[i] & (s->cls | PUNCT | SYMBOL)) && !is_newline(t->c[i]);
    if ((j = run(t, i + lead, end, s->cls)) > i + lead) return j;
    size_t begin = i + (t->c[i] == ' ');
    if ((j = run(t, begin, end, PUNCT | SYMBOL)) == begin) return scan_spaces(t, i, end, true);
    while (j < end && is_newline(t->c[j])) j++;
    return j;
}

// One to s->most characters of a class.
static size_t scan_run(const Scanner *s, const Text *t, size_t i, size_t end) {
    return run(t, i, end - i < s->most ? end : i + s->most, s->cls);
}

// \s? and a run of a class.
static size_t scan_spaced_run(const Scanner *s, const Text *t, size_t i, size_t end) {
    size_t begin = i + !!(t->cls[i] & SPACE), j = run(t, begin, end, s->cls);
    return j > begin ? j : i;
}

static size_t scan_newline(const Scanner *s, const Text *t, size_t i, size_t end) {
    (void)s, (void)end;
    return i + is_newline(t->c[i]);
}

static size_t scan_range(const Scanner *s, const Text *t, size_t i, size_t end) {
    const uint32_t *r = s->range;
    while (i < end && ((r[0] <= t->c[i] && t->c[i] <= r[1]) || (r[2] <= t->c[i] && t->c[i] <= r[3]))) i++;
    return i;
}

// Digits over the characters that ByteLevel shows bytes as: besides 0-9 those are superscripts and fractions of Latin-1.
static size_t scan_byte_digits(const Scanner *s, const Text *t, size_t i, size_t end) {
    size_t stop = end - i < s->most ? end : i + s->most;
    for (; i < stop; i++) {
        uint32_t b = t->c[i];
        bool digit = ('0' <= b && b <= '9') || b == 0xB2 || b == 0xB3 || b == 0xB9 || (0xBC <= b && b <= 0xBE);
        if (!digit) break;
    }
    return i;
}

// [0-9][0-9][0-9]
static size_t scan_exactly(const Scanner *s, const Text *t, size_t i, size_t end) {
    if (end - i < s->most) return i;
    for (size_t j = i; j < i + s->most; j++)
        if (t->c[j] < '0' || t->c[j] > '9') return i;
    return i + s->most;
}

const Scanner scanners[N_SCANNERS] = {
    [METASPACE_NEVER] = {.name = "metaspace"},
    [METASPACE_FIRST] = {.name = "metaspace first"},
    [METASPACE_ALWAYS] = {.name = "metaspace always"},
    [4] = {"gpt2", scan_gpt2, .cls = LETTER},
    [5] = {"llama3", scan_llama3, .cls = LETTER, .most = 3},
    [6] = {"qwen2", scan_llama3, .cls = LETTER, .most = 1},
    [7] = {"qwen3.5", scan_llama3, .cls = LETTER | MARK, .most = 1},
    [8] = {"o200k", scan_o200k, .cls = LETTER, .most = 3, .contractions = true},
    [9] = {"tekken", scan_o200k, .cls = LETTER, .most = 1},
    [10] = {"deepseek3", scan_deepseek3, .cls = LETTER | MARK},
    [11] = {"digit", scan_run, .cls = DIGITS, .most = 1},
    [12] = {"digits", scan_run, .cls = DIGITS, .most = SIZE_MAX},
    [13] = {"numbers 1-3", scan_run, .cls = NUMBER, .most = 3},
    [14] = {"punctuation", scan_run, .cls = PUNCTUATION, .most = SIZE_MAX},
    [15] = {"newline", scan_newline, .cls = SPACE},
    [16] = {"spaced letters", scan_spaced_run, .cls = LETTER},
    [17] = {"spaced punctuation", scan_spaced_run, .cls = PUNCT},
    [18] = {"cjk from 0800", scan_range, .range = {0x0800, 0x9FA5, 0xAC00, 0xD7FF}},
    [19] = {"cjk and kana", scan_range, .range = {0x3040, 0x30FF, 0x4E00, 0x9FA5}},
    [20] = {"byte digit", scan_byte_digits, .most = 1, .bytes = true},
    [21] = {"byte digits", scan_byte_digits, .most = SIZE_MAX, .bytes = true},
    [22] = {"three digits", scan_exactly, .most = 3, .bytes = true},
};
