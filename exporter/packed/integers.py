"""Weights in whole numbers of a few bits, with a scale and a zero point for each group of columns:
GPTQ, AWQ, auto-round's two, and what compressed-tensors and LLM.int8() make of integers."""

from __future__ import annotations

from typing import Callable

import numpy as np

from ..config import Config
from ..tensor import ExportError, Tensor
from .overrides import Override, config_of, dynamic, extra_config
from .stored import (
    BLOCK,
    Module,
    as_whole,
    kind_of,
    modules_with,
    numbers_of,
    scales_of,
    spread,
    whole,
)

WORD = 32  # bits
Zeros = Callable[[Tensor, int, int], np.ndarray]  # words, bits and how many -> zero points
BITS = (2, 3, 4, 8)
# What GPTQ's, AWQ's and auto-round's tools say of how they came to their numbers.
MAKING = """desc_act damp_percent true_sequential static_groups model_name_or_path act_group_aware
model_file_base_name model_seqlen block_name_to_quantize module_name_preceding_first_block
batch_size modules_in_block_to_quantize cache_block_outputs dataset tokenizer pad_token_id
max_input_length meta backend use_exllama exllama_config disable_exllama max_input_len use_cuda_fp16
is_marlin_format modules_to_not_convert do_fuse fuse_max_seq_len modules_to_fuse quantizer method
lm_head mse compute_dtype damp_auto_increment autoround_version provider amp batch_size train_bs
gradient_accumulate_steps iters lr minmax_lr nsamples n_samples seqlen scale_dtype low_gpu_mem_usage
low_cpu_mem_usage enable_minmax_tuning enable_norm_bias_tuning enable_quanted_input enable_alg_ext
act_group_size act_sym act_dynamic act_data_type to_quant_block_names quant_block_list""".split()


def words_below(packed: Tensor, bits: int, n: int) -> np.ndarray:
    """uint8 [columns, n] of 32-bit words [rows, columns] whose numbers lie below each other."""
    words = np.ascontiguousarray(whole(packed, "<i4").T)
    return numbers_of(words.view(np.uint8), bits, n)


def words_beside(packed: Tensor, bits: int, n: int) -> np.ndarray:
    """uint8 [rows, n] of 32-bit words [rows, columns] whose numbers lie beside each other."""
    return numbers_of(whole(packed, "<i4").view(np.uint8), bits, n)


def unscaled(codes: np.ndarray, zero, scale: np.ndarray, group: np.ndarray) -> np.ndarray:
    """float32 [n_out, n_in]: codes less the zero point, which like the scale is [n_out, groups];
    group: the one of each column."""
    if group.min() < 0 or group.max() >= scale.shape[1]:
        raise ExportError(f"a column is of group {group.max()}, of {scale.shape[1]}")
    numbers = codes.astype(np.float32)
    numbers -= np.broadcast_to(zero, scale.shape)[:, group]
    return numbers


def scaled(codes: np.ndarray, zero, scale: np.ndarray, group: np.ndarray) -> np.ndarray:
    """The same times the scale."""
    weight = unscaled(codes, zero, scale, group)
    weight *= scale[:, group]
    return weight


def becomes_scaled(
    module: Module,
    shape: tuple[int, int],
    numbers: tuple[int, int],
    scales: Tensor,
    ordered: int | None,
    parts: Callable[[], tuple],
) -> None:
    """The module's weight is `scaled(*parts())`. GGUF's types have the same numbers, if 32 columns
    in order share a scale of two bytes. numbers: the least and the largest; ordered: how many
    columns of a group follow each other."""
    kind = kind_of(*numbers) if scales.stored in ("f16", "bf16") else None
    if not kind or shape[1] % BLOCK or not ordered or ordered % BLOCK:
        return module.becomes(shape, lambda: scaled(*parts()))

    def blocks() -> np.ndarray:
        codes, zero, scale, group = parts()
        of = group[::BLOCK]
        if (group != np.repeat(of, BLOCK)).any():
            raise ExportError(
                f"{module.name}: its columns are in another order, though desc_act is false; give "
                "--dtype bf16"
            )
        whole_numbers = unscaled(codes, zero, scale, group).astype(np.int8)
        return as_whole(module.name, kind, whole_numbers, scale[:, of])

    module.becomes(shape, lambda: scaled(*parts()), kind, blocks)


def numbers_from(bits: int, symmetric: bool) -> tuple[int, int]:
    """The least and the largest of codes less their zero points."""
    return (
        (-1 << bits - 1, (1 << bits - 1) - 1) if symmetric else (1 - (1 << bits), (1 << bits) - 1)
    )


def groups(q: Config, n_in: int) -> tuple[int, np.ndarray]:
    """How many groups of columns there are, and the one of each column."""
    size = q.int("group_size", 128, least=-1)
    size = n_in if size < 1 else size
    return -(-n_in // size), np.arange(n_in) // size


def counted_down(zeros: Tensor, bits: int, n: int) -> np.ndarray:
    """uint8 [rows, n] of zero points of GPTQ's first format, which are one less than what they
    stand for. One is added to every number of a word at once, as an addition of whole words: a
    number that is 0 has borrowed from the next one. Numbers of three bits do not fill words, and
    are counted up alone."""
    if bits == 3:
        return counted_down_alone(zeros, bits, n)
    words = whole(zeros, "<u4") + np.uint32(sum(1 << at for at in range(0, WORD, bits)))
    return numbers_of(words.astype("<u4").view(np.uint8).reshape(len(words), -1), bits, n)


def counted_down_alone(zeros: Tensor, bits: int, n: int) -> np.ndarray:
    """The same, where a number that is 0 became the largest and borrowed nothing."""
    return words_beside(zeros, bits, n) + 1 & (1 << bits) - 1


def gptq(q: Config, left: dict[str, Tensor]) -> None:
    """GPTQModel's and AutoGPTQ's."""
    q.default(checkpoint_format=q.get("format", "gptq"))
    zeros = q.choice("checkpoint_format", {"gptq": counted_down, "gptq_v2": words_beside})
    _gptq_modules(q, left, dynamic(q), zeros)


def neural_compressor(q: Config, left: dict[str, Tensor]) -> None:
    """Intel's before auto-round."""
    q.choice("weight_dtype", dict.fromkeys(["int4_clip", "int8"]), "int4_clip")
    q.require(use_ipex=False)
    q.ignore("llm_int8_skip_modules")
    _gptq_modules(q, left, [], counted_down_alone)


# What `packing_format` says, and `backend` in older files, beside the names of kernels.
PACKINGS = {
    "": words_beside,
    "auto_awq": None,
    "auto_gptq": counted_down,
    "awq": None,
    "gptq": counted_down,
    "gptqmodel": words_beside,
}
KERNELS = {"auto_round", "autoround", "exllamav2", "triton", "cuda"}


def auto_round(q: Config, left: dict[str, Tensor]) -> None:
    """Intel's: words as GPTQ has them, of the first format or the second, or as AWQ has them."""
    key = "backend" if q.get("packing_format") is None and q.get("backend") else "packing_format"
    stored = str(q.get(key) or "auto_round:auto_gptq")
    names = [name for name in stored.split(":") if name not in KERNELS]
    packing = "auto_gptq" if names == ["auto"] else ":".join(names)
    if packing not in PACKINGS:
        raise ExportError(
            f"{q.where}: {key} is {stored!r}, which is not supported; supported: auto_round, with "
            f"one of {', '.join(name for name in PACKINGS if name)} behind a colon or without"
        )
    overrides, zeros = extra_config(q), PACKINGS[packing]
    if zeros is None:
        _awq_modules(q, left, overrides)
    else:
        _gptq_modules(q, left, overrides, zeros)


def _bits(q: Config, supported: tuple[int, ...]) -> int:
    """Bits of a number. Refuses what these tools pack otherwise than is read here."""
    q.require(pack_dtype="int32", data_type="int")
    if q.get("act_bits") is not None:
        q.int("act_bits", least=16, most=32)  # fewer: the weights have another form
    q.ignore("group_size", "sym", "zero_point", *MAKING)
    bits = q.int("bits", most=8)
    if bits not in supported:
        raise ExportError(
            f"{q.where}: bits is {bits}, which is not supported; supported: "
            f"{', '.join(map(str, supported))}"
        )
    return bits


def _each(q: Config, left: dict[str, Tensor], overrides: list[Override]):
    """The modules, each with what the config says of it."""
    for module in modules_with(left, "qweight"):
        of_module = config_of(q, overrides, left[f"{module.name}.qweight"].name[: -len(".qweight")])
        yield module, of_module
        of_module.finish()


def _gptq_modules(
    q: Config, left: dict[str, Tensor], overrides: list[Override], zeros_of: Zeros
) -> None:
    """qweight has the words of weight^T. Zero points that are symmetric stand for the middle.
    Columns may come in any order, then g_idx has their groups."""
    _bits(q, BITS)
    for module, of_module in _each(q, left, overrides):
        module.drop("scale_bf16_to_fp8")  # neural-compressor's, for activations
        _gptq(module, of_module, zeros_of)


def _gptq(module: Module, q: Config, zeros_of: Zeros) -> None:
    bits, symmetric = _bits(q, BITS), q.flag("sym", False)
    packed = module.take("qweight", -1, -1)
    n_in, n_out = packed.shape[0] * WORD // bits, packed.shape[1]
    n, group = groups(q, n_in)
    scales = module.take("scales", n, n_out)
    zeros = module.take("qzeros", n, -(-n_out * bits // WORD))
    order = module.find("g_idx", n_in)
    ordered = (order is None or not q.get("desc_act")) and -(-n_in // n)

    def parts():
        zero = zeros_of(zeros, bits, n_out).T.astype(np.float32)
        middle = 1 << (bits - 1)
        if symmetric and (zero == middle + 1).all():  # by a tool that does not count down
            zero = middle
        elif symmetric and (zero != middle).any():
            raise ExportError(
                f"{q.where}: sym is true, so that zero points are {middle}, but qzeros of a matrix "
                "has others; the file is damaged"
            )
        of = group if order is None else whole(order, "<i4")
        return words_below(packed, bits, n_in), zero, scales.array().T, of

    becomes_scaled(module, (n_out, n_in), numbers_from(bits, symmetric), scales, ordered, parts)


AWQ_PLACES = [0, 4, 1, 5, 2, 6, 3, 7]  # where in a word each of eight columns is


def awq(q: Config, left: dict[str, Tensor]) -> None:
    """AutoAWQ's."""
    q.default(version=q.get("format", "gemm"), bits=4)
    version = q.get("version")
    if not isinstance(version, str) or version.lower() != "gemm":
        raise ExportError(
            f"{q.where}: version is {version!r}, which is not supported; supported: gemm"
        )
    q.ignore("checkpoint_format")
    _awq_modules(q, left, dynamic(q))


def _awq_modules(q: Config, left: dict[str, Tensor], overrides: list[Override]) -> None:
    """qweight is weight^T, eight of whose columns are a word, in an order of their own."""
    _bits(q, (4,))
    for module, of_module in _each(q, left, overrides):
        _awq(module, of_module)


def _awq(module: Module, q: Config) -> None:
    _bits(q, (4,))
    pointed = q.flag("zero_point", True)
    packed = module.take("qweight", -1, -1)
    n_in, n_out = packed.shape[0], packed.shape[1] * 8
    n, group = groups(q, n_in)
    scales = module.take("scales", n, n_out)
    zeros = (module.take if pointed else module.find)("qzeros", n, n_out // 8)

    def columns(tensor: Tensor) -> np.ndarray:
        stored = words_beside(tensor, 4, n_out).reshape(-1, n_out // 8, 8)
        return stored[..., AWQ_PLACES].reshape(-1, n_out).T

    def parts():
        zero = 8 if zeros is None else columns(zeros)
        return columns(packed), zero, scales.array().T, group

    becomes_scaled(
        module, (n_out, n_in), numbers_from(4, zeros is None), scales, -(-n_in // n), parts
    )


def packed_integers(module: Module, bits: int, size: int | None, symmetric: bool) -> None:
    """compressed-tensors' pack-quantized: numbers that are half their range too large, as are their
    zero points, whose words lie below each other. size: of a group; None: all columns are one."""
    n_out, n_in = (int(n) for n in whole(module.take("weight_shape", 2), "<i8"))
    size = size or n_in
    packed = module.take("weight_packed", n_out, -(-n_in * bits // WORD))
    shape = n_out, -(-n_in // size)
    scale = scales_of(module, "weight_scale", *shape)
    order = module.find("weight_g_idx", n_in)
    below = (-(-n_out * bits // WORD), shape[1])
    zeros = None if symmetric else module.take("weight_zero_point", *below)

    def parts():
        zero = 1 << (bits - 1) if zeros is None else words_below(zeros, bits, n_out).T
        group = np.arange(n_in) // size if order is None else whole(order, "<i4")
        factors = spread(scale.array(), *shape)
        return words_beside(packed, bits, n_in), zero, factors, group

    ordered = order is None and size
    becomes_scaled(module, (n_out, n_in), numbers_from(bits, symmetric), scale, ordered, parts)


def int8(module: Module, size: int | None, symmetric: bool) -> None:
    """compressed-tensors' int-quantized: a byte a number."""
    codes = module.take("weight", -1, -1)
    n_out, n_in = codes.shape
    shape = n_out, -(-n_in // (size or n_in))
    scale = scales_of(module, "weight_scale", *shape)
    zeros = None if symmetric else scales_of(module, "weight_zero_point", *shape)

    def parts():
        zero = 0 if zeros is None else spread(whole(zeros, "i1"), *shape)
        group = np.arange(n_in) // (size or n_in)
        return whole(codes, "i1"), zero, spread(scale.array(), *shape), group

    becomes_scaled(module, codes.shape, numbers_from(8, symmetric), scale, size or n_in, parts)


def rows_of_int8(left: dict[str, Tensor]) -> None:
    """LLM.int8(): SCB has the largest absolute value of each row, which is 127 there."""
    for module in modules_with(left, "SCB"):
        codes = module.take("weight", -1, -1)
        largest = module.take("SCB", codes.shape[0])
        module.drop("weight_format")

        def weight(codes=codes, largest=largest) -> np.ndarray:
            rows = whole(codes, "i1").astype(np.float32) * largest.array()[:, None]
            return rows * np.float32(1 / 127)

        module.becomes(codes.shape, weight)
