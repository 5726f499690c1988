"""MLX's weights: 32-bit words that hold the numbers of a row, the lowest bits first. A group of
columns shares a scale, and whole numbers have an offset besides."""

from __future__ import annotations

import numpy as np

from ..config import Config
from ..tensor import ExportError, Tensor, expect, modules
from .floats import E4M3, FP4
from .stored import Module, bytes_of, modules_with, numbers_of

MODES = {"affine": (64, 4), "mxfp4": (32, 4), "nvfp4": (16, 4), "mxfp8": (32, 8)}  # size, bits
BITS = (2, 3, 4, 5, 6, 8)  # of whole numbers
# Types of models whose tensors mlx_lm.convert leaves as they are, but for these two.
PLAIN = """apertus cohere cohere2 ernie4_5 exaone4 falcon_mamba gemma gemma2 gemma3_text glm glm4
glm4_moe granite granitemoe helium hunyuan_v1_dense jamba lfm2 llama mamba ministral3 mistral
mixtral nemotron olmo2 olmo3 olmoe phi phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_moe seed_oss smollm3
solar_open stablelm starcoder2""".split()
# Types whose norms it stores with the 1 that is added to their weights, if it was MLX's converter
# that wrote the file: then axes of convolutions have changed places.
SHIFTED = ["qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"]
NORMS = ("layernorm.weight", "model.norm.weight", ".q_norm.weight", ".k_norm.weight")
STACK = ".switch_mlp."  # all experts of a layer
CONVOLUTIONS = ("conv1d.weight", "conv.conv.weight")  # the last two axes change places
MIXTRAL = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}  # names in block_sparse_moe


def mlx(q: Config, left: dict[str, Tensor], family: object) -> None:
    """What mlx_lm.convert writes. Errors: ExportError."""
    known = [*PLAIN, *SHIFTED, "gpt_oss"]
    if family not in known:
        raise ExportError(
            f"{q.where}: what MLX makes of a {family!r} is not known; supported: "
            f"{', '.join(sorted(known))}; others export from a checkpoint of transformers"
        )
    q.ignore(*(name for name, own in q.values.items() if isinstance(own, (bool, dict))))
    _scheme(q)
    for module in modules_with(left, "scales"):
        own = q.values.get(_name(module), True)
        if own is False:
            raise ExportError(
                f"{q.where}: {_name(module)} is false, but the checkpoint has its scales"
            )
        c = Config(own, f"{q.where}: {_name(module)}") if isinstance(own, dict) else q
        _unpack(module, *_scheme(c), "biases")
        c.finish()
        _split(module)
    _turn_back(left, family)
    if family == "gpt_oss":
        _fuse(left)


def metal(q: Config, left: dict[str, Tensor]) -> None:
    """The same by transformers, which leaves names alone."""
    q.ignore("modules_to_not_convert", "dequantize")
    scheme = _scheme(q)
    for module in modules_with(left, "qbiases"):
        _unpack(module, *scheme, "qbiases")


def _name(module: Module) -> str:
    """As the file has it."""
    return module.left[f"{module.name}.scales"].name[: -len(".scales")]


def _scheme(c: Config) -> tuple[str, int, int]:
    """The mode, the size of a group, and bits of a number."""
    mode = c.choice("mode", {mode: mode for mode in MODES}, "affine")
    size, bits = MODES[mode]
    found = c.int("group_size", size), c.int("bits", bits)
    if found[1] not in BITS if mode == "affine" else found != (size, bits):
        raise ExportError(
            f"{c.where}: {found[1]} bits in groups of {found[0]} of mode {mode} are not supported"
        )
    return mode, *found


def _unpack(module: Module, mode: str, size: int, bits: int, offsets: str) -> None:
    """Makes the weight of its parts, rows first, or experts, which have rows."""
    names = ("weight", "scales", offsets) if mode == "affine" else ("weight", "scales")
    packed, scales, *biases = [module.take(name) for name in names]
    raw, (*rows, words) = bytes_of(packed, 4), packed.shape
    n_in = words * 32 // bits
    shape = (*rows, n_in // size)
    for part in (scales, *biases):
        if not rows or n_in % size or part.shape != shape:
            raise ExportError(
                f"tensor {part.name} has shape {list(part.shape)}, its weight {list(packed.shape)}, "
                f"of {bits} bits in groups of {size}"
            )
    of_scales = scales if mode == "affine" else bytes_of(scales)

    def load():
        word, scale = raw.load(), of_scales.load()
        offset = biases[0].load() if biases else None

        def take(a: int, b: int) -> np.ndarray:
            codes = numbers_of(word(a, b).astype(np.uint8).reshape(-1, 4 * words), bits, n_in)
            wide = np.repeat(_scales(scale(a, b), mode).reshape(-1, n_in // size), size, 1)
            weight = _numbers(codes, mode) * wide
            if offset:
                weight += np.repeat(offset(a, b).reshape(-1, n_in // size), size, 1)
            return weight.reshape(b - a, *rows[1:], n_in)

        return take

    name = f"{module.name}.weight"
    module.left[name] = Tensor(packed.name, (*rows, n_in), load)


def _numbers(codes: np.ndarray, mode: str) -> np.ndarray:
    if mode == "affine":
        return codes.astype(np.float32)
    return (E4M3 if mode == "mxfp8" else FP4)[codes]


def _scales(stored: np.ndarray, mode: str) -> np.ndarray:
    """float32 of what is stored: numbers, or bytes that are E4M3 or powers of two."""
    if mode == "affine":
        return stored
    byte = stored.astype(np.int32)
    return E4M3[byte] if mode == "nvfp4" else np.ldexp(np.float32(1), byte - 127)


def _split(module: Module) -> None:
    """Experts that lie in a stack get names of their own."""
    stack = module.left[f"{module.name}.weight"]
    if STACK not in module.name or len(stack.shape) != 3:
        return
    del module.left[f"{module.name}.weight"]
    within, _, part = module.name.partition(STACK)
    part = MIXTRAL.get(part, part) if within.endswith("block_sparse_moe") else part
    for i in range(stack.shape[0]):
        expert = stack.slice(i, i + 1).map(lambda w: w[0], stack.shape[1:])
        module.left[f"{within}.experts.{i}.{part}.weight"] = expert


def _turn_back(left: dict[str, Tensor], family: object) -> None:
    """The axes of convolutions, [channels, width, 1], and norms, where they were changed."""
    turned = [
        name for name, t in left.items() if name.endswith(CONVOLUTIONS) and t.shape[2:] == (1,)
    ]
    for name in turned:
        n, width, _ = left[name].shape
        left[name] = left[name].map(lambda w: w.transpose(0, 2, 1), (n, 1, width))
    for name in list(left) if turned and family in SHIFTED else []:
        if name.endswith(NORMS):
            left[name] = left[name].map(lambda w: w - 1)


def _fuse(left: dict[str, Tensor]) -> None:
    """gpt-oss' experts in transformers' form: rows of gate and up in turns."""
    for module in modules(left, "experts.gate_proj.weight"):
        within = f"{module}.experts"
        for part, fused in (("weight", "blocks"), ("bias", "bias")):
            gate, up, down = (left.pop(f"{within}.{n}_proj.{part}") for n in ("gate", "up", "down"))
            left[f"{within}.gate_up_proj_{fused}"] = _in_turns(gate, up)
            left[f"{within}.down_proj_{fused}"] = down


def _in_turns(gate: Tensor, up: Tensor) -> Tensor:
    """[experts, 2 n, ..] of two [experts, n, ..]."""
    experts, n, *rest = expect(up, *gate.shape).shape

    def load():
        even, odd = gate.load(), up.load()
        return lambda a, b: np.stack([even(a, b), odd(a, b)], 2).reshape(b - a, 2 * n, *rest)

    return Tensor(gate.name, (experts, 2 * n, *rest), load)
