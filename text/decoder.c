// Ids -> text. Bytes of an unfinished UTF-8 character wait for the next token.
#include "text/grow.h"
#include "text/unicode.h"
#include "text/vocabulary.h"
#include "tokenizer.h"

struct heads_decoder {
    const Tokenizer *t;
    bool skip_special;
    bool begun;     // a token was written
    size_t strip;   // spaces still to drop at the beginning
    uint8_t *held;  // bytes that wait for the next tokens
    char *out;
    size_t n_held, n_out, held_room, out_room;
};

Decoder *heads_decoder_new(const Tokenizer *tokenizer, int skip_special, Error *err) {
    if (need(tokenizer, "a tokenizer", err)) return NULL;
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

void heads_decoder_free(Decoder *decoder) {
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

// Writes the characters of text[0..n), with bad bytes replaced. Returns how many bytes it used:
// all, unless the last character is unfinished and `more` may follow. -1: no memory.
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

// Byte-level: writes the whole characters among the held bytes.
static bool put_held_text(Decoder *d, bool more) {
    ptrdiff_t used = put_text(d, d->held, d->n_held, more);
    if (used < 0) return false;
    if (used > 0) memmove(d->held, d->held + used, d->n_held - (size_t)used);
    d->n_held -= (size_t)used;
    return true;
}

// Characters with byte fallback: the bytes of successive byte tokens are held until the last. They
// are text if all of them are UTF-8; else every byte is replaced, as in `tokenizers`.
static bool put_held_bytes(Decoder *d) {
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

// Writes a token's text. Marks in it are spaces, or, in the first token, nothing.
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

// The byte of a token such as <0x0A>.
static uint8_t token_byte(const uint8_t *text, size_t n) {
    char hex[3] = "";
    if (n != 6) return text[0];
    memcpy(hex, text + 3, 2);
    return (uint8_t)strtoul(hex, NULL, 16);
}

static bool put_token(Decoder *d, int id) {
    const Tokenizer *t = d->t;
    size_t n;
    const uint8_t *text = token_text(&t->target, id, &n);
    if (id >= t->target.n || (d->skip_special && t->target.kinds[id] == KIND_SPECIAL)) return true;
    if (!t->by_chars) return hold(d, text, n) && put_held_text(d, true);
    bool first = !d->begun;
    d->begun = true;
    if (t->target.kinds[id] == KIND_BYTE) {
        uint8_t byte = token_byte(text, n);
        return hold(d, &byte, 1);
    }
    return put_held_bytes(d) && put_marked(d, text, n, first);
}

int heads_decoder_push(Decoder *decoder, int id, const char **out, size_t *len, Error *err) {
    if (need(decoder, "a decoder", err) || need(out, "room for a text", err) ||
        need(len, "room for its length", err))
        return -1;
    if (id < 0) return fail(err, "token id %d cannot be decoded: it is negative", id);
    decoder->n_out = 0;
    if (!put_token(decoder, id)) return fail(err, "no memory to decode token %d", id);
    *out = decoder->out;
    *len = decoder->n_out;
    return 0;
}

int heads_decoder_finish(Decoder *decoder, const char **out, size_t *len, Error *err) {
    if (need(decoder, "a decoder", err) || need(out, "room for a text", err) ||
        need(len, "room for its length", err))
        return -1;
    decoder->n_out = 0;
    bool ok = decoder->t->by_chars ? put_held_bytes(decoder) : put_held_text(decoder, false);
    if (!ok) return fail(err, "no memory to decode the end of the text");
    *out = decoder->out;
    *len = decoder->n_out;
    return 0;
}

long heads_token_bytes(const Tokenizer *t, int id, char *bytes, size_t room) {
    static const uint8_t mark[] = "\u2581";
    size_t n = 0, len = 0;
    if (!t || id < 0 || (room && !bytes)) return 0;
    const uint8_t *text = token_text(&t->target, id, &n);
    bool is_byte = n && t->by_chars && t->target.kinds[id] == KIND_BYTE;
    for (size_t i = 0; i < (is_byte ? 1 : n); i++, len++) {
        bool space = t->by_chars && t->marks && i + 3 <= n && memcmp(text + i, mark, 3) == 0;
        uint8_t byte = is_byte ? token_byte(text, n) : space ? ' ' : text[i];
        if (space) i += 2;
        if (len < room) bytes[len] = (char)byte;
    }
    return (long)len;
}
