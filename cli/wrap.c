#include "cli/wrap.h"

#include <stdlib.h>
#include <string.h>

#include "cli/print.h"
#include "cli/width.h"
#include "library/inspect.h"

// ---- what the stream can do ----

bool has_colours(FILE *stream) {
    const char *refused = getenv("NO_COLOR");
    return is_screen(stream) && !(refused && *refused);
}

// ---- lines ----

typedef struct {
    int columns;       // of the terminal
    int column;        // of the cursor; columns: the line is full
    int begin;         // column of the word that the cursor stands behind
    char word[1024];   // that word
    size_t len;
    FILE *out;
} Lines;

static void begin_word(Lines *l) {
    l->begin = l->column;
    l->len = 0;
}

static void new_line(Lines *l) {
    fputc('\n', l->out);
    l->column = 0;
    begin_word(l);
}

// Takes the word back and writes it on the next line.
static void move_word(Lines *l) {
    int width = l->column - l->begin;
    size_t len = l->len;
    fprintf(l->out, "\r\033[%dC\033[K", l->begin);
    new_line(l);
    fwrite(l->word, 1, len, l->out);
    l->len = len;
    l->column = width;
}

static void put_character(Lines *l, const char *text, size_t n, uint32_t c) {
    int width = character_width(c);
    bool wide = width == 2;  // a line may end between two of these
    if (wide) begin_word(l);
    if (l->column + width > l->columns) {
        if (l->begin > 0 && l->len > 0) move_word(l);
        else new_line(l);
    }
    if (l->len + n > sizeof l->word) begin_word(l);
    if (l->len > 0 || width > 0) {  // a mark without its character stays where that is
        memcpy(l->word + l->len, text, n);
        l->len += n;
    }
    l->column += width;
    fwrite(text, 1, n, l->out);
    if (wide) begin_word(l);
}

static void put_blank(Lines *l, char c) {
    if (c == '\n') {
        new_line(l);
        return;
    }
    int width = c == '\t' ? 8 - l->column % 8 : 1;
    if (l->column + width <= l->columns) fputc(c, l->out);  // else the line ends here anyway
    l->column = l->column + width < l->columns ? l->column + width : l->columns;
    begin_word(l);
}

static void put_text(Lines *l, const char *text, size_t len) {
    for (size_t i = 0, n; i < len; i += n) {
        uint32_t c;
        bool whole;
        n = utf8_decode((const uint8_t *)text + i, len - i, &c, &whole);
        if (c == ' ' || c == '\t' || c == '\n') put_blank(l, text[i]);
        else put_character(l, text + i, n, c);
    }
}

// ---- streams ----

static bool wraps(Lines *l, FILE *out) {
    l->columns = is_screen(out) ? terminal_columns(out) : 0;
    l->out = out;
    return l->columns > 0;
}

bool write_words(const char *text, size_t len) {
    static Lines lines;
    if (!wraps(&lines, stdout)) return write_out(text, len);
    put_text(&lines, text, len);
    return write_out("", 0);
}

void say_words(const char *text) {
    Lines lines = {0};
    if (wraps(&lines, stderr)) put_text(&lines, text, strlen(text));
    else fputs(text, stderr);
}
