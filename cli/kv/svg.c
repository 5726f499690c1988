// Draws the bytes of caches against the context, both in doublings, for light and dark pages.
#include "cli/kv/svg.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/input.h"
#include "cli/outfile.h"
#include "cli/print.h"

enum {
    WIDTH = 860, HEIGHT = 500, LEFT = 84, RIGHT = 600, TOP = 76, BOTTOM = 440,
    LABEL = 17,       // from one name of a line to the next
    OCTAVES = 8,      // doublings of the context that are shown
    PER_OCTAVE = 8,   // points of a line, so that the bend of a window shows
    MOST_TICKS = 9, N_COLOURS = 6,
};

typedef struct {
    const Report *r;
    const Scheme *scheme;
    int colour;       // -1: grey
    double label;     // y of its name
} Line;

typedef struct {
    FILE *f;
    Line *lines;      // [n], from the largest cache to the smallest
    int n;
    bool schemes;     // the lines are one model's schemes; else each is a model
    double x0, x1, y0, y1;  // edges: log2 of tokens, and of bytes
    size_t memory;    // drawn as a limit; 0: not
} Picture;

static const char STYLE[] =
    "<style>\n"
    "text { font: 13px system-ui, sans-serif; fill: #1f2328 } .small { fill: #59636e }\n"
    ".title { font-size: 17px } .title, .own { font-weight: 600 } .page { fill: #ffffff }\n"
    ".grid { stroke: #d1d9e0 } polyline { fill: none; stroke: currentColor; stroke-width: 1.5 }\n"
    "polyline.strong { stroke-width: 3 } .would { stroke-dasharray: 6 4 }\n"
    "circle { fill: currentColor } .memory { stroke-width: 2; stroke-dasharray: 2 4 }\n"
    ".memory { color: #1f2328; stroke: currentColor } .grey { color: #7d8590 }\n"
    ".c0 { color: #0550ae } .c1 { color: #bc4c00 } .c2 { color: #116329 }\n"
    ".c3 { color: #8250df } .c4 { color: #bf3989 } .c5 { color: #7d4e00 }\n"
    "@media (prefers-color-scheme: dark) {\n"
    "text { fill: #e6edf3 } .small { fill: #9198a1 } .page { fill: #0d1117 }\n"
    ".grid { stroke: #30363d } .memory { color: #e6edf3 }\n"
    ".c0 { color: #58a6ff } .c1 { color: #f0883e } .c2 { color: #3fb950 }\n"
    ".c3 { color: #bc8cff } .c4 { color: #ff7bc5 } .c5 { color: #d4a72c }\n"
    "}\n</style>\n";

// ---- names and places ----

typedef struct {
    char text[32];
} Size;

static Size bytes_text(double bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    Size size;
    int unit = 0;
    for (; bytes >= 1024 && unit < 6; unit++) bytes /= 1024;
    snprintf(size.text, sizeof size.text, bytes < 999.5 ? "%.3g %s" : "%.0f %s", bytes,
             units[unit]);
    return size;
}

static Size tokens_text(double tokens) {
    Size size;
    int unit = 0;
    for (; tokens >= 1024 && fmod(tokens, 1024) == 0 && unit < 3; unit++) tokens /= 1024;
    snprintf(size.text, sizeof size.text, "%.0f%.1s", tokens, &"\0KMG"[unit]);
    return size;
}

// Writes text escaped for XML; what is no printable character becomes U+FFFD.
static void put_text(FILE *f, const char *text) {
    for (size_t len = strlen(text), n; len; text += n, len -= n) {
        n = utf8_length(text, len);
        bool no_character = n == 3 && (memcmp(text, "\xEF\xBF\xBE", 3) == 0 ||  // U+FFFE, U+FFFF,
                                       memcmp(text, "\xEF\xBF\xBF", 3) == 0);   // which XML forbids
        if (n == 0 || no_character || (unsigned char)*text < 0x20 || *text == 0x7F)
            fputs("\xEF\xBF\xBD", f);
        else if (strchr("<>&\"'", *text)) fprintf(f, "&#%d;", *text);
        else fwrite(text, 1, n, f);
        if (n == 0) n = 1;
    }
}

static double doublings(size_t n) { return n ? log2((double)n) : 0; }

static double x_of(const Picture *p, double x) {
    return LEFT + (RIGHT - LEFT) * (x - p->x0) / (p->x1 - p->x0);
}

static double y_of(const Picture *p, double y) {
    return BOTTOM - (BOTTOM - TOP) * (y - p->y0) / (p->y1 - p->y0);
}

static double bytes_of(const Line *line, int tokens) {
    return doublings(scheme_bytes_at(line->r, line->scheme, tokens, line->r->type));
}

// ---- the lines ----

static int by_size(const void *a, const void *b) {
    const Line *first = a, *second = b;
    size_t x = first->scheme->bytes_at_context, y = second->scheme->bytes_at_context;
    if (x != y) return (x < y) - (x > y);
    return (first->scheme > second->scheme) - (first->scheme < second->scheme);
}

static void choose_lines(Picture *p, const Report *reports, int n) {
    p->schemes = n == 1;
    p->n = n > 1 ? n : reports->n_schemes;
    p->lines = allocate((size_t)p->n, sizeof *p->lines);
    for (int i = 0; i < p->n; i++) {
        const Report *r = p->schemes ? reports : &reports[i];
        const Scheme *scheme = p->schemes ? &r->schemes[i] : r->own;
        p->lines[i] = (Line){r, scheme, p->schemes ? scheme->own - 1 : i % N_COLOURS, 0};
    }
    qsort(p->lines, (size_t)p->n, sizeof *p->lines, by_size);
}

static void choose_edges(Picture *p) {
    for (int i = 0; i < p->n; i++) p->x1 = fmax(p->x1, doublings((size_t)p->lines[i].r->context));
    p->x1 = fmax(p->x1, 1);
    p->x0 = fmax(0, floor(p->x1) - OCTAVES);
    p->y0 = p->memory ? doublings(p->memory) : 64;
    p->y1 = p->memory ? p->y0 + 0.5 : 0;
    for (int i = 0; i < p->n; i++) {
        p->y0 = fmin(p->y0, bytes_of(&p->lines[i], (int)exp2(p->x0)));
        p->y1 = fmax(p->y1, doublings(p->lines[i].scheme->bytes_at_context));
    }
    p->y1 = fmax(p->y1, p->y0 + 1);
}

// Names stand at the ends of their lines, moved apart where they would overlap.
static void place_labels(Picture *p) {
    double above = 0;
    for (Line *l = p->lines; l < p->lines + p->n; l++) {
        l->label = fmax(y_of(p, doublings(l->scheme->bytes_at_context)) + 4, above + LABEL);
        above = l->label;
    }
    double below = fmax(BOTTOM, TOP + p->n * LABEL) + LABEL;
    for (Line *l = p->lines + p->n - 1; l >= p->lines; l--) {
        l->label = fmin(l->label, below - LABEL);
        below = l->label;
    }
}

// ---- drawing ----

static void draw_axes(const Picture *p) {
    int step = (int)ceil((p->y1 - p->y0) / MOST_TICKS), first = (int)ceil(p->y0);
    for (int k = first + (step - first % step) % step; k <= p->y1; k += step) {
        double y = y_of(p, k);
        fprintf(p->f, "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>"
                "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", LEFT, RIGHT, y, y,
                LEFT - 8, y + 4, bytes_text(exp2(k)).text);
    }
    for (int k = (int)p->x0; k <= p->x1; k++) {
        double x = x_of(p, k);
        fprintf(p->f, "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>"
                "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", x, x, TOP, BOTTOM,
                x, BOTTOM + 20, tokens_text(exp2(k)).text);
    }
    fprintf(p->f, "<text class=\"small\" x=\"%d\" y=\"%d\" text-anchor=\"middle\">tokens in the "
            "context</text>\n", (LEFT + RIGHT) / 2, BOTTOM + 42);
}

static void draw_memory(const Picture *p) {
    if (!p->memory) return;
    double y = y_of(p, doublings(p->memory));
    fprintf(p->f, "<line class=\"memory\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>"
            "<text x=\"%d\" y=\"%.1f\">%s of memory</text>\n", LEFT, RIGHT, y, y, LEFT + 6, y - 6,
            bytes_text((double)p->memory).text);
}

static void put_name(const Picture *p, const Line *l) {
    if (!p->schemes) put_text(p->f, base_name(l->r->p.path));
    else if (l->scheme->n_kv_heads) fprintf(p->f, "%s, %d KV head%s", l->scheme->name,
                                         l->scheme->n_kv_heads, &"s"[l->scheme->n_kv_heads == 1]);
    else if (l->scheme->mla_numbers) fprintf(p->f, "MLA of rank %d", l->r->mla_rank);
    else fprintf(p->f, "%s", l->scheme->name);
}

static void draw_line(const Picture *p, const Line *l) {
    const char *kind = l->scheme->mla_numbers ? "would" : l->colour < 0 ? "other" : "strong";
    char colour[16] = "grey";
    if (l->colour >= 0) snprintf(colour, sizeof colour, "c%d", l->colour);
    double end = doublings((size_t)l->r->context), y;
    fprintf(p->f, "<g class=\"%s\"><polyline class=\"%s\" points=\"", colour, kind);
    for (double x = p->x0; x < end; x += 1.0 / PER_OCTAVE)
        fprintf(p->f, "%.1f,%.1f ", x_of(p, x), y_of(p, bytes_of(l, (int)exp2(x))));
    y = y_of(p, doublings(l->scheme->bytes_at_context));
    fprintf(p->f, "%.1f,%.1f\"/>", x_of(p, end), y);
    double made = doublings((size_t)l->r->p.shape.context);
    if (made < end && made >= p->x0 && l->scheme->own)
        fprintf(p->f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"5\"/>", x_of(p, made),
                y_of(p, bytes_of(l, l->r->p.shape.context)));
    fprintf(p->f, "<polyline points=\"%.1f,%.1f %d,%.1f\"/></g>\n<text x=\"%d\" y=\"%.1f\"%s>",
            x_of(p, end), y, RIGHT + 14, l->label - 4, RIGHT + 18, l->label,
            p->schemes && l->scheme->own ? " class=\"own\"" : "");
    put_name(p, l);
    fprintf(p->f, ": %s</text>\n", bytes_text((double)l->scheme->bytes_at_context).text);
}

static void draw_title(const Picture *p) {
    const Report *r = p->lines->r;
    bool beyond = false;
    fprintf(p->f, "<title>KV cache by context</title>\n<rect class=\"page\" width=\"%d\" "
            "height=\"%d\"/>\n<text class=\"title\" x=\"%d\" y=\"30\">KV cache", WIDTH, HEIGHT,
            LEFT);
    if (p->schemes) fprintf(p->f, " of "), put_text(p->f, base_name(r->p.path));
    for (const Line *l = p->lines; l < p->lines + p->n; l++)
        beyond |= l->r->context > l->r->p.shape.context;
    fprintf(p->f, "</text>\n<text class=\"small\" x=\"%d\" y=\"52\">keys %s, values %s; both axes "
            "are logarithmic%s</text>\n", LEFT, type_name(r->type.k), type_name(r->type.v),
            beyond ? "; a dot is the context that a model was made for" : "");
}

void write_kv_svg(const Report *reports, int n, const Options *o) {
    Picture p = {.memory = o->memory};
    choose_lines(&p, reports, n);
    choose_edges(&p);
    place_labels(&p);
    p.f = outfile_open(o->svg, o->models, o->n_models);
    int height = (int)fmax(HEIGHT, TOP + LABEL * (p.n + 2));
    fprintf(p.f, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
            "height=\"%d\" role=\"img\">\n%s", WIDTH, height, WIDTH, height, STYLE);
    draw_title(&p);
    draw_axes(&p);
    draw_memory(&p);
    for (int i = p.n - 1; i >= 0; i--) draw_line(&p, &p.lines[i]);
    fputs("</svg>\n", p.f);
    outfile_close(p.f);
    fprintf(stderr, "the picture is in %s\n", o->svg);
    free(p.lines);
}
