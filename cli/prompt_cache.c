#include "prompt_cache.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "print.h"

static Sequence *load(const Options *o, Workspace *w) {
    Error err;
    struct stat st = {0};
    if (!o->prompt_cache) return open_sequence(w, false);
    bool is_new = stat(o->prompt_cache, &st) != 0 && errno == ENOENT;
    if (is_new && o->prompt_cache_ro) die("cannot open %s: %s", o->prompt_cache, strerror(ENOENT));
    if (is_new) return open_sequence(w, false);
    Sequence *s = sequence_load(w, o->prompt_cache, &err);
    bool may_be_new = S_ISREG(st.st_mode) && !o->prompt_cache_ro;
    if (!s) die("%s%s", err.text, may_be_new ? "; name another file, or remove this one" : "");
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
