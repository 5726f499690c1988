#include "prompt_cache.h"

#include <errno.h>
#include <string.h>

#include "languages.h"
#include "print.h"

static heads_sequence *load(const Program *p) {
    const Options *o = p->o;
    heads_error err;
    if (!o->prompt_cache) return open_text(p, false);
    bool is_new = is_missing(o->prompt_cache);
    if (is_new && o->prompt_cache_ro) die("cannot open %s: %s", o->prompt_cache, strerror(ENOENT));
    if (is_new) return open_text(p, false);
    heads_sequence *s = heads_sequence_load(p->w, o->prompt_cache, &err);
    bool may_be_new = !o->prompt_cache_ro && is_regular(o->prompt_cache);
    if (!s) die("%s%s", err.text, may_be_new ? "; name another file, or remove this one" : "");
    heads_sequence *fresh = open_text(p, false);
    heads_sequence *other = inspect_same_steering(s, fresh) ? fresh : s;
    heads_sequence_free(other);
    return other == s ? fresh : s;
}

heads_sequence *open_prompt_cache(const Program *p, Ids *prompt) {
    heads_sequence *s = load(p);
    *prompt = read_prompt(p, s, *prompt);
    int common = heads_sequence_common(s, prompt->data, (int)prompt->n - 1);
    // Windows and states may have forgotten the earlier tokens; then all of the prompt runs again.
    if (heads_sequence_rewind(s, common, NULL)) heads_sequence_rewind(s, 0, NULL);
    return s;
}

void save_prompt_cache(const Options *o, const heads_sequence *s) {
    heads_error err;
    if (!o->prompt_cache || o->prompt_cache_ro || heads_sequence_length(s) == 0) return;
    if (heads_sequence_save(s, o->prompt_cache, &err)) die("%s", err.text);
}
