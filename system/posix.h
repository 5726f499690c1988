// What posix.c asks of linux.c and macos.c, and gives them.
#ifndef POSIX_H
#define POSIX_H

#include "system/system.h"

// Moves a descriptor above 0, 1 and 2. Where a host has closed these, what anybody prints there
// would go into our file.
int above_standard(int fd);

int sync_file(int fd);    // 0: what was written survives a crash of the machine
int nameless_file(void);  // one that map_private can map; in memory if the system has such
void ask_small_pages(void *memory, size_t bytes);  // a cache would grow by huge ones at a time
// The path of the file that is mapped at an address, in text; NULL: none is. A signal handler calls
// this.
const char *mapped_path(const void *address, char text[], size_t size);

#endif
