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

typedef struct HeadsLayer HeadsLayer;

typedef struct {
    const HeadsLayer *layer;
    int number;
    HeadScores scores;
    int role;            // -1: none
    double strength;     // those that have most of it keep their maps
    RowScores *pass;     // [chunk], of the pass's rows
    float *map, *sinks;  // a row after the other; [n_rows]; NULL: left out
} Head;

struct HeadsLayer {
    const Layer *layer;  // of which this is the mixer, or the attention to the source
    const Attention *attention;  // NULL: it has none
    int number;          // among the encoder's, or the decoder's
    MapTexts texts;
    Head *heads;         // [n_heads]
    HeadScores uniform;  // of a head that looks at all that it sees alike
    RowScores *pass;     // of that one
};

struct HeadsPage {
    const Options *o;
    const Model *model;
    Workspace *w;
    const Tokenizer *tokenizer;
    HeadsTexts texts;
    int chunk;           // tokens of a pass
    FILE *f;
    int *same[2];        // [n] of the source and of the text, as score_row wants it
    Head *heads;         // of all layers
    HeadsLayer *layers;  // the model's, and then those of attention to the source
    int n_layers;
    size_t n_heads, n_maps;
    float **equal;       // [threads][n], weights of a head that looks at all alike
    bool scoring;        // or only filling maps, in a second run
    bool reading;        // an encoder reads, and its tokens see all others
    long done;           // tokens of earlier passes of this text
    int n_runs, layer;   // of progress: runs, and the layer that it has come to
    double start;        // seconds
};

static const char *const mixer_names[N_MIXERS] = {
    [MIXER_ATTENTION] = "attention", [MIXER_SHORTCONV] = "short convolution",
    [MIXER_DELTANET] = "gated DeltaNet", [MIXER_MAMBA2] = "Mamba-2", [MIXER_NONE] = "none",
};
static const char *const kind_names[N_MASKS] = {
    [MASK_CAUSAL] = "decoder", [MASK_ALL] = "encoder", [MASK_SOURCE] = "cross",
};

static void *get(size_t n, size_t size) {
    void *memory = calloc(n ? n : 1, size);
    if (!memory) die("no memory for what the heads look at; take a shorter text");
    return memory;
}

// Where row i of a map begins: a row has all tokens that there are, or those up to its own.
static size_t map_row(const MapTexts *t, int i) {
    return t->mask == MASK_CAUSAL ? (size_t)i * ((size_t)i + 1) / 2 : (size_t)i * (size_t)t->n;
}

static size_t map_size(const Head *h) { return map_row(&h->layer->texts, h->layer->texts.n_rows); }

// ---- while the text runs ----

// Writing JSON takes as long as a run.
static void show_progress(const HeadsPage *p, double tokens) {
    long n = p->texts.source.n + p->texts.ids.n;
    double done = tokens / (double)n + !p->scoring, all = p->n_runs + !p->o->html;
    if (seconds() - p->start < 1) return;
    progress((long)(1e3 * done), (long)(1e3 * all), "%zu heads of %ld tokens", p->n_heads, n);
}

// Rows come from all threads at once; each has places of its own to go to.
static void take_row(void *context, const heads_attention_row *row, int thread) {
    HeadsPage *p = context;
    int first = p->model->text.first;
    HeadsLayer *layer = &p->layers[row->of_source ? p->model->n_layers + row->layer - first
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
    show_progress(p, (double)before + (double)(n * row->layer) / p->model->n_layers);
}

void heads_page_add(HeadsPage *p, int n) {
    for (HeadsLayer *l = p->layers; l < p->layers + p->n_layers && p->scoring; l++) {
        if (!l->attention || (l->texts.mask == MASK_ALL) != p->reading) continue;
        for (int i = 0; i < n; i++) {
            add_row_scores(&l->uniform, &l->pass[i]);
            for (Head *h = l->heads; h < l->heads + l->attention->n_heads; h++)
                add_row_scores(&h->scores, &h->pass[i]);
        }
    }
    p->done += n;
}

void heads_page_read(HeadsPage *p, Sequence *s) {
    Error err;
    Run run = {.sequence = s, .tokens = p->texts.source.data, .n = (int)p->texts.source.n};
    p->reading = p->model->encoder || run.n;
    p->done = 0;
    if (!run.n) return;
    if (read_sources(p->w, &run, 1, &err)) die("%s", err.text);
    heads_page_add(p, run.n);
    p->reading = false;
    p->done = 0;
}

// The text once more, for maps alone.
static void run_again(HeadsPage *p, Sequence *s) {
    Error err;
    Ids ids = p->texts.ids;
    int n;
    if (sequence_rewind(s, 0, &err)) die("%s", err.text);
    p->scoring = false;
    heads_page_read(p, s);
    sequence_expect(s, (int)ids.n);
    for (; p->done < ids.n; heads_page_add(p, n)) {
        n = ids.n - p->done < p->chunk ? (int)(ids.n - p->done) : p->chunk;
        if (!forward(s, ids.data + p->done, n, 0, &err)) die("%s", err.text);
    }
}

// ---- which maps there is room for ----

static void keep_map(Head *head) {
    const HeadsLayer *layer = head->layer;
    head->map = get(map_size(head), sizeof *head->map);
    if (layer->attention->sinks)
        head->sinks = get((size_t)layer->texts.n_rows, sizeof *head->sinks);
}

// Token i of one of the two texts.
static const char *token_text(const HeadsPage *p, Ids text, long i, size_t *len) {
    *len = 0;
    if (!p->tokenizer) return "";
    return text.data == p->texts.ids.data ? tokenizer_written(p->tokenizer, text.data[i], len)
                                          : tokenizer_text(p->tokenizer, text.data[i], len);
}

// Bytes of the page that are left for maps, and what a map takes.
static double room_for_maps(const HeadsPage *p) {
    const Ids texts[] = {p->texts.source, p->texts.ids};
    double room = 1e6 * p->o->heads_max - (double)strlen((const char *)page_html);
    room -= BYTES_PER_HEAD * ((double)p->n_heads + p->n_layers);
    for (int t = 0; t < 2; t++)
        for (long i = 0; i < texts[t].n; i++) {
            size_t len;
            token_text(p, texts[t], i, &len);
            room -= BYTES_PER_TOKEN + 6.0 * (double)len;
        }
    return room;
}

static double map_bytes(const Head *h) {
    return 4.0 / 3.0 * (double)(map_size(h) + (size_t)h->layer->texts.n_rows) + 8;
}

// Those with roles first, of them those that rest on an end last, as they are many; then by score,
// and without a role by the strongest pair. Else as they stand.
static int by_strength(const void *a, const void *b) {
    const Head *x = *(Head *const *)a, *y = *(Head *const *)b;
    if (x->strength != y->strength) return x->strength > y->strength ? -1 : 1;
    return x < y ? -1 : 1;
}

// Where a map does not fit, a smaller one may.
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
static void put_token(const HeadsPage *p, Ids ids, long i) {
    size_t len, n;
    const char *text = token_text(p, ids, i, &len);
    bool marks = p->tokenizer && tokenizer_marks_spaces(p->tokenizer);
    char *shown = get(8 * len + 24, 1), *end = shown;
    if (len == 0) end += sprintf(end, "\u27e8%d\u27e9", ids.data[i]);
    for (size_t at = 0; at < len; at += n) {
        n = utf8_length(text + at, len - at);
        if (n == 3 && marks && memcmp(text + at, "\u2581", 3) == 0) *end++ = ' ';
        else if (n) end = (char *)memcpy(end, text + at, n) + n;
        else end += sprintf(end, "\u27e8%02X\u27e9", (unsigned char)text[at]), n = 1;
    }
    fprintf(p->f, "%s{\"id\": %d, \"text\": ", i ? ",\n  " : "", ids.data[i]);
    put_string(p->f, shown, (size_t)(end - shown));
    fputs("}", p->f);
    free(shown);
}

static void put_tokens(const HeadsPage *p, const char *name, Ids ids) {
    fprintf(p->f, ",\n \"%s\": [\n  ", name);
    for (long i = 0; i < ids.n; i++) put_token(p, ids, i);
    fputs("]", p->f);
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
    const MapTexts *t = &h->layer->texts;
    size_t n = (size_t)t->n_rows;
    if (h->sinks) {
        fputs(",\n     \"sink\": ", p->f);
        if (p->o->html) put_base64(p->f, h->sinks, n);
        else put_row(p->f, h->sinks, n);
    }
    if (!h->map) return;
    fputs(",\n     \"map\": ", p->f);
    if (p->o->html) put_base64(p->f, h->map, map_size(h));
    for (int i = 0; i < t->n_rows && !p->o->html; i++) {
        fputs(i ? ",\n      " : "[", p->f);
        put_row(p->f, h->map + map_row(t, i), map_row(t, i + 1) - map_row(t, i));
    }
    if (!p->o->html) fputs("]", p->f);
}

// The first n scores of those that such maps have.
static void put_scores(const HeadsPage *p, const char *before, int n, int mask,
                       const HeadScores *scores) {
    for (int k = 0; k < n; k++) {
        if (!has_score(mask, k)) continue;
        fprintf(p->f, "%s\"%s\": ", before, score_names[k]);
        put_number(p->f, head_score(scores, k));
        before = ", ";
    }
    fputs("}", p->f);
}

static void put_head(const HeadsPage *p, const Head *h) {
    const Attention *a = h->layer->attention;
    fprintf(p->f, "%s{\"head\": %d, \"kv_head\": %d, \"role\": ", h->number ? ",\n    " : "",
            h->number, h->number / (a->n_heads / a->n_kv_heads));
    if (h->role < 0) fputs("null", p->f);
    else fprintf(p->f, "\"%s\"", score_names[h->role]);
    put_scores(p, ",\n     \"scores\": {", N_SCORES, a->mask, &h->scores);
    fputs(",\n     \"pairs\": [", p->f);
    for (int i = 0; i < h->scores.n_pairs; i++) {
        TokenPair pair = h->scores.pairs[i];
        fprintf(p->f, "%s[%d, %d, %.6g]", i ? ", " : "", pair.query, pair.key, pair.weight);
    }
    fputs("]", p->f);
    put_map(p, h);
    fputs("}", p->f);
}

static void put_layer(const HeadsPage *p, const HeadsLayer *layer) {
    const Attention *a = layer->attention;
    const char *mixer = a && a->latent.rank ? "latent attention" : mixer_names[layer->layer->mixer];
    fprintf(p->f, "%s{\"layer\": %d, \"mixer\": \"%s\"", layer == p->layers ? "" : ",\n  ",
            layer->number, mixer);
    if (a) {
        if (p->model->encoder || p->texts.source.n)
            fprintf(p->f, ", \"kind\": \"%s\"", kind_names[a->mask]);
        fprintf(p->f, ", \"n_heads\": %d, \"n_kv_heads\": %d, \"window\": %d", a->n_heads,
                a->n_kv_heads, a->window);
        if (a->kv_source >= 0) fprintf(p->f, ", \"kv_source\": %d", a->kv_source);
        const char *before = ",\n   \"rows\": {";
        for (int k = 0; k < N_ROLES; k++) {
            if (!has_score(a->mask, k)) continue;
            fprintf(p->f, "%s\"%s\": %ld", before, score_names[k], layer->uniform.rows[k]);
            before = ", ";
        }
        put_scores(p, "},\n   \"uniform\": {", N_ROLES, a->mask, &layer->uniform);
        fputs(",\n   \"heads\": [\n    ", p->f);
        for (int h = 0; h < a->n_heads; h++) put_head(p, &layer->heads[h]);
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
    if (p->texts.source.n) {
        put_tokens(p, "source_tokens", p->texts.source);
        fprintf(p->f, ",\n \"target\": \"%s\"", p->texts.target);
    }
    put_tokens(p, "tokens", p->texts.ids);
    fputs(",\n \"layers\": [\n  ", p->f);
    long n = p->texts.source.n + p->texts.ids.n;
    for (int i = 0; i < p->n_layers; i++) {
        put_layer(p, &p->layers[i]);
        if (!p->o->html) show_progress(p, (double)(n * i) / p->n_layers);
    }
    fputs("]}\n", p->f);
}

// ---- beginning and end ----

// Which of the two texts the rows of a map are of, and which its columns.
static MapTexts map_texts(const HeadsPage *p, int mask) {
    const Ids texts[] = {p->texts.source, p->texts.ids};
    int rows = mask != MASK_ALL || p->model->encoder, columns = mask == MASK_CAUSAL || !texts[0].n;
    return (MapTexts){.mask = mask, .n_rows = (int)texts[rows].n, .n = (int)texts[columns].n,
                      .ids = texts[rows].data, .same = p->same[rows]};
}

static HeadsLayer layer_of(const HeadsPage *p, int i) {
    const Model *m = p->model;
    bool cross = i >= m->n_layers;
    if (cross) i += m->text.first - m->n_layers;
    const Layer *l = &m->layers[i];
    HeadsLayer layer = {.layer = l, .number = i < m->text.first ? i : i - m->text.first};
    if (cross) layer.attention = &l->cross;
    else if (l->mixer == MIXER_ATTENTION) layer.attention = &l->attention;
    if (layer.attention) layer.texts = map_texts(p, layer.attention->mask);
    return layer;
}

static void open_layers(HeadsPage *p) {
    p->n_layers = p->model->n_layers + (p->texts.source.n ? p->model->text.n : 0);
    p->layers = get((size_t)p->n_layers, sizeof *p->layers);
    for (int i = 0; i < p->n_layers; i++) {
        p->layers[i] = layer_of(p, i);
        if (p->layers[i].attention) p->n_heads += (size_t)p->layers[i].attention->n_heads;
    }
    Head *head = p->heads = get(p->n_heads, sizeof *p->heads);
    for (HeadsLayer *l = p->layers; l < p->layers + p->n_layers; l++) {
        if (!l->attention) continue;
        size_t rows = (size_t)(l->texts.n_rows < p->chunk ? l->texts.n_rows : p->chunk);
        l->pass = get(rows, sizeof *l->pass);
        l->heads = head;
        for (int h = 0; h < l->attention->n_heads; h++)
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

// All maps are kept while the text first runs, if there is room for them; else a second run fills
// those that are kept.
static void plan_maps(HeadsPage *p) {
    double json = 0, page = 0, room = room_for_maps(p);
    for (size_t i = 0; i < p->n_heads; i++) {
        json += (double)BYTES_PER_NUMBER * (double)map_size(&p->heads[i]);
        page += map_bytes(&p->heads[i]);
    }
    if (!p->o->html && json > MOST_JSON)
        usage("%s would have about %.0f GB of JSON, the weights of %zu heads for %ld tokens; take "
              "a shorter text, or write an .html, which leaves heads out", p->o->heads, json / 1e9,
              p->n_heads, p->texts.source.n + p->texts.ids.n);
    if (p->o->html && page > room) {
        p->n_runs = 2;
        return;
    }
    p->n_maps = p->n_heads;
    for (size_t i = 0; i < p->n_heads; i++) keep_map(&p->heads[i]);
}

HeadsPage *heads_page_open(const Options *o, Workspace *w, const Tokenizer *tokenizer,
                           HeadsTexts texts) {
    HeadsPage *p = get(1, sizeof *p);
    size_t n = (size_t)(texts.source.n > texts.ids.n ? texts.source.n : texts.ids.n);
    *p = (HeadsPage){.o = o, .model = workspace_model(w), .w = w, .tokenizer = tokenizer,
                     .texts = texts, .chunk = workspace_chunk(w), .n_runs = 1, .scoring = true,
                     .start = seconds()};
    p->same[0] = find_same(texts.source, prompt_vocabulary(p->model));
    p->same[1] = find_same(texts.ids, p->model->vocab_size);
    open_layers(p);
    plan_maps(p);
    p->equal = get((size_t)workspace_threads(w), sizeof *p->equal);
    for (int t = 0; t < workspace_threads(w); t++) p->equal[t] = get(n, sizeof(float));
    p->f = outfile_open(o->heads, o->models, 1);
    workspace_probe(w, &(heads_probe){.attention = take_row, .context = p});
    return p;
}

// Whether there are maps that could have the role.
static bool role_occurs(const HeadsPage *p, int role) {
    for (const HeadsLayer *l = p->layers; l < p->layers + p->n_layers; l++)
        if (l->attention && has_score(l->texts.mask, role)) return true;
    return false;
}

static void say_roles(const HeadsPage *p) {
    int n[N_ROLES + 1] = {0};
    for (size_t i = 0; i < p->n_heads; i++) n[p->heads[i].role < 0 ? N_ROLES : p->heads[i].role]++;
    fprintf(stderr, "%zu heads:", p->n_heads);
    for (int k = 0; k < N_ROLES; k++)
        if (role_occurs(p, k)) fprintf(stderr, " %d %s,", n[k], score_names[k]);
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
    for (int i = 0; i < p->n_layers; i++) free(p->layers[i].pass);
    for (int t = 0; t < workspace_threads(p->w); t++) free(p->equal[t]);
    free(p->equal);
    free(p->same[0]);
    free(p->same[1]);
    free(p->heads);
    free(p->layers);
    free(p);
}

void heads_page_close(HeadsPage *p, Sequence *s) {
    for (size_t i = 0; i < p->n_heads; i++) {
        Head *h = &p->heads[i];
        h->role = head_role(&h->scores, &h->layer->uniform);
    }
    if (p->n_runs > 1) keep_strongest(p);
    if (p->n_runs > 1 && p->n_maps) run_again(p, s);
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
