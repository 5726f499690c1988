// Text <-> ids: byte-pair encoding over bytes (GPT-2) or over characters (SentencePiece), Unigram
// (T5), or WordPiece (BERT), driven by the tables of docs/format.md, "The tokenizer". A text goes
// through five stages:
//
//   added tokens   cut out first; some are looked for in the raw text, others after normalization
//   normalizer     what lies between them is rewritten: text/normalize.c
//   pre-tokenizer  each of its steps cuts the pieces of the step before into smaller ones
//   model          each piece, as bytes or characters: text/bpe.c, text/unigram.c or
//                  text/wordpiece.c
//   prefix, suffix the post-processor's ids: BOS ..
#include "tokenizer.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "metadata.h"
#include "text/bpe.h"
#include "text/normalize.h"
#include "text/scanners.h"
#include "text/unicode.h"
#include "text/unigram.h"
#include "text/wordpiece.h"

enum {
    MAX_TOKENS = MAX_DIM - 1, MAX_ADDED_LENGTH = 1024, MAX_AROUND = 64, MAX_TEXT = INT_MAX / 4
};
enum { KIND_PLAIN, KIND_SPECIAL, KIND_BYTE, N_KINDS };  // of a token
enum { LSTRIP = 1, RSTRIP = 2, SINGLE_WORD = 4, AT_START = 8 };  // of an added token
// What U+2581 in a token's text decodes to; FIRST_VANISH: nothing in the first token.
enum { MARKS_STAY, MARKS_TO_SPACES, FIRST_MARKS_VANISH };

typedef struct {  // added tokens, sorted by their characters
    size_t n;
    const int32_t *begin;  // [n + 1]: token i is chars[begin[i]..begin[i + 1])
    const int32_t *chars, *ids;
    const uint8_t *flags;
    bool starts[256];  // whether one begins with a character whose low byte is this
} Added;

struct heads_tokenizer {
    int n_tokens;
    const int32_t *begin;   // [n_tokens + 1]: token i is text[begin[i]..begin[i + 1])
    const uint8_t *text;    // what the tokens stand for in decoded text
    const uint8_t *kinds;   // [n_tokens]
    const int32_t *bytes;   // [256]: the token of a byte, or -1
    Ints chars, char_ids;   // the tokens of one character, ascending; absent: byte-level
    Merges merges;
    Ints words;             // tokens that a whole piece can be, ascending by text; absent: none
    int unk;                // for what has no token, or -1: it vanishes
    bool fuse_unk;          // one for a row of them
    int wordpiece;          // most characters of a word that WordPiece cuts into `words`; 0: BPE
    size_t longest;         // bytes of the longest of `words`
    Normalizer normalizer;
    Ints splits;
    Unigram unigram;
    bool by_chars;          // the model reads characters, not bytes
    struct {                // what is written has tokens of its own, or the same as what is read
        int n;
        const int32_t *begin;
        const uint8_t *text, *kinds;
    } target;
    int marks;
    Added raw, normalized;
    Ints prefix, suffix, eos;
    int mask;               // of masked language models, or -1
    int strip;              // spaces taken off the beginning of a decoded text
    char description[400];
};

// ---- opening: every number of the file is checked before it is used ----

static int load_tokens(Tokenizer *t, Reader *r) {
    size_t text_bytes;
    if (!read_meta(r, "tokenizer.token.begin"))
        return fail(r->err, "metadata tokenizer.token.begin is missing: the checkpoint has no "
                    "tokenizer");
    if (read_lists(r, "tokenizer.token.begin", 1, MAX_TOKENS, &t->n_tokens, &t->begin,
                   &text_bytes) ||
        read_bytes(r, "tokenizer.token.text", text_bytes, UINT8_MAX, &t->text) ||
        read_bytes(r, "tokenizer.token.kind", (size_t)t->n_tokens, N_KINDS - 1, &t->kinds))
        return -1;
    if (load_unigram(&t->unigram, r, t->n_tokens, t->begin, t->text)) return -1;
    int bytes = t->unigram.ids.n ? 6 : 1;  // <0x0A>, or the byte itself
    for (int i = 0; i < t->n_tokens; i++)
        if (t->kinds[i] == KIND_BYTE && t->begin[i + 1] - t->begin[i] != bytes)
            return fail(r->err, "metadata tokenizer.token.text: token %d stands for a byte, but "
                        "has %d", i, t->begin[i + 1] - t->begin[i]);
    return 0;
}

// The tokens of what is written, where they are others.
static int load_target(Tokenizer *t, Reader *r) {
    size_t text_bytes;
    t->target.n = t->n_tokens, t->target.begin = t->begin;
    t->target.text = t->text, t->target.kinds = t->kinds;
    if (!read_meta(r, "tokenizer.target.begin")) return 0;
    if (!t->by_chars)
        return fail(r->err, "metadata tokenizer.target.begin needs a tokenizer over characters");
    return read_lists(r, "tokenizer.target.begin", 1, MAX_TOKENS, &t->target.n, &t->target.begin,
                      &text_bytes) ||
           read_bytes(r, "tokenizer.target.text", text_bytes, UINT8_MAX, &t->target.text) ||
           read_bytes(r, "tokenizer.target.kind", (size_t)t->target.n, KIND_SPECIAL,
                      &t->target.kinds);
}

static int load_units(Tokenizer *t, Reader *r) {
    int last = t->n_tokens - 1;
    Ints bytes;
    if (read_ints(r, "tokenizer.bytes", 256, -1, last, &bytes) ||
        read_ints(r, "tokenizer.chars", SIZE_MAX, 0, 0x10FFFF, &t->chars) ||
        read_ints(r, "tokenizer.char_ids", t->chars.n, 0, last, &t->char_ids) ||
        read_int(r, "tokenizer.unk", 0, last, -1, &t->unk))
        return -1;
    t->bytes = bytes.v;
    t->by_chars = t->chars.n || t->unigram.ids.n;
    if (t->unigram.ids.n && (t->unk < 0 || t->chars.n))
        return fail(r->err, "metadata tokenizer.unigram needs tokenizer.unk, and no chars");
    for (size_t i = 1; i < t->chars.n; i++)
        if (t->chars.v[i] <= t->chars.v[i - 1])
            return fail(r->err, "metadata tokenizer.chars: value %zu is not above the one before",
                        i);
    int fuse;
    if (read_int(r, "tokenizer.fuse_unk", 0, 1, 0, &fuse)) return -1;
    t->fuse_unk = fuse;
    if (read_int(r, "tokenizer.wordpiece", 1, 1 << 16, 0, &t->wordpiece)) return -1;
    if (t->wordpiece && (t->unk < 0 || t->chars.n))
        return fail(r->err, "metadata tokenizer.wordpiece needs tokenizer.unk, and no chars");
    return 0;
}

// Compares a token's text with text[0..len).
static int compare_text(const Tokenizer *t, int id, const uint8_t *text, size_t len) {
    size_t own = (size_t)(t->begin[id + 1] - t->begin[id]);
    int order = own && len ? memcmp(t->text + t->begin[id], text, own < len ? own : len) : 0;
    return order ? order : (own > len) - (own < len);
}

static int load_words(Tokenizer *t, Reader *r) {
    if (read_ints(r, "tokenizer.words", SIZE_MAX, 0, t->n_tokens - 1, &t->words)) return -1;
    if (t->words.n && t->by_chars)
        return fail(r->err, "metadata tokenizer.words: only a byte-level tokenizer has it");
    for (size_t i = 0; i < t->words.n; i++) {
        int32_t id = t->words.v[i];
        size_t len = (size_t)(t->begin[id + 1] - t->begin[id]);
        if (len > t->longest) t->longest = len;
    }
    for (size_t i = 1; i < t->words.n; i++) {
        int id = t->words.v[i];
        const uint8_t *text = t->text + t->begin[id];
        size_t len = (size_t)(t->begin[id + 1] - t->begin[id]);
        if (compare_text(t, t->words.v[i - 1], text, len) >= 0)
            return fail(r->err, "metadata tokenizer.words: token %d is not above the one before in "
                        "the order of bytes", id);
    }
    return 0;
}

// Whether added token i is below token i + 1 in the order of characters.
static bool added_ascends(const Added *a, size_t i) {
    int32_t p = a->begin[i], q = a->begin[i + 1], end = a->begin[i + 2];
    for (; p < a->begin[i + 1] && q < end; p++, q++)
        if (a->chars[p] != a->chars[q]) return a->chars[p] < a->chars[q];
    return p == a->begin[i + 1] && q < end;
}

static int load_added(Added *a, const Tokenizer *t, Reader *r, const char *where) {
    enum { BEGIN, CHARS, IDS, FLAGS };
    char key[4][64];
    const char *const names[] = {"begin", "chars", "id", "flags"};
    for (int i = 0; i < 4; i++) snprintf(key[i], sizeof key[i], "tokenizer.%s.%s", where, names[i]);
    size_t n_chars;
    Ints ids, chars;
    if (read_ints(r, key[IDS], SIZE_MAX, 0, t->n_tokens - 1, &ids)) return -1;
    a->n = ids.n;
    if (a->n == 0) return 0;
    if (read_offsets(r, key[BEGIN], a->n, &a->begin, &n_chars) ||
        read_ints(r, key[CHARS], n_chars, 0, 0x10FFFF, &chars) ||
        read_bytes(r, key[FLAGS], a->n, LSTRIP | RSTRIP | SINGLE_WORD | AT_START,
                   &a->flags))
        return -1;
    a->chars = chars.v;
    a->ids = ids.v;
    for (size_t i = 0; i < a->n; i++) {
        int length = a->begin[i + 1] - a->begin[i];
        if (length < 1 || length > MAX_ADDED_LENGTH)
            return fail(r->err, "metadata %s: token %zu has %d characters, expected 1..%d",
                        key[BEGIN], i, length, MAX_ADDED_LENGTH);
        if (i + 1 < a->n && !added_ascends(a, i))
            return fail(r->err, "metadata %s: token %zu is not above the one before", key[CHARS],
                        i + 1);
        a->starts[a->chars[a->begin[i]] & 255] = true;
    }
    return 0;
}

static int load_steps(Tokenizer *t, Reader *r) {
    if (load_normalizer(&t->normalizer, r) ||
        read_ints(r, "tokenizer.splits", SIZE_MAX, 1, N_SCANNERS - 1, &t->splits))
        return -1;
    if (t->splits.n > MAX_STEPS)
        return fail(r->err, "metadata tokenizer.splits: more than %d steps", MAX_STEPS);
    for (size_t i = 0; i < t->splits.n; i++) {
        const Scanner *s = &scanners[t->splits.v[i]];
        if (!s->scan && i > 0 && t->splits.v[i] != METASPACE_NEVER &&
            t->splits.v[i] != METASPACE_ALWAYS)
            return fail(r->err, "metadata tokenizer.splits: \"%s\" must be the first step",
                        s->name);
        if (s->bytes && t->by_chars)
            return fail(r->err, "metadata tokenizer.splits: \"%s\" needs a byte-level tokenizer",
                        s->name);
        if (i > 0 && !s->bytes && scanners[t->splits.v[i - 1]].bytes)
            return fail(r->err, "metadata tokenizer.splits: \"%s\" follows a step that works on "
                        "bytes", s->name);
    }
    return 0;
}

static int load_rest(Tokenizer *t, Reader *r) {
    if (read_ints(r, "tokenizer.prefix", SIZE_MAX, 0, t->n_tokens - 1, &t->prefix) ||
        read_ints(r, "tokenizer.suffix", SIZE_MAX, 0, t->n_tokens - 1, &t->suffix) ||
        read_ints(r, "tokenizer.eos", SIZE_MAX, 0, MAX_DIM, &t->eos) ||
        read_int(r, "tokenizer.mask", 0, t->n_tokens - 1, -1, &t->mask) ||
        read_int(r, "tokenizer.marks", MARKS_STAY, FIRST_MARKS_VANISH, MARKS_STAY, &t->marks) ||
        read_int(r, "tokenizer.strip", 0, INT_MAX, 0, &t->strip))
        return -1;
    if (t->prefix.n > MAX_AROUND || t->suffix.n > MAX_AROUND || t->eos.n > MAX_AROUND)
        return fail(r->err, "metadata tokenizer.prefix, .suffix or .eos: more than %d ids",
                    MAX_AROUND);
    return refuse_unread_meta(r, "tokenizer.");
}

// Appends to the description, as far as there is room.
static void describe(Tokenizer *t, const char *before, const char *text) {
    size_t used = strlen(t->description);
    snprintf(t->description + used, sizeof t->description - used, "%s%s", before, text);
}

static void describe_ids(Tokenizer *t, const char *name, Ints ids) {
    for (size_t i = 0; i < ids.n; i++) {
        char number[16];
        snprintf(number, sizeof number, "%d", ids.v[i]);
        describe(t, i == 0 ? ", " : " ", i == 0 ? name : "");
        describe(t, i == 0 ? " " : "", number);
    }
}

static void describe_all(Tokenizer *t) {
    bool fallback = t->by_chars && t->bytes['A'] >= 0;
    snprintf(t->description, sizeof t->description, "%s%s, %d tokens",
             t->wordpiece       ? "WordPiece"
             : t->unigram.ids.n ? "Unigram"
             : t->chars.n       ? "character BPE" : "byte-level BPE",
             fallback ? " with byte fallback" : "", t->n_tokens);
    const Ints *steps = &t->normalizer.steps;
    for (size_t i = 0; i < steps->n; i++)
        describe(t, i ? " + " : ", normalizer ", normalizer_name(steps->v[i]));
    for (size_t i = 0; i < t->splits.n; i++)
        describe(t, i ? " + " : ", pre-tokenizer ", scanners[t->splits.v[i]].name);
    describe_ids(t, "prefix", t->prefix);
    describe_ids(t, "suffix", t->suffix);
    describe_ids(t, "EOS", t->eos);
}

bool has_tokenizer(const Checkpoint *file) {
    for (int i = 0; i < file->n_meta; i++)
        if (file->meta[i].key_len > 10 && memcmp(file->meta[i].key, "tokenizer.", 10) == 0)
            return true;
    return false;
}

static int load(Tokenizer *t, Reader *r) {
    if (load_tokens(t, r) || load_units(t, r) || load_target(t, r)) return -1;
    if (!t->unigram.ids.n && load_merges(&t->merges, r, t->n_tokens)) return -1;
    return load_words(t, r) || load_added(&t->raw, t, r, "added") ||
           load_added(&t->normalized, t, r, "added_normalized") || load_steps(t, r) ||
           load_rest(t, r);
}

Tokenizer *tokenizer_new(const Checkpoint *file, Error *err) {
    Reader r;
    if (reader_open(&r, file, err)) return NULL;
    Tokenizer *t = calloc(1, sizeof *t);
    int status = t ? load(t, &r) : fail(err, "no memory for the tokenizer");
    reader_close(&r);
    if (status) {
        tokenizer_free(t);
        return NULL;
    }
    describe_all(t);
    return t;
}

void tokenizer_free(Tokenizer *tokenizer) { free(tokenizer); }

bool tokenizer_is_eos(const Tokenizer *tokenizer, int id) {
    for (size_t i = 0; i < tokenizer->eos.n; i++)
        if (tokenizer->eos.v[i] == id) return true;
    return false;
}

bool tokenizer_is_special(const Tokenizer *tokenizer, int id) {
    return 0 <= id && id < tokenizer->n_tokens && tokenizer->kinds[id] == KIND_SPECIAL;
}

long tokenizer_cut(const Tokenizer *tokenizer, int *ids, long n, long most) {
    long suffix = (long)tokenizer->suffix.n;
    if (n <= most) return n;
    if (suffix > most) suffix = most;
    memmove(ids + most - suffix, ids + n - suffix, sizeof *ids * (size_t)suffix);
    return most;
}

const char *tokenizer_text(const Tokenizer *t, int id, size_t *len) {
    bool known = id >= 0 && id < t->n_tokens;
    *len = known ? (size_t)(t->begin[id + 1] - t->begin[id]) : 0;
    return (const char *)t->text + (known ? t->begin[id] : 0);
}

const char *tokenizer_written(const Tokenizer *t, int id, size_t *len) {
    bool known = id >= 0 && id < t->target.n;
    *len = known ? (size_t)(t->target.begin[id + 1] - t->target.begin[id]) : 0;
    return (const char *)t->target.text + (known ? t->target.begin[id] : 0);
}

bool tokenizer_marks_spaces(const Tokenizer *t) { return t->marks != MARKS_STAY; }

int tokenizer_mask(const Tokenizer *tokenizer, const char **text, size_t *len, bool *strips) {
    *strips = false;
    *text = tokenizer_text(tokenizer, tokenizer->mask, len);
    const Added *lists[] = {&tokenizer->raw, &tokenizer->normalized};
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < lists[k]->n; i++)
            if (lists[k]->ids[i] == tokenizer->mask) *strips = lists[k]->flags[i] & LSTRIP;
    return tokenizer->mask;
}

const char *tokenizer_describe(const Tokenizer *tokenizer) { return tokenizer->description; }

// ---- the model: a piece -> ids ----

typedef struct {  // one call of tokenizer_encode; every array grows as needed
    const Tokenizer *t;
    int *ids;
    uint32_t *bytes;      // a piece as bytes, one an element
    uint8_t *word;        // the same, packed
    uint16_t *cls;        // classes of a stretch between added tokens
    Symbol *symbols;
    UnigramNode *nodes;
    uint64_t *heap;       // of merges that may be done
    size_t n_ids, n_symbols;
    size_t ids_room, bytes_room, word_room, cls_room, symbols_room, nodes_room, heap_room;
    bool at_start;        // the stretch begins where the text does
} Encoder;

// Makes room for n elements of an array; false: no memory, the array is as it was.
static bool make_room(void *array, size_t *room, size_t n, size_t size) {
    if (n <= *room) return true;
    size_t more = n + n / 2 + 16;
    void *old, *p;
    memcpy(&old, array, sizeof old);
    if (more > SIZE_MAX / size || !(p = realloc(old, more * size))) return false;
    memcpy(array, &p, sizeof p);
    *room = more;
    return true;
}
#define RESERVE(e, array, n) make_room(&(e)->array, &(e)->array##_room, n, sizeof *(e)->array)

static bool push_id(Encoder *e, int id) {
    if (!RESERVE(e, ids, e->n_ids + 1)) return false;
    e->ids[e->n_ids++] = id;
    return true;
}

static int find_char(const Tokenizer *t, uint32_t c) {
    int n = (int)t->chars.n, i = lower_bound(t->chars.v, 0, n, c);
    return i < n && (uint32_t)t->chars.v[i] == c ? t->char_ids.v[i] : -1;
}

static int find_word(const Tokenizer *t, const uint8_t *text, size_t len) {
    size_t low = 0, high = t->words.n;
    while (low < high) {
        size_t mid = (low + high) / 2;
        int order = compare_text(t, t->words.v[mid], text, len);
        if (order == 0) return t->words.v[mid];
        if (order < 0) low = mid + 1;
        else high = mid;
    }
    return -1;
}

static void add_symbol(Encoder *e, int id) {
    int i = (int)e->n_symbols++;
    e->symbols[i] = (Symbol){id, i - 1, -1, -1};
    if (i > 0) e->symbols[i - 1].next = i;
}

// Adds the byte tokens of a character; false, and none, if one is missing.
static bool add_fallback(Encoder *e, uint32_t c) {
    uint8_t bytes[4];
    size_t n = utf8_encode(c, bytes);
    for (size_t i = 0; i < n; i++)
        if (e->t->bytes[bytes[i]] < 0) return false;
    for (size_t i = 0; i < n; i++) add_symbol(e, e->t->bytes[bytes[i]]);
    return true;
}

// The tokens of single characters (or bytes). An unknown goes in before the next character that has
// a token of its own, so after byte tokens: as in `tokenizers`.
static void first_symbols(Encoder *e, const uint32_t *units, size_t n) {
    const Tokenizer *t = e->t;
    bool unknown = false;
    e->n_symbols = 0;
    for (size_t i = 0; i < n; i++) {
        int id = t->chars.n ? find_char(t, units[i]) : t->bytes[units[i]];
        if (id < 0 && t->chars.n && add_fallback(e, units[i])) continue;
        if (id < 0 && t->unk < 0) continue;
        if (unknown && !(id < 0 && t->fuse_unk)) add_symbol(e, t->unk);
        unknown = id < 0;
        if (!unknown) add_symbol(e, id);
    }
    if (unknown) add_symbol(e, t->unk);
}

static int find_piece(const void *t, const uint8_t *text, size_t len) {
    return find_word(t, text, len);
}

// The ids of a word, given as bytes; white space between words has none.
static bool encode_word(Encoder *e, const uint32_t *bytes, size_t n) {
    uint32_t first;
    bool whole;
    int n_chars = 0;
    if (!RESERVE(e, word, n + 1) || !RESERVE(e, ids, e->n_ids + n + 1)) return false;
    e->word[0] = ' ';
    for (size_t i = 0; i < n; i++) {
        e->word[i + 1] = (uint8_t)bytes[i];
        n_chars += (bytes[i] & 0xC0) != 0x80;
    }
    utf8_decode(e->word + 1, n, &first, &whole);
    if (unicode_class(first) & SPACE) return true;
    size_t n_ids = n_chars > e->t->wordpiece ? 0
                   : wordpiece(e->word, n + 1, e->t->longest, find_piece, e->t, e->ids + e->n_ids);
    if (!n_ids) return push_id(e, e->t->unk);
    e->n_ids += n_ids;
    return true;
}

// A run of unknowns: the token whose text it is, else those of its bytes, else one unknown.
static bool push_unknown(Encoder *e, const uint8_t *text, size_t len) {
    int id = unigram_find(&e->t->unigram, text, len);
    bool fallback = id < 0;
    for (size_t i = 0; fallback && i < len; i++) fallback = e->t->bytes[text[i]] >= 0;
    if (!fallback) return push_id(e, id < 0 ? e->t->unk : id);
    for (size_t i = 0; i < len; i++)
        if (!push_id(e, e->t->bytes[text[i]])) return false;
    return true;
}

static bool encode_unigram(Encoder *e, const uint32_t *chars, size_t n) {
    if (!RESERVE(e, word, 4 * n) || !RESERVE(e, nodes, 4 * n + 1)) return false;
    size_t len = 0;
    for (size_t i = 0; i < n; i++) len += utf8_encode(chars[i], e->word + len);
    unigram_cut(&e->t->unigram, e->word, len, e->t->unk, e->nodes);
    for (size_t i = 0, end; i < len; i = end) {
        int id = e->nodes[i].id;
        end = (size_t)e->nodes[i].to;
        while (id == e->t->unk && end < len && e->nodes[end].id == id)
            end = (size_t)e->nodes[end].to;
        if (id == e->t->unk ? !push_unknown(e, e->word + i, end - i) : !push_id(e, id))
            return false;
    }
    return true;
}

// The ids of a piece: of characters or bytes, as the tokenizer's units are.
static bool encode_piece(Encoder *e, const uint32_t *units, size_t n) {
    if (e->t->wordpiece) return encode_word(e, units, n);
    if (e->t->unigram.ids.n) return encode_unigram(e, units, n);
    if (e->t->words.n) {
        if (!RESERVE(e, word, n)) return false;
        for (size_t i = 0; i < n; i++) e->word[i] = (uint8_t)units[i];
        int id = find_word(e->t, e->word, n);
        if (id >= 0) return push_id(e, id);
    }
    if (!RESERVE(e, symbols, e->t->chars.n ? 4 * n : n)) return false;
    first_symbols(e, units, n);
    if (e->n_symbols == 0) return true;
    if (!RESERVE(e, heap, 3 * e->n_symbols)) return false;
    merge_symbols(&e->t->merges, e->symbols, (int)e->n_symbols, e->heap);
    for (int i = 0; i >= 0; i = e->symbols[i].next)
        if (!push_id(e, e->symbols[i].id)) return false;
    return true;
}

// ---- pre-tokenizer: a stretch between added tokens -> pieces ------------------------------------

static bool to_bytes(Encoder *e, const uint32_t *chars, size_t n, size_t *n_bytes) {
    if (!RESERVE(e, bytes, 4 * n)) return false;
    *n_bytes = 0;
    for (size_t i = 0; i < n; i++) {
        uint8_t bytes[4];
        size_t k = utf8_encode(chars[i], bytes);
        for (size_t j = 0; j < k; j++) e->bytes[(*n_bytes)++] = bytes[j];
    }
    return true;
}

static bool split(Encoder *e, const Text *t, size_t begin, size_t end, size_t step);

// A step that changes a piece before the next one cuts it: spaces become marks, one goes in front.
static bool split_changed(Encoder *e, const Text *t, size_t begin, size_t end, size_t step) {
    int kind = e->t->splits.v[step];
    bool metaspace = kind != PREFIX_SPACE;
    bool spaced = t->c[begin] == ' ' || (metaspace && t->c[begin] == SPACE_MARK);
    bool wanted = kind != METASPACE_NEVER && (kind != METASPACE_FIRST || e->at_start);
    size_t n = end - begin, front = wanted && !spaced;
    uint32_t *c = malloc((n + front) * sizeof *c), put = metaspace ? SPACE_MARK : ' ';
    uint16_t *cls = malloc((n + front) * sizeof *cls), put_class = unicode_class(put);
    for (size_t i = 0; c && cls && i < n + front; i++) {
        bool kept = i >= front && !(metaspace && t->c[begin + i - front] == ' ');
        c[i] = kept ? t->c[begin + i - front] : put;
        cls[i] = kept ? t->cls[begin + i - front] : put_class;
    }
    bool ok = c && cls && split(e, &(Text){c, cls}, 0, n + front, step + 1);
    free(c);
    free(cls);
    return ok;
}

// Cuts t[begin..end) by steps step.. and encodes the pieces. What no match of a step covers is a
// piece too.
static bool split(Encoder *e, const Text *t, size_t begin, size_t end, size_t step) {
    const Ints *steps = &e->t->splits;
    const Scanner *s = step < steps->n ? &scanners[steps->v[step]] : NULL;
    bool is_bytes = !t->cls;
    if (!is_bytes && (s ? s->bytes : !e->t->by_chars)) {
        size_t n;
        if (!to_bytes(e, t->c + begin, end - begin, &n)) return false;
        return split(e, &(Text){e->bytes, NULL}, 0, n, step);
    }
    if (!s) return encode_piece(e, t->c + begin, end - begin);
    if (!s->scan) return split_changed(e, t, begin, end, step);
    size_t rest = begin;
    for (size_t i = begin; i < end;) {
        size_t stop = s->scan(s, t, i, end);
        if (stop == i) {
            bool run = s->whole_runs && t->cls[i] & s->cls;
            do i++;
            while (run && i < end && t->cls[i] & s->cls);
            continue;
        }
        if (rest < i && !s->only_matches && !split(e, t, rest, i, step + 1)) return false;
        if (!split(e, t, i, stop, step + 1)) return false;
        rest = i = stop;
    }
    return rest == end || s->only_matches || split(e, t, rest, end, step + 1);
}

// A stretch without added tokens; at_start: it begins where the text does.
static bool encode_stretch(Encoder *e, const uint32_t *chars, size_t n, bool at_start) {
    if (n == 0) return true;
    if (!RESERVE(e, cls, n)) return false;
    for (size_t i = 0; e->t->splits.n && i < n; i++) e->cls[i] = unicode_class(chars[i]);
    e->at_start = at_start;
    return split(e, &(Text){chars, e->cls}, 0, n, 0);
}

// ---- added tokens -------------------------------------------------------------------------------

// The first of the added tokens low..high-1, which agree in their first k characters, whose next
// one is at least c.
static size_t added_bound(const Added *a, size_t low, size_t high, int32_t k, int64_t c) {
    while (low < high) {
        size_t mid = (low + high) / 2;
        int64_t own = a->begin[mid] + k < a->begin[mid + 1] ? a->chars[a->begin[mid] + k] : -1;
        if (own < c) low = mid + 1;
        else high = mid;
    }
    return low;
}

// The longest added token that chars[0..n) begins with, and its length; -1: none.
static int find_added(const Added *a, const uint32_t *chars, size_t n, size_t *len) {
    int best = -1;
    if (n == 0 || !a->starts[chars[0] & 255]) return -1;
    size_t low = 0, high = a->n;
    for (size_t k = 0; k < n && low < high; k++) {
        low = added_bound(a, low, high, (int32_t)k, chars[k]);
        high = added_bound(a, low, high, (int32_t)k, (int64_t)chars[k] + 1);
        if (low < high && (size_t)(a->begin[low + 1] - a->begin[low]) == k + 1) {
            best = (int)low;
            *len = k + 1;
        }
    }
    return best;
}

typedef bool StretchFn(Encoder *e, const uint32_t *chars, size_t n, bool at_start);

// Emits the added tokens in chars[0..n), and hands what lies between them to `between`. White space
// that a token strips may itself begin an added token, which is then emitted although it lies
// inside (but not if it strips before and has nothing left), and the text goes on after it: as in
// `tokenizers`.
static bool split_added(Encoder *e, const Added *a, const uint32_t *chars, size_t n, bool at_start,
                        StretchFn *between) {
    size_t rest = 0;        // where text that was not emitted yet begins
    size_t spaces_end = 0;  // where the last white space stripped ends
    size_t only_one = SIZE_MAX;  // where the last token with AT_START ends
    for (size_t i = 0, len = 0; a->n && i < n; i += len) {
        int token = find_added(a, chars + i, n - i, &len);
        if (token < 0) {
            len = 1;
            continue;
        }
        size_t start = i, stop = i + len;
        int flags = a->flags[token];
        bool word_before = start > 0 && unicode_class(chars[start - 1]) & WORD;
        bool word_after = stop < n && unicode_class(chars[stop]) & WORD;
        if (flags & SINGLE_WORD && (word_before || word_after)) continue;
        if (flags & AT_START && (i != rest || i == only_one)) continue;
        if (flags & LSTRIP) {
            while (start > rest && unicode_class(chars[start - 1]) & SPACE) start--;
            if (start < rest) start = rest;
        }
        if (flags & RSTRIP) {
            if (stop < spaces_end) stop = spaces_end;
            while (stop < n && unicode_class(chars[stop]) & SPACE) stop++;
            spaces_end = stop;
        }
        if (rest < start && !between(e, chars + rest, start - rest, at_start && rest == 0))
            return false;
        if (flags & AT_START) only_one = stop;
        if (start < stop && !push_id(e, a->ids[token])) return false;
        rest = stop;
    }
    return rest == n || between(e, chars + rest, n - rest, at_start && rest == 0);
}

// ---- normalizer ---------------------------------------------------------------------------------

// A stretch of raw text: normalized, and searched for the other added tokens.
static bool encode_raw(Encoder *e, const uint32_t *chars, size_t n, bool at_start) {
    const Tokenizer *t = e->t;
    if (t->normalizer.steps.n == 0)
        return split_added(e, &t->normalized, chars, n, at_start, encode_stretch);
    uint32_t *changed = malloc((n + 1) * sizeof *changed);
    if (changed && n) memcpy(changed, chars, n * sizeof *changed);
    bool ok = changed && normalize(&t->normalizer, &changed, &n) &&
              split_added(e, &t->normalized, changed, n, at_start, encode_stretch);
    free(changed);
    return ok;
}

// ---- encode -------------------------------------------------------------------------------------

static bool encode_text(Encoder *e, const char *text, size_t len, bool add_special) {
    const Tokenizer *t = e->t;
    uint32_t *chars = malloc((len + 1) * sizeof *chars);
    size_t n = 0;
    bool ok = chars, whole;
    for (size_t i = 0; ok && i < len; n++)
        i += utf8_decode((const uint8_t *)text + i, len - i, &chars[n], &whole);
    for (size_t i = 0; ok && add_special && i < t->prefix.n; i++) ok = push_id(e, t->prefix.v[i]);
    ok = ok && split_added(e, &t->raw, chars, n, true, encode_raw);
    for (size_t i = 0; ok && add_special && i < t->suffix.n; i++) ok = push_id(e, t->suffix.v[i]);
    free(chars);
    return ok;
}

long tokenizer_encode(const Tokenizer *tokenizer, const char *text, size_t len, bool add_special,
                      int **ids, Error *err) {
    *ids = NULL;
    if (len > MAX_TEXT)
        return fail(err, "the text has %zu bytes, expected at most %d", len, MAX_TEXT);
    Encoder e = {.t = tokenizer};
    bool ok = RESERVE(&e, ids, 1) && encode_text(&e, text, len, add_special);
    free(e.bytes);
    free(e.word);
    free(e.cls);
    free(e.symbols);
    free(e.nodes);
    free(e.heap);
    if (!ok) {
        free(e.ids);
        return fail(err, "no memory to tokenize a text of %zu bytes", len);
    }
    *ids = e.ids;
    return (long)e.n_ids;
}

// ---- decode -------------------------------------------------------------------------------------

struct heads_decoder {
    const Tokenizer *t;
    bool skip_special;
    bool begun;     // a token was written
    size_t strip;   // spaces yet to be taken off the beginning
    uint8_t *held;  // bytes that wait for those of the next tokens
    char *out;
    size_t n_held, n_out, held_room, out_room;
};

Decoder *decoder_new(const Tokenizer *tokenizer, bool skip_special, Error *err) {
    Decoder *d = calloc(1, sizeof *d);
    if (!d || !RESERVE(d, out, 16)) {
        free(d);
        fail(err, "no memory for a decoder");
        return NULL;
    }
    d->t = tokenizer;
    d->skip_special = skip_special;
    d->strip = (size_t)tokenizer->strip;
    return d;
}

void decoder_free(Decoder *decoder) {
    if (!decoder) return;
    free(decoder->held);
    free(decoder->out);
    free(decoder);
}

static bool put_char(Decoder *d, uint32_t c) {
    if (d->strip > 0 && c == ' ') {
        d->strip--;
        return true;
    }
    d->strip = 0;
    if (!RESERVE(d, out, d->n_out + 4)) return false;
    d->n_out += utf8_encode(c, (uint8_t *)d->out + d->n_out);
    return true;
}

// Writes the characters of text[0..n), bad bytes replaced. Returns how many bytes it took: all,
// unless a character is cut off at the end and `more` may follow. -1: no memory.
static ptrdiff_t put_text(Decoder *d, const uint8_t *text, size_t n, bool more) {
    size_t i = 0;
    while (i < n) {
        uint32_t c;
        bool whole;
        size_t len = utf8_decode(text + i, n - i, &c, &whole);
        if (!whole && more) break;
        if (!put_char(d, c)) return -1;
        i += len;
    }
    return (ptrdiff_t)i;
}

static bool hold(Decoder *d, const uint8_t *text, size_t n) {
    if (!RESERVE(d, held, d->n_held + n)) return false;
    if (n) memcpy(d->held + d->n_held, text, n);
    d->n_held += n;
    return true;
}

// Byte-level: writes what is held as far as its characters are whole.
static bool put_held_text(Decoder *d, bool more) {
    ptrdiff_t taken = put_text(d, d->held, d->n_held, more);
    if (taken < 0) return false;
    if (taken > 0) memmove(d->held, d->held + taken, d->n_held - (size_t)taken);
    d->n_held -= (size_t)taken;
    return true;
}

// Characters with byte fallback: a row of byte tokens is text if all of it is UTF-8, else every
// byte of it is replaced, as in `tokenizers`. So it waits until the row ends.
static bool put_held_row(Decoder *d) {
    bool good = true, whole;
    for (size_t i = 0; good && i < d->n_held;) {
        uint32_t c;
        size_t len = utf8_decode(d->held + i, d->n_held - i, &c, &whole);
        good = c != REPLACEMENT ||
               (len == 3 && d->held[i] == 0xEF && d->held[i + 1] == 0xBF && d->held[i + 2] == 0xBD);
        i += len;
    }
    bool ok = !good || put_text(d, d->held, d->n_held, false) >= 0;
    for (size_t i = 0; ok && !good && i < d->n_held; i++) ok = put_char(d, REPLACEMENT);
    d->n_held = 0;
    return ok;
}

// Text whose marks are spaces, or nothing in the first token.
static bool put_marked(Decoder *d, const uint8_t *text, size_t n, bool first) {
    static const uint8_t mark[] = "\u2581";
    size_t begin = 0, i = 0;
    for (; d->t->marks && i + 3 <= n; i++) {
        if (memcmp(text + i, mark, 3) != 0) continue;
        if (put_text(d, text + begin, i - begin, false) < 0) return false;
        if (!(first && d->t->marks == FIRST_MARKS_VANISH) && !put_char(d, ' ')) return false;
        begin = i + 3;
        i += 2;
    }
    return put_text(d, text + begin, n - begin, false) >= 0;
}

static bool put_token(Decoder *d, int id) {
    const Tokenizer *t = d->t;
    size_t n;
    const uint8_t *text = (const uint8_t *)tokenizer_written(t, id, &n);
    if (id >= t->target.n || (d->skip_special && t->target.kinds[id] == KIND_SPECIAL)) return true;
    if (!t->by_chars) return hold(d, text, n) && put_held_text(d, true);
    bool first = !d->begun;
    d->begun = true;
    if (t->target.kinds[id] == KIND_BYTE) {
        char hex[3] = "";
        if (n == 6) memcpy(hex, text + 3, 2);
        uint8_t byte = (uint8_t)strtoul(hex, NULL, 16);  // of <0x0A>
        return hold(d, n == 6 ? &byte : text, 1);
    }
    return put_held_row(d) && put_marked(d, text, n, first);
}

int decoder_push(Decoder *decoder, int id, const char **out, size_t *len, Error *err) {
    if (id < 0) return fail(err, "token id %d cannot be decoded: it is negative", id);
    decoder->n_out = 0;
    if (!put_token(decoder, id)) return fail(err, "no memory to decode token %d", id);
    *out = decoder->out;
    *len = decoder->n_out;
    return 0;
}

int decoder_finish(Decoder *decoder, const char **out, size_t *len, Error *err) {
    decoder->n_out = 0;
    bool ok = decoder->t->by_chars ? put_held_row(decoder) : put_held_text(decoder, false);
    if (!ok) return fail(err, "no memory to decode the end of the text");
    *out = decoder->out;
    *len = decoder->n_out;
    return 0;
}
