// info.c: --info prints a checkpoint's contents, --check compares its checksum, --tokenize prints
// the tokens of a prompt.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "print.h"
#include "prompt.h"
#include "verbs.h"

// ---- the model ----

// One line for equal layers that follow each other.
static void print_layers(const Program *p) {
    char line[2][1024];
    int n = p->shape.n_layers + heads_guess_layers(p->model);
    for (int first = 0, last; first < n; first = last + 1) {
        inspect_layer_line(p->model, first, line[0], sizeof line[0]);
        for (last = first; last + 1 < n; last++) {
            inspect_layer_line(p->model, last + 1, line[1], sizeof line[1]);
            if (strcmp(line[0], line[1]) != 0) break;
        }
        if (first == last) printf("layer %-7d%s\n", first, line[0]);
        else printf("layers %d-%d   %s\n", first, last, line[0]);
    }
}

static void print_shape(const Program *p) {
    char line[256];
    inspect_shape_line(p->model, line, sizeof line);
    printf("shape        %s\n", line);
    print_layers(p);
    for (int i = 0; inspect_rope_line(p->model, i, line, sizeof line); i++)
        printf("rope set %d   %s\n", i, line);
}

// ---- the file ----

static void print_padded(const char *text, size_t len, int width) {
    int left = width - print_escaped(text, len);
    printf("%*s", left > 0 ? left : 0, "");
}

static void print_info_strings(const Program *p) {
    for (int i = 0; i < p->facts.n_meta; i++) {
        MetaFacts m = inspect_meta(p->model, i);
        if (!m.text || m.key_len < 5 || memcmp(m.key, "info.", 5) != 0) continue;
        print_padded(m.key, m.key_len < 100 ? m.key_len : 100, 12);
        printf(" ");
        print_escaped(m.text, m.len < 400 ? m.len : 400);
        printf("\n");
    }
}

static void print_tensors(const Program *p) {
    size_t bytes = 0;
    for (int i = 0; i < p->facts.n_tensors; i++) bytes += inspect_tensor(p->model, i).bytes;
    printf("tensors      %d, %s\n", p->facts.n_tensors, size_text(bytes));
    for (int i = 0; i < p->facts.n_tensors; i++) {
        TensorFacts t = inspect_tensor(p->model, i);
        char shape[48];
        snprintf(shape, sizeof shape, "(%zu, %zu)", t.rows, t.cols);
        printf("  ");
        print_padded(t.name, t.name_len, 28);
        printf(" %-4s %-18s %15s bytes\n", t.dtype, shape, commas(t.bytes));
    }
}

// Describes the chat template, or says why there is no *chat; NULL: the checkpoint has no template.
// The text is owned by *chat or *err.
static const char *describe_chat(const Program *p, heads_chat **chat, heads_error *err) {
    *chat = NULL;
    if (!p->facts.has_chat) return NULL;
    *chat = heads_chat_new(p->model, err);
    if (!*chat && no_memory(err)) die("%s: %s", p->path, err->text);
    return *chat ? chat_describe(*chat) : err->text;
}

static void print_info(const Program *p, const char *tokenizer, const char *chat, const char *isa,
                       const char *why) {
    printf("file         %s, %s%s\n", p->path, size_text(p->facts.file_bytes),
           p->facts.shape ? ": a shape, without weights" : "");
    print_info_strings(p);
    print_shape(p);
    printf("tokenizer    %s\n", tokenizer         ? tokenizer
                                : p->facts.shape ? "none"
                                                 : "none: use --tokens");
    printf("chat         ");
    if (chat) print_escaped(chat, strlen(chat));
    else printf("none");
    printf("\n");
    printf("kernels      %s (%s)\n", isa, why);
    printf("weights      %s read per %s\n", size_text(p->shape.weight_bytes),
           p->shape.encoder ? "pass" : "generated token");
    print_tensors(p);
}

static void print_json_or_null(const char *key, const char *value) {
    printf(", ");
    if (value) print_json_string(key, value, strlen(value));
    else printf("\"%s\": null", key);
}

static void print_info_json(const Program *p, const char *tokenizer, const char *chat,
                            const char *isa) {
    printf("{");
    print_json_string("file", p->path, strlen(p->path));
    printf(", \"shape\": %s, \"bytes\": %zu, \"weight_bytes\": %zu, \"n_layers\": %d, "
           "\"guess_layers\": %d, \"n_embd\": %d, \"vocab_size\": %d, \"context\": %d, ",
           p->facts.shape ? "true" : "false", p->facts.file_bytes, p->shape.weight_bytes,
           p->shape.n_layers, heads_guess_layers(p->model), p->shape.n_embd, p->shape.vocab_size,
           p->shape.context);
    print_json_string("isa", isa, strlen(isa));
    print_json_or_null("tokenizer", tokenizer);
    print_json_or_null("chat", chat);
    printf(",\n \"layers\": [");
    for (int i = 0; i < p->shape.n_layers; i++) {
        LayerFacts l = inspect_layer(p->model, i);
        printf("%s\n  {\"n_heads\": %d, \"n_kv_heads\": %d, \"head_dim\": %d, \"d_ff\": %d, "
               "\"rope\": %d, \"window\": %d}", i ? "," : "", l.n_heads, l.n_kv_heads, l.head_dim,
               l.d_ff, l.rope, l.window);
    }
    printf("],\n \"tensors\": [");
    for (int i = 0; i < p->facts.n_tensors; i++) {
        TensorFacts t = inspect_tensor(p->model, i);
        printf("%s\n  {", i ? "," : "");
        print_json_string("name", t.name, t.name_len);
        printf(", \"dtype\": \"%s\", \"rows\": %zu, \"cols\": %zu, \"bytes\": %zu}", t.dtype,
               t.rows, t.cols, t.bytes);
    }
    printf("]}\n");
}

// ---- verbs ----

int info(const Options *o) {
    heads_error err;
    Program p;
    heads_chat *chat;
    const char *why;
    open_program(&p, o, o->models[0], WITH_TOKENIZER);
    const char *talk = describe_chat(&p, &chat, &err);
    const char *tokenizer = p.tokenizer ? tokenizer_describe(p.tokenizer) : NULL;
    const char *isa = choose_kernels(o, &why);
    if (o->json) print_info_json(&p, tokenizer, talk, isa);
    else print_info(&p, tokenizer, talk, isa, why);
    heads_chat_free(chat);
    close_program(&p);
    return 0;
}

int check(const Options *o) {
    heads_error err;
    Program p;
    open_program(&p, o, o->models[0], NO_TOKENIZER);
    if (inspect_checksum(p.model, &err)) die("%s: %s", p.path, err.text);
    printf("%s: the checksum of its %s bytes is right\n", p.path, commas(p.facts.file_bytes));
    close_program(&p);
    return 0;
}

int tokenize(const Options *o) {
    Program p;
    open_program(&p, o, o->models[0], WITH_TOKENIZER);
    Ids ids = prompt_ids(&p, NULL);
    for (long i = 0; i < ids.n; i++) printf(i ? " %d" : "%d", ids.data[i]);
    printf("\n");
    free(ids.data);
    close_program(&p);
    return 0;
}
