#include "prompt_cache.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "print.h"

static Sequence *load(const Options *o, Workspace *w) {
    Error err;
    if (!o->prompt_cache) return open_sequence(w, false);
    if (access(o->prompt_cache, F_OK) != 0 && errno == ENOENT) {
        if (o->prompt_cache_ro) die("cannot open %s: %s", o->prompt_cache, strerror(ENOENT));
        return open_sequence(w, false);
    }
    Sequence *s = sequence_load(w, o->prompt_cache, &err);
    if (!s) die("%s", err.text);
    return s;
}

Sequence *open_prompt_cache(const Options *o, Workspace *w, const Tokenizer *tokenizer,
                            Ids *prompt) {
    Error err;
    Sequence *s = load(o, w);
    *prompt = read_prompt(o, tokenizer, s, *prompt);
    int common = sequence_common(s, prompt->data, (int)prompt->n - 1);
    // A window or a state that has gone on cannot come back; the prompt then runs from its start.
    if (sequence_rewind(s, common, &err)) sequence_rewind(s, 0, &err);
    return s;
}

void save_prompt_cache(const Options *o, const Sequence *s) {
    Error err;
    if (!o->prompt_cache || o->prompt_cache_ro || sequence_length(s) == 0) return;
    if (sequence_save(s, o->prompt_cache, &err)) die("%s", err.text);
}
