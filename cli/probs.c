#include "cli/probs.h"

#include <math.h>
#include <stdlib.h>

#include "cli/print.h"
#include "cli/prompt.h"
#include "cli/prompt_cache.h"
#include "cli/token_text.h"
#include "cli/width.h"

typedef struct {  // what a line says
    long position;
    int id;              // that follows; -1: none
    double probability;  // of it
    const heads_likely *likeliest;
    int n;
} Next;

static void add_json(Text *line, const Program *p, const Next *x) {
    text_format(line, "{\"position\": %ld, \"id\": ", x->position);
    if (x->id < 0) {
        text_format(line, "null, \"text\": null, \"probability\": null");
    } else {
        text_format(line, "%d, \"text\": ", x->id);
        add_token_text(line, p, x->id, true);
        text_format(line, ", \"probability\": %.6g", x->probability);
    }
    text_format(line, ", \"likeliest\": ");
    add_likeliest(line, p, x->likeliest, x->n);
    text_format(line, "}\n");
}

static void add_column(Text *line, const Program *p, int id, double probability) {
    size_t begin = line->size;
    if (id >= 0) add_token_text(line, p, id, true);
    for (int width = text_width(line->data + begin, line->size - begin); width < 12; width++)
        text_add(line, " ", 1);
    if (id < 0) text_format(line, "       ");
    else text_format(line, " %.4f", probability);
}

// For people: position, token and probability, then the likeliest, which stand below each other as
// far as tokens are short.
static void add_columns(Text *line, const Program *p, const Next *x) {
    text_format(line, "%5ld  ", x->position);
    add_column(line, p, x->id, x->probability);
    for (int i = 0; i < x->n; i++) {
        text_format(line, i ? "  " : "  |  ");
        add_column(line, p, x->likeliest[i].id, exp(x->likeliest[i].log_probability));
    }
    text_add(line, "\n", 1);
}

bool show_probabilities(const Program *p, long position, const float *logits, int id) {
    heads_likely likeliest[MAX_PROBS];
    Text line = {0};
    Next next = {position, id, 0, likeliest, heads_likeliest(p->w, logits, likeliest, p->o->probs)};
    if (id >= 0) next.probability = exp(log_probability(logits, p->shape.vocab_size, id));
    (p->o->json ? add_json : add_columns)(&line, p, &next);
    bool open = write_out(line.data, line.size);
    free(line.data);
    return open;
}

int prompt_probabilities(Program *p) {
    heads_error err;
    int n, chunk = p->o->workspace.chunk;
    bool open = true;
    open_workspace(p, chunk);
    Ids ids = prompt_to_run(p, NULL);
    heads_sequence *s = open_prompt_cache(p, &ids);
    heads_sequence_expect(s, (int)ids.n);
    for (long done = 0; done < ids.n && open; done += n) {
        n = ids.n - done < chunk ? (int)(ids.n - done) : chunk;
        const float *logits = heads_forward(s, ids.data + done, n, n, &err);
        if (!logits) die("%s", err.text);
        for (long i = done; i < done + n && open; i++, logits += heads_logit_stride(p->w))
            open = show_probabilities(p, i, logits, i + 1 < ids.n ? ids.data[i + 1] : -1);
    }
    heads_sequence_free(s);
    free(ids.data);
    close_program(p);
    return 0;
}
