// From logits to one id. The same seed gives the same ids on every machine: the random generator is
// in this file, exp is the kernels', and all else is IEEE arithmetic in a fixed order.
#include "sampler.h"

#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    float p;  // exp(logit - max): a probability before division by the total
    int id;
} Candidate;

struct Sampler {
    SamplerOptions options;
    int vocab_size, padded;  // padded: vocab_size rounded up to LANES
    const Kernels *kernels;
    uint64_t state;          // of the generator
    float *work;             // [padded]: adjusted logits, then exp
    Candidate *candidates;   // [vocab_size]
    int *recent;             // [repeat_last]: a ring of the last ids
    int accepted, next;      // ids in the ring, and where the next one goes
};

static int check_options(const SamplerOptions *o, int vocab_size, Error *err) {
    if (vocab_size < 1 || vocab_size > INT_MAX - LANES)
        return fail(err, "sampler: a vocabulary of %d; expected 1 or more", vocab_size);
    if (!(o->temperature >= 0 && o->temperature <= 1000))
        return fail(err, "temperature %g; expected 0 (greedy) to 1000", (double)o->temperature);
    if (o->top_k < 0) return fail(err, "top-k %d; expected 0 (all) or more", o->top_k);
    if (!(o->top_p > 0 && o->top_p <= 1))
        return fail(err, "top-p %g; expected more than 0, up to 1 (all)", (double)o->top_p);
    if (!(o->min_p >= 0 && o->min_p <= 1))
        return fail(err, "min-p %g; expected 0 (all) to 1", (double)o->min_p);
    if (!(o->repeat_penalty > 0 && o->repeat_penalty <= 1000))
        return fail(err, "repeat penalty %g; expected more than 0, 1 for none, up to 1000",
                    (double)o->repeat_penalty);
    if (o->most < 0) return fail(err, "most %d; expected 0 (any number) or more", o->most);
    if (o->repeat_last < 0) return fail(err, "repeat_last %d; expected 0 or more", o->repeat_last);
    return 0;
}

Sampler *sampler_new(const Kernels *kernels, int vocab_size, const SamplerOptions *options,
                     Error *err) {
    if (check_options(options, vocab_size, err)) return NULL;
    Sampler *s = calloc(1, sizeof *s);
    if (s) {
        *s = (Sampler){.options = *options, .vocab_size = vocab_size, .kernels = kernels,
                       .padded = (int)round_up((size_t)vocab_size, LANES), .state = options->seed};
        s->work = calloc((size_t)s->padded, sizeof *s->work);
        s->candidates = calloc((size_t)vocab_size, sizeof *s->candidates);
        s->recent = calloc((size_t)options->repeat_last + 1, sizeof *s->recent);
    }
    if (s && s->work && s->candidates && s->recent) return s;
    fail(err, "no memory for a sampler over %d tokens", vocab_size);
    sampler_free(s);
    return NULL;
}

void sampler_free(Sampler *s) {
    if (!s) return;
    free(s->work);
    free(s->candidates);
    free(s->recent);
    free(s);
}

void sampler_accept(Sampler *s, int id) {
    int window = s->options.repeat_last;
    if (window == 0 || id < 0 || id >= s->vocab_size) return;
    s->recent[s->next] = id;
    s->next = (s->next + 1) % window;
    if (s->accepted < window) s->accepted++;
}

// A number in [0, 1): 53 bits of splitmix64 (Steele, Lea and Flood 2014).
static double random_unit(Sampler *s) {
    uint64_t z = s->state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

// ---- picking ----

// work = logits after the repetition penalty (Keskar et al. 2019: positive logits are divided by
// it, others multiplied, once however often the id occurred). NaN becomes minus infinity, plus
// infinity the largest float, so that differences stay numbers. Returns the id of the largest, the
// lowest of equal ones; -1: none is possible.
static int adjust(Sampler *s, const float *logits) {
    float penalty = s->options.repeat_penalty;
    memcpy(s->work, logits, sizeof *logits * (size_t)s->vocab_size);
    for (int i = 0; i < s->accepted; i++) {
        float x = logits[s->recent[i]];
        s->work[s->recent[i]] = x > 0 ? x / penalty : x * penalty;
    }
    for (int i = 0; i < s->vocab_size; i++) {
        float x = s->work[i] > FLT_MAX ? FLT_MAX : s->work[i];
        s->work[i] = x != x ? -INFINITY : x;
    }
    for (int i = s->vocab_size; i < s->padded; i++) s->work[i] = -INFINITY;
    float max = s->kernels->max(s->work, s->padded);
    if (max == -INFINITY) return -1;
    int best = 0;
    while (s->work[best] != max) best++;
    return best;
}

// work = exp((work - max) / temperature): 1 for the best, 0 for impossible tokens.
static void to_weights(Sampler *s, float max) {
    float temperature = s->options.temperature;
    for (int i = 0; i < s->vocab_size; i++) s->work[i] = (s->work[i] - max) / temperature;
    s->kernels->exp_sum(s->work, 0, s->padded);
}

// The order of candidates: more probable first, the lower id first among equals.
static bool before(Candidate a, Candidate b) {
    return a.p > b.p || (a.p == b.p && a.id < b.id);
}

static void sift_down(Candidate *heap, int n, int i) {
    Candidate moved = heap[i];
    for (int child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(heap[child + 1], heap[child])) child++;
        if (!before(heap[child], moved)) break;
        heap[i] = heap[child];
    }
    heap[i] = moved;
}

static void heapify(Candidate *heap, int n) {
    for (int i = n / 2 - 1; i >= 0; i--) sift_down(heap, n, i);
}

// Moves the first candidate of a heap of n to heap[n - 1], behind the rest, and returns it.
static Candidate pop(Candidate *heap, int n) {
    Candidate first = heap[0];
    heap[0] = heap[n - 1];
    heap[n - 1] = first;
    sift_down(heap, n - 1, 0);
    return first;
}

// Gathers the candidates of weight > 0 and >= `least`, in the order of ids; returns how many.
static int gather(Sampler *s, double least) {
    int n = 0;
    for (int i = 0; i < s->vocab_size; i++)
        if (s->work[i] > 0 && s->work[i] >= least) s->candidates[n++] = (Candidate){s->work[i], i};
    return n;
}

// Pops the first k candidates of a heap of n, and those equal to the last of them, as transformers
// does. Returns how many; *total: their weight.
static int keep_top_k(Sampler *s, int n, int k, double *total) {
    int kept = 0;
    float last = 0;
    *total = 0;
    while (kept < n && (kept < k || s->candidates[0].p == last)) {
        last = pop(s->candidates, n - kept).p;
        *total += last;
        kept++;
    }
    return kept;
}

// How many first candidates weigh `mass` together, at most `most`. Pops them, but for the first
// `popped`, which are out of the heap already.
static int keep_mass(Sampler *s, int n, int popped, int most, double mass) {
    int kept = 0;
    for (double sum = 0; kept < most && sum < mass; kept++) {
        if (kept >= popped) pop(s->candidates, n - kept);
        sum += s->candidates[n - 1 - kept].p;
    }
    return kept;
}

// Draws one of the last `kept` of n candidates by weight, from the back, since pop() leaves them in
// that order.
static int draw(Sampler *s, int n, int kept) {
    double total = 0, sum = 0;
    for (int i = n - 1; i >= n - kept; i--) total += s->candidates[i].p;
    double target = random_unit(s) * total;
    for (int i = n - 1; i > n - kept; i--) {
        sum += s->candidates[i].p;
        if (target < sum) return s->candidates[i].id;
    }
    return s->candidates[n - kept].id;
}

int sampler_pick(Sampler *s, const float *logits) {
    const SamplerOptions *o = &s->options;
    int best = adjust(s, logits);
    if (best < 0) return -1;
    if (o->temperature == 0) return best;
    to_weights(s, s->work[best]);
    double total = 0;
    for (int i = 0; i < s->vocab_size; i++) total += s->work[i];
    // The best weighs 1, so min-p is a bound on the weight. Top-p gives a bound too: tokens below
    // (1 - p) / n of the total weigh less than 1 - p together, so top-p never needs them, and most
    // of a large vocabulary need not be ordered. Top-k must come first, because top-p's total is
    // taken over the k; min-p then shortens what is left.
    bool top_k = o->top_k > 0 && o->top_k < s->vocab_size, top_p = o->top_p < 1;
    double least = top_k ? 0 : o->min_p, unneeded = (1 - (double)o->top_p) * total / s->vocab_size;
    if (top_p && !top_k && least < unneeded) least = unneeded;
    int n = gather(s, least), kept = n;
    if (top_k || top_p) heapify(s->candidates, n);
    if (top_k) kept = keep_top_k(s, n, o->top_k, &total);
    if (top_p) kept = keep_mass(s, n, top_k ? kept : 0, kept, o->top_p * total);
    while (kept > 1 && s->candidates[n - kept].p < o->min_p) kept--;
    return draw(s, n, kept);
}
