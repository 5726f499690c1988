// page.c: --heads, what each attention head attends to in a prompt, as a page or as JSON.
#ifndef CLI_HEADS_PAGE_H
#define CLI_HEADS_PAGE_H

#include "cli/heads/maps.h"

// Opens the file, and sets the probe of the program's workspace, before the texts run in it. Exits
// if the file cannot be written, or would be absurdly large.
HeadsPage *heads_page_open(const Program *program, HeadsTexts texts);
// Writes the file, and prints a summary. If there is no room for the maps of all heads, the text
// runs again in s for the strongest heads' maps.
void heads_page_close(HeadsPage *page, heads_sequence *s);

#endif
