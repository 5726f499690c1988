// requests.c: the lines of a batch, and what each asks for.
#ifndef CLI_REQUESTS_H
#define CLI_REQUESTS_H

#include "input.h"
#include "text/chat.h"

typedef struct {  // what a line leaves out comes from here
    const Options *options;
    const Model *model;
    const Tokenizer *tokenizer;  // NULL: the checkpoint has none
    const Chat *chat;            // NULL: there is none, and no_chat says why
    Error no_chat;
    int context;
} Defaults;

typedef struct {
    char *start;    // of its result: {"id": 7, " or {"
    Ids prompt;     // what the text begins with
    Ids source;     // that an encoder reads before; data NULL: it has none
    const char *lang; // that it is in, as --lang says; valid while the line is read
    bool is_chat;     // of messages: the answer is written with its special tokens,
    int answer_end;   // ends it too, besides EOS; -1: none
    int max_tokens;
    SamplerOptions sampler;
    Text *stops;    // [n_stops], not empty
    int n_stops;
    char *error;    // what is wrong with the line; NULL: nothing
} Request;

// Reads one line. Where something is wrong with it, that is in `error`; its id is read if possible.
Request read_request(const Defaults *defaults, const char *line, size_t len);
void free_request(Request *request);

#endif
