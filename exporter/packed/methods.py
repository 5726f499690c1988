"""What a checkpoint says of its weights: which method packed them."""

from __future__ import annotations

import os

from ..config import Config
from ..json_files import beside, read_json
from ..tensor import ExportError, Tensor
from .compressed import compressed_tensors
from .floats import bitnet, fbgemm_fp8, fp8, modelopt, mxfp4_experts
from .integers import auto_round, awq, gptq, neural_compressor
from .mlx import metal, mlx
from .nf4 import bitsandbytes

METHODS = {
    "auto-round": auto_round,
    "autoround": neural_compressor,
    "awq": awq,
    "bitnet": bitnet,
    "bitsandbytes": bitsandbytes,
    "compressed-tensors": compressed_tensors,
    "fbgemm_fp8": fbgemm_fp8,
    "fp8": fp8,
    "gptq": gptq,
    "intel/auto-round": auto_round,
    "metal": metal,
    "modelopt": modelopt,
    "mxfp4": mxfp4_experts,
    "rtn": neural_compressor,
}
# AutoGPTQ's and AutoAWQ's own files, which they wrote before config.json had a place for it.
FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
OLD = {"w_bit": "bits", "q_group_size": "group_size"}  # keys in them
MLX = "quantization"
KEYS = (MLX, "quantization_config", *FILES)  # what the first of them says counts


def packing_beside(directory: str, config: dict, tensors: dict[str, Tensor]) -> dict:
    """Such a file beside a config.json that says nothing, by its name, if weights are packed.
    Errors: ExportError."""
    packed = any(name.endswith(".qweight") for name in tensors)
    if not packed or any(config.get(key) is not None for key in KEYS):
        return {}
    paths = {name: os.path.join(directory, name) for name in FILES}
    name = next((name for name in FILES if os.path.isfile(paths[name])), None)
    return {name: read_json(paths[name])} if name else {}


def packed_stem(directory: str) -> str:
    """The name, without its end, that AutoGPTQ gave the file of weights in such a directory."""
    q = beside(directory, "quantize_config.json")
    own = q.get("model_file_base_name") or f"gptq_model-{q.get('bits')}bit-{q.get('group_size')}g"
    return os.path.basename(str(own))


def dequantize(c: Config, left: dict[str, Tensor]) -> None:
    """Replaces the tensors that a config speaks of by what they stand for, in float32. Errors:
    ExportError."""
    key = next((key for key in KEYS if c.get(key) is not None), None)
    c.ignore(*KEYS)
    if key is None:
        return
    values = c.get(key)
    if not isinstance(values, dict):
        raise ExportError(f"{c.where}: {key} is {values!r}, expected an object")
    if key in FILES:
        q = Config({OLD.get(k, k): value for k, value in values.items()}, key)
    else:
        q = Config(values, f"{c.where}: {key}")
    before = dict(left)
    if key == MLX:
        mlx(q, left, c.get("model_type"))
    else:
        q.choice("quant_method", METHODS, FILES.get(key))(q, left)
    q.finish()
    if before and left == before:
        raise ExportError(f"{q.where} says that weights are packed, but the checkpoint has none")
