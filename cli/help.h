// help.c: the table of options as a list for people, a manual page, and completion for shells.
#ifndef CLI_HELP_H
#define CLI_HELP_H

#include "options.h"

typedef enum { HEADING, FLAG, TEXT, MODEL, INT, INTS, FLOAT, SEED, TYPE, BYTES, VERB } Kind;

typedef struct {
    Kind kind;
    const char *name, *value;  // value: what the help calls it
    size_t field;              // where in Options it goes
    double min, max;           // of a number
    Verb selects;              // the verb that it asks for, if any
    unsigned verbs;            // the verbs that use it
    const char *help;
    const char *also;          // another name of it
    const char *words;         // what the value may be, if only these
} Option;

// In `verbs`: whatever the verb.
#define ANY_VERB (~0u)

typedef struct {
    const Option *rows;
    int n;
} OptionTable;

// The name of the verb that no option selects.
extern const char GENERATION[];

void print_help(OptionTable table);
void print_verb_help(OptionTable table, Verb verb);
void print_manual(OptionTable table);  // as man reads it

// Prints what the shell reads to complete the words of a command. False: there is no such shell.
bool print_completion(OptionTable table, const char *shell);

#endif
