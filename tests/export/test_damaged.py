"""Damaged checkpoints: a tensor is missing, or a value of config.json is odd. The model is made, or
a sentence says why not; nothing else is raised."""

from __future__ import annotations

import copy
import dataclasses
import json
import random
import re

import numpy as np
import pytest
from conftest import ROOT

from exporter.families.registry import canonical
from exporter.sources.huggingface import open_safetensors
from exporter.tensor import ExportError, Tensor

GOLDEN = ROOT / "tests" / "golden"
WHOLE = sorted(path.parent for path in GOLDEN.glob("**/model.safetensors"))
ODD = (
    None,
    True,
    0,
    -1,
    2.5,
    1e300,
    "x",
    "",
    [],
    [None],
    [[]],
    ["x", 1],
    {},
    {"a": 1},
    {"1": None},
)


def hollow(directory) -> tuple[dict, dict[str, Tensor]]:
    """The config, and tensors of zeros, which are quick."""
    config = json.loads((directory / "config.json").read_text())
    tensors = open_safetensors(str(directory / "model.safetensors"))

    def zeros(tensor: Tensor) -> Tensor:
        width = tensor.shape[1:]
        return Tensor(
            tensor.name, tensor.shape, lambda: lambda a, b: np.zeros((b - a, *width), "f4")
        )

    return config, {name: zeros(tensor) for name, tensor in tensors.items()}


def said(config: dict, tensors: dict[str, Tensor]) -> str:
    """The refusal, empty if there is none. Any other exception is a fault."""
    try:
        canonical(config, tensors)
    except ExportError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("directory", WHOLE, ids=lambda path: path.name)
def test_a_missing_tensor_is_a_sentence(directory):
    """Of each kind of tensor one, of the first layer that has it."""
    config, tensors = hollow(directory)
    kinds = {re.sub(r"\.\d+\.", ".N.", name): name for name in reversed(tensors)}
    for name in kinds.values():
        said(copy.deepcopy(config), {n: t for n, t in tensors.items() if n != name})


@pytest.mark.parametrize("directory", WHOLE, ids=lambda path: path.name)
def test_an_odd_value_is_a_sentence(directory):
    """Of all keys, those of inner objects too, a sample."""
    config, tensors = hollow(directory)
    inner = [(key, k) for key, value in config.items() if isinstance(value, dict) for k in value]
    places = [
        (key,) for key in [*config, "architectures", "id2label"] if key != "model_type"
    ] + inner
    pairs = [(place, value) for place in places for value in ODD]
    for place, value in random.Random(directory.name).sample(pairs, min(len(pairs), 40)):
        bent = copy.deepcopy(config)
        into = bent if len(place) == 1 else bent[place[0]]
        into[place[-1]] = value
        sentence = said(bent, tensors)
        assert not sentence or len(sentence) < 600


@pytest.mark.parametrize("directory", WHOLE, ids=lambda path: path.name)
def test_layers_beyond_the_last_are_a_remark(directory):
    """As in transformers, whatever a family calls its layers. ALBERT's are few and counted by
    groups; layers that predict several tokens at once are left out without a word."""
    if directory.name == "albert":
        return
    config, tensors = hollow(directory)
    beyond = [re.sub(r"\.\d+\.", ".99.", name, count=1) for name in tensors]
    more = {name: tensor for name, tensor in zip(beyond, tensors.values()) if ".99." in name}
    remarks = canonical(config, {**more, **tensors})[3]
    said = any(".99." in r and "and its like are left out" in r for r in remarks)
    assert said or directory.name in ("deepseek_v3", "kimi_linear")


def test_which_tensor_is_missing_is_said():
    config, tensors = hollow(GOLDEN / "mamba2")
    name = next(name for name in tensors if name.endswith("dt_bias"))
    tensors.pop(name)
    assert said(config, tensors) == f"the checkpoint lacks the tensor {name}"


def test_which_value_is_odd_is_said():
    config, tensors = hollow(GOLDEN / "llama")
    assert said({**config, "architectures": 3}, tensors).startswith(
        "config.json: architectures (3)"
    )


@pytest.mark.parametrize("directory", WHOLE, ids=lambda path: path.name)
def test_another_shape_is_a_sentence(directory):
    """Of each kind of tensor one, which is a vector of as many numbers."""
    config, tensors = hollow(directory)
    kinds = {re.sub(r"\.\d+\.", ".N.", name): name for name in reversed(tensors)}
    for name in kinds.values():
        shape = (int(np.prod(tensors[name].shape)) + 1,)
        bent = {**tensors, name: dataclasses.replace(tensors[name], shape=shape)}
        said(copy.deepcopy(config), bent)
