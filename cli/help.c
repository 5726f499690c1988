#include "help.h"

#include <stdio.h>
#include <string.h>

#include "print.h"

static const char MODELS[] =
    "MODEL is a checkpoint: models/stories.bin, which is also bundled with the program, for where "
    "none is\nnamed, or one that export.py has made. Of a directory, a GGUF or a hub id (org/name) "
    "one is made, once,\nin the user's cache. The prompt and what the model adds go to stdout, "
    "everything else to stderr.\nDefaults are in parentheses.\n";
static const char ENDS[] =
    "Generation ends at an end-of-text token, after -n tokens, when the context is full, or at "
    "Ctrl-C;\nthe last line on stderr says which. Special tokens are printed in answers only. The "
    "environment\nvariable HEADS_ISA chooses the kernels: scalar, avx2, avxvnni, avx512, "
    "avx512bf16, amx or neon.\n";
static const char STATUS[] =
    "Exit status: 0 done (also when stdout loses its reader), 1 failed, 2 wrong usage, 130 after "
    "Ctrl-C.\n";
const char GENERATION[] = "generation";
static const char GENERATES[] = "continues a text with a language model";

// ---- for people ----

static void print_option(const Option *o) {
    enum { LEFT = 20 };
    char left[64];
    int n = snprintf(left, sizeof left, "%s%s%s%s%s", o->name, o->also ? ", " : "",
                     o->also ? o->also : "", o->value ? " " : "", o->value ? o->value : "");
    if (n > LEFT) printf("  %s\n%*s", left, LEFT + 3, "");
    else printf("  %-*s ", LEFT, left);
    for (const char *line = o->help; *line;) {
        int len = (int)strcspn(line, "\n");
        printf("%.*s\n", len, line);
        line += len;
        if (*line) printf("%23s", ""), line++;
    }
}

void print_help(OptionTable table) {
    const char *run = program_command();
    printf("%s [MODEL] [options]    %s\n\n", run, GENERATES);
    printf("  %s models/stories.bin -p \"One day, a fox\" -n 100\n\n%s", run, MODELS);
    for (const Option *o = table.rows; o < table.rows + table.n; o++) {
        if (o->kind == HEADING) printf("\n%s:\n", o->name);
        else print_option(o);
    }
    printf("\n%s%s", ENDS, STATUS);
}

void print_verb_help(OptionTable table, Verb verb) {
    const char *run = program_command(), *heading = NULL;
    if (verb == GENERATE) printf("%s [MODEL] [options]    %s\n", run, GENERATES);
    for (const Option *o = table.rows; o < table.rows + table.n; o++) {
        if (!o->selects || o->selects != verb) continue;
        printf("%s [MODEL] %s%s%s [options]\n\n", run, o->name, o->value ? " " : "",
               o->value ? o->value : "");
        print_option(o);
    }
    for (const Option *o = table.rows; o < table.rows + table.n; o++) {
        if (o->kind == HEADING) heading = o->name;
        if (!(o->verbs & verb) || o->verbs == ANY_VERB || o->selects == verb) continue;
        if (heading) printf("\n%s:\n", heading);
        heading = NULL;  // it is printed once, above what follows it
        print_option(o);
    }
}

// ---- for man ----

// roff takes "-" for a hyphen, "\" for a command, and a "." or "'" that begins a line too.
static void print_roff(const char *text) {
    for (const char *c = text; *c; c++) {
        bool begins = c == text || c[-1] == '\n';
        if (begins && (*c == '.' || *c == '\'')) printf("\\&");
        if (*c == '-') printf("\\-");
        else if (*c == '\\') printf("\\e");
        else putchar(*c);
    }
}

static void print_section(const char *name, const char *text) {
    printf(".SH %s\n", name);
    print_roff(text);
}

void print_manual(OptionTable table) {
    printf(".TH HEADS 1 \"\" \"heads %s\"\n.SH NAME\nheads \\- %s\n.SH SYNOPSIS\n"
           ".B heads\n[MODEL] [options]\n.br\n.B heads help\n[VERB]\n", heads_version(), GENERATES);
    print_section("DESCRIPTION", MODELS);
    print_section("OPTIONS", "");
    for (const Option *o = table.rows; o < table.rows + table.n; o++) {
        if (o->kind == HEADING) {
            printf(".SS ");
            print_roff(o->name);
        } else {
            printf(".TP\n\\fB");
            print_roff(o->name);
            if (o->also) printf("\\fR, \\fB"), print_roff(o->also);
            printf("\\fR%s%s\n", o->value ? " " : "", o->value ? o->value : "");
            print_roff(o->help);
        }
        printf("\n");
    }
    print_section("NOTES", ENDS);
    print_section("EXIT STATUS", STATUS);
}

// ---- for shells ----

// What an option does, in a few words: its help up to a semicolon or a parenthesis, in a quoted
// string of the shell, which has a backslash before some characters.
static void print_summary(const Option *o, const char *escaped) {
    size_t n = strcspn(o->help, ";(");
    while (n && (o->help[n - 1] == ' ' || o->help[n - 1] == '\n')) n--;
    for (const char *c = o->help; c < o->help + n; c++) {
        if (*c == '\'') printf("'\\''");
        else printf("%s%c", strchr(escaped, *c) ? "\\" : "", *c == '\n' ? ' ' : *c);
    }
}

static bool takes_file(const Option *o) {
    static const char *const names[] = {"MODEL", "FILE", "DRAFT"};
    for (int i = 0; o->value && i < 3; i++)
        if (strcmp(o->value, names[i]) == 0) return true;
    return false;
}

static void print_words(OptionTable table, const Option *o) {
    if (o->words) printf("%s", o->words);
    if (o->kind != VERB) return;
    printf("%s", GENERATION);
    for (const Option *v = table.rows; v < table.rows + table.n; v++)
        if (v->selects) printf(" %s", v->name + strspn(v->name, "-"));
}

static bool has_words(const Option *o) { return o->words || o->kind == VERB; }

static void complete_bash(OptionTable table) {
    printf("_heads() {\n    local word=${COMP_WORDS[COMP_CWORD]} words\n"
           "    case ${COMP_WORDS[COMP_CWORD - 1]} in\n");
    for (const Option *o = table.rows; o < table.rows + table.n; o++) {
        if (!has_words(o)) continue;
        printf("    %s%s%s%s) words='", o->kind == VERB ? "help | " : "", o->name,
               o->also ? " | " : "", o->also ? o->also : "");
        print_words(table, o);
        printf("' ;;\n");
    }
    printf("    *) [[ $word == -* ]] || return\n        words='");
    for (const Option *o = table.rows; o < table.rows + table.n; o++)
        if (o->kind != HEADING) printf("%s%s%s ", o->name, o->also ? " " : "",
                                       o->also ? o->also : "");
    printf("' ;;\n    esac\n    COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n}\n"
           "complete -o default -F _heads heads ./run\n");
}

static void complete_zsh(OptionTable table) {
    printf("#compdef heads\n_arguments");
    for (const Option *o = table.rows; o < table.rows + table.n; o++) {
        for (int i = 0; i < 2 && o->kind != HEADING; i++) {
            const char *name = i ? o->also : o->name;
            if (!name) continue;
            printf(" \\\n    '%s[", name);
            print_summary(o, "[]\\");
            printf("]%s", o->kind == VERB ? ":" : "");
            if (o->value) printf(":%s:%s", o->kind == VERB ? "VERB" : o->value,
                                 takes_file(o) ? "_files" : has_words(o) ? "(" : "");
            print_words(table, o);
            printf("%s'", has_words(o) ? ")" : "");
        }
    }
    printf(" \\\n    '*:MODEL:_files'\n");
}

static void complete_fish(OptionTable table) {
    for (const Option *o = table.rows; o < table.rows + table.n; o++) {
        if (o->kind == HEADING) continue;
        printf("complete -c heads");
        for (int i = 0; i < 2; i++) {
            const char *name = i ? o->also : o->name;
            if (!name) continue;
            const char *kind = strncmp(name, "--", 2) == 0 ? "-l" : name[2] ? "-o" : "-s";
            printf(" %s %s", kind, name + strspn(name, "-"));
        }
        if (o->value) printf(takes_file(o) ? " -r" : " -x");
        if (has_words(o)) printf(" -a '"), print_words(table, o), printf("'");
        printf(" -d '");
        print_summary(o, "\\");
        printf("'\n");
    }
}

bool print_completion(OptionTable table, const char *shell) {
    if (strcmp(shell, "bash") == 0) complete_bash(table);
    else if (strcmp(shell, "zsh") == 0) complete_zsh(table);
    else if (strcmp(shell, "fish") == 0) complete_fish(table);
    else return false;
    return true;
}
