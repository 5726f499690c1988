#include "cli/bench/print.h"

#include <stdio.h>

#include "cli/print.h"

// ---- as text ----

static const char *unit(const Bench *b) {
    return b->products.dtype_name[0] == 'q' ? "GOP/s" : "GFLOP/s";
}

static void print_ceilings(const Bench *b) {
    Spread peak = spread(&b->peak), read = spread(&b->read), empty = spread(&b->empty);
    printf("%s weights, keys %s, values %s; %s kernels (%s), %d threads; %d rounds, each figure "
           "the median (least-most)\n\n", b->products.dtype_name,
           type_name(b->p.o->workspace.k_type), type_name(b->p.o->workspace.v_type), b->isa,
           b->why, heads_workspace_threads(b->p.w), b->empty.n);
    printf("ceiling   arithmetic of %s weights   %9.1f %s (%.1f-%.1f)\n", b->products.dtype_name,
           peak.median * 1e-9, unit(b), peak.min * 1e-9, peak.max * 1e-9);
    printf("          streaming read %12s   %9.2f GB/s (%.2f-%.2f) over %.0f MB, %s, streams a "
           "thread: %d\n",
           "", read.median * 1e-9, read.min * 1e-9, read.max * 1e-9, (double)b->n_lines * 64e-6,
           b->buffer ? "a buffer" : "the model's file", b->n_streams);
    printf("pool      an empty parallel_for %5s   %9.2f us (%.2f-%.2f)\n\n", "",
           empty.median * 1e6, empty.min * 1e6, empty.max * 1e6);
}

static void print_cases(const Case *cases, int n, bool prefill) {
    for (const Case *c = cases; c < cases + n; c++) {
        Spread r = spread(&c->rate);
        double work = r.median * (prefill ? c->operations : c->bytes) * 1e-9;
        printf("%s %8d %10.1f    %9.1f-%-9.1f %12.*f %14.1f %%\n", prefill ? "prefill" : "decode ",
               c->tokens, r.median, r.min, r.max, prefill ? 1 : 2, work,
               100 * spread(prefill ? &c->of_peak : &c->of_read).median);
    }
}

static void print_batch(const Bench *b) {
    printf("\n           depth sequences     tok/s    (least-most)          arithmetic     read   "
           "a chunk of as many rows\n");
    for (const Case *c = b->batch; c < b->batch + b->n_batch; c++) {
        Spread r = spread(&c->rate);
        printf("batch   %8d %9d %9.1f    %9.1f-%-9.1f %9.1f %% %6.1f %% %6.1f %% of %.1f tok/s\n",
               c->tokens, c->sequences, r.median, r.min, r.max,
               100 * spread(&c->of_peak).median, 100 * spread(&c->of_read).median,
               100 * spread(&c->of_chunk).median, spread(&c->chunk).median);
    }
}

void print_bench(const Bench *b) {
    print_ceilings(b);
    printf("          tokens      tok/s    (least-most)          %10s   of the ceiling\n",
           unit(b));
    print_cases(b->prefill, b->n_prefill, true);
    printf("\n           depth      tok/s    (least-most)                GB/s   of the streaming "
           "read\n");
    print_cases(b->decode, b->n_decode, false);
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
               "reading of memory.\n", (double)b->p.shape.weight_bytes * 1e-6,
               (double)b->cache_bytes * 1e-6);
}

// ---- as JSON ----

static void print_spread(const char *name, const Samples *samples, double factor) {
    Spread s = spread(samples);
    printf("\"%s\": %.6g, \"%s_min\": %.6g, \"%s_max\": %.6g", name, s.median * factor, name,
           s.min * factor, name, s.max * factor);
}

static void print_cases_json(const Case *cases, int n, bool prefill) {
    for (int i = 0; i < n; i++) {
        const Case *c = &cases[i];
        double work = spread(&c->rate).median * (prefill ? c->operations : c->bytes) * 1e-9;
        printf("%s\n  {\"%s\": %d, ", i ? "," : "", prefill ? "tokens" : "depth", c->tokens);
        print_spread("tok_s", &c->rate, 1);
        printf(", \"%s\": %.6g, \"%s\": %.6g}", prefill ? "gflop_s" : "gb_s", work,
               prefill ? "share_of_peak" : "share_of_read",
               spread(prefill ? &c->of_peak : &c->of_read).median);
    }
}

static void print_batch_json(const Bench *b) {
    printf(",\n \"batch\": [");
    for (int i = 0; i < b->n_batch; i++) {
        const Case *c = &b->batch[i];
        printf("%s\n  {\"sequences\": %d, \"depth\": %d, ", i ? "," : "", c->sequences, c->tokens);
        print_spread("tok_s", &c->rate, 1);
        printf(", \"share_of_peak\": %.6g, \"share_of_read\": %.6g, ",
               spread(&c->of_peak).median, spread(&c->of_read).median);
        print_spread("chunk_tok_s", &c->chunk, 1);
        printf(", \"share_of_chunk\": %.6g}", spread(&c->of_chunk).median);
    }
    printf("]");
}

void print_bench_json(const Bench *b) {
    printf("{\"isa\": \"%s\", \"threads\": %d, ", b->isa, heads_workspace_threads(b->p.w));
    printf("\"dtype\": \"%s\", \"k_dtype\": \"%s\", \"v_dtype\": \"%s\", ", b->products.dtype_name,
           type_name(b->p.o->workspace.k_type), type_name(b->p.o->workspace.v_type));
    printf("\"rounds\": %d, \"filled\": %d, \"fill_tok_s\": %.6g,\n ", b->empty.n, b->filled,
           b->filled / b->fill_seconds);
    print_spread("read_gb_s", &b->read, 1e-9);
    printf(", \"read_over\": \"%s\", \"read_streams\": %d,\n ", b->buffer ? "buffer" : "model",
           b->n_streams);
    print_spread("peak_gflop_s", &b->peak, 1e-9);
    printf(",\n ");
    print_spread("parallel_for_us", &b->empty, 1e6);
    printf(",\n \"prefill\": [");
    print_cases_json(b->prefill, b->n_prefill, true);
    printf("],\n \"decode\": [");
    print_cases_json(b->decode, b->n_decode, false);
    printf("]");
    if (b->n_batch) print_batch_json(b);
    printf("}\n");
}
