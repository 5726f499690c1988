"""What a config's quantization_config says of the weights: which method packed them."""

from __future__ import annotations

from ..config import Config
from ..tensor import ExportError, Tensor
from .compressed import compressed_tensors
from .floats import bitnet, fbgemm_fp8, fp8, modelopt, mxfp4_experts
from .integers import auto_round, awq, gptq, neural_compressor
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
    "modelopt": modelopt,
    "mxfp4": mxfp4_experts,
    "rtn": neural_compressor,
}


def dequantize(c: Config, left: dict[str, Tensor]) -> None:
    """Replaces the tensors that quantization_config speaks of by what they stand for, in float32.
    Errors: ExportError."""
    values = c.get("quantization_config")
    if values is None:
        return
    if not isinstance(values, dict):
        raise ExportError(f"{c.where}: quantization_config is {values!r}, expected an object")
    q = Config(values, f"{c.where}: quantization_config")
    before = dict(left)
    q.choice("quant_method", METHODS)(q, left)
    q.finish()
    if before and left == before:
        raise ExportError(f"{q.where} says that weights are packed, but the checkpoint has none")
