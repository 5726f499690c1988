// run.c: the command line. What is asked for, in one table; then a function for each thing there is to do. The only file
// that prints (with report.c and bench.c) and exits: 0 done, 1 failed, 2 wrong usage.
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"
#include "report.h"

// ---- options ------------------------------------------------------------------------------------------------------------

typedef enum { GENERATE = 1, KV = 2, INFO = 4, PPL = 8, CHECK = 16, TOKENIZE = 32, LOGITS = 64, BENCH = 128 } Mode;

typedef struct {
    Mode mode;
    char **models;
    int n_models;
    const char *prompt, *prompt_file, *tokens, *ppl, *logits;
    bool flag, json, ids, seeded;  // flag: set by an option that only selects a mode
    int n_generate;
    SessionOptions session;
    SamplerOptions sampler;
} Options;

static const Options DEFAULTS = {
    .mode = GENERATE,
    .n_generate = 256,
    .session = {.chunk = 128, .k_dtype = F16, .v_dtype = F16, .logit_rows = 1},
    .sampler = {.temperature = 0.8f, .top_p = 0.95f, .repeat_penalty = 1, .repeat_last = 64},
};

typedef enum { HEADING, FLAG, TEXT, INT, FLOAT, SEED, DTYPE } Kind;

typedef struct {
    Kind kind;
    const char *name, *value;  // value: what the help calls it
    size_t field;              // where in Options it goes
    double min, max;           // of a number
    Mode selects;              // the mode that it asks for, if any
    unsigned modes;            // the modes in which it means something
    const char *help;
} Option;

#define FIELD(name) offsetof(Options, name)
enum { RUNS = GENERATE | LOGITS | PPL | KV | BENCH, TAKES_PROMPT = GENERATE | LOGITS | TOKENIZE, ANY = 255 };

static const Option OPTIONS[] = {
    {HEADING, "The prompt, one of (none: from the tokenizer's BOS)", .help = ""},
    {TEXT, "-p", "TEXT", FIELD(prompt), .modes = TAKES_PROMPT, .help = "the text to continue, byte for byte; - reads stdin"},
    {TEXT, "-i", "TEXT", FIELD(prompt), .modes = TAKES_PROMPT, .help = "the same"},
    {TEXT, "-f", "FILE", FIELD(prompt_file), .modes = TAKES_PROMPT, .help = "the text in a file, its last newline included"},
    {TEXT, "--tokens", "IDS", FIELD(tokens), .modes = GENERATE | LOGITS,
     .help = "token ids instead of text, such as \"1 2 3\"; nothing is added to them"},

    {HEADING, "Generation", .help = ""},
    {INT, "-n", "N", FIELD(n_generate), 0, 1e9, .modes = GENERATE, .help = "most tokens to generate (256)"},
    {SEED, "-s", "SEED", FIELD(sampler.seed), .modes = GENERATE,
     .help = "seed; the same seed gives the same text (the clock's, printed at the end)"},
    {FLOAT, "--temp", "F", FIELD(sampler.temperature), 0, 1000, .modes = GENERATE,
     .help = "temperature; 0 always takes the most likely token (0.8)"},
    {INT, "--top-k", "N", FIELD(sampler.top_k), 0, 1e9, .modes = GENERATE,
     .help = "choose among the N most likely; 0: all (0)"},
    {FLOAT, "--top-p", "F", FIELD(sampler.top_p), 1e-6, 1, .modes = GENERATE,
     .help = "choose among the most likely that have probability F together; 1: all (0.95)"},
    {FLOAT, "--min-p", "F", FIELD(sampler.min_p), 0, 1, .modes = GENERATE,
     .help = "leave out what is less than F times as likely as the best; 0: nothing (0)"},
    {FLOAT, "--repeat-penalty", "F", FIELD(sampler.repeat_penalty), 1e-3, 1000, .modes = GENERATE,
     .help = "make the last 64 tokens less likely; 1: do not (1)"},
    {FLAG, "--ids", NULL, FIELD(ids), .modes = GENERATE,
     .help = "print token ids, the prompt's and the generated ones, instead of text (always so without a tokenizer)"},

    {HEADING, "The machine", .help = ""},
    {INT, "-c", "N", FIELD(session.context), 1, MAX_DIM, .modes = RUNS,
     .help = "context, positions to reserve (the model's)"},
    {INT, "-t", "N", FIELD(session.n_threads), 1, 1024, .modes = RUNS, .help = "threads (the physical cores)"},
    {INT, "-b", "N", FIELD(session.chunk), 1, 65536, .modes = RUNS, .help = "tokens of a prompt that are run at once (128)"},
    {DTYPE, "-ctk", "TYPE", FIELD(session.k_dtype), .modes = RUNS, .help = "type of the cached keys: f32, f16 or q8 (f16)"},
    {DTYPE, "-ctv", "TYPE", FIELD(session.v_dtype), .modes = RUNS, .help = "type of the cached values (f16)"},

    {HEADING, "Instead of generating", .help = ""},
    {FLAG, "--kv", NULL, FIELD(flag), .selects = KV, .modes = KV,
     .help = "what the KV cache costs, as MHA, GQA, MQA and MLA, and measured; takes several models"},
    {FLAG, "--info", NULL, FIELD(flag), .selects = INFO, .modes = INFO,
     .help = "the model's shape, tensors, tokenizer, and the instruction set in use"},
    {FLAG, "--bench", NULL, FIELD(flag), .selects = BENCH, .modes = BENCH,
     .help = "speed of prefill and of decode at several depths, beside what memory and arithmetic allow"},
    {FLAG, "--json", NULL, FIELD(json), .modes = KV | INFO | BENCH, .help = "--kv, --info and --bench for machines"},
    {TEXT, "--ppl", "FILE", FIELD(ppl), .selects = PPL, .modes = PPL,
     .help = "perplexity of a text, in windows of the context"},
    {FLAG, "--check", NULL, FIELD(flag), .selects = CHECK, .modes = CHECK, .help = "verify the file's checksum"},
    {FLAG, "--tokenize", NULL, FIELD(flag), .selects = TOKENIZE, .modes = TOKENIZE, .help = "the prompt's ids, on one line"},
    {TEXT, "--logits", "FILE", FIELD(logits), .selects = LOGITS, .modes = LOGITS,
     .help = "write the prompt's logits: float32 [tokens][vocabulary], little-endian"},
    {FLAG, "--help", NULL, FIELD(flag), .modes = ANY, .help = "this"},
};
enum { N_OPTIONS = sizeof OPTIONS / sizeof OPTIONS[0] };

static void usage(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
static void usage(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "run: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, " (./run --help lists the options)\n");
    va_end(args);
    exit(2);
}

static void die(const Error *err) __attribute__((noreturn));
static void die(const Error *err) {
    fprintf(stderr, "run: %s\n", err->text);
    exit(1);
}

// Writes and flushes. False: whoever read stdout has closed it, which is no error.
static bool write_out(const char *text, size_t len) {
    if (fwrite(text, 1, len, stdout) == len && fflush(stdout) == 0) return true;
    if (errno != EPIPE) {
        fprintf(stderr, "run: stdout: %s\n", strerror(errno));
        exit(1);
    }
    return false;
}

static void help(void) {
    printf("./run MODEL [options]    continues a prompt: it and what the model adds go to stdout, all else to stderr\n");
    for (const Option *o = OPTIONS; o < OPTIONS + N_OPTIONS; o++) {
        char left[64];
        snprintf(left, sizeof left, "%s %s", o->name, o->value ? o->value : "");
        if (o->kind == HEADING) {
            printf("\n%s:\n", o->name);
        } else {
            printf("  %-20s %s\n", left, o->help);
        }
    }
    printf("\nSpecial tokens are not printed. Generation ends at an end-of-text token, at -n, when the context is full, or\n"
           "at Ctrl-C, and the last line on stderr says which. HEADS_ISA=scalar, avx2, avxvnni, avx512, avx512bf16,\n"
           "amx or neon chooses the kernels.\n"
           "Exit status: 0 done (also after Ctrl-C, or when stdout is closed), 1 failed, 2 wrong usage.\n");
}

static double parse_number(const Option *o, const char *text) {
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    bool whole = o->kind == INT;
    if (end == text || *end || isnan(value)) {
        usage("%s wants a %snumber, found \"%s\"", o->name, whole ? "whole " : "", text);
    }
    if (whole && value != floor(value)) {
        const char *hint = strcmp(o->name, "-t") ? "" : "; for the sampling temperature use --temp";
        usage("%s wants a whole number, found \"%s\"%s", o->name, text, hint);
    }
    if (value < o->min || value > o->max) {
        usage("%s wants a number from %g to %.9g, found \"%s\"", o->name, o->min, o->max, text);
    }
    return value;
}

static uint64_t parse_seed(const char *text) {
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno) usage("-s wants a whole number from 0 to 2^64 - 1, found \"%s\"", text);
    return value;
}

static Dtype parse_dtype(const Option *o, const char *text) {
    static const Dtype types[] = {F32, F16, Q8};
    for (int i = 0; i < 3; i++) {
        if (strcmp(text, dtype_name(types[i])) == 0) return types[i];
    }
    usage("%s wants f32, f16 or q8, found \"%s\"", o->name, text);
}

static void set_option(Options *options, const Option *o, const char *text) {
    void *field = (char *)options + o->field;
    switch (o->kind) {
    case FLAG: *(bool *)field = true; break;
    case TEXT: *(const char **)field = text; break;
    case INT: *(int *)field = (int)parse_number(o, text); break;
    case FLOAT: *(float *)field = (float)parse_number(o, text); break;
    case DTYPE: *(Dtype *)field = parse_dtype(o, text); break;
    case SEED:
        *(uint64_t *)field = parse_seed(text);
        options->seeded = true;
        break;
    case HEADING: break;
    }
}

static const char *mode_name(Mode mode) {
    for (int i = 0; i < N_OPTIONS; i++) {
        if (OPTIONS[i].selects == mode) return OPTIONS[i].name;
    }
    return "generation";
}

static const Option *find_option(const char *name) {
    for (int i = 0; i < N_OPTIONS; i++) {
        if (OPTIONS[i].kind != HEADING && strcmp(OPTIONS[i].name, name) == 0) return &OPTIONS[i];
    }
    usage("there is no option \"%s\"", name);
}

// Combinations that mean nothing are refused rather than ignored.
static void check_options(const Options *options, const bool given[N_OPTIONS]) {
    for (int i = 0; i < N_OPTIONS; i++) {
        if (given[i] && !(OPTIONS[i].modes & options->mode)) {
            usage("%s means nothing for %s", OPTIONS[i].name, mode_name(options->mode));
        }
    }
    if (options->n_models == 0) usage("which model? Name a checkpoint, such as models/stories.bin");
    if (options->n_models > 1 && options->mode != KV) {
        usage("one model, please: found \"%s\" and \"%s\"; only --kv takes several", options->models[0], options->models[1]);
    }
    if (!!options->prompt + !!options->prompt_file + !!options->tokens > 1) usage("-p, -f and --tokens: give one of them");
}

// Reads the arguments; argv's own array keeps the models' names.
static Options parse_options(int argc, char **argv) {
    Options options = DEFAULTS;
    bool given[N_OPTIONS] = {false};
    options.models = argv;
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        if (name[0] != '-') {
            options.models[options.n_models++] = argv[i];
            continue;
        }
        if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
            help();
            write_out("", 0);
            exit(0);
        }
        const Option *o = find_option(name);
        if (o->value && i + 1 == argc) usage("%s wants a value: %s %s", name, name, o->value);
        if (o->selects && options.mode != GENERATE && options.mode != o->selects) {
            usage("%s and %s: one thing at a time", mode_name(options.mode), name);
        }
        if (o->selects) options.mode = o->selects;
        given[o - OPTIONS] = true;
        set_option(&options, o, o->value ? argv[++i] : NULL);
    }
    check_options(&options, given);
    return options;
}

// ---- input and output ---------------------------------------------------------------------------------------------------

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number) {
    (void)signal_number;
    interrupted = 1;
}

typedef struct {
    char *data;  // owned
    size_t size;
} Text;

static Text read_stream(FILE *f, const char *name) {
    Text text = {NULL, 0};
    size_t capacity = 0, got = 1;
    while (got > 0) {
        if (text.size == capacity) {
            capacity = capacity ? 2 * capacity : 1 << 16;
            char *larger = realloc(text.data, capacity);
            if (!larger) {
                fprintf(stderr, "run: %s: no memory for %zu bytes of text\n", name, capacity);
                exit(1);
            }
            text.data = larger;
        }
        got = fread(text.data + text.size, 1, capacity - text.size, f);
        text.size += got;
    }
    if (ferror(f)) {
        fprintf(stderr, "run: cannot read %s: %s\n", name, strerror(errno));
        exit(1);
    }
    return text;
}

static Text read_file(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) {
        fprintf(stderr, "run: cannot open %s: %s\n", path, strerror(errno));
        exit(1);
    }
    Text text = read_stream(f, path);
    fclose(f);
    return text;
}

static void warn_if_not_utf8(Text text) {
    for (size_t i = 0, n; i < text.size; i += n) {
        n = utf8_char(text.data + i, text.size - i);
        if (n == 0) {
            fprintf(stderr, "run: the text is not UTF-8 at byte %zu; bad bytes are read as U+FFFD\n", i);
            return;
        }
    }
}

// ---- the model, its tokenizer and the prompt ----------------------------------------------------------------------------

typedef struct {
    Model model;
    Tokenizer *tokenizer;  // NULL: the checkpoint has none
} Loaded;

static bool has_tokenizer(const Model *model) {
    for (int i = 0; i < model->n_meta; i++) {
        if (model->meta[i].key_len > 10 && memcmp(model->meta[i].key, "tokenizer.", 10) == 0) return true;
    }
    return false;
}

static void load(Loaded *l, const Options *o) {
    Error err;
    if (model_open(&l->model, o->models[0], &err)) die(&err);
    l->tokenizer = NULL;
    if (o->mode & (CHECK | BENCH) || !has_tokenizer(&l->model)) return;
    l->tokenizer = tokenizer_new(&l->model, &err);
    if (!l->tokenizer) die(&err);
}

static void unload(Loaded *l) {
    tokenizer_free(l->tokenizer);
    model_close(&l->model);
}

typedef struct {
    int *data;  // owned
    long n;
} Ids;

static Ids encode(const Loaded *l, const char *text, size_t len, bool add_special) {
    Error err;
    Ids ids;
    ids.n = tokenizer_encode(l->tokenizer, text, len, add_special, &ids.data, &err);
    if (ids.n < 0) die(&err);
    return ids;
}

// "1 2 3", or with commas.
static Ids parse_ids(const char *text, int vocab_size) {
    Ids ids = {malloc((strlen(text) / 2 + 1) * sizeof(int)), 0};
    if (!ids.data) die(&(Error){"no memory for the ids of --tokens"});
    for (const char *p = text + strspn(text, " ,\t\n"); *p; p += strspn(p, " ,\t\n")) {
        char *end;
        errno = 0;
        long id = strtol(p, &end, 10);
        if (end == p || (*end && !strchr(" ,\t\n", *end))) usage("--tokens wants ids such as \"1 2 3\", found \"%.40s\"", p);
        if (errno || id < 0 || id >= vocab_size) {
            usage("--tokens: %.*s is no token of this model; its ids are 0 to %d", (int)(end - p), p, vocab_size - 1);
        }
        ids.data[ids.n++] = (int)id;
        p = end;
    }
    return ids;
}

static Ids prompt_ids(const Options *o, const Loaded *l) {
    if (o->tokens) {
        Ids ids = parse_ids(o->tokens, l->model.vocab_size);
        if (ids.n == 0) usage("--tokens is empty; give at least one id");
        return ids;
    }
    if (!l->tokenizer) usage("%s has no tokenizer; give the prompt as ids, with --tokens", o->models[0]);
    Text text = {NULL, 0};
    if (o->prompt_file) {
        text = read_file(o->prompt_file);
    } else if (o->prompt && strcmp(o->prompt, "-") == 0) {
        text = read_stream(stdin, "stdin");
    } else if (o->prompt) {
        text = (Text){strdup(o->prompt), strlen(o->prompt)};
        if (!text.data) die(&(Error){"no memory for the prompt"});
    }
    warn_if_not_utf8(text);
    Ids ids = encode(l, text.data ? text.data : "", text.size, true);
    free(text.data);
    if (ids.n == 0 && o->mode != TOKENIZE) {
        usage("the prompt is empty, and this model's tokenizer puts no BOS token before a text; give a prompt with -p");
    }
    return ids;
}

static void check_context(const Options *o, const Model *model, const char *path) {
    if (o->session.context > model->context) {
        usage("-c %d: %s was made for %d positions at most", o->session.context, path, model->context);
    }
}

static void check_prompt_fits(const Options *o, const Model *model, long n) {
    int context = o->session.context ? o->session.context : model->context;
    if (n <= context) return;
    usage("the prompt has %ld tokens and the context has room for %d; shorten it%s", n, context,
          context < model->context ? " or raise -c" : "");
}

static Session *open_session(const Options *o, const Model *model, int logit_rows) {
    Error err;
    SessionOptions options = o->session;
    options.logit_rows = logit_rows;
    Session *session = session_new(model, &options, &err);
    if (!session) die(&err);
    return session;
}

// ---- generation ---------------------------------------------------------------------------------------------------------

typedef struct {
    Decoder *decoder;  // NULL: ids are printed
    bool closed;       // whoever read stdout is gone
    long printed;      // ids so far
} Output;

static void put_token(Output *out, int id) {
    Error err;
    char number[16];
    const char *text = number;
    size_t len = 0;
    if (!out->decoder) {
        len = (size_t)snprintf(number, sizeof number, "%s%d", out->printed++ ? " " : "", id);
    } else if (decoder_push(out->decoder, id, &text, &len, &err)) {
        die(&err);
    }
    if (len > 0 && !out->closed) out->closed = !write_out(text, len);
}

static void finish_output(Output *out) {
    Error err;
    const char *text = "\n";
    size_t len = 1;
    if (out->decoder && decoder_finish(out->decoder, &text, &len, &err)) die(&err);
    if (len > 0 && !out->closed) write_out(text, len);
    decoder_free(out->decoder);
}

typedef struct {
    long prompt, generated, steps;  // tokens; steps: passes of one token, one fewer than were generated
    double prompt_seconds, step_seconds, step_bytes;
    const char *stop;
} Run;

// Runs the prompt, a chunk at a time so that Ctrl-C is heard in between. NULL if it was.
static const float *prefill(Session *session, const Options *o, Ids ids, Run *run) {
    Error err;
    const float *logits = NULL;
    double start = seconds();
    session_expect(session, (int)ids.n);
    while (run->prompt < ids.n && !interrupted) {
        long left = ids.n - run->prompt;
        int n = left < o->session.chunk ? (int)left : o->session.chunk;
        logits = forward(session, ids.data + run->prompt, n, n == left, &err);
        if (!logits) die(&err);
        run->prompt += n;
    }
    run->prompt_seconds = seconds() - start;
    return run->prompt == ids.n ? logits : NULL;
}

// Why generation should end after `id` (-1: nothing generated yet); NULL: go on.
static const char *stop_reason(const Session *session, const Options *o, const Loaded *l, const Output *out, const Run *run,
                               int id) {
    if (id >= 0 && l->tokenizer && tokenizer_is_eos(l->tokenizer, id)) return "end-of-text token";
    if (out->closed) return "output closed";
    if (interrupted) return "interrupted";
    if (run->generated == o->n_generate) return "-n reached";
    if (id >= 0 && session_position(session) == session_context(session)) return "context full";
    return NULL;
}

// Picks and prints a token, and runs it to get the next one's logits, until something says stop.
static void decode(Session *session, const Options *o, const Loaded *l, Sampler *sampler, const float *logits, Output *out,
                   Run *run) {
    Error err;
    double start = seconds();
    for (int id = -1; !(run->stop = stop_reason(session, o, l, out, run, id));) {
        if (id >= 0) {
            logits = forward(session, &id, 1, 1, &err);
            if (!logits) die(&err);
            run->steps++;
            size_t cache = kv_bytes_at(&l->model, 0, session_position(session), o->session.k_dtype, o->session.v_dtype);
            run->step_bytes += (double)l->model.weight_bytes + (double)cache;
        }
        id = sampler_pick(sampler, logits);
        sampler_accept(sampler, id);
        run->generated++;
        put_token(out, id);
    }
    run->step_seconds = seconds() - start;
}

static double rate(double amount, double time) {
    return time > 0 ? amount / time : 0;
}

static void closing_line(const Options *o, const Session *session, const Run *run) {
    KvUsage kv = session_kv_usage(session);
    if (isatty(STDOUT_FILENO)) fprintf(stderr, "\n");
    fprintf(stderr, "prompt %ld tokens, %.1f tok/s; generated %ld, %.1f tok/s, %.2f GB/s; ", run->prompt,
            rate((double)run->prompt, run->prompt_seconds), run->generated, rate((double)run->steps, run->step_seconds),
            rate(run->step_bytes, run->step_seconds) * 1e-9);
    fprintf(stderr, "KV cache %s of %s bytes in use", commas(kv.in_use), commas(kv.reserved));
    if (o->sampler.temperature > 0) fprintf(stderr, "; seed %llu", (unsigned long long)o->sampler.seed);
    fprintf(stderr, "; stopped: %s\n", run->stop);
}

static int generate(Options *o, const Loaded *l) {
    Error err;
    Ids ids = prompt_ids(o, l);
    check_prompt_fits(o, &l->model, ids.n);
    if (!o->seeded) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        o->sampler.seed = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
    }
    Session *session = open_session(o, &l->model, 1);
    Sampler *sampler = sampler_new(l->model.vocab_size, &o->sampler, &err);
    if (!sampler) die(&err);
    Output out = {0};
    if (l->tokenizer && !o->ids && !(out.decoder = decoder_new(l->tokenizer, true, &err))) die(&err);
    sigaction(SIGINT, &(struct sigaction){.sa_handler = on_interrupt, .sa_flags = (int)(SA_RESTART | SA_RESETHAND)}, NULL);

    Run run = {.stop = "interrupted"};
    for (long i = 0; i < ids.n; i++) {
        put_token(&out, ids.data[i]);
        sampler_accept(sampler, ids.data[i]);
    }
    const float *logits = prefill(session, o, ids, &run);
    if (logits) decode(session, o, l, sampler, logits, &out, &run);
    finish_output(&out);
    closing_line(o, session, &run);
    sampler_free(sampler);
    session_free(session);
    free(ids.data);
    return 0;
}

// ---- logits and perplexity ----------------------------------------------------------------------------------------------

static int write_logits(const Options *o, const Loaded *l) {
    Error err;
    Ids ids = prompt_ids(o, l);
    check_prompt_fits(o, &l->model, ids.n);
    Session *session = open_session(o, &l->model, o->session.chunk);
    FILE *f = fopen(o->logits, "wb");
    bool written = f != NULL;
    size_t row = (size_t)l->model.vocab_size;
    double start = seconds();
    session_expect(session, (int)ids.n);
    for (long done = 0; written && done < ids.n;) {
        int n = ids.n - done < o->session.chunk ? (int)(ids.n - done) : o->session.chunk;
        const float *logits = forward(session, ids.data + done, n, n, &err);
        if (!logits) die(&err);
        for (int i = 0; i < n && written; i++) {
            written = fwrite(logits + (size_t)i * session_logit_stride(session), sizeof(float), row, f) == row;
        }
        done += n;
    }
    if (f && fclose(f) != 0) written = false;
    if (!written) {
        fprintf(stderr, "run: cannot write %s: %s\n", o->logits, strerror(errno));
        return 1;
    }
    fprintf(stderr, "prompt %ld tokens, %.1f tok/s; float32 [%ld][%zu] written to %s\n", ids.n,
            rate((double)ids.n, seconds() - start), ids.n, row, o->logits);
    session_free(session);
    free(ids.data);
    return 0;
}

// -log of the probability that softmax(logits) gives to id.
static double surprise(const float *logits, int vocab_size, int id) {
    double max = -INFINITY, sum = 0;
    for (int i = 0; i < vocab_size; i++) max = logits[i] > max ? logits[i] : max;
    for (int i = 0; i < vocab_size; i++) sum += exp(logits[i] - max);
    return max + log(sum) - logits[id];
}

static void progress(long done, long total, double start) {
    static int shown = -1;
    int percent = (int)(100 * done / total);
    if (percent == shown) return;
    shown = percent;
    char bar[41];
    for (int i = 0; i < 40; i++) bar[i] = i < percent * 40 / 100 ? '#' : '.';
    bar[40] = 0;
    fprintf(stderr, "\r[%s] %3d%%  %ld of %ld tokens, %.0f tok/s%s", bar, percent, done, total,
            rate((double)done, seconds() - start), done == total ? "\n" : "");
}

// Each window is the tokenizer's prefix (BOS) and as many of the text's tokens as fit; every token is scored from those
// before it in its window, except a window's first where there is no prefix.
static int perplexity(const Options *o, const Loaded *l) {
    Error err;
    if (!l->tokenizer) usage("%s has no tokenizer, so --ppl cannot read a text", o->models[0]);
    Text text = read_file(o->ppl);
    warn_if_not_utf8(text);
    Ids ids = encode(l, text.data, text.size, false), prefix = encode(l, "", 0, true);
    free(text.data);
    Session *session = open_session(o, &l->model, o->session.chunk);
    int context = session_context(session), vocab_size = l->model.vocab_size;
    if (ids.n + prefix.n < 2) usage("--ppl %s: at least two tokens are needed, found %ld", o->ppl, ids.n + prefix.n);
    if (context < prefix.n + 1 || context < 2) usage("-c %d is too small for --ppl", context);
    int *window = malloc((size_t)context * sizeof *window);
    if (!window) die(&(Error){"no memory for a window of the context"});
    double sum = 0, start = seconds();
    long scored = 0;
    for (long at = 0; at < ids.n;) {
        int n = 0;
        while (n < prefix.n) window[n] = prefix.data[n], n++;
        int scored_from = n > 0 ? n : 1;
        while (n < context && at < ids.n) window[n++] = ids.data[at++];
        session_reset(session);
        session_expect(session, n);
        for (int i = 0; i < n; i += o->session.chunk) {
            int rows = n - i < o->session.chunk ? n - i : o->session.chunk;
            const float *logits = forward(session, window + i, rows, rows, &err);
            if (!logits) die(&err);
            for (int j = 0; j < rows; j++) {
                int next = i + j + 1;
                if (next < scored_from || next >= n) continue;
                sum += surprise(logits + (size_t)j * session_logit_stride(session), vocab_size, window[next]);
                scored++;
            }
            progress(at - n + i + rows, ids.n, start);
        }
    }
    printf("perplexity %.4f (%.5f nats a token; %ld tokens scored in windows of %d)\n", exp(sum / (double)scored),
           sum / (double)scored, scored, context);
    free(window);
    free(ids.data);
    free(prefix.data);
    session_free(session);
    return 0;
}

// ---- reports ------------------------------------------------------------------------------------------------------------

static int tokenize(const Options *o, const Loaded *l) {
    Ids ids = prompt_ids(o, l);
    for (long i = 0; i < ids.n; i++) printf(i ? " %d" : "%d", ids.data[i]);
    printf("\n");
    free(ids.data);
    return 0;
}

static int info(const Options *o, const Loaded *l) {
    Error err;
    if (report_info(o->models[0], &l->model, l->tokenizer, o->json, &err)) die(&err);
    return 0;
}

static int run_bench(const Options *o, const Loaded *l) {
    Error err;
    if (bench(&l->model, &o->session, o->json, &err)) die(&err);
    return 0;
}

static int check(const Options *o, const Loaded *l) {
    Error why, err;
    if (model_check(&l->model, &why)) {
        fail(&err, "%s: %s", o->models[0], why.text);
        die(&err);
    }
    printf("%s: the checksum of its %s bytes is right\n", o->models[0], commas(l->model.map.size));
    return 0;
}

static int kv(const Options *o) {
    Error err;
    size_t n = (size_t)o->n_models;
    KvReport *reports = calloc(n, sizeof *reports);
    Model *models = calloc(n, sizeof *models);
    if (!reports || !models) die(&(Error){"no memory for the report"});
    for (size_t i = 0; i < n; i++) {
        if (model_open(&models[i], o->models[i], &err)) die(&err);
        check_context(o, &models[i], o->models[i]);
        if (kv_report_make(&reports[i], o->models[i], &models[i], &o->session, &err)) die(&err);
    }
    kv_report_print(reports, o->n_models, o->json);
    for (size_t i = 0; i < n; i++) {
        kv_report_free(&reports[i]);
        model_close(&models[i]);
    }
    free(reports);
    free(models);
    return 0;
}

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN);
    Options options = parse_options(argc, argv);
    Loaded loaded;
    int status = 0;
    if (options.mode == KV) {
        status = kv(&options);
    } else {
        load(&loaded, &options);
        check_context(&options, &loaded.model, options.models[0]);
        switch (options.mode) {
        case GENERATE: status = generate(&options, &loaded); break;
        case PPL: status = perplexity(&options, &loaded); break;
        case LOGITS: status = write_logits(&options, &loaded); break;
        case TOKENIZE: status = tokenize(&options, &loaded); break;
        case INFO: status = info(&options, &loaded); break;
        case CHECK: status = check(&options, &loaded); break;
        case BENCH: status = run_bench(&options, &loaded); break;
        case KV: break;
        }
        unload(&loaded);
    }
    write_out("", 0);
    return status;
}
