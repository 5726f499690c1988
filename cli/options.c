#include "options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "help.h"
#include "print.h"

const char BUNDLED[] = "the bundled model";

static const Options DEFAULTS = {
    .verb = GENERATE,
    .n_generate = -1,
    .n_guess = -1,
    .workspace = {.chunk = 128},
};

enum {
    ROWS = LOGITS | HIDDEN | HEADS | LENS,  // verbs that only run the prompt
    WRITES = GENERATE | CHAT | BATCH,
    READS = EMBED | SIMILAR | CLASSIFY | RANK,  // verbs that read texts as a whole
    TRIES = PATCH | ATTRIBUTE | DISSECT,  // experiments
    WRITTEN_DOWN = EXPERIMENT | VERIFY,
    RUNS = WRITES | ROWS | READS | TRIES | PPL | KV | BENCH,
    PROMPT = GENERATE | ROWS | TRIES | EMBED | CLASSIFY | TOKENIZE,
    CONVERSATION = (PROMPT & ~(READS | TRIES)) | CHAT,
    GROWS = 1 << 30,  // encoders refuse it, since their texts do not grow
    HOW = 1 << 29,    // it says how to generate a text; HEADS uses it only without --target
    WRITING = GROWS | HOW | WRITES | HEADS,
    CACHED = GROWS | GENERATE | LOGITS | HEADS,
    GUESSED = GROWS | GENERATE | CHAT,
    MOST_CONTEXT = 1 << 24,
};
#define FIELD(name) offsetof(Options, name)
#define SELECT(verb) FIELD(flag), .selects = (verb), .verbs = (verb)

static const Option OPTIONS[] = {
    {MODEL, "-m", "MODEL", .verbs = ANY_VERB, .help = "the model, as without -m",
     .also = "--model"},
    {HEADING, "The prompt, by one of these (none: the model begins by itself)", .help = ""},
    {TEXT, "-p", "TEXT", FIELD(prompt), .verbs = PROMPT | CHAT,
     .help = "the text to continue, byte for byte; - reads stdin; with --chat one question",
     .also = "-i"},
    {TEXT, "-f", "FILE", FIELD(prompt_file), .verbs = PROMPT | READS,
     .help = "the text in a file, including its last newline; for --embed, --similar,\n"
             "--classify and --rank one text a line"},
    {TEXT, "--tokens", "IDS", FIELD(tokens), .verbs = GENERATE | ROWS | TRIES,
     .help = "token ids instead of text, such as \"1 2 3\"; nothing is added to them"},
    {TEXT, "--lang", "CODE", FIELD(lang), .verbs = CACHED | LENS | BATCH | TOKENIZE,
     .help = "of a model that translates: the language to write, as its tokenizer names it, or\n"
             "FROM:TO for the prompt's too"},
    {TEXT, "--target", "IDS", FIELD(target), .verbs = GROWS | ROWS,
     .help = "of an encoder-decoder: what the decoder is given, --tokens being its source"},

    {TEXT, "--messages", "FILE", FIELD(messages), .verbs = GROWS | CONVERSATION,
     .help = "a conversation to answer, a JSON array of {\"role\", \"content\"}; it is put into\n"
             "the checkpoint's chat template, and only the answer is printed"},

    {HEADING, "A conversation", .help = ""},
    {FLAG, "--chat", NULL, SELECT(CHAT),
     .help = "talk: a line is a turn, a backslash at its end continues it; Ctrl-C stops an\n"
             "answer; /help lists commands, /bye leaves; with -p TEXT one turn and no more",
     .also = "-cnv"},
    {TEXT, "-sys", "TEXT", FIELD(system), .verbs = CHAT, .help = "the system message"},
    {FLAG, "--no-think", NULL, FIELD(no_think), .verbs = GROWS | CONVERSATION,
     .help = "turn thinking off, if the template can"},
    {FLAG, "--no-history", NULL, FIELD(no_history), .verbs = CHAT,
     .help = "leave ~/.heads_history alone, which keeps what is typed"},

    {HEADING, "Generation", .help = ""},
    {INT, "-n", "N", FIELD(n_generate), 0, 1e9, .verbs = WRITING,
     .help = "generate N tokens at most (256, or as the checkpoint says; in a conversation\n"
             "1024 for each answer)"},
    {SEED, "-s", "SEED", FIELD(sampler.seed), .verbs = WRITING,
     .help = "the same seed gives the same text (from the clock; printed at the end)",
     .also = "--seed"},
    {FLOAT, "--temp", "F", FIELD(sampler.temperature), 0, 1000, .verbs = WRITING,
     .help = "temperature; 0 always takes the most likely token (0.8; 0 if the checkpoint says\n"
             "so and no other option here asks for chance; in a conversation 0.5)",
     .also = "--temperature"},
    {INT, "--top-k", "N", FIELD(sampler.top_k), 0, 1e9, .verbs = WRITING,
     .help = "choose among the N most likely tokens; 0: all (0)"},
    {FLOAT, "--top-p", "F", FIELD(sampler.top_p), 1e-6, 1, .verbs = WRITING,
     .help = "choose among the most likely tokens, of total probability F; 1: all (0.95;\n"
             "in a conversation 0.9)"},
    {FLOAT, "--min-p", "F", FIELD(sampler.min_p), 0, 1, .verbs = WRITING,
     .help = "leave out tokens less than F times as likely as the best; 0: none (0)"},
    {FLOAT, "--repeat-penalty", "F", FIELD(sampler.repeat_penalty), 1e-3, 1000,
     .verbs = WRITING,
     .help = "make tokens among the last 64 less likely; 1: off (1; in a conversation 1.1)"},
    {FLAG, "--ids", NULL, FIELD(ids), .verbs = GROWS | GENERATE,
     .help = "print token ids, the prompt's and the generated ones, instead of text\n"
             "(always the case without a tokenizer)"},
    {FLAG, "--no-echo", NULL, FIELD(no_echo), .verbs = GROWS | GENERATE,
     .help = "print what the model adds alone, without the prompt"},

    {INT, "--probs", "K", FIELD(probs), 1, MAX_PROBS, .verbs = GROWS | GENERATE,
     .help = "instead of the text a line for each token, with its probability and the K likeliest\n"
             "there; with -n 0 for each token of the prompt"},

    {HEADING, "The same text with less work", .help = ""},
    {TEXT, "--prompt-cache", "FILE", FIELD(prompt_cache), .verbs = CACHED,
     .help = "keep the KV cache in FILE; a prompt that begins alike runs only what is new"},
    {FLAG, "--prompt-cache-ro", NULL, FIELD(prompt_cache_ro), .verbs = CACHED,
     .help = "read that file, but do not write it"},
    {INT, "--guess", "N", FIELD(n_guess), 0, 32, .verbs = GUESSED | BATCH,
     .help = "let the layers that some models have for it guess up to N tokens ahead, as far as\n"
             "that pays; 0: never (3)"},
    {INT, "--lookup", "N", FIELD(lookup), 1, 32, .verbs = GUESSED,
     .help = "guess up to N tokens ahead from what followed the same words before (try 7)"},
    {TEXT, "-md", "DRAFT", FIELD(draft_model), .verbs = GUESSED,
     .help = "let a smaller model with the same vocabulary guess instead"},
    {INT, "--draft", "N", FIELD(n_draft), 1, 32, .verbs = GUESSED,
     .help = "up to N tokens ahead (3)"},

    {HEADING, "The machine", .help = ""},
    {INT, "-c", "N", FIELD(workspace.context), 1, MOST_CONTEXT, .verbs = RUNS,
     .help = "context: positions to reserve (as many as the model was made for); --kv counts\n"
             "beyond that too"},
    {INTS, "-t", "N", FIELD(threads), 1, 1024, .verbs = RUNS | WRITTEN_DOWN,
     .help = "threads (one for each physical core); for --bench also several, such as 1,2,4",
     .also = "--threads"},
    {INT, "-b", "N", FIELD(workspace.chunk), 1, 65536, .verbs = RUNS,
     .help = "prompt tokens to run at once (128)"},
    {TYPE, "-ctk", "TYPE", FIELD(workspace.k_type), .verbs = GROWS | RUNS,
     .help = "type of the cached keys: f32, f16, q8 or q4 (f16)", .words = "f32 f16 q8 q4"},
    {TYPE, "-ctv", "TYPE", FIELD(workspace.v_type), .verbs = GROWS | RUNS,
     .help = "type of the cached values (f16)", .words = "f32 f16 q8 q4"},

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
             "temperature, top_k, top_p, min_p, repeat_penalty, frequency_penalty,\n"
             "presence_penalty, seed, stop and steer; the options are the defaults (seed: 0)"},
    {TEXT, "-o", "FILE", FIELD(out), .verbs = BATCH,
     .help = "where the results of --batch go, one to a line, in the same order (stdout);\n"
             "a file that already has some of them is continued"},
    {FLAG, "--again", NULL, FIELD(again), .verbs = BATCH,
     .help = "make those again that another model, other options or requests gave"},
    {FLAG, "--json", NULL, FIELD(json), .verbs = KV | INFO | BENCH | GENERATE | CLASSIFY | TRIES,
     .help = "print --kv, --info, --bench, --classify, --patch, --attribute, --parts or the\n"
             "lines of --probs as JSON"},
    {TEXT, "--ppl", "FILE", FIELD(ppl), .selects = PPL, .verbs = PPL,
     .help = "the perplexity of a text, in windows as long as the context"},
    {FLAG, "--check", NULL, SELECT(CHECK), .help = "verify the file's checksum"},
    {FLAG, "--tokenize", NULL, SELECT(TOKENIZE),
     .help = "print the prompt's token ids, on one line"},
    {TEXT, "--logits", "FILE", FIELD(logits), .selects = LOGITS, .verbs = LOGITS | HEADS,
     .help = "write the prompt's logits: float32 [tokens][vocabulary], little-endian"},
    {TEXT, "--hidden", "FILE", FIELD(hidden), .selects = HIDDEN, .verbs = HIDDEN,
     .help = "write its hidden states after the last norm: float32 [tokens][n_embd]"},
    {FLAG, "--embed", NULL, SELECT(EMBED),
     .help = "print the vector of a text, -p or each line of -f, as JSON, pooled as the\n"
             "checkpoint says"},
    {INT, "--dimensions", "N", FIELD(dimensions), 1, 1 << 16, .verbs = EMBED | SIMILAR,
     .help = "shorten vectors to their first N numbers, if the model was trained for that"},
    {TEXT, "--similar", "QUERY", FIELD(similar), .selects = SIMILAR, .verbs = SIMILAR,
     .help = "the lines of -f by their likeness to a text, the cosine of their vectors"},
    {FLAG, "--classify", NULL, SELECT(CLASSIFY),
     .help = "print the classes of a text, -p or each line of -f, or of its tokens, with their\n"
             "probabilities, as the checkpoint's head gives them"},
    {TEXT, "--rank", "QUERY", FIELD(rank), .selects = RANK, .verbs = RANK,
     .help = "the lines of -f by the score that a cross-encoder gives each beside the query"},
    {TEXT, "--heads", "FILE", FIELD(heads), .selects = HEADS, .verbs = HEADS | LOGITS,
     .help = "what each attention head looks at in the prompt, and its role: a page if FILE\n"
             "ends in .html, numbers if in .json; also beside --logits"},
    {INT, "--heads-max", "MB", FIELD(heads_max), 1, 1000, .verbs = HEADS,
     .help = "size of that page, which leaves the least telling maps out (8)"},
    {FLAG, "--no-cost", NULL, FIELD(no_cost), .verbs = HEADS,
     .help = "leave out what the text's loss becomes without each head, which takes a run each"},
    {TEXT, "--lens", "FILE", FIELD(lens), .selects = LENS, .verbs = LENS,
     .help = "what each layer would say, the text's stream after it through the output: the\n"
             "likeliest tokens if FILE ends in .json; if in .f32 the last token's logits"},
    {TEXT, "--patch", "CORRUPTED", FIELD(patch), .selects = PATCH, .verbs = GROWS | PATCH,
     .help = "what carries the answer: runs of a text with as many tokens as the prompt, in each\n"
             "of which what one head gives at one position is the prompt's"},
    {TEXT, "--answer", "TOKENS", FIELD(answer), .verbs = GROWS | PATCH,
     .help = "for --patch: TOKEN,AGAINST, whose logits' difference is measured, ids or texts of\n"
             "one token (what each text is likeliest to go on with)"},
    {TEXT, "--of", "WHAT", FIELD(of), .verbs = GROWS | PATCH,
     .help = "for --patch: heads, or layers, the residual stream before each (heads)",
     .words = "heads layers"},
    {TEXT, "--metric", "NAME", FIELD(measure), .verbs = GROWS | PATCH,
     .help = "for --patch: difference, log_probability of TOKEN, or kl, from the prompt's next\n"
             "token to the run's, in nats (difference)", .words = "difference log_probability kl"},
    {TEXT, "--attribute", "TOKENS", FIELD(attribute), .selects = ATTRIBUTE,
     .verbs = GROWS | ATTRIBUTE,
     .help = "what each head and each layer's network add to the logit of TOKEN after the prompt,\n"
             "or with TOKEN,AGAINST to its difference from another's"},
    {TEXT, "--parts", "HEAD", FIELD(parts), .selects = DISSECT, .verbs = GROWS | DISSECT,
     .help = "one head computing, such as 5.3, head 3 of layer 5, for the prompt's last token, or\n"
             "5.3:7 for its token 7: scores, weights, with and without rope; --json has all"},
    {TEXT, "--experiment", "FILE", FIELD(experiment), .selects = EXPERIMENT,
     .verbs = GROWS | EXPERIMENT,
     .help = "run what a JSON file describes (texts, heads off, steering, patches, a metric, a\n"
             "sampler) and print its result, with a SHA-256 that is the same on each machine"},
    {TEXT, "--verify", "RESULT", FIELD(verify), .selects = VERIFY, .verbs = GROWS | VERIFY,
     .help = "run the experiment of such a result again and say yes, or no and what differs"},

    {HEADING, "Besides", .help = ""},
    {TEXT, "--adapter", "FILE[:SCALE]", FIELD(adapter), .verbs = RUNS & ~KV,
     .help = "an adapter (LoRA) beside the model, a file of export.py --adapter DIR FILE --for\n"
             "MODEL; a request of --batch may have its own, as \"adapter\""},
    {TEXT, "--off", "LIST", FIELD(off), .verbs = GENERATE | CHAT | ROWS | TRIES | PPL,
     .help = "switch attention heads off: 5.3,7.* is head 3 of layer 5 and all heads of layer 7;\n"
             "e5.3 is the encoder's, x5.3 of the attention to its text"},
    {TEXT, "--steer", "FILE[:SCALE]", FIELD(steer), .verbs = WRITES | ROWS | DISSECT | PPL,
     .help = "add the control vectors of a GGUF file, times SCALE (1), to the stream after layers"},
    {VERB, "--help", "[VERB]", FIELD(flag), .verbs = ANY_VERB, .also = "-h",
     .help = "this list, or its part for one verb, as in --help chat"},
    {FLAG, "--man", NULL, FIELD(flag), .verbs = ANY_VERB, .help = "the manual page, for man"},
    {TEXT, "--completion", "SHELL", FIELD(flag), .verbs = ANY_VERB, .words = "bash zsh fish",
     .help = "what bash, zsh or fish reads to complete these options"},
    {FLAG, "--version", NULL, FIELD(flag), .verbs = ANY_VERB, .help = "of heads", .also = "-v"},
};
enum { N_OPTIONS = sizeof OPTIONS / sizeof OPTIONS[0] };
static const OptionTable TABLE = {OPTIONS, N_OPTIONS};

// ---- values ----

static double parse_number(const Option *o, const char *text) {
    char *end;
    double value = strtod(text, &end);
    bool whole = o->kind == INT;
    if (end == text || *end || isnan(value))
        usage("%s wants a %snumber, found \"%s\"", o->name, whole ? "whole " : "", text);
    if (whole && value != floor(value))
        usage("%s wants a whole number, found \"%s\"", o->name, text);
    if (value < o->min || value > o->max)
        usage("%s wants a number from %g to %.10g, found \"%s\"", o->name, o->min, o->max, text);
    return value;
}

static IntList parse_ints(const Option *o, const char *text) {
    const char *hint = strcmp(o->name, "-t") ? "" : "; for the sampling temperature use --temp";
    IntList list = {0};
    const char *p = text;
    do {
        char *end;
        long value = strtol(p, &end, 10);
        bool ok = list.n < MAX_LIST && *p >= '0' && *p <= '9' && (!*end || *end == ',');
        if (!ok || value < (long)o->min || value > (long)o->max)
            usage("%s wants a number from %g to %g, or several (%d at most) such as 1,4,8, found "
                  "\"%s\"%s", o->name, o->min, o->max, MAX_LIST, text, hint);
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

// Parses 8G, 1.5M or 100000: a number of bytes; K, M and G stand for 1024, 1024^2 and 1024^3.
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

const char *type_name(heads_type type) {
    static const char *const names[] = {
        [HEADS_F32] = "f32", [HEADS_F16] = "f16", [HEADS_Q8] = "q8", [HEADS_Q4] = "q4"};
    return names[type];
}

static heads_type parse_type(const Option *o, const char *text) {
    for (heads_type type = HEADS_F16; type <= HEADS_Q4; type++)
        if (strcmp(text, type_name(type)) == 0) return type;
    usage("%s wants f32, f16, q8 or q4, found \"%s\"", o->name, text);
}

static void set_option(Options *options, const Option *o, const char *text) {
    void *field = (char *)options + o->field;
    switch (o->kind) {
    case FLAG: *(bool *)field = true; break;
    case TEXT: *(const char **)field = text; break;
    case MODEL: options->models[options->n_models++] = text; break;
    case INT: *(int *)field = (int)parse_number(o, text); break;
    case INTS: *(IntList *)field = parse_ints(o, text); break;
    case FLOAT: *(float *)field = (float)parse_number(o, text); break;
    case TYPE: *(heads_type *)field = parse_type(o, text); break;
    case BYTES: *(size_t *)field = parse_bytes(o, text); break;
    case SEED: *(uint64_t *)field = parse_seed(text); break;
    case VERB:
    case HEADING: break;
    }
}

// ---- arguments ----

// The name of the option that asked for the verb.
static const char *verb_name(Verb verb, const bool given[N_OPTIONS]) {
    for (int i = 0; i < N_OPTIONS; i++)
        if (given[i] && OPTIONS[i].selects == verb) return OPTIONS[i].name;
    return GENERATION;
}

const char *verb_names(unsigned verbs) {
    static char text[256];
    const char *last = NULL;
    text[0] = 0;
    for (int i = 0; i < N_OPTIONS; i++) {
        if (!(OPTIONS[i].selects & verbs)) continue;
        if (last) text_append(text, sizeof text, "%s%s", text[0] ? ", " : "", last);
        last = OPTIONS[i].name;
    }
    text_append(text, sizeof text, " and %s", last);
    return text;
}

static const Option *look_up(const char *name) {
    for (const Option *o = OPTIONS; o < OPTIONS + N_OPTIONS; o++)
        if (o->kind != HEADING &&
            (strcmp(o->name, name) == 0 || (o->also && strcmp(o->also, name) == 0)))
            return o;
    return NULL;
}

// Which of an option's words the text is; the first if it is NULL.
static int parse_word(const char *name, const char *text) {
    const Option *o = look_up(name);
    const char *word = o->words;
    for (int i = 0; text; i++, word += strspn(word, " ")) {
        size_t len = strcspn(word, " ");
        if (!len) usage("%s wants one of %s, found \"%s\"", name, o->words, text);
        if (len == strlen(text) && memcmp(word, text, len) == 0) return i;
        word += len;
    }
    return 0;
}

// How many letters to insert, drop or replace to make one name of the other (Levenshtein's
// distance), in a table with a row for each letter of a.
static int distance(const char *a, const char *b) {
    enum { MOST = 32 };
    int row[MOST + 1], n = (int)strlen(b);
    if (n > MOST) return MOST;
    for (int j = 0; j <= n; j++) row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int replaced = diagonal + (a[i - 1] != b[j - 1]), above = diagonal = row[j];
            if (row[j - 1] < above) above = row[j - 1];
            row[j] = replaced < above + 1 ? replaced : above + 1;
        }
    }
    return row[n];
}

// The option's name that is nearest to a word; of those that select a verb, if `verbs`, and then
// whatever dashes it has. NULL: none is near.
static const char *nearest(const char *word, bool verbs) {
    const char *found = NULL;
    int best = (int)strlen(word) / 3 + 1;
    for (const Option *o = OPTIONS; o < OPTIONS + N_OPTIONS; o++) {
        const char *const names[] = {o->name, o->also};
        for (int i = 0; i < 2 && o->kind != HEADING && (o->selects || !verbs); i++) {
            const char *name = names[i] && verbs ? names[i] + strspn(names[i], "-") : names[i];
            int d = name ? distance(word, name) : best;
            if (d < best) best = d, found = name;
        }
    }
    return found;
}

// Ends the program with the name that comes nearest; with its value where it was given as
// --name=value.
static void refuse_option(const char *given) {
    char name[32] = "";
    const char *value = strchr(given, '=');
    size_t len = strcspn(given, "=");
    memcpy(name, given, len < sizeof name ? len : sizeof name - 1);
    const char *meant = nearest(name, false);
    if (!meant) usage("there is no option \"%s\"", given);
    usage("there is no option \"%s\"; did you mean %s%s%s?", given, meant, value ? " " : "",
          value ? value + 1 : "");
}

// The verb of a name, with or without its dashes.
static Verb find_verb(const char *given) {
    const char *name = given + strspn(given, "-");
    if (strcmp(name, GENERATION) == 0) return GENERATE;
    for (const Option *o = OPTIONS; o < OPTIONS + N_OPTIONS; o++) {
        const char *const names[] = {o->name, o->also};
        for (int i = 0; i < 2 && o->selects; i++)
            if (names[i] && strcmp(names[i] + strspn(names[i], "-"), name) == 0) return o->selects;
    }
    const char *meant = nearest(name, true);
    if (meant) usage("there is no verb \"%s\"; did you mean %s?", given, meant);
    usage("there is no verb \"%s\", only %s, %s", given, GENERATION, verb_names(ANY_VERB));
}

static const Option *find_option(const char *name) {
    const Option *o = look_up(name);
    if (!o) refuse_option(name);
    return o;
}

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), len = strlen(end);
    return n >= len && strcmp(text + n - len, end) == 0;
}

// Refuses combinations that mean nothing.
static void check_options(const Options *o, const bool given[N_OPTIONS]) {
    for (int i = 0; i < N_OPTIONS; i++)
        if (given[i] && !(OPTIONS[i].verbs & o->verb))
            usage("%s means nothing for %s", OPTIONS[i].name, verb_name(o->verb, given));
    if (o->n_models > 1 && o->verb != KV)
        usage("one model, please: found \"%s\" and \"%s\"; a prompt goes after -p, in quotes, and "
              "only --kv takes several models", o->models[0], o->models[1]);
    if (!!o->prompt + !!o->prompt_file + !!o->tokens + !!o->messages > 1)
        usage("-p, -f, --tokens and --messages: give one of them");
    if (o->no_think && !o->messages && o->verb != CHAT)
        usage("--no-think is for --chat and --messages");
    if (o->lookup && o->draft_model) usage("--lookup and -md: give one of them");
    if (o->n_guess > 0 && (o->lookup || o->draft_model))
        usage("--guess, --lookup and -md: give one of them");
    if (o->n_draft && !o->draft_model)
        usage("--draft is for -md DRAFT; --lookup N has its own number");
    if (o->heads && !o->html && !ends_with(o->heads, ".json"))
        usage("--heads wants a file whose name ends in .html or .json, found \"%s\"", o->heads);
    if (o->heads && !o->prompt && !o->prompt_file && !o->tokens && !o->messages)
        usage("--heads needs a text to look at: -p TEXT, -f FILE, --tokens IDS or --messages FILE");
    if (o->svg && !ends_with(o->svg, ".svg"))
        usage("--svg wants a file whose name ends in .svg, found \"%s\"", o->svg);
    if (o->heads && o->prompt_cache)
        usage("--heads and --prompt-cache: give one of them; what a cache holds does not run, and "
              "so it cannot be looked at");
    if (o->off && o->prompt_cache)
        usage("--off and --prompt-cache: give one of them; a cache does not say which heads were "
              "off when it was filled");
    if (o->json && o->verb == GENERATE && !o->probs)
        usage("--json is for --probs, --kv, --info, --bench, --classify, --patch, --attribute and "
              "--parts");
    if (o->probs && o->n_generate == 0 && o->prompt_cache)
        usage("--probs with -n 0 and --prompt-cache: give one of them; what a cache holds does not "
              "run, and so has no probabilities");
    if (o->lens && !ends_with(o->lens, ".json") && !ends_with(o->lens, ".f32"))
        usage("--lens wants a file whose name ends in .json or .f32, found \"%s\"", o->lens);
    if (o->verb & TRIES && !o->prompt && !o->prompt_file && !o->tokens)
        usage("%s needs a prompt: -p TEXT, -f FILE or --tokens IDS", verb_name(o->verb, given));
    if (o->heads_max && !o->html) usage("--heads-max is for --heads FILE.html");
    if (o->prompt_cache_ro && !o->prompt_cache)
        usage("--prompt-cache-ro is for --prompt-cache FILE");
    if (o->verb & (SIMILAR | RANK) && !o->prompt_file)
        usage("%s needs -f FILE, with a text on each line", o->rank ? "--rank" : "--similar");
    if (o->verb & (EMBED | CLASSIFY) && !o->prompt && !o->prompt_file)
        usage("%s needs a text, -p TEXT, or one on each line of -f FILE",
              o->verb == EMBED ? "--embed" : "--classify");
    if (o->again && !o->out) usage("--again is for -o FILE");
    if (o->verb == BATCH && o->sequences.n > 1) usage("--batch takes one number with -np");
    if (o->verb != BENCH && o->threads.n > 1)
        usage("-t takes one number; only --bench takes several");
}

// --help, --version and what else is asked of the program, not of a model. value: what follows.
static void answer_and_exit(const Option *o, const char *value) {
    if (o->kind == VERB && value) print_verb_help(TABLE, find_verb(value));
    else if (o->kind == VERB) print_help(TABLE);
    else if (strcmp(o->name, "--man") == 0) print_manual(TABLE);
    else if (strcmp(o->name, "--version") == 0) printf("heads %s\n", heads_version());
    else if (!value || !print_completion(TABLE, value))
        usage("%s wants bash, zsh or fish, found \"%s\"", o->name, value ? value : "");
    write_out("", 0);
    exit(0);
}

static bool is_given(const char *name, const bool given[N_OPTIONS]) {
    return given[find_option(name) - OPTIONS];
}

// In a conversation, what is not given has other values.
static void set_answers(Options *o, const bool given[N_OPTIONS]) {
    heads_sampler_options usual = heads_sampler_defaults(true);
    o->answers = o->sampler;
    o->n_answer = is_given("-n", given) ? o->n_generate : 1024;
    if (!is_given("--temp", given)) o->answers.temperature = usual.temperature;
    if (!is_given("--top-p", given)) o->answers.top_p = usual.top_p;
    if (!is_given("--repeat-penalty", given)) o->answers.repeat_penalty = usual.repeat_penalty;
    if (!o->messages && o->verb != CHAT) return;
    o->sampler = o->answers;
    o->n_generate = o->n_answer;
}

Options parse_options(int argc, char **argv) {
    name_program(argc > 0 ? argv[0] : "");
    argv = prepare_process(program_name(), &argc, argv);
    Options options = DEFAULTS;
    options.sampler = heads_sampler_defaults(false);
    static const char *const chance[] = {"--temp", "--top-k", "--top-p", "--min-p"};
    static char chat[] = "--chat";
    bool given[N_OPTIONS] = {false};
    options.models = (const char **)argv;
    const char *isa = getenv("HEADS_ISA");
    if (isa && *isa) options.workspace.isa = isa;
    if (argc > 1 && strcmp(argv[1], "help") == 0) answer_and_exit(look_up("--help"), argv[2]);
    if (argc > 2 && strcmp(argv[1], "chat") == 0) argv[1] = chat;
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        if (name[0] != '-') {
            options.models[options.n_models++] = argv[i];
            continue;
        }
        const Option *o = find_option(name);
        if (o->field == FIELD(flag) && !o->selects) answer_and_exit(o, argv[i + 1]);
        if (o->value && i + 1 == argc) usage("%s wants a value: %s %s", name, name, o->value);
        if (o->selects && !((GENERATE | o->verbs) & options.verb))
            usage("%s and %s: one thing at a time", verb_name(options.verb, given), name);
        // --logits and --heads go together
        if (o->selects && options.verb != HEADS) options.verb = o->selects;
        given[o - OPTIONS] = true;
        if (o->verbs & GROWS) options.grows = name;
        if (o->verbs & HOW) options.writes = name;
        set_option(&options, o, o->value ? argv[++i] : NULL);
    }
    if (!is_given("-s", given) && options.verb != BATCH)
        options.sampler.seed = clock_microseconds();
    options.workspace.n_threads = options.threads.values[0];
    options.html = options.heads && ends_with(options.heads, ".html");
    options.of_layers = parse_word("--of", options.of) == 1;
    options.metric = (heads_metric)parse_word("--metric", options.measure);
    options.f32 = options.lens && ends_with(options.lens, ".f32");
    if (argc == 1)
        warn("no model is named, so the bundled one tells a story; %s --help says more",
             program_command());
    if (!options.n_models) options.models[options.n_models++] = BUNDLED;
    check_options(&options, given);
    if (!options.heads_max) options.heads_max = 8;
    if (!options.n_draft) options.n_draft = 3;
    set_answers(&options, given);
    for (int i = 0; i < N_OPTIONS; i++)
        for (size_t j = 0; j < sizeof chance / sizeof *chance; j++)
            options.samples |= given[i] && strcmp(OPTIONS[i].name, chance[j]) == 0;
    return options;
}
