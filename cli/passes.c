// passes.c: --logits, --hidden, --heads and --lens, which run the prompt and write what passes
// compute.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "heads/page.h"
#include "heads/target.h"
#include "lens.h"
#include "outfile.h"
#include "print.h"
#include "prompt.h"
#include "prompt_cache.h"
#include "verbs.h"

// Writes n rows of logits, or of hidden states.
static void write_rows(const Program *p, const float *rows, size_t width, int n, const char *path,
                       FILE *f) {
    for (int i = 0; i < n; i++)
        if (fwrite(rows + (size_t)i * heads_logit_stride(p->w), sizeof(float), width, f) < width)
            die("cannot write %s: %s", path, strerror(errno));
}

// Opens the page of the prompt, before that runs. With an encoder the prompt is the source, and
// *ids becomes the target.
static HeadsPage *open_page(const Program *p, Ids *ids) {
    HeadsTexts texts = {.ids = *ids, .target = "given"};
    bool sampled = false;
    if (p->shape.source_vocab) {
        texts.source = *ids;
        texts.ids = p->o->target ? parse_ids("--target", p->o->target, p->shape.vocab_size)
                                 : written_target(p, *ids, &sampled);
        if (!p->o->target) texts.target = sampled ? "sampled" : "greedy";
    }
    *ids = texts.ids;
    return heads_page_open(p, texts);
}

int show_passes(const Options *o) {
    heads_error err;
    Program p;
    const char *path = o->hidden ? o->hidden : o->logits;
    open_program(&p, o, o->models[0], WITH_TOKENIZER);
    if ((o->logits || o->lens) && !p.facts.has_logits)
        usage("%s has no head that gives logits; it has --hidden and --embed", p.path);
    Ids ids = prompt_to_run(&p, NULL), prompt = ids;
    int chunk = p.shape.encoder ? (int)ids.n : o->workspace.chunk, n;
    open_workspace(&p, path || o->lens || (o->heads && !o->no_cost) ? chunk : 1);
    HeadsPage *page = o->heads ? open_page(&p, &ids) : NULL;
    heads_sequence *s = page ? open_text(&p, false) : open_prompt_cache(&p, &ids);
    long first = heads_sequence_length(s), n_rows = ids.n - first;
    FILE *f = path ? outfile_open(path, o->models, 1) : NULL;
    size_t width = (size_t)(o->hidden ? p.shape.n_embd : p.shape.vocab_size);
    double start = seconds();
    if (page) heads_page_read(page, s);
    heads_sequence_expect(s, (int)ids.n);
    if (o->lens) write_lens(&p, s, ids);
    for (long done = heads_sequence_length(s); done < ids.n; done += n) {
        n = ids.n - done < chunk ? (int)(ids.n - done) : chunk;
        const float *rows = heads_forward(s, ids.data + done, n, f ? n : 0, &err);
        if (!rows) die("%s", err.text);
        if (f) write_rows(&p, rows, width, n, path, f);
        if (page) heads_page_add(page, n);
    }
    double speed = rate((double)n_rows, seconds() - start);
    if (f) outfile_close(f);
    if (page) heads_page_close(page, s);
    fprintf(stderr, "prompt %ld tokens, %.1f tok/s", n_rows, speed);
    if (f) fprintf(stderr, "; float32 [%ld][%zu] written to %s", n_rows, width, path);
    fprintf(stderr, "\n");
    save_prompt_cache(o, s);
    heads_sequence_free(s);
    if (page && prompt.data != ids.data) free(prompt.data);
    free(ids.data);
    close_program(&p);
    return 0;
}
