// page.h: the head page, which the Makefile bundles from page/
#ifndef PAGE_H
#define PAGE_H

#define PAGE_DATA "@DATA@"  // stands once in the page, where the JSON goes

extern const unsigned char page_html[];  // ends with a zero byte

#endif
