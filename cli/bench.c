// bench.c: --bench. Prefill and decode, of one sequence and with -np of several side by side, and
// what this processor can do at best: the multiply-adds of the unit that the weights' dtype uses,
// and the reading of memory as a stream. All of these are measured in turn in every round, so that
// a neighbour or a change of clock affects them alike, and each is compared with what was measured
// right next to it.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "input.h"
#include "print.h"
#include "verbs.h"

enum {
    MAX_ROUNDS = 15, MIN_ROUNDS = 3,
    DECODE_TOKENS = 16,     // most tokens of one sample of decode
    READ_LINES = 1 << 14,   // a megabyte: what a thread claims at a time
    MOST_READ = 1 << 30,    // bytes of one sample of `read`
    PEAK_ITEMS = 8,         // per thread, so that one that wakes late is made up for
    EMPTY_CALLS = 200,
};
static const int PROMPTS[] = {16, 128, 512}, DEPTHS[] = {0, 1024, 4096, 8192};
enum {
    N_PROMPTS = sizeof PROMPTS / sizeof *PROMPTS, N_DEPTHS = sizeof DEPTHS / sizeof *DEPTHS,
    BATCH_DEPTHS = 2,  // sequences side by side are measured at the first two
    MAX_SAMPLES = (N_DEPTHS + BATCH_DEPTHS * MAX_LIST) * MAX_ROUNDS,
};
static const double ROUNDS_SECONDS = 20,  // no new round after so long
    BATCH_SECONDS = 4,      // and so much longer for each row of sequences side by side
    SAMPLE_SECONDS = 0.02,  // what a sample of decode or of a ceiling should last at least
    CEILING_SECONDS = 1;    // and a ceiling's at most

typedef struct {
    double values[MAX_SAMPLES];
    int n;
} Samples;

typedef struct {  // sequences that are run from the same depth
    int tokens;                   // in the cache before the first that is timed
    Sequence *base;               // all of these but one, and none at depth 0
    Sequence *at[MAX_SEQUENCES];  // forks of it, made when they are needed
} Depth;

typedef struct {
    int tokens;                   // of the prompt, or in the cache before the first token
    int sequences;                // side by side
    Depth *depth;
    double operations, bytes;     // of one token
    Samples rate;                 // tokens per second
    Samples of_peak, of_read;     // shares of the ceilings that were measured right after it
    Samples chunk, of_chunk;      // prefill of as many rows: tokens per second, and the share of it
} Row;

typedef struct {
    const Options *o;
    const Model *model;
    const Kernels *k;
    const char *why;
    Workspace *w;
    Dtype dtype;               // of the layers' matrices, of most if they differ
    int *tokens;               // [context]
    Depth depths[N_DEPTHS];
    Row prefill[N_PROMPTS], decode[N_DEPTHS], batch[BATCH_DEPTHS * MAX_LIST];
    int n_prefill, n_decode, n_batch, most_sequences;
    int decode_tokens;         // of one sample
    Samples peak, read, empty; // operations and bytes per second; seconds of an empty parallel_for
    const uint8_t *lines;      // what `read` reads
    size_t n_lines;
    uint8_t *buffer;           // owned; NULL if the lines are the model's
    size_t cache_bytes;        // of the last-level cache
    size_t steps;              // of one item of `peak`
    int filled;                // tokens run to fill the cache, and how long that took
    double fill_seconds;
} Bench;

// ---- samples ----

static void add_sample(Samples *s, double value) {
    if (s->n < MAX_SAMPLES) s->values[s->n++] = value;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct {
    double min, median, max;
} Spread;

static Spread spread(const Samples *s) {
    double v[MAX_SAMPLES];
    memcpy(v, s->values, (size_t)s->n * sizeof *v);
    qsort(v, (size_t)s->n, sizeof *v, ascending);
    return (Spread){v[0], (v[(s->n - 1) / 2] + v[s->n / 2]) / 2, v[s->n - 1]};
}

// ---- the ceilings, and what it costs to share work ----

static void read_item(const void *arg, int item, int thread) {
    (void)thread;
    const Bench *b = arg;
    size_t first = (size_t)item * READ_LINES, left = b->n_lines - first;
    size_t n = left < READ_LINES ? left : READ_LINES;
    volatile uint64_t sum = b->k->read(b->lines + first * 64, n);
    (void)sum;
}

// A ceiling is measured for as long as what is held against it took: where neighbours take turns
// with us, a short sample would miss them and a long one would not.
static bool goes_on(double start, double took) {
    return seconds() - start < (took < CEILING_SECONDS ? took : CEILING_SECONDS);
}

// Each measures a ceiling, notes it and returns it: bytes, or operations, per second.
static double sample_read(Bench *b, double took) {
    int items = (int)((b->n_lines + READ_LINES - 1) / READ_LINES);
    double start = seconds(), bytes = 0;
    do {
        parallel_for(workspace_pool(b->w), items, read_item, b);
        bytes += (double)b->n_lines * 64;
    } while (goes_on(start, took));
    double found = bytes / (seconds() - start);
    add_sample(&b->read, found);
    return found;
}

static void peak_item(const void *arg, int item, int thread) {
    (void)item, (void)thread;
    const Bench *b = arg;
    b->k->peak[b->dtype](b->steps);
}

static double sample_peak(Bench *b, double took) {
    int items = PEAK_ITEMS * workspace_threads(b->w);
    double once = b->k->peak[b->dtype](1) * (double)b->steps * items;
    double start = seconds(), operations = 0;
    do {
        parallel_for(workspace_pool(b->w), items, peak_item, b);
        operations += once;
    } while (goes_on(start, took));
    double found = operations / (seconds() - start);
    add_sample(&b->peak, found);
    return found;
}

static void nothing(const void *arg, int item, int thread) { (void)arg, (void)item, (void)thread; }

static void sample_empty(Bench *b) {
    double start = seconds();
    for (int i = 0; i < EMPTY_CALLS; i++)
        parallel_for(workspace_pool(b->w), workspace_threads(b->w), nothing, NULL);
    add_sample(&b->empty, (seconds() - start) / EMPTY_CALLS);
}

// Doubles the steps until a sample is long enough.
static void choose_steps(Bench *b) {
    for (b->steps = 1000;; b->steps *= 2) {
        double start = seconds();
        peak_item(b, 0, 0);
        if (seconds() - start > SAMPLE_SECONDS / PEAK_ITEMS) return;
    }
}

// The bytes of the last-level cache that core 0 uses: 32 MB if the system does not say.
static size_t cache_bytes(void) {
    size_t kib = 0;
    FILE *f = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "r");
    if (f) {
        if (fscanf(f, "%zuK", &kib) != 1) kib = 0;
        fclose(f);
    }
    return kib ? kib * 1024 : (size_t)32 << 20;
}

// The model's own bytes, where the cache cannot hold them; else a buffer of four times the cache.
// At most a gigabyte.
static void choose_lines(Bench *b) {
    const Mapping *map = &b->model->file.map;
    b->cache_bytes = cache_bytes();
    bool cached = map->size <= 2 * b->cache_bytes;
    size_t bytes = cached ? 4 * b->cache_bytes : map->size;
    b->n_lines = (bytes < MOST_READ ? bytes : MOST_READ) / 64;
    b->lines = map->data;
    if (!cached) return;
    b->lines = b->buffer = aligned_alloc(64, b->n_lines * 64);
    if (!b->buffer) die("no memory for a buffer of %zu bytes to read", b->n_lines * 64);
    memset(b->buffer, 1, b->n_lines * 64);
}

// ---- what a token takes ----

// Multiply-adds that a token makes with a layer's matrices of this dtype. Of a stack it meets the
// matrix of every head, or of the experts that it chooses; absent matrices have no rows.
static double layer_products(const Layer *l, Dtype dtype) {
    const Attention *a = &l->attention;
    const ShortConv *c = &l->shortconv;
    const DeltaNet *d = &l->deltanet;
    const Mamba2 *m = &l->mamba2;
    const Ffn *f = &l->ffn;
    const Experts *e = &l->experts;
    const struct {
        int times;
        const Matrix *w;
    } uses[] = {
        {1, &a->q}, {1, &a->k}, {1, &a->v}, {1, &a->o}, {1, &a->out_gate},
        {1, &a->latent.q_down}, {a->n_heads, &a->latent.k_up}, {a->n_heads, &a->latent.v_up},
        {1, &c->in}, {1, &c->out},
        {1, &d->in}, {1, &d->out}, {1, &d->gate}, {1, &d->beta}, {1, &d->decay},
        {1, &m->in}, {1, &m->out}, {1, &m->gate}, {1, &m->step},
        {1, &f->gate}, {1, &f->up}, {1, &f->down}, {1, &f->token_gate},
        {1, &e->router}, {e->top_k, &e->gate}, {e->top_k, &e->up}, {e->top_k, &e->down},
        {1, &l->embed_branch.gate}, {1, &l->embed_branch.out},
    };
    double products = 0;
    for (size_t i = 0; i < sizeof uses / sizeof *uses; i++) {
        const Matrix *w = uses[i].w;
        if (w->dtype == dtype) products += (double)uses[i].times * w->n_out * w->n_in;
    }
    return products;
}

// The same for all layers.
static double token_products(const Model *m, Dtype dtype) {
    const Matrix *in = &m->layer_embed.in;
    double products = in->dtype == dtype ? (double)in->n_out * in->n_in : 0;
    for (int i = 0; i < m->n_layers; i++) products += layer_products(&m->layers[i], dtype);
    return products;
}

// That of most multiply-adds.
static Dtype main_dtype(const Model *m) {
    Dtype most = F32;
    for (Dtype d = F32; d < N_DTYPES; d++)
        if (token_products(m, d) > token_products(m, most)) most = d;
    return most;
}

// Operations of the weights' products for n tokens, the classifier's for n_logits; what attention
// and the other mixers do with keys, values and states is not counted.
static double operations(const Model *m, int n, int n_logits) {
    double products = (double)n_logits * m->output.n_out * m->output.n_in;
    for (Dtype d = F32; d < N_DTYPES; d++) products += n * token_products(m, d);
    return 2 * products;
}

// The bytes that a token of a sample reads, on average: every weight once a pass, and the keys and
// values before it and its own.
static double token_bytes(const Bench *b, int depth, int sequences) {
    const WorkspaceOptions *w = &b->o->workspace;
    double cache = 0;
    for (int i = 1; i <= b->decode_tokens; i++)
        cache += (double)kv_bytes_at(b->model, 0, depth + i, 0, w->k_dtype, w->v_dtype);
    return (double)b->model->weight_bytes / sequences + cache / b->decode_tokens;
}

// ---- prefill and decode ----

static void run(const Bench *b, const Run *runs, int n_runs) {
    Error err;
    if (!forward_runs(b->w, runs, n_runs, &err)) die("%s", err.text);
}

// The next n tokens of a sequence. They are the same for all that begin at one depth.
static Run next_tokens(const Bench *b, Sequence *s, int n, int n_logits) {
    return (Run){s, b->tokens + sequence_length(s), n, n_logits};
}

// Brings the first n sequences of a depth there. They are rewound, so that their pages are in place
// already, or forked anew if a window or a mixer's state has forgotten the base's last token. That
// token is run untimed: reading the pages of a fork for the first time costs more.
static void rewind_all(const Bench *b, Depth *d, int n) {
    Error err;
    Run runs[MAX_SEQUENCES];
    int start = sequence_length(d->base);
    for (int i = 0; i < n; i++) {
        if (d->at[i] && sequence_rewind(d->at[i], start, &err)) {
            sequence_free(d->at[i]);
            d->at[i] = NULL;
        }
        if (!d->at[i] && !(d->at[i] = sequence_fork(d->base, start, &err))) die("%s", err.text);
        runs[i] = next_tokens(b, d->at[i], 1, 0);
    }
    if (start < d->tokens) run(b, runs, n);
}

// Seconds of `passes` passes, each of the next n tokens of so many sequences.
static double time_passes(const Bench *b, Depth *d, int sequences, int n, int passes) {
    Run runs[MAX_SEQUENCES];
    rewind_all(b, d, sequences);
    double start = seconds();
    for (int pass = 0; pass < passes; pass++) {
        for (int i = 0; i < sequences; i++) runs[i] = next_tokens(b, d->at[i], n, 1);
        run(b, runs, sequences);
    }
    return seconds() - start;
}

static double add_rate(Row *row, double tokens, double took) {
    add_sample(&row->rate, tokens / took);
    return tokens / took;
}

static void sample_prefill(Bench *b, Row *row) {
    double took = time_passes(b, row->depth, 1, row->tokens, 1);
    double found = add_rate(row, row->tokens, took);
    add_sample(&row->of_peak, found * row->operations / sample_peak(b, took));
}

static void sample_decode(Bench *b, Row *row) {
    double took = time_passes(b, row->depth, 1, 1, b->decode_tokens);
    double found = add_rate(row, b->decode_tokens, took);
    add_sample(&row->of_read, found * row->bytes / sample_read(b, took));
}

static void sample_batch(Bench *b, Row *row) {
    int n = row->sequences, passes = b->decode_tokens;
    double took = time_passes(b, row->depth, n, 1, passes), chunk_took = 0;
    for (int i = 0; i < passes; i++) chunk_took += time_passes(b, row->depth, 1, n, 1);
    double found = add_rate(row, (double)n * passes, took), chunk = n * passes / chunk_took;
    add_sample(&row->chunk, chunk);
    add_sample(&row->of_chunk, found / chunk);
    add_sample(&row->of_read, found * row->bytes / sample_read(b, took));
    add_sample(&row->of_peak, found * row->operations / sample_peak(b, took));
}

// Fills the cache by prefill up to the deepest row, and keeps a fork at each depth.
static void fill(Bench *b) {
    Error err;
    Sequence *s = open_sequence(b->w, true);
    int deepest = b->depths[b->n_decode - 1].tokens;
    double start = seconds();
    for (Depth *d = b->depths; d < b->depths + b->n_decode; d++) {
        int last = d->tokens ? d->tokens - 1 : 0;
        while (sequence_length(s) < last) {
            int done = sequence_length(s), chunk = workspace_chunk(b->w);
            progress(done, deepest, "filling the cache, token %d of %d", done, deepest);
            Run next = next_tokens(b, s, last - done < chunk ? last - done : chunk, 0);
            run(b, &next, 1);
        }
        if (!(d->base = sequence_fork(s, last, &err))) die("%s", err.text);
    }
    b->filled = sequence_length(s);
    b->fill_seconds = seconds() - start;
    progress_end();
    sequence_free(s);
}

// How many tokens make a sample of decode long enough; and every page that a sample will write is
// written once.
static void warm_up(Bench *b) {
    double took = time_passes(b, &b->depths[0], 1, 1, 1);
    double n = SAMPLE_SECONDS / (took > 1e-9 ? took : 1e-9);
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

static void measure(Bench *b) {
    choose_lines(b);
    fill(b);
    warm_up(b);
    choose_steps(b);
    for (Row *r = b->prefill; r < b->prefill + b->n_prefill; r++)
        r->operations = operations(b->model, r->tokens, 1) / r->tokens;
    for (Row *r = b->decode; r < b->decode + b->n_decode; r++)
        r->bytes = token_bytes(b, r->tokens, 1);
    for (Row *r = b->batch; r < b->batch + b->n_batch; r++) {
        r->operations = operations(b->model, 1, 1);
        r->bytes = token_bytes(b, r->tokens, r->sequences);
    }
    double end = seconds() + ROUNDS_SECONDS + b->n_batch * BATCH_SECONDS;
    for (int i = 0; i < MIN_ROUNDS || (i < MAX_ROUNDS && seconds() < end); i++) {
        progress(i + 1, MAX_ROUNDS, "round %d of %d", i + 1, MAX_ROUNDS);
        one_round(b);
    }
    progress_end();
}

// What fits into the context: every prompt; every depth with room for the tokens that are timed
// there, and instead of the first that does not fit, the last positions. Returns the context.
static int choose_rows(Bench *b, int context) {
    const IntList *np = &b->o->sequences;
    int longest = 0;
    for (int i = 0; i < np->n; i++)
        if (np->values[i] > b->most_sequences) b->most_sequences = np->values[i];
    int room = b->most_sequences > DECODE_TOKENS ? b->most_sequences : DECODE_TOKENS;
    if (context < PROMPTS[0] + room)
        die("--bench needs a context of %d at least, this one is %d", PROMPTS[0] + room, context);
    for (int i = 0; i < N_PROMPTS && PROMPTS[i] <= context; i++) {
        longest = PROMPTS[i];
        b->prefill[b->n_prefill++] = (Row){.tokens = longest, .depth = &b->depths[0]};
    }
    int last = context - room;
    for (int i = 0; i < N_DEPTHS && (i == 0 || DEPTHS[i - 1] < last); i++) {
        Depth *d = &b->depths[b->n_decode];
        d->tokens = DEPTHS[i] < last ? DEPTHS[i] : last;
        b->decode[b->n_decode++] = (Row){.tokens = d->tokens, .depth = d};
        for (int j = 0; i < BATCH_DEPTHS && j < np->n; j++)
            b->batch[b->n_batch++] =
                (Row){.tokens = d->tokens, .sequences = np->values[j], .depth = d};
    }
    int deepest = b->depths[b->n_decode - 1].tokens + room;
    return deepest > longest ? deepest : longest;
}

// ---- the report ----

static const char *unit(Dtype dtype) { return dtype == Q8 || dtype == Q4 ? "GOP/s" : "GFLOP/s"; }

static void print_ceilings(const Bench *b) {
    Spread peak = spread(&b->peak), read = spread(&b->read), empty = spread(&b->empty);
    printf("%s weights, keys %s, values %s; %s kernels (%s), %d threads; %d rounds, each figure "
           "the median (least-most)\n\n", dtype_name(b->dtype),
           dtype_name(b->o->workspace.k_dtype), dtype_name(b->o->workspace.v_dtype), b->k->name,
           b->why, workspace_threads(b->w), b->empty.n);
    printf("ceiling   arithmetic of %s weights   %9.1f %s (%.1f-%.1f)\n", dtype_name(b->dtype),
           peak.median * 1e-9, unit(b->dtype), peak.min * 1e-9, peak.max * 1e-9);
    printf("          streaming read %12s   %9.2f GB/s (%.2f-%.2f) over %.0f MB, %s\n", "",
           read.median * 1e-9, read.min * 1e-9, read.max * 1e-9, (double)b->n_lines * 64e-6,
           b->buffer ? "a buffer" : "the model's file");
    printf("pool      an empty parallel_for %5s   %9.2f us (%.2f-%.2f)\n\n", "",
           empty.median * 1e6, empty.min * 1e6, empty.max * 1e6);
}

static void print_rows(const Row *rows, int n, bool prefill) {
    for (const Row *row = rows; row < rows + n; row++) {
        Spread r = spread(&row->rate);
        double work = r.median * (prefill ? row->operations : row->bytes) * 1e-9;
        printf("%s %8d %10.1f    %9.1f-%-9.1f %12.*f %14.1f %%\n", prefill ? "prefill" : "decode ",
               row->tokens, r.median, r.min, r.max, prefill ? 1 : 2, work,
               100 * spread(prefill ? &row->of_peak : &row->of_read).median);
    }
}

static void print_batch(const Bench *b) {
    printf("\n           depth sequences     tok/s    (least-most)          arithmetic     read   "
           "a chunk of as many rows\n");
    for (const Row *row = b->batch; row < b->batch + b->n_batch; row++) {
        Spread r = spread(&row->rate);
        printf("batch   %8d %9d %9.1f    %9.1f-%-9.1f %9.1f %% %6.1f %% %6.1f %% of %.1f tok/s\n",
               row->tokens, row->sequences, r.median, r.min, r.max,
               100 * spread(&row->of_peak).median, 100 * spread(&row->of_read).median,
               100 * spread(&row->of_chunk).median, spread(&row->chunk).median);
    }
}

static void print_text(const Bench *b) {
    print_ceilings(b);
    printf("          tokens      tok/s    (least-most)          %10s   of the ceiling\n",
           unit(b->dtype));
    print_rows(b->prefill, b->n_prefill, true);
    printf("\n           depth      tok/s    (least-most)                GB/s   of the streaming "
           "read\n");
    print_rows(b->decode, b->n_decode, false);
    if (b->n_batch) print_batch(b);
    printf("\nThe cache was filled once with %d tokens, at %.1f tok/s. Prefill counts the "
           "multiply-adds of the weights'\nproducts as two operations each, and not those with "
           "the cache; decode counts once every byte of the weights\nthat a token needs and of "
           "the cache up to it.\n", b->filled, b->filled / b->fill_seconds);
    if (b->n_batch)
        printf("A batch is a token of each sequence in one pass; the sequences are forks of one "
               "text. It counts the weights\nonce a pass. Beside it, one sequence was prefilled "
               "with as many tokens at once, at the same depth, with the\nlogits of the last.\n");
    if (b->buffer)
        printf("The weights (%.1f MB) may lie in the caches (%.0f MB), so decode can outrun the "
               "reading of memory.\n", (double)b->model->weight_bytes * 1e-6,
               (double)b->cache_bytes * 1e-6);
}

static void print_spread(const char *name, const Samples *samples, double factor) {
    Spread s = spread(samples);
    printf("\"%s\": %.6g, \"%s_min\": %.6g, \"%s_max\": %.6g", name, s.median * factor, name,
           s.min * factor, name, s.max * factor);
}

static void print_rows_json(const Row *rows, int n, bool prefill) {
    for (int i = 0; i < n; i++) {
        const Row *r = &rows[i];
        double work = spread(&r->rate).median * (prefill ? r->operations : r->bytes) * 1e-9;
        printf("%s\n  {\"%s\": %d, ", i ? "," : "", prefill ? "tokens" : "depth", r->tokens);
        print_spread("tok_s", &r->rate, 1);
        printf(", \"%s\": %.6g, \"%s\": %.6g}", prefill ? "gflop_s" : "gb_s", work,
               prefill ? "share_of_peak" : "share_of_read",
               spread(prefill ? &r->of_peak : &r->of_read).median);
    }
}

static void print_batch_json(const Bench *b) {
    printf(",\n \"batch\": [");
    for (int i = 0; i < b->n_batch; i++) {
        const Row *r = &b->batch[i];
        printf("%s\n  {\"sequences\": %d, \"depth\": %d, ", i ? "," : "", r->sequences, r->tokens);
        print_spread("tok_s", &r->rate, 1);
        printf(", \"share_of_peak\": %.6g, \"share_of_read\": %.6g, ",
               spread(&r->of_peak).median, spread(&r->of_read).median);
        print_spread("chunk_tok_s", &r->chunk, 1);
        printf(", \"share_of_chunk\": %.6g}", spread(&r->of_chunk).median);
    }
    printf("]");
}

static void print_json(const Bench *b) {
    printf("{\"isa\": \"%s\", \"threads\": %d, ", b->k->name, workspace_threads(b->w));
    printf("\"dtype\": \"%s\", \"k_dtype\": \"%s\", \"v_dtype\": \"%s\", ", dtype_name(b->dtype),
           dtype_name(b->o->workspace.k_dtype), dtype_name(b->o->workspace.v_dtype));
    printf("\"rounds\": %d, \"filled\": %d, \"fill_tok_s\": %.6g,\n ", b->empty.n, b->filled,
           b->filled / b->fill_seconds);
    print_spread("read_gb_s", &b->read, 1e-9);
    printf(", \"read_over\": \"%s\",\n ", b->buffer ? "buffer" : "model");
    print_spread("peak_gflop_s", &b->peak, 1e-9);
    printf(",\n ");
    print_spread("parallel_for_us", &b->empty, 1e6);
    printf(",\n \"prefill\": [");
    print_rows_json(b->prefill, b->n_prefill, true);
    printf("],\n \"decode\": [");
    print_rows_json(b->decode, b->n_decode, false);
    printf("]");
    if (b->n_batch) print_batch_json(b);
    printf("}\n");
}

// ---- the verb ----

int bench(const Options *given) {
    Model model;
    Options o = *given;
    static Bench b;  // too large for a stack
    open_model(&model, &o, o.models[0]);
    b.o = &o;
    b.model = &model;
    b.dtype = main_dtype(&model);
    b.most_sequences = 1;
    int context = o.workspace.context ? o.workspace.context : model.context;
    o.workspace.context = choose_rows(&b, context);
    b.tokens = allocate((size_t)o.workspace.context, sizeof *b.tokens);
    for (int i = 0; i < o.workspace.context; i++)
        b.tokens[i] = (int)((unsigned)i * 7919u % (unsigned)model.vocab_size);
    b.w = open_workspace(&o, &model, b.most_sequences);
    b.k = choose_kernels(&o, &b.why);
    measure(&b);
    (o.json ? print_json : print_text)(&b);
    for (Depth *d = b.depths; d < b.depths + b.n_decode; d++) {
        for (int i = 0; i < MAX_SEQUENCES; i++) sequence_free(d->at[i]);
        sequence_free(d->base);
    }
    workspace_free(b.w);
    free(b.buffer);
    free(b.tokens);
    model_close(&model);
    return 0;
}
