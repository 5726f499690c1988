// kv.c: --kv, the cost of the caches of one or several models.
#include <stdio.h>
#include <stdlib.h>

#include "cli/input.h"
#include "cli/kv/print.h"
#include "cli/kv/svg.h"
#include "cli/print.h"
#include "cli/verbs.h"

// An encoder has no cache to report, but its keys and values need room while a text runs.
static void report_encoder(const Program *p) {
    int context = wanted_context(p);
    heads_kv_plan plan = inspect_kv_plan(p->model, 0, context, HEADS_F32, HEADS_F32);
    if (p->o->json) {
        printf("{\"encoder\": true, \"context\": %d, \"bytes_per_token_of_a_pass\": %zu, "
               "\"bytes_of_a_pass\": %zu}\n", context, plan.bytes_per_token, plan.reserved);
        return;
    }
    printf("%s is an encoder: it keeps no KV cache between tokens. All positions of a text see\n"
           "each other in one pass; while that runs, the layers take turns with %s bytes a token\n"
           "for keys and values (f32), %s bytes for a text of %d tokens.\n", p->path,
           commas(plan.bytes_per_token), commas(plan.reserved), context);
}

int kv(const Options *o) {
    int n = o->n_models;
    Report *reports = allocate((size_t)n, sizeof *reports);
    size_t memory = o->memory ? o->memory : free_memory();
    for (int i = 0; i < n; i++) make_report(&reports[i], o->models[i], memory, o);
    if (o->svg) write_kv_svg(reports, n, o);
    if (reports[0].p.shape.encoder) report_encoder(&reports[0].p);
    else if (o->json) print_reports_json(reports, n);
    else if (n == 1) print_report(reports, o);
    else print_reports(reports, n, o);
    for (int i = 0; i < n; i++) free_report(&reports[i]);
    free(reports);
    return 0;
}
