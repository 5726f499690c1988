// One row of a matrix as f32: the lookup of an embedding.
#include "engine.h"

// Unpacks block b of row `lane` of a q8 or q4 panel, and undoes the Hadamard transform.
static void unpack_block(const Workspace *w, float *out, const Matrix *matrix,
                         const uint8_t *panel, size_t lane, size_t b) {
    size_t block_bytes = matrix->dtype == Q8 ? 512 : 256;
    const uint16_t *scales = (const uint16_t *)(panel + blocks_of(matrix->n_in) * block_bytes);
    float scale = f16_to_f32(scales[b * LANES + lane]) * TURNED_X;
    const uint8_t *q = panel + b * block_bytes;
    for (size_t k = 0; k < BLOCK; k++) {
        size_t byte = k / 4 * 64 + lane * 4 + k % 4;
        if (matrix->dtype == Q8) {
            out[k] = scale * (float)(q[byte] - 128);
        } else {
            uint8_t codes = q[byte / 128 * 64 + byte % 64];
            out[k] = scale * (float)Q4_CODES[byte % 128 < 64 ? codes & 15 : codes >> 4];
        }
    }
    w->k->turn(out, out, 1.0f, BLOCK);
}

void unpack_row(const Workspace *w, float *out, const Matrix *matrix, int r) {
    size_t bytes = panel_bytes(matrix->dtype, matrix->n_in);
    const uint8_t *panel = matrix->data + (size_t)(r / LANES) * bytes;
    size_t lane = (size_t)(r % LANES), n_in = (size_t)matrix->n_in;
    if (matrix->dtype == F32)
        for (size_t k = 0; k < n_in; k++) out[k] = ((const float *)panel)[k * LANES + lane];
    else if (matrix->dtype == BF16)
        for (size_t k = 0; k < n_in; k++)
            out[k] = bf16_to_f32(((const uint16_t *)panel)[k / 2 * 2 * LANES + 2 * lane + k % 2]);
    else
        for (size_t k = 0; k < n_in; k += BLOCK) {
            float block[BLOCK];
            unpack_block(w, block, matrix, panel, lane, k / BLOCK);
            memcpy(out + k, block, sizeof *out * (n_in - k < BLOCK ? n_in - k : BLOCK));
        }
}
