#include "cli/heads/maps.h"

#include <stdlib.h>
#include <string.h>

#include "cli/heads/html.h"
#include "cli/print.h"
#include "cli/prompt.h"

// Of JSON, about.
enum { BYTES_PER_HEAD = 500, BYTES_PER_COST = 9, BYTES_PER_TOKEN = 50, BYTES_PER_NUMBER = 10 };
static const double MOST_JSON = 1e9;

static void *get(size_t n, size_t size) {
    void *memory = calloc(n ? n : 1, size);
    if (!memory) die("no memory for what the heads look at; take a shorter text");
    return memory;
}

size_t map_row(const MapTexts *t, int i) {
    return t->sees == SEES_BEFORE ? (size_t)i * ((size_t)i + 1) / 2 : (size_t)i * (size_t)t->n;
}

static size_t map_size(const Head *h) { return map_row(&h->layer->texts, h->layer->texts.n_rows); }

// ---- while the text runs ----

// Writing JSON takes as long as running the text, so it counts as one more run.
void show_progress(const HeadsPage *p, double tokens) {
    long n = p->texts.source.n + p->texts.ids.n;
    double done = tokens / (double)n + !p->scoring, all = p->n_runs + !p->p->o->html;
    if (seconds() - p->start < 1) return;
    progress((long)(1e3 * done), (long)(1e3 * all), "%zu heads of %ld tokens", p->n_heads, n);
}

// All threads call this at once; each row has its own place in memory.
void keep_row(void *context, const heads_attention_row *row, int thread) {
    HeadsPage *p = context;
    int first = p->p->facts.n_encoder;
    HeadsLayer *layer = &p->layers[row->of_source ? p->p->shape.n_layers + row->layer - first
                                                  : row->layer];
    Head *head = &layer->heads[row->head];
    long i = row->position;
    if (p->scoring) head->pass[i - p->done] = score_row(&layer->texts, row);
    if (p->scoring && row->head == 0) {
        heads_attention_row equal = *row;
        for (int j = 0; j < row->n; j++) p->equal[thread][j] = 1.0f / (float)row->n;
        equal.weights = p->equal[thread];
        layer->pass[i - p->done] = score_row(&layer->texts, &equal);
    }
    if (head->map)
        memcpy(head->map + map_row(&layer->texts, (int)i) + row->first, row->weights,
               (size_t)row->n * sizeof *row->weights);
    if (head->sinks) head->sinks[i] = row->sink;
    if (thread || row->layer == p->layer) return;
    p->layer = row->layer;
    const Ids *source = &p->texts.source;
    long before = p->done + (row->layer < first ? 0 : source->n);
    long all = row->layer < first ? source->n : p->texts.ids.n;
    long n = all - p->done < p->chunk ? all - p->done : p->chunk;
    show_progress(p, (double)before + (double)(n * row->layer) / p->p->shape.n_layers);
}

void heads_page_add(HeadsPage *p, int n) {
    for (HeadsLayer *l = p->layers; l < p->layers + p->n_layers && p->scoring; l++) {
        if (!l->facts.attends || (l->texts.sees == SEES_ALL) != p->reading) continue;
        for (int i = 0; i < n; i++) {
            add_row_scores(&l->uniform, &l->pass[i]);
            for (Head *h = l->heads; h < l->heads + l->facts.n_heads; h++)
                add_row_scores(&h->scores, &h->pass[i]);
        }
    }
    p->done += n;
}

void heads_page_read(HeadsPage *p, heads_sequence *s) {
    heads_error err;
    heads_run run = {.sequence = s, .tokens = p->texts.source.data, .n = (int)p->texts.source.n};
    p->reading = p->p->shape.encoder || run.n;
    p->done = 0;
    if (!run.n) return;
    if (heads_read_sources(p->p->w, &run, 1, &err)) die("%s", err.text);
    heads_page_add(p, run.n);
    p->reading = false;
    p->done = 0;
}

// Runs the text once more, for maps alone.
static void run_again(HeadsPage *p, heads_sequence *s) {
    heads_error err;
    Ids ids = p->texts.ids;
    int n;
    if (heads_sequence_rewind(s, 0, &err)) die("%s", err.text);
    p->scoring = false;
    heads_page_read(p, s);
    heads_sequence_expect(s, (int)ids.n);
    for (; p->done < ids.n; heads_page_add(p, n)) {
        n = ids.n - p->done < p->chunk ? (int)(ids.n - p->done) : p->chunk;
        if (!heads_forward(s, ids.data + p->done, n, 0, &err)) die("%s", err.text);
    }
}

// ---- which maps to keep ----

static void keep_map(Head *head) {
    const HeadsLayer *layer = head->layer;
    head->map = get(map_size(head), sizeof *head->map);
    if (layer->facts.sinks)
        head->sinks = get((size_t)layer->texts.n_rows, sizeof *head->sinks);
}

const char *text_of_token(const HeadsPage *p, Ids text, long i, size_t *len) {
    *len = 0;
    if (!p->p->tokenizer) return "";
    return text.data == p->texts.ids.data ? tokenizer_written(p->p->tokenizer, text.data[i], len)
                                          : tokenizer_text(p->p->tokenizer, text.data[i], len);
}

// Bytes of the page that are left for maps.
static double room_for_maps(const HeadsPage *p) {
    const Ids texts[] = {p->texts.source, p->texts.ids};
    double room = 1e6 * p->p->o->heads_max - (double)strlen((const char *)page_html);
    room -= BYTES_PER_HEAD * ((double)p->n_heads + p->n_layers);
    if (!p->p->o->no_cost) room -= BYTES_PER_COST * (double)p->n_heads * (double)texts[1].n;
    for (int t = 0; t < 2; t++)
        for (long i = 0; i < texts[t].n; i++) {
            size_t len;
            text_of_token(p, texts[t], i, &len);
            room -= BYTES_PER_TOKEN + 6.0 * (double)len;
        }
    return room;
}

// Bytes that a head's map takes in the page.
static double map_bytes(const Head *h) {
    return 4.0 / 3.0 * (double)(map_size(h) + (size_t)h->layer->texts.n_rows) + 8;
}

// Heads with roles come first; among them, heads that rest on an end come last, as they are many.
// Then the order is by score, without a role by the strongest pair; equal heads stay as they stand.
static int by_strength(const void *a, const void *b) {
    const Head *x = *(Head *const *)a, *y = *(Head *const *)b;
    if (x->strength != y->strength) return x->strength > y->strength ? -1 : 1;
    return x < y ? -1 : 1;
}

// Keeps the strongest heads' maps; after one that does not fit, a smaller one may.
static void keep_strongest(HeadsPage *p) {
    Head **heads = get(p->n_heads, sizeof *heads);
    double room = room_for_maps(p);
    for (size_t i = 0; i < p->n_heads; i++) {
        Head *h = heads[i] = &p->heads[i];
        if (h->role >= 0)
            h->strength = (role_rests(h->role) ? 1 : 2) + head_score(&h->scores, h->role);
        else h->strength = h->scores.n_pairs ? h->scores.pairs[0].weight : 0;
    }
    qsort(heads, p->n_heads, sizeof *heads, by_strength);
    for (size_t i = 0; i < p->n_heads; i++) {
        double bytes = map_bytes(heads[i]);
        if (bytes > room) continue;
        keep_map(heads[i]);
        p->n_maps++;
        room -= bytes;
    }
    free(heads);
}

// ---- beginning and end ----

// The text of a map's rows, and the text of its columns.
static MapTexts map_texts(const HeadsPage *p, Sight sees) {
    const Ids texts[] = {p->texts.source, p->texts.ids};
    int rows = sees != SEES_ALL || p->p->shape.encoder;
    int columns = sees == SEES_BEFORE || !texts[0].n;
    return (MapTexts){.sees = sees, .n_rows = (int)texts[rows].n, .n = (int)texts[columns].n,
                      .ids = texts[rows].data, .same = p->same[rows]};
}

static void open_layers(HeadsPage *p) {
    p->n_layers = p->p->facts.n_attentions;
    p->layers = get((size_t)p->n_layers, sizeof *p->layers);
    for (int i = 0; i < p->n_layers; i++) {
        LayerFacts facts = inspect_layer(p->p->model, i);
        p->layers[i] = (HeadsLayer){.facts = facts, .texts = map_texts(p, facts.sees)};
        if (facts.attends) p->n_heads += (size_t)facts.n_heads;
    }
    Head *head = p->heads = get(p->n_heads, sizeof *p->heads);
    for (HeadsLayer *l = p->layers; l < p->layers + p->n_layers; l++) {
        if (!l->facts.attends) continue;
        size_t rows = (size_t)(l->texts.n_rows < p->chunk ? l->texts.n_rows : p->chunk);
        l->pass = get(rows, sizeof *l->pass);
        l->heads = head;
        for (int h = 0; h < l->facts.n_heads; h++)
            *head++ = (Head){.layer = l, .number = h, .pass = get(rows, sizeof *head->pass)};
    }
}

static int *find_same(Ids ids, int vocab_size) {
    int *last = get((size_t)vocab_size, sizeof *last);  // one more than the position
    int *same = get((size_t)ids.n, sizeof *same);
    for (int i = 0; i < ids.n; i++) {
        same[i] = last[ids.data[i]] - 1;
        last[ids.data[i]] = i + 1;
    }
    free(last);
    return same;
}

// Keeps all maps in the first run, if there is room; else a second run fills those that are kept.
static void plan_maps(HeadsPage *p) {
    double json = 0, page = 0, room = room_for_maps(p);
    for (size_t i = 0; i < p->n_heads; i++) {
        json += (double)BYTES_PER_NUMBER * (double)map_size(&p->heads[i]);
        page += map_bytes(&p->heads[i]);
    }
    if (!p->p->o->html && json > MOST_JSON)
        usage("%s would have about %.0f GB of JSON, the weights of %zu heads for %ld tokens; take "
              "a shorter text, or write an .html, which leaves heads out", p->p->o->heads,
              json / 1e9, p->n_heads, p->texts.source.n + p->texts.ids.n);
    if (p->p->o->html && page > room) {
        p->n_runs = 2;
        return;
    }
    p->n_maps = p->n_heads;
    for (size_t i = 0; i < p->n_heads; i++) keep_map(&p->heads[i]);
}

void choose_maps(HeadsPage *p, heads_sequence *s) {
    if (p->n_runs == 1) return;
    keep_strongest(p);
    if (p->n_maps) run_again(p, s);
}

void open_maps(HeadsPage *p) {
    size_t n = (size_t)(p->texts.source.n > p->texts.ids.n ? p->texts.source.n : p->texts.ids.n);
    int n_threads = heads_workspace_threads(p->p->w);
    p->same[0] = find_same(p->texts.source, prompt_vocabulary(p->p));
    p->same[1] = find_same(p->texts.ids, p->p->shape.vocab_size);
    open_layers(p);
    plan_maps(p);
    p->equal = get((size_t)n_threads, sizeof *p->equal);
    for (int t = 0; t < n_threads; t++) p->equal[t] = get(n, sizeof(float));
}

void free_maps(HeadsPage *p) {
    for (size_t i = 0; i < p->n_heads; i++) {
        free(p->heads[i].pass);
        free(p->heads[i].costs);
        free(p->heads[i].map);
        free(p->heads[i].sinks);
    }
    for (int i = 0; i < p->n_layers; i++) free(p->layers[i].pass);
    for (int t = 0; t < heads_workspace_threads(p->p->w); t++) free(p->equal[t]);
    free(p->equal);
    free(p->same[0]);
    free(p->same[1]);
    free(p->heads);
    free(p->layers);
}
