// What the fuzzers share: random numbers, damage to bytes, and the word of which input it was.
#ifndef FUZZING_H
#define FUZZING_H

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

static uint64_t next_random(uint64_t *state) {  // splitmix64
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static inline size_t below(uint64_t *state, size_t n) { return next_random(state) % n; }

static inline uint32_t extreme_word(uint64_t *state) {
    static const uint32_t extremes[] = {0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x40000000,
                                        0x00FFFFFF, 0x7F800000};
    return extremes[below(state, 8)];
}

static inline void flip(uint8_t *bytes, size_t size, uint64_t *state) {
    size_t bit = below(state, size * 8);
    bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
}

static inline void overwrite(uint8_t *bytes, size_t size, uint64_t *state) {
    uint32_t word = extreme_word(state);
    if (size >= 4) memcpy(bytes + below(state, size / 4) * 4, &word, 4);
}

// Swaps, repeats, moves or clears blocks of a word, a line, a page or a layer's alignment, or
// changes some bits.
static inline void damage(uint8_t *bytes, size_t size, uint64_t *state) {
    static const size_t blocks[] = {1, 4, 8, 16, 64, 64, 64, 4096, 4096, 1 << 16};
    size_t block = blocks[below(state, sizeof blocks / sizeof *blocks)];
    while (2 * block > size) block = block / 4;
    if (!block) return;
    // A block that is not whole at the end is left alone.
    uint8_t *a = bytes + below(state, size / block) * block;
    uint8_t *b = bytes + below(state, size / block) * block, kept[1 << 16];
    size_t behind = size - (size_t)((a < b ? b : a) - bytes) - block, bit = below(state, 8);
    switch (below(state, 7)) {
    case 0:  // swapped
        memcpy(kept, a, block);
        memcpy(a, b, block);
        memcpy(b, kept, block);
        break;
    case 1: memmove(a, b, block); break;
    case 2: memset(a, 0, block); break;
    case 3: memmove(a, b, behind + block); break;  // moved, with all behind it
    case 4: flip(bytes, size, state); break;
    case 5: overwrite(bytes, size, state); break;
    default: a[0] ^= (uint8_t)(1u << bit), b[0] ^= (uint8_t)(1u << bit);  // the same bit twice
    }
}

// ---- which input it was ----

enum { MOST_SECONDS = 10 };  // of the processor

static volatile long tried;  // inputs before this one

static void say_which(void) {
    char text[64];
    int n = snprintf(text, sizeof text, "it was input %ld\n", tried);
    if (write(2, text, (size_t)n) < n) _exit(3);
}

static inline void too_long(int number) {
    static const char text[] = "an input takes more than 10 seconds\n";
    if (write(2, text, sizeof text - 1) > 0) say_which();
    _exit(3);
}

static inline void broken(int number) {
    say_which();
    signal(number, SIG_DFL);
    raise(number);
}

void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static inline void watch(void) {
    signal(SIGPROF, too_long);
    signal(SIGABRT, broken);
    if (__sanitizer_set_death_callback) __sanitizer_set_death_callback(say_which);
    else signal(SIGSEGV, broken);
}

static inline void next_input(long i) {
    tried = i;
    setitimer(ITIMER_PROF, &(struct itimerval){.it_value = {.tv_sec = MOST_SECONDS}}, NULL);
}

#endif
