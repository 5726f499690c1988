// requests.c: the lines of a batch, and what each asks for.
#ifndef CLI_BATCH_REQUESTS_H
#define CLI_BATCH_REQUESTS_H

#include "cli/prompt.h"

typedef struct OpenedAdapter {  // that requests name
    struct OpenedAdapter *next;
    char *given;             // FILE or FILE:SCALE
    heads_adapter *adapter;
    float scale;
} OpenedAdapter;

typedef struct {  // for members that a line leaves out
    const Program *program;
    const heads_chat *chat;  // NULL: there is none, and no_chat says why
    heads_error no_chat;
    OpenedAdapter **adapters;  // so far
    char maker[20];          // sums of the model and of the options; "": results do not have them
} Defaults;

typedef struct {
    Text start;           // beginning of its result: {"id": 7, "fingerprint": "..", " or {"
    size_t fingerprint;   // where this stands in it
    heads_request asked;  // points to the members below, which are owned
    Ids prompt;           // of an encoder-decoder: the source
    heads_stop *stops;
    char *lang;
    Steers steers;
    int answer_end;       // with "messages": a token that ends the answer, besides EOS; -1: none
    bool wrong;           // error says what is wrong with the line
    heads_error error;
} Line;

// Has each result say what it was made by: a fingerprint of three sums, of the model, the options
// and the request's line. Wants program->w.
void set_maker(Defaults *defaults);
// Reads one line. If it is wrong, `error` says why; its id is read if possible.
Line read_line(const Defaults *defaults, const char *line, size_t len);
void free_line(Line *line);
void close_adapters(OpenedAdapter *adapters);
// Why `result`, or the beginning of one, is not what the line asks for; NULL: it is.
const char *unlike(const Line *line, Text result);
// Adds the request as heads_batch_add does. -1: line->error says why.
long add_line(heads_batch *b, Line *line);

#endif
