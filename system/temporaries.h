// temporaries.c: open files with a temporary name, to be removed if the process ends now.
#ifndef TEMPORARIES_H
#define TEMPORARIES_H

#include "system/system.h"

// Puts `to` where `from` stands. NULL stands where no file does.
void list_temporary(NewFile *from, NewFile *to);
// A system's own. Signal handlers call it.
void remove_temporary(const NewFile *file);

#endif
