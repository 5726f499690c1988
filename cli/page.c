#include "page.h"
const unsigned char page_html[] = "<!doctype html><meta charset=utf-8><title>heads</title>"
    "<script type=\"application/json\" id=\"data\">" PAGE_DATA "</script>";
