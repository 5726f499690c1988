#include "open.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "input.h"
#include "print.h"
#include "source.h"

// ---- options that mean nothing for a model of this kind ----

// Verbs for a kind of model, without those that this one has nothing for.
static const char *names_of(const Program *p, unsigned verbs) {
    if (!p->shape.vector) verbs &= ~(unsigned)(EMBED | SIMILAR);
    if (!p->shape.n_labels) verbs &= ~(unsigned)CLASSIFY;
    if (p->shape.n_labels != 1 || p->shape.token_classes) verbs &= ~(unsigned)RANK;
    return verb_names(verbs);
}

static void check_encoder(const Program *p) {
    const Options *o = p->o;
    const char *path = p->path;
    static const char what[] = "is an encoder: it reads texts as a whole, keeps no cache between "
                               "tokens and generates nothing";
    if (o->draft_model) usage("%s %s, so it takes no part in guessing", path, what);
    if (!(o->verb & OF_ENCODERS))
        usage("%s %s; it has -p, to fill masks, %s", path, what, names_of(p, OF_ENCODERS));
    if (o->grows) usage("%s %s, so %s means nothing for it", path, what, o->grows);
}

static void check_encoder_decoder(const Options *o, const char *path) {
    static const char what[] = "is an encoder-decoder: it reads a text and writes another";
    if (o->draft_model)
        usage("%s %s; --lookup guesses for it, but no other model", path, what);
    if (o->heads && o->logits && !o->target)
        usage("%s %s; --logits beside --heads are of the --target, which is missing", path, what);
    if (!(o->verb & OF_ENCODER_DECODERS) || o->messages)
        usage("%s %s; it has -p, %s", path, what, verb_names(OF_ENCODER_DECODERS));
}

// A decoder that has classes has no logits, nor has one that was saved without its output.
static void check_headless(const Program *p) {
    if (p->o->draft_model || !(p->o->verb & OF_CLASSIFIERS))
        usage("%s has %s, so it generates nothing; it has %s", p->path,
              p->shape.n_labels ? "a head for classes in place of logits" : "no output matrix",
              names_of(p, OF_CLASSIFIERS));
}

void need_weights(const heads_model *model, const char *path) {
    heads_error err;
    if (inspect_model(model).shape && !heads_workspace_new(model, NULL, &err))
        die("%s: %s", path, err.text);
}

// Warns of a context beyond the model's, or refuses it where positions are learned.
static void check_long_context(const Program *p, int context) {
    if (context <= p->shape.context) return;
    if (p->facts.learned_positions)
        usage("-c %d: %s has positions for %d tokens, and none beyond", context, p->path,
              p->shape.context);
    warn("-c %d: %s was made for %d positions; what it says of a longer text may make little "
         "sense", context, p->path, p->shape.context);
}

static void check_kind(const Program *p) {
    const Options *o = p->o;
    bool reads_source = p->shape.source_vocab, runs = !(o->verb & (KV | INFO | CHECK));
    if (p->shape.encoder) check_encoder(p);
    else if (p->shape.n_labels || !p->facts.has_logits) check_headless(p);
    if (o->verb == HEADS && o->writes && (o->target || !reads_source))
        usage("%s means nothing for %s", o->writes,
              o->target ? "a --target that is given" : "--heads");
    if (reads_source) check_encoder_decoder(o, p->path);
    else if (o->target || o->lang)
        usage("%s is no encoder-decoder, so %s means nothing for it", p->path,
              o->target ? "--target" : "--lang");
    if (!runs) return;
    if (o->verb == GENERATE && o->prompt && p->facts.has_chat)
        warn("%s was made to chat, and this goes on with the text as it stands: --chat talks with "
             "it, and --chat -p TEXT asks one question", p->path);
    need_weights(p->model, p->path);
    check_long_context(p, o->workspace.context);
}

// ---- opening and closing ----

// build/stories.S
extern const uint8_t stories_bin[], stories_bin_end[];

static heads_model *open_model(const char *path, heads_error *err) {
    if (path != BUNDLED) return heads_model_open(find_checkpoint(path), err);
    return heads_model_parse(stories_bin, (size_t)(stories_bin_end - stories_bin), err);
}

void open_program(Program *p, const Options *o, const char *path, Needs needs) {
    heads_error err;
    *p = (Program){.o = o, .path = path, .model = open_model(path, &err)};
    if (!p->model) die("%s", err.text);
    p->shape = heads_model_shape(p->model);
    p->facts = inspect_model(p->model);
    check_kind(p);
    bool steers = o->steer && path == o->models[0];  // and no draft model
    if (steers && read_steers(&p->steers, p->model, o->steer, &err)) die("--steer: %s", err.text);
    if (needs == NO_TOKENIZER || !p->facts.has_tokenizer) return;
    p->tokenizer = heads_tokenizer_new(p->model, &err);
    if (!p->tokenizer) die("%s", err.text);
}

const char *choose_kernels(const Options *o, const char **why) {
    const char *name = inspect_kernels(o->workspace.isa, why);
    if (!name) die("HEADS_ISA=%s: %s", o->workspace.isa, *why);
    if (o->workspace.isa) *why = "HEADS_ISA asks for it";
    return name;
}

bool no_memory(const heads_error *err) { return strncmp(err->text, "no memory", 9) == 0; }

const char *memory_hint(const heads_error *err) {
    if (strstr(err->text, "positions")) return "; choose fewer with -c";
    if (strstr(err->text, "threads")) return "; choose fewer with -t";
    if (!strstr(err->text, "activations")) return "";
    return "; choose fewer with -b, or a shorter context with -c";
}

void open_workspace(Program *p, int logit_rows) {
    heads_error err;
    const char *why;
    heads_workspace_options options = p->o->workspace;
    choose_kernels(p->o, &why);
    options.logit_rows = logit_rows;
    options.hidden = p->o->verb == HIDDEN;
    p->w = heads_workspace_new(p->model, &options, &err);
    if (!p->w) die("%s%s", err.text, memory_hint(&err));
    if (!p->o->adapter) return;
    p->adapter = open_adapter(p->model, p->o->adapter, &p->adapter_scale, &err);
    if (!p->adapter || heads_workspace_adapter(p->w, p->adapter, p->adapter_scale, &err))
        die("--adapter: %s", err.text);
}

heads_workspace_options reading_options(Program *p) {
    heads_workspace_options options = p->o->workspace;
    if (p->o->adapter && !p->w) open_workspace(p, 1);
    options.threads_of = p->w;
    return options;
}

heads_adapter *open_adapter(const heads_model *model, const char *given, float *scale,
                            heads_error *err) {
    *scale = 1;
    char *path = is_missing(given) ? path_and_scale(given, scale) : copy_of(given, strlen(given));
    heads_adapter *adapter = heads_adapter_open(model, path, err);
    free(path);
    return adapter;
}

heads_sequence *open_sequence(heads_workspace *w, bool shared) {
    heads_error err;
    heads_sequence *s = heads_sequence_new(w, shared, &err);
    if (!s) die("%s%s", err.text, memory_hint(&err));
    return s;
}

heads_sequence *open_text(const Program *p, bool shared) {
    heads_error err;
    heads_sequence *s = open_sequence(p->w, shared);
    if (p->o->off && heads_sequence_off(s, p->o->off, &err)) die("%s", err.text);
    for (const heads_steer *t = p->steers.data; t < p->steers.data + p->steers.n; t++)
        if (heads_sequence_steer(s, t->layer, t->vector, t->scale, &err)) die("%s", err.text);
    return s;
}

void close_program(Program *p) {
    heads_workspace_free(p->w);
    heads_adapter_close(p->adapter);
    heads_tokenizer_free(p->tokenizer);
    heads_model_close(p->model);
    heads_free(p->steers.data);
}

double pass_bytes(const Program *p, const heads_sequence *s) {
    const heads_workspace_options *o = &p->o->workspace;
    int n = heads_sequence_length(s), n_source;
    heads_sequence_source(s, &n_source);
    size_t cache = inspect_kv_bytes(p->model, 0, n, n_source, o->k_type, o->v_type);
    return (double)p->shape.weight_bytes + (double)cache;
}

// ---- what the checkpoint says where the options do not ----

int wanted_context(const Program *p) {
    return p->o->workspace.context ? p->o->workspace.context : p->shape.context;
}

int tokens_to_generate(const Program *p, int n_begin) {
    // All tokens but the first count, as in transformers.
    int most = p->facts.most_tokens ? p->facts.most_tokens - 1 : 256;
    int begun = n_begin > 1 ? n_begin - 1 : 0;
    if (p->o->n_generate >= 0) most = p->o->n_generate;
    return most > begun ? most - begun : 0;
}

heads_sampler_options sampling_options(const Program *p, bool answer) {
    heads_sampler_options sampling = answer ? p->o->answers : p->o->sampler;
    if (p->shape.greedy && !p->o->samples) sampling.temperature = 0;
    return sampling;
}
