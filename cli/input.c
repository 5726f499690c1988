#include "input.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "messages.h"
#include "print.h"
#include "text/unicode.h"

void *allocate(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    if (!memory) die("no memory for %zu bytes", count * size);
    return memory;
}

// ---- the model, and where it runs ----

// What means nothing for a model that reads whole texts.
static void check_encoder(const Options *o, const char *path) {
    static const char what[] = "is an encoder: it reads texts as a whole, keeps no cache between "
                               "tokens and generates nothing";
    if (o->draft_model) usage("%s %s, so it takes no part in guessing", path, what);
    if (o->verb & (CHAT | BATCH | PPL | BENCH))
        usage("%s %s; it has --embed, --similar, --hidden, --logits, and fills masks in -p", path,
              what);
    if (o->grows) usage("%s %s, so %s means nothing for it", path, what, o->grows);
}

// What means nothing for a model that reads one text and writes another.
static void check_encoder_decoder(const Options *o, const char *path) {
    static const char what[] = "is an encoder-decoder: it reads a text and writes another";
    if (o->draft_model)
        usage("%s %s; --lookup guesses for it, but no other model", path, what);
    if (o->heads && o->logits && !o->target)
        usage("%s %s; --logits beside --heads are of the --target, which is missing", path, what);
    if (o->verb & (CHAT | PPL | BENCH | EMBED | SIMILAR) || o->messages)
        usage("%s %s; it has -p, --batch, and --tokens with --target for --logits and --hidden",
              path, what);
}

void need_weights(const Model *model, const char *path) {
    if (model->file.shape)
        die("%s is a shape, which has no weights: it is for --kv, --info and --check; for all else "
            "export the model without --shape-only", path);
}

// A context beyond the one that the model was made for. Where positions are computed it can be had.
static void check_long_context(const Model *model, int context, const char *path) {
    if (model->text.embed_pos.data)
        usage("-c %d: %s has positions for %d tokens, and none beyond", context, path,
              model->context);
    fprintf(stderr, "run: -c %d: %s was made for %d positions; what it says of a longer text may "
            "make little sense\n", context, path, model->context);
}

void open_model(Model *model, const Options *o, const char *path) {
    Error err;
    if (model_open(model, path, &err)) die("%s", err.text);
    if (model->encoder) check_encoder(o, path);
    if (o->verb == LOOK && o->writes && (o->target || !o->heads || !model->source.n))
        usage("%s means nothing for %s", o->writes, o->target ? "a --target that is given"
                                                              : o->heads ? "--heads" : "--logits");
    if (model->source.n) check_encoder_decoder(o, path);
    else if (o->target || o->lang)
        usage("%s is no encoder-decoder, so %s means nothing for it", path,
              o->target ? "--target" : "--lang");
    if (!(o->verb & (KV | INFO | CHECK))) need_weights(model, path);
    if (o->workspace.context > model->context && !(o->verb & (KV | INFO | CHECK)))
        check_long_context(model, o->workspace.context, path);
}

Tokenizer *open_tokenizer(const Model *model) {
    Error err;
    if (!has_tokenizer(&model->file)) return NULL;
    Tokenizer *tokenizer = tokenizer_new(&model->file, &err);
    if (!tokenizer) die("%s", err.text);
    return tokenizer;
}

const Kernels *choose_kernels(const Options *o, const char **why) {
    const Kernels *kernels = kernels_choose(o->workspace.isa, why);
    if (!kernels) die("HEADS_ISA=%s: %s", o->workspace.isa, *why);
    if (o->workspace.isa) *why = "HEADS_ISA asks for it";
    return kernels;
}

// Which options ask for less of what could not be had.
static const char *memory_hint(const Error *err) {
    if (strstr(err->text, "positions")) return "; choose fewer with -c";
    if (strstr(err->text, "threads")) return "; choose fewer with -t";
    if (!strstr(err->text, "activations")) return "";
    return "; choose fewer with -b, or a shorter context with -c";
}

Workspace *open_workspace(const Options *o, const Model *model, int logit_rows) {
    Error err;
    const char *why;
    WorkspaceOptions options = o->workspace;
    choose_kernels(o, &why);
    options.logit_rows = logit_rows;
    options.hidden = o->verb & (HIDDEN | EMBED | SIMILAR);
    Workspace *w = workspace_new(model, &options, &err);
    if (!w) die("%s%s", err.text, memory_hint(&err));
    return w;
}

Sequence *open_sequence(Workspace *w, bool shared) {
    Error err;
    Sequence *s = sequence_new(w, shared, &err);
    if (!s) die("%s%s", err.text, memory_hint(&err));
    return s;
}

// ---- texts ----

Text read_stream(FILE *f, const char *name) {
    Text text = {NULL, 0};
    size_t capacity = 0, got = 1;
    while (got > 0) {
        if (text.size == capacity) {
            capacity = capacity ? 2 * capacity : 1 << 16;
            char *larger = realloc(text.data, capacity);
            if (!larger) die("%s: no memory for %zu bytes of text", name, capacity);
            text.data = larger;
        }
        got = fread(text.data + text.size, 1, capacity - text.size, f);
        text.size += got;
    }
    if (ferror(f)) die("cannot read %s: %s", name, strerror(errno));
    return text;
}

Text read_file(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) die("cannot open %s: %s", path, strerror(errno));
    Text text = read_stream(f, path);
    fclose(f);
    return text;
}

Text *split_lines(Text text, long *n) {
    size_t n_lines = 0;
    const char *p = text.data, *end = text.data + text.size, *newline;
    for (size_t i = 0; i < text.size; i++) n_lines += text.data[i] == '\n';
    Text *lines = allocate(n_lines + 1, sizeof *lines);
    for (*n = 0; p < end; p = newline + 1, ++*n) {
        newline = memchr(p, '\n', (size_t)(end - p));
        if (!newline) newline = end;
        lines[*n] = (Text){(char *)p, (size_t)(newline - p)};
    }
    return lines;
}

void warn_if_not_utf8(Text text) {
    for (size_t i = 0, n; i < text.size; i += n) {
        n = utf8_length(text.data + i, text.size - i);
        if (n == 0) {
            fprintf(stderr, "run: the text is not UTF-8 at byte %zu; bad bytes are read as "
                            "U+FFFD\n", i);
            return;
        }
    }
}

// ---- ids ----

Ids encode(const Tokenizer *tokenizer, Text text, bool add_special) {
    Error err;
    Ids ids;
    const char *data = text.data ? text.data : "";
    ids.n = tokenizer_encode(tokenizer, data, text.size, add_special, &ids.data, &err);
    if (ids.n < 0) die("%s", err.text);
    return ids;
}

Ids parse_ids(const char *option, const char *text, int vocab_size) {
    static const char between[] = " ,\t\n";
    Ids ids = {allocate(strlen(text) / 2 + 1, sizeof(int)), 0};
    for (const char *p = text + strspn(text, between); *p; p += strspn(p, between)) {
        char *end;
        errno = 0;
        long id = strtol(p, &end, 10);
        if (end == p || (*end && !strchr(between, *end)))
            usage("%s wants ids such as \"1 2 3\", found \"%.40s\"", option, p);
        if (errno || id < 0 || id >= vocab_size)
            usage("%s: %.*s is no token of this model; its ids are 0 to %d", option,
                  (int)(end - p), p, vocab_size - 1);
        ids.data[ids.n++] = (int)id;
        p = end;
    }
    if (ids.n == 0) usage("%s is empty; give at least one id", option);
    return ids;
}

int prompt_vocabulary(const Model *m) {
    return m->source.n ? m->source.vocab_size : m->vocab_size;
}

void check_ids(Ids ids, const Model *model) {
    int vocab_size = prompt_vocabulary(model);
    for (long i = 0; i < ids.n; i++)
        if (ids.data[i] >= vocab_size)
            die("the text has token %d, which the tokenizer knows and the model does not: its ids "
                "are 0 to %d", ids.data[i], vocab_size - 1);
}

// The conversation in a file, and the beginning of an answer.
static Ids messages_ids(const Options *o, const Model *model, const Tokenizer *tokenizer,
                        int *answer_end) {
    Error err;
    Chat *chat = open_chat(model, o->models[0]);
    Messages m = read_messages(o->messages);
    Ids ids = conversation_ids(o, chat, tokenizer, &m, true, &err);
    if (ids.n < 0) die("%s: %s", o->messages, err.text);
    if (answer_end) *answer_end = chat_stop(chat, tokenizer);
    messages_free(&m);
    chat_free(chat);
    return ids;
}

Text prompt_text(const Options *o) {
    Text text = {NULL, 0};
    if (o->prompt_file) {
        text = read_file(o->prompt_file);
    } else if (o->prompt && strcmp(o->prompt, "-") == 0) {
        text = read_stream(stdin, "stdin");
    } else if (o->prompt) {
        text = (Text){strdup(o->prompt), strlen(o->prompt)};
        if (!text.data) die("no memory for the prompt");
    }
    warn_if_not_utf8(text);
    return text;
}

Ids prompt_ids(const Options *o, const Model *model, const Tokenizer *tokenizer, int *answer_end) {
    if (!tokenizer && !o->tokens)
        usage("%s has no tokenizer; give the prompt as ids, with --tokens", o->models[0]);
    if (o->messages) return messages_ids(o, model, tokenizer, answer_end);
    Text text = o->tokens ? (Text){0} : prompt_text(o);
    Ids ids = o->tokens ? parse_ids("--tokens", o->tokens, prompt_vocabulary(model))
                        : encode(tokenizer, text, true);
    free(text.data);
    set_source_language(o, model, tokenizer, ids);
    return ids;
}

Ids prompt_to_run(const Options *o, const Model *model, const Tokenizer *tokenizer,
                  int *answer_end) {
    return to_run(o, model, prompt_ids(o, model, tokenizer, answer_end));
}

Ids to_run(const Options *o, const Model *model, Ids ids) {
    int context = o->workspace.context ? o->workspace.context : model->context;
    if (ids.n == 0)
        usage("the prompt is empty, and this model's tokenizer puts no BOS token before a text; "
              "give a prompt with -p");
    if (ids.n > context)
        usage("the prompt has %ld tokens and the context has room for %d; shorten it%s", ids.n,
              context, context < model->context ? " or raise -c" : "");
    check_ids(ids, model);
    return ids;
}
