// What JavaScript needs beside heads.h: rows of attention, of the lens and of the stream. C cannot
// call its functions, so a pass leaves the rows in memory: each a heads_attention_row, with its
// weights, or the logits of head -1, behind it. What JavaScript reads: kept.words, .used, .room and
// .full.
//
// All of heads.h is exported, experiments too; members of their structs have 4 bytes each.
// heads_patch without a function for progress: a page asks for some layers and positions at a time
// (n_layers, n_positions), and draws them. heads_dissect gives a block that heads_free frees:
// heads_head_parts, 13 numbers, two heads_scoring of 5 pointers and a number, then 7 pointers.
// heads_sequence_steer(s, layer, vector, scale, error) takes effect for tokens to come.
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "heads.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { float *words; size_t used, room; int full; } kept;  // full: rows are lost

static void keep_row(void *context, const heads_attention_row *row, int thread) {
    pthread_mutex_lock(&lock);
    const size_t head = sizeof *row / sizeof(float), end = kept.used + head + (size_t)row->n;
    if (end > kept.room) {
        const size_t room = 2 * end;
        float *more = end < SIZE_MAX / 8 ? realloc(kept.words, room * sizeof(float)) : NULL;
        if (more) {
            kept.words = more;
            kept.room = room;
        } else {
            kept.full = 1;
        }
    }
    if (!kept.full) {
        memcpy(kept.words + kept.used, row, sizeof *row);
        memcpy(kept.words + kept.used + head, row->weights, (size_t)row->n * sizeof(float));
        kept.used = end;
    }
    pthread_mutex_unlock(&lock);
}

static void keep_lens(void *width, const heads_lens_row *row) {
    keep_row(NULL, &(heads_attention_row){.layer = row->layer, .head = -1, .n = (int)(size_t)width,
                                          .position = row->position, .weights = row->logits}, 0);
}

// Forgets the rows so far; returns where later ones will be, of attention and of a lens so wide.
HEADS_API const void *heads_keep(heads_workspace *w, int attention, size_t width) {
    heads_workspace_probe(w, &(heads_probe){.attention = attention ? keep_row : NULL,
                                            .lens = width ? keep_lens : NULL,
                                            .context = (void *)width});
    kept.used = kept.full = 0;
    return &kept;
}

// The residual stream before this layer, at the last token of a pass.
static int keep_stream(void *layer, const heads_layer_input *input) {
    if (input->layer == (int)(size_t)layer)
        keep_row(NULL, &(heads_attention_row){.layer = input->layer, .head = -1, .n = input->width,
                 .weights = input->rows + (size_t)(input->n - 1) * input->stride}, 0);
    return input->layer;
}

// The same as heads_keep, of the stream before a layer.
HEADS_API const void *heads_keep_stream(heads_workspace *w, size_t layer) {
    heads_workspace_probe(w, &(heads_probe){.enter = keep_stream, .context = (void *)layer});
    kept.used = kept.full = 0;
    return &kept;
}
