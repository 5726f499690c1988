// The last line on stderr: what a text cost, and why it ended.
#include <stdio.h>
#include <stdlib.h>

#include "generate.h"
#include "print.h"
#include "wrap.h"

void closing_line(const Generation *g) {
    if (!g->ended_line) end_line(!g->print);
    if (g->prompt == 0 && g->generated == 0) {
        fprintf(stderr, "stopped: %s\n", g->stop);
        return;
    }
    heads_kv_usage kv = heads_sequence_kv_usage(g->sequence);
    const char *cache = g->p->o->prompt_cache;
    Text line = {0};
    text_format(&line, "prompt %ld tokens, %.1f tok/s", g->prompt,
                rate((double)g->prompt, g->prompt_seconds));
    if (g->reused) text_format(&line, ", %ld from %s", g->reused, cache ? cache : "earlier turns");
    text_format(&line, "; generated %ld, %.1f tok/s, %.2f GB/s; ", g->generated,
                rate((double)g->stepped, g->step_seconds),
                rate(g->step_bytes, g->step_seconds) * 1e-9);
    if (g->drafter)
        text_format(&line, "drafted %ld, accepted %ld; ", drafted_tokens(g->drafter),
                    accepted_tokens(g->drafter));
    text_format(&line, "KV cache %s of %s in use", commas(kv.in_use), size_text(kv.reserved));
    if (g->sampling.temperature > 0)
        text_format(&line, "; seed %llu", (unsigned long long)g->sampling.seed);
    text_format(&line, "; stopped: %s\n", g->stop);
    say_words(line.data);
    free(line.data);
}
