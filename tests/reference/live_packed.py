#!/usr/bin/env python3
"""Weights that other tools have packed mean what these tools say: compressed-tensors (also for AWQ
and modelopt, by its converters), bitsandbytes and metal, bit for bit in float32, on random numbers
and odd sizes; and a checkpoint of transformers that compressed-tensors has packed gives its logits.

    python tests/reference/live_packed.py [--seed S]

Needs torch, transformers, compressed-tensors, bitsandbytes; exit status 1 if any differs."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import conftest  # noqa: E402
import make_golden  # noqa: E402
from packed_files import check_kept  # noqa: E402
from test_golden import TOLERANCE, measure  # noqa: E402

import export  # noqa: E402

from exporter.config import Config  # noqa: E402
from exporter.packed.methods import dequantize  # noqa: E402
from exporter.sources.huggingface import open_safetensors, open_torch  # noqa: E402


def ours(tensors: dict[str, torch.Tensor], quantization: dict) -> dict[str, torch.Tensor]:
    """What the exporter makes of these tensors in a file, of either form."""
    tensors = {name: t.contiguous().clone() for name, t in tensors.items()}
    save, read = [(save_file, open_safetensors), (torch.save, open_torch)][torch.randint(2, ())]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights"
        save(tensors, path)
        left = read(str(path))
        dequantize(Config({"quantization_config": quantization}), left)
        for tensor in left.values():
            check_kept(tensor, tensor.array())
        return {name: torch.from_numpy(t.array()) for name, t in left.items()}


def schemes():
    """compressed-tensors' formats: a name, a format, and what a scheme says of its weights."""
    rows = {"strategy": "channel"}
    for bits in (2, 3, 4, 5, 8):
        yield f"int{bits}, groups", "pack-quantized", {"num_bits": bits, "group_size": 16}
    yield (
        "int4, zero points",
        "pack-quantized",
        {"num_bits": 4, "group_size": 16, "symmetric": False},
    )
    yield "int3, zero points of rows", "pack-quantized", {"num_bits": 3, **rows, "symmetric": False}
    yield "int4, rows", "pack-quantized", {"num_bits": 4, **rows}
    yield "int4, matrix", "pack-quantized", {"num_bits": 4, "strategy": "tensor"}
    for bits in (2, 8):
        values = {"num_bits": bits, "group_size": 16, "symmetric": False}
        yield f"int{bits}, zero points", "pack-quantized", values
    yield "int8, rows", "int-quantized", {"num_bits": 8, **rows}
    yield "int8, groups", "int-quantized", {"num_bits": 8, "group_size": 16}
    yield "int8, matrix", "int-quantized", {"num_bits": 8, "strategy": "tensor"}
    yield "int8, zero points", "int-quantized", {"num_bits": 8, **rows, "symmetric": False}
    yield "fp8, rows", "float-quantized", {"num_bits": 8, **rows, "type": "float"}
    yield "fp8, matrix", "float-quantized", {"num_bits": 8, "type": "float", "strategy": "tensor"}
    block = {"strategy": "block", "block_structure": [16, 32]}
    yield "fp8, blocks", "float-quantized", {"num_bits": 8, "type": "float", **block}
    fp4 = {"num_bits": 4, "type": "float"}
    yield "nvfp4", "nvfp4-pack-quantized", {**fp4, "strategy": "tensor_group", "group_size": 16}
    yield "mxfp4", "mxfp4-pack-quantized", {**fp4, "group_size": 32}


def scales_for(args, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """Scales of about the right size, and zero points, in the shapes of a strategy."""
    rows, columns = weight.shape
    strategy = args.strategy
    shape = {"tensor": (1,), "channel": (rows, 1)}.get(strategy)
    if strategy in ("group", "tensor_group"):
        shape = (rows, columns // args.group_size)
    if strategy == "block":
        shape = tuple(-(-n // b) for n, b in zip(weight.shape, args.block_structure))
    largest = weight.abs().max() / {"int": 2 ** (args.num_bits - 1), "float": 6.0}[args.type]
    if (args.type, args.num_bits) == ("float", 8):
        largest = weight.abs().max() / 448
    found = {"weight_scale": largest * (0.5 + torch.rand(shape))}
    if not args.symmetric:
        half = 2 ** (args.num_bits - 1)
        zero = torch.randint(-half, half, shape, dtype=torch.int8)
        extremes = torch.tensor([-half, 0, half - 1], dtype=torch.int8)
        zero.view(-1)[: len(extremes)] = extremes[: zero.numel()]
        found["weight_zero_point"] = zero
    if strategy == "tensor_group":
        found["weight_global_scale"] = torch.tensor([256.0])  # the library multiplies in bf16
        found["weight_scale"] = (found["weight_scale"] * 256).clamp(max=448).to(torch.float8_e4m3fn)
        found["weight_scale"] = found["weight_scale"].float()
    if (args.type, args.num_bits, args.group_size) == ("float", 4, 32):
        found["weight_scale"] = 2 ** torch.floor(torch.log2(found["weight_scale"]))
    return found


def check_compressed_tensors() -> bool:
    from compressed_tensors.compressors.base import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    good = True
    for name, form, values in schemes():
        args = QuantizationArgs(**values)
        scheme = QuantizationScheme(targets=["Linear"], weights=args)
        compressor = BaseCompressor.load_from_registry(form)
        tensors, want = {}, {}
        for module, shape in (("a.b", (37, 64)), ("c", (40, 96))):
            weight = torch.randn(shape)
            packed = compressor.compress({"weight": weight, **scales_for(args, weight)}, scheme)
            want[f"{module}.weight"] = compressor.decompress(dict(packed), scheme)["weight"].float()
            tensors |= {f"{module}.{key}": value for key, value in packed.items()}
        good &= same(f"compressed-tensors {name}", ours(tensors, compressed(form, args)), want)
    return good


def compressed(form: str, args) -> dict:
    """A quantization_config."""
    weights = args.model_dump(mode="json", exclude_none=True)
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }


def awq_word(numbers: torch.Tensor) -> torch.Tensor:
    """int32 [rows, n / 8] of [rows, n]: AutoAWQ's order of the eight numbers in a word."""
    places = numbers.reshape(len(numbers), -1, 8)[..., [0, 2, 4, 6, 1, 3, 5, 7]].long()
    words = (places << torch.arange(0, 32, 4)).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).int()


def check_awq() -> bool:
    from compressed_tensors.compressors.base import BaseCompressor
    from compressed_tensors.entrypoints.convert.converters.autoawq import AutoAWQConverter
    from compressed_tensors.quantization import QuantizationScheme

    good = True
    for zero_point in (True, False):
        numbers = lambda *shape: torch.randint(0, 16, shape)  # noqa: E731
        tensors = {"a.qweight": awq_word(numbers(48, 40)), "a.scales": torch.rand(3, 40)}
        if zero_point:
            tensors["a.qzeros"] = awq_word(numbers(3, 40))
        q = {"bits": 4, "group_size": 16, "zero_point": zero_point, "version": "gemm"}
        converter = AutoAWQConverter(**q)
        found = converter.process(dict(tensors))
        scheme = QuantizationScheme(
            targets=["Linear"],
            weights=converter._build_quant_config().config_groups["config_group_0"].weights,
        )
        module = {name[2:]: value for name, value in found.items()}
        compressor = BaseCompressor.load_from_registry("pack-quantized")
        want = {"a.weight": compressor.decompress(module, scheme)["weight"]}
        good &= same(
            f"AWQ, zero points {zero_point}", ours(tensors, {"quant_method": "awq", **q}), want
        )
    return good


def check_modelopt() -> bool:
    """Against compressed-tensors' nvfp4 with the reciprocal of weight_scale_2, a power of two."""
    from compressed_tensors.compressors.base import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    args = QuantizationArgs(num_bits=4, type="float", strategy="tensor_group", group_size=16)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    scale = (torch.rand(24, 4) * 400).to(torch.float8_e4m3fn)
    packed = torch.randint(0, 256, (24, 32), dtype=torch.uint8)
    compressor = BaseCompressor.load_from_registry("nvfp4-pack-quantized")
    stored = {"weight_packed": packed, "weight_scale": scale}
    stored["weight_global_scale"] = torch.tensor([1024.0])
    want = {"a.weight": compressor.decompress(stored, scheme)["weight"].float()}
    tensors = {"a.weight": packed, "a.weight_scale": scale, "a.input_scale": torch.tensor(1.0)}
    tensors["a.weight_scale_2"] = torch.tensor(1 / 1024)
    good = same(
        "modelopt nvfp4", ours(tensors, {"quant_method": "modelopt", "quant_algo": "NVFP4"}), want
    )
    weight = torch.randn(9, 14).to(torch.float8_e4m3fn)
    tensors = {"a.weight": weight, "a.weight_scale": torch.tensor(0.3)}
    want = {"a.weight": weight.float() * 0.3}
    return good & same(
        "modelopt fp8", ours(tensors, {"quant_method": "modelopt", "quant_algo": "FP8"}), want
    )


def check_bitsandbytes() -> bool:
    import bitsandbytes.functional as bnb

    good = True
    for kind, nested, storage in (
        ("nf4", False, torch.uint8),
        ("nf4", True, torch.bfloat16),
        ("fp4", False, torch.float32),
        ("fp4", True, torch.float16),
    ):
        packed, state = bnb.quantize_4bit(
            torch.randn(36, 64),
            quant_type=kind,
            compress_statistics=nested,
            blocksize=64,
            quant_storage=storage,
        )
        want = {"a.weight": bnb.dequantize_4bit(packed, state)}
        tensors = {"a.weight": packed}
        tensors |= {f"a.weight.{name}": t for name, t in state.as_dict(packed=True).items()}
        q = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind}
        good &= same(f"bitsandbytes {kind}, nested {nested}, {storage}", ours(tensors, q), want)
    codes = torch.randint(-127, 128, (9, 14), dtype=torch.int8)
    largest = torch.rand(9)
    want = {"a.weight": bnb.int8_vectorwise_dequant(codes, largest)}
    tensors = {"a.weight": codes, "a.SCB": largest}
    q = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    return good & same("bitsandbytes int8", ours(tensors, q), want)


def check_metal() -> bool:
    """MLX's words, in transformers' form of them."""
    from transformers.integrations import metal_quantization

    good = True
    for bits in (2, 4, 8):
        parts = metal_quantization._affine_quantize_tensor(torch.randn(36, 64), 32, bits)
        want = {"a.weight": metal_quantization._affine_dequantize_tensor(*parts, 32, bits)}
        tensors = dict(zip(("a.weight", "a.scales", "a.qbiases"), parts))
        q = {"quant_method": "metal", "bits": bits, "group_size": 32}
        good &= same(f"metal, {bits} bits", ours(tensors, q), want)
    return good


def check_transformers() -> bool:
    """The logits of a checkpoint whose matrices are packed."""
    from compressed_tensors.compressors.base import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from safetensors.torch import load_file

    args = QuantizationArgs(num_bits=4, strategy="channel")
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    compressor = BaseCompressor.load_from_registry("pack-quantized")

    def pack(directory: Path) -> None:
        tensors = load_file(directory / "model.safetensors")
        for name in [name for name in tensors if name.endswith("_proj.weight")]:
            weight = tensors.pop(name)
            packed = compressor.compress({"weight": weight, **scales_for(args, weight)}, scheme)
            tensors |= {f"{name[: -len('weight')]}{key}": value for key, value in packed.items()}
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        config = json.loads((directory / "config.json").read_text())
        config["quantization_config"] = compressed("pack-quantized", args)
        (directory / "config.json").write_text(json.dumps(config))

    with tempfile.TemporaryDirectory() as folder:
        directory = make_golden.make("llama", 1, Path(folder), pack)
        binary = Path(folder) / "model.bin"
        assert export.main([str(directory), str(binary), "--dtype", "f32"]) == 0
        error, greedy, expected = measure(directory, binary, conftest.run_command)
    good = error <= TOLERANCE and greedy == expected
    print(f"{'ok' if good else 'not ok'} transformers, packed: {error:.1e}", flush=True)
    return good


def same(name: str, found: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> bool:
    good = set(found) == set(want) and all(torch.equal(found[n], want[n]) for n in want)
    print(f"{'ok' if good else 'not ok'} {name}", flush=True)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    torch.manual_seed(parser.parse_args().seed)
    checks = [check_compressed_tensors, check_awq, check_modelopt, check_bitsandbytes]
    checks += [check_metal, check_transformers]
    return 0 if all([check() for check in checks]) else 1


if __name__ == "__main__":
    sys.exit(main())
