// report.c: what --info and --kv print, on stdout.
#ifndef REPORT_H
#define REPORT_H

#include "model.h"

// The model's shape, tensors, tokenizer (NULL: none) and the kernels in use.
int report_info(const char *path, const Model *model, const Tokenizer *tokenizer, bool json, Error *err);

typedef struct {
    const char *scheme;        // MHA, GQA, MQA, MLA; "own" where the layers differ
    int n_kv_heads;            // 0: does not apply
    size_t bytes_per_token, bytes_at_2048, bytes_at_context;
    size_t tokens_that_fit;    // in the memory that is free now, at most 2e9
    double ratio_to_mha;
    bool own;                  // the loaded model's scheme
} KvRow;

typedef struct {
    const char *path;
    const Model *model;
    int context, filled;       // positions reserved, and positions in the cache when it was measured
    Dtype k_dtype, v_dtype;
    size_t free_memory;        // bytes, 0 if the system does not say
    int mla_rank, mla_rope;    // the MLA row's latent rank and rope dim; rank 0: no such row
    KvPlan plan;               // of the model as it is
    KvUsage usage;             // the measured session
    KvRow *rows;               // owned
    int n_rows;
} KvReport;

// Fills the report of a model at `context` positions (0: the model's) and measures it: a session that runs up to 256 tokens.
int kv_report_make(KvReport *report, const char *path, const Model *model, const SessionOptions *options, Error *err);
void kv_report_free(KvReport *report);
// One report, or the measured lines of several side by side.
void kv_report_print(const KvReport *reports, int n, bool json);

// "1,234,567", in a static buffer that the eighth call from now reuses.
const char *commas(size_t n);
// The length of the UTF-8 character at text[0..len), 0 if there is none: bad, cut short, overlong or a surrogate.
size_t utf8_char(const char *text, size_t len);

#endif
