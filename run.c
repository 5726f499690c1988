// run.c: the command line. cli/options.c has the table of options. Each verb has a file or a room
// in cli/, which uses the engine through heads.h and library/inspect.h alone. Only run.c and cli/
// print, read the environment, or exit: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
#include "cli/print.h"
#include "cli/verbs.h"
#include "library/inspect.h"

int main(int argc, char **argv) {
    name_program(argc > 0 ? argv[0] : "");
    argv = prepare_process(program_name(), &argc, argv);
    Options options = parse_options(argc, argv);
    int status = run_verb(&options);
    write_out("", 0);
    return status;
}
