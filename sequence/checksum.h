// checksum.c: checksums of a saved session's bytes.
#ifndef CHECKSUM_H
#define CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

typedef uint64_t SumOf(const uint8_t *data, size_t bytes);

// A sum that depends on every byte and on its place.
SumOf checksum;
// The sum of bytes that follow others, whose sum is `before`.
uint64_t checksum_after(uint64_t before, const void *data, size_t bytes);

// Sums of older builds: the exclusive or of the 64-bit words, and FNV-1a over 32-bit words.
SumOf xor_words;
uint32_t fnv_words(uint32_t before, const void *data, size_t bytes);

#endif
