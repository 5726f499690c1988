// What AVX2 and AVX-512 share: for blocks of 32 bytes AVX2 is wide enough.
#ifndef X86_H
#define X86_H

#include <immintrin.h>

#include "kernels.h"

static inline __m256i load256(const void *p) { return _mm256_loadu_si256(p); }

static inline __m256i twice(const void *p) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(p));
}

static inline void look_up(void *out, const void *table, const uint8_t *index) {
    __m256i at = load256(index), low = _mm256_shuffle_epi8(twice(table), at);
    __m256i high = _mm256_shuffle_epi8(twice((const uint8_t *)table + 16), at);
    // the index's bit of 16 becomes the sign of its byte
    _mm256_storeu_si256(out, _mm256_blendv_epi8(low, high, _mm256_slli_epi16(at, 3)));
}

static inline __m256i products(const int16_t *x, const int16_t *y) {
    return _mm256_add_epi32(_mm256_madd_epi16(load256(x), load256(y)),
                            _mm256_madd_epi16(load256(x + 16), load256(y + 16)));
}

static inline void dots(int32_t out[4], const int16_t *x, int step, const int16_t *y, int n) {
    __m256i sum[4] = {0};
    _Pragma("GCC unroll 4") for (int t = 0; t < n; t++)
        sum[t] = products(x + t * step, y + t * BLOCK);
    __m256i all = _mm256_hadd_epi32(_mm256_hadd_epi32(sum[0], sum[1]),
                                    _mm256_hadd_epi32(sum[2], sum[3]));
    _mm_storeu_si128((void *)out, _mm_add_epi32(_mm256_castsi256_si128(all),
                                                _mm256_extracti128_si256(all, 1)));
}

#endif
