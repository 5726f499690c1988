// Which heads of a sequence are off: a list such as "5.3,7.*,e0.1,x2.0".
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "layers/cross.h"
#include "layers/heads_off.h"
#include "sequence/sequence.h"

typedef struct {  // of one item
    int layer;              // in the cache's order
    int first, last;        // heads
} HeadsOfLayer;

// Reads a whole number; false: there is none.
static bool read_number(const char **text, int *n) {
    char *end;
    long value = **text >= '0' && **text <= '9' ? strtol(*text, &end, 10) : -1;
    if (value < 0 || value > INT_MAX) return false;
    *text = end;
    *n = (int)value;
    return true;
}

// The heads of one item, in *heads; returns its end, or NULL with an error.
static const char *read_item(const Workspace *w, const char *item, HeadsOfLayer *heads,
                             Error *err) {
    const Model *m = w->model;
    const char *p = item + (*item == 'e' || *item == 'x');
    const Tower *tower = *item == 'e' ? &m->source : &m->text;
    int number, head = -1, len = (int)strcspn(item, ",");
    bool all = false, ok = read_number(&p, &number) && *p++ == '.';
    if (ok && *p == '*') all = *p++;
    else ok = ok && read_number(&p, &head);
    if (!ok || (*p && *p != ','))
        return fail(err, "heads off: expected LAYER.HEAD, such as 5.3, or 5.* for all of a layer, "
                    "found \"%.*s\"", len, item), NULL;
    if (!tower->n)
        return fail(err, "heads off: \"%.*s\": the model has no encoder", len, item), NULL;
    if (number >= tower->n)
        return fail(err, "heads off: \"%.*s\": there are layers 0..%d", len, item, tower->n - 1),
               NULL;
    const Layer *l = &m->layers[tower->first + number];
    const Attention *a = *item == 'x' ? &l->cross : &l->attention;
    bool attends = *item == 'x' ? a->n_heads > 0 : l->mixer == MIXER_ATTENTION;
    if (!attends)
        return fail(err, "heads off: \"%.*s\": layer %d has no %s", len, item, number,
                    *item == 'x' ? "attention to a source" : "attention, and so no heads"), NULL;
    if (head >= a->n_heads)
        return fail(err, "heads off: \"%.*s\": the layer has heads 0..%d", len, item,
                    a->n_heads - 1), NULL;
    const KvLayer *kv = &w->kv.layers[tower->first + number];
    if (*item == 'x') kv = kv_cross(w, tower->first + number);
    *heads = (HeadsOfLayer){(int)(kv - w->kv.layers), all ? 0 : head, all ? a->n_heads - 1 : head};
    return p;
}

static int read_list(const Workspace *w, const char *list, bool *off, Error *err) {
    size_t most = most_heads(w->model);
    HeadsOfLayer heads;
    for (;; list++) {
        if (!(list = read_item(w, list, &heads, err))) return -1;
        for (int h = heads.first; h <= heads.last; h++)
            off[(size_t)heads.layer * most + (size_t)h] = true;
        if (!*list) return 0;
    }
}

int heads_sequence_off(Sequence *s, const char *heads, Error *err) {
    if (need(s, "a sequence", err)) return -1;
    if (s->length || frozen_source(s))
        return fail(err, "heads are switched on or off before a text begins, and this one has %d "
                    "tokens%s; rewind it to 0, or take a new one", s->length,
                    s->length ? "" : " and a source that forks share");
    bool any = heads && *heads, *off = NULL;
    if (any) off = calloc((size_t)s->workspace->kv.n_layers, most_heads(s->workspace->model));
    if (any && !off) return fail(err, "no memory for a list of heads");
    if (any && read_list(s->workspace, heads, off, err)) {
        free(off);
        return -1;
    }
    free(s->off);
    s->off = off;
    s->source.n = 0;  // which was read with other heads
    return 0;
}
