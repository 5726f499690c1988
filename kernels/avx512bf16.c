// AVX-512 with the dot product of bf16 pairs, which rounds in a way of its own: bf16 weights give other bits here than
// elsewhere, everything else the same.
#define BF16_DOT
#include "avx512.c"
