#include "cli/lens.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/outfile.h"
#include "cli/print.h"
#include "cli/token_text.h"

enum { BEST = 5 };

typedef struct {  // what a layer would say after a token
    heads_likely best[BEST];
    int n_best, rank;  // rank: of the last layer's answer; 1: it is the first
} Said;

typedef struct {
    const Program *p;
    FILE *f;
    int first, n_layers;  // of the layers that give logits
    int *answers;         // [ids.n], of the last layer
    Said *said;           // [ids.n][n_layers]
} Lens;

static void write_row(void *context, const heads_lens_row *row) {
    Lens *l = context;
    size_t n = (size_t)l->p->shape.vocab_size;
    if (fwrite(row->logits, sizeof(float), n, l->f) < n)
        die("cannot write %s: %s", l->p->o->lens, strerror(errno));
}

static void keep_said(void *context, const heads_lens_row *row) {
    Lens *l = context;
    int vocab_size = l->p->shape.vocab_size, answer = l->answers[row->position];
    Said *said = &l->said[(size_t)row->position * (size_t)l->n_layers + row->layer - l->first];
    said->n_best = heads_likeliest(l->p->w, row->logits, said->best, BEST);
    said->rank = 1;
    for (int id = 0; id < vocab_size; id++)
        said->rank += row->logits[id] > row->logits[answer] ||
                      (row->logits[id] == row->logits[answer] && id < answer);
}

// Runs the ids with logits of the last `wanted`; answers: the likeliest token after each, or NULL.
static void run(const Lens *l, heads_sequence *s, Ids ids, long wanted, int *answers) {
    heads_error err;
    int n, chunk = heads_workspace_chunk(l->p->w);
    if (heads_sequence_rewind(s, 0, &err)) die("%s", err.text);
    heads_sequence_expect(s, (int)ids.n);
    for (long done = 0; done < ids.n; done += n) {
        n = ids.n - done < chunk ? (int)(ids.n - done) : chunk;
        long rows = done + n - (ids.n - wanted);
        rows = rows < 0 ? 0 : rows < n ? rows : n;
        const float *logits = heads_forward(s, ids.data + done, n, (int)rows, &err);
        if (!logits) die("%s", err.text);
        for (long i = 0; answers && i < rows; i++, logits += heads_logit_stride(l->p->w)) {
            heads_likely best;
            heads_likeliest(l->p->w, logits, &best, 1);
            answers[done + i] = best.id;
        }
    }
}

static void put_position(const Lens *l, Text *out, const Ids ids, long i) {
    text_format(out, "%s{\"position\": %ld, \"id\": %d, \"text\": ", i ? ",\n  " : "", i,
                ids.data[i]);
    add_token_text(out, l->p, ids.data[i], false);
    text_format(out, ", \"layers\": [");
    for (int layer = 0; layer < l->n_layers; layer++) {
        const Said *said = &l->said[i * l->n_layers + layer];
        text_format(out, "%s{\"layer\": %d, \"rank\": %d, \"likeliest\": ", layer ? ",\n    " : "",
                    layer, said->rank);
        add_likeliest(out, l->p, said->best, said->n_best);
        text_format(out, "}");
    }
    text_format(out, "]}");
}

static void write_json(const Lens *l, Ids ids) {
    Text out = {0};
    text_format(&out, "{\"model\": ");
    const char *name = base_name(l->p->path);
    json_quote(&out, name, strlen(name));
    text_format(&out, ",\n \"positions\": [\n  ");
    for (long i = 0; i < ids.n; i++) put_position(l, &out, ids, i);
    text_format(&out, "]}\n");
    if (fwrite(out.data, 1, out.size, l->f) < out.size)
        die("cannot write %s: %s", l->p->o->lens, strerror(errno));
    free(out.data);
}

void write_lens(const Program *p, heads_sequence *s, Ids ids) {
    Lens l = {.p = p, .first = p->facts.n_encoder, .n_layers = p->shape.n_layers};
    l.n_layers -= l.first;
    l.f = outfile_open(p->o->lens, p->o->models, 1);
    heads_probe probe = {.context = &l, .lens = p->o->f32 ? write_row : keep_said};
    if (!p->o->f32) {
        l.answers = allocate((size_t)ids.n, sizeof *l.answers);
        l.said = allocate((size_t)ids.n * (size_t)l.n_layers, sizeof *l.said);
        run(&l, s, ids, ids.n, l.answers);
    }
    heads_workspace_probe(p->w, &probe);
    run(&l, s, ids, p->o->f32 ? 1 : ids.n, NULL);
    heads_workspace_probe(p->w, NULL);
    if (!p->o->f32) write_json(&l, ids);
    outfile_close(l.f);
    free(l.answers);
    free(l.said);
}
