// svg.c: draws cache reports: a line for each scheme of one report, or for each of several.
#ifndef CLI_KV_SVG_H
#define CLI_KV_SVG_H

#include "cli/kv/report.h"

void write_kv_svg(const Report *reports, int n, const Options *o);

#endif
