// Weights in blocks: the size of their panels, and a row of them as floats.
#include "kernels/blocks.h"

#include <string.h>

#include "math/dtypes.h"

size_t block_panel_bytes(Dtype dtype, int n_in) {
    const BlockForm form = BLOCK_FORMS[dtype];
    size_t n = blocks_of(n_in), shared = (n + SHARING - 1) / SHARING * shared_bytes(form);
    return n * code_bytes(form) + round_up(round_up(n, 2) * scale_bytes(form) + shared, 64);
}

// Row `lane` of block b of a panel that has n: its numbers times their scales, plus the minimum.
static void read_block(float *out, const uint8_t *panel, BlockForm form, size_t n, size_t b,
                       size_t lane) {
    const uint8_t *codes = panel + b * code_bytes(form), *scales = scales_of(panel, form, n, b);
    const uint16_t *f16 = (const uint16_t *)scales;
    const uint16_t *shared = (const uint16_t *)shared_of(panel, form, n, b);
    for (size_t k = 0; k < BLOCK; k++) {
        const size_t half = k / (BLOCK / 2) * LANES;
        const float number = (float)block_number(codes, form, k / 4, lane * 4 + k % 4);
        switch (form.scales) {
        case SCALE: out[k] = f16_to_f32(f16[lane]) * number; break;
        case SCALE_MIN:
            out[k] = f16_to_f32(f16[lane]) * number + f16_to_f32(f16[LANES + lane]);
            break;
        case SCALE_K:
            out[k] = f16_to_f32(shared[lane]) * (float)(int8_t)scales[lane] * number -
                     f16_to_f32(shared[LANES + lane]) * (float)(int8_t)scales[LANES + lane];
            break;
        case SCALE_K16:
            out[k] = f16_to_f32(shared[lane]) * (float)(int8_t)scales[half + lane] * number;
            break;
        case SCALE_8:
            out[k] = f16_to_f32(shared[lane]) * 0x1p-7f * (float)(int8_t)scales[lane] * number;
            break;
        }
    }
}

void row_blocks(const Kernels *k, Dtype dtype, float *out, const uint8_t *panel, size_t lane,
                int n_in) {
    const BlockForm form = BLOCK_FORMS[dtype];
    size_t n = blocks_of(n_in);
    for (size_t b = 0; b < n; b++) {
        float block[BLOCK];
        size_t left = (size_t)n_in - b * BLOCK;
        read_block(block, panel, form, n, b, lane);
        if (!form.kept) k->hadamard(block, block, TURNED_X, BLOCK);  // as it was
        memcpy(out + b * BLOCK, block, sizeof *out * (left < BLOCK ? left : BLOCK));
    }
}
