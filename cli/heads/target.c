#include "cli/heads/target.h"

#include <stdlib.h>
#include <string.h>

#include "cli/generate.h"
#include "cli/languages.h"
#include "cli/print.h"

static void print_nothing(void *to, const char *text, size_t len) {}

Ids written_target(const Program *p, Ids source, bool *sampled) {
    heads_error err;
    Generation g;
    generation_open(&g, p);
    g.print = print_nothing;
    g.sequence = open_text(p, false);
    Ids read = {allocate((size_t)source.n, sizeof *read.data), source.n};
    memcpy(read.data, source.data, (size_t)source.n * sizeof *read.data);
    Ids begun = read_prompt(p, g.sequence, read);
    g.n_generate = target_length(p, (int)begun.n, &g.sampling);
    start_text(&g);
    for (long i = 0; i < begun.n; i++) heads_sampler_accept(g.sampler, begun.data[i]);
    if (generate_text(&g, begun, &err)) die("%s", err.text);
    Ids target = {g.text, heads_sequence_length(g.sequence)};
    *sampled = g.sampling.temperature > 0;
    free(begun.data);
    g.text = NULL;
    generation_close(&g);
    return target;
}
