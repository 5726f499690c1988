// heads_page.c: --heads, what each attention head looks at in a prompt, as a page or as JSON.
#ifndef CLI_HEADS_PAGE_H
#define CLI_HEADS_PAGE_H

#include "input.h"

typedef struct HeadsPage HeadsPage;

typedef struct {         // borrowed
    Ids source;          // that an encoder reads for a decoder; n 0: there is none
    Ids ids;             // the text, or of a model that has both the target
    const char *target;  // where that comes from: "given", "greedy" or "sampled"
} HeadsTexts;

// Opens the file and watches w, in which the texts have yet to run. Exits if the file cannot be
// written, or would be absurdly large.
HeadsPage *heads_page_open(const Options *o, Workspace *w, const Tokenizer *tokenizer,
                           HeadsTexts texts);
// What comes first: the source, if there is one, is read for s.
void heads_page_read(HeadsPage *page, Sequence *s);
void heads_page_add(HeadsPage *page, int n);
// Writes the file, and prints what was found. Where the maps of all heads do not fit, the text runs
// again in s for those that do.
void heads_page_close(HeadsPage *page, Sequence *s);

#endif
