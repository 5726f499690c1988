#include "math/adapted.h"

#include <stdlib.h>

#include "load/adapter.h"

void heads_adapter_close(heads_adapter *a) {
    if (!a || atomic_fetch_sub(&a->users, 1) > 1) return;
    checkpoint_free(&a->file);
    unmap_file(&a->mapped);
    free(a->pairs);
    free(a);
}

void set_adapted(Adapted *to, heads_adapter *adapter, float scale) {
    if (adapter) atomic_fetch_add(&adapter->users, 1);
    heads_adapter_close(to->adapter);
    *to = (Adapted){adapter, scale};
}
