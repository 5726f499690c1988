"""bitsandbytes' four bits: codes of a table of 16 numbers, times the largest of each block."""

from __future__ import annotations

import json

import numpy as np

from ..config import Config
from ..tensor import ExportError, Tensor
from .integers import rows_of_int8
from .stored import Module, bytes_of, modules_with, tensor_size

STATE = "quant_state.bitsandbytes__"


def bitsandbytes(q: Config, left: dict[str, Tensor]) -> None:
    """nf4 and fp4, whose tables are in the checkpoint, and LLM.int8()."""
    q.ignore(*(key for key in q.values if key.startswith(("bnb_4bit_", "llm_int8_"))))
    q.ignore("load_in_4bit", "load_in_8bit", "_load_in_4bit", "_load_in_8bit")
    rows_of_int8(left)
    for kind in ("nf4", "fp4"):
        for module in modules_with(left, f"weight.{STATE}{kind}"):
            _four_bits(Module(left, f"{module.name}.weight"), kind)


def _four_bits(module: Module, kind: str) -> None:
    """The tensors of a weight, which are named as if it were a module."""
    state = _state(module.take(f"{STATE}{kind}", -1))
    shape, block = tuple(state["shape"]), state["blocksize"]
    n = int(np.prod(shape, dtype=np.int64))
    packed = module.left.pop(module.name, None)
    raw = packed and bytes_of(packed, width=None)  # quant_storage may call them numbers
    if not raw or tensor_size(raw) != (n + 1) // 2:
        raise ExportError(f"tensor {module.name} is no {n} numbers of four bits")
    table, largest = module.take("quant_map", 16), _largest(module, state, -(-n // block))

    def load():
        byte = raw.array().astype(np.uint8).reshape(-1)
        values = table.array()[np.stack([byte >> 4, byte & 15], -1).reshape(-1)[:n]]
        weight = (values * np.repeat(largest(), block)[:n]).reshape(shape)
        return lambda a, b: weight[a:b].copy()

    module.left[module.name] = Tensor(module.name, shape, load)


def _largest(module: Module, state: dict, n: int):
    """A function that reads the largest absolute value of each block, which may be packed too."""
    largest = module.take("absmax", n)
    if "nested_blocksize" not in state:
        return largest.array
    block = state["nested_blocksize"]
    scale, table = (
        module.take("nested_absmax", -(-n // block)),
        module.take("nested_quant_map", 256),
    )

    def read() -> np.ndarray:
        codes = bytes_of(largest).array().astype(np.uint8)
        scales = np.repeat(scale.array(), block)[:n]
        return table.array()[codes] * scales + np.float32(state["nested_offset"])

    return read


def _state(tensor: Tensor) -> dict:
    """The JSON in a tensor of bytes: sizes that are whole, and an offset."""
    try:
        state = json.loads(bytes_of(tensor).array().astype(np.uint8).tobytes())
        sizes = [*state["shape"], state["blocksize"], state.get("nested_blocksize", 1)]
        good = all(type(n) is int and n > 0 for n in sizes) and len(state["shape"]) == 2
        if not good or ("nested_blocksize" in state and not float(state["nested_offset"]) < 1e38):
            raise ValueError("its sizes")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ExportError(f"tensor {tensor.name} does not say what is packed: {error}") from None
    return state
