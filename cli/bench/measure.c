#include "cli/bench/measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/input.h"
#include "cli/print.h"

enum {
    DECODE_TOKENS = 16,     // most tokens of one sample of decode
    MOST_READ = 1 << 30,    // bytes of one sample of reading
    PEAK_ITEMS = 8,         // per thread, so that others make up for one that wakes late
    EMPTY_CALLS = 200,
    MOST_STREAMS = 8,       // of a thread that reads
};
static const int PROMPTS[N_PROMPTS] = {16, 128, 512}, DEPTHS[N_DEPTHS] = {0, 1024, 4096, 8192};
static const double ROUNDS_SECONDS = 20,  // no round begins after this time,
    BATCH_SECONDS = 4,      // plus this for each case of sequences side by side
    DECODE_SECONDS = 0.1,   // least time of a sample of decode, if it has not the most tokens
    SAMPLE_SECONDS = 0.02,  // least time of a ceiling's steps
    CEILING_SECONDS = 1;    // most time of a ceiling's

// ---- the ceilings, and the cost of sharing work ----

// A ceiling is measured for as long as the sample that it is compared with took. A shorter one
// could miss neighbours that slowed the sample.
static bool goes_on(double start, double took) {
    return seconds() - start < (took < CEILING_SECONDS ? took : CEILING_SECONDS);
}

// sample_read and sample_peak add a sample of a ceiling and return it: bytes, or operations, per
// second.
static double sample_read(Bench *b, double took) {
    double start = seconds(), bytes = 0;
    do {
        inspect_read(b->p.w, b->lines, b->n_lines, b->n_streams);
        bytes += (double)b->n_lines * 64;
    } while (goes_on(start, took));
    double found = bytes / (seconds() - start);
    add_sample(&b->read, found);
    return found;
}

static double sample_peak(Bench *b, double took) {
    int items = PEAK_ITEMS * heads_workspace_threads(b->p.w);
    double start = seconds(), operations = 0;
    do {
        operations += inspect_peak(b->p.w, b->products.dtype, b->steps, items);
    } while (goes_on(start, took));
    double found = operations / (seconds() - start);
    add_sample(&b->peak, found);
    return found;
}

static void sample_empty(Bench *b) {
    double start = seconds();
    for (int i = 0; i < EMPTY_CALLS; i++) inspect_nothing(b->p.w);
    add_sample(&b->empty, (seconds() - start) / EMPTY_CALLS);
}

// Doubles the steps until a sample is long enough.
static void choose_steps(Bench *b) {
    for (b->steps = 1000;; b->steps *= 2) {
        double start = seconds();
        inspect_peak(b->p.w, b->products.dtype, b->steps, 0);
        if (seconds() - start > SAMPLE_SECONDS / PEAK_ITEMS) return;
    }
}

// Chooses the lines to read: the model's own bytes, or, if the cache could hold them, a buffer of
// four times its size. At most a gigabyte.
static void choose_lines(Bench *b) {
    size_t size = b->p.facts.file_bytes, cache = last_level_cache();
    b->cache_bytes = cache ? cache : (size_t)32 << 20;
    bool cached = size <= b->cache_bytes;
    size_t bytes = cached ? 4 * b->cache_bytes : size;
    b->n_lines = (bytes < MOST_READ ? bytes : MOST_READ) / 64;
    b->lines = b->p.facts.bytes;
    if (!cached) return;
    b->buffer = allocate(b->n_lines + 1, 64);
    memset(b->buffer, 1, (b->n_lines + 1) * 64);
    b->lines = (const char *)b->buffer + (64 - (uintptr_t)b->buffer % 64);
}

// Chooses how many streams of a thread read fastest; the first pass is not timed.
static void choose_streams(Bench *b) {
    double least = 1e9;
    inspect_read(b->p.w, b->lines, b->n_lines, 1);
    for (int n = 1; n <= MOST_STREAMS; n *= 2) {
        double start = seconds();
        for (int i = 0; i < 2; i++) inspect_read(b->p.w, b->lines, b->n_lines, n);
        double took = seconds() - start;
        if (took < least) least = took, b->n_streams = n;
    }
}

// ---- operations and bytes of a token ----

// Operations of products with weights: the layers' for n tokens, the classifier's for one. Mixers'
// work on keys, values and states is not counted.
static double operations(const Bench *b, int n) {
    return 2 * (n * b->products.token + b->products.logits);
}

// The bytes that a token of a sample reads on average: its share of the weights, which a pass reads
// once, and the keys and values up to its own.
static double token_bytes(const Bench *b, int depth, int sequences) {
    const heads_workspace_options *w = &b->p.o->workspace;
    double cache = 0;
    for (int i = 1; i <= b->decode_tokens; i++)
        cache += (double)inspect_kv_bytes(b->p.model, 0, depth + i, 0, w->k_type, w->v_type);
    return (double)b->p.shape.weight_bytes / sequences + cache / b->decode_tokens;
}

// ---- prefill and decode ----

static void run(const Bench *b, const heads_run *runs, int n_runs) {
    heads_error err;
    if (!heads_forward_runs(b->p.w, runs, n_runs, &err)) die("%s", err.text);
}

// The next n tokens of a sequence, the same for all sequences of that length.
static heads_run next_tokens(const Bench *b, heads_sequence *s, int n, int n_logits) {
    return (heads_run){s, b->tokens + heads_sequence_length(s), n, n_logits};
}

// Brings the first n sequences of a depth to its length. They are rewound, since their pages are in
// place, or, if a window or a mixer's state prevents that, forked anew. The depth's last token runs
// untimed, because reading the pages of a fork for the first time costs more.
static void rewind_all(const Bench *b, Depth *d, int n) {
    heads_error err;
    heads_run runs[MAX_SEQUENCES];
    int start = heads_sequence_length(d->base);
    for (int i = 0; i < n; i++) {
        if (d->at[i] && heads_sequence_rewind(d->at[i], start, &err)) {
            heads_sequence_free(d->at[i]);
            d->at[i] = NULL;
        }
        if (!d->at[i]) d->at[i] = heads_sequence_fork(d->base, start, &err);
        if (!d->at[i]) die("%s", err.text);
        runs[i] = next_tokens(b, d->at[i], 1, 0);
    }
    if (start < d->tokens) run(b, runs, n);
}

// Seconds of `passes` passes, each with n tokens of `sequences` sequences.
static double time_passes(const Bench *b, Depth *d, int sequences, int n, int passes) {
    heads_run runs[MAX_SEQUENCES];
    rewind_all(b, d, sequences);
    double start = seconds();
    for (int pass = 0; pass < passes; pass++) {
        for (int i = 0; i < sequences; i++) runs[i] = next_tokens(b, d->at[i], n, 1);
        run(b, runs, sequences);
    }
    return seconds() - start;
}

// Seconds of the timed tokens of `sequences` sequences, one at a time. After a prompt, the first
// token takes longer, since the caches hold other things: one runs before, as it does deeper.
static double time_decode(const Bench *b, Depth *d, int sequences) {
    if (!d->tokens) time_passes(b, d, sequences, 1, 1);
    return time_passes(b, d, sequences, 1, b->decode_tokens);
}

static double add_rate(Case *c, double tokens, double took) {
    add_sample(&c->rate, tokens / took);
    return tokens / took;
}

static void sample_prefill(Bench *b, Case *c) {
    double took = time_passes(b, c->depth, 1, c->tokens, 1);
    double found = add_rate(c, c->tokens, took);
    add_sample(&c->of_peak, found * c->operations / sample_peak(b, took));
}

static void sample_decode(Bench *b, Case *c) {
    double took = time_decode(b, c->depth, 1);
    double found = add_rate(c, b->decode_tokens, took);
    add_sample(&c->of_read, found * c->bytes / sample_read(b, took));
}

static void sample_batch(Bench *b, Case *c) {
    int n = c->sequences, passes = b->decode_tokens;
    double took = time_decode(b, c->depth, n), chunk_took = 0;
    for (int i = 0; i < passes; i++) chunk_took += time_passes(b, c->depth, 1, n, 1);
    double found = add_rate(c, (double)n * passes, took), chunk = n * passes / chunk_took;
    add_sample(&c->chunk, chunk);
    add_sample(&c->of_chunk, found / chunk);
    add_sample(&c->of_read, found * c->bytes / sample_read(b, took));
    add_sample(&c->of_peak, found * c->operations / sample_peak(b, took));
}

// Fills the cache by prefill up to the deepest case, and keeps a fork at each depth.
static void fill(Bench *b) {
    heads_error err;
    heads_sequence *s = open_sequence(b->p.w, true);
    int deepest = b->depths[b->n_decode - 1].tokens;
    double start = seconds();
    for (Depth *d = b->depths; d < b->depths + b->n_decode; d++) {
        int last = d->tokens ? d->tokens - 1 : 0;
        while (heads_sequence_length(s) < last) {
            int done = heads_sequence_length(s), chunk = heads_workspace_chunk(b->p.w);
            progress(done, deepest, "filling the cache, token %d of %d", done, deepest);
            heads_run next = next_tokens(b, s, last - done < chunk ? last - done : chunk, 0);
            run(b, &next, 1);
        }
        if (!(d->base = heads_sequence_fork(s, last, &err))) die("%s", err.text);
    }
    b->filled = heads_sequence_length(s);
    b->fill_seconds = seconds() - start;
    progress_end();
    heads_sequence_free(s);
}

// Chooses how many tokens a sample of decode has, and writes once to every page that samples write.
static void warm_up(Bench *b) {
    double took = time_passes(b, &b->depths[0], 1, 1, 1);
    double n = DECODE_SECONDS / (took > 1e-9 ? took : 1e-9);
    b->decode_tokens = n < 1 ? 1 : n > DECODE_TOKENS ? DECODE_TOKENS : (int)n;
    for (int i = 0; i < b->n_decode; i++) {
        int sequences = i < BATCH_DEPTHS ? b->most_sequences : 1;
        time_passes(b, &b->depths[i], sequences, 1, b->decode_tokens);
    }
}

static void one_round(Bench *b) {
    sample_empty(b);
    for (int i = 0; i < b->n_prefill; i++) sample_prefill(b, &b->prefill[i]);
    for (int i = 0; i < b->n_decode; i++) sample_decode(b, &b->decode[i]);
    for (int i = 0; i < b->n_batch; i++) sample_batch(b, &b->batch[i]);
}

void measure(Bench *b) {
    choose_lines(b);
    choose_streams(b);
    fill(b);
    warm_up(b);
    choose_steps(b);
    for (Case *c = b->prefill; c < b->prefill + b->n_prefill; c++)
        c->operations = operations(b, c->tokens) / c->tokens;
    for (Case *c = b->decode; c < b->decode + b->n_decode; c++)
        c->bytes = token_bytes(b, c->tokens, 1);
    for (Case *c = b->batch; c < b->batch + b->n_batch; c++) {
        c->operations = operations(b, 1);
        c->bytes = token_bytes(b, c->tokens, c->sequences);
    }
    double end = seconds() + ROUNDS_SECONDS + b->n_batch * BATCH_SECONDS;
    for (int i = 0; i < MIN_ROUNDS || (i < MAX_ROUNDS && seconds() < end); i++) {
        progress(i + 1, MAX_ROUNDS, "round %d of %d", i + 1, MAX_ROUNDS);
        one_round(b);
    }
    progress_end();
}

// Every prompt that fits; every depth with room for the timed tokens, and in the place of the first
// that does not fit, the end of the context.
int choose_cases(Bench *b, int context) {
    const IntList *np = &b->p.o->sequences;
    int longest = 0;
    for (int i = 0; i < np->n; i++)
        if (np->values[i] > b->most_sequences) b->most_sequences = np->values[i];
    int room = b->most_sequences > DECODE_TOKENS ? b->most_sequences : DECODE_TOKENS;
    if (context < PROMPTS[0] + room)
        die("--bench needs a context of %d at least, this one is %d", PROMPTS[0] + room, context);
    for (int i = 0; i < N_PROMPTS && PROMPTS[i] <= context; i++) {
        longest = PROMPTS[i];
        b->prefill[b->n_prefill++] = (Case){.tokens = longest, .depth = &b->depths[0]};
    }
    int last = context - room;
    for (int i = 0; i < N_DEPTHS && (i == 0 || DEPTHS[i - 1] < last); i++) {
        Depth *d = &b->depths[b->n_decode];
        d->tokens = DEPTHS[i] < last ? DEPTHS[i] : last;
        b->decode[b->n_decode++] = (Case){.tokens = d->tokens, .depth = d};
        for (int j = 0; i < BATCH_DEPTHS && j < np->n; j++)
            b->batch[b->n_batch++] =
                (Case){.tokens = d->tokens, .sequences = np->values[j], .depth = d};
    }
    int deepest = b->depths[b->n_decode - 1].tokens + room;
    return deepest > longest ? deepest : longest;
}
