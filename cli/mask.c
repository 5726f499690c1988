// mask.c: a prompt's masks, filled by a masked language model.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mask.h"
#include "print.h"
#include "prompt.h"

enum { BEST = 5 };

typedef struct {
    const char *text;  // [len], as a prompt spells it
    size_t len;
    bool strips;       // white space before it is dropped
    int id;
} Mask;

// A token's text without a space before it (U+2581 in Unigram's); *spaced: there was one.
static const char *word_of(const Program *p, int id, size_t *len, bool *spaced) {
    static const char mark[] = "\u2581";
    const char *text = tokenizer_text(p->tokenizer, id, len);
    bool marked = *len >= sizeof mark - 1 && memcmp(text, mark, sizeof mark - 1) == 0;
    size_t n = marked ? sizeof mark - 1 : *len && *text == ' ';
    *spaced = n > 0;
    *len -= n;
    return text + n;
}

static void report_best(const Program *p, const heads_likely best[], int n, int mask) {
    fprintf(stderr, "mask %d:", mask + 1);
    for (int i = 0; i < n; i++) {
        size_t len;
        bool spaced;
        const char *text = word_of(p, best[i].id, &len, &spaced);
        fprintf(stderr, "%s %.*s %.4f", i ? "," : "", (int)len, text,
                exp(best[i].log_probability));
    }
    fprintf(stderr, "\n");
}

// Runs the text and finds the best id for each mask, in filled; returns how many masks there are.
static int fill_ids(const Program *p, Ids ids, const Mask *mask, int *filled) {
    heads_error err;
    int n_masks = 0, first = 0;
    while (first < ids.n && ids.data[first] != mask->id) first++;
    if (first == ids.n) return 0;
    int wanted = (int)ids.n - first;
    heads_sequence *s = open_text(p, false);
    const float *logits = heads_forward(s, ids.data, (int)ids.n, wanted, &err);
    if (!logits) die("%s", err.text);
    for (int i = first; i < ids.n; i++, logits += heads_logit_stride(p->w)) {
        if (ids.data[i] != mask->id) continue;
        heads_likely best[BEST];
        report_best(p, best, heads_likeliest(p->w, logits, best, BEST), n_masks);
        filled[n_masks++] = best[0].id;
    }
    heads_sequence_free(s);
    return n_masks;
}

static const char *find(const char *from, const char *end, const Mask *mask) {
    return find_bytes(from, (size_t)(end - from), mask->text, mask->len);
}

// Prints the text up to a mask, and a word in the mask's place. A word that begins with no space is
// joined to what stands before.
static void splice(const Program *p, const Mask *mask, const char *from, const char *at,
                     int id) {
    size_t len, before = (size_t)(at - from);
    bool spaced;
    const char *text = word_of(p, id, &len, &spaced);
    if (mask->strips || !spaced)
        while (before && strchr(" \t\r\n", from[before - 1])) before--;
    write_out(from, before);
    if (spaced && mask->strips && from != at) write_out(" ", 1);
    write_out(text, len);
}

// Prints the prompt with words in the places of its masks.
static void print_filled(const Program *p, Text text, const Mask *mask, const int *filled) {
    const char *from = text.data, *end = from + text.size, *at;
    while ((at = find(from, end, mask))) {
        splice(p, mask, from, at, *filled++);
        from = at + mask->len;
    }
    write_out(from, (size_t)(end - from));
    if (!text.size || end[-1] != '\n') write_out("\n", 1);
}

static int count_masks(Text text, const Mask *mask) {
    int n = 0;
    const char *p = text.data, *end = p + text.size;
    for (; p && (p = find(p, end, mask)); p += mask->len) n++;
    return n;
}

// Prints all ids as text; for a prompt that was given as ids.
static void print_decoded(const Program *p, Ids ids, const Mask *mask, const int *filled) {
    heads_error err;
    const char *out;
    size_t len;
    heads_decoder *decoder = heads_decoder_new(p->tokenizer, true, &err);
    if (!decoder) die("%s", err.text);
    for (long i = 0; i < ids.n; i++) {
        int id = ids.data[i] == mask->id ? *filled++ : ids.data[i];
        if (heads_decoder_push(decoder, id, &out, &len, &err)) die("%s", err.text);
        write_out(out, len);
    }
    if (heads_decoder_finish(decoder, &out, &len, &err)) die("%s", err.text);
    write_out(out, len);
    write_out("\n", 1);
    heads_decoder_free(decoder);
}

int fill_masks(Program *p) {
    Mask mask;
    if (!p->facts.has_logits)
        usage("%s has no head that fills masks; it has --embed and --hidden", p->path);
    if (!p->tokenizer) usage("%s has no tokenizer, so it knows no mask", p->path);
    mask.id = tokenizer_mask(p->tokenizer, &mask.text, &mask.len, &mask.strips);
    if (mask.id < 0) usage("%s has a tokenizer without a mask", p->path);
    Text text = prompt_text(p->o);
    Ids ids = p->o->tokens ? prompt_to_run(p, NULL) : to_run(p, encode(p, text, true));
    open_workspace(p, (int)ids.n);
    int *filled = allocate((size_t)ids.n, sizeof *filled);
    int n = fill_ids(p, ids, &mask, filled);
    if (!n)
        usage("the prompt has no mask to fill; write %.*s where a word is left out", (int)mask.len,
              mask.text);
    if (count_masks(text, &mask) == n) print_filled(p, text, &mask, filled);
    else print_decoded(p, ids, &mask, filled);
    free(text.data);
    free(filled);
    free(ids.data);
    close_program(p);
    return 0;
}
