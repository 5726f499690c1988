"""What configs of packed weights say of single modules."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from packed_files import words, write_safetensors, zero_words

from exporter.config import Config
from exporter.packed.methods import dequantize
from exporter.sources.huggingface import open_safetensors
from exporter.tensor import ExportError

SHAPE = (32, 64)  # of a weight: rows and columns


def gptq_module(seed: int, bits: int, size: int, less: int = 1, shape: tuple = SHAPE):
    """The parts of a matrix of GPTQ's, and what they stand for."""
    rng, (n_out, n_in) = np.random.default_rng(seed), shape
    codes = rng.integers(0, 1 << bits, shape)
    zeros = rng.integers(bits == 3, 1 << bits, (n_in // size, n_out))
    scales = rng.uniform(0.1, 1, zeros.shape).astype("<f2")
    group = np.arange(n_in) // size
    want = (codes - zeros.T[:, group]) * scales.astype("<f4").T[:, group]
    qzeros = zero_words(zeros, bits, less)
    return {"qweight": words(codes, bits).T, "qzeros": qzeros, "scales": scales}, want


def check(tmp_path: Path, modules: dict[str, tuple], **quantization) -> None:
    """These modules, and a plain one, are unpacked to what they stand for."""
    path, plain = tmp_path / "model.safetensors", np.ones((2, 3), "<f4")
    tensors = {
        f"{m}.{part}": value for m, (parts, _) in modules.items() for part, value in parts.items()
    }
    write_safetensors(path, {"plain.weight": plain, **tensors})
    left = open_safetensors(str(path))
    dequantize(Config({"quantization_config": quantization}), left)
    want = {"plain": plain, **{name: want for name, (_, want) in modules.items()}}
    assert set(left) == {f"{name}.weight" for name in want}
    assert all(np.array_equal(left[f"{name}.weight"].array(), want[name]) for name in want)


LAYER = "model.layers."
GPTQ = dict(quant_method="gptq", bits=4, group_size=32, sym=False, desc_act=False)


def test_dynamic(tmp_path):
    """GPTQModel's rules of dynamic_get: the first expression that matches from the beginning on,
    after those with a minus; what it does not say is as for all."""
    modules = {
        f"{LAYER}18.mlp.gate_proj": gptq_module(1, 4, 16),
        f"{LAYER}19.mlp.gate_proj": gptq_module(2, 8, 64),
        f"{LAYER}19.mlp.up_proj": gptq_module(3, 2, 32),
        f"{LAYER}1.self_attn.q_proj": gptq_module(4, 3, 32),
        f"{LAYER}20.mlp.gate_proj": gptq_module(5, 4, 32),
        "lm_head": gptq_module(6, 8, 32),
    }
    dynamic = {
        r"+:.*\.18\..*gate.*": {"bits": 4, "group_size": 16, "desc_act": True, "mse": 2.4},
        r".*\.19\..*gate.*": {"bits": 8, "group_size": 64},
        r"+:.*\.19\.": {"bits": 2},
        r"^model\.layers\.1\.self_attn": {"bits": 3},
        r"layers\.20\.": {"bits": 8},  # matches nothing: not from the beginning on
        r"-:.*down.*": {},
        "lm_head": {"bits": 8},
    }
    check(tmp_path, modules, **GPTQ, lm_head=True, method="gptq", dynamic=dynamic)


@pytest.mark.parametrize(
    "dynamic, said",
    [
        ({"+:m.*": {"bits": 8}, "-:m$": {}}, "dynamic: -:m$ says that m is not packed"),
        ({"+:m": {"bits": 5}}, "dynamic: +:m: bits is 5, which is not supported"),
        ({"+:m": {"rotation": "hadamard"}}, "dynamic: +:m: rotation ('hadamard') is unknown"),
        ({"+:m": {"bits": 8}}, "tensor m.scales has shape [2, 32], expected [1, 32]"),
        ({"+:(": {}}, "dynamic: '+:(' is no regular expression"),
        ({"m": 8}, "dynamic: m is 8, expected an object"),
        ([1], "dynamic is [1], expected an object"),
    ],
)
def test_dynamic_that_does_not_fit(tmp_path, dynamic, said):
    with pytest.raises(ExportError) as caught:
        check(tmp_path, {"m": gptq_module(1, 4, 32)}, **GPTQ, dynamic=dynamic)
    assert said in str(caught.value)
