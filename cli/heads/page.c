#include "cli/heads/page.h"

#include <stdlib.h>
#include <string.h>

#include "cli/heads/cost.h"
#include "cli/heads/html.h"
#include "cli/heads/write.h"
#include "cli/outfile.h"
#include "cli/print.h"

HeadsPage *heads_page_open(const Program *program, HeadsTexts texts) {
    HeadsPage *p = allocate(1, sizeof *p);
    *p = (HeadsPage){.p = program, .texts = texts, .chunk = heads_workspace_chunk(program->w),
                     .n_runs = 1, .scoring = true, .start = seconds()};
    open_maps(p);
    p->f = outfile_open(program->o->heads, program->o->models, 1);
    heads_workspace_probe(program->w, &(heads_probe){.attention = keep_row, .context = p});
    return p;
}

// Whether some layer has a score for the role.
static bool role_occurs(const HeadsPage *p, int role) {
    for (const HeadsLayer *l = p->layers; l < p->layers + p->n_layers; l++)
        if (l->facts.attends && has_score(l->texts.sees, role)) return true;
    return false;
}

static void say_roles(const HeadsPage *p) {
    int n[N_ROLES + 1] = {0};
    for (size_t i = 0; i < p->n_heads; i++) n[p->heads[i].role < 0 ? N_ROLES : p->heads[i].role]++;
    fprintf(stderr, "%zu heads:", p->n_heads);
    for (int k = 0; k < N_ROLES; k++)
        if (role_occurs(p, k)) fprintf(stderr, " %d %s,", n[k], score_names[k]);
    fprintf(stderr, " %d without a simple role; written to %s\n", n[N_ROLES], p->p->o->heads);
    if (p->n_maps < p->n_heads)
        warn("%s has the maps of %zu heads, those with roles first; a larger --heads-max has room "
             "for more", p->p->o->heads, p->n_maps);
}

void heads_page_close(HeadsPage *p, heads_sequence *s) {
    for (size_t i = 0; i < p->n_heads; i++) {
        Head *h = &p->heads[i];
        h->role = head_role(&h->scores, &h->layer->uniform);
    }
    choose_maps(p, s);
    heads_workspace_probe(p->p->w, NULL);
    p->scoring = false;
    if (has_costs(p)) measure_costs(p);
    const char *page = p->p->o->html ? (const char *)page_html : "";
    const char *data = strstr(page, PAGE_DATA);
    if (data) fwrite(page, 1, (size_t)(data - page), p->f);
    write_heads_json(p);
    progress_end();
    if (data) fputs(data + strlen(PAGE_DATA), p->f);
    outfile_close(p->f);
    say_roles(p);
    free_maps(p);
    free(p);
}
