// bench.c: --bench. Prefill and decode of one session, held against what this processor can do at best: the multiply-adds of
// the unit that the weights' dtype uses, and the reading of memory as a stream. Everything is measured again in every
// round, one after the other, so that a neighbour or a change of clock meets them all, and each is compared with what was
// measured beside it.
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "session.h"

enum {
    MAX_ROUNDS = 15, MIN_ROUNDS = 3,
    MAX_SAMPLES = 4 * MAX_ROUNDS,
    DECODE_TOKENS = 16,     // most tokens of one sample of decode
    READ_LINES = 1 << 14,   // a megabyte: what a thread claims at a time
    MOST_READ = 1 << 30,    // bytes of one sample of `read`
    PEAK_ITEMS = 8,         // per thread, so that one that wakes late is made up for
    EMPTY_CALLS = 200,
};
static const int PROMPTS[] = {16, 128, 512}, DEPTHS[] = {0, 1024, 4096, 8192};
enum { N_PROMPTS = sizeof PROMPTS / sizeof *PROMPTS, N_DEPTHS = sizeof DEPTHS / sizeof *DEPTHS };
static const double ROUNDS_SECONDS = 20,  // no new round after so long
    SAMPLE_SECONDS = 0.02,                // what a sample of decode or of a ceiling should last at least
    CEILING_SECONDS = 1;                  // and a ceiling's at most

typedef struct {
    double values[MAX_SAMPLES];
    int n;
} Samples;

typedef struct {
    int tokens;   // of the prompt, or in the cache before the first token
    double work;  // of one token: prefill: operations; decode: bytes that it reads
    Samples rate; // tokens per second
    Samples share; // of the ceiling that was measured right after it
} Row;

typedef struct {
    Session *s;
    Dtype dtype;            // of the layers' matrices, of most if they differ
    int *tokens;            // [deepest + DECODE_TOKENS] or so many as a prompt has
    Row prefill[N_PROMPTS], decode[N_DEPTHS];
    int n_prefill, n_decode, decode_tokens;  // decode_tokens: of one sample
    Samples peak, read, empty;               // operations and bytes per second; seconds of an empty parallel_for
    const uint8_t *lines;   // what `read` reads
    size_t n_lines;
    uint8_t *buffer;        // owned; NULL if the lines are the model's
    size_t cache_bytes;     // of the last-level cache
    size_t steps;           // of one item of `peak`
    int filled;             // tokens run to fill the cache, and how long that took
    double fill_seconds;
} Bench;

static void progress(const char *what, long done, long total) {
    fprintf(stderr, "\rbench: %s %ld of %ld   ", what, done, total);
}

// ---- samples ------------------------------------------------------------------------------------------------------------

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
    memcpy(v, s->values, sizeof v);
    qsort(v, (size_t)s->n, sizeof *v, ascending);
    return (Spread){v[0], (v[(s->n - 1) / 2] + v[s->n / 2]) / 2, v[s->n - 1]};
}

// ---- the ceilings, and the pool ------------------------------------------------------------------------------------------

static void read_item(void *arg, int item, int thread) {
    (void)thread;
    const Bench *b = arg;
    size_t first = (size_t)item * READ_LINES, left = b->n_lines - first;
    volatile uint64_t sum = b->s->k->read(b->lines + first * 64, left < READ_LINES ? left : READ_LINES);
    (void)sum;
}

// A ceiling is measured for as long as what is held against it took: where neighbours take turns with us, a short sample
// would miss them and a long one would not.
static bool goes_on(double start, double took) {
    return seconds() - start < (took < CEILING_SECONDS ? took : CEILING_SECONDS);
}

// Each measures a ceiling, notes it and returns it: bytes, or operations, per second.
static double sample_read(Bench *b, double took) {
    double start = seconds(), bytes = 0;
    do {
        parallel_for(b->s->pool, (int)((b->n_lines + READ_LINES - 1) / READ_LINES), read_item, b);
        bytes += (double)b->n_lines * 64;
    } while (goes_on(start, took));
    double rate = bytes / (seconds() - start);
    add_sample(&b->read, rate);
    return rate;
}

static void peak_item(void *arg, int item, int thread) {
    (void)item, (void)thread;
    const Bench *b = arg;
    b->s->k->peak[b->dtype](b->steps);
}

static double sample_peak(Bench *b, double took) {
    int items = PEAK_ITEMS * pool_threads(b->s->pool);
    double once = b->s->k->peak[b->dtype](1) * (double)b->steps * items, start = seconds(), operations = 0;
    do {
        parallel_for(b->s->pool, items, peak_item, b);
        operations += once;
    } while (goes_on(start, took));
    double rate = operations / (seconds() - start);
    add_sample(&b->peak, rate);
    return rate;
}

static void nothing(void *arg, int item, int thread) { (void)arg, (void)item, (void)thread; }

static void sample_empty(Bench *b) {
    double start = seconds();
    for (int i = 0; i < EMPTY_CALLS; i++) parallel_for(b->s->pool, pool_threads(b->s->pool), nothing, NULL);
    add_sample(&b->empty, (seconds() - start) / EMPTY_CALLS);
}

// As many steps as make a sample long enough.
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

// The model's own bytes, where the cache cannot hold them; else a buffer of four times the cache. At most a gigabyte.
static int choose_lines(Bench *b, Error *err) {
    const Mapping *map = &b->s->model->map;
    b->cache_bytes = cache_bytes();
    bool cached = map->size <= 2 * b->cache_bytes;
    size_t bytes = cached ? 4 * b->cache_bytes : map->size;
    b->n_lines = (bytes < MOST_READ ? bytes : MOST_READ) / 64;
    b->lines = map->data;
    if (!cached) return 0;
    b->lines = b->buffer = aligned_alloc(64, b->n_lines * 64);
    if (!b->buffer) return fail(err, "no memory for a buffer of %zu bytes to read", b->n_lines * 64);
    memset(b->buffer, 1, b->n_lines * 64);
    return 0;
}

// ---- prefill and decode --------------------------------------------------------------------------------------------------

// Multiply-adds that a token makes with a layer's matrices of this dtype. Of a stack it meets the matrix of every head, or
// of the experts that it chooses; absent matrices have no rows.
static double layer_products(const Layer *l, Dtype dtype) {
    const struct {
        int times;
        const Matrix *w;
    } uses[] = {
        {1, &l->q}, {1, &l->k}, {1, &l->v}, {1, &l->o}, {1, &l->attn_gate},
        {1, &l->q_down}, {l->n_heads, &l->k_up}, {l->n_heads, &l->v_up},
        {1, &l->mix_in}, {1, &l->mix_out}, {1, &l->delta_gate}, {1, &l->delta_beta}, {1, &l->delta_decay},
        {1, &l->gate}, {1, &l->up}, {1, &l->down}, {1, &l->shared_gate},
        {1, &l->router}, {l->top_k, &l->expert_gate}, {l->top_k, &l->expert_up}, {l->top_k, &l->expert_down},
        {1, &l->ple_gate}, {1, &l->ple_out},
    };
    double products = 0;
    for (size_t i = 0; i < sizeof uses / sizeof *uses; i++)
        if (uses[i].w->dtype == dtype) products += (double)uses[i].times * uses[i].w->n_out * uses[i].w->n_in;
    return products;
}

// The same for all layers.
static double token_products(const Model *m, Dtype dtype) {
    double products = m->ple_in.dtype == dtype ? (double)m->ple_in.n_out * m->ple_in.n_in : 0;
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

// Operations of the weights' products for n tokens, the classifier's for one; what attention and the other mixers do with
// keys, values and states is not counted.
static double operations(const Model *m, int n) {
    double products = (double)m->output.n_out * m->output.n_in;
    for (Dtype d = F32; d < N_DTYPES; d++) products += n * token_products(m, d);
    return 2 * products;
}

// Runs n tokens behind the first `depth`, whatever the cache holds there; returns the seconds, negative for an error.
static double run_tokens(Bench *b, int depth, int n, int at_once, Error *err) {
    b->s->position = depth;
    double start = seconds();
    for (int i = 0; i < n; i += at_once)
        if (!forward(b->s, b->tokens + depth + i, at_once, 1, err)) return -1;
    return seconds() - start;
}

static void add_to_row(Row *row, double rate, double ceiling) {
    add_sample(&row->rate, rate);
    add_sample(&row->share, rate * row->work / ceiling);
}

static int sample_prefill(Bench *b, Row *row, Error *err) {
    double took = run_tokens(b, 0, row->tokens, row->tokens, err);
    if (took < 0) return -1;
    add_to_row(row, row->tokens / took, sample_peak(b, took));
    return 0;
}

static int sample_decode(Bench *b, Row *row, Error *err) {
    double took = run_tokens(b, row->tokens, b->decode_tokens, 1, err);
    if (took < 0) return -1;
    add_to_row(row, b->decode_tokens / took, sample_read(b, took));
    return 0;
}

// Fills the cache by prefill up to the deepest row, and finds how many tokens make a sample of decode long enough.
static int fill(Bench *b, Error *err) {
    b->filled = b->decode[b->n_decode - 1].tokens;
    double start = seconds();
    for (int done = 0, n; done < b->filled; done += n) {
        progress("filling the cache, token", done, b->filled);
        n = b->filled - done < b->s->chunk ? b->filled - done : b->s->chunk;
        if (!forward(b->s, b->tokens + done, n, 0, err)) return -1;
    }
    b->fill_seconds = seconds() - start;
    double took = run_tokens(b, 0, 1, 1, err);
    if (took < 0) return -1;
    double n = SAMPLE_SECONDS / (took > 1e-9 ? took : 1e-9);
    b->decode_tokens = n < 1 ? 1 : n > DECODE_TOKENS ? DECODE_TOKENS : (int)n;
    return 0;
}

// The bytes that a token of a sample reads, on average: every weight once, and the keys and values before it and its own.
static double bytes_per_token(const Bench *b, int depth) {
    const Session *s = b->s;
    double cache = 0;
    for (int i = 1; i <= b->decode_tokens; i++)
        cache += (double)kv_bytes_at(s->model, 0, depth + i, s->k_dtype, s->v_dtype);
    return (double)s->model->weight_bytes + cache / b->decode_tokens;
}

static int one_round(Bench *b, Error *err) {
    sample_empty(b);
    for (int i = 0; i < b->n_prefill; i++)
        if (sample_prefill(b, &b->prefill[i], err)) return -1;
    for (int i = 0; i < b->n_decode; i++)
        if (sample_decode(b, &b->decode[i], err)) return -1;
    return 0;
}

static int measure(Bench *b, Error *err) {
    if (choose_lines(b, err) || fill(b, err)) return -1;
    choose_steps(b);
    for (Row *r = b->prefill; r < b->prefill + b->n_prefill; r++) r->work = operations(b->s->model, r->tokens) / r->tokens;
    for (Row *r = b->decode; r < b->decode + b->n_decode; r++) r->work = bytes_per_token(b, r->tokens);
    double start = seconds();
    for (int i = 0; i < MIN_ROUNDS || (i < MAX_ROUNDS && seconds() - start < ROUNDS_SECONDS); i++) {
        progress("round", i + 1, MAX_ROUNDS);
        if (one_round(b, err)) return -1;
    }
    fprintf(stderr, "\n");
    return 0;
}

// What fits into the context: every prompt; every depth with room for the tokens that are timed there, and instead of the
// first that does not fit, the last positions.
static int choose_rows(Bench *b, int context) {
    int last = context - DECODE_TOKENS;
    for (int i = 0; i < N_PROMPTS; i++)
        if (PROMPTS[i] <= context) b->prefill[b->n_prefill++].tokens = PROMPTS[i];
    for (int i = 0; i < N_DEPTHS && (i == 0 || DEPTHS[i - 1] < last); i++)
        b->decode[b->n_decode++].tokens = DEPTHS[i] < last ? DEPTHS[i] : last;
    int deepest = b->decode[b->n_decode - 1].tokens + DECODE_TOKENS;
    int longest = b->prefill[b->n_prefill - 1].tokens;
    return deepest > longest ? deepest : longest;
}

// ---- the report ----------------------------------------------------------------------------------------------------------

static const char *unit(Dtype dtype) { return dtype == Q8 || dtype == Q4 ? "GOP/s" : "GFLOP/s"; }

static void print_text(const Bench *b) {
    const Session *s = b->s;
    Spread peak = spread(&b->peak), read = spread(&b->read), empty = spread(&b->empty);
    printf("%s weights, keys %s, values %s; %s kernels (%s), %d threads; %d rounds, each figure the median (least-most)\n\n",
           dtype_name(b->dtype), dtype_name(s->k_dtype), dtype_name(s->v_dtype), s->k->name, s->why, pool_threads(s->pool),
           b->empty.n);
    printf("ceiling   arithmetic of %s weights   %9.1f %s (%.1f-%.1f)\n", dtype_name(b->dtype), peak.median * 1e-9,
           unit(b->dtype), peak.min * 1e-9, peak.max * 1e-9);
    printf("          streaming read %12s   %9.2f GB/s (%.2f-%.2f) over %.0f MB, %s\n", "", read.median * 1e-9,
           read.min * 1e-9, read.max * 1e-9, (double)b->n_lines * 64e-6, b->buffer ? "a buffer" : "the model's file");
    printf("pool      an empty parallel_for %5s   %9.2f us (%.2f-%.2f)\n\n", "", empty.median * 1e6, empty.min * 1e6,
           empty.max * 1e6);
    printf("          tokens      tok/s    (least-most)          %10s   of the ceiling\n", unit(b->dtype));
    for (int i = 0; i < b->n_prefill; i++) {
        Spread r = spread(&b->prefill[i].rate);
        printf("prefill %8d %10.1f    %9.1f-%-9.1f %12.1f %14.1f %%\n", b->prefill[i].tokens, r.median, r.min, r.max,
               r.median * b->prefill[i].work * 1e-9, 100 * spread(&b->prefill[i].share).median);
    }
    printf("\n           depth      tok/s    (least-most)                GB/s   of the streaming read\n");
    for (int i = 0; i < b->n_decode; i++) {
        Spread r = spread(&b->decode[i].rate);
        printf("decode  %8d %10.1f    %9.1f-%-9.1f %12.2f %14.1f %%\n", b->decode[i].tokens, r.median, r.min, r.max,
               r.median * b->decode[i].work * 1e-9, 100 * spread(&b->decode[i].share).median);
    }
    printf("\nThe cache was filled once with %d tokens, at %.1f tok/s. Prefill counts the multiply-adds of the weights'\n"
           "products as two operations each, and not those with the cache; decode counts once every byte of the weights\n"
           "that a token needs and of the cache up to it.\n", b->filled, b->filled / b->fill_seconds);
    if (b->buffer)
        printf("The weights (%.1f MB) may lie in the caches (%.0f MB), so decode can outrun the reading of memory.\n",
               (double)s->model->weight_bytes * 1e-6, (double)b->cache_bytes * 1e-6);
}

static void print_spread(const char *name, const Samples *samples, double factor) {
    Spread s = spread(samples);
    printf("\"%s\": %.6g, \"%s_min\": %.6g, \"%s_max\": %.6g", name, s.median * factor, name, s.min * factor, name,
           s.max * factor);
}

static void print_rows_json(const Row *rows, int n, const char *tokens, const char *work, const char *share) {
    for (int i = 0; i < n; i++) {
        printf("%s\n  {\"%s\": %d, ", i ? "," : "", tokens, rows[i].tokens);
        print_spread("tok_s", &rows[i].rate, 1);
        printf(", \"%s\": %.6g, \"%s\": %.6g}", work,
               spread(&rows[i].rate).median * rows[i].work * 1e-9, share, spread(&rows[i].share).median);
    }
}

static void print_json(const Bench *b) {
    const Session *s = b->s;
    printf("{\"isa\": \"%s\", \"threads\": %d, ", s->k->name, pool_threads(s->pool));
    printf("\"dtype\": \"%s\", \"k_dtype\": \"%s\", \"v_dtype\": \"%s\", ", dtype_name(b->dtype), dtype_name(s->k_dtype),
           dtype_name(s->v_dtype));
    printf("\"rounds\": %d, \"filled\": %d, \"fill_tok_s\": %.6g,\n ", b->empty.n, b->filled, b->filled / b->fill_seconds);
    print_spread("read_gb_s", &b->read, 1e-9);
    printf(", \"read_over\": \"%s\",\n ", b->buffer ? "buffer" : "model");
    print_spread("peak_gflop_s", &b->peak, 1e-9);
    printf(",\n ");
    print_spread("parallel_for_us", &b->empty, 1e6);
    printf(",\n \"prefill\": [");
    print_rows_json(b->prefill, b->n_prefill, "tokens", "gflop_s", "share_of_peak");
    printf("],\n \"decode\": [");
    print_rows_json(b->decode, b->n_decode, "depth", "gb_s", "share_of_read");
    printf("]}\n");
}

int bench(const Model *model, const SessionOptions *o, bool json, Error *err) {
    Bench b = {.dtype = main_dtype(model)};
    SessionOptions options = *o;
    int context = o->context ? o->context : model->context;
    if (context < PROMPTS[0] + DECODE_TOKENS)
        return fail(err, "--bench needs a context of %d at least, this one is %d", PROMPTS[0] + DECODE_TOKENS, context);
    options.context = choose_rows(&b, context);
    options.logit_rows = 1;
    b.tokens = malloc((size_t)options.context * sizeof *b.tokens);
    if (!b.tokens) return fail(err, "no memory for %d tokens", options.context);
    for (int i = 0; i < options.context; i++) b.tokens[i] = (int)((unsigned)i * 7919u % (unsigned)model->vocab_size);
    b.s = session_new(model, &options, err);
    int status = b.s ? measure(&b, err) : -1;
    if (!status) (json ? print_json : print_text)(&b);
    session_free(b.s);
    free(b.buffer);
    free(b.tokens);
    return status;
}
