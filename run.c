// run.c: the command line. cli/options.c has a table of what can be asked for; each verb has a file
// in cli/. Only run.c and cli/ print, read the environment, or exit: 0 done, 1 failed, 2 wrong
// usage, 130 interrupted.
#include <signal.h>

#include "cli/print.h"
#include "cli/verbs.h"

static const struct {
    Verb verb;
    int (*run)(const Options *options);
} VERBS[] = {
    {GENERATE, generate}, {CHAT, chat},
    {LOOK, look}, {HIDDEN, look}, {EMBED, embed_texts}, {SIMILAR, similar},
    {PPL, perplexity}, {KV, kv},
    {INFO, info},         {CHECK, check},         {TOKENIZE, tokenize}, {BENCH, bench},
    {BATCH, batch},
};

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN);
    Options options = parse_options(argc, argv);
    int i = 0;
    while (VERBS[i].verb != options.verb) i++;
    int status = VERBS[i].run(&options);
    write_out("", 0);
    return status;
}
