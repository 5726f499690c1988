#include "text/pieces.h"

#include "text/grow.h"
#include "text/unicode.h"

bool push_id(Pieces *p, int id) {
    if (!RESERVE(p, ids, p->n_ids + 1)) return false;
    p->ids[p->n_ids++] = id;
    return true;
}

// ---- BPE: the tokens of single characters or bytes, merged ----

static int find_char(const Tokenizer *t, uint32_t c) {
    int n = (int)t->chars.n, i = lower_bound(t->chars.v, 0, n, c);
    return i < n && (uint32_t)t->chars.v[i] == c ? t->char_ids.v[i] : -1;
}

static void add_symbol(Pieces *p, int id) {
    int i = (int)p->n_symbols++;
    p->symbols[i] = (Symbol){id, i - 1, -1, -1};
    if (i > 0) p->symbols[i - 1].next = i;
}

// Adds the byte tokens of a character; false, and none, if one is missing.
static bool add_fallback(Pieces *p, uint32_t c) {
    uint8_t bytes[4];
    size_t n = utf8_encode(c, bytes);
    for (size_t i = 0; i < n; i++)
        if (p->t->bytes[bytes[i]] < 0) return false;
    for (size_t i = 0; i < n; i++) add_symbol(p, p->t->bytes[bytes[i]]);
    return true;
}

// Makes a symbol of each character or byte. As in `tokenizers`, an unk is added only before the
// next character that has a token of its own, and so after byte tokens between.
static void first_symbols(Pieces *p, const uint32_t *units, size_t n) {
    const Tokenizer *t = p->t;
    bool unknown = false;
    p->n_symbols = 0;
    for (size_t i = 0; i < n; i++) {
        int id = t->by_chars ? find_char(t, units[i]) : t->bytes[units[i]];
        if (id < 0 && t->by_chars && add_fallback(p, units[i])) continue;
        if (id < 0 && t->unk < 0) continue;
        if (unknown && !(id < 0 && t->fuse_unk)) add_symbol(p, t->unk);
        unknown = id < 0;
        if (!unknown) add_symbol(p, id);
    }
    if (unknown) add_symbol(p, t->unk);
}

static bool encode_bpe(Pieces *p, const uint32_t *units, size_t n) {
    if (p->t->words.n) {
        if (!RESERVE(p, bytes, n)) return false;
        for (size_t i = 0; i < n; i++) p->bytes[i] = (uint8_t)units[i];
        int id = find_word(p->t, p->bytes, n);
        if (id >= 0) return push_id(p, id);
    }
    if (!RESERVE(p, symbols, p->t->by_chars ? 4 * n : n)) return false;
    first_symbols(p, units, n);
    if (p->n_symbols == 0) return true;
    if (!RESERVE(p, heap, 3 * p->n_symbols)) return false;
    merge_symbols(&p->t->merges, p->symbols, (int)p->n_symbols, p->heap);
    for (int i = 0; i >= 0; i = p->symbols[i].next)
        if (!push_id(p, p->symbols[i].id)) return false;
    return true;
}

// ---- Unigram ----

// Adds unknown characters in a row: the token with that text, else their byte tokens, else one unk.
static bool push_unknown(Pieces *p, const uint8_t *text, size_t len) {
    int id = unigram_find(&p->t->unigram, text, len);
    bool fallback = id < 0;
    for (size_t i = 0; fallback && i < len; i++) fallback = p->t->bytes[text[i]] >= 0;
    if (!fallback) return push_id(p, id < 0 ? p->t->unk : id);
    for (size_t i = 0; i < len; i++)
        if (!push_id(p, p->t->bytes[text[i]])) return false;
    return true;
}

static bool encode_unigram(Pieces *p, const uint32_t *chars, size_t n) {
    if (!RESERVE(p, bytes, 4 * n) || !RESERVE(p, nodes, 4 * n + 1)) return false;
    int unk = p->t->unk;
    size_t len = 0;
    for (size_t i = 0; i < n; i++) len += utf8_encode(chars[i], p->bytes + len);
    unigram_cut(&p->t->unigram, p->bytes, len, unk, p->nodes);
    for (size_t i = 0, end; i < len; i = end) {
        int id = p->nodes[i].id;
        end = (size_t)p->nodes[i].to;
        while (id == unk && end < len && p->nodes[end].id == id) end = (size_t)p->nodes[end].to;
        if (id == unk ? !push_unknown(p, p->bytes + i, end - i) : !push_id(p, id)) return false;
    }
    return true;
}

// ---- WordPiece: the longest tokens, from left to right ----

// Cuts text[0..len), a space and a word, into the longest tokens of `words`. Returns how many, in
// ids[len]; 0: no token fits somewhere.
static size_t cut_word(const Tokenizer *t, const uint8_t *text, size_t len, int *ids) {
    size_t n = 0;
    for (size_t at = 0, end; at < len; at = end) {
        int id = -1;
        end = at + t->longest_word < len ? at + t->longest_word : len;
        for (; end > at; end--) {
            bool whole = end == len || (text[end] & 0xC0) != 0x80;  // no character is cut
            if (whole && (id = find_word(t, text + at, end - at)) >= 0) break;
        }
        if (id < 0) return 0;
        ids[n++] = id;
    }
    return n;
}

// Adds the ids of a word, given as bytes. White space between words has none.
static bool encode_wordpiece(Pieces *p, const uint32_t *bytes, size_t n) {
    const Tokenizer *t = p->t;
    uint32_t first;
    bool whole;
    int n_chars = 0;
    if (!RESERVE(p, bytes, n + 1) || !RESERVE(p, ids, p->n_ids + n + 1)) return false;
    p->bytes[0] = ' ';
    for (size_t i = 0; i < n; i++) {
        p->bytes[i + 1] = (uint8_t)bytes[i];
        n_chars += (bytes[i] & 0xC0) != 0x80;
    }
    utf8_decode(p->bytes + 1, n, &first, &whole);
    if (unicode_class(first) & SPACE) return true;
    size_t n_ids = 0;
    if (n_chars <= t->longest_cut) n_ids = cut_word(t, p->bytes, n + 1, p->ids + p->n_ids);
    if (!n_ids) return push_id(p, t->unk);
    p->n_ids += n_ids;
    return true;
}

bool encode_piece(Pieces *p, const uint32_t *units, size_t n) {
    static bool (*const models[N_MODELS])(Pieces *p, const uint32_t *units, size_t n) = {
        [BYTE_BPE] = encode_bpe, [CHARACTER_BPE] = encode_bpe, [UNIGRAM] = encode_unigram,
        [WORDPIECE] = encode_wordpiece,
    };
    return models[p->t->model](p, units, n);
}

void free_pieces(Pieces *p) {
    free(p->bytes);
    free(p->symbols);
    free(p->heap);
    free(p->nodes);
}
