// print.c: prints cache reports as text and as JSON.
#ifndef CLI_KV_PRINT_H
#define CLI_KV_PRINT_H

#include "cli/kv/report.h"

void print_report(const Report *r, const Options *o);
// Prints the models' own schemes side by side.
void print_reports(const Report *reports, int n, const Options *o);
void print_reports_json(const Report *reports, int n);

#endif
