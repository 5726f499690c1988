// bench.c: --bench, the speed of prefill and decode beside the machine's limits.
#include <stdio.h>
#include <stdlib.h>

#include "cli/bench/print.h"
#include "cli/input.h"
#include "cli/verbs.h"

static void bench_threads(const Options *given, int n_threads) {
    static Bench b;  // too large for a stack
    b = (Bench){0};
    Options o = *given;
    o.workspace.n_threads = n_threads;
    open_program(&b.p, &o, o.models[0], NO_TOKENIZER);
    b.products = inspect_products(b.p.model);
    b.most_sequences = 1;
    o.workspace.context = choose_cases(&b, wanted_context(&b.p));
    b.tokens = allocate((size_t)o.workspace.context, sizeof *b.tokens);
    for (int i = 0; i < o.workspace.context; i++)
        b.tokens[i] = (int)((unsigned)i * 7919u % (unsigned)b.p.shape.vocab_size);
    open_workspace(&b.p, b.most_sequences);
    b.isa = choose_kernels(&o, &b.why);
    measure(&b);
    (o.json ? print_bench_json : print_bench)(&b);
    for (Depth *d = b.depths; d < b.depths + b.n_decode; d++) {
        for (int i = 0; i < MAX_SEQUENCES; i++) heads_sequence_free(d->at[i]);
        heads_sequence_free(d->base);
    }
    free(b.buffer);
    free(b.tokens);
    close_program(&b.p);
}

int bench(const Options *o) {
    if (o->threads.n < 2) {
        bench_threads(o, o->workspace.n_threads);
        return 0;
    }
    for (int i = 0; i < o->threads.n; i++) {
        if (o->json || i) printf("%s\n", !o->json ? "" : i ? "," : "[");
        bench_threads(o, o->threads.values[i]);
    }
    if (o->json) printf("]\n");
    return 0;
}
