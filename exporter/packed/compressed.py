"""compressed-tensors: each group of modules has a scheme, and its format says what was stored."""

from __future__ import annotations

import re

from ..config import Config
from ..tensor import ExportError, Tensor
from .floats import block_of, mxfp4_rows, nvfp4, scaled_fp8
from .integers import int8, packed_integers
from .stored import Module, modules_with

FORMATS = """pack-quantized int-quantized float-quantized naive-quantized nvfp4-pack-quantized
mxfp4-pack-quantized mixed-precision""".split()
KINDS = {"int": "int", "float": "float"}


def compressed_tensors(q: Config, left: dict[str, Tensor]) -> None:
    """Replaces each module's tensors by its weight. Errors: ExportError."""
    q.choice("format", dict.fromkeys(FORMATS))
    q.require(quantization_status="compressed", transform_config={})
    if (q.get("sparsity_config") or {}).get("format", "dense") != "dense":
        raise ExportError(f"{q.where}: sparsity_config is not supported; supported: none")
    q.ignore("ignore", "kv_cache_scheme", "global_compression_ratio", "version")
    groups = q.get("config_groups")
    if not isinstance(groups, dict) or not all(isinstance(g, dict) for g in groups.values()):
        raise ExportError(f"{q.where}: config_groups is {groups!r}, expected objects")
    for module in modules_with(left, "weight_scale"):
        _decompress(module, _scheme_of(module.name, groups, q.where))
    for module in modules_with(left, "k_scale") + modules_with(left, "v_scale"):
        module.drop("k_scale", "v_scale")


def _scheme_of(name: str, groups: dict, where: str) -> Config:
    """The scheme of a module's weights: of the group that names it, or names all of its kind."""
    named = []
    for key, group in groups.items():
        for target in group.get("targets") or []:
            by_name = re.match(target[3:], name) if target.startswith("re:") else target == name
            if by_name or target == "Linear":
                named.append((not by_name, key))
    if not named:
        raise ExportError(f"{where}: no group of config_groups has the module {name}")
    key = min(named)[1]
    weights = groups[key].get("weights")
    if not isinstance(weights, dict):
        raise ExportError(f"{where}: config_groups.{key} has no weights, but {name} is packed")
    return Config(weights, f"{where}: config_groups.{key}.weights")


def _decompress(module: Module, scheme: Config) -> None:
    module.drop("input_scale", "input_zero_point", "input_global_scale")
    bits, kind = scheme.int("num_bits", most=8), scheme.choice("type", KINDS, "int")
    symmetric = scheme.flag("symmetric", True)
    scheme.choice(
        "strategy", dict.fromkeys(["tensor", "channel", "group", "block", "tensor_group"])
    )
    size = scheme.get("group_size")
    size = scheme.int("group_size", least=-1) if size is not None else None
    size = size if size and size > 0 else None
    block = block_of(scheme.get("block_structure"), f"{scheme.where}: block_structure")
    packed = f"{module.name}.weight_packed" in module.left
    if symmetric:
        module.drop("weight_zero_point")
    if (kind, packed, block) == ("int", True, None):
        packed_integers(module, bits, size, symmetric)
    elif (kind, packed, bits, block) == ("int", False, 8, None):
        int8(module, size, symmetric)
    elif (kind, packed, bits, size) == ("float", False, 8, None):
        scaled_fp8(module, "weight_scale", block)
    elif (kind, packed, bits, size) == ("float", True, 4, 16):
        nvfp4(module, "weight_packed", "weight_global_scale", divides=True)
    elif (kind, packed, bits, size) == ("float", True, 4, 32):
        mxfp4_rows(module)
    else:
        raise ExportError(
            f"{scheme.where}: {bits} bits of type {scheme.get('type')} with group_size {size} and "
            f"block_structure {block} are not supported"
        )
