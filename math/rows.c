// Operations on the rows of a pass, each row by itself: threads share the rows, and a row's result
// does not depend on other rows.
#include <string.h>

#include "engine.h"

void parallel_if_large(Workspace *w, size_t bytes, int n, WorkFn *work, const void *arg) {
    enum { WORTH_SHARING = 1 << 17 };
    if (bytes >= WORTH_SHARING) parallel_for(w->pool, n, work, arg);
    else
        for (int i = 0; i < n; i++) work(arg, i, 0);
}

// ---- norms ----

typedef struct {
    const Workspace *w;
    Buffer out, in;
    const Norm *norm;
    int width;
} NormRows;

void norm_row(const Workspace *w, float *out, const Norm *norm, const float *in, int width) {
    if (norm->layernorm) w->k->layernorm(out, in, norm->w, norm->b, width, norm->eps);
    else w->k->rmsnorm(out, in, norm->w, width, norm->eps);
}

static void norm_one(const void *arg, int t, int thread) {
    const NormRows *a = arg;
    norm_row(a->w, row(a->out, t), a->norm, row(a->in, t), a->width);
}

void norm_rows(Workspace *w, Buffer out, const Norm *norm, Buffer in, int width, int n) {
    parallel_for(w->pool, n, norm_one, &(NormRows){w, out, in, norm, width});
}

// ---- sums and factors ----

typedef struct {
    const Kernels *k;
    Buffer out, in;
    float scale;
    int width;
} AddRows;

static void add_one(const void *arg, int t, int thread) {
    const AddRows *a = arg;
    a->k->axpby(row(a->out, t), 1.0f, row(a->in, t), a->scale, a->width);
}

void add_rows(Workspace *w, Buffer out, float scale, Buffer in, int width, int n) {
    parallel_for(w->pool, n, add_one, &(AddRows){w->k, out, in, scale, width});
}

static void scale_one(const void *arg, int t, int thread) {
    const AddRows *a = arg;
    a->k->scale(row(a->out, t), a->scale, a->width);
}

void scale_rows(Workspace *w, Buffer out, float scale, int width, int n) {
    parallel_for(w->pool, n, scale_one, &(AddRows){w->k, out, out, scale, width});
}

void copy_rows(Buffer out, Buffer in, int width, int n) {
    for (int t = 0; t < n; t++) memcpy(row(out, t), row(in, t), sizeof *out.data * (size_t)width);
}

void zero_rows(Buffer out, int n) {
    memset(out.data, 0, sizeof *out.data * out.stride * (size_t)n);
}

// ---- gates and activations ----

typedef struct {
    const Kernels *k;
    Buffer out, gate;
    int n_gates, width;
} GateRows;

static void gate_one(const void *arg, int t, int thread) {
    const GateRows *a = arg;
    float *gate = row(a->gate, t), *out = row(a->out, t);
    int n = a->n_gates, each = a->width / n;
    a->k->act(gate, ACT_SIGMOID, n);
    if (each == 1)
        for (int i = 0; i < n; i++) out[i] *= gate[i];
    else
        for (int i = 0; i < n; i++) a->k->scale(out + (size_t)i * (size_t)each, gate[i], each);
}

void gate_rows(Workspace *w, Buffer out, Buffer gate, int n_gates, int width, int n) {
    parallel_for(w->pool, n, gate_one, &(GateRows){w->k, out, gate, n_gates, width});
}

typedef struct {
    const Kernels *k;
    const Activation *act;
    Buffer gate, up;
    int width;
} ActivateRows;

static void activate_one(const void *arg, int t, int thread) {
    const ActivateRows *a = arg;
    const float *p = a->act->params;
    float *gate = row(a->gate, t), *up = row(a->up, t);
    if (a->act->kind == ACT_CLAMPED_SWIGLU) a->k->clamped_swiglu(gate, up, p[0], p[1], a->width);
    else if (a->act->kind == ACT_XIELU) a->k->xielu(up, p, a->width);
    else if (a->act->gated) a->k->act_mul(gate, up, a->act->kind, a->width);
    else a->k->act(up, a->act->kind, a->width);
}

Buffer activate_rows(Workspace *w, const Activation *act, Buffer gate, Buffer up, int width,
                     int n) {
    parallel_for(w->pool, n, activate_one, &(ActivateRows){w->k, act, gate, up, width});
    return act->gated ? gate : up;
}
