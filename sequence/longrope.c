// Rope whose frequencies depend on the text's length (longrope): a text that outgrows the first
// table runs again with the second.
#include "sequence/sequence.h"

// The rope sets, a bit each, that rotate a text of n tokens by their tables for long texts.
static unsigned long_tables(const Model *m, int n) {
    unsigned sets = 0;
    for (int i = 0; i < m->n_rope_sets; i++)
        if (m->rope[i].long_freq && n > m->rope[i].length) sets |= 1u << i;
    return sets;
}

void heads_sequence_expect(Sequence *s, int n) {
    if (!s) return;
    int context = s->workspace->kv.context;
    if (n > context) n = context;
    if (n > s->rope.expected) s->rope.expected = n;
}

int heads_sequence_room(const Sequence *s) {
    if (!s) return 0;
    const Model *m = s->workspace->model;
    int room = s->workspace->kv.context - s->length;
    for (int i = 0; i < m->n_rope_sets; i++) {
        int left = m->rope[i].length - s->length;
        bool changes = m->rope[i].long_freq && left > 0 && s->rope.expected <= m->rope[i].length;
        if (changes && left < room) room = left;
    }
    return room;
}

int choose_rope_tables(Sequence *s, int n, Error *err) {
    heads_sequence_expect(s, s->length + n);
    unsigned tables = long_tables(s->workspace->model, s->rope.expected);
    int length = s->length, expected = s->rope.expected;
    if (tables == s->rope.tables) return length;
    if (heads_sequence_rewind(s, 0, err)) return -1;
    s->rope.expected = expected;
    s->rope.tables = tables;
    return length;
}
