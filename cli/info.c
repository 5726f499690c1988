// info.c: what a checkpoint holds (--info), whether its bytes are right (--check), and what its
// tokenizer makes of a prompt (--tokenize).
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "input.h"
#include "print.h"
#include "text/chat.h"
#include "verbs.h"

// ---- layers ----

static bool same_attention(const Attention *a, const Attention *b) {
    return a->n_heads == b->n_heads && a->n_kv_heads == b->n_kv_heads &&
           a->head_dim == b->head_dim && a->rope == b->rope && a->window == b->window &&
           a->mask == b->mask && a->scale == b->scale && a->softcap == b->softcap &&
           a->kv_source == b->kv_source && a->latent.rank == b->latent.rank &&
           !a->q_norm.w == !b->q_norm.w;
}

static bool same_shape(const Layer *a, const Layer *b) {
    return a->mixer == b->mixer && a->mamba2_beside == b->mamba2_beside &&
           a->topology == b->topology &&
           same_attention(&a->attention, &b->attention) && a->ffn.d_ff == b->ffn.d_ff &&
           a->ffn.act.kind == b->ffn.act.kind && a->ffn.act.gated == b->ffn.act.gated &&
           a->experts.n == b->experts.n && !a->attn_norm.w == !b->attn_norm.w &&
           !a->ffn_norm.w == !b->ffn_norm.w && !a->attn_post_norm.w == !b->attn_post_norm.w &&
           !a->ffn_post_norm.w == !b->ffn_post_norm.w;
}

static void print_attention(const Attention *a) {
    if (a->latent.rank) {
        int rope_dim = a->head_dim - a->latent.rank;
        printf("%d query heads of %d + %d over a latent of %d + %d (MLA), values of %d", a->n_heads,
               a->latent.n_nope, rope_dim, a->latent.rank, rope_dim, a->latent.n_value);
    } else {
        printf("%d query heads, %d KV heads (%s), head_dim %d", a->n_heads, a->n_kv_heads,
               attention_name(a->n_heads, a->n_kv_heads), a->head_dim);
    }
    printf(", attention scale %g", (double)a->scale);
    if (a->q_norm.w) printf(", q and k normalised%s", a->qk_norm == QK_WHOLE ? " as wholes" : "");
    if (a->softcap > 0) printf(", softcap %g", (double)a->softcap);
    if (a->clip > 0) printf(", clip %g", (double)a->clip);
    if (a->sinks) printf(", sinks");
    if (a->slopes) printf(", ALiBi");
    if (a->out_gate.data) printf(", output gated");
    if (a->rope >= 0) printf(", rope set %d", a->rope);
    if (a->relative) printf(", biases of distances up to %d", a->reach);
    if (a->window > 0) printf(", window %d", a->window);
    if (a->mask == MASK_ALL) printf(", to both sides");
    if (a->kv_source >= 0) printf(", keys and values of layer %d", a->kv_source);
}

static void print_deltanet(const DeltaNet *d) {
    printf("gated DeltaNet, %d key heads of %d, %d value heads of %d, convolution over %d tokens",
           d->n_k_heads, d->k_dim, d->n_v_heads, d->v_dim, d->conv.n_taps);
}

static void print_mamba2(const Mamba2 *m) {
    printf("Mamba-2, %d heads of %d in %d groups, states of %d, convolution over %d tokens",
           m->n_heads, m->head_dim, m->n_groups, m->d_state, m->conv.n_taps);
}

static void print_mixer(const Layer *l) {
    switch (l->mixer) {
    case MIXER_SHORTCONV: printf("convolution over %d tokens", l->shortconv.conv.n_taps); break;
    case MIXER_DELTANET: print_deltanet(&l->deltanet); break;
    case MIXER_MAMBA2: print_mamba2(&l->mamba2); break;
    case MIXER_NONE: printf("no mixer"); break;
    default: print_attention(&l->attention);
    }
    if (l->mamba2_beside) {
        printf("; beside it ");
        print_mamba2(&l->mamba2);
    }
}

static void print_activation(const Activation *act) {
    static const char *names[N_ACTS] = {"SiLU",  "GELU (erf)", "GELU (tanh)",   "ReLU",
                                        "ReLU^2", "xIELU",     "clamped SwiGLU"};
    printf("%s%s", names[act->kind], act->gated ? ", gated" : "");
}

static void print_feed_forward(const Layer *l) {
    const Experts *e = &l->experts;
    if (l->ffn.d_ff) {
        printf("; feed-forward %d, ", l->ffn.d_ff);
        print_activation(&l->ffn.act);
        if (e->n) printf(", for all tokens");
    }
    if (e->n) {
        printf("; %d of %d experts of %d, ", e->top_k, e->n, e->d_expert);
        print_activation(&e->act);
    }
}

// One line for each run of layers that are alike.
static void print_layers(const Model *model) {
    static const char *const joined[N_TOPOLOGIES] = {
        "", "; attention and feed-forward in parallel", "; norms of the sums",
        "; norms of the stream itself"};
    for (int first = 0, last; first < model->n_layers; first = last + 1) {
        const Layer *l = &model->layers[first];
        last = first;
        while (last + 1 < model->n_layers && same_shape(l, &model->layers[last + 1])) last++;
        printf("layers %d-%d   ", first, last);
        print_mixer(l);
        print_feed_forward(l);
        if (l->cross.n_heads) printf("; looks at the source");
        printf("%s\n", joined[l->topology]);
    }
}

// ---- the file ----

static void print_padded(const char *text, size_t len, int width) {
    int left = width - print_escaped(text, len);
    printf("%*s", left > 0 ? left : 0, "");
}

static void print_info_strings(const Checkpoint *file) {
    for (int i = 0; i < file->n_meta; i++) {
        const Meta *m = &file->meta[i];
        if (m->type != META_U8 || m->key_len < 5 || memcmp(m->key, "info.", 5) != 0) continue;
        print_padded(m->key, m->key_len < 100 ? m->key_len : 100, 12);
        printf(" ");
        print_escaped(m->values, m->count < 400 ? m->count : 400);
        printf("\n");
    }
}

static void print_tensors(const Checkpoint *file) {
    size_t bytes = 0;
    for (int i = 0; i < file->n_tensors; i++) bytes += file->tensors[i].bytes;
    printf("tensors      %d, %s bytes\n", file->n_tensors, commas(bytes));
    for (int i = 0; i < file->n_tensors; i++) {
        const Tensor *t = &file->tensors[i];
        char shape[48];
        snprintf(shape, sizeof shape, "(%zu, %zu)", t->rows, t->cols);
        printf("  ");
        print_padded(t->name, t->name_len, 28);
        printf(" %-4s %-18s %15s bytes\n", dtype_name(t->dtype), shape, commas(t->bytes));
    }
}

// What a conversation can have; or why there is none, NULL if the checkpoint has no template. Owned
// by *chat or *err.
static const char *describe_chat(const Checkpoint *file, Chat **chat, Error *err) {
    *chat = NULL;
    if (!checkpoint_meta(file, "chat.template")) return NULL;
    *chat = chat_new(file, err);
    return *chat ? chat_describe(*chat) : err->text;
}

static void print_info(const char *path, const Model *m, const char *tokenizer, const char *chat,
                       const char *isa, const char *why) {
    printf("file         %s, %s bytes%s\n", path, commas(m->file.map.size),
           m->file.shape ? ": a shape, without weights" : "");
    print_info_strings(&m->file);
    printf("shape        %s%d layers, n_embd %d, vocabulary %d, context %d, %s (eps %g)%s%s%s\n",
           m->encoder ? "encoder, " : m->source.n ? "encoder and decoder, " : "", m->n_layers,
           m->n_embd, m->vocab_size, m->context,
           m->layernorm ? "LayerNorm" : "RMSNorm", (double)m->norm_eps,
           !m->output.data ? ", no output"
           : m->output.data == m->text.embed.data ? ", output tied to the embedding" : "",
           m->head.dense.data ? " through a head" : "",
           m->text.embed_pos.data ? ", learned positions" : "");
    print_layers(m);
    for (int i = 0; i < m->n_rope_sets; i++) {
        const RopeSet *r = &m->rope[i];
        printf("rope set %d   rotates %d of a head's elements, multiplier %g", i, 2 * r->n_pairs,
               (double)r->multiplier);
        if (r->long_freq) printf("; another table for texts of more than %d tokens", r->length);
        printf("\n");
    }
    printf("tokenizer    %s\n", tokenizer         ? tokenizer
                                     : m->file.shape ? "none"
                                                     : "none: use --tokens");
    printf("chat         ");
    if (chat) print_escaped(chat, strlen(chat));
    else printf("none");
    printf("\n");
    printf("kernels      %s (%s)\n", isa, why);
    printf("weights      %s bytes read per %s\n", commas(m->weight_bytes),
           m->encoder ? "pass" : "generated token");
    print_tensors(&m->file);
}

static void print_json_or_null(const char *key, const char *value) {
    printf(", ");
    if (value) print_json_string(key, value, strlen(value));
    else printf("\"%s\": null", key);
}

static void print_info_json(const char *path, const Model *m, const char *tokenizer,
                            const char *chat, const char *isa) {
    printf("{");
    print_json_string("file", path, strlen(path));
    printf(", \"shape\": %s, \"bytes\": %zu, \"weight_bytes\": %zu, \"n_layers\": %d, "
           "\"n_embd\": %d, \"vocab_size\": %d, \"context\": %d, ",
           m->file.shape ? "true" : "false", m->file.map.size, m->weight_bytes, m->n_layers,
           m->n_embd, m->vocab_size, m->context);
    print_json_string("isa", isa, strlen(isa));
    print_json_or_null("tokenizer", tokenizer);
    print_json_or_null("chat", chat);
    printf(",\n \"layers\": [");
    for (int i = 0; i < m->n_layers; i++) {
        const Attention *a = &m->layers[i].attention;
        printf("%s\n  {\"n_heads\": %d, \"n_kv_heads\": %d, \"head_dim\": %d, \"d_ff\": %d, "
               "\"rope\": %d, \"window\": %d}", i ? "," : "", a->n_heads, a->n_kv_heads,
               a->head_dim, m->layers[i].ffn.d_ff, a->rope, a->window);
    }
    printf("],\n \"tensors\": [");
    for (int i = 0; i < m->file.n_tensors; i++) {
        const Tensor *t = &m->file.tensors[i];
        printf("%s\n  {", i ? "," : "");
        print_json_string("name", t->name, t->name_len);
        printf(", \"dtype\": \"%s\", \"rows\": %zu, \"cols\": %zu, \"bytes\": %zu}",
               dtype_name(t->dtype), t->rows, t->cols, t->bytes);
    }
    printf("]}\n");
}

// ---- verbs ----

int info(const Options *o) {
    Error err;
    Model model;
    Chat *chat;
    const char *why, *path = o->models[0];
    open_model(&model, o, path);
    const char *talk = describe_chat(&model.file, &chat, &err);
    Tokenizer *tokenizer = open_tokenizer(&model);
    const char *described = tokenizer ? tokenizer_describe(tokenizer) : NULL;
    const Kernels *kernels = choose_kernels(o, &why);
    if (o->json) print_info_json(path, &model, described, talk, kernels->name);
    else print_info(path, &model, described, talk, kernels->name, why);
    chat_free(chat);
    tokenizer_free(tokenizer);
    model_close(&model);
    return 0;
}

int check(const Options *o) {
    Error err;
    Model model;
    open_model(&model, o, o->models[0]);
    if (checkpoint_check(&model.file, &err)) die("%s: %s", o->models[0], err.text);
    printf("%s: the checksum of its %s bytes is right\n", o->models[0],
           commas(model.file.map.size));
    model_close(&model);
    return 0;
}

int tokenize(const Options *o) {
    Model model;
    open_model(&model, o, o->models[0]);
    Tokenizer *tokenizer = open_tokenizer(&model);
    Ids ids = prompt_ids(o, &model, tokenizer, NULL);
    for (long i = 0; i < ids.n; i++) printf(i ? " %d" : "%d", ids.data[i]);
    printf("\n");
    free(ids.data);
    tokenizer_free(tokenizer);
    model_close(&model);
    return 0;
}
