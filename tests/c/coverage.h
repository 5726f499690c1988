// make coverage puts it before every file, so that a process that a signal ends counts too.
#ifndef __ASSEMBLER__  // build/stories.S is compiled with the same flags
#include <signal.h>
#include <unistd.h>

void __gcov_dump(void), __gcov_reset(void);
#define _exit(status) (__gcov_dump(), _exit(status))
#define raise(number) (__gcov_dump(), __gcov_reset(), raise(number))
#endif
