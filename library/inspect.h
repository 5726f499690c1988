// What reports need beside heads.h: a checkpoint's contents, its layers, the cost of other caches,
// the processor's limits. Nothing here changes a model, a tokenizer or a chat, and the library does
// not export it. Strings and bytes are borrowed from the handle, or static.
#ifndef INSPECT_H
#define INSPECT_H

#include <stdbool.h>
#include <stdio.h>

#include "heads.h"

// ---- the checkpoint ----

typedef struct {
    size_t file_bytes;
    const void *bytes;       // [file_bytes], mapped
    bool shape;              // a file without weights (export.py --shape-only)
    bool has_tokenizer, has_chat;
    bool has_logits;         // else it gives hidden states only
    bool learned_positions;  // so its context cannot be exceeded
    int n_meta, n_tensors;
    int n_encoder;           // of an encoder-decoder: its encoder's layers, which come first
    int n_attentions;        // for inspect_layer: all layers, then the decoder's cross-attentions
    int most_tokens;         // of a text that it writes; 0: the checkpoint does not say
    const char *pooling;     // "mean", "first token", ..; NULL: the checkpoint does not say
    bool unit;               // pooled vectors have length 1
    int most_pooled;         // tokens of a text that is pooled; longer ones are cut
} ModelFacts;

ModelFacts inspect_model(const heads_model *m);

typedef struct {
    const char *key, *text;  // text NULL: the value is no string
    size_t key_len, len;     // len: of the text, or of an array of numbers
} MetaFacts;

MetaFacts inspect_meta(const heads_model *m, int i);  // i < n_meta

typedef struct {
    const char *name, *dtype;
    size_t name_len, rows, cols, bytes;
} TensorFacts;

TensorFacts inspect_tensor(const heads_model *m, int i);  // i < n_tensors

// Reads the whole file. -1: its checksum is wrong, so it is damaged.
int inspect_checksum(const heads_model *m, heads_error *err);
// Whether two models have the same tokens, so that one can draft for the other.
bool inspect_same_tokens(const heads_model *a, const heads_model *b);

// ---- layers ----

// What a token attends to: tokens up to itself, all, or the source.
typedef enum { SEES_BEFORE, SEES_ALL, SEES_SOURCE, N_SIGHTS } Sight;

typedef struct {
    const char *mixer;   // its name: "attention", "latent attention", "Mamba-2", .., "none"
    int number;          // counted from 0 among the encoder's layers, or the decoder's
    bool attends;        // its mixer is attention; else the members up to `sinks` mean nothing
    Sight sees;
    int n_heads, n_kv_heads, head_dim, window, rope;  // window 0: none; rope -1: none
    int latent_rank;     // of MLA; 0: it is not
    int kv_from;         // the layer whose keys and values it reads; -1: its own
    bool sinks;
    int d_ff;            // of the feed-forward network; 0: none
} LayerFacts;

LayerFacts inspect_layer(const heads_model *m, int i);  // i < n_attentions
const char *attention_name(int n_heads, int n_kv_heads);  // MHA, GQA or MQA

// Write a line for people to text[size], cut if need be: the model's shape, layer i, rope set i.
// Layers with equal lines are alike. inspect_rope_line returns false where there is no set i.
void inspect_shape_line(const heads_model *m, char *text, size_t size);
void inspect_layer_line(const heads_model *m, int i, char *text, size_t size);
bool inspect_rope_line(const heads_model *m, int i, char *text, size_t size);

// ---- tokens, templates and logits ----

// A token's text [*len], which need not be UTF-8; *len 0: the tokenizer does not know the id.
// tokenizer_written: of a model whose output has ids of its own, the text of such an id.
const char *tokenizer_text(const heads_tokenizer *t, int id, size_t *len);
const char *tokenizer_written(const heads_tokenizer *t, int id, size_t *len);
bool tokenizer_marks_spaces(const heads_tokenizer *t);  // spaces are U+2581 in these texts
// The id of the mask token, -1: none; *text [*len]: how a prompt spells it; *strips: white space
// before it is dropped.
int tokenizer_mask(const heads_tokenizer *t, const char **text, size_t *len, bool *strips);
// Cuts ids[n], which heads_encode gave with add_special, to at most `most`; returns how many are
// left. The special tokens at the end are kept.
long tokenizer_cut(const heads_tokenizer *t, int *ids, long n, long most);
const char *tokenizer_describe(const heads_tokenizer *t);  // "byte-level BPE, 49152 tokens, .."
const char *chat_describe(const heads_chat *chat);         // "system yes, thinking no, date no"

// The natural logarithm of the probability that softmax(logits) gives to id; minus infinity where
// the model has no such id.
double log_probability(const float *logits, int vocab_size, int id);
// loss[i] = -log p(ids[i]) by row i of logits[n][stride], to 1e-7, on the threads of w.
void token_losses(heads_workspace *w, const float *logits, const int *ids, int n, double *loss);

// ---- what caches cost ----

// The plan of a cache with n_kv_heads in each layer, MLA's heads expanded; 0: of the model's own.
heads_kv_plan inspect_kv_plan(const heads_model *m, int n_kv_heads, int context, heads_type k,
                              heads_type v);
// Bytes of the cache after n tokens, with a source of n_source tokens.
size_t inspect_kv_bytes(const heads_model *m, int n_kv_heads, int n, int n_source, heads_type k,
                        heads_type v);
size_t inspect_kv_padding(const heads_model *m, heads_type v);  // bytes a token that hold no value
// Whether a rewind may fail, since some layer has a window or a state.
bool inspect_forgets(const heads_workspace *w);

// ---- what the processor can do ----

// The name of the kernels that `isa` (NULL: the best) gives; NULL: none. *why: the reason, static.
const char *inspect_kernels(const char *isa, const char **why);

typedef struct {           // multiply-adds with weights,
    double token, logits;  // of one token in all layers, of one row of logits
    int dtype;             // the dtype of most of `token`
    const char *dtype_name;
} Products;

Products inspect_products(const heads_model *m);
// Work to be timed, on the threads of w. inspect_peak: n items (0: one, on the caller's thread) of
// multiply-adds from registers, as many as fit into `steps` steps; returns the operations done.
// inspect_read: reads lines of 64 bytes, a thread in n_streams places at once. inspect_nothing: an
// empty item a thread.
double inspect_peak(heads_workspace *w, int dtype, size_t steps, int n);
void inspect_read(heads_workspace *w, const void *lines, size_t n_lines, int n_streams);
void inspect_nothing(heads_workspace *w);

// ---- the engine's small tools, which the command line shares ----

// Writes the sentence to err, unless that is NULL, and returns -1.
int fail(heads_error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));
size_t utf8_length(const char *text, size_t len);   // bytes of the first character; 0: not UTF-8
size_t utf8_encode(uint32_t c, uint8_t out[4]);
// Decodes the character at text[0..len), len > 0, and returns its bytes; *c U+FFFD: not UTF-8.
// *whole false: more bytes might complete it.
size_t utf8_decode(const uint8_t *text, size_t len, uint32_t *c, bool *whole);
bool unicode_is_accent(uint32_t c);                 // Mn
// Whether c is in one of n ranges, ascending, with their ends.
bool unicode_in_ranges(const uint32_t (*ranges)[2], size_t n, uint32_t c);
// Appends to the zero-terminated text[size], as far as there is room.
void text_append(char *text, size_t size, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
// Where what[n], n > 0, first stands in text[len]; NULL: nowhere.
const char *find_bytes(const char *text, size_t len, const char *what, size_t n);

// ---- the system (system/system.h says more) ----

double seconds(void);                               // of a monotonic clock
uint64_t clock_microseconds(void);                  // since 1970
int64_t local_clock(void);                          // seconds since 1970, in local time
size_t free_memory(void);                           // in bytes; 0: the system does not say
size_t last_level_cache(void);                      // in bytes; 0: the system does not say
const char *base_name(const char *path);            // what follows its folders
bool same_file(const char *a, const char *b);
bool is_missing(const char *path);                  // false: it is there, or cannot be looked at
bool is_regular(const char *path);                  // false: a folder, a pipe, a device, or missing
FILE *open_to_read(const char *path);
typedef struct NewFile NewFile;  // is renamed to `path` when it is whole
NewFile *newfile_open(const char *path, heads_error *err);
FILE *newfile_stream(const NewFile *file);
// status 0: the file is whole and takes its place, unless that fails; -1: it is removed.
int newfile_close(NewFile *file, int status, heads_error *err);
void newfile_remove_temporaries(void);  // of all open files; for signal handlers
typedef struct GrownFile GrownFile;     // only grows, by this process alone, or is a pipe
GrownFile *grown_open(const char *path);         // NULL: errno; EWOULDBLOCK: another has it
bool grown_regular(const GrownFile *file);       // and not a pipe, nor a device
int grown_cut(GrownFile *file, size_t bytes);    // -1: errno
int grown_write(GrownFile *file, const char *data, size_t size);
int grown_sync(GrownFile *file);
int grown_close(GrownFile *file);

// ---- the process (system/process.h says more) ----

char **prepare_process(const char *name, int *argc, char **argv);
extern volatile int interrupted;
void catch_interrupt(bool ends_next);
void interrupt_reads(bool on);

// ---- the terminal (system/terminal.h says more) ----

bool is_terminal(FILE *stream);
bool is_screen(FILE *stream);   // a terminal whose cursor moves
bool same_output(void);         // stdout and stderr go to the same place
bool reader_has_gone(int error);        // of stdout, on which a write has failed with this errno
bool input_waits(int milliseconds);     // something can be read from stdin, if only its end
int terminal_columns(FILE *stream);     // 0: it is none, or does not say
int terminal_rows(FILE *stream);
bool terminal_raw(void);        // stdin gives keys, until terminal_restore or the process ends
void terminal_restore(void);
int terminal_resumed(void);     // grows when the process was stopped, and goes on
int terminal_read(char *keys, size_t size, int milliseconds);  // 0: none came; -1: the end

#endif
