// A checkpoint -> Model: container, knobs, tensors, and nothing left over.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "load/loader.h"

// Bytes of one matrix of a stack, including its bias.
static size_t bytes_of_one(const Matrix *w) {
    size_t bias = w->bias ? round_up((size_t)w->n_out, LANES) * sizeof *w->bias : 0;
    return matrix_bytes(w->dtype, (size_t)w->n_out, w->n_in) + bias;
}

// Whether a tensor is not read once per token: the encoder's, and keys and values of
// cross-attention, are read once per source, and what guesses is beside the text.
static bool beside_text(const Model *m, const Tensor *t) {
    char name[80];
    int layer, at = 0;
    snprintf(name, sizeof name, "%.*s", (int)t->name_len, t->name);
    if (!m->source.n && !m->guess) return false;
    if (strncmp(name, "source_", 7) == 0 || strncmp(name, "guess_", 6) == 0) return true;
    if (sscanf(name, "layers.%d.%n", &layer, &at) < 1 || !at) return false;
    return layer < m->source.n || layer >= m->n_layers || strncmp(name + at, "cross_k", 7) == 0 ||
           strncmp(name + at, "cross_v", 7) == 0;
}

static size_t count_weight_bytes(const Model *m) {
    size_t bytes = 0;
    for (int i = 0; i < m->file.n_tensors; i++)
        if (!beside_text(m, &m->file.tensors[i])) bytes += m->file.tensors[i].bytes;
    for (int i = m->text.first; i < m->n_layers; i++) {  // experts that a token does not choose
        const Experts *e = &m->layers[i].experts;
        size_t one = bytes_of_one(&e->gate) + bytes_of_one(&e->up) + bytes_of_one(&e->down);
        bytes -= one * (size_t)(e->n - e->top_k);
    }
    if (m->output.data != m->text.embed.data) bytes -= bytes_of_one(&m->text.embed);
    return bytes - bytes_of_one(&m->layer_embed.table) - bytes_of_one(&m->text.embed_pos);
}

static void count_state_bytes(Model *m) {
    for (Layer *l = m->layers; l < m->layers + m->n_layers; l++) {
        const Mixer *mixer = l->mamba2_beside ? &mamba2_mixer : mixers[l->mixer];
        if (mixer && mixer->state_bytes) l->state_bytes = mixer->state_bytes(l);
    }
}

int model_parse(Model *model, const uint8_t *bytes, size_t size, Error *err) {
    *model = (Model){0};
    Loader x = {.err = err, .m = model};
    if (checkpoint_parse(&model->file, bytes, size, err)) return -1;
    if (checkpoint_meta(&model->file, "adapter.base")) {
        model_close(model);
        return fail(err, "an adapter, not a model; give it beside its base: ./run BASE --adapter "
                    "FILE");
    }
    int status = reader_open(&x.r, &model->file, err) || load_model_knobs(&x) ||
                 load_layer_knobs(&x) || load_tensors(&x) || load_readouts(&x) ||
                 refuse_unread_meta(&x.r, "model.") ||
                 refuse_unread_meta(&x.r, "layer.") || refuse_unread_tensors(&x.r);
    reader_close(&x.r);
    free(x.new_layers);
    if (status) {
        model_close(model);
        return -1;
    }
    model->weight_bytes = count_weight_bytes(model);
    count_state_bytes(model);
    return 0;
}

int model_open(Model *model, const char *path, Error *err) {
    Mapping map = {0};
    if (map_file(&map, path, err)) return -1;
    Error why;
    if (model_parse(model, map.data, map.size, &why) == 0) {
        model->mapped = map;
        return 0;
    }
    unmap_file(&map);
    return fail(err, "%s: %s", path, why.text);
}

void model_close(Model *model) {
    checkpoint_free(&model->file);
    unmap_file(&model->mapped);
    free(model->layers);
    free(model->guess);
    free(model->vector);
    free(model->classes);
    *model = (Model){0};
}
