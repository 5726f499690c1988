// Text -> ids, by the tables of docs/format.md, "The tokenizer". A text goes through five stages:
//
//   added tokens    are found, some in the raw text, others after normalization: text/added.c
//   normalizer      rewrites the text between them: text/normalize.c
//   pre-tokenizer   cuts it into pieces, in several steps: text/scanners.c
//   model           encodes each piece by byte-level BPE (GPT-2), BPE over characters
//                   (SentencePiece), Unigram (T5) or WordPiece (BERT): text/pieces.c
//   post-processor  adds ids before and after, such as BOS
//
// Ids -> text is text/decoder.c; text/vocabulary.c reads the tables.
#include "tokenizer.h"

#include <limits.h>

#include "text/grow.h"
#include "text/pieces.h"
#include "text/scanners.h"
#include "text/unicode.h"

enum { MAX_TEXT = INT_MAX / 4 };

bool has_tokenizer(const Checkpoint *file) {
    for (int i = 0; i < file->n_meta; i++)
        if (file->meta[i].key_len > 10 && memcmp(file->meta[i].key, "tokenizer.", 10) == 0)
            return true;
    return false;
}

Tokenizer *tokenizer_new(const Checkpoint *file, Error *err) {
    Reader r;
    if (reader_open(&r, file, err)) return NULL;
    Tokenizer *t = calloc(1, sizeof *t);
    int status = t ? load_vocabulary(t, &r) : fail(err, "no memory for the tokenizer");
    reader_close(&r);
    if (!status) return t;
    tokenizer_free(t);
    return NULL;
}

void tokenizer_free(Tokenizer *tokenizer) { free(tokenizer); }

// ---- tokens ----

int heads_is_eos(const Tokenizer *tokenizer, int id) {
    for (size_t i = 0; tokenizer && i < tokenizer->eos.n; i++)
        if (tokenizer->eos.v[i] == id) return true;
    return false;
}

bool tokenizer_is_special(const Tokenizer *tokenizer, int id) {
    return 0 <= id && id < tokenizer->tokens.n && tokenizer->tokens.kinds[id] == KIND_SPECIAL;
}

const char *tokenizer_text(const Tokenizer *t, int id, size_t *len) {
    return (const char *)token_text(&t->tokens, id, len);
}

const char *tokenizer_written(const Tokenizer *t, int id, size_t *len) {
    return (const char *)token_text(&t->target, id, len);
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

// ---- pre-tokenizer: a stretch between added tokens -> pieces -> ids ----

typedef struct {  // one call of heads_encode; every array grows as needed
    const Tokenizer *t;
    Pieces pieces;
    uint32_t *bytes;    // of a piece in UTF-8, one byte an element
    uint16_t *classes;  // of a stretch's characters
    size_t bytes_room, classes_room;
    bool at_start;      // the stretch begins the text
} Encoding;

static bool to_bytes(Encoding *e, const uint32_t *chars, size_t n, size_t *n_bytes) {
    if (!RESERVE(e, bytes, 4 * n)) return false;
    *n_bytes = 0;
    for (size_t i = 0; i < n; i++) {
        uint8_t bytes[4];
        size_t k = utf8_encode(chars[i], bytes);
        for (size_t j = 0; j < k; j++) e->bytes[(*n_bytes)++] = bytes[j];
    }
    return true;
}

static bool split(Encoding *e, const Text *t, size_t begin, size_t end, size_t step);

// A step that changes a piece: spaces become marks, and one is put in front.
static bool split_changed(Encoding *e, const Text *t, size_t begin, size_t end, size_t step) {
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

// Cuts t[begin..end) by the steps from `step` on, and encodes the pieces. Text between the matches
// of a step is a piece too.
static bool split(Encoding *e, const Text *t, size_t begin, size_t end, size_t step) {
    const Ints *steps = &e->t->splits;
    const Scanner *s = step < steps->n ? &scanners[steps->v[step]] : NULL;
    bool is_bytes = !t->cls;
    if (!is_bytes && (s ? s->bytes : !e->t->by_chars)) {
        size_t n;
        if (!to_bytes(e, t->c + begin, end - begin, &n)) return false;
        return split(e, &(Text){e->bytes, NULL}, 0, n, step);
    }
    if (!s) return encode_piece(&e->pieces, t->c + begin, end - begin);
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

// ---- the stages, the first one last ----

// Encodes a stretch without added tokens; at_start: it begins the text.
static bool encode_stretch(Encoding *e, const uint32_t *chars, size_t n, bool at_start) {
    if (n == 0) return true;
    if (!RESERVE(e, classes, n)) return false;
    for (size_t i = 0; e->t->splits.n && i < n; i++) e->classes[i] = unicode_class(chars[i]);
    e->at_start = at_start;
    return split(e, &(Text){chars, e->classes}, 0, n, 0);
}

typedef bool StretchFn(Encoding *e, const uint32_t *chars, size_t n, bool at_start);

// Adds the ids of the added tokens in chars[0..n), and calls `between` for the stretches between.
static bool split_added(Encoding *e, const Added *a, const uint32_t *chars, size_t n,
                        bool at_start, StretchFn *between) {
    AddedSearch found = {.start_end = SIZE_MAX};
    size_t rest = 0;  // chars[rest..n) have no ids yet
    while (next_added(a, chars, n, &found)) {
        if (rest < found.start &&
            !between(e, chars + rest, found.start - rest, at_start && rest == 0))
            return false;
        if (found.start < found.stop && !push_id(&e->pieces, found.id)) return false;
        rest = found.stop;
    }
    return rest == n || between(e, chars + rest, n - rest, at_start && rest == 0);
}

// Encodes a stretch of raw text: normalizes it and finds the other added tokens.
static bool encode_raw(Encoding *e, const uint32_t *chars, size_t n, bool at_start) {
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

static bool push_ids(Encoding *e, Ints ids) {
    for (size_t i = 0; i < ids.n; i++)
        if (!push_id(&e->pieces, ids.v[i])) return false;
    return true;
}

static bool encode_text(Encoding *e, const char *text, size_t len, bool add_special) {
    const Tokenizer *t = e->t;
    uint32_t *chars = malloc((len + 1) * sizeof *chars);
    size_t n = 0;
    bool whole;
    for (size_t i = 0; chars && i < len; n++)
        i += utf8_decode((const uint8_t *)text + i, len - i, &chars[n], &whole);
    bool ok = chars && (!add_special || push_ids(e, t->prefix)) &&
              split_added(e, &t->raw, chars, n, true, encode_raw) &&
              (!add_special || push_ids(e, t->suffix));
    free(chars);
    return ok;
}

long heads_encode(const Tokenizer *tokenizer, const char *text, size_t len, int add_special,
                  int **ids, Error *err) {
    if (need(ids, "room for ids", err)) return -1;
    *ids = NULL;
    if (need(tokenizer, "a tokenizer", err) || (len && need(text, "a text", err))) return -1;
    if (len > MAX_TEXT)
        return fail(err, "the text has %zu bytes, expected at most %d", len, MAX_TEXT);
    Encoding e = {.t = tokenizer, .pieces.t = tokenizer};
    bool ok = RESERVE(&e.pieces, ids, 1) && encode_text(&e, text, len, add_special);
    free(e.bytes);
    free(e.classes);
    free_pieces(&e.pieces);
    if (!ok) {
        free(e.pieces.ids);
        return fail(err, "no memory to tokenize a text of %zu bytes", len);
    }
    *ids = e.pieces.ids;
    return (long)e.pieces.n_ids;
}

long tokenizer_cut(const Tokenizer *tokenizer, int *ids, long n, long most) {
    long suffix = (long)tokenizer->suffix.n;
    if (n <= most) return n;
    if (suffix > most) suffix = most;
    memmove(ids + most - suffix, ids + n - suffix, sizeof *ids * (size_t)suffix);
    return most;
}
