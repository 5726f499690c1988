// options.c: what the command line can ask for, in one table, and --help.
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include "library/inspect.h"

typedef enum {  // one bit each, for sets of verbs
    GENERATE = 1, KV = 2, INFO = 4, PPL = 8, CHECK = 16, TOKENIZE = 32, LOGITS = 64, BENCH = 128,
    CHAT = 256, BATCH = 512, HIDDEN = 1024, EMBED = 2048, SIMILAR = 4096, HEADS = 8192,
    LENS = 16384, CLASSIFY = 32768, RANK = 65536, PATCH = 1 << 17, ATTRIBUTE = 1 << 18,
    DISSECT = 1 << 19, EXPERIMENT = 1 << 20, VERIFY = 1 << 21
} Verb;

// The verbs for a model of a kind that is no decoder.
enum {
    OF_SHAPES = KV | INFO | CHECK,
    OF_BOTH = OF_SHAPES | GENERATE | TOKENIZE | LOGITS | HIDDEN | HEADS | LENS,
    OF_ENCODERS = OF_BOTH | EMBED | SIMILAR | CLASSIFY | RANK,
    OF_CLASSIFIERS = OF_SHAPES | TOKENIZE | HIDDEN | HEADS | EMBED | SIMILAR | CLASSIFY | RANK,
    OF_ENCODER_DECODERS = OF_BOTH | BATCH,
};

// Stands for the path of models/stories.bin in the program itself, where no model is named.
extern const char BUNDLED[];

enum { MAX_LIST = 16, MAX_SEQUENCES = 256, MAX_PROBS = 100 };

typedef struct {
    int n, values[MAX_LIST];
} IntList;

typedef struct {
    Verb verb;
    const char **models;
    int n_models;
    const char *prompt, *prompt_file, *tokens, *messages, *system, *ppl, *logits, *heads;
    const char *hidden, *similar, *rank, *target, *lang, *off, *steer, *lens;
    const char *patch, *attribute, *parts, *experiment, *verify, *answer, *of, *measure;
    const char *prompt_cache, *draft_model, *batch, *out, *svg, *adapter;
    const char *grows;             // the last given option that encoders refuse, or NULL
    const char *writes;            // the last given option of how to generate a text, or NULL
    size_t memory;                 // that --kv fits caches into; 0: the free memory
    bool samples;                  // an option asks for sampling
    bool flag, json, ids;          // flag: set by an option that only selects a verb
    bool no_think, no_history, no_echo, no_cost, prompt_cache_ro, again;
    bool html;                     // --heads writes a page, not JSON
    bool f32;                      // --lens writes floats, not JSON
    bool of_layers;                // --patch changes the stream before layers, not heads
    heads_metric metric;           // of --patch
    int n_generate, n_guess, lookup, n_draft, heads_max, probs, dimensions;
    IntList sequences;             // to run side by side
    IntList threads;               // several: for --bench; the workspace has the first
    heads_workspace_options workspace;  // isa: HEADS_ISA
    heads_sampler_options sampler;
    heads_sampler_options answers;      // sampler and n_generate in a conversation
    int n_answer;
} Options;

const char *type_name(heads_type type);  // "f16", ..
const char *verb_names(unsigned verbs);  // "--kv, --info and --check"; valid until the next call

// Prepares the process, and reads the arguments and HEADS_ISA. options.models points into argv.
// Exits if the usage is wrong, and after --help.
Options parse_options(int argc, char **argv);

#endif
