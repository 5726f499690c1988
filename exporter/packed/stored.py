"""Tensors as a checkpoint stores them, in bytes, and modules that are made of several."""

from __future__ import annotations

from typing import Callable

import numpy as np

from ..tensor import ExportError, Tensor, modules

BLOCK = 32
WHOLE = {"Q4_0": 8, "Q5_0": 16, "Q8_0": 128}  # GGUF's types of the whole numbers in [-n, n)


def bytes_of(tensor: Tensor, width: int | None = 1) -> Tensor:
    """Its bytes; a number of several bytes becomes a last axis. width: bytes of a number; None: of
    any number, even a floating-point one. Errors: ExportError."""
    if tensor.raw is None or tensor.floats and width:
        raise ExportError(
            f"tensor {tensor.name} is not stored in bytes, though quantization_config says so"
        )
    if width and tensor_size(tensor.raw) != width * tensor_size(tensor):
        raise ExportError(f"tensor {tensor.name} is not stored in numbers of {8 * width} bits")
    return tensor.raw


def whole(tensor: Tensor, dtype: str) -> np.ndarray:
    """Its numbers, which are of that type: "i1", "<i4", .."""
    data = bytes_of(tensor, np.dtype(dtype).itemsize).array().astype(np.uint8)
    return data.reshape(-1).view(dtype).reshape(tensor.shape)


def tensor_size(tensor: Tensor) -> int:
    return int(np.prod(tensor.shape, dtype=np.int64))


def numbers_of(packed: np.ndarray, bits: int, n: int) -> np.ndarray:
    """uint8 [rows, n] of uint8 [rows, bytes]: each row is a stream of bits, the lowest first, of
    numbers that have `bits` each."""
    if bits == 4:
        return np.stack([packed & 15, packed >> 4], -1).reshape(len(packed), -1)[:, :n]
    stream = np.unpackbits(packed, axis=1, count=n * bits, bitorder="little")
    return np.packbits(stream.reshape(len(packed), n, bits), axis=2, bitorder="little")[..., 0]


class Module:
    """The tensors of one module, by their names in it; what is taken leaves the checkpoint."""

    def __init__(self, left: dict[str, Tensor], name: str):
        self.left, self.name = left, name

    def take(self, name: str, *shape: int) -> Tensor:
        """One of its tensors, of this shape, in which -1 is any size; without one, of any. Errors:
        ExportError."""
        tensor = self.find(name, *shape)
        if tensor is None:
            raise ExportError(f"the checkpoint lacks the tensor {self.name}.{name}")
        return tensor

    def find(self, name: str, *shape: int) -> Tensor | None:
        """The same, or of any shape; None if it is not there."""
        tensor = self.left.pop(f"{self.name}.{name}", None)
        if tensor is None or not shape:
            return tensor
        wanted = [b if a < 0 else a for a, b in zip(shape, tensor.shape)]
        if wanted != list(tensor.shape) or len(shape) != len(tensor.shape):
            expected = ", ".join("any" if n < 0 else str(n) for n in shape)
            raise ExportError(
                f"tensor {tensor.name} has shape {list(tensor.shape)}, expected [{expected}]"
            )
        return tensor

    def drop(self, *names: str) -> None:
        """What rounds activations or the cache, which nothing forces us to do."""
        for name in names:
            self.left.pop(f"{self.name}.{name}", None)

    def becomes(
        self,
        shape: tuple[int, ...],
        weight: Callable[[], np.ndarray],
        stored: str | None = None,
        blocks: Callable[[], np.ndarray] | None = None,
    ) -> None:
        """Its weight, float32 of this shape, which is made when it is needed; and its rows as bytes
        of a type of GGUF, if that has the same numbers."""

        def rows_of(made: Callable[[], np.ndarray]):
            rows = made()
            return lambda a, b: rows[a:b].copy()

        name, kept = f"{self.name}.weight", blocks and (lambda: rows_of(blocks))
        self.left[name] = Tensor(name, shape, lambda: rows_of(weight), stored=stored, blocks=kept)


def kind_of(least: int, most: int) -> str | None:
    """The narrowest of WHOLE that has such numbers."""
    return next((kind for kind, n in WHOLE.items() if -n <= least and most < n), None)


def as_whole(name: str, kind: str, numbers: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """uint8 [rows, bytes] as GGUF has them: int8 numbers [rows, n_in] times float32 scales
    [rows, n_in / 32]. Errors: ExportError, where a scale is no f16."""
    numbers, parts = numbers.reshape(*scale.shape, BLOCK), [_halves(name, scale)]
    if kind == "Q8_0":
        return np.concatenate([*parts, numbers.view(np.uint8)], -1).reshape(len(scale), -1)
    codes = (numbers + WHOLE[kind]).astype(np.uint8)
    if kind == "Q5_0":
        parts.append(np.packbits(codes >> 4, axis=-1, bitorder="little"))
    return np.concatenate([*parts, halved(codes)], -1).reshape(len(scale), -1)


def as_ternary(name: str, numbers: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """The same of TQ2_0: numbers are -1, 0 and 1, scales [rows, n_in / 256]. 32 bytes have four
    runs of 32 columns, and so have the next 32."""
    codes = (numbers + 1).astype(np.uint8).reshape(*scale.shape, 2, 4, 32)
    runs = codes << np.array([0, 2, 4, 6], np.uint8)[:, None]
    packed = np.bitwise_or.reduce(runs, -2).reshape(*scale.shape, 64)
    return np.concatenate([packed, _halves(name, scale)], -1).reshape(len(scale), -1)


def _halves(name: str, scale: np.ndarray) -> np.ndarray:
    """The bytes of f16s, which blocks have. Errors: ExportError."""
    halves = scale.astype(np.float16)
    if (halves != scale).any():
        raise ExportError(f"tensor {name}: a scale is not one of f16; give --dtype bf16")
    return halves[..., None].view(np.uint8)


def halved(codes: np.ndarray) -> np.ndarray:
    """The lower four bits of 32 codes, the first 16 and the last 16 of them in the halves of
    bytes."""
    return codes[..., :16] & 15 | codes[..., 16:] << 4


def scales_of(module: Module, name: str, n_out: int, n_groups: int) -> Tensor:
    """One number for the matrix, one a row, or one for each of a row's groups. Errors:
    ExportError."""
    tensor = module.find(name)
    if tensor is None:
        raise ExportError(f"the checkpoint lacks the tensor {module.name}.{name}")
    if tensor.shape not in ((1,), (1, 1), (n_out,), (n_out, 1), (n_out, n_groups)):
        raise ExportError(
            f"tensor {tensor.name} has shape {list(tensor.shape)}, for {n_out} rows of {n_groups} "
            "groups"
        )
    return tensor


def spread(scales: np.ndarray, n_out: int, n_groups: int) -> np.ndarray:
    """[n_out, n_groups] of what scales_of found."""
    return np.broadcast_to(scales.reshape(len(scales), -1), (n_out, n_groups))


def modules_with(left: dict[str, Tensor], name: str) -> list[Module]:
    """The modules that have such a tensor."""
    return [Module(left, module) for module in modules(left, name)]
