#include "text/vocabulary.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "text/scanners.h"

enum { MAX_TOKENS = MAX_DIM - 1, MAX_AROUND = 64 };

const uint8_t *token_text(const Tokens *tokens, int id, size_t *len) {
    bool known = id >= 0 && id < tokens->n;
    *len = known ? (size_t)(tokens->begin[id + 1] - tokens->begin[id]) : 0;
    return *len ? tokens->text + tokens->begin[id] : (const uint8_t *)"";
}

// Compares a token's text with text[0..len).
static int compare_text(const Tokenizer *t, int id, const uint8_t *text, size_t len) {
    size_t own_len;
    const uint8_t *own = token_text(&t->tokens, id, &own_len);
    int order = own_len && len ? memcmp(own, text, own_len < len ? own_len : len) : 0;
    return order ? order : (own_len > len) - (own_len < len);
}

int find_word(const Tokenizer *t, const uint8_t *text, size_t len) {
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

// ---- loading ----

static int load_tokens(Tokenizer *t, Reader *r) {
    Tokens *tokens = &t->tokens;
    size_t text_bytes;
    if (!read_meta(r, "tokenizer.token.begin"))
        return fail(r->err, "metadata tokenizer.token.begin is missing: the checkpoint has no "
                    "tokenizer");
    if (read_lists(r, "tokenizer.token.begin", 1, MAX_TOKENS, &tokens->n, &tokens->begin,
                   &text_bytes) ||
        read_bytes(r, "tokenizer.token.text", text_bytes, UINT8_MAX, &tokens->text) ||
        read_bytes(r, "tokenizer.token.kind", (size_t)tokens->n, N_KINDS - 1, &tokens->kinds) ||
        load_unigram(&t->unigram, r, tokens->n, tokens->begin, tokens->text))
        return -1;
    size_t len, byte_len = t->unigram.ids.n ? 6 : 1;  // <0x0A>, or the byte itself
    for (int i = 0; i < tokens->n; i++) {
        token_text(tokens, i, &len);
        if (tokens->kinds[i] == KIND_BYTE && len != byte_len)
            return fail(r->err, "metadata tokenizer.token.text: token %d stands for a byte, but "
                        "has %zu", i, len);
    }
    return 0;
}

// The tokens that the model writes, if these are others than those that it reads.
static int load_target(Tokenizer *t, Reader *r) {
    Tokens *target = &t->target;
    size_t text_bytes;
    *target = t->tokens;
    if (!read_meta(r, "tokenizer.target.begin")) return 0;
    if (!t->by_chars)
        return fail(r->err, "metadata tokenizer.target.begin needs a tokenizer over characters");
    return read_lists(r, "tokenizer.target.begin", 1, MAX_TOKENS, &target->n, &target->begin,
                      &text_bytes) ||
           read_bytes(r, "tokenizer.target.text", text_bytes, UINT8_MAX, &target->text) ||
           read_bytes(r, "tokenizer.target.kind", (size_t)target->n, KIND_SPECIAL, &target->kinds);
}

// The tokens of single characters and bytes. Those that there are tell the kind of model.
static int load_units(Tokenizer *t, Reader *r) {
    int last = t->tokens.n - 1, fuse;
    Ints bytes;
    if (read_ints(r, "tokenizer.bytes", 256, -1, last, &bytes) ||
        read_ints(r, "tokenizer.chars", SIZE_MAX, 0, 0x10FFFF, &t->chars) ||
        read_ints(r, "tokenizer.char_ids", t->chars.n, 0, last, &t->char_ids) ||
        read_int(r, "tokenizer.unk", 0, last, -1, &t->unk))
        return -1;
    t->bytes = bytes.v;
    bool unigram = t->unigram.ids.n, chars = t->chars.n;
    t->by_chars = chars || unigram;
    if (unigram && (t->unk < 0 || chars))
        return fail(r->err, "metadata tokenizer.unigram needs tokenizer.unk, and no chars");
    for (size_t i = 1; i < t->chars.n; i++)
        if (t->chars.v[i] <= t->chars.v[i - 1])
            return fail(r->err, "metadata tokenizer.chars: value %zu is not above the one before",
                        i);
    if (read_int(r, "tokenizer.fuse_unk", 0, 1, 0, &fuse) ||
        read_int(r, "tokenizer.wordpiece", 1, 1 << 16, 0, &t->longest_cut))
        return -1;
    t->fuse_unk = fuse;
    if (t->longest_cut && (t->unk < 0 || chars))
        return fail(r->err, "metadata tokenizer.wordpiece needs tokenizer.unk, and no chars");
    t->model = t->longest_cut ? WORDPIECE : unigram ? UNIGRAM : chars ? CHARACTER_BPE : BYTE_BPE;
    return 0;
}

static int load_words(Tokenizer *t, Reader *r) {
    if (read_ints(r, "tokenizer.words", SIZE_MAX, 0, t->tokens.n - 1, &t->words)) return -1;
    if (t->words.n && t->by_chars)
        return fail(r->err, "metadata tokenizer.words: only a byte-level tokenizer has it");
    for (size_t i = 0; i < t->words.n; i++) {
        size_t len;
        const uint8_t *text = token_text(&t->tokens, t->words.v[i], &len);
        if (len > t->longest_word) t->longest_word = len;
        if (i > 0 && compare_text(t, t->words.v[i - 1], text, len) >= 0)
            return fail(r->err, "metadata tokenizer.words: token %d is not above the one before in "
                        "the order of bytes", t->words.v[i]);
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
    int last = t->tokens.n - 1;
    if (read_ints(r, "tokenizer.prefix", SIZE_MAX, 0, last, &t->prefix) ||
        read_ints(r, "tokenizer.suffix", SIZE_MAX, 0, last, &t->suffix) ||
        read_ints(r, "tokenizer.between", SIZE_MAX, 0, last, &t->between) ||
        read_int(r, "tokenizer.second_type", 0, 1, -1, &t->second_type) ||
        read_ints(r, "tokenizer.eos", SIZE_MAX, 0, MAX_DIM, &t->eos) ||
        read_int(r, "tokenizer.mask", 0, last, -1, &t->mask) ||
        read_int(r, "tokenizer.marks", MARKS_STAY, FIRST_MARKS_VANISH, MARKS_STAY, &t->marks) ||
        read_int(r, "tokenizer.strip", 0, INT_MAX, 0, &t->strip))
        return -1;
    if (t->prefix.n > MAX_AROUND || t->suffix.n > MAX_AROUND || t->eos.n > MAX_AROUND ||
        t->between.n > MAX_AROUND)
        return fail(r->err, "metadata tokenizer.prefix, .suffix, .between or .eos: more than %d "
                    "ids", MAX_AROUND);
    if (t->between.n && t->second_type < 0)
        return fail(r->err, "metadata tokenizer.between needs tokenizer.second_type");
    return refuse_unread_meta(r, "tokenizer.");
}

// ---- the description ----

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
    static const char *const models[N_MODELS] = {"byte-level BPE", "character BPE", "Unigram",
                                                 "WordPiece"};
    bool fallback = t->by_chars && t->bytes['A'] >= 0;
    snprintf(t->description, sizeof t->description, "%s%s, %d tokens", models[t->model],
             fallback ? " with byte fallback" : "", t->tokens.n);
    const Ints *steps = &t->normalizer.steps;
    for (size_t i = 0; i < steps->n; i++)
        describe(t, i ? " + " : ", normalizer ", normalizer_name(steps->v[i]));
    for (size_t i = 0; i < t->splits.n; i++)
        describe(t, i ? " + " : ", pre-tokenizer ", scanners[t->splits.v[i]].name);
    describe_ids(t, "prefix", t->prefix);
    describe_ids(t, "suffix", t->suffix);
    describe_ids(t, "EOS", t->eos);
}

int load_vocabulary(Tokenizer *t, Reader *r) {
    if (load_tokens(t, r) || load_units(t, r) || load_target(t, r)) return -1;
    int n = t->tokens.n;
    if (!t->unigram.ids.n && load_merges(&t->merges, r, n)) return -1;
    if (load_words(t, r) || load_added(&t->raw, r, "added", n) ||
        load_added(&t->normalized, r, "added_normalized", n) || load_steps(t, r) || load_rest(t, r))
        return -1;
    describe_all(t);
    return 0;
}
