// mask.c: a prompt's masks, filled by a masked language model.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "generate.h"
#include "print.h"

enum { BEST = 5 };

typedef struct {
    const char *text;  // of the mask, as a prompt spells it
    size_t len;
    bool strips;       // it takes white space before it along
    int id;
} Mask;

// The ids of the largest logits, the best first.
static void best_ids(const float *logits, int n, int best[BEST]) {
    int found = 0;
    for (int id = 0; id < n; id++) {
        int at = found < BEST ? found++ : BEST;
        for (; at > 0 && logits[id] > logits[best[at - 1]]; at--)
            if (at < BEST) best[at] = best[at - 1];
        if (at < BEST) best[at] = id;
    }
}

// A token's text without the space before it, which is U+2581 in Unigram's; whether it had one.
static const char *word_of(const Generation *g, int id, size_t *len, bool *spaced) {
    static const char mark[] = "\u2581";
    const char *text = tokenizer_text(g->tokenizer, id, len);
    bool marked = *len >= sizeof mark - 1 && memcmp(text, mark, sizeof mark - 1) == 0;
    size_t n = marked ? sizeof mark - 1 : *len && *text == ' ';
    *spaced = n > 0;
    *len -= n;
    return text + n;
}

static void report_best(const Generation *g, const float *logits, const int best[BEST], int mask) {
    int n = g->model.vocab_size;
    double sum = 0;
    for (int i = 0; i < n; i++) sum += exp((double)logits[i] - (double)logits[best[0]]);
    fprintf(stderr, "mask %d:", mask + 1);
    for (int i = 0; i < BEST && i < n; i++) {
        size_t len;
        bool spaced;
        const char *text = word_of(g, best[i], &len, &spaced);
        double p = exp((double)logits[best[i]] - (double)logits[best[0]]) / sum;
        fprintf(stderr, "%s %.*s %.4f", i ? "," : "", (int)len, text, p);
    }
    fprintf(stderr, "\n");
}

// Runs the text and puts the best id in the place of each mask; returns how many there were.
static int fill_ids(Generation *g, Ids ids, const Mask *mask, int *filled) {
    Error err;
    int n_masks = 0, first = 0;
    while (first < ids.n && ids.data[first] != mask->id) first++;
    if (first == ids.n) return 0;
    int wanted = (int)ids.n - first;
    Sequence *s = open_sequence(g->w, false);
    const float *logits = forward(s, ids.data, (int)ids.n, wanted, &err);
    if (!logits) die("%s", err.text);
    for (int i = first; i < ids.n; i++, logits += logit_stride(g->w)) {
        if (ids.data[i] != mask->id) continue;
        int best[BEST] = {0};
        best_ids(logits, g->model.vocab_size, best);
        report_best(g, logits, best, n_masks);
        filled[n_masks++] = best[0];
    }
    sequence_free(s);
    return n_masks;
}

static const char *find(const char *from, const char *end, const Mask *mask) {
    return memmem(from, (size_t)(end - from), mask->text, mask->len);
}

// A word in place of a mask: as far from what stands before as that was, or joined to it if it goes
// on with it.
static void splice(const Generation *g, const Mask *mask, const char *from, const char *at,
                     int id) {
    size_t len, before = (size_t)(at - from);
    bool spaced;
    const char *text = word_of(g, id, &len, &spaced);
    if (mask->strips || !spaced)
        while (before && strchr(" \t\r\n", from[before - 1])) before--;
    write_out(from, before);
    if (spaced && mask->strips && from != at) write_out(" ", 1);
    write_out(text, len);
}

// The prompt, with words for its masks.
static void print_filled(const Generation *g, Text text, const Mask *mask, const int *filled) {
    const char *p = text.data, *end = p + text.size, *at;
    while ((at = find(p, end, mask))) {
        splice(g, mask, p, at, *filled++);
        p = at + mask->len;
    }
    write_out(p, (size_t)(end - p));
    if (!text.size || end[-1] != '\n') write_out("\n", 1);
}

static int count_masks(Text text, const Mask *mask) {
    int n = 0;
    const char *p = text.data, *end = p + text.size;
    for (; p && (p = find(p, end, mask)); p += mask->len) n++;
    return n;
}

// All ids as text, where the prompt was given as ids.
static void print_decoded(Generation *g, Ids ids, const Mask *mask, const int *filled) {
    Error err;
    const char *out;
    size_t len;
    for (long i = 0; i < ids.n; i++) {
        int id = ids.data[i] == mask->id ? *filled++ : ids.data[i];
        if (decoder_push(g->decoder, id, &out, &len, &err)) die("%s", err.text);
        write_out(out, len);
    }
    if (decoder_finish(g->decoder, &out, &len, &err)) die("%s", err.text);
    write_out(out, len);
    write_out("\n", 1);
}

int fill_masks(Generation *g) {
    const Options *o = g->o;
    Mask mask;
    if (!g->model.output.data)
        usage("%s has no head that fills masks; it has --embed and --hidden", o->models[0]);
    if (!g->tokenizer) usage("%s has no tokenizer, so it knows no mask", o->models[0]);
    mask.id = tokenizer_mask(g->tokenizer, &mask.text, &mask.len, &mask.strips);
    if (mask.id < 0) usage("%s has a tokenizer without a mask", o->models[0]);
    Text text = prompt_text(o);
    Ids ids = o->tokens ? prompt_to_run(o, &g->model, g->tokenizer, NULL)
                        : to_run(o, &g->model, encode(g->tokenizer, text, true));
    int *filled = malloc((size_t)ids.n * sizeof *filled);
    if (!filled) die("no memory for the masks");
    int n = fill_ids(g, ids, &mask, filled);
    if (!n)
        usage("the prompt has no mask to fill; write %.*s where a word is left out", (int)mask.len,
              mask.text);
    if (count_masks(text, &mask) == n) print_filled(g, text, &mask, filled);
    else print_decoded(g, ids, &mask, filled);
    free(text.data);
    free(filled);
    free(ids.data);
    generation_close(g);
    return 0;
}
