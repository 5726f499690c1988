// What --batch and --messages do with any text: a line is refused with a sentence, or its request
// runs and ends once; a conversation is refused or becomes ids.
//
//   fuzz_lines MODEL lines COUNT SEED
//   fuzz_lines MODEL messages COUNT SEED
//
// Texts are made of good ones, whose pieces of JSON are exchanged, repeated, left out or damaged.
// Prints "ok" and what was done.
#include <stdlib.h>

#include "cli/batch/requests.h"
#include "fuzzing.h"

enum { MOST_TEXT = 1 << 12, MOST_PIECES = 400, AT_ONCE = 4 };

static const char *const LINES[] = {
    "{\"id\": 7, \"prompt\": \"One day a fox\", \"max_tokens\": 4, \"temperature\": 0.8, "
    "\"seed\": 3}",
    "{\"id\": \"a\\u00e9\\ud83e\\udd8a\", \"tokens\": [1, 5, 6, 7], \"max_tokens\": 3, "
    "\"top_k\": 4}",
    "{\"messages\": [{\"role\": \"system\", \"content\": \"Be.\"}, {\"role\": \"user\", "
    "\"content\": \"Hi <s>\"}, {\"role\": \"assistant\", \"content\": \"\\n\"}, "
    "{\"role\": \"user\", \"content\": \"\"}], \"top_p\": 0.9}",
    "{\"prompt\": \"a\", \"stop\": [\" \", \"the\", \"\\u0000\"], \"min_p\": 0.1, "
    "\"repeat_penalty\": 1.3, \"max_tokens\": 9}",
    "{\"prompt\": \"cab\", \"lang\": \"fr_XX:ro_RO\", \"temperature\": 0, \"max_tokens\": 6}",
};
static const char *const MESSAGES[] = {
    "[{\"role\": \"user\", \"content\": \"What?\"}]",
    "[{\"role\": \"system\", \"content\": \" Be\\u2003\"}, {\"role\": \"user\", \"content\": "
    "\"a </think>\"}, {\"content\": \"\\u001c<think>b</think>\", \"role\": \"assistant\"}, "
    "{\"role\": \"user\", \"content\": \"\\u0000\"}]",
    "[{\"role\": \"assistant\", \"content\": \"\"}, {\"role\": \"user\", \"content\": \"[INST]\"}]",
};
static const char *const PIECES[] = {
    "{", "}", "[", "]", ",", ":", "\"", "null", "true", "0", "-1", "1e999", "0.5", "-0.0",
    "2147483648", "9223372036854775807", "9223372036854775808", "1e9", "[]", "{}", "\"\"", "[[",
    "\"id\"", "\"prompt\"", "\"tokens\"", "\"messages\"", "\"stop\"", "\"lang\"", "\"seed\"",
    "\"max_tokens\"", "\"content\"", "\"role\"", "\"user\"", "\"assistant\"", "\"system\"",
    "\"en_XX\"", "\"a:b\"", "\":\"", "\"\\u0000\"", "\"\\ud800\"", "\"\xC3\"",
    "\"\xF0\x9F\xA6\x8A\"", "\"</s>\"", "\"<s>\\n\\t  \"", "\n", " ",
};
enum { N_PIECES = sizeof PIECES / sizeof *PIECES };

static uint64_t state;
static struct {
    long refused, taken, failed, tokens;
} found;

// ---- texts ----

typedef struct {
    const char *text;
    size_t len;
} Piece;

// Cuts a text into strings, numbers and words, marks and blanks; returns how many pieces there are.
static size_t cut(const char *text, Piece pieces[MOST_PIECES]) {
    size_t n = 0;
    for (const char *p = text, *end; *p && n < MOST_PIECES; p = end) {
        end = p + 1;
        if (*p == '"') {
            while (*end && *end != '"') end += *end == '\\' && end[1] ? 2 : 1;
            end += *end == '"';
        } else if (!strchr("{}[],: ", *p)) {
            end += strcspn(end, "{}[],: \"");
        }
        pieces[n++] = (Piece){p, (size_t)(end - p)};
    }
    return n;
}

static int kind(char first) {
    return first == '"' ? 0 : first == '-' || (first >= '0' && first <= '9') ? 1 : first;
}

// Exchanges, repeats, leaves out or puts in some pieces of a text, and damages some bytes.
static size_t make_text(const char *from, char out[MOST_TEXT]) {
    Piece pieces[MOST_PIECES];
    size_t n = cut(from, pieces), len = 0;
    for (size_t changes = below(&state, 4); changes > 0 && n > 1; changes--) {
        size_t a = below(&state, n), b = below(&state, n), how = below(&state, 16);
        const char *other = PIECES[below(&state, N_PIECES)];
        if (how == 0) pieces[a] = pieces[b];
        else if (how == 1) pieces[a].len = 0;
        else if (how == 2 && pieces[a].len > 1) pieces[a].len = below(&state, pieces[a].len);
        else if (how == 3 || kind(*other) == kind(*pieces[a].text))
            pieces[a] = (Piece){other, strlen(other)};
    }
    for (size_t i = 0; i < n; i++) {
        size_t times = below(&state, 300) ? 1 : 2 + below(&state, 30);
        for (size_t j = 0; j < times && len + pieces[i].len < MOST_TEXT; j++) {
            memcpy(out + len, pieces[i].text, pieces[i].len);
            len += pieces[i].len;
        }
    }
    if (len && below(&state, 10) == 0) damage((uint8_t *)out, len, &state);
    return len;
}

// ---- lines ----

typedef struct {
    Line line;
    long number;  // of its request; -1: it was refused
    int ended, tokens;
} Asked;

static void take(Asked *asked, const heads_event *event) {
    if (asked->ended) abort();
    if (event->kind == HEADS_TOKEN) {
        if (event->len && !event->text) abort();
        for (size_t i = 0, more; i < event->len; i += more)
            if (!(more = utf8_length(event->text + i, event->len - i))) abort();
        if (++asked->tokens > asked->line.asked.max_tokens) abort();
        found.tokens++;
    } else {
        asked->ended = 1;
        if (event->kind == HEADS_FAILED && (!event->error || !*event->error)) abort();
        if (event->kind == HEADS_DONE && !event->stopped) abort();
        found.failed += event->kind == HEADS_FAILED;
    }
}

// Adds some lines and runs them, all of them or until some are cancelled.
static void try_lines(const Defaults *d, heads_batch *b) {
    heads_error err;
    Asked asked[AT_ONCE] = {0};
    const heads_event *event;
    for (int i = 0; i < AT_ONCE; i++) {
        char text[MOST_TEXT];
        size_t len = make_text(LINES[below(&state, sizeof LINES / sizeof *LINES)], text);
        char *exact = malloc(len + 1);  // no longer than it is, so that ASan sees a step beyond
        if (!exact || !(exact = realloc(exact, len ? len : 1))) abort();
        memcpy(exact, text, len);
        asked[i].line = read_line(d, exact, len);
        free(exact);
        asked[i].number = add_line(b, &asked[i].line);
        if (asked[i].number < 0 && !asked[i].line.error.text[0]) abort();
        asked[i].number < 0 ? found.refused++ : found.taken++;
    }
    int cancelled = below(&state, 8) == 0 ? (int)below(&state, AT_ONCE) : -1;
    for (heads_batch_counts left; left = heads_batch_count(b), left.waiting + left.running > 0;) {
        int n = heads_batch_step(b, &event, &err);
        if (n < 0) abort();
        for (; n > 0; n--, event++)
            for (int i = 0; i < AT_ONCE; i++)
                if (asked[i].number == event->request) take(&asked[i], event);
        if (cancelled >= 0 && asked[cancelled].number >= 0 && !asked[cancelled].ended)
            asked[cancelled].ended = heads_batch_cancel(b, asked[cancelled].number);
    }
    for (int i = 0; i < AT_ONCE; i++) {
        if (asked[i].number >= 0 && !asked[i].ended) abort();
        free_line(&asked[i].line);
    }
}

// ---- messages ----

static void try_messages(const Defaults *d) {
    heads_error err = {""};
    char text[MOST_TEXT];
    size_t len = make_text(MESSAGES[below(&state, sizeof MESSAGES / sizeof *MESSAGES)], text);
    char *exact = malloc(len + 1);
    if (!exact || !(exact = realloc(exact, len ? len : 1))) abort();
    memcpy(exact, text, len);
    Messages m = {0};
    const Json *json = json_parse(exact, len, &err);
    free(exact);
    Ids ids = {.n = -1};
    if (json && messages_from_json(&m, json, &err) == 0)
        ids = conversation_ids(d->program, d->chat, &m, below(&state, 2), &err);
    if (ids.n < 0 && (!err.text[0] || ids.data)) abort();
    ids.n < 0 ? found.refused++ : found.taken++;
    for (long i = 0; i < ids.n; i++)
        if (ids.data[i] < 0) abort();
    free(ids.data);
    messages_free(&m);
    json_free(json);
}

int main(int argc, char **argv) {
    heads_error err;
    if (argc != 5) return fprintf(stderr, "usage: fuzz_lines MODEL lines|messages COUNT SEED\n"), 2;
    Options options = {.verb = BATCH, .n_generate = 5, .n_answer = 5,
                       .workspace = {.context = 40, .chunk = 16, .n_threads = 1,
                                     .isa = getenv("HEADS_ISA")}};
    Program p;
    open_program(&p, &options, argv[1], WITH_TOKENIZER);
    open_workspace(&p, AT_ONCE);
    Defaults d = {.program = &p};
    d.chat = heads_chat_new(p.model, &d.no_chat);
    heads_batch_options shared = {.places = 3, .keep = 2, .tokenizer = p.tokenizer};
    heads_batch *b = heads_batch_new(p.w, &shared, &err);
    bool lines = strcmp(argv[2], "lines") == 0;
    if (!b || (!lines && !d.chat)) return printf("not ok: %s\n", b ? d.no_chat.text : err.text), 1;
    state = strtoull(argv[4], NULL, 10);
    watch();
    long count = atol(argv[3]);
    for (long i = 0; i < count; i += lines ? AT_ONCE : 1) {
        next_input(i);
        if (lines) try_lines(&d, b);
        else try_messages(&d);
    }
    heads_batch_free(b);
    heads_chat_free((heads_chat *)d.chat);
    close_program(&p);
    printf("ok: %ld tried, %ld refused, %ld taken, %ld failed later, %ld tokens\n", count,
           found.refused, found.taken, found.failed, found.tokens);
}
