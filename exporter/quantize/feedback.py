"""Codes and scales of a matrix by what they do to its products: error feedback (GPTQ, Frantar et
al. 2022), in the basis in which q8 and q4 blocks are stored (docs/format.md: transformed blocks).

The moments of a matrix's inputs are X^T X of rows X as the engine multiplies them, turned and
rounded to int8. The error of a product is then E M E^T, with E what rounding changed."""

from __future__ import annotations

import numpy as np

from .panels import BLOCK, TURNED_W, Blocks, hadamard, held_scale, inverse, quantize_blocks, rounded

# The matrix that turns a block of 32 inputs: one product, where the engine takes five steps; only
# the last place may differ.
_TURN = hadamard(np.eye(BLOCK, dtype=np.float32)) * np.float32(0.125)
ROUNDS = 2  # of scales and values in turn
DAMPING = 0.03  # of the mean moment, added to each: directions that no text showed count a little


def turned_rows(rows: np.ndarray) -> np.ndarray:
    """Input rows [n, n_in] of a product as it takes them: turned, and rounded to int8 blocks."""
    blocks = _fill(rows).reshape(-1, BLOCK) @ _TURN
    largest = np.abs(blocks)
    while largest.shape[1] > 1:  # faster than max(1), which takes one block after another
        half = largest.shape[1] // 2
        largest = np.maximum(largest[:, :half], largest[:, half:])
    blocks *= np.divide(127, largest, out=np.zeros_like(largest), where=largest > 0)
    np.rint(blocks, out=blocks)
    blocks *= largest / np.float32(127)
    return blocks.reshape(len(rows), -1)


def with_feedback(weights: np.ndarray, moments: np.ndarray, dtype: str) -> Blocks:
    """weights [n_out, n_in] as a type of blocks whose products with such inputs err least. Errors:
    OverflowError as of quantize.pack."""
    turned = _turned(weights)
    mean = float(np.trace(moments)) / len(moments)
    moments = moments.copy()
    moments[np.diag_indices(len(moments))] += DAMPING * mean if mean > 0 else 1.0
    values, scale = _feed_back(turned, moments, dtype)
    for _ in range(ROUNDS):
        scale = held_scale(_fit_scales(turned, values, scale, moments), dtype)
        values = _fit_values(turned, values, scale, moments, dtype)
    return Blocks(values, scale)


def product_error(weights: np.ndarray, blocks: Blocks, moments: np.ndarray) -> float:
    """The RMS of what rounding changes in the products, over the RMS of the products."""
    turned = _turned(weights)
    error = blocks.weights() - turned
    return float((np.vdot(error @ moments, error) / np.vdot(turned @ moments, turned)) ** 0.5)


def row_errors(weights: np.ndarray, blocks: Blocks) -> np.ndarray:
    """The sum of squares of what rounding changed in each row."""
    error = blocks.weights() - _turned(weights)
    return np.einsum("ij,ij->i", error, error) / (BLOCK * TURNED_W**2)


def _turned(weights: np.ndarray) -> np.ndarray:
    """The weights as the file has them, before rounding."""
    filled = _fill(weights)
    return (hadamard(filled.reshape(-1, BLOCK)) * TURNED_W).reshape(filled.shape)


def _fill(rows: np.ndarray) -> np.ndarray:
    """Columns up to a multiple of BLOCK."""
    rows, right = rows.astype(np.float32, copy=False), -rows.shape[1] % BLOCK
    return np.pad(rows, ((0, 0), (0, right))) if right else rows


def _feed_back(
    turned: np.ndarray, moments: np.ndarray, dtype: str
) -> tuple[np.ndarray, np.ndarray]:
    """Column after column is rounded, and what that changed is made up for by the columns that
    follow, as far as their inputs go along with its own. Blocks with the largest inputs come first.
    Returns values [n_out, n_in] and scales [n_out, blocks]."""
    n_blocks = len(moments) // BLOCK
    order = np.argsort(-np.diag(moments).reshape(n_blocks, BLOCK).sum(1), kind="stable")
    columns = (order[:, None] * BLOCK + np.arange(BLOCK)).reshape(-1)
    follow = _inverse_factor(moments[np.ix_(columns, columns)])
    left = np.ascontiguousarray(turned.T[columns])
    values, scale = np.empty_like(left), np.empty((n_blocks, len(turned)), np.float32)
    for b in range(n_blocks):
        here = slice(b * BLOCK, (b + 1) * BLOCK)
        scale[b] = quantize_blocks(np.ascontiguousarray(left[here].T), dtype).scale[:, 0]
        values[here], error = _feed_in_block(left[here], follow[here, here], scale[b], dtype)
        left[here.stop :] -= follow[here, here.stop :].T @ error
    return np.ascontiguousarray(values[np.argsort(columns)].T), scale[np.argsort(order)].T.copy()


def _inverse_factor(moments: np.ndarray) -> np.ndarray:
    """The upper triangular U with U^T U the inverse of the moments."""
    # In double precision: an upper triangular R with R R^T the moments, whose inverse is U.
    factor = np.linalg.cholesky(moments[::-1, ::-1].astype(np.float64))[::-1, ::-1]
    _invert_upper(factor)
    return factor.astype(np.float32)


def _invert_upper(matrix: np.ndarray) -> None:
    """Inverts an upper triangular matrix in its place: a wide layer's takes half a GB."""
    half = len(matrix) // 2
    if half < BLOCK:
        matrix[:] = np.linalg.inv(matrix)
        return
    a, b, c = matrix[:half, :half], matrix[:half, half:], matrix[half:, half:]
    _invert_upper(a)
    _invert_upper(c)
    b[:] = -a @ b @ c


def _feed_in_block(left, follow, scale, dtype) -> tuple[np.ndarray, np.ndarray]:
    """The values of one block's columns [BLOCK, n_out], and each one's error over its weight."""
    left, values, errors = left.copy(), np.empty_like(left), np.empty_like(left)
    per_scale = inverse(scale)
    for j in range(BLOCK):
        values[j] = rounded(left[j] * per_scale, dtype)
        errors[j] = (left[j] - values[j] * scale) / follow[j, j]
        left[j + 1 :] -= follow[j, j + 1 :, None] * errors[j]
    return values, errors


def _fit_scales(turned, values, scale, moments) -> np.ndarray:
    """Each block's best scale for its values, while the row's other blocks keep theirs."""
    scale = scale.copy()
    gradient = (values * np.repeat(scale, BLOCK, 1) - turned) @ moments
    for b in range(scale.shape[1]):
        here = slice(b * BLOCK, (b + 1) * BLOCK)
        block = values[:, here]
        curvature = np.einsum("ij,ij->i", block @ moments[here, here], block)
        slope = np.einsum("ij,ij->i", gradient[:, here], block)
        step = np.divide(slope, curvature, out=np.zeros_like(slope), where=curvature > 0)
        better = (scale[:, b] - step).astype(np.float16).astype(np.float32)
        better = np.where(np.isfinite(better), better, scale[:, b])
        change = (better - scale[:, b])[:, None] * block
        gradient[:, here.stop :] += change @ moments[here, here.stop :]
        scale[:, b] = better
    return scale


def _fit_values(turned, values, scale, moments, dtype) -> np.ndarray:
    """Each value's best, all others given, column after column."""
    values = np.ascontiguousarray(values.T)
    gradient = ((values.T * np.repeat(scale, BLOCK, 1) - turned) @ moments).T.copy()
    for b in range(scale.shape[1]):
        here = slice(b * BLOCK, (b + 1) * BLOCK)
        inside, near = moments[here, here], gradient[here].copy()
        of_block, per_scale = scale[:, b], inverse(scale[:, b])
        steps = np.empty_like(near)
        for j in range(BLOCK):
            row = b * BLOCK + j
            best = rounded(values[row] - near[j] / inside[j, j] * per_scale, dtype)
            steps[j] = (best - values[row]) * of_block
            values[row] = best
            near[j + 1 :] += inside[j, j + 1 :, None] * steps[j]
        gradient[here.stop :] += moments[here.stop :, here] @ steps
    return np.ascontiguousarray(values.T)
