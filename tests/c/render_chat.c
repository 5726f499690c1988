// Renders many conversations by one checkpoint's chat template, for the tests that compare it with
// jinja2.
//
//   render_chat MODEL < records > answers
//
// A record is u32 flags (1 with the beginning of an answer, 2 without thinking), i64 clock, u32 n,
// and of each of n messages u32 length, role, u32 length, content. Its answer is u32 rendered (1,
// or 0: refused), u32 length, and the text or the message. Numbers are little-endian, as the
// machine has to be. What the chat can do goes to stderr, with the token that ends an answer if
// there is a tokenizer.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"
#include "library/chat.h"

enum { MAX_MESSAGES = 1 << 20 };

static void stop(const char *what) {
    fprintf(stderr, "render_chat: %s\n", what);
    exit(1);
}

static void get(void *data, size_t size) {
    if (size && fread(data, 1, size, stdin) != size) stop("a record is cut off");
}

// A string of the record, malloc'd; no longer than it is, so that ASan sees a step beyond it,
// unless a zero byte ends it.
static char *get_text(size_t *len, bool terminated) {
    uint32_t n;
    get(&n, sizeof n);
    char *text = malloc(n + 1);
    if (!terminated) text = realloc(text, n ? n : 1);
    if (!text) stop("no memory");
    get(text, n);
    if (terminated) text[n] = 0;
    *len = n;
    return text;
}

static void put(uint32_t rendered, const char *text, size_t len) {
    uint32_t head[] = {rendered, (uint32_t)len};
    if (fwrite(head, sizeof head, 1, stdout) != 1 || fwrite(text, 1, len, stdout) != len)
        stop("cannot write");
}

int main(int argc, char **argv) {
    Error err;
    Model model;
    if (argc != 2) stop("usage: render_chat MODEL < records > answers");
    if (model_open(&model, argv[1], &err)) stop(err.text);
    Chat *chat = chat_new(&model.file, &err);
    if (!chat) stop(err.text);
    Tokenizer *tokenizer = tokenizer_new(&model.file, &err);
    fprintf(stderr, "%s, stop %d\n", chat_describe(chat),
            tokenizer ? chat_stop(chat, tokenizer) : -1);
    tokenizer_free(tokenizer);
    for (uint32_t flags; fread(&flags, sizeof flags, 1, stdin) == 1;) {
        int64_t clock;
        uint32_t n;
        get(&clock, sizeof clock);
        get(&n, sizeof n);
        if (n > MAX_MESSAGES) stop("too many messages");
        Message *messages = calloc(n + 1, sizeof *messages);
        if (!messages) stop("no memory");
        for (uint32_t i = 0; i < n; i++) {
            size_t len;
            messages[i].role = get_text(&len, true);
            messages[i].content = get_text(&messages[i].content_len, false);
        }
        ChatOptions options = {.answer = flags & 1,
                               .no_think = flags & 2,
                               .clock = (time_t)clock};
        size_t len;
        char *text = chat_render(chat, messages, n, &options, &len, &err);
        if (text) put(1, text, len);
        else put(0, err.text, strlen(err.text));
        free(text);
        for (uint32_t i = 0; i < n; i++) {
            free((char *)messages[i].role);
            free((char *)messages[i].content);
        }
        free(messages);
    }
    chat_free(chat);
    model_close(&model);
    return 0;
}
