// What generate.c's texts need: from options to sampler, decoder, drafter and sequence.
#include <stdlib.h>

#include "generate.h"
#include "languages.h"
#include "print.h"
#include "prompt.h"
#include "prompt_cache.h"

// Answers show special tokens, which may be the marks around a thought.
void start_text(Generation *g) {
    heads_error err;
    const Options *o = g->p->o;
    heads_sampler_free(g->sampler);
    g->sampler = heads_sampler_new(g->p->w, &g->sampling, &err);
    if (!g->sampler) die("%s", err.text);
    if (!g->p->tokenizer || o->ids) return;
    heads_decoder_free(g->decoder);
    g->decoder = heads_decoder_new(g->p->tokenizer, !o->messages && o->verb != CHAT, &err);
    if (!g->decoder) die("%s", err.text);
}

void generation_open(Generation *g, const Program *p) {
    *g = (Generation){.p = p, .sampling = sampling_options(p, false), .answer_end = -1,
                      .n_generate = tokens_to_generate(p, 0), .drafter = drafter_new(p)};
    g->text = allocate((size_t)heads_workspace_context(p->w) + 1, sizeof *g->text);
}

void generation_close(Generation *g) {
    free(g->text);
    heads_decoder_free(g->decoder);
    drafter_free(g->drafter);
    heads_sampler_free(g->sampler);
    heads_sequence_free(g->sequence);
}

Ids begin_generation(Generation *g, Program *p) {
    const Options *o = p->o;
    bool reads = p->shape.source_vocab;
    open_workspace(p, 1 + MAX_DRAFT);
    generation_open(g, p);
    Ids ids = prompt_to_run(p, &g->answer_end);
    if (reads) g->prompt = ids.n;
    double start = seconds();
    g->sequence = open_prompt_cache(p, &ids);
    if (reads) g->prompt_seconds = seconds() - start;
    g->reused = heads_sequence_length(g->sequence);
    g->echoes = !o->messages && !reads && !o->probs;
    if (reads) g->n_generate = target_length(p, (int)ids.n, &g->sampling);
    start_text(g);
    catch_interrupt(true);
    for (long i = 0; i < ids.n; i++) heads_sampler_accept(g->sampler, ids.data[i]);
    return ids;
}

void end_generation(Generation *g, Program *p, Ids ids) {
    save_prompt_cache(p->o, g->sequence);
    free(ids.data);
    generation_close(g);
    close_program(p);
}
