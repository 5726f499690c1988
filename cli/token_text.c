#include "cli/token_text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void add_token_text(Text *out, const Program *p, int id, bool written) {
    const heads_tokenizer *t = p->tokenizer;
    Text shown = {0};
    size_t len = 0, n;
    const char *text = "";
    if (t) text = written ? tokenizer_written(t, id, &len) : tokenizer_text(t, id, &len);
    bool marks = t && tokenizer_marks_spaces(t);
    if (len == 0) text_format(&shown, "\u27e8%d\u27e9", id);
    for (size_t at = 0; at < len; at += n ? n : 1) {
        n = utf8_length(text + at, len - at);
        if (n == 3 && marks && memcmp(text + at, "\u2581", 3) == 0) text_add(&shown, " ", 1);
        else if (n) text_add(&shown, text + at, n);
        else text_format(&shown, "\u27e8%02X\u27e9", (unsigned char)text[at]);
    }
    json_quote(out, shown.data, shown.size);
    free(shown.data);
}

void add_likeliest(Text *out, const Program *p, const heads_likely *likeliest, int n) {
    for (int i = 0; i < n; i++) {
        text_format(out, "%s{\"id\": %d, \"text\": ", i ? ", " : "[", likeliest[i].id);
        add_token_text(out, p, likeliest[i].id, true);
        text_format(out, ", \"probability\": %.6g}", exp(likeliest[i].log_probability));
    }
    text_format(out, n ? "]" : "[]");
}
