// What experiment.json says (described.c reads it), and the records of which its SHA-256 is.
#ifndef DESCRIBED_H
#define DESCRIBED_H

#include "layers/heads_off.h"
#include "library/experiments.h"
#include "library/sha256.h"
#include "load/checkpoint.h"
#include "text/json.h"

enum { PATCH_NONE, PATCH_HEADS, PATCH_LAYERS, PATCH_PLACES };

typedef struct {
    int layer, head, position;  // head -1: the stream before the layer
} Place;

typedef struct {
    bool names_model;        // the description says which
    uint32_t model;          // its checksum
    heads_type kv[2];
    int *ids, n;             // the clean text
    int *corrupted, n_corrupted;  // 0: there is none
    Changes changes;         // off is borrowed from the JSON
    heads_steer *steers;     // [changes.n_steers], whose vectors lie in `vectors`
    float *vectors;
    int patch;               // PATCH_*
    Place *places;           // [n_places], in order, none twice
    int n_places;
    bool measures, attribute, samples;
    heads_metric metric;
    int answer, against;     // -1: none
    heads_sampler_options sampler;
    int max_tokens;
} Described;

typedef struct {
    const char *name;
    uint32_t *words;         // [n], integers or floats
    bool floats;
    size_t n;
    int lengths[3], dims;
} Record;

typedef struct {
    Record list[12];
    int n;
} Records;

// Adds a record of zeros, [lengths[0]][..]; returns its words, or NULL: no memory.
uint32_t *record_add(Records *r, const char *name, bool floats, const int *lengths, int dims);
void records_free(Records *r);

// Reads a description, as experiment.json has it; described_free frees what it holds, after an
// error too. The model's checksum is not compared, as check_model does.
int read_description(Described *d, const Model *m, const Json *root, Error *err);
void described_free(Described *d);
int check_model(const Described *d, const Model *m, Error *err);

// The result, JSON, zero-terminated, to free; NULL: no memory.
char *write_result(const Described *d, const Records *description, const Records *results,
                   const char *described, const char *digest, Error *err);

#endif
