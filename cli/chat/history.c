#include "cli/chat/history.h"

#include <stdlib.h>
#include <string.h>

#include "library/inspect.h"

static const char PATH[] = "~/.heads_history";
enum { MOST = 1000 };  // messages that are loaded

char *from_home(const char *path) {
    const char *home = getenv("HOME");
    if (!home) home = getenv("USERPROFILE");
    Text whole = {0};
    bool begins = home && path[0] == '~' && path[1] == '/';
    text_format(&whole, "%s%s", begins ? home : "", path + begins);
    return whole.data;
}

// Each message is a line: \n stands for its line ends, \\ for its backslashes.
static Text decoded(Text line) {
    Text message = {0};
    text_add(&message, "", 0);
    for (size_t i = 0; i < line.size; i++) {
        bool escaped = line.data[i] == '\\' && i + 1 < line.size;
        if (escaped) i++;
        text_add(&message, escaped && line.data[i] == 'n' ? "\n" : line.data + i, 1);
    }
    return message;
}

void history_load(LineEdit *editor) {
    char *path = from_home(PATH);
    FILE *f = is_regular(path) ? open_to_read(path) : NULL;
    if (f) {
        long n;
        Text text = read_stream(f, path), *lines = split_lines(text, &n);
        fclose(f);
        for (long i = n > MOST ? n - MOST : 0; i < n; i++) {
            Text message = decoded(lines[i]);
            line_edit_remember(editor, message.data, message.size);
            free(message.data);
        }
        free(lines);
        free(text.data);
    }
    free(path);
}

void history_add(Text message) {
    char *path = from_home(PATH);
    Text line = {0};
    for (size_t i = 0; i < message.size; i++) {
        char c = message.data[i];
        if (c == '\n' || c == '\\') text_add(&line, "\\", 1);
        text_add(&line, c == '\n' ? "n" : &c, 1);
    }
    text_add(&line, "\n", 1);
    bool may = *path != '~' && (is_missing(path) || is_regular(path));  // a pipe would wait
    GrownFile *file = may ? grown_open(path, true) : NULL;
    if (file) {
        grown_write(file, line.data, line.size);
        grown_close(file);
    }
    free(line.data);
    free(path);
}
