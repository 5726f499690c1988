// Rows of the layers that guess: kept, run, and chained.
#include "sequence/guess.h"

#include <stdlib.h>
#include <string.h>

#include "sequence/sequence.h"

// ---- a text's ----

static float *waiting_row(const GuessRows *g, int i) {
    return g->waiting + (size_t)i * (size_t)g->rows->workspace->model->n_embd;
}

static size_t bytes_of(const GuessRows *g, int n_rows) {
    return (size_t)n_rows * (size_t)g->rows->workspace->model->n_embd * sizeof *g->waiting;
}

static void free_rows(GuessRows *g) {
    if (!g) return;
    heads_sequence_free(g->rows);
    free(g->waiting);
    free(g);
}

static GuessRows *rows_new(Workspace *w, bool shared) {
    GuessRows *g = calloc(1, sizeof *g);
    size_t row = (size_t)w->model->n_embd * sizeof *g->waiting;
    if (g && (g->waiting = malloc(row * KEPT_ROWS)) &&
        (g->rows = heads_sequence_new(w, shared, NULL)))
        return g;
    free_rows(g);
    return NULL;
}

// The position whose hidden state comes next.
static int next_row(const GuessRows *g) { return g->first + g->rows->length + g->n_waiting; }

// The text is cut to n tokens. The last row stays, although its next token may be another one then:
// a guess may be worse for it.
static void rewind_rows(GuessRows *g, int n) {
    int run = g->first + g->rows->length;
    if (n >= run) {
        if (g->n_waiting > n - run) g->n_waiting = n - run;
        return;
    }
    g->n_waiting = 0;
    if (n < g->first) g->first = n;
    if (heads_sequence_rewind(g->rows, n - g->first, NULL) == 0) return;
    g->first = -1;  // no row follows: keep_hidden begins anew
}

// Of the first n tokens; NULL: without guesses.
static GuessRows *fork_rows(const GuessRows *g, int n) {
    if (g->first < 0) return NULL;
    GuessRows *fork = rows_new(g->rows->workspace, false);
    int run = g->rows->length < n - g->first ? g->rows->length : n - g->first;
    if (run < 0) run = 0;
    if (!fork) return NULL;
    heads_sequence_free(fork->rows);
    fork->rows = heads_sequence_fork(g->rows, run, NULL);
    if (!fork->rows) return free_rows(fork), NULL;
    fork->first = run ? g->first : n < g->first ? n : g->first;
    fork->n_waiting = g->n_waiting;
    memcpy(fork->waiting, g->waiting, bytes_of(g, g->n_waiting));
    rewind_rows(fork, n);
    return fork;
}

typedef struct {      // of saved rows, then inputs that wait, then the session of those that ran
    char magic[8];
    int32_t first, n_waiting;
    uint64_t size, sum;  // of what follows
} SavedRows;

static const char MAGIC[8] = "heads.g";

static size_t saved_bytes(const Model *m, int n) {
    return round_up((size_t)n * (size_t)m->n_embd * sizeof(float), 64);
}

static size_t save_rows(const GuessRows *g, void **bytes) {
    size_t waiting = saved_bytes(g->rows->workspace->model, g->n_waiting), size = 0;
    void *rows = NULL;
    if (g->first < 0 || (g->rows->length && heads_sequence_bytes(g->rows, &rows, &size, NULL)))
        return 0;
    uint8_t *to = *bytes = calloc(1, 64 + waiting + size);
    if (to) {
        memcpy(to + 64, g->waiting, bytes_of(g, g->n_waiting));
        if (size) memcpy(to + 64 + waiting, rows, size);
        SavedRows *saved = *bytes;
        *saved = (SavedRows){.first = g->first, .n_waiting = g->n_waiting, .size = waiting + size};
        memcpy(saved->magic, MAGIC, sizeof MAGIC);
        saved->sum = checksum(to + 64, waiting + size);
    }
    free(rows);
    return to ? 64 + waiting + size : 0;
}

static GuessRows *load_rows(Workspace *w, int length, const void *bytes, size_t size) {
    const SavedRows *saved = bytes;
    const uint8_t *from = (const uint8_t *)bytes + 64;
    if (size < 64 || memcmp(saved->magic, MAGIC, sizeof MAGIC) != 0 || saved->size != size - 64 ||
        saved->first < 0 || saved->n_waiting < 0 || saved->n_waiting > KEPT_ROWS ||
        saved->sum != checksum(from, size - 64))
        return NULL;
    size_t waiting = saved_bytes(w->model, saved->n_waiting);
    GuessRows *g = waiting <= size - 64 ? rows_new(w->guesser->w, false) : NULL;
    if (!g) return NULL;
    if (waiting < size - 64) {
        heads_sequence_free(g->rows);
        g->rows = heads_sequence_parse(w->guesser->w, from + waiting, size - 64 - waiting, NULL);
        if (!g->rows) return free_rows(g), NULL;
    }
    g->first = saved->first;
    g->n_waiting = saved->n_waiting;
    memcpy(g->waiting, from, bytes_of(g, g->n_waiting));
    if (g->first <= length && next_row(g) == length) return g;
    return free_rows(g), NULL;
}

// The rows begin anew with the last n that wait, of the positions before `pos`. Without memory none
// follows.
static void begin_anew(GuessRows *g, int pos, int n) {
    g->first = pos - n;
    memmove(g->waiting, waiting_row(g, g->n_waiting - n), bytes_of(g, n));
    g->n_waiting = n;
    if (heads_sequence_rewind(g->rows, 0, NULL) == 0) return;
    Sequence *rows = heads_sequence_new(g->rows->workspace, false, NULL);
    if (rows) heads_sequence_free(g->rows), g->rows = rows;
    else g->first = -1;
}

// The text's rows, which may be new, and begin anew where the rows before are unknown.
static GuessRows *rows_at(Workspace *w, Sequence *s, int pos) {
    if (!s->guesses) s->guesses = rows_new(w->guesser->w, s->pages.length < 0);
    GuessRows *g = s->guesses;
    if (g && (g->first < 0 || next_row(g) != pos)) begin_anew(g, pos, 0);
    return g;
}

// ---- rows ----

// Adds the next n rows, of which the first `from` ran, or wait to run, in an earlier span of this
// pass; tokens[n] follow their positions. inputs: norms of hidden states.
static void add_rows_of(GuessRows *g, const int *tokens, const float *inputs, int from, int n,
                        int n_logits) {
    Sequence *s = g->rows;
    Workspace *w = s->workspace;
    const Norm *norm = &w->model->hidden_norm;
    int n_embd = w->model->n_embd, pos = s->length + from;
    for (int i = 0; i < n; i++, inputs += n_embd)
        norm_row(w, row(w->embedded, w->n_rows + i) + n_embd, norm, inputs, n_embd);
    add_span(w, s, tokens, n, pos, n_logits);
    memmove(s->tokens + pos, tokens, sizeof *tokens * (size_t)n);
    if (s->high < pos + n) s->high = pos + n;
}

static void run_rows(Workspace *w) {
    forward_pass(w, 0);
    w->n_spans = w->n_rows = 0;
}

static void keep_span(Workspace *w, const Span *span) {
    Sequence *s = span->sequence;
    GuessRows *g = rows_at(w, s, span->pos);
    for (int i = 0; g && g->first >= 0 && i < span->n; i++) {
        if (g->n_waiting == KEPT_ROWS) begin_anew(g, span->pos + i, KEPT_ROWS / 2);
        norm_row(w, waiting_row(g, g->n_waiting++), &w->tower->norm, row(w->x, span->first + i),
                 w->model->n_embd);
    }
}

// At the end of a pass over the text's layers: keeps the hidden states of its rows. Where no guess
// is wanted for long, the oldest are forgotten: so a prompt takes no more time, and guesses are as
// good. What fails here costs guesses, and nothing else.
static void keep_hidden(Workspace *w) {
    if (w->tower != &w->model->text || !w->guesser->most) return;
    for (const Span *s = w->spans; s < w->spans + w->n_spans; s++) keep_span(w, s);
}

// ---- a workspace's ----

int heads_workspace_guess(Workspace *w, int most, Error *err) {
    if (need(w, "a workspace", err)) return -1;
    if (most < 0) return fail(err, "%d guesses; expected 0 or more", most);
    if (most > 0 && !w->model->guess)
        return fail(err, "the model has no layers that guess (model.guess_layers)");
    if (w->guesser) w->guesser->most = most;
    if (w->guesser || most == 0) return 0;
    int rows = w->chunk > KEPT_ROWS ? w->chunk : KEPT_ROWS;
    WorkspaceOptions o = {.context = w->kv.context, .chunk = rows, .threads_of = w,
                          .logit_rows = w->logit_rows < rows ? w->logit_rows : rows,
                          .k_type = w->kv.k_dtype, .v_type = w->kv.v_dtype, .isa = w->k->name};
    Guesser *g = calloc(1, sizeof *g);
    if (!g) return fail(err, "no memory for guesses");
    *g = (Guesser){NULL, most, keep_hidden, rewind_rows, fork_rows, free_rows, save_rows,
                   load_rows};
    g->w = heads_workspace_new(w->model->guess, &o, err);
    if (!g->w) return free(g), -1;
    g->w->tower = &w->model->guess->text;
    w->guesser = g;
    return 0;
}

int heads_guess_layers(const heads_model *m) {
    return m && m->guess ? m->guess->n_layers : 0;
}

void guesser_free(Guesser *g) {
    if (!g) return;
    workspace_free(g->w);
    free(g);
}

// ---- guesses ----

static int likeliest(const float *logits, int n) {
    int best = 0;
    for (int i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

// Prepares a job's rows, those that wait and those of its guesses. Returns how many wait, with
// their tokens in tokens[KEPT_ROWS]; 0: there can be no guess.
static int prepare_job(const Workspace *w, GuessJob *job, int *tokens) {
    const Sequence *s = job->sequence;
    GuessRows *g = s->guesses;
    if (!g || g->first < 0 || !g->n_waiting || next_row(g) != s->length)
        return 0;
    int n = g->n_waiting, room = w->guesser->w->kv.context - g->rows->length - n + 1;
    if (job->most > room) job->most = room;
    if (job->most < 1 || prepare_cache(g->rows, n + job->most, NULL)) return 0;
    memcpy(tokens, s->tokens + s->length - n + 1, sizeof *tokens * (size_t)(n - 1));
    tokens[n - 1] = job->last;
    return n;
}

// Takes a guess of each job whose rows the pass had, from its row of logits.
static void take_guesses(Workspace *w, GuessJob **jobs, int n) {
    for (int i = 0; i < n; i++) {
        const float *logits = row(w->logits, i);
        jobs[i]->guesses[jobs[i]->n++] = likeliest(logits, w->model->vocab_size);
    }
}

// The first guesses of some jobs, at most `room` of them, as far as their rows fit into a pass;
// returns how many jobs it took. ran[]: those that have a guess.
static int first_guesses(Workspace *w, GuessJob *jobs, int n_jobs, GuessJob **ran, int *n_ran) {
    Workspace *of = w->guesser->w;
    int tokens[KEPT_ROWS], taken = 0, first = *n_ran;
    for (; taken < n_jobs && *n_ran - first < of->logit_rows; taken++) {
        if (jobs[taken].most < 1) continue;
        GuessRows *g = jobs[taken].sequence->guesses;
        if (g && g->n_waiting > of->chunk - of->n_rows) break;
        int n = prepare_job(w, &jobs[taken], tokens);
        if (!n) continue;
        add_rows_of(g, tokens, g->waiting, 0, n, 1);
        ran[(*n_ran)++] = &jobs[taken];
    }
    if (*n_ran == first) return taken;
    run_rows(of);
    take_guesses(of, ran + first, *n_ran - first);
    for (int i = first; i < *n_ran; i++) {
        GuessRows *g = ran[i]->sequence->guesses;
        g->rows->length += g->n_waiting;
        g->n_waiting = 0;
        memcpy(g->waiting, row(of->y, i - first), bytes_of(g, 1));
    }
    return taken;
}

// One more guess for each of the jobs, from the layers' own hidden states, which lie where the
// text's will.
static void next_guesses(Workspace *of, GuessJob **jobs, int n) {
    for (int i = 0; i < n; i++) {
        GuessRows *g = jobs[i]->sequence->guesses;
        const GuessJob *job = jobs[i];
        add_rows_of(g, &job->guesses[job->n - 1], g->waiting, job->n - 1, 1, 1);
    }
    run_rows(of);
    take_guesses(of, jobs, n);
    for (int i = 0; i < n; i++) {
        GuessRows *g = jobs[i]->sequence->guesses;
        memcpy(g->waiting, row(of->y, i), bytes_of(g, 1));
    }
}

void guess_each(Workspace *w, GuessJob *jobs, int n_jobs) {
    Workspace *of = w->guesser ? w->guesser->w : NULL;
    GuessJob **ran = of ? malloc(sizeof *ran * (size_t)n_jobs) : NULL;
    for (int done = 0, n = 0; ran && done < n_jobs; n = 0) {
        done += first_guesses(w, jobs + done, n_jobs - done, ran, &n);
        while (n) {
            int more = 0;
            for (int i = 0; i < n; i++)
                if (ran[i]->n < ran[i]->most) ran[more++] = ran[i];
            if ((n = more)) next_guesses(of, ran, n);
        }
    }
    free(ran);
}

int heads_guess(Sequence *s, const int *ids, int n, int most, int *guesses, Error *err) {
    if (need(s, "a sequence", err) || need(ids, "ids", err) ||
        need(guesses, "room for guesses", err))
        return -1;
    if (n != s->length + 1)
        return fail(err, "%d ids, expected those of the sequence, %d, and one more", n, s->length);
    GuessJob job = {s, ids[n - 1], most, guesses, 0};
    guess_each(s->workspace, &job, 1);
    return job.n;
}
