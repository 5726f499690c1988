// run.c: the command line. cli/options.c has the table of options. Each verb has a file or a room
// in cli/, which calls the engine by heads.h and library/inspect.h, and opens none of its structs.
// Only run.c and cli/ print, read the environment, or exit: 0 done, 1 failed, 2 wrong usage, 130
// interrupted.
#include "cli/verbs.h"

int main(int argc, char **argv) {
    Options options = parse_options(argc, argv);
    return run_verb(&options);
}
