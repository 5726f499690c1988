#include "system/temporaries.h"

#include <stdatomic.h>

static _Atomic(NewFile *) temporaries[8];
enum { N_TEMPORARIES = sizeof temporaries / sizeof *temporaries };

void list_temporary(NewFile *from, NewFile *to) {
    for (int i = 0; i < N_TEMPORARIES; i++) {
        NewFile *expected = from;
        if (atomic_compare_exchange_strong(&temporaries[i], &expected, to)) return;
    }
}

void newfile_remove_temporaries(void) {
    for (int i = 0; i < N_TEMPORARIES; i++) {
        const NewFile *file = atomic_load(&temporaries[i]);
        if (file) remove_temporary(file);
    }
}
