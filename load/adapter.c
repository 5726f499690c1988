// Adapters: a file of the checkpoint's container (docs/format.md), with two small matrices for each
// matrix of the base that training changed.
#include "load/adapter.h"

#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "load/loader.h"

enum { MAX_RANK = 4096 };

// ---- the matrices of the base ----

static const Matrix *find_in(const Matrix *const *matrices, int n, const uint8_t *data) {
    for (int i = 0; i < n; i++)
        if (matrices[i]->data == data) return matrices[i];
    return NULL;
}

static const Matrix *find_in_mixer(const Mixer *mixer, const Layer *l, const uint8_t *data) {
    const Matrix *found[MAX_MIXER_MATRICES];
    return mixer ? find_in(found, mixer->matrices(l, found), data) : NULL;
}

static const Matrix *find_in_layer(const Layer *l, const uint8_t *data) {
    const Attention *c = &l->cross;
    const Matrix *others[] = {&l->ffn.gate, &l->ffn.up, &l->ffn.down, &l->ffn.token_gate,
                              &l->experts.router, &l->experts.gate, &l->experts.up,
                              &l->experts.down, &l->embed_branch.gate, &l->embed_branch.out,
                              &c->q, &c->k, &c->v, &c->o};
    const Matrix *m = find_in(others, sizeof others / sizeof *others, data);
    if (!m) m = find_in_mixer(mixers[l->mixer], l, data);
    return !m && l->mamba2_beside ? find_in_mixer(&mamba2_mixer, l, data) : m;
}

// The matrix whose data these are, if rows are multiplied by it; NULL: they are looked up in it.
static const Matrix *matrix_at(const Model *model, const uint8_t *data) {
    const Matrix *others[] = {&model->layer_embed.in, &model->embed_proj, &model->head.dense,
                              &model->output}, *found = NULL;
    if (data == model->text.embed.data) return NULL;
    for (int i = 0; !found && i < model->n_layers; i++)
        found = find_in_layer(&model->layers[i], data);
    return found ? found : find_in(others, sizeof others / sizeof *others, data);
}

// ---- its pairs ----

// The tensor of the base whose name has most characters in common with name[len], from its
// beginning and from its end.
static const Tensor *nearest(const Checkpoint *file, const char *name, size_t len) {
    const Tensor *best = file->tensors;
    size_t most = 0;
    for (const Tensor *t = file->tensors; t < file->tensors + file->n_tensors; t++) {
        size_t least = t->name_len < len ? t->name_len : len, n = 0, same = 0;
        while (same < least && t->name[same] == name[same]) same++;
        while (n < least - same && t->name[t->name_len - 1 - n] == name[len - 1 - n]) n++;
        if (same + n > most) most = same + n, best = t;
    }
    return best;
}

static size_t stack_rows(const Matrix *m, int n_out) {
    return plus(times((size_t)(m->n - 1), round_up((size_t)n_out, LANES)), (size_t)n_out);
}

// Whether no number is NaN or infinite, with all bits of its exponent set. These are in a number's
// upper 16 bits, and of f32 they lie as of bf16.
static bool finite_tensor(const Tensor *t) {
    const DtypeInfo *d = &dtypes[t->dtype];
    size_t step = (size_t)d->bits / 8;
    uint16_t exponent = d->bits == 16 && d->input == INPUT_F32 ? 0x7c00 : 0x7f80, x;
    for (size_t i = step - sizeof x; i < t->bytes; i += step) {
        memcpy(&x, t->data + i, sizeof x);
        if ((x & exponent) == exponent) return false;
    }
    return true;
}

// One of the two matrices, of a stack as `of` is.
static int read_factor(Matrix *out, const Tensor *t, const Matrix *of, int n_out, int n_in,
                       Error *err) {
    int len = (int)t->name_len;
    size_t rows = stack_rows(of, n_out), bytes = matrix_bytes(t->dtype, rows, n_in);
    if (dtypes[t->dtype].scaled)
        return fail(err, "tensor %.*s is %s, expected f32, bf16 or f16", len, t->name,
                    dtypes[t->dtype].name);
    if (t->rows != rows || t->cols != (size_t)n_in || t->bytes != bytes)
        return fail(err, "tensor %.*s: it is (%zu, %zu) of %zu bytes, expected (%zu, %d) of %zu",
                    len, t->name, t->rows, t->cols, t->bytes, rows, n_in, bytes);
    if (!finite_tensor(t))
        return fail(err, "tensor %.*s: a number is NaN or infinite", len, t->name);
    *out = (Matrix){t->data, t->dtype, n_out, n_in, NULL, of->n};
    return 0;
}

// The pair of tensors a, NAME.a, and NAME.b.
static int read_pair(heads_adapter *x, LowRank *pair, Reader *r, const Tensor *a, Error *err) {
    const Checkpoint *base = &x->model->file;
    int len = (int)a->name_len - 2;
    char name[128];
    snprintf(name, sizeof name, "%.*s.b", len, a->name);
    const Tensor *b = read_tensor(r, name);
    if (!b) return fail(err, "it lacks the tensor %s beside %.*s", name, len + 2, a->name);
    name[len] = '\0';
    const Tensor *t = checkpoint_tensor(base, name);
    if (!t) {
        const Tensor *near = nearest(base, name, (size_t)len);
        return fail(err, "it changes %s, which the model has not; the nearest is %.*s", name,
                    (int)near->name_len, near->name);
    }
    const Matrix *of = matrix_at(x->model, t->data);
    if (!of) return fail(err, "it changes %s, which no product reads; merge it instead", name);
    if (b->cols < 1 || b->cols > MAX_RANK)
        return fail(err, "tensor %s.b: its rank is %zu, expected 1..%d", name, b->cols, MAX_RANK);
    int rank = (int)b->cols;
    pair->of = t->data;
    if (rank > x->most_rank) x->most_rank = rank;
    return read_factor(&pair->a, a, of, rank, of->n_in, err) ||
           read_factor(&pair->b, b, of, of->n_out, rank, err);
}

static int read_pairs(heads_adapter *x, Reader *r, Error *err) {
    const Checkpoint *f = &x->file;
    x->pairs = calloc((size_t)f->n_tensors + 1, sizeof *x->pairs);
    if (!x->pairs) return fail(err, "no memory for its tensors");
    for (int i = 0; i < f->n_tensors; i++) {
        const Tensor *t = &f->tensors[i];
        if (t->name_len < 3 || t->name_len > 100 || memcmp(t->name + t->name_len - 2, ".a", 2) != 0)
            continue;
        r->tensor_read[i] = true;
        if (read_pair(x, &x->pairs[x->n], r, t, err)) return -1;
        x->n++;
    }
    if (!x->n) return fail(err, "it has no tensor");
    qsort(x->pairs, (size_t)x->n, sizeof *x->pairs, by_matrix);
    for (int i = 1; i < x->n; i++)
        if (x->pairs[i].of == x->pairs[i - 1].of)
            return fail(err, "it changes one matrix, which layers share, twice");
    return refuse_unread_tensors(r);
}

// ---- the base ----

// A checksum of what all files of one base have alike, whatever their matrices are rounded to: its
// vectors, such as the weights of norms.
static uint32_t vectors_crc(const Checkpoint *file) {
    uint32_t crc = 0;
    for (const Tensor *t = file->tensors; t < file->tensors + file->n_tensors; t++)
        if (t->rows == 1 && t->dtype == F32 && t->bytes == 4 * t->cols)
            crc = crc32_after(crc, t->data, t->bytes);
    return crc;
}

static int check_base(const heads_adapter *x, Reader *r, Error *err) {
    const Model *m = x->model;
    const struct {
        const char *key, *what;
        int value;
    } knobs[] = {{"adapter.n_layers", "layers", m->n_layers},
                 {"adapter.n_embd", "numbers a token", m->n_embd},
                 {"adapter.vocab_size", "tokens in its vocabulary", m->vocab_size}};
    for (size_t i = 0; i < sizeof knobs / sizeof *knobs; i++) {
        int value;
        if (need_int(r, knobs[i].key, 1, MAX_DIM, &value)) return -1;
        if (value != knobs[i].value)
            return fail(err, "it is an adapter of another model: that one has %d %s, this one %d",
                        value, knobs[i].what, knobs[i].value);
    }
    return 0;
}

static int check_vectors(const heads_adapter *x, Reader *r, Error *err) {
    const Meta *meta = need_meta(r, "adapter.base", META_I32, 1);
    if (!meta) return -1;
    uint32_t made_for, here = vectors_crc(&x->model->file);
    memcpy(&made_for, meta->values, sizeof made_for);
    if (made_for == here) return 0;
    return fail(err, "it is an adapter of another model: the checksum of that one's vectors is "
                "%08x, of this one's %08x", made_for, here);
}

// ---- opening and closing ----

static int parse(heads_adapter *x, const uint8_t *bytes, size_t size, Error *err) {
    Reader r = {0};
    if (checkpoint_parse(&x->file, bytes, size, err)) return -1;
    if (x->file.shape) return fail(err, "its tensors are missing");
    if (!checkpoint_meta(&x->file, "adapter.base"))
        return fail(err, "no adapter, since it does not say of which base; make one with "
                    "export.py --adapter DIR OUT --for BASE.bin");
    int status = checkpoint_check(&x->file, err) || reader_open(&r, &x->file, err) ||
                 check_base(x, &r, err) || read_pairs(x, &r, err) || check_vectors(x, &r, err) ||
                 refuse_unread_meta(&r, "adapter.");
    reader_close(&r);
    return status ? -1 : 0;
}

static heads_adapter *adapter_new(const Model *model, Error *err) {
    if (model->file.shape)
        return fail(err, "a shape, which has no weights, takes no adapter"), NULL;
    heads_adapter *x = calloc(1, sizeof *x);
    if (!x) return fail(err, "no memory for an adapter"), NULL;
    x->model = model;
    atomic_init(&x->users, 1);
    return x;
}

heads_adapter *heads_adapter_open(const heads_model *model, const char *path, Error *err) {
    if (need(model, "a model", err) || need(path, "the path of an adapter", err)) return NULL;
    heads_adapter *x = adapter_new(model, err);
    Error why;
    if (!x) return NULL;
    if (map_file(&x->mapped, path, err) == 0) {
        if (parse(x, x->mapped.data, x->mapped.size, &why) == 0) return x;
        fail(err, "%s: %s", path, why.text);
    }
    heads_adapter_close(x);
    return NULL;
}

heads_adapter *heads_adapter_parse(const heads_model *model, const void *bytes, size_t size,
                                   Error *err) {
    if (need(model, "a model", err) || need(bytes, "the bytes of an adapter", err)) return NULL;
    if ((uintptr_t)bytes % 64)
        return fail(err, "an adapter's bytes must begin at a multiple of 64"), NULL;
    heads_adapter *x = adapter_new(model, err);
    if (!x || parse(x, bytes, size, err) == 0) return x;
    heads_adapter_close(x);
    return NULL;
}

