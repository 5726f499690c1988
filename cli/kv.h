// kv.c: what caches cost, as rows of a report; kv_print.c shows it as text and JSON, kv_svg.c as a
// picture. Every figure comes from kvcache.c, which also lays out the cache.
#ifndef CLI_KV_H
#define CLI_KV_H

#include "options.h"

enum { MOST_TOKENS = 2000000000, MOST_TYPES = 5 };

typedef struct {
    Dtype k, v;
} KvTypes;

typedef struct {
    const char *scheme;          // MHA, GQA, MQA, MLA; "own" where the layers differ
    int n_kv_heads;              // 0: does not apply
    size_t mla_numbers;          // that an MLA the model does not have would cache a token, of all
                                 // layers; 0: it is no such row
    KvPlan plan;                 // at the report's context
    size_t bytes_at_2048, bytes_at_context;
    size_t fits[MOST_TYPES];     // tokens, at most MOST_TOKENS
    double ratio_to_mha;
    bool own;                    // the model's own scheme
} Row;

typedef struct {
    const char *path;
    Model model;
    int context;                 // that the report is about, which may be longer than the model's
    KvTypes types[MOST_TYPES];   // that fits are counted for; the last one is the user's, unless
    int n_types;                 // it is among the others
    KvTypes type;                // the user's, of everything else
    size_t memory;               // bytes to fit in; 0 if nobody says
    int mla_rank, mla_rope;      // the MLA row's latent rank and rope dim; rank 0: no such row
    size_t padding;              // bytes of a token that fill up values of few numbers
    size_t weights;              // bytes of all tensors
    int filled;                  // positions in the cache when it was measured; 0: a shape
    size_t measured_plan;        // what the formula says of the bytes that were reserved then
    KvUsage usage, fork;         // of the measured sequence, and of a fork of it
    Row *rows;                   // owned
    const Row *own;              // one of them
    int n_rows;
} Report;

// The first layer's attention, NULL if there is none. *layer, if not NULL: which it is.
const Attention *first_attention(const Model *model, int *layer);
int n_attention_layers(const Model *model);
// Bytes of the cache that a row stands for, at n tokens.
size_t row_bytes_at(const Report *r, const Row *row, int n, KvTypes types);
const char *types_name(KvTypes types);  // such as "f16", or "q8/f16"; static

void print_report(const Report *r, const Options *o);
void print_reports(const Report *reports, int n, const Options *o);
void print_reports_json(const Report *reports, int n);
// A line for each row of one report, or for each report.
void write_kv_svg(const Report *reports, int n, const Options *o);

#endif
