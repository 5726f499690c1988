#include "sequence/steering.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static Steering *new_steering(int n, int n_embd) {
    size_t numbers = (size_t)n * (size_t)n_embd;
    Steering *s = calloc(1, sizeof *s + numbers * sizeof(float) + (size_t)n * sizeof(int));
    if (!s) return NULL;
    atomic_init(&s->users, 1);
    s->n_embd = n_embd;
    s->layers = (int *)(s->vectors + numbers);
    return s;
}

static int layers_of(const Steering *s) { return s ? s->n : 0; }

const float *steering_after(const Steering *s, int layer) {
    for (int i = 0; i < layers_of(s); i++)
        if (s->layers[i] == layer) return s->vectors + (size_t)i * (size_t)s->n_embd;
    return NULL;
}

void release_steering(Steering *s) {
    if (s && atomic_fetch_sub(&s->users, 1) == 1) free(s);
}

void share_steering(Steering **to, Steering *from) {
    if (from) atomic_fetch_add(&from->users, 1);
    release_steering(*to);
    *to = from;
}

int compare_steering(const Steering *a, const Steering *b) {
    int n = layers_of(a);
    if (a == b || !n || n != layers_of(b)) return n - layers_of(b);
    int order = memcmp(a->layers, b->layers, (size_t)n * sizeof *a->layers);
    if (order) return order;
    return memcmp(a->vectors, b->vectors, (size_t)n * (size_t)a->n_embd * sizeof *a->vectors);
}

// sum[n] = had + scale vector; had NULL: zeros.
static int add_vector(float *sum, const float *had, const float *vector, float scale, int n,
                      Error *err) {
    for (int i = 0; i < n; i++) {
        sum[i] = (had ? had[i] : 0.0f) + scale * vector[i];
        if (!isfinite(sum[i]))
            return fail(err, "a steering vector's number %d is %g, its scale %g, and their product "
                        "or sum with other vectors no finite number", i, vector[i], scale);
    }
    return 0;
}

int steer(const Model *m, Steering **steering, int layer, const float *vector, float scale,
          Error *err) {
    if (layer < 0 || layer >= m->n_layers)
        return fail(err, "a steering vector for layer %d; there are layers 0..%d", layer,
                    m->n_layers - 1);
    const Steering *old = *steering;
    int n = layers_of(old), n_embd = m->n_embd;
    Steering *s = new_steering(n + 1, n_embd);
    if (!s) return fail(err, "no memory for %d steering vectors", n + 1);
    float *to = s->vectors;
    for (int i = 0; i < n; i++) {
        if (old->layers[i] == layer) continue;
        s->layers[s->n++] = old->layers[i];
        memcpy(to, old->vectors + (size_t)i * (size_t)n_embd, sizeof *to * (size_t)n_embd);
        to += n_embd;
    }
    int status = 0;
    if (vector) {
        s->layers[s->n++] = layer;
        status = add_vector(to, steering_after(old, layer), vector, scale, n_embd, err);
    }
    if (status || !s->n) share_steering(&s, NULL);
    if (status) return -1;
    release_steering(*steering);
    *steering = s;
    return 0;
}

int heads_sequence_steer(Sequence *s, int layer, const float *vector, float scale, Error *err) {
    if (need(s, "a sequence", err)) return -1;
    return steer(s->workspace->model, &s->steering, layer, vector, scale, err);
}
