// Workspaces that read texts out, with the sequences of these texts. One is kept from call to call
// by the workspace whose threads it uses: making it anew costs a short text a tenth of its time.
#include <stdlib.h>

#include "library/pooling.h"

enum { KEPT = 1 << 26 };  // most bytes of addresses that a reader has between calls

struct TextReader {
    Workspace *w;
    Sequence *sequences[MAX_TEXTS];
};

static TextReader *reader_new(const Model *m, const WorkspaceOptions *o, Error *err) {
    TextReader *r = calloc(1, sizeof *r);
    if (!r) fail(err, "no memory for a workspace");
    else if ((r->w = heads_workspace_new(m, o, err))) return r;
    free(r);
    return NULL;
}

void reader_free(TextReader *r) {
    if (!r) return;
    for (int i = 0; i < MAX_TEXTS; i++) heads_sequence_free(r->sequences[i]);
    workspace_free(r->w);
    free(r);
}

// Whether it is what options would make, or has a longer context, which changes no bit.
static bool fits(const TextReader *r, const WorkspaceOptions *o) {
    const Workspace *w = r->w;
    const char *why;
    return w->k == kernels_choose(o->isa, &why) && w->pass_rows == o->chunk &&
           w->kv.context >= o->context && w->kv.k_dtype == o->k_type && w->kv.v_dtype == o->v_type;
}

// The reader with no more than KEPT bytes, or NULL.
static TextReader *trimmed(TextReader *r) {
    const KvLayout *kv = &r->w->kv;
    size_t of_sequence = kv->bytes + 2 * sizeof(int) * (size_t)kv->context;
    if (r->w->bytes > KEPT) return reader_free(r), NULL;
    for (size_t i = (KEPT - r->w->bytes) / of_sequence; i < MAX_TEXTS; i++) {
        heads_sequence_free(r->sequences[i]);
        r->sequences[i] = NULL;
    }
    return r;
}

int read_texts(const Model *m, const Readout *readout, const WorkspaceOptions *options,
               const TextIds *texts, int n, float *results, Error *err) {
    WorkspaceOptions o = options ? *options : (WorkspaceOptions){0};
    if (!o.chunk) o.chunk = DEFAULT_CHUNK;
    o.context = 1;
    for (int i = 0; i < n; i++)
        if (texts[i].n > o.context) o.context = texts[i].n;
    o.logit_rows = o.chunk > o.context ? o.chunk : o.context;
    o.hidden = true;
    Workspace *host = o.threads_of && o.threads_of->model == m ? o.threads_of : NULL;
    TextReader *r = host ? host->reader : NULL;
    if (host) host->reader = NULL;
    if (r && !fits(r, &o)) reader_free(r), r = NULL;
    if (!r) r = reader_new(m, &o, err);
    const Adapted *by = host ? &host->adapted : NULL;
    int failed = !r || (by && heads_workspace_adapter(r->w, by->adapter, by->scale, err)) ||
                 read_out(r->w, r->sequences, readout, texts, n, results, err);
    if (host && !failed) host->reader = trimmed(r);
    else reader_free(r);
    return failed ? -1 : 0;
}
