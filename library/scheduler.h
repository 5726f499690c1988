// The scheduler's structs and its files' calls of each other. heads.h ("many requests side by
// side") says what the scheduler does.
#ifndef SCHEDULER_H
#define SCHEDULER_H

#include "engine.h"
#include "library/guard.h"
#include "sampler.h"
#include "sequence/guess.h"
#include "sequence/steering.h"
#include "tokenizer.h"

enum { MIN_SHARED = 32 };  // a shorter common beginning is not worth a fork
enum { MAX_COSTS = 65 };   // numbers of requests whose passes are measured apart: 0..63, more

// Tokens that several prompts begin with. They run once, and each request forks their sequence.
typedef struct Prefix {
    struct Prefix *parent;  // a shorter prefix that this one begins with, or NULL
    int depth;              // 1 without a parent, else the parent's + 1
    int length;             // in tokens
    int shortest;           // tokens of its shortest prompt
    long first;             // lowest number of its requests
    int users;              // requests still to fork it, and prefixes whose parent it is
    int unclaimed;          // tokens that ran for it, and count for no request yet
    Sequence *sequence;     // has run the first of its tokens, or all; NULL: none of them
    bool failed;            // it could not run; its requests use the parent
} Prefix;

typedef struct Request {
    heads_request asked;    // as added, with copies of what it points to; ids, lang, steers: NULL
    Steering *steering;     // steers
    Adapted adapted;        // by asked.adapter and its scale
    int *ids;               // [n_ids], prompt and generated tokens; allocated: [room]
    int n_prompt, n_ids, room;
    int spared;             // prompt tokens that a fork gave it, and that count for another request
    int max_tokens;         // to generate after the n_prompt tokens
    long number;            // that heads_batch_add returned
    Prefix *prefix;         // that it will fork, or NULL
    Sequence *sequence;     // NULL: it has none yet
    bool source_read;       // by the encoder
    bool restarted;         // its sequence failed once; the present one shares nothing
    int scored;             // the next logits that are wanted are those after ids[scored]
    int guessed;            // ids behind ids[n_ids) that run in this pass
    Guard guard;            // of these
    Sequence *draft;        // the draft model's; NULL: none
    Sequence *running;      // runs next: its own sequence, or a prefix's; NULL: it has to wait
    int until;              // length that `running` is to reach
    heads_sampler *sampler;
    Decoder *decoder;       // NULL: there is no tokenizer
    char *text;             // [size]: `shown` bytes in events of this step, `given` in its last
    size_t size, shown, given, text_room;  // event, then those held back
    uint32_t *allowed;      // bits for the mask callback; NULL: no mask
    heads_likely *top;      // [rows of the last pass][n_top]
    int top_room;           // elements allocated in top
    bool ended;             // its last event was given; the next step frees it
    Error error;            // text "": none
} Request;

// A row of logits, and the token that follows it.
typedef struct {
    Request *request;
    float *logits;
    int id;
    bool given;      // id is the prompt's, to be scored; else the sampler picks it
    bool last;       // the request ends with it
    int at;          // guesses before it, which have to be right
    bool due, made;  // it is made now; it was made, and counts
    double log_probability;
    int best;        // the most likely token
    heads_likely *top;  // [n_top], the most likely first
} Choice;

struct heads_batch {
    Workspace *w;
    const Tokenizer *tokenizer;
    int places, keep, n_draft;  // heads_batch_options
    Workspace *draft;           // NULL: none
    heads_sampler *greedy;      // of the draft
    Request **waiting;      // the queue: [next..n_waiting); prefixes are known of [..searched)
    long next, searched, n_waiting, waiting_room;
    Request **busy;         // [n_busy], those with a place, the first to take one first
    Request **order;        // [places], those that could run in the next pass
    int n_busy;
    Sequence **spare;       // [n_spare], left by requests that have ended, the oldest first
    int n_spare, most_spare;
    Run *runs;              // [n_runs <= places], of this pass
    Request **owners;       // [n_runs]: runs[i] is of owners[i]'s own sequence, or of its prefix's
    int n_runs, n_rows;     // n_rows: rows of logits that the runs want
    Choice *choices;        // [logit_rows]
    heads_event *events;    // [logit_rows + 2 places]
    int n_events;
    long n_added, n_passes;
    GuessCost costs[MAX_COSTS];  // of passes with so many requests that generate, and no prompts
    double owed;                 // a Guard's `spare` for the next request, 0 or less
    GuessJob *jobs;         // [n_runs], of this pass: the model's own layers guess for all together
    int n_guesses, behind;  // that run in this pass; tokens that the draft model read for it
    bool measured;          // it has nothing else, so that it tells what guesses cost
    size_t prompt_tokens, spared;  // of requests that are done
    size_t drafted, accepted;      // guesses
};

// ---- requests.c ----

// Makes room for n more ids. Errors: no memory.
int make_room(Request *r, int n, Error *err);

void free_request(Request *r);
// The length that its sequence has to reach now: all ids, but not a last one that is only scored.
static inline int tokens_to_run(const Request *r) {
    return r->n_ids - (r->max_tokens == 0);
}
// How many prompt tokens need no logits, so that they may come from another request's sequence.
static inline int shareable_length(const Request *r) { return r->n_prompt - 1 - r->asked.n_scored; }

// ---- prefixes.c: which prompts begin alike ----

// Finds the prefixes of n requests, and sorts these: those with a common prefix stand together,
// where the first of them was added; the others stay. Without memory they get no prefixes.
void find_prefixes(Request **requests, long n);
// p, or the nearest parent that has not failed; NULL: none.
Prefix *usable_prefix(Prefix *p);
// The prefix that has to run next so that p can be forked; NULL: p has run, or none is usable.
Prefix *missing_prefix(Prefix *p);
void release_prefix(Prefix *p);  // a user has gone; frees it after the last one

// ---- forks.c: sequences, made or forked ----

// Sets r->running and r->until to a prefix that has to run, else to the own sequence, which is
// made here. Without memory it sets r->error.
void choose_sequence(heads_batch *b, Request *r);
// Puts the sequence of a request that has ended among the spare ones, or frees it.
void leave_sequence(heads_batch *b, Request *r);

// ---- stops.c: the text of a request, and where it ends ----

// Makes the sampler and the decoder, and feeds them the prompt. -1: r->error says why.
int begin_text(heads_batch *b, Request *r);
// Forgets what was given in the last step.
void forget_given(Request *r);
// Decodes a generated id into r->text[shown .. shown + given). Returns why the text ends, NULL: it
// goes on. *failed: there was no memory, and r->error says so.
const char *add_token(heads_batch *b, Request *r, int id, bool *failed);

// ---- guesses.c: tokens that run before they are picked ----

// Adds guesses to the runs of the pass, at most `room`.
void add_guesses(heads_batch *b, int room);
// The pass, with the making of its guesses and what followed, took so long.
void measure_guesses(heads_batch *b, double time);
// Forgets those of the last pass that were wrong. r->error: that failed.
void settle_guesses(heads_batch *b, Request *r);

// ---- choices.c: log-probabilities, masks and picks ----

// Scores or picks n choices, on the workspace's threads. r->error: the mask failed, or allows none.
void make_choices(heads_batch *b, Choice *choices, int n);

#endif
