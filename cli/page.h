// page/ in one file, with PAGE_DATA where the data go. Made by the Makefile.
#ifndef CLI_PAGE_H
#define CLI_PAGE_H

#define PAGE_DATA "@DATA@"
extern const unsigned char page_html[];

#endif
