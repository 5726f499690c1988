// options.c: what the command line can ask for, in one table, and --help.
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include "sampler.h"
#include "session.h"

typedef enum {  // what there is to do: one bit each
    GENERATE = 1, KV = 2, INFO = 4, PPL = 8, CHECK = 16, TOKENIZE = 32, LOOK = 64, BENCH = 128,
    CHAT = 256, BATCH = 512, HIDDEN = 1024, EMBED = 2048, SIMILAR = 4096
} Verb;

enum { MAX_LIST = 16, MAX_SEQUENCES = 256 };

typedef struct {
    int n, values[MAX_LIST];
} IntList;

typedef struct {
    Verb verb;
    char **models;
    int n_models;
    const char *prompt, *prompt_file, *tokens, *messages, *system, *ppl, *logits, *heads;
    const char *hidden, *similar, *target, *lang;
    const char *prompt_cache, *draft_model, *batch, *out, *svg;
    const char *grows;             // the last option given that is not for encoders, or NULL
    const char *writes;            // and that says how a text is written
    size_t memory;                 // that --kv fits caches into; 0: what is free
    bool samples;                  // an option asks for chance
    bool flag, json, ids, seeded;  // flag: set by an option that only selects a verb
    bool no_think, prompt_cache_ro;
    bool html;                     // heads is to be a page, not JSON
    int n_generate, lookup, n_draft, heads_max;
    IntList sequences;             // to run side by side
    WorkspaceOptions workspace;    // isa is what HEADS_ISA says
    SamplerOptions sampler;
} Options;

// Reads the arguments and HEADS_ISA; argv's own array keeps the models' names. Exits if the usage
// is wrong, and after --help.
Options parse_options(int argc, char **argv);

#endif
