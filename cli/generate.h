// generate.c: from a prompt's ids to a printed continuation, for one text and for chat.c.
#ifndef CLI_GENERATE_H
#define CLI_GENERATE_H

#include "input.h"
#include "speculate.h"

typedef struct {
    const Options *o;
    Model model;
    Tokenizer *tokenizer;        // NULL: the checkpoint has none
    Workspace *w;
    Sequence *sequence;
    Sampler *sampler;
    SamplerOptions sampling;
    Drafter *drafter;            // NULL: there are no guesses
    Decoder *decoder;            // NULL: ids are printed
    void (*print)(void *to, const char *text, size_t len);  // NULL: to stdout
    void *to;
    int *text;                   // [context + 1], prompt and what was generated
    int n_text, n_prompt;        // tokens, of them the prompt's
    int n_generate;              // more at most
    int answer_end;              // another token that ends the text, besides EOS; -1: none
    int fork_at;                 // where in the prompt to keep a fork, -1: nowhere
    Sequence *fork;              // the last one kept, or NULL
    bool closed;                 // the reader of stdout has gone
    bool ended_line;             // the last character on stdout is a newline
    long n_printed;              // ids so far
    long prompt, reused, generated;  // tokens in all
    long stepped;                // of them, those that a pass was for
    double prompt_seconds, step_seconds, step_bytes;
    const char *stop;            // why the text ended
} Generation;

// Opens the model, its tokenizer and the sampler. Without a sequence yet.
void generation_open(Generation *g, const Options *o);
// What each text has of its own: random numbers from the seed on, and a decoder.
void start_text(Generation *g);
void generation_close(Generation *g);
// Runs what the sequence does not hold of ids, and goes on until something says stop: g->stop says
// what. Ctrl-C is heard between passes. -1: an error; what was printed stays.
int generate_text(Generation *g, Ids ids, Error *err);
void closing_line(const Generation *g);
// What the model writes of a source, which it has an encoder for, as the options say: its decoder
// reads all of it but the last token. *sampled: whether chance had a part.
Ids written_target(const Options *o, Workspace *w, Tokenizer *tokenizer, Ids source,
                   bool *sampled);
// What an encoder does with a prompt: its masks are filled. mask.c
int fill_masks(Generation *g);

#endif
