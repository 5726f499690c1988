// SHA-256 (FIPS 180-4), bytes by bytes.
#ifndef SHA256_H
#define SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { SHA256_HEX = 65 };  // a digest in hexadecimal, with a zero byte

typedef struct {
    uint32_t state[8];
    uint64_t bytes;      // so far
    uint8_t block[64];   // the last of them, as far as they fill no block
} Sha256;

void sha256_begin(Sha256 *s);
void sha256_add(Sha256 *s, const void *data, size_t size);
void sha256_end(Sha256 s, char hex[SHA256_HEX]);  // of a copy: s may go on

#endif
