#include "cli/chat/line_edit.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/print.h"
#include "cli/width.h"
#include "cli/wrap.h"
#include "library/inspect.h"

#define CTRL(letter) ((letter) - 'A' + 1)
enum { TAB = 4, WAIT = 50 };  // columns; milliseconds
enum { END = -1, NONE = -2 };  // no key: the end of input; none came in time
enum { UP = 256, DOWN, RIGHT, LEFT, WORD_RIGHT, WORD_LEFT, DELETE, PASTE, PASTE_END };

struct LineEdit {
    bool colours;
    int (*goes_on)(const char *text, size_t len);
    const char *(*command)(int i);
    bool seeks;              // Ctrl-R: the text up to the cursor ends with what is sought
    char *text;              // [len] of room
    size_t len, room, cursor;
    char **past;             // messages before, [n_past], then what was typed when one is shown
    size_t n_past, past_room, at;  // at: which is shown
    int columns, resumed;    // of the terminal, when it was last drawn
    int first, row;          // the text's row that is drawn first; the cursor's row below it
    char keys[4096];
    int n_keys, next;        // next: of the keys, the one to come
};

// ---- drawing ----

// below, x: the same on a terminal that became narrow and broke the rows from e->first on.
typedef struct { int row, column, below, x; } Place;

static Place row_after(const LineEdit *e, Place p, int column) {
    return (Place){p.row + 1, column, p.row < e->first ? 0 : p.below + 1, column};
}

// Goes through the text as it stood on the screen, and writes rows first..last. Returns where it
// ends; *cursor: where the cursor stands. columns: that the terminal has now.
static Place lay_out(const LineEdit *e, int columns, int first, int last, Place *cursor) {
    Place p = {0, 2, 0, 2};
    if (first == 0) fputs(e->seeks ? "? " : "> ", stdout);
    for (size_t i = 0, n = 1; i <= e->len; i += n) {
        uint32_t c = ' ';  // behind the text, the cursor's place
        bool whole;
        if (i < e->len) n = utf8_decode((uint8_t *)e->text + i, e->len - i, &c, &whole);
        int width = c == '\t' ? TAB : c == '\n' ? 0 : character_width(c);
        bool wraps = p.column + width > e->columns;
        if (wraps) p = row_after(e, p, 0);
        if (p.x + width > columns) p.below++, p.x = c == '\t' ? p.x - columns : 0;
        bool shown = p.row >= first && p.row <= last;
        if (wraps && shown && p.row > first) putchar('\n');
        if (i == e->cursor) *cursor = p;
        if (i == e->len) break;
        p.column += width, p.x += width;
        if (c == '\n') {
            p = row_after(e, p, 4);
            if (p.row >= first && p.row <= last) fputs(p.row > first ? "\n... " : "... ", stdout);
        } else if (shown) {
            bool strange = (c >= 0x7F && c < 0xA0) || c == 0xFFFD;  // control characters, bad bytes
            const char *as = c == '\t' ? "    " : strange ? "\xEF\xBF\xBD" : e->text + i;
            printf("%.*s", c == '\t' ? TAB : strange ? 3 : (int)n, as);
        }
    }
    return p;
}

static int columns_now(void) {
    int columns = terminal_columns(stdout);
    return columns >= 4 * TAB ? columns : columns > 0 ? 4 * TAB : 80;
}

// Draws over what was drawn before: the whole text, or the rows around the cursor that have room.
static void draw(LineEdit *e, bool whole) {
    int columns = columns_now(), rows = terminal_rows(stdout);
    Place cursor, end;
    lay_out(e, columns, INT_MAX, INT_MAX, &cursor);
    if (e->resumed != terminal_resumed()) e->row = 0;  // the shell has printed something
    else if (columns < e->columns) e->row = cursor.below;
    e->resumed = terminal_resumed(), e->columns = columns;
    end = lay_out(e, columns, INT_MAX, INT_MAX, &cursor);
    int height = rows > 0 ? rows : 24, last = end.row;
    if (e->first > end.row - height + 1) e->first = end.row - height + 1;
    if (e->first < cursor.row - height + 1) e->first = cursor.row - height + 1;
    if (e->first > cursor.row) e->first = cursor.row;
    if (e->first < 0 || whole) e->first = 0;
    if (!whole && last > e->first + height - 1) last = e->first + height - 1;
    if (e->row > 0) printf("\033[%dA", e->row);
    printf("\r\033[J%s", e->colours ? "\033[32m" : "");
    lay_out(e, columns, e->first, last, &cursor);
    printf("%s", e->colours ? "\033[m" : "");
    if (last > cursor.row) printf("\033[%dA", last - cursor.row);
    if (e->cursor < e->len) printf("\033[%dG", cursor.column + 1);
    e->row = cursor.row - e->first;
    write_out("", 0);
}

// ---- the text ----

static void insert(LineEdit *e, char c) {
    if (((unsigned char)c < ' ' && c != '\n' && c != '\t') || c == 0x7F) return;
    e->text = grown(e->text, e->len + 2, &e->room, 1);
    memmove(e->text + e->cursor + 1, e->text + e->cursor, e->len - e->cursor);
    e->text[e->cursor++] = c;
    e->text[++e->len] = 0;
}

static void erase(LineEdit *e, size_t begin, size_t end) {
    memmove(e->text + begin, e->text + end, e->len - end);
    e->cursor = begin;
    e->len -= end - begin;
    e->text[e->len] = 0;
}

// Whether the cursor may stand at i: not inside a character, nor between one and its marks.
static bool is_place(const LineEdit *e, size_t i) {
    uint32_t c;
    bool whole;
    if (i == 0 || i >= e->len) return true;
    utf8_decode((uint8_t *)e->text + i, e->len - i, &c, &whole);
    return (e->text[i] & 0xC0) != 0x80 && character_width(c) > 0;
}

static size_t step(const LineEdit *e, int way) {
    size_t i = e->cursor, last = way < 0 ? 0 : e->len;
    if (i != last) i += (size_t)way;
    while (!is_place(e, i)) i += (size_t)way;
    return i;
}

static size_t word(const LineEdit *e, int way) {
    size_t i = e->cursor;
    for (bool inside = false; way < 0 ? i > 0 : i < e->len; i += (size_t)way) {
        bool blank = isspace((unsigned char)e->text[way < 0 ? i - 1 : i]);
        if (blank && inside) break;
        inside |= !blank;
    }
    return i;
}

// The begin (way -1) or end (1) of the line that i is in.
static size_t line_edge(const LineEdit *e, size_t i, int way) {
    while (way < 0 ? i > 0 && e->text[i - 1] != '\n' : i < e->len && e->text[i] != '\n')
        i += (size_t)way;
    return i;
}

// ---- the past ----

// Makes what is typed the last of the past.
static void keep(LineEdit *e) {
    free(e->past[e->n_past]);
    e->past[e->n_past] = copy_of(e->text, e->len);
}

static void recall(LineEdit *e, size_t at) {
    if (e->at == e->n_past) keep(e);
    e->at = at;
    erase(e, 0, e->len);
    for (const char *c = e->past[at]; *c; c++) insert(e, *c);
}

// Moves a line up or down in the text, or in the past from its first or last line.
static void move(LineEdit *e, int key) {
    size_t begin = line_edge(e, e->cursor, -1), end = line_edge(e, e->cursor, 1);
    size_t to = e->cursor - begin;
    if (key == UP && begin > 0) {
        to += line_edge(e, begin - 1, -1);
        e->cursor = to < begin ? to : begin - 1;
    } else if (key == DOWN && end < e->len) {
        size_t most = line_edge(e, end + 1, 1);
        e->cursor = to + end + 1 < most ? to + end + 1 : most;
    } else if (key == UP ? e->at > 0 : e->at < e->n_past) {
        recall(e, key == UP ? e->at - 1 : e->at + 1);
    }
    while (!is_place(e, e->cursor)) e->cursor--;
}

// Shows the youngest message of past[..from] that has `sought`, with the cursor behind it. False:
// none has.
static bool find(LineEdit *e, size_t from, const char *sought) {
    for (size_t i = from + 1; i-- > 0;) {
        const char *found = strstr(e->past[i], sought);
        if (!found) continue;
        size_t at = (size_t)(found - e->past[i]) + strlen(sought);
        if (i != e->at) recall(e, i);
        for (e->cursor = at; !is_place(e, e->cursor);) e->cursor++;
        return true;
    }
    return false;
}

// ---- keys ----

// The next byte, END or, unless it waits, NONE.
static int next_byte(LineEdit *e, bool waits) {
    while (!interrupted && e->next == e->n_keys) {
        int n = terminal_read(e->keys, sizeof e->keys, WAIT);
        if (n < 0) return END;
        if (n == 0 && !waits) return NONE;
        e->n_keys = n, e->next = 0;
        if (e->columns != columns_now() || e->resumed != terminal_resumed()) draw(e, false);
    }
    return interrupted ? END : (unsigned char)e->keys[e->next++];
}

// The key whose code begins with ESC. NONE: it means nothing here.
static int escaped_key(LineEdit *e, bool waits) {
    static const int arrows[] = {UP, DOWN, RIGHT, LEFT}, tilde[9] = {
        [1] = CTRL('A'), [3] = DELETE, [4] = CTRL('E'), [7] = CTRL('A'), [8] = CTRL('E')};
    int numbers[2] = {0, 0}, n = 0, c = next_byte(e, waits);
    if (c == 'b' || c == 'f') return c == 'b' ? WORD_LEFT : WORD_RIGHT;
    if (c == 0x7F) return CTRL('W');
    if (c != '[' && c != 'O') return NONE;
    while ((c = next_byte(e, waits)) == ';' || (c >= '0' && c <= '9')) {
        if (c == ';') n = 1;
        else if (numbers[n] < 1000) numbers[n] = 10 * numbers[n] + c - '0';
    }
    bool word = numbers[1] > 2;  // with Alt or Ctrl
    if (word && (c == 'C' || c == 'D')) return c == 'C' ? WORD_RIGHT : WORD_LEFT;
    if (c >= 'A' && c <= 'D') return arrows[c - 'A'];
    if (c == 'H' || c == 'F') return c == 'H' ? CTRL('A') : CTRL('E');
    if (c == '~' && numbers[0] / 2 == 100) return numbers[0] == 200 ? PASTE : PASTE_END;
    return c == '~' && numbers[0] < 9 && tilde[numbers[0]] ? tilde[numbers[0]] : NONE;
}

// Its lines end as they may; the end of the last one is dropped.
static void paste(LineEdit *e) {
    size_t begin = e->cursor;
    for (int c, last = 0; (c = next_byte(e, true)) >= 0; last = c) {
        if (c == 033 && escaped_key(e, true) == PASTE_END) break;
        if (c != '\n' || last != '\r') insert(e, (char)(c == '\r' ? '\n' : c));
    }
    while (e->cursor > begin && e->text[e->cursor - 1] == '\n') erase(e, e->cursor - 1, e->cursor);
}

// Where a command is typed, adds what all that begin so have in common, or lists them.
static void complete(LineEdit *e) {
    const char *common = NULL, *name;
    size_t n = 0;
    int matches = 0;
    for (int i = 0; (name = e->command(i)); i++) {
        if (strncmp(name, e->text, e->len) != 0) continue;
        if (matches++ == 0) common = name, n = strlen(name);
        while (strncmp(common, name, n) != 0) n--;
    }
    if (matches > 1 && n == e->len) {
        Text list = {0};
        for (int i = 0; (name = e->command(i)); i++)
            if (strncmp(name, e->text, e->len) == 0) text_format(&list, "%s  ", name);
        write_words("\n", 1);
        write_words(list.data, list.size);
        write_words("\n", 1);
        free(list.data);
        e->row = 0;  // the text is drawn anew below
    }
    for (size_t i = e->len; i < n; i++) insert(e, common[i]);
    if (matches == 1) insert(e, ' ');
}

static void tab(LineEdit *e) {
    bool command = e->text[0] == '/' && e->cursor == e->len && !memchr(e->text, ' ', e->len);
    if (command) complete(e);
    else insert(e, '\t');
}

// Ctrl-R: each key narrows what is sought, which stands before the cursor; Ctrl-R goes on to an
// older message, Ctrl-G back to what was typed. Returns the key that ends it, to be acted on.
static int seek(LineEdit *e) {
    Text sought = {0};
    int key;
    text_add(&sought, "", 0);
    if (e->at == e->n_past) keep(e);
    e->seeks = true;
    for (;;) {
        if (e->next == e->n_keys) draw(e, false);
        key = next_byte(e, true);
        bool typed = key >= ' ' && key < 256 && key != 0x7F, found = true;
        if (typed) {
            text_add(&sought, (char[]){(char)key}, 1);
            found = find(e, e->at, sought.data);
            if (!found) sought.data[--sought.size] = 0;
        } else if (key == 0x7F || key == CTRL('H')) {
            if (sought.size > 0) sought.data[--sought.size] = 0;
            found = find(e, e->n_past, sought.data);
        } else if (key == CTRL('R')) {
            found = e->at > 0 && find(e, e->at - 1, sought.data);
        } else break;
        if (!found) putchar('\a');
    }
    if (key == CTRL('G')) find(e, e->n_past, ""), e->cursor = e->len, key = NONE;
    e->seeks = false;
    free(sought.data);
    return key;
}

// True: the message is whole.
static bool enter(LineEdit *e) {
    int replaced = e->goes_on(e->text, e->len);
    if (replaced >= 0) erase(e, e->len - (size_t)replaced, e->len), insert(e, '\n');
    return replaced < 0;
}

static bool act(LineEdit *e, int key) {
    if (key == CTRL('R')) key = seek(e);
    if (key == 033) key = escaped_key(e, false);
    switch (key) {
    case '\r': case '\n': return enter(e);
    case NONE: case END: break;
    case '\t': tab(e); break;
    case PASTE: paste(e); break;
    case LEFT: case CTRL('B'): e->cursor = step(e, -1); break;
    case RIGHT: case CTRL('F'): e->cursor = step(e, 1); break;
    case WORD_LEFT: case WORD_RIGHT: e->cursor = word(e, key == WORD_LEFT ? -1 : 1); break;
    case CTRL('A'): e->cursor = line_edge(e, e->cursor, -1); break;
    case CTRL('E'): e->cursor = line_edge(e, e->cursor, 1); break;
    case UP: case CTRL('P'): move(e, UP); break;
    case DOWN: case CTRL('N'): move(e, DOWN); break;
    case 0x7F: case CTRL('H'): erase(e, step(e, -1), e->cursor); break;
    case DELETE: case CTRL('D'): erase(e, e->cursor, step(e, 1)); break;
    case CTRL('K'): erase(e, e->cursor, line_edge(e, e->cursor, 1)); break;
    case CTRL('U'): erase(e, line_edge(e, e->cursor, -1), e->cursor); break;
    case CTRL('W'): erase(e, word(e, -1), e->cursor); break;
    case CTRL('L'): fputs("\033[H\033[2J", stdout), e->row = 0; break;
    default: insert(e, (char)key);
    }
    return false;
}

// ---- messages ----

LineEdit *line_edit_new(int (*goes_on)(const char *text, size_t len), const char *(*command)(int i),
                        bool colours) {
    if (!terminal_raw()) return NULL;
    LineEdit *e = allocate(1, sizeof *e);
    e->goes_on = goes_on, e->command = command, e->colours = colours;
    e->past = allocate(e->past_room = 1, sizeof *e->past);
    insert(e, ' ');  // so that there is a text
    return e;
}

void line_edit_free(LineEdit *e) {
    terminal_restore();
    for (size_t i = 0; i <= e->n_past; i++) free(e->past[i]);
    free(e->past);
    free(e->text);
    free(e);
}

Text line_edit_read(LineEdit *e) {
    Text typed = {0};
    bool ends = false, whole = false;
    e->row = 0, e->at = e->n_past;
    erase(e, 0, e->len);
    while (!ends && !whole) {
        if (e->next == e->n_keys) draw(e, false);
        int key = next_byte(e, true);
        ends = key == END || (key == CTRL('D') && e->len == 0);
        whole = !ends && act(e, key);
    }
    e->cursor = e->len;
    draw(e, true);
    write_out("\n", 1);
    if (ends && !(interrupted && e->len > 0)) return typed;
    if (ends) interrupted = 0, e->len = 0;  // Ctrl-C takes back what was typed
    text_add(&typed, e->text, e->len);
    line_edit_remember(e, e->text, e->len);
    return typed;
}

void line_edit_remember(LineEdit *e, const char *text, size_t len) {
    if (len == 0 || (e->n_past > 0 && strcmp(e->past[e->n_past - 1], text) == 0)) return;
    free(e->past[e->n_past]);
    e->past[e->n_past] = copy_of(text, len);
    e->past = grown(e->past, ++e->n_past + 1, &e->past_room, sizeof *e->past);
    e->past[e->n_past] = NULL;
}
