// Hand-written matchers for the regular expressions of pre-tokenizers.
#include "text/scanners.h"

#include "text/unicode.h"

// The end of the characters of a class that begin at i.
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
        else if (c[k] == 0x17F) c[k] = 's';  // the long s: no other character folds to one of these
    }
    if (c[0] == 's' || c[0] == 't' || c[0] == 'm' || c[0] == 'd') return i + 2;
    bool two = ((c[0] == 'r' || c[0] == 'v') && c[1] == 'e') || (c[0] == 'l' && c[1] == 'l');
    return two ? i + 3 : i;
}

// \s*[\r\n]+ if `lines` is set, then \s+(?!\S)|\s+: a run of white space leaves its last character
// to the word after it.
static size_t scan_spaces(const Text *t, size_t i, size_t end, bool lines) {
    size_t j = i, after_newline = i;
    for (; j < end && t->cls[j] & SPACE; j++)
        if (is_newline(t->c[j])) after_newline = j + 1;
    if (lines && after_newline > i) return after_newline;
    return j < end && j > i + 1 ? j - 1 : j;
}

// \s{512}(?!\S)|\s{256}(?!\S)|..|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1} of white space without line ends.
static size_t scan_powers(const Text *t, size_t i, size_t end) {
    size_t j = run(t, i, end, SPACE), n = j < end ? j - i - 1 : j - i;
    for (size_t k = 512; k > 1; k /= 2)
        if (n >= k) return i + k;
    return i + 1;
}

// The alternatives after words: \p{N}{1,most}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
// with s->cls for \p{L}; s->slash is with / among the line ends, s->apart without [\r\n]*.
static size_t scan_after_words(const Scanner *s, const Text *t, size_t i, size_t end) {
    if (t->cls[i] & NUMBER) {
        size_t most = end - i < s->most ? end - i : s->most;
        return run(t, i, i + most, NUMBER);
    }
    size_t begin = i + (t->c[i] == ' ');
    size_t j = run_without(t, begin, end, SPACE | NUMBER | s->cls);
    if (j == begin) {
        j = scan_spaces(t, i, end, true);
        return s->powers && !is_newline(t->c[j - 1]) ? scan_powers(t, i, end) : j;
    }
    while (!s->apart && j < end && (is_newline(t->c[j]) || (s->slash && t->c[j] == '/'))) j++;
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

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+ with s->cls for \p{L}, then
// scan_after_words
static size_t scan_llama3(const Scanner *s, const Text *t, size_t i, size_t end) {
    size_t j = scan_contraction(t, i, end, true);
    if (j > i) return j;
    bool lead = !(t->cls[i] & (NUMBER | s->cls)) && !is_newline(t->c[i]);
    if ((j = run(t, i + lead, end, s->cls)) > i + lead) return j;
    return scan_after_words(s, t, i, end);
}

// Whether character i is of a class and may stand in a word.
static bool in_word(const Scanner *s, const Text *t, size_t i, int cls) {
    return t->cls[i] & cls && !(t->cls[i] & s->alone);
}

// With U = [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] and W = [\p{Ll}\p{Lm}\p{Lo}\p{M}], both without
// s->alone: U*W+ at i, or i. U takes all it can, and gives back as far as the last character that
// is a W too.
static size_t scan_u_star_w(const Scanner *s, const Text *t, size_t i, size_t end) {
    size_t j = i, after_w = i;
    for (; j < end && in_word(s, t, j, UPPER | CASELESS | MARK); j++)
        if (t->cls[j] & (CASELESS | MARK)) after_w = j + 1;
    size_t k = j;
    while (k < end && in_word(s, t, k, LOWER | CASELESS | MARK)) k++;
    return k > j ? k : after_w;
}

// Characters of s->alone, if there are such,
// |[^\r\n\p{L}\p{N}]?U*W+(?i:'s|..)?|[^\r\n\p{L}\p{N}]?U+W*(?i:'s|..)?, then scan_after_words. The
// second form is reached only where there is no W, so it is of Lu and Lt alone.
static size_t scan_o200k(const Scanner *s, const Text *t, size_t i, size_t end) {
    size_t j = run(t, i, end, s->alone);
    if (j > i) return j;
    bool lead = !(t->cls[i] & (NUMBER | LETTER)) && !is_newline(t->c[i]);
    j = scan_u_star_w(s, t, i + lead, end);
    if (j == i + lead) j = lead ? scan_u_star_w(s, t, i, end) : i;
    if (j == i && (j = run(t, i + lead, end, UPPER)) == i + lead) j = i;
    if (j == i) return scan_after_words(s, t, i, end);
    return s->contractions && j < end ? scan_contraction(t, j, end, true) : j;
}

// (?i:'s|..)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}, then
// | ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+
static size_t scan_exaone(const Scanner *s, const Text *t, size_t i, size_t end) {
    size_t j = scan_contraction(t, i, end, true);
    if (j > i) return j;
    bool lead = !(t->cls[i] & (NUMBER | s->cls)) && !is_newline(t->c[i]);
    for (j = i + lead; j < end && t->cls[j] & s->cls; j += t->c[j] == ' ' && j + 1 < end)
        j = run(t, run(t, j, end, s->cls), end, s->cls | MARK);
    if (j > i + lead) return t->c[j - 1] == ' ' ? j - 1 : j;
    if (t->cls[i] & NUMBER) return i + 1;
    size_t begin = i + (t->c[i] == ' ');
    if ((j = run_without(t, begin, end, SPACE | NUMBER | s->cls)) == begin)
        return scan_spaces(t, i, end, true);
    return j + (j < end && is_newline(t->c[j]));
}

// [!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*, then
// |\s*[\r\n]+|\s+(?!\S)|\s+
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

static bool in_ranges(const Scanner *s, const Text *t, size_t i) {
    return t->cls[i] & s->cls || unicode_in_ranges(s->ranges, s->n_ranges, t->c[i]);
}

// \d{1,3}(?=(\d{3})*(?!\d)), or with \b for (?!\d): threes that end with the run of digits. Behind
// a digit a match ends, and threes are left: counting them at each would be quadratic. Of s->ranges
// \b thinks otherwise than WORD.
static size_t scan_threes(const Scanner *s, const Text *t, size_t i, size_t end) {
    if (!(t->cls[i] & s->cls)) return i;
    if (i > 0 && t->cls[i - 1] & s->cls) return end - i < 3 ? end : i + 3;
    size_t stop = run(t, i, end, s->cls);
    bool none = s->bounded && stop < end && !(t->cls[stop] & WORD) == in_ranges(s, t, stop);
    return none ? i : i + (stop - i - 1) % 3 + 1;
}

// Up to the next place, or the end, from which threes fill the run of digits: before
// (?=(\d{3})+(?!\d)).
static size_t scan_to_threes(const Scanner *s, const Text *t, size_t i, size_t end) {
    for (size_t j = i, k; j < end; j = k) {
        if ((k = scan_threes(s, t, j, end)) == j + 3 && j > i) return j;
        if (k > j && k < end && t->cls[k] & s->cls) return k;
        if (k == j) k++;
    }
    return end;
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

// Characters of s->ranges or s->cls, perhaps after a white space, which may itself be the only one
// of them.
static size_t scan_ranges(const Scanner *s, const Text *t, size_t i, size_t end) {
    size_t j = i + (in_ranges(s, t, i) || (s->spaced && t->cls[i] & SPACE));
    while (j > i && j < end && in_ranges(s, t, j)) j++;
    return j == i + 1 && !in_ranges(s, t, i) ? i : j;
}

//  ?[^(\s|.,!?...)]+
static size_t scan_bloom(const Scanner *s, const Text *t, size_t i, size_t end) {
    size_t begin = i + (t->c[i] == ' '), j = begin;
    while (j < end && !in_ranges(s, t, j)) j++;
    return j > begin ? j : i;
}

// s->before, then one to s->most characters of s->ranges, then s->after.
static size_t scan_marker(const Scanner *s, const Text *t, size_t i, size_t end) {
    size_t j = i, n = 0;
    for (const char *c = s->before; *c; c++, j++)
        if (j == end || t->c[j] != (uint32_t)*c) return i;
    while (j < end && n < s->most && in_ranges(s, t, j)) j++, n++;
    return n && j < end && t->c[j] == (uint32_t)s->after ? j + 1 : i;
}

// [\t\n]|\x20{4}|\x20{2}
static size_t scan_indents(const Scanner *s, const Text *t, size_t i, size_t end) {
    (void)s;
    if (t->c[i] == '\t' || t->c[i] == '\n') return i + 1;
    size_t n = 0;
    while (n < 4 && i + n < end && t->c[i + n] == ' ') n++;
    return i + n / 2 * 2;
}

// \s+$, where $ is also before a newline. If white space at i has no match, neither has the rest of
// it, so split() goes on after it: scanning again at each character would be quadratic.
static size_t scan_trailing_spaces(const Scanner *s, const Text *t, size_t i, size_t end) {
    size_t j = run(t, i, end, s->cls);
    if (j == end) return j;
    while (j > i && t->c[j] != '\n') j--;
    return j;
}

// Digits among the characters that stand for bytes in ByteLevel: 0-9, and superscripts and
// fractions of Latin-1.
static size_t scan_byte_digits(const Scanner *s, const Text *t, size_t i, size_t end) {
    size_t stop = end - i < s->most ? end : i + s->most;
    for (; i < stop; i++) {
        uint32_t b = t->c[i];
        bool superscript = b == 0xB2 || b == 0xB3 || b == 0xB9, fraction = 0xBC <= b && b <= 0xBE;
        bool digit = ('0' <= b && b <= '9') || superscript || fraction;
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

// A punctuation mark, a run of white space, or the text between such.
static size_t scan_bert(const Scanner *s, const Text *t, size_t i, size_t end) {
    if (t->cls[i] & PUNCTUATION) return i + 1;
    bool space = t->cls[i] & SPACE;
    do i++;
    while (i < end && (space ? t->cls[i] & SPACE : !(t->cls[i] & s->cls)));
    return i;
}

// \S+
static size_t scan_visible(const Scanner *s, const Text *t, size_t i, size_t end) {
    return run_without(t, i, end, s->cls);
}

// \w+|[^\w\s]+
static size_t scan_words(const Scanner *s, const Text *t, size_t i, size_t end) {
    size_t j = run(t, i, end, s->cls);
    return j > i ? j : run_without(t, i, end, SPACE | s->cls);
}

// A character and those after it up to the next U+2581.
static size_t scan_marked(const Scanner *s, const Text *t, size_t i, size_t end) {
    enum { MARK_CHAR = 0x2581 };
    (void)s;
    do i++;
    while (i < end && t->c[i] != MARK_CHAR);
    return i;
}

#define RANGES(table) .ranges = (table), .n_ranges = sizeof(table) / sizeof *(table)
static const uint32_t cjk_from_0800[][2] = {{0x0800, 0x9FA5}, {0xAC00, 0xD7FF}};
static const uint32_t cjk_and_kana[][2] = {{0x3040, 0x30FF}, {0x4E00, 0x9FA5}};
static const uint32_t hangul[][2] = {{0x3131, 0x318E}, {0xAC00, 0xD7A3}};
static const uint32_t bopomofo[][2] = {{0x3105, 0x312F}};
static const uint32_t wide_marks[][2] = {
    {0x2014, 0x2014}, {0x2018, 0x2019}, {0x201C, 0x201D}, {0x2026, 0x2026}, {0x3001, 0x303F},
    {0xFE30, 0xFE4F}, {0xFF01, 0xFF01}, {0xFF0C, 0xFF0C}, {0xFF1A, 0xFF1B},
};
static const uint32_t default_symbols[][2] = {
    {'$', '$'}, {'+', '+'}, {'<', '>'}, {'^', '^'}, {'|', '|'}, {'~', '~'},
};
static const uint32_t odd_words[][2] = {{0xB2, 0xB3}, {0xB9, 0xB9}, {0xBC, 0xBE}, {0x200C, 0x200D}};
static const uint32_t ascii_digits[][2] = {{'0', '9'}}, image_letters[][2] = {{'A', 'I'}};
static const uint32_t east_asian[][2] = {
    {0x2F00, 0x2FDF}, {0x3040, 0x30FF}, {0x3400, 0x4DBF}, {0x4E00, 0x9FFF}, {0xF900, 0xFAFF},
    {0xFF65, 0xFF9F},
};
static const uint32_t thai[][2] = {{0x0E00, 0x0E7F}}, lao[][2] = {{0x0E80, 0x0EFF}};
static const uint32_t khmer[][2] = {{0x1780, 0x17FF}};
static const uint32_t burmese[][2] = {{0x1000, 0x109F}, {0xA9E0, 0xA9FF}, {0xAA60, 0xAA7F}};
static const uint32_t hangul_and_jamo[][2] = {{0x1100, 0x11FF}, {0xAC00, 0xD7AF}};
static const uint32_t bloom_punctuation[][2] = {
    {'!', '!'}, {'(', ')'}, {',', ','}, {'.', '.'}, {'?', '?'}, {'|', '|'}, {0x60C, 0x60C},
    {0x6D4, 0x6D4}, {0x964, 0x964}, {0x2026, 0x2026}, {0x3001, 0x3002}, {0xFF0C, 0xFF0C},
};
static const uint32_t deepseek_punctuation[][2] = {
    {'!', '/'}, {':', '~'}, {0x2018, 0x201F}, {0x3000, 0x3002}, {0xFF01, 0xFF0F}, {0xFF1A, 0xFF5E},
};
static const uint32_t deepseek_letters[][2] = {
    {0x41, 0x5a}, {0x61, 0x7a}, {0xb5, 0xb5}, {0xc0, 0xd6}, {0xd8, 0xf6}, {0xf8, 0x1ba},
    {0x1bc, 0x1bf}, {0x1c4, 0x293}, {0x295, 0x2af}, {0x370, 0x373}, {0x376, 0x376}, {0x377, 0x377},
    {0x37b, 0x37d}, {0x37f, 0x37f}, {0x386, 0x386}, {0x388, 0x38a}, {0x38c, 0x38c}, {0x38e, 0x3a1},
    {0x3a3, 0x3f5}, {0x3f7, 0x481}, {0x48a, 0x52f}, {0x531, 0x556}, {0x10a0, 0x10c5},
    {0x13a0, 0x13f5}, {0x13f8, 0x13fd}, {0x1c90, 0x1cba}, {0x1cbd, 0x1cbf}, {0x1d00, 0x1d2b},
    {0x1d6b, 0x1d77}, {0x1d79, 0x1d9a}, {0x1e00, 0x1f15}, {0x1f18, 0x1f1d}, {0x1f20, 0x1f45},
    {0x1f48, 0x1f4d}, {0x1f50, 0x1f57}, {0x1f59, 0x1f59}, {0x1f5b, 0x1f5b}, {0x1f5d, 0x1f5d},
    {0x1f5f, 0x1f7d}, {0x1f80, 0x1fb4}, {0x1fb6, 0x1fbc}, {0x1fbe, 0x1fbe}, {0x1fc2, 0x1fc4},
    {0x1fc6, 0x1fcc}, {0x1fd0, 0x1fd3}, {0x1fd6, 0x1fdb}, {0x1fe0, 0x1fec}, {0x1ff2, 0x1ff4},
    {0x1ff6, 0x1ffc}, {0x2102, 0x2102}, {0x2107, 0x2107}, {0x210a, 0x2113}, {0x2115, 0x2115},
    {0x2119, 0x211d}, {0x2124, 0x2124}, {0x2126, 0x2126}, {0x2128, 0x2128}, {0x212a, 0x212d},
    {0x212f, 0x2134}, {0x2139, 0x2139}, {0x213c, 0x213f}, {0x2145, 0x2149}, {0x214e, 0x214e},
    {0x2183, 0x2183}, {0x2184, 0x2184}, {0x2c00, 0x2c7b}, {0x2c7e, 0x2ce4}, {0x2ceb, 0x2cee},
    {0x2cf2, 0x2cf2}, {0x2cf3, 0x2cf3}, {0xa640, 0xa66d}, {0xa680, 0xa69b}, {0xa722, 0xa76f},
    {0xa771, 0xa787}, {0xa78b, 0xa78e}, {0xab70, 0xabbf}, {0xfb00, 0xfb06}, {0xfb13, 0xfb17},
    {0xff21, 0xff3a}, {0xff41, 0xff5a}, {0x10400, 0x1044f}, {0x104b0, 0x104d3}, {0x104d8, 0x104fb},
    {0x10c80, 0x10cb2}, {0x10cc0, 0x10cf2}, {0x118a0, 0x118df}, {0x1e900, 0x1e943},
};

const Scanner scanners[N_SCANNERS] = {
    [METASPACE_NEVER] = {.name = "metaspace"},
    [METASPACE_FIRST] = {.name = "metaspace first"},
    [METASPACE_ALWAYS] = {.name = "metaspace always"},
    [4] = {"gpt2", scan_gpt2, .cls = LETTER},
    [5] = {"llama3", scan_llama3, .cls = LETTER, .most = 3},
    [6] = {"qwen2", scan_llama3, .cls = LETTER, .most = 1},
    [7] = {"qwen3.5", scan_llama3, .cls = LETTER | MARK, .most = 1},
    [8] = {"o200k", scan_o200k, .cls = LETTER, .most = 3, .contractions = true, .slash = true},
    [9] = {"tekken", scan_o200k, .cls = LETTER, .most = 1, .slash = true},
    [10] = {"deepseek3", scan_deepseek3, .cls = LETTER | MARK},
    [11] = {"digit", scan_run, .cls = DIGITS, .most = 1},
    [12] = {"digits", scan_run, .cls = DIGITS, .most = SIZE_MAX},
    [13] = {"numbers 1-3", scan_run, .cls = NUMBER, .most = 3},
    [14] = {"punctuation", scan_run, .cls = PUNCTUATION, .most = SIZE_MAX},
    [15] = {"newline", scan_newline, .cls = SPACE},
    [16] = {"spaced letters", scan_spaced_run, .cls = LETTER},
    [17] = {"spaced punctuation", scan_spaced_run, .cls = PUNCT},
    [18] = {"cjk from 0800", scan_ranges, RANGES(cjk_from_0800)},
    [19] = {"cjk and kana", scan_ranges, RANGES(cjk_and_kana)},
    [20] = {"byte digit", scan_byte_digits, .most = 1, .bytes = true},
    [21] = {"byte digits", scan_byte_digits, .most = SIZE_MAX, .bytes = true},
    [22] = {"three digits", scan_exactly, .most = 3, .bytes = true},
    [PREFIX_SPACE] = {.name = "prefix space"},
    [24] = {"bloom", scan_bloom, .cls = SPACE, RANGES(bloom_punctuation)},
    [25] = {"deepseek letters", scan_ranges, .spaced = true, RANGES(deepseek_letters)},
    [26] = {"deepseek punctuation", scan_ranges, .spaced = true, RANGES(deepseek_punctuation)},
    [27] = {"trailing spaces", scan_trailing_spaces, .cls = SPACE, .whole_runs = true},
    [28] = {"bert", scan_bert, .cls = PUNCTUATION | SPACE},
    [29] = {"white space", scan_visible, .cls = SPACE, .only_matches = true},
    [30] = {"words", scan_words, .cls = WORD, .only_matches = true},
    [31] = {"punctuation mark", scan_run, .cls = PUNCTUATION, .most = 1},
    [32] = {.name = "marks", .scan = scan_marked},
    [33] = {"seed coder", scan_llama3, .cls = LETTER, .most = 1, .apart = true},
    [34] = {"jais 2", scan_llama3, .cls = LETTER, .most = 3, .powers = true},
    [35] = {"exaone moe", scan_exaone, .cls = LETTER},
    [36] = {"youtu", scan_o200k, .cls = LETTER, .most = 1, .contractions = true, .slash = true},
    [37] = {"hangul", scan_ranges, RANGES(hangul)},
    [38] = {"wide marks", scan_ranges, RANGES(wide_marks)},
    [39] = {"bopomofo", scan_ranges, RANGES(bopomofo)},
    [40] = {"default punctuation", scan_ranges, .cls = PUNCT, RANGES(default_symbols)},
    [41] = {"numbers", scan_run, .cls = NUMBER, .most = SIZE_MAX},
    [42] = {"sentinel", scan_marker, .before = "<sentinel:", .after = '>', .most = SIZE_MAX,
            RANGES(ascii_digits)},
    [43] = {"image", scan_marker, .before = "IMGIMG", .after = 'Z', .most = 4,
            RANGES(image_letters)},
    [44] = {.name = "indents", .scan = scan_indents},
    [45] = {"bounded threes", scan_threes, .cls = DECIMAL, .bounded = true, .whole_runs = true,
            RANGES(odd_words)},
    [46] = {"threes", scan_threes, .cls = DECIMAL},
    [47] = {"to threes", scan_to_threes, .cls = DECIMAL},
    [48] = {"kimi", scan_o200k, .cls = LETTER, .alone = HAN, .most = 3, .contractions = true},
    [49] = {"east asian", scan_ranges, RANGES(east_asian)},
    [50] = {"thai", scan_ranges, RANGES(thai)},
    [51] = {"lao", scan_ranges, RANGES(lao)},
    [52] = {"khmer", scan_ranges, RANGES(khmer)},
    [53] = {"burmese", scan_ranges, RANGES(burmese)},
    [54] = {"hangul and jamo", scan_ranges, RANGES(hangul_and_jamo)},
};
