#include "math/probe.h"

#include <stdio.h>

enum { MAX_PRODUCTS = 4 };  // of one input

// The name that the checkpoint has for a matrix.
static void name_of(const Workspace *w, const Matrix *matrix, char *name, size_t size) {
    const Checkpoint *file = &w->model->file;
    const Tensor *t = file->tensors;
    while (t < file->tensors + file->n_tensors - 1 && t->data != matrix->data) t++;
    snprintf(name, size, "%.*s", (int)t->name_len, t->name);
}

void probe_products(const Workspace *w, const Product *products, int n_products, Buffer x,
                    const Group *groups, int n_groups) {
    char names[MAX_PRODUCTS][64];
    const char *tensors[MAX_PRODUCTS];
    for (int i = 0; i < n_products; i++) {
        name_of(w, products[i].matrix, names[i], sizeof names[i]);
        tensors[i] = names[i];
    }
    for (const Group *g = groups; g < groups + n_groups; g++)
        w->probe.product(w->probe.context, &(heads_product_input){
            tensors, n_products, g->which, row(x, g->first), x.stride, g->n,
            products[0].matrix->n_in});
}
