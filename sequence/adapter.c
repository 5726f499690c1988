// The adapter of a sequence, and of the sequences that a workspace makes.
#include "load/adapter.h"

#include <math.h>

#include "math/adapted.h"
#include "math/lowrank.h"
#include "sequence/sequence.h"

int check_adapter(Workspace *w, const heads_adapter *adapter, float scale, Error *err) {
    if (!adapter) return 0;
    if (adapter->model != w->model)
        return fail(err, "the adapter was opened for another model than the workspace's");
    if (!isfinite(scale)) return fail(err, "an adapter's scale is %g, expected a finite number",
                                      (double)scale);
    return make_low_rows(w, adapter->most_rank, err);
}

int heads_sequence_adapter(Sequence *s, heads_adapter *adapter, float scale, Error *err) {
    if (need(s, "a sequence", err)) return -1;
    if (s->length || frozen_source(s))
        return fail(err, "a text gets its adapter before it begins, and this one has %d tokens%s; "
                    "rewind it to 0, or take a new one", s->length,
                    s->length ? "" : " and a source that forks share");
    if (check_adapter(s->workspace, adapter, scale, err)) return -1;
    set_adapted(&s->adapted, adapter, scale);
    s->source.n = 0;  // which was read without it
    return 0;
}

int heads_workspace_adapter(Workspace *w, heads_adapter *adapter, float scale, Error *err) {
    if (need(w, "a workspace", err) || check_adapter(w, adapter, scale, err)) return -1;
    set_adapted(&w->adapted, adapter, scale);
    return 0;
}

uint32_t adapted_sum(const Adapted *a) {
    uint32_t sum = a->adapter ? checkpoint_crc(&a->adapter->file) : 0;
    if (a->adapter) sum = crc32_after(sum, (const uint8_t *)&a->scale, sizeof a->scale);
    return a->adapter && !sum ? 1 : sum;
}
