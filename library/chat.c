// Writes a conversation by the tables of a compiled template. Each message's content is in a state.
// The text between two contents, a *piece*, depends on both states; the *transform* of a content
// depends on its own. The engine refuses what the exporter could not prove exact.
#include "library/chat.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "load/metadata.h"
#include "text/grow.h"
#include "text/unicode.h"

// States of contents: a role plus bits. FIRST: the first of its role. FINAL: a user's message that
// only answers follow, or an answer after the last user's message. LAST: a user's message at the
// end.
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
} Slice;

typedef struct {  // for one kind of conversation; pieces NULL: the template cannot write it
    const int32_t *pieces;      // [N_STATES][N_STATES]: piece between state i and j + 1, or -1
    const int32_t *transforms;  // [N_STATES], of the content in that state; the system's in BEGIN
    const int32_t *classes;     // [N_STATES]: bits OUTER ..: contents that are written exactly
    Slice refused;              // why not
} Table;

struct heads_chat {
    int n_texts, n_pieces, n_transforms;
    const int32_t *text_begin;  // [n_texts + 1]
    const char *text;
    const int32_t *piece_begin;               // [n_pieces + 1]: items of a piece
    const int32_t *item_kinds, *item_texts;   // of each item
    const int32_t *transforms;  // [n_transforms][TRANSFORM_FIELDS]: numbers of texts, -1: none
    Ints triggers[N_KINDS];                   // texts that a content must not contain
    int distinct;                             // 1: no two contents may be equal
    Slice no_think;  // the switch that turns thinking off; p NULL: there is none
    Table tables[N_TABLES];
    bool has_date;
    char description[160];
};

// Text i; p NULL where i is -1.
static Slice text_at(const Chat *c, int i) {
    if (i < 0) return (Slice){NULL, 0};
    return (Slice){c->text + c->text_begin[i], (size_t)(c->text_begin[i + 1] - c->text_begin[i])};
}

// ---- loading: every number of the file is checked before it is used ----

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

// Whether a date's format has only the codes of docs/format.md, which append_code() knows.
static bool is_format(Slice format) {
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
    Slice refused;
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

// ---- what the template can do ----

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
    Slice text = text_at(chat, chat->item_texts[item]);
    Error err;
    long n = heads_encode(tokenizer, text.p, text.n, false, &ids, &err);
    if (n > 0 && tokenizer_is_special(tokenizer, ids[0])) id = ids[0];
    free(ids);
    return n < 0 ? -2 : id;
}

// ---- transforms ----

// White space as in Python's str.strip.
static bool is_space(uint32_t c) { return (unicode_class(c) & SPACE) || (0x1C <= c && c <= 0x1F); }

// A set of characters is a text of them; the empty text: white space; p NULL: no character.
static const Slice WHITE_SPACE = {"", 0}, NO_SET = {NULL, 0};

static bool in_set(Slice set, uint32_t c) {
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

// Decodes the last character of a text that is not empty; returns its number of bytes.
static size_t last_character(Slice s, uint32_t *c) {
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

static Slice strip(Slice s, Slice left, Slice right) {
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

static bool is_blank(Slice s) { return strip(s, WHITE_SPACE, NO_SET).n == 0; }
static bool has_outer_space(Slice s) { return strip(s, WHITE_SPACE, WHITE_SPACE).n < s.n; }

// The text after the first, or the last, marker; p NULL: there is none.
static Slice after(Slice s, Slice marker, bool first) {
    Slice found = {NULL, 0};
    for (const char *p; (p = find_bytes(s.p, s.n, marker.p, marker.n));) {
        found.p = p + marker.n;
        found.n = s.n - (size_t)(found.p - s.p);
        if (first) break;
        s = found;
    }
    return found;
}

static Slice transform(const Chat *chat, int number, Slice s) {
    const int32_t *t = chat->transforms + (ptrdiff_t)number * TRANSFORM_FIELDS;
    Slice marker = text_at(chat, t[MARKER]), rest = {NULL, 0};
    if (marker.p) rest = after(s, marker, t[FIRST_MARKER]);
    return rest.p ? strip(rest, text_at(chat, t[LEFT_AFTER]), text_at(chat, t[RIGHT_AFTER]))
                  : strip(s, text_at(chat, t[LEFT]), text_at(chat, t[RIGHT]));
}

// ---- rendering ----

typedef struct {
    const Chat *chat;
    const Table *table;
    const Message *messages;
    size_t first, n;  // messages first..n-1 follow the system's
    Slice system;
    int64_t clock;
    char *text;         // [len], with room for text_room bytes
    size_t len, text_room;
    bool no_memory;     // the text is not whole
    Error *err;
} Render;

static void append(Render *r, Slice s) {
    if (r->no_memory || !RESERVE(r, text, r->len + s.n + 1)) {
        r->no_memory = true;
        return;
    }
    if (s.n) memcpy(r->text + r->len, s.p, s.n);
    r->text[r->len += s.n] = 0;
}

// Writes one code of a date as strftime does in the C locale, whatever the program's is. `bare`: a
// number without zeros before it.
static void append_code(Render *r, char code, bool bare, const struct tm *tm) {
    static const char *const days[] = {"Sunday", "Monday", "Tuesday", "Wednesday", "Thursday",
                                       "Friday", "Saturday"};
    static const char *const months[] = {"January", "February", "March", "April", "May", "June",
                                         "July", "August", "September", "October", "November",
                                         "December"};
    int number = 0, width = 2;
    const char *text = NULL;
    char digits[16];
    switch (code) {
    case 'd': number = tm->tm_mday; break;
    case 'm': number = tm->tm_mon + 1; break;
    case 'H': number = tm->tm_hour; break;
    case 'I': number = (tm->tm_hour + 11) % 12 + 1; break;
    case 'M': number = tm->tm_min; break;
    case 'S': number = tm->tm_sec; break;
    case 'j': number = tm->tm_yday + 1, width = 3; break;
    case 'y': number = (tm->tm_year + 1900) % 100; break;
    case 'Y': number = tm->tm_year + 1900; break;
    case 'A': case 'a': text = days[tm->tm_wday]; break;
    case 'B': case 'b': text = months[tm->tm_mon]; break;
    case 'p': text = tm->tm_hour < 12 ? "AM" : "PM"; break;
    default: text = "%";
    }
    bool is_short = code == 'a' || code == 'b';
    if (!text) snprintf(digits, sizeof digits, "%0*d", bare ? 1 : width, number);
    if (!text) text = digits;
    append(r, (Slice){text, is_short ? 3 : strlen(text)});
}

// The date and time of a clock that stands in the years 1000 to 9999. False: it does not.
static bool date_of(int64_t clock, struct tm *tm) {
    enum { DAY = 86400, WEDNESDAY = 3 };
    static const int lengths[12] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    const int64_t first = -30610224000, end = 253402300800;  // 1000-01-01, a Wednesday; 10000-01-01
    if (clock < first || clock >= end) return false;
    int day = (int)((clock - first) / DAY), second = (int)((clock - first) % DAY);
    int year = 1000, month = 0, leap, length;
    *tm = (struct tm){.tm_hour = second / 3600, .tm_min = second / 60 % 60, .tm_sec = second % 60,
                      .tm_wday = (WEDNESDAY + day) % 7};
    for (;; day -= 365 + leap, year++) {
        leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        if (day < 365 + leap) break;
    }
    tm->tm_yday = day;
    for (; day >= (length = lengths[month] + (month == 1 && leap)); month++) day -= length;
    tm->tm_year = year - 1900, tm->tm_mon = month, tm->tm_mday = day + 1;
    return true;
}

static int append_date(Render *r, Slice format) {
    struct tm tm;
    if (!date_of(r->clock, &tm))
        return fail(r->err, "the clock stands at %lld seconds after 1970, which is no date of the "
                    "years 1000 to 9999", (long long)r->clock);
    for (size_t i = 0; i < format.n; i++) {
        if (format.p[i] != '%') {
            append(r, (Slice){format.p + i, 1});
            continue;
        }
        bool bare = format.p[++i] == '-';
        append_code(r, format.p[i += bare], bare, &tm);
    }
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
        Slice text = text_at(c, c->item_texts[i]);
        if (c->item_kinds[i] == ITEM_TEXT) append(r, text);
        else if (c->item_kinds[i] == ITEM_DATE && append_date(r, text)) return -1;
        else if (c->item_kinds[i] == ITEM_SYSTEM)
            append(r, transform(c, r->table->transforms[BEGIN], r->system));
    }
    return 0;
}

static Slice content_of(const Message *m) {
    return (Slice){m->content_len ? m->content : "", m->content_len};
}

static int kind_of(int state) {
    if (state < ASSISTANT) return state == BEGIN ? KIND_SYSTEM : KIND_USER;
    return (state - ASSISTANT) & FINAL ? KIND_FINAL : KIND_ASSISTANT;
}

static int ascii_lower(char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; }

// Whether a text contains a word. The case of ASCII letters does not count, since a template may
// change it before it searches.
static bool holds(Slice text, Slice word) {
    for (size_t i = 0; word.n <= text.n && i <= text.n - word.n; i++) {
        size_t k = 0;
        while (k < word.n && ascii_lower(text.p[i + k]) == ascii_lower(word.p[k])) k++;
        if (k == word.n) return true;
    }
    return false;
}

// Refuses message i, in `state`, if its content is of a class that is not exact.
static int check_content(const Render *r, size_t i, int state) {
    static const struct {
        int class;
        const char *what;
    } classes[] = {
        {EMPTY, "an empty text"}, {BLANK, "a text of nothing but white space"},
        {OUTER, "white space around a text"}, {BARE, "a text without anything after its thinking"},
    };
    const Message *m = &r->messages[i];
    Slice text = content_of(m);
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
        Slice trigger = text_at(r->chat, triggers->v[k]);
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

static int compare_contents(const Message *x, const Message *y) {
    Slice a = content_of(x), b = content_of(y);
    if (a.n != b.n) return a.n < b.n ? -1 : 1;
    return a.n ? memcmp(a.p, b.p, a.n) : 0;
}

static int by_content_and_place(const void *a, const void *b) {
    const Message *x = *(const Message *const *)a, *y = *(const Message *const *)b;
    int order = compare_contents(x, y);
    return order ? order : (x > y) - (x < y);
}

// Refuses equal messages where the template depends on which of them it finds.
static int check_distinct(const Render *r, size_t begin) {
    size_t n = r->n - begin;
    if (!r->chat->distinct || n < 2) return 0;
    const Message **sorted = malloc(n * sizeof *sorted);
    if (!sorted) return fail(r->err, "no memory to compare %zu messages", n);
    for (size_t i = 0; i < n; i++) sorted[i] = &r->messages[begin + i];
    qsort(sorted, n, sizeof *sorted, by_content_and_place);
    const Message *first = NULL, *again = NULL;  // the earliest that repeats one
    for (size_t i = 1; i < n; i++)
        if ((!again || sorted[i] < again) && compare_contents(sorted[i - 1], sorted[i]) == 0)
            first = sorted[i - 1], again = sorted[i];
    free(sorted);
    if (!again) return 0;
    return fail(r->err, "messages %td and %td are equal, and what the chat template then does was "
                "not compiled", first - r->messages + 1, again - r->messages + 1);
}

// Chooses the conversation's table. A table may count an empty system message as none.
static int choose_table(Render *r, const ChatOptions *options) {
    const Chat *c = r->chat;
    bool has_system = strcmp(r->messages[0].role, "system") == 0;
    if (options->no_think && !c->no_think.p)
        return fail(r->err, "the chat template has no switch that turns thinking off");
    int number =
        (options->no_think ? NO_THINK : 0) + (options->answer ? 0 : NO_PROMPT);
    r->table = &c->tables[number + has_system];
    r->first = has_system;
    if (has_system && r->table->pieces) {
        Slice text = r->system = content_of(&r->messages[0]);
        int none = text.n == 0 ? EMPTY_IS_NONE : is_blank(text) ? BLANK_IS_NONE : 0;
        if (r->table->classes[BEGIN] & none) r->table = &c->tables[number];
        else if (check_content(r, 0, BEGIN)) return -1;
    }
    if (r->table->pieces) return 0;
    Slice why = r->table->refused;
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
    append(&r, (Slice){"", 0});  // so that there is a text
    int status = render(&r);
    if (!status && r.no_memory) status = fail(err, "no memory for the text of a conversation");
    *len = r.len;
    if (!status) return r.text;
    free(r.text);
    return NULL;
}
