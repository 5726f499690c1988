#include "heads_page.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "head_scores.h"
#include "json.h"
#include "outfile.h"
#include "page.h"
#include "print.h"
#include "text/unicode.h"

enum { BYTES_PER_HEAD = 500, BYTES_PER_TOKEN = 50, BYTES_PER_NUMBER = 10 };  // of JSON, about
static const double MOST_JSON = 1e9;

typedef struct {
    int layer, number;
    HeadScores scores;
    int role;            // -1: none
    double strength;     // those that have most of it keep their maps
    RowScores *pass;     // [chunk], of the pass's rows
    float *map, *sinks;  // rows of 1, 2, .. weights, one after the other; [n]; NULL: left out
} Head;

typedef struct {
    Head *heads;         // [n_heads], NULL: it has no attention
    int n_heads;
    HeadScores uniform;  // of a head that looks at all that it sees alike
    RowScores *pass;     // of that one
} HeadsLayer;

struct HeadsPage {
    const Options *o;
    const Model *model;
    Workspace *w;
    const Tokenizer *tokenizer;
    Ids ids;
    int chunk;           // tokens of a pass
    FILE *f;
    int *same;           // [n], as score_row wants it
    Head *heads;         // of all layers
    HeadsLayer *layers;
    size_t n_heads, n_maps;
    float **equal;       // [threads][n], weights of a head that looks at all alike
    bool scoring;        // or only filling maps, in a second run
    long done;           // tokens of earlier passes
    int n_runs, layer;   // of progress: runs, and the layer that it has come to
    double start;        // seconds
};

static const char *const mixer_names[N_MIXERS] = {
    [MIXER_ATTENTION] = "attention", [MIXER_SHORTCONV] = "short convolution",
    [MIXER_DELTANET] = "gated DeltaNet", [MIXER_MAMBA2] = "Mamba-2", [MIXER_NONE] = "none",
};

static void *get(size_t n, size_t size) {
    void *memory = calloc(n ? n : 1, size);
    if (!memory) die("no memory for what the heads look at; take a shorter text");
    return memory;
}

// Weights of a map: row i has i + 1.
static size_t map_size(const HeadsPage *p) { return (size_t)p->ids.n * ((size_t)p->ids.n + 1) / 2; }

// ---- while the text runs ----

// Writing JSON takes as long as a run.
static void show_progress(const HeadsPage *p, double tokens) {
    double done = tokens / (double)p->ids.n + !p->scoring, all = p->n_runs + !p->o->html;
    if (seconds() - p->start < 1) return;
    progress((long)(1e3 * done), (long)(1e3 * all), "%zu heads of %ld tokens", p->n_heads,
             p->ids.n);
}

// Rows come from all threads at once; each has places of its own to go to.
static void take_row(void *context, const heads_attention_row *row, int thread) {
    HeadsPage *p = context;
    HeadsLayer *layer = &p->layers[row->layer];
    Head *head = &layer->heads[row->head];
    long i = row->position;
    if (p->scoring) head->pass[i - p->done] = score_row(row, p->same);
    if (p->scoring && row->head == 0) {
        heads_attention_row equal = *row;
        for (int j = 0; j < row->n; j++) p->equal[thread][j] = 1.0f / (float)row->n;
        equal.weights = p->equal[thread];
        layer->pass[i - p->done] = score_row(&equal, p->same);
    }
    if (head->map)
        memcpy(head->map + (size_t)i * ((size_t)i + 1) / 2 + row->first, row->weights,
               (size_t)row->n * sizeof *row->weights);
    if (head->sinks) head->sinks[i] = row->sink;
    if (thread || row->layer == p->layer) return;
    p->layer = row->layer;
    long left = p->ids.n - p->done, n = left < p->chunk ? left : p->chunk;
    show_progress(p, (double)p->done + (double)(n * row->layer) / p->model->n_layers);
}

void heads_page_add(HeadsPage *p, int n) {
    for (int l = 0; l < p->model->n_layers && p->scoring; l++) {
        HeadsLayer *layer = &p->layers[l];
        for (int i = 0; i < n && layer->heads; i++) {
            add_row_scores(&layer->uniform, &layer->pass[i]);
            for (Head *h = layer->heads; h < layer->heads + layer->n_heads; h++)
                add_row_scores(&h->scores, &h->pass[i]);
        }
    }
    p->done += n;
}

// The text once more, for maps alone.
static void run_again(HeadsPage *p, Sequence *s) {
    Error err;
    int n;
    if (sequence_rewind(s, 0, &err)) die("%s", err.text);
    sequence_expect(s, (int)p->ids.n);
    p->scoring = false;
    for (p->done = 0; p->done < p->ids.n; heads_page_add(p, n)) {
        n = p->ids.n - p->done < p->chunk ? (int)(p->ids.n - p->done) : p->chunk;
        if (!forward(s, p->ids.data + p->done, n, 0, &err)) die("%s", err.text);
    }
}

// ---- which maps there is room for ----

static const Attention *attention_of(const HeadsPage *p, const Head *head) {
    return &p->model->layers[head->layer].attention;
}

static void keep_map(const HeadsPage *p, Head *head) {
    head->map = get(map_size(p), sizeof *head->map);
    if (attention_of(p, head)->sinks) head->sinks = get((size_t)p->ids.n, sizeof *head->sinks);
}

static const char *token_text(const HeadsPage *p, long i, size_t *len) {
    *len = 0;
    return p->tokenizer ? tokenizer_text(p->tokenizer, p->ids.data[i], len) : "";
}

// How many of all heads' maps the page can hold.
static size_t maps_that_fit(const HeadsPage *p) {
    double room = 1e6 * p->o->heads_max - (double)strlen((const char *)page_html);
    room -= BYTES_PER_HEAD * ((double)p->n_heads + p->model->n_layers);
    for (long i = 0; i < p->ids.n; i++) {
        size_t len;
        token_text(p, i, &len);
        room -= BYTES_PER_TOKEN + 6.0 * (double)len;
    }
    double one = 4.0 / 3.0 * (double)(map_size(p) + (size_t)p->ids.n) + 8;
    if (room < one) return 0;
    return room / one < (double)p->n_heads ? (size_t)(room / one) : p->n_heads;
}

// Those with roles first, of them those that rest on the first token last, as they are many; then
// by score, and without a role by the strongest pair. Else as they stand.
static int by_strength(const void *a, const void *b) {
    const Head *x = *(Head *const *)a, *y = *(Head *const *)b;
    if (x->strength != y->strength) return x->strength > y->strength ? -1 : 1;
    return x < y ? -1 : 1;
}

static void keep_strongest(HeadsPage *p) {
    Head **heads = get(p->n_heads, sizeof *heads);
    for (size_t i = 0; i < p->n_heads; i++) {
        Head *h = heads[i] = &p->heads[i];
        if (h->role >= 0)
            h->strength = (h->role == FIRST ? 1 : 2) + head_score(&h->scores, h->role);
        else h->strength = h->scores.n_pairs ? h->scores.pairs[0].weight : 0;
    }
    qsort(heads, p->n_heads, sizeof *heads, by_strength);
    for (size_t i = 0; i < p->n_maps; i++) keep_map(p, heads[i]);
    free(heads);
}

// ---- JSON ----

// In a page, "<" would end its script.
static void put_string(FILE *f, const char *text, size_t len) {
    char *quoted = json_quote(text, len, &len);
    if (!quoted) die("no memory for a text of %zu bytes", len);
    for (size_t i = 0; i < len; i++)
        if (quoted[i] == '<') fputs("\\u003c", f);
        else fputc(quoted[i], f);
    free(quoted);
}

static void put_number(FILE *f, double x) {
    if (isnan(x)) fputs("null", f);
    else fprintf(f, "%.6g", x);
}

// What is no character by itself is written as its bytes, such as E2 in angle brackets; a token
// without a text, as its id.
static void put_token(const HeadsPage *p, long i) {
    size_t len, n;
    const char *text = token_text(p, i, &len);
    char *shown = get(8 * len + 24, 1), *end = shown;
    if (len == 0) end += sprintf(end, "\u27e8%d\u27e9", p->ids.data[i]);
    for (size_t at = 0; at < len; at += n) {
        n = utf8_length(text + at, len - at);
        if (n) end = (char *)memcpy(end, text + at, n) + n;
        else end += sprintf(end, "\u27e8%02X\u27e9", (unsigned char)text[at]), n = 1;
    }
    fprintf(p->f, "%s{\"id\": %d, \"text\": ", i ? ",\n  " : "", p->ids.data[i]);
    put_string(p->f, shown, (size_t)(end - shown));
    fputs("}", p->f);
    free(shown);
}

static unsigned byte_of(float weight) {
    return weight > 0 ? (unsigned)(255 * sqrt(weight) + 0.5) : 0;
}

static void put_base64(FILE *f, const float *x, size_t n) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    fputc('"', f);
    for (size_t i = 0; i < n; i += 3) {
        unsigned bits = 0;
        for (size_t j = 0; j < 3; j++) bits = bits << 8 | (i + j < n ? byte_of(x[i + j]) : 0);
        for (size_t j = 0; j < 4; j++)
            fputc(i + j <= n ? digits[bits >> (18 - 6 * j) & 63] : '=', f);
    }
    fputc('"', f);
}

static void put_row(FILE *f, const float *x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        fputs(i ? "," : "[", f);
        put_number(f, x[i]);
    }
    fputs("]", f);
}

static void put_map(const HeadsPage *p, const Head *h) {
    size_t n = (size_t)p->ids.n;
    if (h->sinks) {
        fputs(",\n     \"sink\": ", p->f);
        if (p->o->html) put_base64(p->f, h->sinks, n);
        else put_row(p->f, h->sinks, n);
    }
    if (!h->map) return;
    fputs(",\n     \"map\": ", p->f);
    if (p->o->html) put_base64(p->f, h->map, map_size(p));
    for (size_t i = 0; i < n && !p->o->html; i++) {
        fputs(i ? ",\n      " : "[", p->f);
        put_row(p->f, h->map + i * (i + 1) / 2, i + 1);
    }
    if (!p->o->html) fputs("]", p->f);
}

static void put_head(const HeadsPage *p, const Head *h) {
    const Attention *a = attention_of(p, h);
    fprintf(p->f, "%s{\"head\": %d, \"kv_head\": %d, \"role\": ", h->number ? ",\n    " : "",
            h->number, h->number / (a->n_heads / a->n_kv_heads));
    if (h->role < 0) fputs("null", p->f);
    else fprintf(p->f, "\"%s\"", score_names[h->role]);
    for (int k = 0; k < N_SCORES; k++) {
        fprintf(p->f, "%s\"%s\": ", k ? ", " : ",\n     \"scores\": {", score_names[k]);
        put_number(p->f, head_score(&h->scores, k));
    }
    fputs("},\n     \"pairs\": [", p->f);
    for (int i = 0; i < h->scores.n_pairs; i++) {
        TokenPair pair = h->scores.pairs[i];
        fprintf(p->f, "%s[%d, %d, %.6g]", i ? ", " : "", pair.query, pair.key, pair.weight);
    }
    fputs("]", p->f);
    put_map(p, h);
    fputs("}", p->f);
}

static void put_layer(const HeadsPage *p, int i) {
    const HeadsLayer *layer = &p->layers[i];
    const Layer *l = &p->model->layers[i];
    const Attention *a = &l->attention;
    const char *mixer = layer->heads && a->latent.rank ? "latent attention" : mixer_names[l->mixer];
    fprintf(p->f, "%s{\"layer\": %d, \"mixer\": \"%s\"", i ? ",\n  " : "", i, mixer);
    if (layer->heads) {
        fprintf(p->f, ", \"n_heads\": %d, \"n_kv_heads\": %d, \"window\": %d", a->n_heads,
                a->n_kv_heads, a->window);
        if (a->kv_source >= 0) fprintf(p->f, ", \"kv_source\": %d", a->kv_source);
        for (int k = 0; k < N_ROLES; k++)
            fprintf(p->f, "%s\"%s\": %ld", k ? ", " : ",\n   \"rows\": {", score_names[k],
                    layer->uniform.rows[k]);
        for (int k = 0; k < N_ROLES; k++) {
            fprintf(p->f, "%s\"%s\": ", k ? ", " : "},\n   \"uniform\": {", score_names[k]);
            put_number(p->f, head_score(&layer->uniform, k));
        }
        fputs("},\n   \"heads\": [\n    ", p->f);
        for (int h = 0; h < layer->n_heads; h++) put_head(p, &layer->heads[h]);
        fputs("]", p->f);
    }
    fputs("}", p->f);
}

static void put_json(const HeadsPage *p) {
    const char *path = p->o->models[0], *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    fputs("{\"model\": ", p->f);
    put_string(p->f, name, strlen(name));
    if (p->n_maps < p->n_heads)
        fprintf(p->f, ",\n \"left_out\": {\"heads\": %zu, \"of\": %zu, \"limit_mb\": %d}",
                p->n_heads - p->n_maps, p->n_heads, p->o->heads_max);
    fputs(",\n \"tokens\": [\n  ", p->f);
    for (long i = 0; i < p->ids.n; i++) put_token(p, i);
    fputs("],\n \"layers\": [\n  ", p->f);
    for (int i = 0; i < p->model->n_layers; i++) {
        put_layer(p, i);
        if (!p->o->html) show_progress(p, (double)(p->ids.n * i) / p->model->n_layers);
    }
    fputs("]}\n", p->f);
}

// ---- beginning and end ----

static void open_layers(HeadsPage *p) {
    const Model *m = p->model;
    size_t rows = (size_t)(p->ids.n < p->chunk ? p->ids.n : p->chunk);
    p->layers = get((size_t)m->n_layers, sizeof *p->layers);
    for (int i = 0; i < m->n_layers; i++)
        if (m->layers[i].mixer == MIXER_ATTENTION)
            p->n_heads += (size_t)m->layers[i].attention.n_heads;
    Head *head = p->heads = get(p->n_heads, sizeof *p->heads);
    for (int i = 0; i < m->n_layers; i++) {
        HeadsLayer *layer = &p->layers[i];
        if (m->layers[i].mixer != MIXER_ATTENTION) continue;
        *layer = (HeadsLayer){.heads = head, .n_heads = m->layers[i].attention.n_heads,
                              .pass = get(rows, sizeof *layer->pass)};
        for (int h = 0; h < layer->n_heads; h++)
            *head++ = (Head){.layer = i, .number = h, .pass = get(rows, sizeof *head->pass)};
    }
}

static void find_same(HeadsPage *p) {
    int *last = get((size_t)p->model->vocab_size, sizeof *last);  // one more than the position
    p->same = get((size_t)p->ids.n, sizeof *p->same);
    for (int i = 0; i < p->ids.n; i++) {
        p->same[i] = last[p->ids.data[i]] - 1;
        last[p->ids.data[i]] = i + 1;
    }
    free(last);
}

HeadsPage *heads_page_open(const Options *o, Workspace *w, const Tokenizer *tokenizer, Ids ids) {
    HeadsPage *p = get(1, sizeof *p);
    *p = (HeadsPage){.o = o, .model = workspace_model(w), .w = w, .tokenizer = tokenizer,
                     .ids = ids, .chunk = workspace_chunk(w), .n_runs = 1, .scoring = true,
                     .start = seconds()};
    open_layers(p);
    double bytes = (double)BYTES_PER_NUMBER * (double)p->n_heads * (double)map_size(p);
    if (!p->o->html && bytes > MOST_JSON)
        usage("%s would have about %.0f GB of JSON, the weights of %zu heads for %ld tokens; take "
              "a shorter text, or write an .html, which leaves heads out", o->heads, bytes / 1e9,
              p->n_heads, ids.n);
    find_same(p);
    p->equal = get((size_t)workspace_threads(w), sizeof *p->equal);
    for (int t = 0; t < workspace_threads(w); t++) p->equal[t] = get((size_t)ids.n, sizeof(float));
    p->n_maps = p->o->html ? maps_that_fit(p) : p->n_heads;
    for (size_t i = 0; i < p->n_heads && p->n_maps == p->n_heads; i++) keep_map(p, &p->heads[i]);
    if (p->n_maps && p->n_maps < p->n_heads) p->n_runs = 2;
    p->f = outfile_open(o->heads, o->models, 1);
    workspace_probe(w, &(heads_probe){.attention = take_row, .context = p});
    return p;
}

static void say_roles(const HeadsPage *p) {
    int n[N_ROLES + 1] = {0};
    for (size_t i = 0; i < p->n_heads; i++) n[p->heads[i].role < 0 ? N_ROLES : p->heads[i].role]++;
    fprintf(stderr, "%zu heads:", p->n_heads);
    for (int k = 0; k < N_ROLES; k++) fprintf(stderr, " %d %s,", n[k], score_names[k]);
    fprintf(stderr, " %d without a simple role; written to %s\n", n[N_ROLES], p->o->heads);
    if (p->n_maps < p->n_heads)
        fprintf(stderr, "run: %s has the maps of %zu heads, those with roles first; a larger "
                        "--heads-max has room for more\n", p->o->heads, p->n_maps);
}

static void page_free(HeadsPage *p) {
    for (size_t i = 0; i < p->n_heads; i++) {
        free(p->heads[i].pass);
        free(p->heads[i].map);
        free(p->heads[i].sinks);
    }
    for (int i = 0; i < p->model->n_layers; i++) free(p->layers[i].pass);
    for (int t = 0; t < workspace_threads(p->w); t++) free(p->equal[t]);
    free(p->equal);
    free(p->same);
    free(p->heads);
    free(p->layers);
    free(p);
}

void heads_page_close(HeadsPage *p, Sequence *s) {
    for (size_t i = 0; i < p->n_heads; i++) {
        Head *h = &p->heads[i];
        h->role = head_role(&h->scores, &p->layers[h->layer].uniform);
    }
    if (p->n_runs > 1) {
        keep_strongest(p);
        run_again(p, s);
    }
    workspace_probe(p->w, NULL);
    p->scoring = false;
    const char *page = p->o->html ? (const char *)page_html : "", *data = strstr(page, PAGE_DATA);
    if (data) fwrite(page, 1, (size_t)(data - page), p->f);
    put_json(p);
    progress_end();
    if (data) fputs(data + strlen(PAGE_DATA), p->f);
    outfile_close(p->f);
    say_roles(p);
    page_free(p);
}
