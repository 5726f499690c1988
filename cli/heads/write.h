// write.c: writes heads and maps as JSON, for programs or for the page.
#ifndef CLI_HEADS_WRITE_H
#define CLI_HEADS_WRITE_H

#include "cli/heads/maps.h"

void write_heads_json(const HeadsPage *p);  // to p->f

#endif
