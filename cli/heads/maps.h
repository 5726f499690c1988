// maps.c: collects the scores and the maps (rows of weights) of all heads while a text runs.
#ifndef CLI_HEADS_MAPS_H
#define CLI_HEADS_MAPS_H

#include <stdio.h>

#include "cli/heads/scores.h"
#include "cli/input.h"
#include "cli/open.h"

typedef struct {         // borrowed
    Ids source;          // of an encoder-decoder; else n 0
    Ids ids;             // the text; of an encoder-decoder, the target
    const char *target;  // how the target was chosen: "given", "greedy" or "sampled"
} HeadsTexts;

typedef struct HeadsLayer HeadsLayer;

typedef struct {
    const HeadsLayer *layer;
    int number;
    HeadScores scores;
    int role;            // -1: none
    double strength;     // the strongest heads keep their maps
    RowScores *pass;     // [chunk], of the pass's rows
    double cost;         // of the text's loss without the head, in nats a token
    float *costs;        // [ids.n - 1], of each token after the first; NULL: not measured
    float *map, *sinks;  // rows of weights, one after the other; [n_rows]. NULL: not kept
} Head;

struct HeadsLayer {
    LayerFacts facts;    // of the layer's mixer, or of its attention to the source
    MapTexts texts;
    Head *heads;         // [n_heads]
    HeadScores uniform;  // of a head with equal weights
    RowScores *pass;     // of that head
};

typedef struct {
    const Program *p;
    HeadsTexts texts;
    int chunk;           // tokens of a pass
    FILE *f;
    int *same[2];        // MapTexts.same of the source, and of the text
    Head *heads;         // of all layers
    HeadsLayer *layers;  // the model's, and then its attentions to the source
    int n_layers;
    size_t n_heads, n_maps;
    float **equal;       // [threads][n], equal weights
    bool scoring;        // false: the text runs a second time, for maps only
    bool reading;        // the encoder runs, whose tokens see all others
    long done;           // tokens of earlier passes of this text
    int n_runs, layer;   // for progress: times that the text runs, and the present layer
    double start;        // seconds()
} HeadsPage;

// Lists layers and heads, and chooses which maps to keep. Exits if the file would be absurdly
// large.
void open_maps(HeadsPage *p);
void free_maps(HeadsPage *p);
// The probe: takes a row of a head's weights.
void keep_row(void *context, const heads_attention_row *row, int thread);
// To be called first: reads the source, if there is one, for s.
void heads_page_read(HeadsPage *page, heads_sequence *s);
void heads_page_add(HeadsPage *page, int n);  // n more tokens of the text have run
// To be called last: finds roles. If there is no room for the maps of all heads, the text runs
// again in s for the maps of the strongest.
void choose_maps(HeadsPage *p, heads_sequence *s);

// Where row i of a map begins: rows have all n columns, or, where tokens see those before, i + 1.
size_t map_row(const MapTexts *t, int i);
// The text of token i of one of the two texts.
const char *text_of_token(const HeadsPage *p, Ids text, long i, size_t *len);
void show_progress(const HeadsPage *p, double tokens);

#endif
