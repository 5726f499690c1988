// report.c: --info says what a checkpoint holds; --kv says what its KV cache costs, and what it would cost as MHA, with
// fewer KV heads, and as MLA. The report and the cache's allocator share kv_plan(), and a session is measured beside it.
#include "report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/unicode.h"

const char *commas(size_t n) {
    static char buffers[8][32];
    static int next;
    char *end = buffers[next = (next + 1) % 8] + sizeof buffers[0], *p = end;
    *--p = 0;
    for (int digits = 0; digits == 0 || n > 0; digits++, n /= 10) {
        if (digits > 0 && digits % 3 == 0) *--p = ',';
        *--p = (char)('0' + n % 10);
    }
    return p;
}

size_t utf8_char(const char *text, size_t len) {
    uint32_t c;
    bool whole;
    if (len == 0) return 0;
    size_t n = utf8_decode((const uint8_t *)text, len, &c, &whole);
    bool written_out = n == 3 && (uint8_t)text[0] == 0xEF;  // U+FFFD itself, not what stands for bad bytes
    return c != REPLACEMENT || written_out ? n : 0;
}

// Text from a file, safe to show: control characters escaped as in JSON, bytes that are no UTF-8 replaced.
static void print_escaped(const char *text, size_t len) {
    for (size_t i = 0; i < len;) {
        size_t n = utf8_char(text + i, len - i);
        unsigned char c = (unsigned char)text[i];
        if (n == 0) {
            printf("\xEF\xBF\xBD");
            n = 1;
        } else if (c < 0x20 || c == 0x7F) {
            printf("\\u%04x", c);
        } else if (c == '"' || c == '\\') {
            printf("\\%c", c);
        } else {
            fwrite(text + i, 1, n, stdout);
        }
        i += n;
    }
}

// ---- --info -------------------------------------------------------------------------------------------------------------

static const char *attention_name(int n_heads, int n_kv_heads) {
    return n_kv_heads == n_heads ? "MHA" : n_kv_heads == 1 ? "MQA" : "GQA";
}

static bool same_shape(const Layer *a, const Layer *b) {
    return a->n_heads == b->n_heads && a->n_kv_heads == b->n_kv_heads && a->head_dim == b->head_dim && a->d_ff == b->d_ff &&
           a->rope == b->rope && a->window == b->window && a->attn_scale == b->attn_scale && a->topology == b->topology &&
           a->act == b->act && a->mixer == b->mixer && a->latent == b->latent && a->n_experts == b->n_experts &&
           !a->gate.data == !b->gate.data && !a->q_norm.w == !b->q_norm.w && a->softcap == b->softcap &&
           a->norms == b->norms && a->kv_source == b->kv_source;
}

static const char *act_name(Act act) {
    static const char *names[N_ACTS] = {"SiLU", "GELU (erf)", "GELU (tanh)", "ReLU", "ReLU^2", "xIELU", "clamped SwiGLU"};
    return names[act];
}

static void print_attention(const Layer *l) {
    if (l->latent)
        printf("%d query heads of %d + %d over a latent of %d + %d (MLA), values of %d, attention scale %g", l->n_heads,
               l->n_nope, l->head_dim - l->latent, l->latent, l->head_dim - l->latent, l->n_value, (double)l->attn_scale);
    else
        printf("%d query heads, %d KV heads (%s), head_dim %d, attention scale %g", l->n_heads, l->n_kv_heads,
               attention_name(l->n_heads, l->n_kv_heads), l->head_dim, (double)l->attn_scale);
    if (l->q_norm.w) printf(", q and k normalised%s", l->qk_norm == QK_WHOLE ? " as wholes" : "");
    if (l->softcap > 0) printf(", softcap %g", (double)l->softcap);
    if (l->clip > 0) printf(", clip %g", (double)l->clip);
    if (l->sinks) printf(", sinks");
    if (l->slopes) printf(", ALiBi");
    if (l->attn_gate.data) printf(", output gated");
    if (l->rope >= 0) printf(", rope set %d", l->rope);
    if (l->window > 0) printf(", window %d", l->window);
    if (l->kv_source >= 0) printf(", keys and values of layer %d", l->kv_source);
}

static void print_ffn(const Layer *l) {
    const char *gated = l->gated ? ", gated" : "";
    const char *all = l->n_experts ? ", for all tokens" : "";
    if (l->d_ff) printf("; feed-forward %d, %s%s%s", l->d_ff, act_name(l->act), gated, all);
    if (l->n_experts)
        printf("; %d of %d experts of %d, %s%s", l->top_k, l->n_experts, l->d_expert, act_name(l->act), gated);
}

// One line for each run of layers that are alike.
static void print_layers(const Model *model) {
    for (int first = 0, last; first < model->n_layers; first = last + 1) {
        const Layer *l = &model->layers[first];
        for (last = first; last + 1 < model->n_layers && same_shape(l, &model->layers[last + 1]);) last++;
        printf("layers %d-%d   ", first, last);
        if (l->mixer == MIXER_ATTENTION) print_attention(l);
        else if (l->mixer == MIXER_SHORTCONV) printf("convolution over %d tokens", l->n_taps);
        else
            printf("gated DeltaNet, %d key heads of %d, %d value heads of %d, convolution over %d tokens", l->n_k_heads,
                   l->k_dim, l->n_v_heads, l->v_dim, l->n_taps);
        print_ffn(l);
        printf("%s\n", l->topology == PARALLEL ? "; attention and feed-forward in parallel" : "");
    }
}

static void print_info_strings(const Model *model) {
    for (int i = 0; i < model->n_meta; i++) {
        const Meta *m = &model->meta[i];
        if (m->type != META_U8 || m->key_len < 5 || memcmp(m->key, "info.", 5) != 0) continue;
        printf("%-12.*s ", (int)(m->key_len < 100 ? m->key_len : 100), m->key);
        print_escaped(m->values, m->count < 400 ? m->count : 400);
        printf("\n");
    }
}

static void print_info(const char *path, const Model *model, const char *tokenizer, const char *isa, const char *why) {
    printf("file         %s, %s bytes\n", path, commas(model->map.size));
    print_info_strings(model);
    printf("shape        %d layers, n_embd %d, vocabulary %d, context %d, %s (eps %g)%s%s\n", model->n_layers, model->n_embd,
           model->vocab_size, model->context, model->layernorm ? "LayerNorm" : "RMSNorm", (double)model->norm_eps,
           model->output.data == model->embed.data ? ", output tied to the embedding" : "",
           model->embed_pos.data ? ", learned positions" : "");
    print_layers(model);
    for (int i = 0; i < model->n_rope_sets; i++) {
        const RopeSet *r = &model->rope[i];
        printf("rope set %d   %d of a head's elements turn, multiplier %g", i, 2 * r->n_pairs, (double)r->multiplier);
        if (r->long_freq) printf("; another table for texts of more than %d tokens", r->length);
        printf("\n");
    }
    printf("tokenizer    %s\n", tokenizer ? tokenizer : "none: use --tokens");
    printf("kernels      %s (%s)\n", isa, why);
    printf("weights      %s bytes read per generated token\n", commas(model->weight_bytes));
    printf("tensors      %d\n", model->n_tensors);
    for (int i = 0; i < model->n_tensors; i++) {
        const Tensor *t = &model->tensors[i];
        char shape[48];
        snprintf(shape, sizeof shape, "(%zu, %zu)", t->rows, t->cols);
        printf("  %-28.*s %-4s %-18s %15s bytes\n", (int)t->name_len, t->name, dtype_name(t->dtype), shape,
               commas(t->bytes));
    }
}

static void print_json_string(const char *key, const char *text, size_t len) {
    printf("\"%s\": \"", key);
    print_escaped(text, len);
    printf("\"");
}

static void print_info_json(const char *path, const Model *model, const char *tokenizer, const char *isa) {
    printf("{");
    print_json_string("file", path, strlen(path));
    printf(
        ", \"bytes\": %zu, \"weight_bytes\": %zu, \"n_layers\": %d, \"n_embd\": %d, \"vocab_size\": %d, \"context\": %d, ",
        model->map.size, model->weight_bytes, model->n_layers, model->n_embd, model->vocab_size, model->context);
    print_json_string("isa", isa, strlen(isa));
    if (tokenizer) {
        printf(", ");
        print_json_string("tokenizer", tokenizer, strlen(tokenizer));
    } else {
        printf(", \"tokenizer\": null");
    }
    printf(",\n \"layers\": [");
    for (int i = 0; i < model->n_layers; i++) {
        const Layer *l = &model->layers[i];
        printf("%s\n  {\"n_heads\": %d, \"n_kv_heads\": %d, \"head_dim\": %d, \"d_ff\": %d, \"rope\": %d, \"window\": %d}",
               i ? "," : "", l->n_heads, l->n_kv_heads, l->head_dim, l->d_ff, l->rope, l->window);
    }
    printf("],\n \"tensors\": [");
    for (int i = 0; i < model->n_tensors; i++) {
        const Tensor *t = &model->tensors[i];
        printf("%s\n  {", i ? "," : "");
        print_json_string("name", t->name, t->name_len);
        printf(", \"dtype\": \"%s\", \"rows\": %zu, \"cols\": %zu, \"bytes\": %zu}", dtype_name(t->dtype), t->rows, t->cols,
               t->bytes);
    }
    printf("]}\n");
}

int report_info(const char *path, const Model *model, const Tokenizer *tokenizer, bool json, Error *err) {
    const char *why, *described = tokenizer ? tokenizer_describe(tokenizer) : NULL;
    const Kernels *kernels = kernels_choose(getenv("HEADS_ISA"), &why);
    if (!kernels) return fail(err, "%s", why);
    if (json) {
        print_info_json(path, model, described, kernels->name);
    } else {
        print_info(path, model, described, kernels->name, why);
    }
    return 0;
}

// ---- --kv ---------------------------------------------------------------------------------------------------------------

enum { MEASURED_TOKENS = 256, MOST_TOKENS = 2000000000 };

static size_t free_memory(void) {
    char line[128];
    size_t kib = 0;
    FILE *f = fopen("/proc/meminfo", "r");
    if (!f) return 0;
    while (fgets(line, sizeof line, f) && sscanf(line, "MemAvailable: %zu", &kib) != 1) {
    }
    fclose(f);
    return kib * 1024;
}

// The first layer with attention, NULL if there is none.
static const Layer *attention_layer(const Model *model) {
    for (int i = 0; i < model->n_layers; i++)
        if (model->layers[i].mixer == MIXER_ATTENTION) return &model->layers[i];
    return NULL;
}

static int n_attention_layers(const Model *model) {
    int n = 0;
    for (int i = 0; i < model->n_layers; i++) n += model->layers[i].mixer == MIXER_ATTENTION;
    return n;
}

// The number of query heads (or KV heads) of every layer that has attention, 0 if they differ.
static int common_heads(const Model *model, bool kv) {
    const Layer *first = attention_layer(model);
    for (int i = 0; first && i < model->n_layers; i++) {
        const Layer *l = &model->layers[i];
        if (l->mixer != MIXER_ATTENTION) continue;
        if (kv ? l->n_kv_heads != first->n_kv_heads : l->n_heads != first->n_heads) return 0;
    }
    return !first ? 0 : kv ? first->n_kv_heads : first->n_heads;
}

// The largest number of tokens whose cache fits in `bytes`; a window's ring stops growing, so this need not be a quotient.
static size_t tokens_that_fit(const KvReport *r, int n_kv_heads, size_t bytes) {
    int fits = 0, too_many = MOST_TOKENS;
    while (too_many - fits > 1) {
        int n = fits + (too_many - fits) / 2;
        if (kv_bytes_at(r->model, n_kv_heads, n, r->k_dtype, r->v_dtype) <= bytes) {
            fits = n;
        } else {
            too_many = n;
        }
    }
    return (size_t)fits;
}

static KvRow head_row(const KvReport *r, const char *scheme, int n_kv_heads, size_t mha_bytes) {
    KvRow row = {.scheme = scheme, .n_kv_heads = n_kv_heads};
    row.bytes_per_token = kv_plan(r->model, n_kv_heads, r->context, r->k_dtype, r->v_dtype).bytes_per_token;
    row.bytes_at_2048 = kv_bytes_at(r->model, n_kv_heads, 2048, r->k_dtype, r->v_dtype);
    row.bytes_at_context = kv_bytes_at(r->model, n_kv_heads, r->context, r->k_dtype, r->v_dtype);
    row.tokens_that_fit = tokens_that_fit(r, n_kv_heads, r->free_memory);
    row.ratio_to_mha = mha_bytes ? (double)row.bytes_per_token / (double)mha_bytes : 1.0;
    return row;
}

// Bytes of 32 cached numbers: q8 has one f16 scale for 32.
static size_t bytes_of_32(Dtype dtype) {
    return dtype == F32 ? 128 : dtype == F16 ? 64 : 34;
}

// MLA caches one latent of rank r and one rope key of d_R numbers for all heads: layers (r + d_R) bytes an element
// (DeepSeek-V2, arXiv 2405.04434). d_R is taken as half of head_dim, DeepSeek's own proportion, the element as that of the
// keys, and r is the largest rank whose cache stays under an eighth of MHA's. Every position is kept: a window does not
// help.
static void mla_row(KvReport *r, size_t mha_bytes) {
    size_t per_32 = (size_t)n_attention_layers(r->model) * bytes_of_32(r->k_dtype), state = r->plan.state;
    size_t elements = (mha_bytes * 4 - 1) / per_32;  // the most with elements * per_32 / 32 < mha_bytes / 8
    size_t rope = (size_t)attention_layer(r->model)->head_dim / 2;
    if (elements <= rope) return;
    size_t bytes = elements * per_32 / 32;
    r->mla_rank = (int)(elements - rope);
    r->mla_rope = (int)rope;
    r->rows[r->n_rows++] = (KvRow){.scheme = "MLA",
                                   .bytes_per_token = bytes,
                                   .bytes_at_2048 = bytes * 2048 + state,
                                   .bytes_at_context = bytes * (size_t)r->context + state,
                                   .tokens_that_fit = r->free_memory > state ? (r->free_memory - state) / bytes : 0,
                                   .ratio_to_mha = (double)bytes / (double)mha_bytes};
}

// MHA, each GQA divisor from large to small, MQA, and MLA, the model's own or one that would be small; only the model
// itself if its layers differ in their heads. Of a model with MLA, the others are what its heads would cost expanded.
static int make_rows(KvReport *r, Error *err) {
    int n_heads = common_heads(r->model, false), own = common_heads(r->model, true), n_divisors = 0;
    for (int n = 1; n <= n_heads; n++) n_divisors += n_heads % n == 0;
    r->rows = calloc((size_t)n_divisors + 2, sizeof *r->rows);
    if (!r->rows) return fail(err, "no memory for the report's %d rows", n_divisors + 2);
    if (n_heads == 0 || own == 0) {
        r->rows[r->n_rows++] = head_row(r, "own", 0, r->plan.bytes_per_token);
        r->rows[0].own = true;
        return 0;
    }
    bool latent = attention_layer(r->model)->latent > 0;
    size_t mha_bytes = kv_plan(r->model, n_heads, r->context, r->k_dtype, r->v_dtype).bytes_per_token;
    for (int n = n_heads; n >= 1; n--) {
        if (n_heads % n != 0) continue;
        KvRow *row = &r->rows[r->n_rows++];
        *row = head_row(r, attention_name(n_heads, n), n, mha_bytes);
        row->own = n == own && !latent;
    }
    if (!latent) mla_row(r, mha_bytes);
    else {
        r->rows[r->n_rows] = head_row(r, "MLA", 0, mha_bytes);
        r->rows[r->n_rows++].own = true;
    }
    return 0;
}

// Fills the first positions of a new cache with one token over and over: what is measured does not depend on the text.
static int measure(KvReport *r, const SessionOptions *options, Error *err) {
    int tokens[MEASURED_TOKENS] = {0};
    Session *session = session_new(r->model, options, err);
    if (!session) return -1;
    r->context = session_context(session);
    r->filled = r->context < MEASURED_TOKENS ? r->context : MEASURED_TOKENS;
    bool done = forward(session, tokens, r->filled, 0, err) != NULL;
    r->usage = session_kv_usage(session);
    session_free(session);
    return done ? 0 : -1;
}

int kv_report_make(KvReport *report, const char *path, const Model *model, const SessionOptions *options, Error *err) {
    *report = (KvReport){.path = path, .model = model, .k_dtype = options->k_dtype, .v_dtype = options->v_dtype};
    report->free_memory = free_memory();
    if (measure(report, options, err)) return -1;
    report->plan = kv_plan(model, 0, report->context, report->k_dtype, report->v_dtype);
    return make_rows(report, err);
}

void kv_report_free(KvReport *report) {
    free(report->rows);
}

static void print_row(const KvRow *row, bool memory_known) {
    char heads[16] = "-", ratio[16];
    const char *fit = !memory_known ? "-" : row->tokens_that_fit >= MOST_TOKENS - 1 ? "any" : commas(row->tokens_that_fit);
    if (row->n_kv_heads > 0) snprintf(heads, sizeof heads, "%d", row->n_kv_heads);
    snprintf(ratio, sizeof ratio, "%.4f", row->ratio_to_mha);
    printf("%c %-6s %8s %12s %18s %18s %9s %18s\n", row->own ? '*' : ' ', row->scheme, heads, commas(row->bytes_per_token),
           commas(row->bytes_at_2048), commas(row->bytes_at_context), ratio, fit);
}

static const char *agreement(size_t formula, size_t measured) {
    return formula == measured ? "as the formula says" : "NOT what the formula says";
}

static void print_kv_shape(const KvReport *r) {
    const Layer *l = attention_layer(r->model);
    int n = n_attention_layers(r->model);
    printf("%s: %d layers", r->path, r->model->n_layers);
    if (n < r->model->n_layers) printf(", %d with attention", n);
    if (l && l->latent) printf(", %d query heads, latent %d + %d", l->n_heads, l->latent, l->head_dim - l->latent);
    else if (l) printf(", %d query heads, %d KV heads, head_dim %d", l->n_heads, l->n_kv_heads, l->head_dim);
    if (l && r->n_rows == 1 && r->rows[0].n_kv_heads == 0) printf(" (layer %d; others differ)", (int)(l - r->model->layers));
    printf("; keys %s", dtype_name(r->k_dtype));
    if (!l || !l->latent) printf(", values %s", dtype_name(r->v_dtype));
    printf("; context %d\n\n", r->context);
}

static void print_report(const KvReport *r) {
    char at_context[32];
    print_kv_shape(r);
    snprintf(at_context, sizeof at_context, "bytes at %s", commas((size_t)r->context));
    printf("  %-6s %8s %12s %18s %18s %9s %18s\n", "scheme", "KV heads", "bytes/token", "bytes at 2,048", at_context,
           "of MHA", "tokens that fit");
    for (int i = 0; i < r->n_rows; i++) print_row(&r->rows[i], r->free_memory > 0);
    printf("\n* this model. \"tokens that fit\": in the %s bytes of memory that are free now.\n", commas(r->free_memory));
    if (r->mla_rank > 0) {
        printf("MLA: the largest latent rank under 1/8 of MHA is %d, with a rope dim of %d (half of head_dim).\n",
               r->mla_rank, r->mla_rope);
    }
    if (r->plan.state)
        printf("state: %s bytes of layers without attention, however long the text.\n", commas(r->plan.state));
    printf("measured: reserved %s bytes (%s: %s); after a run of %d tokens, resident %s bytes (%s: %s)\n",
           commas(r->usage.reserved), agreement(r->plan.reserved, r->usage.reserved), commas(r->plan.reserved), r->filled,
           commas(r->usage.resident), agreement(r->usage.expected_resident, r->usage.resident),
           commas(r->usage.expected_resident));
}

static void print_table(const KvReport *reports, int n) {
    printf("%-24s %6s %7s %8s %8s %12s %9s %16s %10s %16s\n", "model", "layers", "q heads", "KV heads", "head_dim",
           "bytes/token", "of MHA", "reserved bytes", "run tokens", "resident bytes");
    for (int i = 0; i < n; i++) {
        const KvReport *r = &reports[i];
        const Layer *l = attention_layer(r->model) ? attention_layer(r->model) : &r->model->layers[0];
        double ratio = 1;
        for (int j = 0; j < r->n_rows; j++) ratio = r->rows[j].own ? r->rows[j].ratio_to_mha : ratio;
        printf("%-24s %6d %7d %8d %8d %12s %9.4f %16s %10d %16s\n", r->path, r->model->n_layers, l->n_heads, l->n_kv_heads,
               l->head_dim, commas(r->plan.bytes_per_token), ratio, commas(r->usage.reserved), r->filled,
               commas(r->usage.resident));
    }
    printf("\nmeasured; keys %s, values %s; each at its context (reserved) and after a run (resident)\n",
           dtype_name(reports[0].k_dtype), dtype_name(reports[0].v_dtype));
}

static void print_report_json(const KvReport *r) {
    printf("{\"context\": %d,\n \"rows\": [", r->context);
    for (int i = 0; i < r->n_rows; i++) {
        const KvRow *row = &r->rows[i];
        char heads[16] = "null";
        if (row->n_kv_heads > 0) snprintf(heads, sizeof heads, "%d", row->n_kv_heads);
        printf("%s\n  {\"scheme\": \"%s\", \"n_kv_heads\": %s, \"bytes_per_token\": %zu, \"bytes_at_2048\": %zu, "
               "\"bytes_at_context\": %zu, \"ratio_to_mha\": %.9g, \"own\": %s}",
               i ? "," : "", row->scheme, heads, row->bytes_per_token, row->bytes_at_2048, row->bytes_at_context,
               row->ratio_to_mha, row->own ? "true" : "false");
    }
    printf("],\n \"reserved_bytes\": %zu, \"resident_bytes\": %zu, \"state_bytes\": %zu}", r->usage.reserved,
           r->usage.resident, r->plan.state);
}

void kv_report_print(const KvReport *reports, int n, bool json) {
    if (json) {
        if (n > 1) printf("[");
        for (int i = 0; i < n; i++) {
            if (i > 0) printf(",\n");
            print_report_json(&reports[i]);
        }
        printf(n > 1 ? "]\n" : "\n");
    } else if (n == 1) {
        print_report(&reports[0]);
    } else {
        print_table(reports, n);
    }
}
