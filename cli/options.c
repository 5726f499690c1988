#include "options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "print.h"

static const Options DEFAULTS = {
    .verb = GENERATE,
    .n_generate = -1,
    .workspace = {.chunk = DEFAULT_CHUNK, .k_dtype = F16, .v_dtype = F16},
    .sampler = {.temperature = 0.8f, .top_p = 0.95f, .repeat_penalty = 1,
                .repeat_last = DEFAULT_REPEAT_LAST},
};

typedef enum { HEADING, FLAG, TEXT, INT, INTS, FLOAT, SEED, DTYPE, BYTES } Kind;

typedef struct {
    Kind kind;
    const char *name, *value;  // value: what the help calls it
    size_t field;              // where in Options it goes
    double min, max;           // of a number
    Verb selects;              // the verb that it asks for, if any
    unsigned verbs;            // the verbs for which it means something
    const char *help;
} Option;

enum {
    WRITES = GENERATE | CHAT | BATCH,
    RUNS = WRITES | LOOK | HIDDEN | EMBED | SIMILAR | PPL | KV | BENCH,
    PROMPT = GENERATE | LOOK | HIDDEN | EMBED | TOKENIZE,
    GROWS = 1 << 30,  // not for encoders, whose texts do not grow
    HOW = 1 << 29,    // how a text is written, which LOOK does of a target that is not given
    WRITING = GROWS | HOW | WRITES | LOOK,
    ANY = ~0,
};
#define FIELD(name) offsetof(Options, name)
#define SELECT(verb) FIELD(flag), .selects = (verb), .verbs = (verb)

static const Option OPTIONS[] = {
    {HEADING, "The prompt, by one of these (none: the model begins by itself)", .help = ""},
    {TEXT, "-p", "TEXT", FIELD(prompt), .verbs = PROMPT,
     .help = "the text to continue, byte for byte; - reads stdin"},
    {TEXT, "-i", "TEXT", FIELD(prompt), .verbs = PROMPT, .help = "the same as -p"},
    {TEXT, "-f", "FILE", FIELD(prompt_file), .verbs = PROMPT | SIMILAR,
     .help = "the text in a file, including its last newline; for --embed and --similar\n"
             "one text a line"},
    {TEXT, "--tokens", "IDS", FIELD(tokens), .verbs = GENERATE | LOOK | HIDDEN,
     .help = "token ids instead of text, such as \"1 2 3\"; nothing is added to them"},
    {TEXT, "--lang", "CODE", FIELD(lang), .verbs = GROWS | GENERATE | BATCH | TOKENIZE | LOOK,
     .help = "of a model that translates: the language to write, as its tokenizer names it, or\n"
             "FROM:TO for the prompt's too"},
    {TEXT, "--target", "IDS", FIELD(target), .verbs = GROWS | LOOK | HIDDEN,
     .help = "of an encoder-decoder: what the decoder is given, --tokens being its source"},

    {TEXT, "--messages", "FILE", FIELD(messages), .verbs = GROWS | (PROMPT & ~EMBED) | CHAT,
     .help = "a conversation to answer, a JSON array of {\"role\", \"content\"}; it is put into\n"
             "the checkpoint's chat template, and only the answer is printed"},

    {HEADING, "A conversation", .help = ""},
    {FLAG, "--chat", NULL, SELECT(CHAT),
     .help = "talk: a line is a turn, a backslash at its end continues it; Ctrl-C stops an\n"
             "answer; /reset starts again, /save FILE is for --messages, /exit leaves"},
    {FLAG, "-cnv", NULL, SELECT(CHAT), .help = "the same as --chat"},
    {TEXT, "-sys", "TEXT", FIELD(system), .verbs = CHAT, .help = "the system message"},
    {FLAG, "--no-think", NULL, FIELD(no_think), .verbs = GROWS | (PROMPT & ~EMBED) | CHAT,
     .help = "turn thinking off, if the template can"},

    {HEADING, "Generation", .help = ""},
    {INT, "-n", "N", FIELD(n_generate), 0, 1e9, .verbs = WRITING,
     .help = "generate N tokens at most (256, or as the checkpoint says; in a conversation\n"
             "1024 for each answer)"},
    {SEED, "-s", "SEED", FIELD(sampler.seed), .verbs = WRITING,
     .help = "seed: the same seed gives the same text (from the clock; printed at the end)"},
    {FLOAT, "--temp", "F", FIELD(sampler.temperature), 0, 1000, .verbs = WRITING,
     .help = "temperature; 0 always takes the most likely token (0.8; 0 if the checkpoint says\n"
             "so and no other option here asks for chance)"},
    {INT, "--top-k", "N", FIELD(sampler.top_k), 0, 1e9, .verbs = WRITING,
     .help = "choose among the N most likely tokens; 0: all (0)"},
    {FLOAT, "--top-p", "F", FIELD(sampler.top_p), 1e-6, 1, .verbs = WRITING,
     .help = "choose among the most likely tokens, of total probability F; 1: all (0.95)"},
    {FLOAT, "--min-p", "F", FIELD(sampler.min_p), 0, 1, .verbs = WRITING,
     .help = "leave out tokens less than F times as likely as the best; 0: none (0)"},
    {FLOAT, "--repeat-penalty", "F", FIELD(sampler.repeat_penalty), 1e-3, 1000,
     .verbs = WRITING,
     .help = "make tokens among the last 64 less likely; 1: off (1)"},
    {FLAG, "--ids", NULL, FIELD(ids), .verbs = GROWS | GENERATE,
     .help = "print token ids, the prompt's and the generated ones, instead of text\n"
             "(always the case without a tokenizer)"},

    {HEADING, "The same text with less work", .help = ""},
    {TEXT, "--prompt-cache", "FILE", FIELD(prompt_cache), .verbs = GROWS | GENERATE | LOOK,
     .help = "keep the KV cache in FILE; a prompt that begins alike runs only what is new"},
    {FLAG, "--prompt-cache-ro", NULL, FIELD(prompt_cache_ro), .verbs = GROWS | GENERATE | LOOK,
     .help = "read that file, but do not write it"},
    {INT, "--lookup", "N", FIELD(lookup), 1, 32, .verbs = GROWS | WRITES,
     .help = "guess up to N tokens ahead from what followed the same words before (try 7)"},
    {TEXT, "-md", "DRAFT", FIELD(draft_model), .verbs = GROWS | WRITES,
     .help = "let a smaller model with the same vocabulary guess instead"},
    {INT, "--draft", "N", FIELD(n_draft), 1, 32, .verbs = GROWS | WRITES,
     .help = "up to N tokens ahead (3)"},

    {HEADING, "The machine", .help = ""},
    {INT, "-c", "N", FIELD(workspace.context), 1, MAX_DIM, .verbs = RUNS,
     .help = "context: positions to reserve (as many as the model was made for); --kv counts\n"
             "beyond that too"},
    {INT, "-t", "N", FIELD(workspace.n_threads), 1, 1024, .verbs = RUNS,
     .help = "threads (one for each physical core)"},
    {INT, "-b", "N", FIELD(workspace.chunk), 1, 65536, .verbs = RUNS,
     .help = "prompt tokens to run at once (128)"},
    {DTYPE, "-ctk", "TYPE", FIELD(workspace.k_dtype), .verbs = GROWS | RUNS,
     .help = "type of the cached keys: f32, f16, q8 or q4 (f16)"},
    {DTYPE, "-ctv", "TYPE", FIELD(workspace.v_dtype), .verbs = GROWS | RUNS,
     .help = "type of the cached values (f16)"},

    {HEADING, "Instead of generating", .help = ""},
    {FLAG, "--kv", NULL, SELECT(KV),
     .help = "what the KV cache costs, as MHA, GQA, MQA and MLA, and as measured;\n"
             "accepts several models, and shapes (export.py --shape-only)"},
    {BYTES, "--memory", "SIZE", FIELD(memory), .verbs = GROWS | KV,
     .help = "for --kv: how many tokens fit in that much, such as 8G or 512M (what is free now)"},
    {TEXT, "--svg", "FILE", FIELD(svg), .verbs = GROWS | KV,
     .help = "for --kv: also draw bytes against context, a line for each scheme, or each model"},
    {FLAG, "--info", NULL, SELECT(INFO),
     .help = "the model's shape, tensors, tokenizer, and the instruction set in use"},
    {FLAG, "--bench", NULL, SELECT(BENCH),
     .help = "the speed of prefill and decode at several depths, beside what this machine's\n"
             "arithmetic and memory allow"},
    {INTS, "-np", "LIST", FIELD(sequences), 1, MAX_SEQUENCES, .verbs = BENCH | BATCH,
     .help = "for --bench: numbers of sequences to run side by side, such as 1,4,8,16,32;\n"
             "for --batch: how many requests to run at a time (16)"},
    {TEXT, "--batch", "FILE", FIELD(batch), .selects = BATCH, .verbs = BATCH,
     .help = "answer requests, one a line: {\"id\": 1, \"prompt\": \"text\", \"max_tokens\": 9};\n"
             "- reads stdin. A request may have tokens or messages instead of prompt, and\n"
             "temperature, top_k, top_p, min_p, repeat_penalty, seed and stop; the options\n"
             "above are the defaults (seed: 0)"},
    {TEXT, "-o", "FILE", FIELD(out), .verbs = BATCH,
     .help = "where the results of --batch go, one to a line, in the same order (stdout);\n"
             "a file that already has some of them is continued"},
    {FLAG, "--json", NULL, FIELD(json), .verbs = KV | INFO | BENCH,
     .help = "print --kv, --info or --bench as JSON"},
    {TEXT, "--ppl", "FILE", FIELD(ppl), .selects = PPL, .verbs = PPL,
     .help = "the perplexity of a text, in windows as long as the context"},
    {FLAG, "--check", NULL, SELECT(CHECK), .help = "verify the file's checksum"},
    {FLAG, "--tokenize", NULL, SELECT(TOKENIZE),
     .help = "print the prompt's token ids, on one line"},
    {TEXT, "--logits", "FILE", FIELD(logits), .selects = LOOK, .verbs = LOOK,
     .help = "write the prompt's logits: float32 [tokens][vocabulary], little-endian"},
    {TEXT, "--hidden", "FILE", FIELD(hidden), .selects = HIDDEN, .verbs = HIDDEN,
     .help = "write its hidden states after the last norm: float32 [tokens][n_embd]"},
    {FLAG, "--embed", NULL, SELECT(EMBED),
     .help = "print the vector of a text, -p or each line of -f, as JSON, pooled as the\n"
             "checkpoint says"},
    {TEXT, "--similar", "QUERY", FIELD(similar), .selects = SIMILAR, .verbs = SIMILAR,
     .help = "the lines of -f by their likeness to a text, the cosine of their vectors"},
    {TEXT, "--heads", "FILE", FIELD(heads), .selects = LOOK, .verbs = LOOK,
     .help = "what each attention head looks at in the prompt, and its role: a page if FILE\n"
             "ends in .html, numbers if in .json; also beside --logits"},
    {INT, "--heads-max", "MB", FIELD(heads_max), 1, 1000, .verbs = LOOK,
     .help = "size of that page, which leaves the least telling maps out (8)"},
    {FLAG, "--help", NULL, FIELD(flag), .verbs = ANY, .help = "this list"},
};
enum { N_OPTIONS = sizeof OPTIONS / sizeof OPTIONS[0] };

// ---- help ----

static void print_option(const Option *o) {
    char left[64];
    snprintf(left, sizeof left, "%s %s", o->name, o->value ? o->value : "");
    printf("  %-20s ", left);
    for (const char *line = o->help; *line;) {
        int len = (int)strcspn(line, "\n");
        printf("%.*s\n", len, line);
        line += len;
        if (*line) printf("%23s", ""), line++;
    }
}

static void help(void) {
    printf("./run MODEL [options]    continues a text with a language model\n\n"
           "  ./run models/stories.bin -p \"One day, a fox\" -n 100\n\n"
           "MODEL is a checkpoint: models/stories.bin, or one that export.py has made. The prompt "
           "and what the\nmodel adds go to stdout, everything else to stderr. Defaults are in "
           "parentheses.\n");
    for (const Option *o = OPTIONS; o < OPTIONS + N_OPTIONS; o++) {
        if (o->kind == HEADING) printf("\n%s:\n", o->name);
        else print_option(o);
    }
    printf("\nGeneration ends at an end-of-text token, after -n tokens, when the context is full, "
           "or at Ctrl-C;\nthe last line on stderr says which. Special tokens are printed in "
           "answers only. The environment\nvariable HEADS_ISA chooses the kernels: scalar, avx2, "
           "avxvnni, avx512, avx512bf16, amx or neon.\nExit status: 0 done (also when stdout is "
           "closed), 1 failed, 2 wrong usage, 130 after Ctrl-C.\n");
}

// ---- values ----

static double parse_number(const Option *o, const char *text) {
    char *end;
    double value = strtod(text, &end);
    bool whole = o->kind == INT;
    if (end == text || *end || isnan(value))
        usage("%s wants a %snumber, found \"%s\"", o->name, whole ? "whole " : "", text);
    if (whole && value != floor(value)) {
        const char *hint = strcmp(o->name, "-t") ? "" : "; for the sampling temperature use --temp";
        usage("%s wants a whole number, found \"%s\"%s", o->name, text, hint);
    }
    if (value < o->min || value > o->max)
        usage("%s wants a number from %g to %.10g, found \"%s\"", o->name, o->min, o->max, text);
    return value;
}

static IntList parse_ints(const Option *o, const char *text) {
    IntList list = {0};
    const char *p = text;
    do {
        char *end;
        long value = strtol(p, &end, 10);
        bool ok = list.n < MAX_LIST && *p >= '0' && *p <= '9' && (!*end || *end == ',');
        if (!ok || value < (long)o->min || value > (long)o->max)
            usage("%s wants up to %d numbers from %g to %g such as 1,4,8, found \"%s\"", o->name,
                  MAX_LIST, o->min, o->max, text);
        list.values[list.n++] = (int)value;
        p = end;
    } while (*p++ == ',');
    return list;
}

static uint64_t parse_seed(const char *text) {
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno)
        usage("-s wants a whole number from 0 to 2^64 - 1, found \"%s\"", text);
    return value;
}

// 8G, 1.5M, 100000: bytes, or so many times 1024, 1024^2, ..
static size_t parse_bytes(const Option *o, const char *text) {
    static const char units[] = "KMGT";
    char *end;
    double value = strtod(text, &end);
    const char *unit = *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
    bool ok = end != text && (!*end || (unit && !end[1]));
    if (unit) value = ldexp(value, 10 * (int)(unit - units + 1));
    if (!ok || !(value >= 1 && value < 0x1p60))
        usage("%s wants a size such as 8G, with K, M, G or T, found \"%s\"", o->name, text);
    return (size_t)value;
}

static Dtype parse_dtype(const Option *o, const char *text) {
    static const Dtype types[] = {F32, F16, Q8, Q4};
    for (int i = 0; i < 4; i++)
        if (strcmp(text, dtype_name(types[i])) == 0) return types[i];
    usage("%s wants f32, f16, q8 or q4, found \"%s\"", o->name, text);
}

static void set_option(Options *options, const Option *o, const char *text) {
    void *field = (char *)options + o->field;
    switch (o->kind) {
    case FLAG: *(bool *)field = true; break;
    case TEXT: *(const char **)field = text; break;
    case INT: *(int *)field = (int)parse_number(o, text); break;
    case INTS: *(IntList *)field = parse_ints(o, text); break;
    case FLOAT: *(float *)field = (float)parse_number(o, text); break;
    case DTYPE: *(Dtype *)field = parse_dtype(o, text); break;
    case BYTES: *(size_t *)field = parse_bytes(o, text); break;
    case SEED:
        *(uint64_t *)field = parse_seed(text);
        options->seeded = true;
        break;
    case HEADING: break;
    }
}

// ---- arguments ----

// The option that asked for the verb.
static const char *verb_name(Verb verb, const bool given[N_OPTIONS]) {
    for (int i = 0; i < N_OPTIONS; i++)
        if (given[i] && OPTIONS[i].selects == verb) return OPTIONS[i].name;
    return "generation";
}

static const Option *find_option(const char *name) {
    for (int i = 0; i < N_OPTIONS; i++)
        if (OPTIONS[i].kind != HEADING && strcmp(OPTIONS[i].name, name) == 0) return &OPTIONS[i];
    usage("there is no option \"%s\"", name);
}

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), len = strlen(end);
    return n >= len && strcmp(text + n - len, end) == 0;
}

// Combinations that mean nothing are refused rather than ignored.
static void check_options(const Options *o, const bool given[N_OPTIONS]) {
    for (int i = 0; i < N_OPTIONS; i++)
        if (given[i] && !(OPTIONS[i].verbs & o->verb))
            usage("%s means nothing for %s", OPTIONS[i].name, verb_name(o->verb, given));
    if (o->n_models == 0)
        usage("which model? Name a checkpoint; ./run models/stories.bin tells a story");
    if (o->n_models > 1 && o->verb != KV)
        usage("one model, please: found \"%s\" and \"%s\"; a prompt goes after -p, and only --kv "
              "takes several models", o->models[0], o->models[1]);
    if (!!o->prompt + !!o->prompt_file + !!o->tokens + !!o->messages > 1)
        usage("-p, -f, --tokens and --messages: give one of them");
    if (o->no_think && !o->messages && o->verb != CHAT)
        usage("--no-think is for --chat and --messages");
    if (o->lookup && o->draft_model) usage("--lookup and -md: give one of them");
    if (o->n_draft && !o->draft_model)
        usage("--draft is for -md DRAFT; --lookup N has its own number");
    if (o->heads && !o->html && !ends_with(o->heads, ".json"))
        usage("--heads wants a file whose name ends in .html or .json, found \"%s\"", o->heads);
    if (o->heads && o->prompt_cache)
        usage("--heads and --prompt-cache: give one of them; what a cache holds does not run, and "
              "so it cannot be looked at");
    if (o->heads_max && !o->html) usage("--heads-max is for --heads FILE.html");
    if (o->prompt_cache_ro && !o->prompt_cache)
        usage("--prompt-cache-ro is for --prompt-cache FILE");
    if (o->verb == SIMILAR && !o->prompt_file)
        usage("--similar needs -f FILE, with a text on each line");
    if (o->verb == EMBED && !o->prompt && !o->prompt_file)
        usage("--embed needs a text, -p TEXT, or one on each line of -f FILE");
    if (o->verb == BATCH && o->sequences.n > 1) usage("--batch takes one number with -np");
}

Options parse_options(int argc, char **argv) {
    Options options = DEFAULTS;
    static const char *const chance[] = {"--temp", "--top-k", "--top-p", "--min-p"};
    bool given[N_OPTIONS] = {false};
    options.models = argv;
    const char *isa = getenv("HEADS_ISA");
    if (isa && *isa) options.workspace.isa = isa;
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
        if (o->selects && options.verb != GENERATE && options.verb != o->selects)
            usage("%s and %s: one thing at a time", verb_name(options.verb, given), name);
        if (o->selects) options.verb = o->selects;
        given[o - OPTIONS] = true;
        if (o->verbs & GROWS) options.grows = name;
        if (o->verbs & HOW) options.writes = name;
        set_option(&options, o, o->value ? argv[++i] : NULL);
    }
    options.html = options.heads && ends_with(options.heads, ".html");
    check_options(&options, given);
    if (!options.heads_max) options.heads_max = 8;
    if (!options.n_draft) options.n_draft = 3;
    bool converses = options.messages || options.verb == CHAT;
    if (options.n_generate < 0 && converses) options.n_generate = 1024;
    for (int i = 0; i < N_OPTIONS; i++)
        for (size_t j = 0; j < sizeof chance / sizeof *chance; j++)
            options.samples |= given[i] && strcmp(OPTIONS[i].name, chance[j]) == 0;
    return options;
}
