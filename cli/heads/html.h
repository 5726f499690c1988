// The head page, which the Makefile bundles from browser/page/
#ifndef CLI_HEADS_HTML_H
#define CLI_HEADS_HTML_H

#define PAGE_DATA "@DATA@"  // stands once in the page, where the JSON goes

extern const unsigned char page_html[];  // ends with a zero byte

#endif
