// run.c: the command line. What can be asked for is a table in cli/options.c; what is done then is
// a file in cli/ for each verb. Only run.c and cli/ print, read the environment, or exit: 0 done,
// 1 failed, 2 wrong usage, 130 interrupted.
#include <signal.h>

#include "cli/print.h"
#include "cli/verbs.h"

static const struct {
    Verb verb;
    int (*run)(const Options *options);
} VERBS[] = {
    {GENERATE, generate}, {CHAT, chat},
    {LOGITS, write_logits}, {HIDDEN, write_logits}, {EMBED, embed_texts}, {SIMILAR, similar},
    {PPL, perplexity},    {KV, kv},
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
