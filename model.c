// The decoder, top to bottom: forward(), the steps it is made of, and the session that holds their buffers.
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "session.h"

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

void for_each(Session *s, size_t bytes, int n, void (*work)(void *arg, int item, int thread), void *arg) {
    enum { WORTH_SHARING = 1 << 17 };
    if (bytes >= WORTH_SHARING) parallel_for(s->pool, n, work, arg);
    else
        for (int i = 0; i < n; i++) work(arg, i, 0);
}

// ---- products ------------------------------------------------------------------------------------------------------------

typedef struct {  // several matrices, or stacks of them, times the same rows
    Session *s;
    const Matrix *const *w;
    const Buffer *const *out;
    const Buffer *x;
    const Group *groups;
    int panels_per_item, items_per_group;
    int rows_per_item, n_pieces;  // a group's rows are cut into pieces
    bool bf16, q8;  // forms that some matrix needs
} Product;

static void prepare_row(void *arg, int t, int thread) {
    (void)thread;
    const Product *p = arg;
    const Session *s = p->s;
    int n_in = p->w[0]->n_in;
    size_t block = (size_t)t * blocks_of(n_in);
    if (p->bf16) s->k->to_bf16(s->bf16 + block * BLOCK, row(p->x, t), n_in);
    if (p->q8) s->k->to_q8(s->q8 + block * BLOCK, s->q8_scale + block, s->q8_offset + block,
                            row(p->x, t), n_in, true);
}

// The rows of x from `first` on.
static Rows rows_from(const Product *p, int first) {
    const Session *s = p->s;
    size_t block = (size_t)first * blocks_of(p->w[0]->n_in);
    return (Rows){row(p->x, first), p->x->stride, s->bf16 + block * BLOCK, s->q8 + block * BLOCK, s->q8_scale + block,
                  s->q8_offset + block};
}

static int n_panels(const Matrix *w) { return (w->n_out + LANES - 1) / LANES; }
static int n_items(const Matrix *w, int panels_per_item) { return (n_panels(w) + panels_per_item - 1) / panels_per_item; }

// Item: some panels of one of the matrices, times a piece of the rows of one group.
static void multiply_panels(void *arg, int item, int thread) {
    (void)thread;
    const Product *p = arg;
    const Group *g = &p->groups[item / p->n_pieces / p->items_per_group];
    int i = 0, from = item % p->n_pieces * p->rows_per_item;
    int n_rows = g->n - from < p->rows_per_item ? g->n - from : p->rows_per_item;
    if (n_rows <= 0) return;
    for (item = item / p->n_pieces % p->items_per_group; item >= n_items(p->w[i], p->panels_per_item); i++)
        item -= n_items(p->w[i], p->panels_per_item);
    const Matrix *w = p->w[i];
    const Buffer *out = p->out[i];
    int first = item * p->panels_per_item,
        n = n_panels(w) - first < p->panels_per_item ? n_panels(w) - first : p->panels_per_item;
    size_t bytes = panel_bytes(w->dtype, w->n_in), panel = (size_t)g->which * (size_t)n_panels(w) + (size_t)first;
    Rows rows = rows_from(p, g->first + from);
    p->s->k->matmul[w->dtype](row(out, g->first + from) + first * LANES, out->stride, w->data + panel * bytes, bytes, n,
                              w->n_in, &rows, n_rows, 0);
    if (!w->bias) return;
    int begin = first * LANES, end = begin + n * LANES < w->n_out ? begin + n * LANES : w->n_out;
    for (int t = 0; t < n_rows; t++)
        p->s->k->add(row(out, g->first + from + t) + begin, w->bias + panel * LANES, end - begin);
}

// Cuts the rows of a product, of which the largest group has `most`, so that those of an item stay in the second-level cache
// while its panels pass; and further, down to FEWEST rows, where the threads would have too little to share.
static void cut_rows(Product *p, int most, int n_items) {
    enum { CACHED = 1 << 18, FEWEST = 64 };
    int row_bytes = p->w[0]->n_in * (p->q8 ? 1 : p->bf16 ? 2 : 4), rows = CACHED / row_bytes;
    p->n_pieces = (most + FEWEST - 1) / (rows > FEWEST ? rows : FEWEST);
    if (p->n_pieces * n_items < 8 * pool_threads(p->s->pool)) p->n_pieces = 8 * pool_threads(p->s->pool) / n_items;
    if (p->n_pieces > most / FEWEST) p->n_pieces = most / FEWEST;
    if (p->n_pieces < 1) p->n_pieces = 1;
    p->rows_per_item = (most + p->n_pieces - 1) / p->n_pieces;
}

void multiply_groups(Session *s, const Matrix *const *w, const Buffer *const *out, int n_matrices, const Buffer *x,
                     int n_rows, const Group *groups, int n_groups) {
    Product p = {.s = s, .w = w, .out = out, .x = x, .groups = groups};
    int total = 0, most = 0;
    size_t bytes = 0;  // of weights, for each row
    for (int i = 0; i < n_matrices; i++) {
        p.bf16 |= w[i]->dtype == BF16;
        p.q8 |= w[i]->dtype == Q8 || w[i]->dtype == Q4;
        total += n_panels(w[i]) * n_groups;
        bytes += (size_t)n_panels(w[i]) * panel_bytes(w[i]->dtype, w[i]->n_in);
    }
    for (int i = 0; i < n_groups; i++) most = groups[i].n > most ? groups[i].n : most;
    if (p.bf16 || p.q8) parallel_for(s->pool, n_rows, prepare_row, &p);
    // Enough items for the threads to share evenly, each large enough to be worth a claim; kernels like multiples of 4.
    int share = total / (8 * pool_threads(s->pool)) / 4 * 4;
    p.panels_per_item = share < 4 ? 4 : share > 16 ? 16 : share;
    for (int i = 0; i < n_matrices; i++) p.items_per_group += n_items(w[i], p.panels_per_item);
    cut_rows(&p, most, p.items_per_group * n_groups);
    for_each(s, bytes * (size_t)n_rows, p.items_per_group * n_groups * p.n_pieces, multiply_panels, &p);
}

void multiply(Session *s, const Matrix *const *w, const Buffer *const *out, int n_matrices, const Buffer *x, int n) {
    multiply_groups(s, w, out, n_matrices, x, n, &(Group){.n = n}, 1);
}

// ---- the rest of a layer, token by token ---------------------------------------------------------------------------------

typedef struct {
    Session *s;
    const Layer *layer;
    const Norm *norm;
    const Buffer *in, *out;    // of the norm, and their width
    const Buffer *gate, *up;   // of the activation, likewise
    const int *tokens;
    int first, width;
} Tokens;

// Block b of row `lane` of a q8 or q4 panel, turned back.
static void unpack_block(const Session *s, const Matrix *w, const uint8_t *panel, size_t lane, size_t b, float *out) {
    size_t n_blocks = blocks_of(w->n_in), block_bytes = w->dtype == Q8 ? 512 : 256;
    float scale = f16_to_f32(((const uint16_t *)(panel + n_blocks * block_bytes))[b * LANES + lane]) * TURNED_X;
    const uint8_t *q = panel + b * block_bytes;
    for (size_t k = 0; k < BLOCK; k++) {
        size_t byte = k / 4 * 64 + lane * 4 + k % 4;
        uint8_t codes = w->dtype == Q4 ? q[byte / 128 * 64 + byte % 64] : 0;
        out[k] = scale * (float)(w->dtype == Q8 ? q[byte] - 128 : Q4_CODES[byte % 128 < 64 ? codes & 15 : codes >> 4]);
    }
    s->k->turn(out, out);
}

// Row r of a matrix in panels, as f32.
static void unpack_row(const Session *s, const Matrix *w, int r, float *out) {
    const uint8_t *panel = w->data + (size_t)(r / LANES) * panel_bytes(w->dtype, w->n_in);
    size_t lane = (size_t)(r % LANES), n_in = (size_t)w->n_in;
    if (w->dtype == F32)
        for (size_t k = 0; k < n_in; k++) out[k] = ((const float *)panel)[k * LANES + lane];
    else if (w->dtype == BF16)
        for (size_t k = 0; k < n_in; k++)
            out[k] = bf16_to_f32(((const uint16_t *)panel)[k / 2 * 2 * LANES + 2 * lane + k % 2]);
    else
        for (size_t k = 0; k < n_in; k += BLOCK) {
            float block[BLOCK];
            unpack_block(s, w, panel, lane, k / BLOCK, block);
            memcpy(out + k, block, sizeof *out * (n_in - k < BLOCK ? n_in - k : BLOCK));
        }
}

void norm_row(const Session *s, const Norm *norm, float *out, const float *x, int n) {
    if (s->model->layernorm) s->k->layernorm(out, x, norm->w, norm->b, n, s->model->norm_eps);
    else s->k->rmsnorm(out, x, norm->w, n, s->model->norm_eps);
}

// x = embedding, times its scale, plus the learned position, normalised; and the cosines and sines of the position.
static void embed_token(void *arg, int t, int thread) {
    (void)thread;
    const Tokens *a = arg;
    Session *s = a->s;
    const Model *m = s->model;
    float *x = row(&s->x, t), pos = (float)(s->position + t);
    unpack_row(s, &m->embed, a->tokens[t], x);
    if (m->emb_scale != 1.0f) s->k->scale(x, m->emb_scale, m->n_embd);
    if (m->embed_pos.data) {
        unpack_row(s, &m->embed_pos, s->position + t, row(&s->y, t));
        s->k->add(x, row(&s->y, t), m->n_embd);
    }
    if (m->embed_norm.w) norm_row(s, &m->embed_norm, x, x, m->n_embd);
    for (int i = 0; i < m->n_rope_sets; i++) {
        const RopeSet *r = &m->rope[i];
        bool is_long = r->long_freq && s->length > r->length;
        const float *freq = is_long ? r->long_freq : r->inv_freq;
        float *angle = row(&s->cos[i], t);
        for (int j = 0; j < r->n_pairs; j++) angle[j] = pos * freq[j];
        s->k->sincos(angle, row(&s->sin[i], t), angle, is_long ? r->long_multiplier : r->multiplier, r->n_pairs);
    }
}

static void norm_token(void *arg, int t, int thread) {
    (void)thread;
    const Tokens *a = arg;
    norm_row(a->s, a->norm, row(a->out, t), row(a->in, a->first + t), a->width);
}

static void activate_token(void *arg, int t, int thread) {
    (void)thread;
    const Tokens *a = arg;
    const Kernels *k = a->s->k;
    const Layer *l = a->layer;
    Act act = (Act)l->act;
    float *gate = row(a->gate, t), *up = row(a->up, t);
    if (act == ACT_CLAMPED_SWIGLU) k->clamped_swiglu(gate, up, l->act_params[0], l->act_params[1], a->width);
    else if (act == ACT_XIELU) k->xielu(up, l->act_params, a->width);
    else if (l->gated) k->act_mul(gate, up, act, a->width);
    else k->act(up, act, a->width);
}

void activate(Session *s, const Layer *l, const Buffer *gate, const Buffer *up, int width, int n) {
    parallel_for(s->pool, n, activate_token, &(Tokens){.s = s, .layer = l, .gate = gate, .up = up, .width = width});
}

// att *= sigmoid(attn_gate), which has a number an element, or a number a head
static void gate_token(void *arg, int t, int thread) {
    (void)thread;
    const Tokens *a = arg;
    const Session *s = a->s;
    float *gate = row(&s->attn_gate, t), *att = row(&s->att, t);
    int n = a->layer->attn_gate.n_out, each = a->layer->n_heads * a->layer->head_dim / n;
    s->k->act(gate, ACT_SIGMOID, n);
    for (int i = 0; i < n && each > 1; i++) s->k->scale(att + (size_t)i * (size_t)each, gate[i], each);
    for (int i = 0; i < n && each == 1; i++) att[i] *= gate[i];
}

// out *= sigmoid(gate), one number a token
static void weigh_token(void *arg, int t, int thread) {
    (void)thread;
    const Tokens *a = arg;
    float *gate = row(a->gate, t);
    a->s->k->act(gate, ACT_SIGMOID, 1);
    a->s->k->scale(row(a->out, t), *gate, a->width);
}

// x += residual_scale * out
static void add_token(void *arg, int t, int thread) {
    (void)thread;
    const Tokens *a = arg;
    a->s->k->axpby(row(&a->s->x, t), 1.0f, row(&a->s->out, t), a->layer->residual_scale, a->s->model->n_embd);
}

// out = norm(in), for n tokens, in's from `first` on; out may be in
static void normalise(Session *s, const Norm *norm, const Buffer *in, const Buffer *out, int width, int first, int n) {
    parallel_for(s->pool, n, norm_token,
                 &(Tokens){.s = s, .norm = norm, .in = in, .out = out, .width = width, .first = first});
}

// What a branch reads: y = norm(x), or x itself where there is no norm
static const Buffer *branch_input(Session *s, const Norm *norm, int n) {
    if (!norm->w) return &s->x;
    normalise(s, norm, &s->x, &s->y, s->model->n_embd, 0, n);
    return &s->y;
}

// x += residual_scale * norm(out)
static void add_branch(Session *s, const Layer *l, const Norm *post_norm, int n) {
    if (post_norm->w) normalise(s, post_norm, &s->out, &s->out, s->model->n_embd, 0, n);
    parallel_for(s->pool, n, add_token, &(Tokens){.s = s, .layer = l});
}

// Queries, and the gate of the output, keys and values where the layer has its own
static void project_heads(Session *s, const Layer *l, const Buffer *y, int n) {
    const Matrix *w[4] = {&l->q};
    const Buffer *out[4] = {&s->q};
    int n_matrices = 1;
    if (l->kv_source < 0) {
        w[1] = &l->k, out[1] = &s->keys;
        w[2] = &l->v, out[2] = &s->values;
        n_matrices = 3;
    }
    if (l->attn_gate.data) w[n_matrices] = &l->attn_gate, out[n_matrices++] = &s->attn_gate;
    multiply(s, w, out, n_matrices, y, n);
}

// out = attention of y
static void attention_branch(Session *s, int i, const Buffer *y, int n) {
    const Layer *l = &s->model->layers[i];
    int width = l->n_heads * (l->latent ? l->n_value : l->head_dim);
    if (l->latent) mla_project(s, i, y, n);
    else project_heads(s, l, y, n);
    attention(s, i, n);
    if (l->latent) mla_values(s, i, n);
    if (l->attn_gate.data) parallel_for(s->pool, n, gate_token, &(Tokens){.s = s, .layer = l});
    if (l->attn_sub_norm.w) normalise(s, &l->attn_sub_norm, &s->att, &s->att, width, 0, n);
    multiply(s, (const Matrix *[]){&l->o}, (const Buffer *[]){&s->out}, 1, &s->att, n);
}

// out = the layer's mixer of y
static void mixer_branch(Session *s, int i, const Buffer *y, int n) {
    switch (s->model->layers[i].mixer) {
    case MIXER_SHORTCONV: shortconv(s, i, y, n); break;
    case MIXER_DELTANET: deltanet(s, i, y, n); break;
    default: attention_branch(s, i, y, n);
    }
}

// out = down(act(gate y) * up y)
static void feed_forward(Session *s, const Layer *l, const Buffer *y, int n) {
    const Buffer *hidden = l->gated ? &s->gate : &s->up;
    multiply(s, (const Matrix *[]){&l->up, &l->gate}, (const Buffer *[]){&s->up, &s->gate}, l->gated ? 2 : 1, y, n);
    activate(s, l, &s->gate, &s->up, l->d_ff, n);
    if (l->ffn_sub_norm.w) normalise(s, &l->ffn_sub_norm, hidden, hidden, l->d_ff, 0, n);
    multiply(s, (const Matrix *[]){&l->down}, (const Buffer *[]){&s->out}, 1, hidden, n);
    if (!l->shared_gate.data) return;
    multiply(s, (const Matrix *[]){&l->shared_gate}, (const Buffer *[]){&s->gate}, 1, y, n);
    parallel_for(s->pool, n, weigh_token, &(Tokens){.s = s, .gate = &s->gate, .out = &s->out, .width = s->model->n_embd});
}

// out = feed-forward of y that all tokens pass, plus the experts that each chooses
static void ffn_branch(Session *s, int i, const Buffer *y, int n) {
    const Layer *l = &s->model->layers[i];
    if (l->d_ff) feed_forward(s, l, y, n);
    else memset(s->out.data, 0, sizeof *s->out.data * s->out.stride * (size_t)n);
    if (l->n_experts) experts(s, i, y, n);
}

// ---- per-layer embeddings: what a token has for each layer besides its place in the residual stream

static void ple_token(void *arg, int t, int thread) {
    const Tokens *a = arg;
    const Session *s = a->s;
    const Model *m = s->model;
    float *p = row(&s->ple, t), *looked_up = row(&s->ple, s->chunk + thread);
    s->k->scale(p, 1.0f / sqrtf((float)m->n_embd), a->width);
    for (int i = 0; i < m->n_layers; i++) norm_row(s, &m->ple_in_norm, p + i * m->ple, p + i * m->ple, m->ple);
    unpack_row(s, &m->ple_table, a->tokens[t], looked_up);
    s->k->axpby(p, sqrtf(0.5f), looked_up, sqrtf(0.5f * (float)m->ple), a->width);
}

static void gate_ple_token(void *arg, int t, int thread) {
    (void)thread;
    const Tokens *a = arg;
    const Session *s = a->s;
    s->k->act_mul(row(&s->ple_gate, t), row(&s->ple, t) + a->first, (Act)a->layer->act, s->model->ple);
}

static void scale_token(void *arg, int t, int thread) {
    (void)thread;
    const Tokens *a = arg;
    a->s->k->scale(row(&a->s->x, t), *a->layer->out_scale, a->s->model->n_embd);
}

// ple = (norm(ple_in x / sqrt(n_embd)) + sqrt(ple) table[token]) / sqrt(2), layer by layer
static void embed_per_layer(Session *s, const int *tokens, int n) {
    const Model *m = s->model;
    multiply(s, (const Matrix *[]){&m->ple_in}, (const Buffer *[]){&s->ple}, 1, &s->x, n);
    parallel_for(s->pool, n, ple_token, &(Tokens){.s = s, .tokens = tokens, .width = m->n_layers * m->ple});
}

// out = ple_out(act(ple_gate x) * ple)
static void ple_branch(Session *s, int i, int n) {
    const Layer *l = &s->model->layers[i];
    multiply(s, (const Matrix *[]){&l->ple_gate}, (const Buffer *[]){&s->ple_gate}, 1, &s->x, n);
    parallel_for(s->pool, n, gate_ple_token, &(Tokens){.s = s, .layer = l, .first = i * s->model->ple});
    multiply(s, (const Matrix *[]){&l->ple_out}, (const Buffer *[]){&s->out}, 1, &s->ple_gate, n);
}

// One item: the softcap of some columns of a row of logits.
enum { CAP_COLUMNS = 8192 };

static void cap_logits(void *arg, int item, int thread) {
    (void)thread;
    const Tokens *a = arg;
    int slices = (a->width + CAP_COLUMNS - 1) / CAP_COLUMNS, from = item % slices * CAP_COLUMNS;
    int n = a->width - from < CAP_COLUMNS ? a->width - from : CAP_COLUMNS;
    a->s->k->softcap(row(a->out, item / slices) + from, a->s->model->final_softcap, n);
}

// ---- forward -------------------------------------------------------------------------------------------------------------

// One pass over n <= chunk tokens; the logits of the last n_logits of them go to rows of s->logits from logit_row on.
static void pass(Session *s, const int *tokens, int n, int n_logits, int logit_row) {
    const Model *m = s->model;
    parallel_for(s->pool, n, embed_token, &(Tokens){.s = s, .tokens = tokens});
    if (m->ple) embed_per_layer(s, tokens, n);
    for (int i = 0; i < m->n_layers; i++) {
        const Layer *l = &m->layers[i];
        const Buffer *y = branch_input(s, &l->attn_norm, n);
        mixer_branch(s, i, y, n);
        if (l->topology == SEQUENTIAL) add_branch(s, l, &l->attn_post_norm, n);
        if (l->topology == SEQUENTIAL || l->ffn_norm.w) y = branch_input(s, &l->ffn_norm, n);
        if (l->topology == PARALLEL) add_branch(s, l, &l->attn_post_norm, n);
        ffn_branch(s, i, y, n);
        add_branch(s, l, &l->ffn_post_norm, n);
        if (m->ple) {
            ple_branch(s, i, n);
            add_branch(s, l, &l->ple_norm, n);
        }
        if (l->out_scale) parallel_for(s->pool, n, scale_token, &(Tokens){.s = s, .layer = l});
    }
    s->position += n;
    if (!n_logits) return;
    normalise(s, &m->norm, &s->x, &s->y, m->n_embd, n - n_logits, n_logits);
    Buffer logits = {row(&s->logits, logit_row), s->logits.stride};
    multiply(s, (const Matrix *[]){&m->output}, (const Buffer *[]){&logits}, 1, &s->y, n_logits);
    if (m->final_softcap > 0.0f)
        parallel_for(s->pool, n_logits * ((m->vocab_size + CAP_COLUMNS - 1) / CAP_COLUMNS), cap_logits,
                     &(Tokens){.s = s, .out = &logits, .width = m->vocab_size});
}

// Whether a text of `length` tokens is turned by other tables of rope than one of `old`.
static bool turns_otherwise(const Model *m, int old, int length) {
    for (int i = 0; i < m->n_rope_sets; i++)
        if (m->rope[i].long_freq && old <= m->rope[i].length && length > m->rope[i].length) return true;
    return false;
}

void session_expect(Session *s, int n) {
    if (n <= s->length) return;
    bool again = turns_otherwise(s->model, s->length, n);
    s->length = n;
    if (!again) return;
    int done = s->position;
    kv_clear(s);
    for (int i = 0; i < done; i += s->chunk) pass(s, s->history + i, done - i < s->chunk ? done - i : s->chunk, 0, 0);
}

const float *forward(Session *s, const int *tokens, int n, int n_logits, Error *err) {
    const Model *m = s->model;
    if (n < 1 || n_logits < 0 || n_logits > n || n_logits > s->logit_rows) {
        fail(err, "%d tokens with %d rows of logits asked for, the session was made for 1 token or more and at most %d rows",
             n, n_logits, s->logit_rows);
        return NULL;
    }
    if (n > s->context - s->position) {
        fail(err, "%d tokens after %d do not fit into a context of %d; raise -c or shorten the prompt", n, s->position,
             s->context);
        return NULL;
    }
    for (int i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= m->vocab_size) {
            fail(err, "token %d is %d, the vocabulary has 0..%d", i, tokens[i], m->vocab_size - 1);
            return NULL;
        }
    session_expect(s, s->position + n);
    if (s->history) memcpy(s->history + s->position, tokens, sizeof *tokens * (size_t)n);
    for (int done = 0, k; done < n; done += k) {
        k = n - done < s->chunk ? n - done : s->chunk;
        int first = n - n_logits > done ? n - n_logits : done;  // the first token of this pass that needs logits
        int wanted = done + k > first ? done + k - first : 0;
        pass(s, tokens + done, k, wanted, first - (n - n_logits));
    }
    return s->logits.data;
}

// ---- the session ---------------------------------------------------------------------------------------------------------

// Room for count items of that size, padded to 64 bytes; NULL while s->arena is, which only adds up in *used.
void *arena_take(Session *s, size_t *used, size_t count, size_t size) {
    void *p = s->arena ? s->arena + *used : NULL;
    *used += round_up(count * size, 64);
    return p;
}

static Buffer buffer(Session *s, size_t *used, int n_rows, int width) {
    size_t stride = round_up((size_t)width, LANES);
    return (Buffer){arena_take(s, used, (size_t)n_rows * stride, sizeof(float)), stride};
}

// The widest rows of any layer, and how many a token makes of them.
typedef struct {
    int q, kv, att, gate, ff, in;  // in: of any product, a row a token
    int experts, top_k, expert;    // rows by expert
    int heads, head_in, head_out, projected, q_down;  // rows by head, of latent attention
    int mix_in, conv, taps, delta, delta_heads;
} Widths;

static void widen(int *width, int n) { *width = n > *width ? n : *width; }

static Widths widths(const Model *m) {
    Widths w = {.in = m->n_embd, .taps = 1};
    for (int i = 0; i < m->n_layers; i++) {
        const Layer *l = &m->layers[i];
        widen(&w.ff, l->d_ff);
        widen(&w.experts, l->n_experts);
        widen(&w.top_k, l->top_k);
        widen(&w.expert, l->d_expert);
        if (l->mixer == MIXER_ATTENTION) {
            widen(&w.q, l->n_heads * l->head_dim);
            widen(&w.kv, l->n_kv_heads * l->head_dim);
            widen(&w.att, l->n_heads * (l->n_value > l->head_dim ? l->n_value : l->head_dim));
            widen(&w.gate, l->attn_gate.n_out);
        }
        if (l->latent) {
            widen(&w.heads, l->n_heads);
            widen(&w.head_in, l->n_nope > l->latent ? l->n_nope : l->latent);
            widen(&w.head_out, l->n_value > l->latent ? l->n_value : l->latent);
            widen(&w.projected, l->q.n_out);
            widen(&w.q_down, l->q_down.n_out);
        }
        widen(&w.mix_in, l->mix_in.n_out);
        widen(&w.conv, l->n_channels);
        widen(&w.taps, l->n_taps);
        widen(&w.delta, l->n_v_heads * l->v_dim);
        widen(&w.delta_heads, l->n_v_heads);
    }
    widen(&w.att, w.conv > w.delta ? w.conv : w.delta);
    widen(&w.in, w.att > w.ff ? w.att : w.ff);
    widen(&w.in, w.q_down);
    widen(&w.in, m->ple);
    return w;
}

// Lays out every buffer. Called twice: to add up, and to hand out.
static size_t lay_out(Session *s) {
    const Model *m = s->model;
    const Widths w = widths(m);
    size_t used = 0, chunk = (size_t)s->chunk;
    s->x = buffer(s, &used, s->chunk, m->n_embd);
    s->y = buffer(s, &used, s->chunk, m->n_embd);
    s->out = buffer(s, &used, s->chunk, m->n_embd);
    s->ple = buffer(s, &used, m->ple ? s->chunk + pool_threads(s->pool) : 0, m->n_layers * m->ple);  // and a row a thread
    s->ple_gate = buffer(s, &used, s->chunk, m->ple);
    s->q = buffer(s, &used, s->chunk, w.q);
    s->att = buffer(s, &used, s->chunk, w.att);
    s->attn_gate = buffer(s, &used, s->chunk, w.gate);
    s->keys = buffer(s, &used, s->chunk, w.kv);
    s->values = buffer(s, &used, s->chunk, w.kv);
    s->gate = buffer(s, &used, s->chunk, w.ff);
    s->up = buffer(s, &used, s->chunk, w.ff);
    s->scores = buffer(s, &used, s->chunk, w.experts);
    s->selection = buffer(s, &used, s->chunk, w.experts);
    s->choices = arena_take(s, &used, chunk * (size_t)w.top_k, sizeof *s->choices);
    s->groups = arena_take(s, &used, (size_t)(w.experts > w.heads ? w.experts : w.heads), sizeof *s->groups);
    s->by_expert = buffer(s, &used, s->chunk * w.top_k, m->n_embd);
    s->expert_gate = buffer(s, &used, s->chunk * w.top_k, w.expert);
    s->expert_up = buffer(s, &used, s->chunk * w.top_k, w.expert);
    s->projected = buffer(s, &used, s->chunk, w.projected);
    s->q_down = buffer(s, &used, s->chunk, w.q_down);
    s->head_in = buffer(s, &used, s->chunk * w.heads, w.head_in);
    s->head_out = buffer(s, &used, s->chunk * w.heads, w.head_out);
    s->mix_in = buffer(s, &used, s->chunk, w.mix_in);
    s->conv = buffer(s, &used, s->chunk + w.taps - 1, w.conv);
    s->delta_gate = buffer(s, &used, s->chunk, w.delta);
    s->beta = buffer(s, &used, s->chunk, w.delta_heads);
    s->decay = buffer(s, &used, s->chunk, w.delta_heads);
    s->logits = buffer(s, &used, s->logit_rows, m->vocab_size);
    for (int i = 0; i < m->n_rope_sets; i++) {
        s->cos[i] = buffer(s, &used, s->chunk, m->rope[i].n_pairs);
        s->sin[i] = buffer(s, &used, s->chunk, m->rope[i].n_pairs);
    }
    size_t n_blocks = chunk * blocks_of(w.in), rows = chunk * (size_t)w.top_k;
    size_t by_expert = rows * blocks_of(m->n_embd > w.expert ? m->n_embd : w.expert);
    size_t by_head = chunk * (size_t)w.heads * blocks_of(w.head_in);
    if (by_expert > n_blocks) n_blocks = by_expert;
    if (by_head > n_blocks) n_blocks = by_head;
    s->bf16 = arena_take(s, &used, n_blocks * BLOCK, sizeof *s->bf16);
    s->q8 = arena_take(s, &used, n_blocks * BLOCK, sizeof *s->q8);
    s->q8_scale = arena_take(s, &used, n_blocks, sizeof *s->q8_scale);
    s->q8_offset = arena_take(s, &used, n_blocks, sizeof *s->q8_offset);
    s->history = turns_otherwise(m, 0, s->context) ? arena_take(s, &used, (size_t)s->context, sizeof *s->history) : NULL;
    attention_scratch(s, &used);
    return used;
}

static int make_arena(Session *s, Error *err) {
    s->scratch = calloc((size_t)pool_threads(s->pool), sizeof *s->scratch);
    s->arena_bytes = lay_out(s);
    void *arena = mmap(NULL, s->arena_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (arena == MAP_FAILED || !s->scratch)
        return fail(err, "cannot reserve %zu bytes for the activations of %d tokens; choose fewer with -b", s->arena_bytes,
                    s->chunk);
    s->arena = arena;
    lay_out(s);
    return 0;
}

static int check_options(const Model *m, const SessionOptions *o, Error *err) {
    if (o->context < 0 || o->context > 1 << 30) return fail(err, "context is %d, expected 1..%d", o->context, 1 << 30);
    if (m->embed_pos.data && o->context > m->context)
        return fail(err, "context is %d, but the model has learned positions for %d tokens only", o->context, m->context);
    if (o->chunk < 1 || o->chunk > 1 << 16) return fail(err, "chunk is %d, expected 1..%d", o->chunk, 1 << 16);
    if (o->n_threads < 0 || o->n_threads > 1024) return fail(err, "threads are %d, expected 1..1024", o->n_threads);
    if (o->logit_rows < 0 || o->logit_rows > 1 << 16)
        return fail(err, "rows of logits are %d, expected 0..%d", o->logit_rows, 1 << 16);
    for (int i = 0; i < 2; i++) {
        Dtype d = i ? o->v_dtype : o->k_dtype;
        if (d != F32 && d != F16 && d != Q8) return fail(err, "the KV cache holds f32, f16 or q8, not %s", dtype_name(d));
    }
    return 0;
}

Session *session_new(const Model *model, const SessionOptions *o, Error *err) {
    if (check_options(model, o, err)) return NULL;
    Session *s = calloc(1, sizeof *s);
    if (!s) {
        fail(err, "no memory for a session");
        return NULL;
    }
    s->model = model;
    s->context = o->context ? o->context : model->context;
    s->chunk = o->chunk < s->context ? o->chunk : s->context;
    s->logit_rows = o->logit_rows;
    s->k_dtype = o->k_dtype;
    s->v_dtype = o->v_dtype;
    const char *isa = getenv("HEADS_ISA");
    s->k = kernels_choose(isa, &s->why);
    int status = s->k ? 0 : fail(err, "HEADS_ISA=%s: %s", isa, s->why);
    if (!status && !(s->pool = pool_new(o->n_threads ? o->n_threads : physical_cores(), err))) status = -1;
    if (status || kv_new(s, err) || make_arena(s, err)) {
        session_free(s);
        return NULL;
    }
    return s;
}

void session_free(Session *s) {
    if (!s) return;
    if (s->arena) munmap(s->arena, s->arena_bytes);
    kv_free(&s->kv);
    pool_free(s->pool);
    free(s->scratch);
    free(s);
}

size_t session_logit_stride(const Session *s) { return s->logits.stride; }
int session_position(const Session *s) { return s->position; }
int session_context(const Session *s) { return s->context; }
int session_threads(const Session *s) { return pool_threads(s->pool); }

const char *session_isa(const Session *s, const char **why) {
    *why = s->why;
    return s->k->name;
}

void session_reset(Session *s) {
    kv_clear(s);
    s->length = 0;
}
