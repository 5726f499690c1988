// A conversation by the tables of a compiled template. The text between two contents, a *piece*,
// depends on the states of both; what a content becomes, its *transform*, on its own. Whatever the
// exporter could not prove is refused.
#include "text/chat.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "metadata.h"
#include "text/unicode.h"

// States: a user's and an assistant's content are the FIRST of their role or not, and FINAL (a
// user's message that only answers follow; an answer after the last user's message), LAST (a user's
// message at the end), or neither.
enum {
    BEGIN = 0, USER = 1, ASSISTANT = 7, END = 11, N_STATES = 11,
    FIRST = 1, FINAL = 2, LAST = 4
};
enum { WITH_SYSTEM = 1, NO_THINK = 2, NO_PROMPT = 4, N_TABLES = 8 };  // bits of a table's number
enum {
    OUTER = 1, EMPTY = 2, BLANK = 4, BARE = 8, EMPTY_IS_NONE = 16, BLANK_IS_NONE = 32,
    ALL_CLASSES = 63
};
enum { ITEM_TEXT, ITEM_DATE, ITEM_SYSTEM, N_ITEMS };
enum { LEFT, RIGHT, MARKER, FIRST_MARKER, LEFT_AFTER, RIGHT_AFTER, TRANSFORM_FIELDS };
enum { KIND_SYSTEM, KIND_USER, KIND_ASSISTANT, KIND_FINAL, N_KINDS };  // of contents, for triggers
enum { MAX_TEXTS = (1 << 20) - 1, MAX_SET = 64, MAX_FORMAT = 63 };

typedef struct {
    const char *p;
    size_t n;
} Span;

typedef struct {                // how one kind of conversation is written; pieces NULL: it is not
    const int32_t *pieces;      // [N_STATES][N_STATES]: piece between state i and j + 1, or -1
    const int32_t *transforms;  // [N_STATES], of the content in that state; the system's in BEGIN
    const int32_t *classes;     // [N_STATES]: sums of OUTER .. that are exact
    Span refused;               // why it is not there
} Table;

struct heads_chat {
    int n_texts, n_pieces, n_transforms;
    const int32_t *text_begin;  // [n_texts + 1]
    const char *text;
    const int32_t *piece_begin;               // [n_pieces + 1]: items of a piece
    const int32_t *item_kinds, *item_texts;   // of each item
    const int32_t *transforms;  // [n_transforms][TRANSFORM_FIELDS]: numbers of texts, -1: none
    Ints triggers[N_KINDS];                   // texts that a content may not hold
    int distinct;                             // no two contents may be equal
    Span no_think;  // the switch that turns thinking off; p NULL: there is none
    Table tables[N_TABLES];
    bool has_date;
    char description[160];
};

// Text i; p NULL where i is -1.
static Span text_at(const Chat *c, int i) {
    if (i < 0) return (Span){NULL, 0};
    return (Span){c->text + c->text_begin[i], (size_t)(c->text_begin[i + 1] - c->text_begin[i])};
}

// ---- opening: every number of the file is checked before it is used ----

static int load_texts(Chat *c, Reader *r) {
    size_t bytes;
    const uint8_t *text;
    if (!read_meta(r, "chat.text.begin"))
        return fail(r->err, read_meta(r, "chat.template")
                        ? "the chat template was not compiled; export the checkpoint again"
                        : "the checkpoint has no chat template: it is a base model, which "
                          "continues texts; for conversations export one that was trained on them, "
                          "whose name often ends in Instruct or Chat");
    if (read_lists(r, "chat.text.begin", 0, MAX_TEXTS, &c->n_texts, &c->text_begin, &bytes) ||
        read_bytes(r, "chat.text", bytes, UINT8_MAX, &text))
        return -1;
    c->text = text ? (const char *)text : "";
    return 0;
}

// Whether a date's format has only codes that strftime knows everywhere, as docs/format.md lists
// them.
static bool is_format(Span format) {
    if (format.n > MAX_FORMAT || memchr(format.p, 0, format.n)) return false;
    for (size_t i = 0; i < format.n; i++) {
        if (format.p[i] != '%') continue;
        if (++i < format.n && format.p[i] == '-') {
            if (++i == format.n || !strchr("dmHIMSjy", format.p[i])) return false;
        } else if (i == format.n || !strchr("dmHIMSjyYBbAap%", format.p[i])) {
            return false;
        }
    }
    return true;
}

static int load_pieces(Chat *c, Reader *r) {
    size_t n;
    Ints kinds, texts;
    if (read_lists(r, "chat.piece.begin", 0, MAX_TEXTS, &c->n_pieces, &c->piece_begin, &n) ||
        read_ints(r, "chat.item.kind", n, 0, N_ITEMS - 1, &kinds) ||
        read_ints(r, "chat.item.text", n, -1, c->n_texts - 1, &texts))
        return -1;
    for (size_t i = 0; i < n; i++) {
        if ((kinds.v[i] == ITEM_SYSTEM) != (texts.v[i] < 0))
            return fail(r->err, "metadata chat.item.text: value %zu is %d, which an item of kind "
                        "%d cannot have", i, texts.v[i], kinds.v[i]);
        if (kinds.v[i] == ITEM_DATE && !is_format(text_at(c, texts.v[i])))
            return fail(r->err, "metadata chat.item.text: value %zu names no format of a date", i);
        c->has_date |= kinds.v[i] == ITEM_DATE;
    }
    c->item_kinds = kinds.v;
    c->item_texts = texts.v;
    return 0;
}

static int load_transforms(Chat *c, Reader *r) {
    Ints t;
    if (read_ints(r, "chat.transform", SIZE_MAX, -1, c->n_texts, &t)) return -1;
    if (t.n % TRANSFORM_FIELDS || t.n > MAX_TEXTS)
        return fail(r->err, "metadata chat.transform: it has %zu values, expected a multiple of %d",
                    t.n, TRANSFORM_FIELDS);
    for (size_t i = 0; i < t.n; i++) {
        bool good = t.v[i] < c->n_texts;
        if (i % TRANSFORM_FIELDS == FIRST_MARKER) good = t.v[i] == 0 || t.v[i] == 1;
        else if (good && t.v[i] >= 0 && i % TRANSFORM_FIELDS == MARKER)
            good = text_at(c, t.v[i]).n > 0;
        else if (good && t.v[i] >= 0) good = text_at(c, t.v[i]).n <= MAX_SET;
        if (!good)
            return fail(r->err, "metadata chat.transform: value %zu is %d, which cannot be", i,
                        t.v[i]);
    }
    c->transforms = t.v;
    c->n_transforms = (int)(t.n / TRANSFORM_FIELDS);
    return 0;
}

static int load_rest(Chat *c, Reader *r) {
    static const char *const keys[] = {"chat.trigger.system", "chat.trigger.user",
                                       "chat.trigger.assistant", "chat.trigger.final"};
    for (int kind = 0; kind < N_KINDS; kind++) {
        if (read_ints(r, keys[kind], SIZE_MAX, 0, c->n_texts - 1, &c->triggers[kind])) return -1;
        for (size_t i = 0; i < c->triggers[kind].n; i++)
            if (text_at(c, c->triggers[kind].v[i]).n == 0)
                return fail(r->err, "metadata %s: value %zu names an empty text", keys[kind], i);
    }
    return read_int(r, "chat.distinct", 0, 1, 0, &c->distinct) ||
           read_text(r, "chat.no_think", &c->no_think.p, &c->no_think.n) ? -1 : 0;
}

static bool has_system(const Chat *c, int piece) {
    if (piece < 0) return false;
    for (int i = c->piece_begin[piece]; i < c->piece_begin[piece + 1]; i++)
        if (c->item_kinds[i] == ITEM_SYSTEM) return true;
    return false;
}

static int load_table(Chat *c, Reader *r, int number) {
    Table *table = &c->tables[number];
    char key[4][32];
    const char *const names[] = {"pieces", "transforms", "classes", "refused"};
    for (int i = 0; i < 4; i++) snprintf(key[i], sizeof key[i], "chat.%d.%s", number, names[i]);
    Ints pieces, transforms, classes;
    if (read_text(r, key[3], &table->refused.p, &table->refused.n)) return -1;
    if (!read_meta(r, key[0])) return 0;
    if (read_ints(r, key[0], N_STATES * N_STATES, -1, c->n_pieces - 1, &pieces) ||
        read_ints(r, key[1], N_STATES, 0, c->n_transforms - 1, &transforms) ||
        read_ints(r, key[2], N_STATES, 0, ALL_CLASSES, &classes))
        return -1;
    for (size_t i = 0; i < pieces.n && !(number & WITH_SYSTEM); i++)
        if (has_system(c, pieces.v[i]))
            return fail(r->err, "metadata %s: value %zu names a piece with a system message",
                        key[0], i);
    table->pieces = pieces.v, table->transforms = transforms.v, table->classes = classes.v;
    return 0;
}

static void describe(Chat *c) {
    static const char *const systems[] = {"no", "ignored", "yes"};
    int n = c->no_think.n < 60 ? (int)c->no_think.n : 60;
    snprintf(c->description, sizeof c->description, "system %s, thinking %s%s%.*s%s, date %s",
             systems[chat_system(c)], c->no_think.p ? "yes" : "no", n ? " (off: " : "", n,
             n ? c->no_think.p : "", n ? ")" : "", c->has_date ? "yes" : "no");
}

static int load(Chat *c, Reader *r) {
    Span refused;
    if (read_text(r, "chat.refused", &refused.p, &refused.n)) return -1;
    if (refused.p)
        return fail(r->err, "the chat template could not be compiled: %.*s",
                    refused.n < 250 ? (int)refused.n : 250, refused.p);
    if (load_texts(c, r) || load_pieces(c, r) || load_transforms(c, r) || load_rest(c, r))
        return -1;
    for (int number = 0; number < N_TABLES; number++)
        if (load_table(c, r, number)) return -1;
    describe(c);
    return 0;
}

Chat *chat_new(const Checkpoint *file, Error *err) {
    Reader r;
    if (reader_open(&r, file, err)) return NULL;
    Chat *c = calloc(1, sizeof *c);
    int status = c ? load(c, &r) : fail(err, "no memory for the chat template");
    reader_close(&r);
    if (!status) return c;
    free(c);
    return NULL;
}

void chat_free(Chat *chat) { free(chat); }

// ---- what it can do ----

ChatSystem chat_system(const Chat *chat) {
    const Table *table = &chat->tables[WITH_SYSTEM];
    if (!table->pieces) return CHAT_SYSTEM_REFUSED;
    for (int i = 0; i < N_STATES * N_STATES; i++)
        if (has_system(chat, table->pieces[i])) return CHAT_SYSTEM_USED;
    return CHAT_SYSTEM_IGNORED;
}

bool chat_has_no_think(const Chat *chat) { return chat->no_think.p; }
bool chat_prints_date(const Chat *chat) { return chat->has_date; }
const char *chat_describe(const Chat *chat) { return chat->description; }

int chat_stop(const Chat *chat, const Tokenizer *tokenizer) {
    const Table *table = &chat->tables[0];
    int first_answer = ASSISTANT + FIRST, user_at_end = USER + LAST;
    int piece = table->pieces ? table->pieces[first_answer * N_STATES + user_at_end - 1] : -1;
    if (piece < 0 || chat->piece_begin[piece] == chat->piece_begin[piece + 1]) return -1;
    int item = chat->piece_begin[piece], *ids = NULL, id = -1;
    if (chat->item_kinds[item] != ITEM_TEXT) return -1;
    Span text = text_at(chat, chat->item_texts[item]);
    Error err;
    long n = tokenizer_encode(tokenizer, text.p, text.n, false, &ids, &err);
    if (n > 0 && tokenizer_is_special(tokenizer, ids[0])) id = ids[0];
    free(ids);
    return id;
}

// ---- transforms ----

// White space as Python's str.strip has it.
static bool is_space(uint32_t c) { return (unicode_class(c) & SPACE) || (0x1C <= c && c <= 0x1F); }

// A set is a text of its characters; the empty text stands for white space.
static const Span WHITE_SPACE = {"", 0}, NO_SET = {NULL, 0};

static bool in_set(Span set, uint32_t c) {
    if (!set.p) return false;
    if (set.n == 0) return is_space(c);
    for (size_t i = 0; i < set.n;) {
        uint32_t member;
        bool whole;
        i += utf8_decode((const uint8_t *)set.p + i, set.n - i, &member, &whole);
        if (member == c) return true;
    }
    return false;
}

// The last character of a text that is not empty, and its bytes.
static size_t last_character(Span s, uint32_t *c) {
    const uint8_t *end = (const uint8_t *)s.p + s.n;
    bool whole;
    for (size_t n = 1; n <= 4 && n <= s.n; n++)
        if ((end[-(ptrdiff_t)n] & 0xC0) != 0x80) {
            if (utf8_decode(end - n, n, c, &whole) == n) return n;
            break;
        }
    *c = REPLACEMENT;
    return 1;
}

static Span strip(Span s, Span left, Span right) {
    uint32_t c;
    bool whole;
    while (left.p && s.n > 0) {
        size_t n = utf8_decode((const uint8_t *)s.p, s.n, &c, &whole);
        if (!in_set(left, c)) break;
        s.p += n, s.n -= n;
    }
    while (right.p && s.n > 0) {
        size_t n = last_character(s, &c);
        if (!in_set(right, c)) break;
        s.n -= n;
    }
    return s;
}

static bool is_blank(Span s) { return strip(s, WHITE_SPACE, NO_SET).n == 0; }
static bool has_outer_space(Span s) { return strip(s, WHITE_SPACE, WHITE_SPACE).n < s.n; }

// What stands after the first, or the last, occurrence of a text; p NULL: it does not occur.
static Span after(Span s, Span marker, bool first) {
    Span found = {NULL, 0};
    for (const char *p; (p = memmem(s.p, s.n, marker.p, marker.n));) {
        found.p = p + marker.n;
        found.n = s.n - (size_t)(found.p - s.p);
        if (first) break;
        s = found;
    }
    return found;
}

static Span transform(const Chat *chat, int number, Span s) {
    const int32_t *t = chat->transforms + (ptrdiff_t)number * TRANSFORM_FIELDS;
    Span marker = text_at(chat, t[MARKER]), rest = {NULL, 0};
    if (marker.p) rest = after(s, marker, t[FIRST_MARKER]);
    return rest.p ? strip(rest, text_at(chat, t[LEFT_AFTER]), text_at(chat, t[RIGHT_AFTER]))
                  : strip(s, text_at(chat, t[LEFT]), text_at(chat, t[RIGHT]));
}

// ---- rendering ----

typedef struct {
    const Chat *chat;
    const Table *table;
    const Message *messages;
    size_t first, n;  // messages after the system's, and where all end
    Span system;
    time_t clock;
    FILE *out;
    Error *err;
} Render;

static void append(Render *r, Span s) { fwrite(s.p, 1, s.n, r->out); }

static int append_date(Render *r, Span format) {
    char code[MAX_FORMAT + 1], date[8 * MAX_FORMAT];
    struct tm tm;
    memcpy(code, format.p, format.n);
    code[format.n] = 0;
    if (!gmtime_r(&r->clock, &tm) || tm.tm_year < -900 || tm.tm_year > 8099)
        return fail(r->err, "the clock stands at %lld seconds after 1970, which is no date of the "
                    "years 1000 to 9999", (long long)r->clock);
    append(r, (Span){date, strftime(date, sizeof date, code, &tm)});
    return 0;
}

static const char *state_name(int state) {
    return state == BEGIN ? "the beginning" : state < ASSISTANT ? "a user's message" : "an answer";
}

static int append_piece(Render *r, int before, int state) {
    const Chat *c = r->chat;
    int piece = r->table->pieces[before * N_STATES + state - 1];
    if (piece < 0)
        return fail(r->err, "the chat template was not compiled for %s after %s",
                    state == END ? "an end" : state_name(state), state_name(before));
    for (int i = c->piece_begin[piece]; i < c->piece_begin[piece + 1]; i++) {
        Span text = text_at(c, c->item_texts[i]);
        if (c->item_kinds[i] == ITEM_TEXT) append(r, text);
        else if (c->item_kinds[i] == ITEM_DATE && append_date(r, text)) return -1;
        else if (c->item_kinds[i] == ITEM_SYSTEM)
            append(r, transform(c, r->table->transforms[BEGIN], r->system));
    }
    return 0;
}

static Span content_of(const Message *m) {
    return (Span){m->content_len ? m->content : "", m->content_len};
}

static int kind_of(int state) {
    if (state < ASSISTANT) return state == BEGIN ? KIND_SYSTEM : KIND_USER;
    return (state - ASSISTANT) & FINAL ? KIND_FINAL : KIND_ASSISTANT;
}

static int ascii_lower(char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; }

// Whether a text holds another, whatever the case of ASCII letters: a template may have changed it
// before it looked.
static bool holds(Span text, Span part) {
    for (size_t i = 0; part.n <= text.n && i <= text.n - part.n; i++) {
        size_t k = 0;
        while (k < part.n && ascii_lower(text.p[i + k]) == ascii_lower(part.p[k])) k++;
        if (k == part.n) return true;
    }
    return false;
}

// Refuses message i, whose content is in `state`, if it is of a class that is not exact.
static int check_content(const Render *r, size_t i, int state) {
    static const struct {
        int class;
        const char *what;
    } classes[] = {
        {EMPTY, "an empty text"}, {BLANK, "a text of nothing but white space"},
        {OUTER, "white space around a text"}, {BARE, "a text without anything after its thinking"},
    };
    const Message *m = &r->messages[i];
    Span text = content_of(m);
    int class = 0;
    if (text.n == 0) class = EMPTY;
    else if (is_blank(text)) class = BLANK;
    else class = (has_outer_space(text) ? OUTER : 0) |
                 (is_blank(transform(r->chat, r->table->transforms[state], text)) ? BARE : 0);
    for (int k = 0; k < 4; k++)
        if (class & ~r->table->classes[state] & classes[k].class)
            return fail(r->err, "message %zu (%s): what the chat template does with %s was not "
                        "compiled", i + 1, m->role, classes[k].what);
    const Ints *triggers = &r->chat->triggers[kind_of(state)];
    for (size_t k = 0; k < triggers->n; k++) {
        Span trigger = text_at(r->chat, triggers->v[k]);
        if (holds(text, trigger))
            return fail(r->err, "message %zu (%s): what the chat template does with a text that "
                        "holds \"%.*s\" was not compiled", i + 1, m->role,
                        trigger.n < 80 ? (int)trigger.n : 80, trigger.p);
    }
    return 0;
}

static int check_roles(const Message *messages, size_t n, Error *err) {
    if (n == 0) return fail(err, "a conversation needs a message");
    for (size_t i = 0; i < n; i++) {
        const char *role = messages[i].role;
        if (strcmp(role, "system") == 0 && i > 0)
            return fail(err, "message %zu: a system message can only be the first", i + 1);
        if (strcmp(role, "system") != 0 && strcmp(role, "user") != 0 &&
            strcmp(role, "assistant") != 0)
            return fail(err, "message %zu: role is \"%.40s\", expected system, user or assistant",
                        i + 1, role);
    }
    return 0;
}

// Refuses equal messages, where the template can take one for another.
static int check_distinct(const Render *r, size_t begin) {
    for (size_t i = begin; r->chat->distinct && i < r->n; i++)
        for (size_t j = begin; j < i; j++) {
            Span a = content_of(&r->messages[i]), b = content_of(&r->messages[j]);
            if (a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0))
                return fail(r->err, "messages %zu and %zu are equal, and what the chat template "
                            "then does was not compiled", j + 1, i + 1);
        }
    return 0;
}

// Finds the table of the conversation, which may say that an empty system message is none.
static int choose_table(Render *r, const ChatOptions *options) {
    const Chat *c = r->chat;
    bool has_system = strcmp(r->messages[0].role, "system") == 0;
    if (options->no_think && !c->no_think.p)
        return fail(r->err, "the chat template has no switch that turns thinking off");
    int number =
        (options->no_think ? NO_THINK : 0) + (options->add_generation_prompt ? 0 : NO_PROMPT);
    r->table = &c->tables[number + has_system];
    r->first = has_system;
    if (has_system && r->table->pieces) {
        Span text = r->system = content_of(&r->messages[0]);
        int none = text.n == 0 ? EMPTY_IS_NONE : is_blank(text) ? BLANK_IS_NONE : 0;
        if (r->table->classes[BEGIN] & none) r->table = &c->tables[number];
        else if (check_content(r, 0, BEGIN)) return -1;
    }
    if (r->table->pieces) return 0;
    Span why = r->table->refused;
    return fail(r->err, "the chat template cannot write a conversation %s system message%s%.*s",
                has_system ? "with a" : "without a", why.n ? ": " : "",
                why.n < 200 ? (int)why.n : 200, why.n ? why.p : "");
}

static int render(Render *r) {
    size_t last_user = 0;  // one after it
    int before = BEGIN;
    bool seen_user = false, seen_assistant = false;
    for (size_t i = r->first; i < r->n; i++)
        if (r->messages[i].role[0] == 'u') last_user = i + 1;
    for (size_t i = r->first; i < r->n; i++) {
        bool is_user = r->messages[i].role[0] == 'u';
        bool *seen = is_user ? &seen_user : &seen_assistant;
        int state = (is_user ? USER : ASSISTANT) + (*seen ? 0 : FIRST);
        if (i + 1 >= last_user) state += is_user && i + 1 == r->n ? LAST : FINAL;
        *seen = true;
        if (append_piece(r, before, state) || check_content(r, i, state)) return -1;
        append(r, transform(r->chat, r->table->transforms[state], content_of(&r->messages[i])));
        before = state;
    }
    return append_piece(r, before, END);
}

char *chat_render(const Chat *chat, const Message *messages, size_t n, const ChatOptions *options,
                  size_t *len, Error *err) {
    Render r = {.chat = chat, .messages = messages, .n = n, .clock = options->clock, .err = err};
    if (check_roles(messages, n, err) || choose_table(&r, options)) return NULL;
    bool drops_system = r.first && !((r.table - chat->tables) & WITH_SYSTEM);
    if (check_distinct(&r, drops_system)) return NULL;
    char *text = NULL;
    r.out = open_memstream(&text, len);
    int status = r.out ? render(&r) : 0;
    bool written = r.out && !ferror(r.out);
    if (r.out && fclose(r.out) != 0) written = false;
    if (written && !status) return text;
    if (!status) fail(err, "no memory for the text of a conversation");
    free(text);
    return NULL;
}
