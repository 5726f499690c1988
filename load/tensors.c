// A checkpoint's tensors -> the weights of a Model, each of the shape that the knobs ask for.
#include <stdio.h>
#include <stdlib.h>

#include "load/loader.h"
#include "system/arena.h"

// ---- tensors ----

// The name of a layer's tensor; layer -1: of the model's.
static Name name_of(int layer, const char *stem, const char *suffix) {
    Name name;
    if (layer < 0) snprintf(name.text, sizeof name.text, "%s%s", stem, suffix);
    else snprintf(name.text, sizeof name.text, "layers.%d.%s%s", layer, stem, suffix);
    return name;
}

static int missing(Loader *x, Name name) { return fail(x->err, "tensor %s is missing", name.text); }

// An f32 vector of n; *out stays NULL if the file has none.
static int get_vector(Loader *x, const float **out, Name name, size_t n) {
    const Tensor *t = read_tensor(&x->r, name.text);
    if (!t) return 0;
    *out = (const float *)t->data;
    if (t->dtype == F32 && t->rows == 1 && t->cols == n && t->bytes == sizeof(float) * n) return 0;
    return fail(x->err, "tensor %s: it is %s (%zu, %zu) of %zu bytes, expected f32 (1, %zu)",
                name.text, dtypes[t->dtype].name, t->rows, t->cols, t->bytes, n);
}

static int need_vector(Loader *x, const float **out, int layer, const char *stem, size_t n) {
    Name name = name_of(layer, stem, "");
    if (get_vector(x, out, name, n)) return -1;
    return *out ? 0 : missing(x, name);
}

static int optional_vector(Loader *x, const float **out, int layer, const char *stem, size_t n) {
    return get_vector(x, out, name_of(layer, stem, ""), n);
}

static int get_norm(Loader *x, Norm *out, int layer, const char *stem, int n, bool layernorm) {
    Name w = name_of(layer, stem, ""), b = name_of(layer, stem, ".bias");
    if (get_vector(x, &out->w, w, (size_t)n) || get_vector(x, &out->b, b, (size_t)n)) return -1;
    out->eps = x->m->norm_eps;
    out->layernorm = layernorm;
    if (out->b && !layernorm) return fail(x->err, "tensor %s: an RMSNorm has no bias", b.text);
    return out->b && !out->w ? missing(x, w) : 0;
}

static int optional_norm(Loader *x, Norm *out, int layer, const char *stem, int n) {
    return get_norm(x, out, layer, stem, n, x->m->layernorm);
}

static int need_norm(Loader *x, Norm *out, int layer, const char *stem, int n) {
    if (optional_norm(x, out, layer, stem, n)) return -1;
    return out->w ? 0 : missing(x, name_of(layer, stem, ""));
}

// A norm that is RMSNorm whatever model.norm is.
static int need_rms_norm(Loader *x, Norm *out, int layer, const char *stem, int n) {
    if (get_norm(x, out, layer, stem, n, false)) return -1;
    return out->w ? 0 : missing(x, name_of(layer, stem, ""));
}

size_t matrix_bytes(Dtype dtype, size_t n_out, int n_in) {
    return times(round_up(n_out, LANES) / LANES, panel_bytes(dtype, n_in));
}

// A stack of n matrices; all but the last are padded to whole panels.
static int need_stack(Loader *x, Matrix *out, int layer, const char *stem, int n, int n_out,
                      int n_in) {
    Name name = name_of(layer, stem, "");
    const Tensor *t = read_tensor(&x->r, name.text);
    if (!t) return missing(x, name);
    size_t rows = plus(times((size_t)(n - 1), round_up((size_t)n_out, LANES)), (size_t)n_out);
    if (rows > MAX_DIM)
        return fail(x->err, "tensor %s: %d matrices of %d rows exceed %d", name.text, n, n_out,
                    MAX_DIM);
    size_t bytes = matrix_bytes(t->dtype, rows, n_in);
    if (t->rows != rows || t->cols != (size_t)n_in || t->bytes != bytes)
        return fail(x->err, "tensor %s: it is (%zu, %zu) of %zu bytes, expected (%zu, %d) of %zu",
                    name.text, t->rows, t->cols, t->bytes, rows, n_in, bytes);
    *out = (Matrix){t->data, t->dtype, n_out, n_in, NULL, n};
    return get_vector(x, &out->bias, name_of(layer, stem, ".bias"), rows);
}

static int need_matrix(Loader *x, Matrix *out, int layer, const char *stem, int n_out, int n_in) {
    return need_stack(x, out, layer, stem, 1, n_out, n_in);
}

static int optional_matrix(Loader *x, Matrix *out, int layer, const char *stem, int n_out,
                           int n_in) {
    if (!read_tensor(&x->r, name_of(layer, stem, "").text)) return 0;
    return need_matrix(x, out, layer, stem, n_out, n_in);
}

// A matrix whose rows are looked up: it has no bias.
static int need_table(Loader *x, Matrix *out, const char *name, int n_out, int n_in) {
    if (need_matrix(x, out, -1, name, n_out, n_in)) return -1;
    return out->bias ? fail(x->err, "tensor %s.bias: a table that is looked up has none", name) : 0;
}

// ---- the tensors of a layer ----

// Width of what attention reads: in a nested layer the embedding lies beside the residual stream.
static int attn_width(const Loader *x, int i) {
    return x->m->layers[i].topology == NESTED ? 2 * x->m->n_embd : x->m->n_embd;
}

// The layer's norms that layer.norms lists.
static int get_layer_norms(Loader *x, int i, Layer *l) {
    const struct {
        int bit;
        const char *name;
        Norm *norm;
        int width;
    } norms[] = {
        {PRE_ATTN, "attn_norm", &l->attn_norm, attn_width(x, i)},
        {POST_ATTN, "attn_post_norm", &l->attn_post_norm, x->m->n_embd},
        {PRE_FFN, "ffn_norm", &l->ffn_norm, x->m->n_embd},
        {POST_FFN, "ffn_post_norm", &l->ffn_post_norm, x->m->n_embd},
    };
    for (size_t k = 0; k < sizeof norms / sizeof *norms; k++)
        if (x->new_layers[i].norms & norms[k].bit &&
            need_norm(x, norms[k].norm, i, norms[k].name, norms[k].width))
            return -1;
    return 0;
}

static int get_own_keys(Loader *x, int i, Attention *a, bool all_heads) {
    int kv = a->n_kv_heads * a->head_dim, d = attn_width(x, i);
    return need_matrix(x, &a->k, i, "attn_k", kv, d) || need_matrix(x, &a->v, i, "attn_v", kv, d) ||
           optional_norm(x, &a->k_norm, i, "attn_k_norm", all_heads ? kv : a->head_dim) ||
           optional_norm(x, &a->v_norm, i, "attn_v_norm", a->head_dim);
}

static int get_plain_attention(Loader *x, int i, Attention *a) {
    int q = a->n_heads * a->head_dim, d = attn_width(x, i), n_embd = x->m->n_embd;
    bool all_heads = a->qk_norm == QK_WHOLE || a->qk_norm == QK_DISTINCT;
    const Tensor *gate = checkpoint_tensor(&x->m->file, name_of(i, "attn_gate", "").text);
    int gates = gate && gate->rows == (size_t)a->n_heads ? a->n_heads : q;
    if (a->kv_from < 0 && get_own_keys(x, i, a, all_heads)) return -1;
    return need_matrix(x, &a->q, i, "attn_q", q, d) ||
           need_matrix(x, &a->o, i, "attn_o", n_embd, q) ||
           optional_norm(x, &a->q_norm, i, "attn_q_norm", all_heads ? q : a->head_dim) ||
           optional_norm(x, &a->sub_norm, i, "attn_sub_norm", q) ||
           optional_matrix(x, &a->out_gate, i, "attn_gate", gates, d);
}

static int get_latent_attention(Loader *x, int i, Attention *a) {
    Latent *latent = &a->latent;
    int d = x->m->n_embd, heads = a->n_heads, rank = latent->rank, query_rank = d;
    const Tensor *down = read_tensor(&x->r, name_of(i, "attn_q_down", "").text);
    if (down) {
        query_rank = (int)down->rows;
        if (need_matrix(x, &latent->q_down, i, "attn_q_down", query_rank, d) ||
            need_rms_norm(x, &latent->q_down_norm, i, "attn_q_down_norm", query_rank))
            return -1;
    }
    int q = heads * (latent->n_nope + a->head_dim - rank), n_value = latent->n_value;
    if (need_rms_norm(x, &latent->norm, i, "attn_latent_norm", rank)) return -1;
    latent->norm.eps = latent->q_down_norm.eps = x->latent_eps;
    return need_matrix(x, &a->q, i, "attn_q", q, query_rank) ||
           need_matrix(x, &a->k, i, "attn_k", a->head_dim, d) ||
           need_stack(x, &latent->k_up, i, "attn_k_up", heads, rank, latent->n_nope) ||
           need_stack(x, &latent->v_up, i, "attn_v_up", heads, n_value, rank) ||
           need_matrix(x, &a->o, i, "attn_o", d, heads * n_value);
}

// Biases of scores by distance, -reach..reach, for each head.
static int get_relative(Loader *x, int i, Attention *a) {
    Name name = name_of(i, "attn_relative", "");
    const Tensor *t = checkpoint_tensor(&x->m->file, name.text);
    if (!t) return 0;
    size_t heads = (size_t)a->n_heads, row = t->cols / heads;
    if (t->cols % heads || row % 2 == 0)
        return fail(x->err, "tensor %s: it has %zu numbers, expected an odd number for each of %d "
                    "heads", name.text, t->cols, a->n_heads);
    a->reach = (int)(row / 2);
    return get_vector(x, &a->relative, name, t->cols);
}

// Keys and queries of distances, at least one of them.
static int get_positions(Loader *x, int i, Attention *a) {
    const Ints *rows = &x->m->distances;
    int most = 0;
    if (!rows->n) return 0;
    if (a->n_kv_heads != a->n_heads)
        return fail(x->err, "layer %d: model.distances needs as many KV heads as query heads", i);
    for (size_t k = 0; k < rows->n; k++) most = rows->v[k] > most ? rows->v[k] : most;
    bool keys = read_tensor(&x->r, name_of(i, "attn_pos_k", "").text);
    bool queries = read_tensor(&x->r, name_of(i, "attn_pos_q", "").text);
    return ((keys || !queries) &&
            need_stack(x, &a->pos_k, i, "attn_pos_k", a->n_heads, most + 1, a->head_dim)) ||
           (queries &&
            need_stack(x, &a->pos_q, i, "attn_pos_q", a->n_heads, most + 1, a->head_dim));
}

static int get_attention(Loader *x, int i, Attention *a) {
    return optional_vector(x, &a->sinks, i, "attn_sinks", (size_t)a->n_heads) ||
           optional_vector(x, &a->slopes, i, "attn_slopes", (size_t)a->n_heads) ||
           get_relative(x, i, a) || get_positions(x, i, a) ||
           (a->latent.rank ? get_latent_attention(x, i, a) : get_plain_attention(x, i, a));
}

static int get_cross(Loader *x, int i, Layer *l) {
    Attention *a = &l->cross;
    int q = a->n_heads * a->head_dim, kv = a->n_kv_heads * a->head_dim, d = x->m->n_embd;
    if (!a->n_heads) return 0;
    return need_norm(x, &l->cross_norm, i, "cross_norm", d) ||
           need_matrix(x, &a->q, i, "cross_q", q, d) ||
           need_matrix(x, &a->k, i, "cross_k", kv, d) ||
           need_matrix(x, &a->v, i, "cross_v", kv, d) ||
           need_matrix(x, &a->o, i, "cross_o", d, q);
}

static int get_conv(Loader *x, int i, Conv *conv) {
    size_t n = times((size_t)conv->n_taps, (size_t)conv->n_channels);
    return need_vector(x, &conv->taps, i, "conv", n) ||
           optional_vector(x, &conv->bias, i, "conv.bias", (size_t)conv->n_channels);
}

static int get_shortconv(Loader *x, int i, ShortConv *s) {
    int d = x->m->n_embd;
    return need_matrix(x, &s->in, i, "mix_in", 3 * d, d) || get_conv(x, i, &s->conv) ||
           need_matrix(x, &s->out, i, "mix_out", d, d);
}

// A matrix of y; or of `down` y, if there is a matrix of that name, whose rows are the rank.
static int need_matrix_or_two(Loader *x, Matrix *out, Matrix *down, int i, const char *name,
                              const char *down_name, int n_out) {
    int d = x->m->n_embd;
    const Tensor *t = checkpoint_tensor(&x->m->file, name_of(i, down_name, "").text);
    int rank = t ? (int)t->rows : d;
    return (t && need_matrix(x, down, i, down_name, rank, d)) ||
           need_matrix(x, out, i, name, n_out, rank);
}

static int get_deltanet(Loader *x, int i, DeltaNet *n) {
    int d = x->m->n_embd, heads = n->n_v_heads, width = heads * n->v_dim;
    int decays = heads * n->n_decays;
    float eps = x->new_layers[i].delta_eps;
    if (need_rms_norm(x, &n->norm, i, "delta_norm", n->v_dim)) return -1;
    if (eps >= 0.0f) n->norm.eps = eps;
    return need_matrix(x, &n->in, i, "mix_in", n->conv.n_channels, d) || get_conv(x, i, &n->conv) ||
           need_matrix(x, &n->out, i, "mix_out", d, width) ||
           need_matrix(x, &n->beta, i, "delta_beta", heads, d) ||
           need_matrix_or_two(x, &n->gate, &n->gate_down, i, "delta_gate", "delta_gate_down",
                              width) ||
           need_matrix_or_two(x, &n->decay, &n->decay_down, i, "delta_decay", "delta_decay_down",
                              decays) ||
           need_vector(x, &n->rate, i, "delta_rate", (size_t)decays);
}

static int get_mamba2(Loader *x, int i, Mamba2 *m) {
    int d = x->m->n_embd, heads = m->n_heads, width = heads * m->head_dim;
    return need_matrix(x, &m->in, i, "mix_in", m->conv.n_channels, d) || get_conv(x, i, &m->conv) ||
           need_matrix(x, &m->out, i, "mix_out", d, width) ||
           need_matrix(x, &m->gate, i, "ssm_gate", width, d) ||
           need_matrix(x, &m->step, i, "ssm_step", heads, d) ||
           need_vector(x, &m->rate, i, "ssm_rate", (size_t)heads) ||
           need_vector(x, &m->skip, i, "ssm_skip", (size_t)heads) ||
           get_norm(x, &m->norm, i, "ssm_norm", width, false);
}

// Mamba-1: the columns of ssm_step_up say the rank of its steps.
static int get_mamba1(Loader *x, int i, Mamba1 *m) {
    int d = x->m->n_embd, width = m->width, state = m->d_state;
    float eps = x->new_layers[i].ssm_eps;
    const Tensor *low = read_tensor(&x->r, name_of(i, "ssm_low", "").text);
    const Tensor *up = read_tensor(&x->r, name_of(i, "ssm_step_up", "").text);
    int rank = m->rank = up ? (int)up->cols : 1;
    if (low && up && low->rows != (size_t)rank + 2 * (size_t)state)
        return fail(x->err, "tensor layers.%d.ssm_low: it has %zu rows, expected the %d columns of "
                    "layers.%d.ssm_step_up and twice layer.ssm_state %d", i, low->rows, rank, i,
                    state);
    if (get_norm(x, &m->low_norms[0], i, "ssm_step_norm", rank, false) ||
        get_norm(x, &m->low_norms[1], i, "ssm_b_norm", state, false) ||
        get_norm(x, &m->low_norms[2], i, "ssm_c_norm", state, false))
        return -1;
    for (int k = 0; k < 3 && eps >= 0.0f; k++) m->low_norms[k].eps = eps;
    return need_matrix(x, &m->in, i, "mix_in", width, d) || get_conv(x, i, &m->conv) ||
           need_matrix(x, &m->out, i, "mix_out", d, width) ||
           need_matrix(x, &m->gate, i, "ssm_gate", width, d) ||
           need_matrix(x, &m->low, i, "ssm_low", rank + 2 * state, width) ||
           need_matrix(x, &m->step, i, "ssm_step_up", width, rank) ||
           need_vector(x, &m->rate, i, "ssm_rate", (size_t)state * (size_t)width) ||
           need_vector(x, &m->skip, i, "ssm_skip", (size_t)width);
}

// An RG-LRU: gates by heads.
static int get_rglru(Loader *x, int i, RgLru *m) {
    int d = x->m->n_embd, heads = m->n_heads, dim = m->head_dim, width = heads * dim;
    return need_matrix(x, &m->in, i, "mix_in", width, d) || get_conv(x, i, &m->conv) ||
           need_matrix(x, &m->out, i, "mix_out", d, width) ||
           need_matrix(x, &m->gate, i, "ssm_gate", width, d) ||
           need_stack(x, &m->decay, i, "lru_decay", heads, dim, dim) ||
           need_stack(x, &m->input, i, "lru_input", heads, dim, dim) ||
           need_vector(x, &m->rate, i, "lru_rate", (size_t)width);
}

static int get_mixer(Loader *x, int i, Layer *l) {
    switch (l->mixer) {
    case MIXER_SHORTCONV: return get_shortconv(x, i, &l->shortconv);
    case MIXER_DELTANET: return get_deltanet(x, i, &l->deltanet);
    case MIXER_MAMBA2: return get_mamba2(x, i, &l->mamba2);
    case MIXER_NONE: return 0;
    case MIXER_MAMBA1: return get_mamba1(x, i, &l->mamba1);
    case MIXER_RGLRU: return get_rglru(x, i, &l->rglru);
    default:
        return get_attention(x, i, &l->attention) ||
               (l->mamba2_beside && get_mamba2(x, i, &l->mamba2));
    }
}

// The activation's parameters: xIELU has four, the clamped SwiGLU two, followed by zeros.
static int get_act_params(Loader *x, int i, Layer *l) {
    const float **params = &l->ffn.act.params;
    if (l->ffn.act.kind < N_PLAIN_ACTS) return 0;
    if (need_vector(x, params, i, "ffn_act", 4)) return -1;
    if (!x->m->file.shape && l->ffn.act.kind == ACT_CLAMPED_SWIGLU &&
        ((*params)[2] != 0.0f || (*params)[3] != 0.0f))
        return fail(x->err, "tensor layers.%d.ffn_act: the last two of activation %d are 0", i,
                    l->ffn.act.kind);
    l->experts.act.params = *params;
    return 0;
}

static int get_ffn(Loader *x, int i, Layer *l) {
    Ffn *f = &l->ffn;
    int d = x->m->n_embd;
    if (!f->d_ff) return 0;
    return optional_norm(x, &f->sub_norm, i, "ffn_sub_norm", f->d_ff) ||
           (f->act.gated && need_matrix(x, &f->gate, i, "ffn_gate", f->d_ff, d)) ||
           need_matrix(x, &f->up, i, "ffn_up", f->d_ff, d) ||
           need_matrix(x, &f->down, i, "ffn_down", d, f->d_ff) ||
           (l->experts.n && optional_matrix(x, &f->token_gate, i, "shared_gate", 1, d));
}

static int get_expert_norms(Loader *x, int i, Layer *l) {
    Experts *e = &l->experts;
    int d = x->m->n_embd;
    if (l->topology != SEQUENTIAL || !l->ffn.d_ff) return 0;
    return optional_norm(x, &e->norm, i, "expert_norm", d) ||
           (e->norm.w && (need_norm(x, &e->post_norm, i, "expert_post_norm", d) ||
                          need_norm(x, &e->dense_norm, i, "ffn_beside_norm", d)));
}

static int get_experts(Loader *x, int i, Layer *l) {
    Experts *e = &l->experts;
    int n = e->n, d = x->m->n_embd, width = e->d_expert;
    if (!n) return 0;
    return get_expert_norms(x, i, l) || need_matrix(x, &e->router, i, "router", n, d) ||
           (e->route != ROUTE_SPARSEMIXER &&
            optional_vector(x, &e->selection_bias, i, "selection_bias", (size_t)n)) ||
           (e->act.gated && need_stack(x, &e->gate, i, "expert_gate", n, width, d)) ||
           need_stack(x, &e->up, i, "expert_up", n, width, d) ||
           need_stack(x, &e->down, i, "expert_down", n, d, width);
}

static int get_embed_branch(Loader *x, int i, EmbedBranch *b) {
    int d = x->m->n_embd, width = x->m->layer_embed.width;
    if (!width) return 0;
    return need_matrix(x, &b->gate, i, "ple_gate", width, d) ||
           need_matrix(x, &b->out, i, "ple_out", d, width) ||
           need_norm(x, &b->norm, i, "ple_norm", d);
}

static int get_layer(Loader *x, int i) {
    Layer *l = &x->m->layers[i];
    return get_layer_norms(x, i, l) || get_mixer(x, i, l) || get_cross(x, i, l) ||
           get_act_params(x, i, l) ||
           get_ffn(x, i, l) || get_experts(x, i, l) ||
           get_embed_branch(x, i, &l->embed_branch) ||
           optional_vector(x, &l->out_scale, i, "out_scale", 1);
}

// ---- the tensors of the model ----

// Tensors before and after the layers of an encoder or decoder, except for the embedding. Their
// names begin with `prefix`.
static int get_layer_stack(Loader *x, Tower *s, const char *prefix) {
    Name pos = name_of(-1, prefix, "embed_pos"), embed_norm = name_of(-1, prefix, "embed_norm");
    Name norm = name_of(-1, prefix, "norm");
    int d = x->m->d_embed, rows = x->m->context;
    s->padding = -1;
    if (optional_norm(x, &s->embed_norm, -1, embed_norm.text, d) ||
        optional_norm(x, &s->norm, -1, norm.text, x->m->n_embd))
        return -1;
    if (!read_tensor(&x->r, pos.text)) return 0;
    if ((x->m->encoder || s == &x->m->source) &&
        read_int(&x->r, "model.padding", 0, s->vocab_size - 1, -1, &s->padding))
        return -1;
    if (need_table(x, &s->embed_pos, pos.text, rows + (s->padding >= 0), d)) return -1;
    if (s->embed_pos.dtype == F32) return 0;
    return fail(x->err, "tensor %s is %s, expected f32", pos.text, dtypes[s->embed_pos.dtype].name);
}

// The encoder uses the decoder's embedding, unless the file has one for source tokens.
static int get_source(Loader *x) {
    Model *m = x->m;
    Tower *s = &m->source;
    const Tensor *own = checkpoint_tensor(&m->file, "source_embed");
    s->embed = m->text.embed;
    if (!s->n) return 0;
    if (own) s->vocab_size = (int)own->rows;
    if (own && need_table(x, &s->embed, "source_embed", s->vocab_size, m->n_embd)) return -1;
    return get_layer_stack(x, s, "source_");
}

// Vectors of one kind of token, or of two.
static int get_types(Loader *x) {
    Model *m = x->m;
    const Tensor *t = checkpoint_tensor(&m->file, "embed_type");
    m->n_types = t && t->cols == 2 * (size_t)m->d_embed ? 2 : 1;
    return optional_vector(x, &m->embed_type, -1, "embed_type",
                           (size_t)m->n_types * (size_t)m->d_embed);
}

static int get_embeddings(Loader *x) {
    Model *m = x->m;
    LayerEmbed *e = &m->layer_embed;
    int all = m->n_layers * e->width;
    int d = m->d_embed;
    if (need_table(x, &m->text.embed, "embed", m->vocab_size, d) ||
        get_types(x) ||
        (d == m->n_embd ? optional_matrix : need_matrix)(x, &m->embed_proj, -1, "embed_proj",
                                                         m->n_embd, d) ||
        get_layer_stack(x, &m->text, "") || get_source(x))
        return -1;
    return e->width && (need_table(x, &e->table, "ple_table", m->vocab_size, all) ||
                        need_matrix(x, &e->in, -1, "ple_in", all, m->n_embd) ||
                        need_norm(x, &e->in_norm, -1, "ple_in_norm", e->width));
}

static int get_head(Loader *x) {
    Model *m = x->m;
    int d = m->d_embed, act = 0;
    m->output = m->text.embed;
    if (optional_matrix(x, &m->head.dense, -1, "head_dense", d, m->n_embd) ||
        (m->head.dense.data && (need_norm(x, &m->head.norm, -1, "head_norm", d) ||
                                need_int(&x->r, "model.head_act", 0, N_PLAIN_ACTS - 1, &act))) ||
        optional_matrix(x, &m->output, -1, "output", m->vocab_size, d) ||
        optional_vector(x, &m->output.bias, -1, "output.bias", (size_t)m->vocab_size))
        return -1;
    m->head.act.kind = (Act)act;
    if (!m->head.dense.data && d != m->n_embd)
        return fail(x->err, "model.d_embed is %d and n_embd %d: logits need head_dense", d,
                    m->n_embd);
    return 0;
}

int load_step(Loader *x, HeadStep *step, const char *name, int *width) {
    const Tensor *t = checkpoint_tensor(&x->m->file, name);
    Name norm = name_of(-1, name, ".norm");
    if (!t) return missing(x, name_of(-1, name, ""));
    int n_out = t->rows <= MAX_DIM ? (int)t->rows : 0;
    if (n_out < 1) return fail(x->err, "tensor %s: it has %zu rows", name, t->rows);
    if (need_matrix(x, &step->dense, -1, name, n_out, *width) ||
        get_norm(x, &step->norm, -1, norm.text, n_out, true))
        return -1;
    *width = n_out;
    return 0;
}

// Makes a model of the layers that guess, which are the last ones.
static int get_guess(Loader *x) {
    Model *m = x->m, *g;
    int d = m->n_embd;
    if (!x->n_guess) return 0;
    if (m->text.embed_pos.data || m->embed_proj.data || m->head.dense.data)
        return fail(x->err, "model.guess_layers knows no embed_pos, embed_proj and head_dense");
    if (!(g = m->guess = malloc(sizeof *g))) return fail(x->err, "no memory for a model");
    m->n_layers -= x->n_guess;
    *g = *m;
    g->n_layers = x->n_guess;
    g->widest = d;
    g->layers = m->layers + m->n_layers;
    g->guess = NULL;
    g->embed_type = NULL;
    g->text = (Tower){.n = g->n_layers, .vocab_size = m->vocab_size, .embed = m->text.embed,
                      .padding = -1};
    return need_norm(x, &g->text.embed_norm, -1, "guess_embed_norm", d) ||
           need_norm(x, &g->hidden_norm, -1, "guess_hidden_norm", d) ||
           need_matrix(x, &g->embed_proj, -1, "guess_proj", d, 2 * d) ||
           need_norm(x, &g->text.norm, -1, "guess_norm", d) ||
           optional_matrix(x, &g->text.embed, -1, "guess_embed", m->vocab_size, d) ||
           optional_matrix(x, &g->output, -1, "guess_output", m->vocab_size, d);
}

int load_tensors(Loader *x) {
    Model *m = x->m;
    if (get_embeddings(x) || (x->has_logits && get_head(x))) return -1;
    for (int i = 0; i < m->n_layers; i++)
        if (get_layer(x, i)) return -1;
    return get_guess(x);
}
