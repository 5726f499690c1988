// What attention a layer has, for --info.
#include "layers/attention_tiles.h"

const char *attention_name(int n_heads, int n_kv_heads) {
    return n_kv_heads == n_heads ? "MHA" : n_kv_heads == 1 ? "MQA" : "GQA";
}

static void describe_heads(const Attention *a, char *text, size_t size) {
    int rope_dim = a->head_dim - a->latent.rank;
    if (a->latent.rank)
        text_append(text, size, "%d query heads of %d + %d over a latent of %d + %d (MLA), values "
                    "of %d", a->n_heads, a->latent.n_nope, rope_dim, a->latent.rank, rope_dim,
                    a->latent.n_value);
    else
        text_append(text, size, "%d query heads, %d KV heads (%s), head_dim %d", a->n_heads,
                    a->n_kv_heads, attention_name(a->n_heads, a->n_kv_heads), a->head_dim);
}

void describe_attention(const Layer *l, char *text, size_t size) {
    const Attention *a = &l->attention;
    *text = 0;
    describe_heads(a, text, size);
    text_append(text, size, ", attention scale %g", (double)a->scale);
    if (a->q_norm.w) text_append(text, size, ", q and k normalised");
    if (a->q_norm.w && a->qk_norm == QK_WHOLE) text_append(text, size, " as wholes");
    if (a->softcap > 0) text_append(text, size, ", softcap %g", (double)a->softcap);
    if (a->clip > 0) text_append(text, size, ", clip %g", (double)a->clip);
    if (a->sinks) text_append(text, size, ", sinks");
    if (a->slopes) text_append(text, size, ", ALiBi");
    if (a->out_gate.data) text_append(text, size, ", output gated");
    if (a->rope >= 0) text_append(text, size, ", rope set %d", a->rope);
    if (a->relative) text_append(text, size, ", biases of distances up to %d", a->reach);
    if (a->pos_k.data || a->pos_q.data) text_append(text, size, ", disentangled");
    const char *seen = a->chunked ? "chunks of" : "window";
    if (a->window > 0) text_append(text, size, ", %s %d", seen, a->window);
    if (a->mask == MASK_ALL) text_append(text, size, ", to both sides");
    if (a->kv_from >= 0) text_append(text, size, ", keys and values of layer %d", a->kv_from);
}
