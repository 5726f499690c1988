// requests.c: the lines of a batch, and what each asks for.
#ifndef CLI_REQUESTS_H
#define CLI_REQUESTS_H

#include "input.h"

typedef struct {  // what a line leaves out comes from here
    const Options *options;
    const Model *model;
    const Tokenizer *tokenizer;  // NULL: the checkpoint has none
    int context;
} Defaults;

typedef struct {
    char *id;       // as JSON; NULL: none
    Ids prompt;
    bool is_chat;     // of messages: the answer is written with its special tokens,
    int answer_end;   // ends it too, besides EOS; -1: none
    int max_tokens;
    SamplerOptions sampler;
    Text *stops;    // [n_stops], not empty
    int n_stops;
    char *error;    // what is wrong with the line; NULL: nothing
} Request;

// Reads one line. Where something is wrong with it, that is in `error`; id is set if it can be.
Request read_request(const Defaults *defaults, const char *line, size_t len);
void free_request(Request *request);

// Zeroed memory; exits where there is none.
void *allocate(size_t count, size_t size);

#endif
