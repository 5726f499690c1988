"""Golden checkpoints with layers that guess next tokens, which transformers saves with no model: copies of a layer of
the text with numbers in another order, and what is around them, under the names that published checkpoints have."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from conftest import ROOT
from faults import SHIM

# Of a program's environment: nothing takes time then, so that the guard lets all guesses be made. Empty where there is
# no shim for the program, as on other systems: whoever names another program names its shim, too.
STOPPED = {}
if SHIM.exists() and ("HEADS_RUN" not in os.environ or "HEADS_FAULT_SHIM" in os.environ):
    STOPPED = {
        "LD_PRELOAD": str(SHIM),
        "HEADS_CLOCK": "stopped",
        "ASAN_OPTIONS": "verify_asan_link_order=0",
    }
PARTS = ("proj", "embed_norm", "hidden_norm", "norm")
NEXTN = tuple(f"model.layers.{{n}}.{m}" for m in ("eh_proj", "enorm", "hnorm", "shared_head.norm"))
MTP = ("mtp.fc", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm")
MIMO = tuple(
    f"model.mtp_layers.0.{m}"
    for m in ("input_proj", "token_layernorm", "hidden_layernorm", "final_layernorm")
)
NEMOTRON = tuple(
    f"mtp.layers.{m}" for m in ("0.eh_proj", "0.enorm", "0.hnorm", "1.final_layernorm")
)
# The last norm is the text's.
ERNIE = ("model.mtp_linear_proj.0", "model.mtp_emb_norm.0", "model.mtp_hidden_norm.0", "model.norm")
# By model_type: the layers' modules, those of PARTS, and the text's layers that they are like.
LAYOUTS = {
    "deepseek_v3": (("model.layers.{n}",), NEXTN, (-1,)),
    "ernie4_5_moe": (("model.mtp_block.0",), ERNIE, (0,)),
    "glm4_moe": (("model.layers.{n}",), NEXTN, (-1,)),
    "glm4_moe_lite": (("model.layers.{n}",), NEXTN, (-1,)),
    "exaone_moe": (("mtp.layers.0",), MTP, (0,)),
    "mellum": (("mtp.layers.0",), MTP, (-1,)),
    "mimo": (("model.mtp_layers.0",), MIMO, (-1,)),
    "nemotron_h": (("mtp.layers.0", "mtp.layers.1"), NEMOTRON, (2, 5)),
    "qwen3_5_moe_text": (("mtp.layers.0",), MTP, (-1,)),
    "qwen3_5_text": (("mtp.layers.0",), MTP, (-1,)),
    "qwen3_next": (("mtp.layers.0",), MTP, (-1,)),
}


def text_layers(config: dict) -> int:
    return config.get("num_hidden_layers") or len(config["layers_block_type"])


def modules(config: dict) -> tuple[list[str], list[str]]:
    """The layers, and what is around them."""
    n = text_layers(config)
    layers, around, _ = LAYOUTS[config["model_type"]]
    return [m.format(n=n) for m in layers], [m.format(n=n) for m in around]


def add_guesses(directory: Path, seed: int = 1, calm: float = 1.0) -> dict[str, np.ndarray]:
    """Adds such layers to a Hugging Face directory, and returns their tensors. calm: a factor on what their branches
    add to the stream."""
    config = json.loads((directory / "config.json").read_text())
    (layers, around), likes = modules(config), LAYOUTS[config["model_type"]][2]
    n, random = text_layers(config), np.random.default_rng(seed)
    tensors = load_file(directory / "model.safetensors")
    prefix = next(name for name in tensors if ".layers.0." in name).split(".layers.")[0]
    width, found = config["hidden_size"], {}
    for layer, like in zip(layers, (f"{prefix}.layers.{i % n}." for i in likes)):
        for name, values in tensors.items():
            if name.startswith(like):
                factor = (
                    calm if name.endswith(("o_proj.weight", "down_proj.weight", "down_proj")) else 1
                )
                found[f"{layer}.{name[len(like) :]}"] = factor * random.permutation(
                    values.ravel()
                ).reshape(values.shape)
    norm = next(
        tensors[f"{prefix}.{m}.weight"]
        for m in ("norm", "norm_f")
        if f"{prefix}.{m}.weight" in tensors
    )
    for part, module in zip(PARTS, around):
        if module + ".weight" not in tensors:
            found[module + ".weight"] = (
                random.normal(0, (2 * width) ** -0.5, (width, 2 * width))
                if part == "proj"
                else random.permutation(norm)
            ).astype(np.float32)
    save_file({**tensors, **found}, directory / "model.safetensors")
    return found


def golden_with_guesses(name: str, out: Path, seed: int = 1) -> Path:
    """A copy of a golden directory with a layer that often guesses right on the golden text."""
    directory = out / f"{name}-guesses"
    shutil.copytree(ROOT / "tests" / "golden" / name, directory)
    add_guesses(directory, seed, calm=0.05)
    golden = json.loads((directory / "golden.json").read_text())
    teach(directory, golden["prompt"][-2:] + golden["greedy"])
    return directory


def teach(directory: Path, ids: list[int]) -> None:
    """The layer's first matrix maps the embedding of most tokens of a text to what the output matrix takes for the
    next one."""
    config = json.loads((directory / "config.json").read_text())
    tensors = load_file(directory / "model.safetensors")
    proj, embed_norm, _, norm = (module + ".weight" for module in modules(config)[1])
    embed = next(
        w
        for name, w in tensors.items()
        if name.endswith(("embed_tokens.weight", "embeddings.weight"))
    )
    output = tensors.get("lm_head.weight", embed)
    pairs = dict(zip(ids, ids[1:]))
    x = embed[list(pairs)]
    offset = 1 if config["model_type"].startswith("qwen3_") else 0
    x = (
        x
        / np.sqrt((x**2).mean(1, keepdims=True) + config.get("rms_norm_eps", 1e-5))
        * (tensors[embed_norm] + offset)
    )
    output, expected, width = (
        output * (tensors[norm] + offset),
        list(pairs.values()),
        config["hidden_size"],
    )
    columns = np.zeros((width, width))
    for _ in range(200):  # a perceptron
        said = (x @ columns.T @ output.T).argmax(1)
        if (said == expected).all():
            break
        columns += (output[expected] - output[said]).T @ x
    columns *= width**-0.5 / columns.std()
    halves = [columns, 0.02 * tensors[proj][:, width:]]
    if config["model_type"] == "mimo":
        halves.reverse()
    tensors[proj] = np.concatenate(halves, 1).astype(np.float32)
    save_file(tensors, directory / "model.safetensors")


def checkpoint_with_guesses(name: str, out: Path) -> tuple[Path, list[int]]:
    """The same as a checkpoint, in float32, and the prompt of the golden text."""
    import export

    directory = golden_with_guesses(name, out)
    assert export.main([str(directory), str(out / "model.bin"), "--dtype", "f32"]) == 0
    return out / "model.bin", json.loads((directory / "golden.json").read_text())["prompt"]


def guesses_after(
    model: Path,
    ids: list[int],
    most: int,
    chunk: int = 0,
    rest: tuple[int, int] = (0, 0),
    begin: int = 0,
) -> list[list[int]]:
    """What the engine guesses after each beginning of ids but the first token's, at most `most` tokens; with a chunk
    the first half of ids runs in passes of so many tokens, and has no guesses. rest: the beginnings from which to
    which none are asked for. begin: the layers read along from there on only."""
    from heads import _native as native

    calls, keys = native.Calls(), native.TYPES["f32"]
    opened = calls.model_open(str(model).encode())
    options = native.WorkspaceOptions(chunk=chunk, n_threads=1, k_type=keys, v_type=keys)
    workspace = calls.workspace_new(opened, ctypes.byref(options))
    sequence = calls.sequence_new(workspace, 0)
    array = (ctypes.c_int * len(ids))(*ids)
    found, start = [], begin or (len(ids) // 2 if chunk else 0)
    if not begin:
        calls.workspace_guess(workspace, most)
    if start:
        calls.forward(sequence, array, start, 0)
    calls.workspace_guess(workspace, most)
    for n in range(start, len(ids) - 1):
        calls.forward(sequence, (ctypes.c_int * 1)(ids[n]), 1, 1)
        if rest[0] <= n < rest[1]:
            continue
        room = (ctypes.c_int * most)()
        made = calls.guess(sequence, array, n + 2, most, room)
        found.append(list(room[:made]))
    calls.sequence_free(sequence)
    calls.workspace_free(workspace)
    calls.model_close(opened)
    return found
