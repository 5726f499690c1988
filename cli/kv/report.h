// report.c: what caches cost, as schemes of a report; print.c shows it as text and JSON, svg.c as a
// picture. Every figure comes from the engine's own layout of the cache.
#ifndef CLI_KV_REPORT_H
#define CLI_KV_REPORT_H

#include "cli/open.h"

enum { MOST_TOKENS = 2000000000, MOST_TYPES = 5 };

typedef struct {
    heads_type k, v;
} KvTypes;

typedef struct {
    const char *name;            // MHA, GQA, MQA, MLA; "own" where the layers differ
    int n_kv_heads;              // 0: does not apply
    size_t mla_numbers;          // of an MLA that the model does not have: numbers cached for a
                                 // token in all layers; 0: another scheme
    heads_kv_plan plan;                 // at the report's context
    size_t bytes_at_2048, bytes_at_context;
    size_t fits[MOST_TYPES];     // tokens, at most MOST_TOKENS
    double ratio_to_mha;
    bool own;                    // the model's own scheme
} Scheme;

typedef struct {
    Program p;
    LayerFacts first;            // the first of the n_attention layers with attention, if any
    int first_layer, n_attention;
    bool alike;                  // all of them have as many heads as the first
    int context;                 // of the report; it may be longer than the model's
    KvTypes types[MOST_TYPES];   // of Scheme.fits; the user's is the last, unless it came before
    int n_types;
    KvTypes type;                // the user's, of all other figures
    size_t memory;               // bytes for the caches to fit into; 0: unknown
    int mla_rank, mla_rope;      // the MLA's latent rank and rope dim; rank 0: no such scheme
    size_t padding;              // bytes of a token that hold no value
    size_t weights;              // bytes of all tensors
    int filled;                  // positions in the measured cache; 0: a shape, none was measured
    size_t measured_plan;        // bytes that the plan reserves for that cache
    heads_kv_usage usage, fork;         // of the measured sequence, and of a fork of it
    Scheme *schemes;             // owned
    const Scheme *own;           // one of them
    int n_schemes;
} Report;

// Reports what caches of the model at `path` would cost, and, unless it is a shape, measures one.
// An encoder has no cache: its report is empty.
void make_report(Report *r, const char *path, size_t memory, const Options *o);
void free_report(Report *r);

// Bytes of the cache of a scheme, at n tokens.
size_t scheme_bytes_at(const Report *r, const Scheme *scheme, int n, KvTypes types);
const char *types_name(KvTypes types);  // such as "f16", or "q8/f16"; static

#endif
