// What a user names that is no checkpoint: a directory, a GGUF or a hub id.
#ifndef SOURCE_H
#define SOURCE_H

// The checkpoint of `name`: itself, or what export.py has made of it, once, in the user's cache.
// The result is static. Ends the program, with a sentence, where none can be made.
const char *find_checkpoint(const char *name);

#endif
