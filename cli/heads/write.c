#include "cli/heads/write.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/print.h"
#include "cli/token_text.h"

static const char *const kind_names[N_SIGHTS] = {
    [SEES_BEFORE] = "decoder", [SEES_ALL] = "encoder", [SEES_SOURCE] = "cross",
};

// Writes a JSON string with "<" escaped, since it could end the page's script.
static void put_escaped(FILE *f, Text json) {
    for (size_t i = 0; i < json.size; i++)
        if (json.data[i] == '<') fputs("\\u003c", f);
        else fputc(json.data[i], f);
}

static void put_string(FILE *f, const char *text, size_t len) {
    Text quoted = {0};
    json_quote(&quoted, text, len);
    put_escaped(f, quoted);
    free(quoted.data);
}

static void put_number(FILE *f, double x) {
    if (isnan(x)) fputs("null", f);
    else fprintf(f, "%.6g", x);
}

static void put_token(const HeadsPage *p, Ids ids, long i) {
    Text text = {0};
    add_token_text(&text, p->p, ids.data[i], ids.data == p->texts.ids.data);
    fprintf(p->f, "%s{\"id\": %d, \"text\": ", i ? ",\n  " : "", ids.data[i]);
    put_escaped(p->f, text);
    fputs("}", p->f);
    free(text.data);
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
        if (p->p->o->html) put_base64(p->f, h->sinks, n);
        else put_row(p->f, h->sinks, n);
    }
    if (!h->map) return;
    fputs(",\n     \"map\": ", p->f);
    if (p->p->o->html) put_base64(p->f, h->map, map_row(t, t->n_rows));
    for (int i = 0; i < t->n_rows && !p->p->o->html; i++) {
        fputs(i ? ",\n      " : "[", p->f);
        put_row(p->f, h->map + map_row(t, i), map_row(t, i + 1) - map_row(t, i));
    }
    if (!p->p->o->html) fputs("]", p->f);
}

// Of the first n scores, writes each that maps of such a sight have.
static void put_scores(const HeadsPage *p, const char *before, int n, Sight sees,
                       const HeadScores *scores) {
    for (int k = 0; k < n; k++) {
        if (!has_score(sees, k)) continue;
        fprintf(p->f, "%s\"%s\": ", before, score_names[k]);
        put_number(p->f, head_score(scores, k));
        before = ", ";
    }
    fputs("}", p->f);
}

static void put_costs(const HeadsPage *p, const Head *h) {
    if (!h->costs) return;
    fprintf(p->f, ",\n     \"cost\": %.6g, \"token_costs\": ", h->cost);
    for (long i = 0; i + 1 < p->texts.ids.n; i++)
        fprintf(p->f, "%s%.4g", i ? "," : "[", h->costs[i]);
    fputs("]", p->f);
}

static void put_head(const HeadsPage *p, const Head *h) {
    const LayerFacts *a = &h->layer->facts;
    fprintf(p->f, "%s{\"head\": %d, \"kv_head\": %d, \"role\": ", h->number ? ",\n    " : "",
            h->number, h->number / (a->n_heads / a->n_kv_heads));
    if (h->role < 0) fputs("null", p->f);
    else fprintf(p->f, "\"%s\"", score_names[h->role]);
    put_scores(p, ",\n     \"scores\": {", N_SCORES, a->sees, &h->scores);
    fputs(",\n     \"pairs\": [", p->f);
    for (int i = 0; i < h->scores.n_pairs; i++) {
        TokenPair pair = h->scores.pairs[i];
        fprintf(p->f, "%s[%d, %d, %.6g]", i ? ", " : "", pair.query, pair.key, pair.weight);
    }
    fputs("]", p->f);
    put_costs(p, h);
    put_map(p, h);
    fputs("}", p->f);
}

static void put_layer(const HeadsPage *p, const HeadsLayer *layer) {
    const LayerFacts *a = &layer->facts;
    fprintf(p->f, "%s{\"layer\": %d, \"mixer\": \"%s\"", layer == p->layers ? "" : ",\n  ",
            a->number, a->mixer);
    if (a->attends) {
        if (p->p->shape.encoder || p->texts.source.n)
            fprintf(p->f, ", \"kind\": \"%s\"", kind_names[a->sees]);
        fprintf(p->f, ", \"n_heads\": %d, \"n_kv_heads\": %d, \"window\": %d", a->n_heads,
                a->n_kv_heads, a->window);
        if (a->kv_from >= 0) fprintf(p->f, ", \"kv_source\": %d", a->kv_from);
        const char *before = ",\n   \"rows\": {";
        for (int k = 0; k < N_ROLES; k++) {
            if (!has_score(a->sees, k)) continue;
            fprintf(p->f, "%s\"%s\": %ld", before, score_names[k], layer->uniform.rows[k]);
            before = ", ";
        }
        put_scores(p, "},\n   \"uniform\": {", N_ROLES, a->sees, &layer->uniform);
        fputs(",\n   \"heads\": [\n    ", p->f);
        for (int h = 0; h < a->n_heads; h++) put_head(p, &layer->heads[h]);
        fputs("]", p->f);
    }
    fputs("}", p->f);
}

void write_heads_json(const HeadsPage *p) {
    const char *name = base_name(p->p->o->models[0]);
    fputs("{\"model\": ", p->f);
    put_string(p->f, name, strlen(name));
    if (p->n_maps < p->n_heads)
        fprintf(p->f, ",\n \"left_out\": {\"heads\": %zu, \"of\": %zu, \"limit_mb\": %d}",
                p->n_heads - p->n_maps, p->n_heads, p->p->o->heads_max);
    if (p->texts.source.n) {
        put_tokens(p, "source_tokens", p->texts.source);
        fprintf(p->f, ",\n \"target\": \"%s\"", p->texts.target);
    }
    put_tokens(p, "tokens", p->texts.ids);
    fputs(",\n \"layers\": [\n  ", p->f);
    long n = p->texts.source.n + p->texts.ids.n;
    for (int i = 0; i < p->n_layers; i++) {
        put_layer(p, &p->layers[i]);
        if (!p->p->o->html) show_progress(p, (double)(n * i) / p->n_layers);
    }
    fputs("]}\n", p->f);
}
