// The recurrences of lanes.h over vectors of 16 lanes: the same operations on every number in the
// same order, with more of them in registers.
#ifndef STATES_H
#define STATES_H

enum {
    MAX_R = 4,           // rows of a tile of a state
    STEPS_AT_ONCE = 16,  // tokens whose numbers the first-level cache holds beside a state
};

// Mamba-2 on rows i..i+R-1 and columns j..j+16P-1, which stay in registers for all tokens. out has
// the sums over the rows before.
INLINE void mamba2_tile(float *state, const Steps *s, float skip, int i, int j, int R, int P) {
    const size_t n_v = (size_t)s->n_v;
    const float *q = s->q + i, *k = s->k + i, *v = s->v + j, *decay = s->decay, *step = s->step;
    float *out = s->out + j;
    Floats x[MAX_R][MAX_P], sum[MAX_P], change[MAX_P];
    state += (size_t)i * n_v + (size_t)j;
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int p = 0; p < P; p++) x[r][p] = v_load(state + (size_t)r * n_v + 16 * p);
    for (int t = 0; t < s->n; t++) {
        UNROLL for (int p = 0; p < P; p++) {
            change[p] = v_mul(v_set1(*step), v_load(v + 16 * p));
            sum[p] = i ? v_load(out + 16 * p) : v_zero();
        }
        UNROLL for (int r = 0; r < R; r++)
            UNROLL for (int p = 0; p < P; p++) {
                x[r][p] = v_fma(v_set1(k[r]), change[p], v_mul(x[r][p], v_set1(*decay)));
                sum[p] = v_fma(x[r][p], v_set1(q[r]), sum[p]);
            }
        UNROLL for (int p = 0; p < P; p++) {
            if (i + R == s->n_k) sum[p] = v_fma(v_load(v + 16 * p), v_set1(skip), sum[p]);
            v_store(out + 16 * p, sum[p]);
        }
        q += s->stride, k += s->stride, v += s->stride, out += s->out_stride;
        decay += s->decay_stride, step += s->step_stride;
    }
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int p = 0; p < P; p++) v_store(state + (size_t)r * n_v + 16 * p, x[r][p]);
}

INLINE void mamba2_tiles(float *state, const Steps *s, float skip, int j, int R, int P) {
    int i = 0;
    for (; i + R <= s->n_k; i += R) mamba2_tile(state, s, skip, i, j, R, P);
    for (; i < s->n_k; i++) mamba2_tile(state, s, skip, i, j, 1, P);
}

// One pass over columns j..j+16P-1: what a token changes and reads, then what the decayed state
// says of the next one's key. Either may be NULL.
INLINE void delta_pass(float *state, const Steps *now, const Steps *next, Floats change[MAX_P],
                       int j, int P) {
    const Steps *any = now ? now : next;
    Floats sum[MAX_P], said[MAX_P];
    UNROLL for (int p = 0; p < P; p++) sum[p] = said[p] = v_zero();
    for (int i = 0; i < any->n_k; i++) {
        float *x = state + (size_t)i * (size_t)any->n_v + j;
        Floats v[MAX_P];
        UNROLL for (int p = 0; p < P; p++) v[p] = v_load(x + 16 * p);
        UNROLL for (int p = 0; p < P && now; p++) {
            v[p] = v_fma(v_set1(now->k[i]), change[p], v[p]);
            sum[p] = v_fma(v[p], v_set1(now->q[i]), sum[p]);
        }
        UNROLL for (int p = 0; p < P && next; p++) {
            v[p] = v_mul(v[p], v_set1(next->decay[next->by_row ? i : 0]));
            said[p] = v_fma(v[p], v_set1(next->k[i]), said[p]);
        }
        UNROLL for (int p = 0; p < P; p++) v_store(x + 16 * p, v[p]);
    }
    UNROLL for (int p = 0; p < P; p++) {
        if (now) v_store(now->out + j + 16 * p, sum[p]);
        if (next) {
            Floats v = v_load(next->v + j + 16 * p);
            change[p] = v_mul(v_set1(*next->step), v_fma(said[p], v_set1(-1.0f), v));
        }
    }
}

INLINE void delta_columns(float *state, const Steps *s, int j, int P) {
    Floats change[MAX_P];
    Steps now = *s;
    delta_pass(state, NULL, &now, change, j, P);
    while (now.n > 1) {
        Steps next = steps_from(&now, 1);
        delta_pass(state, &now, &next, change, j, P);
        now = next;
    }
    delta_pass(state, &now, NULL, change, j, P);
}

// The last columns may be fewer than 16.
#define STATES(R, P)                                                                               \
    static void states_mamba2(float *state, const Steps *all, float skip) {                        \
        for (int t = 0; t < all->n; t += STEPS_AT_ONCE) {                                          \
            Steps s = steps_from(all, t);                                                          \
            s.n = s.n < STEPS_AT_ONCE ? s.n : STEPS_AT_ONCE;                                       \
            int j = 0;                                                                             \
            for (; j + 16 * P <= s.n_v; j += 16 * P) mamba2_tiles(state, &s, skip, j, R, P);       \
            for (; j + 16 <= s.n_v; j += 16) mamba2_tiles(state, &s, skip, j, R, 1);               \
            if (j < s.n_v) mamba2_from(state, &s, skip, j);                                        \
        }                                                                                          \
    }                                                                                              \
    static void states_delta(float *state, const Steps *s) {                                       \
        int j = 0;                                                                                 \
        for (; j + 16 * P <= s->n_v; j += 16 * P) delta_columns(state, s, j, P);                   \
        for (; j + 16 <= s->n_v; j += 16) delta_columns(state, s, j, 1);                           \
        if (j < s->n_v) delta_from(state, s, j);                                                   \
    }

#define STATES_KERNELS .delta = states_delta, .mamba2 = states_mamba2

#endif
