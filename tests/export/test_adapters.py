"""Adapters merged by the export: golden ones of peft (tests/reference/make_adapters.py), and what is
refused."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import gguf_files
import numpy as np
import pytest
from conftest import ROOT
from golden_copies import GOLDEN, copy, edit_config, edit_tensors, exported, refusal
from safetensors.numpy import load_file, save_file

import export
import heads
from exporter.checkpoint import Checkpoint

ADAPTERS = GOLDEN / "adapters"
NAMES = sorted(path.name for path in ADAPTERS.iterdir())
TOLERANCE = 1e-4  # of the largest logit, at every position
Q = "model.layers.0.self_attn.q_proj"
PREFIX = "base_model.model."


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(0, 0.3, shape).astype(np.float32)


def low(module: str, n_in: int, n_out: int, rank: int = 2) -> dict[str, np.ndarray]:
    names = (f"{PREFIX}{module}.lora_{part}.weight" for part in "AB")
    return dict(zip(names, (numbers(rank, n_in), numbers(n_out, rank))))


def adapter(folder: Path, tensors: dict[str, np.ndarray], **config) -> Path:
    """A folder as peft writes one."""
    folder.mkdir(exist_ok=True)
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, **config}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def merged(base: Path, *folders: object) -> Checkpoint:
    return exported(base, *(a for folder in folders for a in ("--adapter", str(folder))))


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_peft(name, tmp_path, run):
    golden = json.loads((ADAPTERS / name / "golden.json").read_text())
    binary, logits = tmp_path / "model.bin", tmp_path / "logits"
    args = [str(GOLDEN / golden["base"]), str(binary), "--dtype", "f32", "--adapter"]
    assert export.main([*args, str(ADAPTERS / name)]) == 0
    ids = ("--tokens", " ".join(map(str, golden["prompt"])), "-ctk", "f32", "-ctv", "f32")
    done = run(binary, *ids, "--logits", logits)
    assert done.returncode == 0, done.stderr
    want = np.load(ADAPTERS / name / "logits.npy") * np.float32(golden["largest"] / 32767)
    found = np.fromfile(logits, "<f4").reshape(want.shape)
    assert np.abs(found - want).max() <= TOLERANCE * golden["largest"]


def test_scales_and_several_adapters(tmp_path, run):
    """Each is added times its scale; --info says which."""
    base = copy(tmp_path, "llama")
    a, b = low(Q, 40, 40), {k: -v for k, v in low(Q, 40, 40, 3).items()}
    first, second = adapter(tmp_path / "a", a), adapter(tmp_path / "b", b, r=3, use_rslora=True)
    file = merged(base, f"{first}:0.5", second)
    (a1, b1), (a2, b2) = a.values(), b.values()
    want = exported(base).tensor("layers.0.attn_q") + b1 @ a1 + b2 @ a2 * (4 / math.sqrt(3))
    assert np.abs(file.tensor("layers.0.attn_q") - want).max() < 1e-5
    assert file.metadata["info.adapters"] == b"a:0.5 (LoRA, rank 2), b (rsLoRA, rank 3)"
    merged(base, f"{first}:0.5", second)
    said = run(tmp_path / "exported.bin", "--info").stdout.decode()
    assert "info.adapters a:0.5 (LoRA, rank 2), b (rsLoRA, rank 3)\n" in said


def test_the_base_is_found(tmp_path, capsys, monkeypatch):
    """By the adapter's configuration, a folder or a hub id; and an adapter as SRC gets the
    command."""
    base = copy(tmp_path, "llama")
    folder = adapter(tmp_path / "a", low(Q, 40, 40), base_model_name_or_path=str(base))
    out = tmp_path / "x.bin"
    assert export.main([str(out), "--adapter", str(folder), "--dtype", "f32"]) == 0
    assert "merged: a (LoRA, rank 2)\n" in capsys.readouterr().out
    heads.export(None, tmp_path / "y.bin", "f32", adapters=folder)
    heads.export(base, tmp_path / "z.bin", "f32", adapters={folder: 0.5})
    assert (
        out.read_bytes() == (tmp_path / "y.bin").read_bytes() != (tmp_path / "z.bin").read_bytes()
    )
    said = refusal(capsys, folder, out)
    assert said.endswith(f"export.py {base} OUT --adapter {folder}")
    adapter(folder, low(Q, 40, 40), base_model_name_or_path="/nowhere/base")
    assert "which is no folder here and no hub id" in refusal(capsys, out, "--adapter", folder)
    adapter(folder, low(Q, 40, 40), base_model_name_or_path="org/base", revision="v2")
    import huggingface_hub

    def download(hub_id, revision, allow_patterns):
        assert (hub_id, revision) == ("org/base", "v2")
        return str(base)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert export.main([str(out), "--adapter", str(folder), "--dtype", "f32"]) == 0
    assert "org/base is no file or directory here: downloading" in capsys.readouterr().err


def test_an_adapter_beside_its_base_is_named(tmp_path, capsys):
    base = copy(tmp_path, "llama")
    adapter(base, low(Q, 40, 40))
    plain = exported(base)
    assert f"an adapter too, which is left out: --adapter {base} merges" in capsys.readouterr().err
    assert not np.array_equal(
        merged(base, base).tensor("layers.0.attn_q"), plain.tensor("layers.0.attn_q")
    )
    assert "left out" not in capsys.readouterr().err


@pytest.mark.parametrize("stacked", [False, True])
def test_experts_one_by_one(stacked, tmp_path):
    """Adapters of before transformers 5 have a part for each expert's matrix, whether the base has
    a tensor for each or one for all."""
    base = copy(tmp_path, "qwen2_moe")
    experts = "model.layers.1.mlp.experts"

    def stack(tensors):
        gate, up, down = (
            np.stack([tensors.pop(f"{experts}.{e}.{name}_proj.weight") for e in range(7)])
            for name in ("gate", "up", "down")
        )
        gate_up = np.concatenate([gate, up], 1)
        tensors |= {f"{experts}.gate_up_proj": gate_up, f"{experts}.down_proj": down}

    if stacked:
        edit_tensors(base, stack)
    module = "model.layers.1.mlp.experts.3.up_proj"
    tensors = low(module, 36, 18)
    file = merged(base, adapter(tmp_path / "a", tensors))
    a, b = tensors.values()
    change = file.tensor("layers.1.expert_up") - exported(base).tensor("layers.1.expert_up")
    rows = 3 * 32  # of stacks, each begins at a whole panel
    assert np.abs(change[rows : rows + 18] - 2 * b @ a).max() < 1e-5
    assert np.abs(np.delete(change, np.s_[rows : rows + 18], 0)).max() == 0


def test_a_packed_base(tmp_path):
    """The adapter is added to what the packed numbers stand for."""
    base = copy(tmp_path, "llama")
    weight = load_file(base / "model.safetensors")[f"{Q}.weight"]
    scale = (np.abs(weight).max(1, keepdims=True) / 127).astype(np.float32)
    codes = np.rint(weight / scale).astype(np.int8)

    def pack(tensors):
        del tensors[f"{Q}.weight"]
        tensors |= {f"{Q}.weight": codes, f"{Q}.weight_scale": scale}

    edit_tensors(base, pack)
    group = {
        "weights": {"num_bits": 8, "strategy": "channel", "type": "int"},
        "targets": ["Linear"],
    }
    packing = dict(quant_method="compressed-tensors", format="int-quantized")
    edit_config(base, quantization_config={**packing, "config_groups": {"group_0": group}})
    tensors = low(Q, 40, 40)
    a, b = tensors.values()
    found = merged(base, adapter(tmp_path / "a", tensors)).tensor("layers.0.attn_q")
    assert np.abs(found - (codes * scale + 2 * b @ a)).max() < 1e-5


def test_tokens_that_the_base_lacks(tmp_path, capsys):
    """An embedding and an output with more rows make the vocabulary larger."""
    base = copy(tmp_path, "llama")
    new = {f"{PREFIX}{name}.weight": numbers(133, 40) for name in ("model.embed_tokens", "lm_head")}
    folder = adapter(tmp_path / "a", low(Q, 40, 40) | new, modules_to_save=["embed_tokens"])
    file = merged(base, folder)
    assert file.metadata["model.vocab_size"] == 133
    assert np.array_equal(file.tensor("output"), numbers(133, 40))
    new.popitem()
    adapter(folder, low(Q, 40, 40) | new)
    said = refusal(capsys, base, tmp_path / "x.bin", "--adapter", folder)
    assert "has 133 rows for model.embed_tokens.weight, of 131" in said


def test_a_head_for_classes(tmp_path, run):
    """What peft saves of a classifier turns a model that writes into one that tells classes."""
    base = copy(tmp_path, "llama")
    head = {f"{PREFIX}score.weight": numbers(3, 40)}
    file = merged(base, adapter(tmp_path / "a", low(Q, 40, 40) | head, task_type="SEQ_CLS"))
    assert "output" not in file.tensors and np.array_equal(file.tensor("classes.0"), numbers(3, 40))
    assert file.metadata["model.labels"] == b"LABEL_0LABEL_1LABEL_2"


def test_a_gguf_base(tmp_path, capsys):
    """Takes adapters of peft, and GGUF's, by its own names and with q and k as it has them; what is
    changed cannot be kept as stored."""
    base, path = copy(tmp_path, "llama"), tmp_path / "x.gguf"
    gguf_files.convert(base, path)
    tensors = low(Q, 40, 40)
    folder = adapter(tmp_path / "a", tensors)
    want = merged(base, folder)
    for found in (merged(path, folder), merged(path, gguf_adapter(tmp_path / "a.gguf", tensors))):
        for name in ("layers.0.attn_q", "layers.1.attn_q"):
            assert np.abs(found.tensor(name) - want.tensor(name)).max() < 1e-5
    capsys.readouterr()
    assert export.main([str(path), str(tmp_path / "k.bin"), "--adapter", str(folder)]) == 0
    said = capsys.readouterr().err
    assert "layers.0.attn_q cannot be kept as stored, some because an adapter has changed" in said
    kept = Checkpoint(str(tmp_path / "k.bin")).tensors
    assert kept["layers.0.attn_q"][0] == "f16" and kept["layers.1.attn_q"][0] == "f32"
    said = refusal(capsys, base, tmp_path / "y.bin", "--adapter", tmp_path / "a.gguf")
    assert "is an adapter for a GGUF file" in said
    said = refusal(capsys, tmp_path / "a.gguf", tmp_path / "y.bin")
    assert "export.py BASE.gguf OUT --adapter" in said
    gguf_adapter(tmp_path / "a.gguf", tensors, "qwen2")
    said = refusal(capsys, path, tmp_path / "y.bin", "--adapter", tmp_path / "a.gguf")
    assert "is an adapter for qwen2" in said


def gguf_adapter(path: Path, tensors: dict[str, np.ndarray], arch: str = "llama") -> Path:
    """As llama.cpp's convert_lora_to_gguf.py writes q's of layer 0."""
    import gguf

    writer = gguf.GGUFWriter(str(path), arch)
    for key, value in {"general.type": "adapter", "adapter.type": "lora"}.items():
        writer.add_string(key, value)
    writer.add_float32("adapter.lora.alpha", 4.0)
    a, b = tensors.values()
    b = b.reshape(4, 2, 5, -1).swapaxes(1, 2).reshape(b.shape)  # pairs of rope side by side
    for name, values in (("lora_a", a), ("lora_b", b)):
        writer.add_tensor(f"blk.0.attn_q.weight.{name}", np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


WRONG = {
    "which the base has not; the nearest is model.layers.0.self_attn.q_proj.weight": (
        low("model.layers.0.self_attn.q_prj", 40, 40),
        {},
    ),
    "shape [2, 48], which does not fit model.layers.0.self_attn.q_proj.weight of the base, [40, 40]": (
        low(Q, 48, 48),
        {},
    ),
    "makes the rank 3": (low(Q, 40, 40), dict(r=3)),
    "the adapter lacks the tensor model.layers.0.self_attn.q_proj.lora_magnitude_vector": (
        low(Q, 40, 40),
        dict(use_dora=True),
    ),
    "lora_magnitude_vector has shape [39], expected 40 numbers": (
        low(Q, 40, 40) | {f"{PREFIX}{Q}.lora_magnitude_vector": numbers(39)},
        dict(use_dora=True),
    ),
    "of the kind [1], which is not supported": ({}, dict(peft_type=[1])),
    "of the kind PREFIX_TUNING, which changes no weight": ({}, dict(peft_type="PREFIX_TUNING")),
    "of the kind OFT, which is not supported: merge it": ({}, dict(peft_type="OFT")),
    "init_lora_weights is 'pissa'": (low(Q, 40, 40), dict(init_lora_weights="pissa")),
    "alora_invocation_tokens is [3], which is not supported": (
        low(Q, 40, 40),
        dict(alora_invocation_tokens=[3]),
    ),
    "new_form (7) is unknown": (low(Q, 40, 40), dict(new_form=7)),
    "lora_A.weight of the adapter: a number is NaN": (
        {name: w * np.float32(np.nan) for name, w in low(Q, 40, 40).items()},
        {},
    ),
    "holds no tensor": ({}, {}),
    "the pattern '(' is no regular expression": (low(Q, 40, 40), dict(rank_pattern={"(": 2})),
    "an alpha of the adapter is 'x'": (low(Q, 40, 40), dict(lora_alpha="x")),
    "is for score.weight, which the base has not": (
        low(Q, 40, 40) | {f"{PREFIX}score.weight": numbers(2, 40)},
        {},
    ),
    "does not list the tokens of model.embed_tokens": (
        {f"{PREFIX}model.embed_tokens.token_adapter.trainable_tokens_delta": numbers(1, 40)},
        {},
    ),
    "which does not fit model.embed_tokens.weight of the base, [131, 40]": (
        {f"{PREFIX}model.embed_tokens.token_adapter.trainable_tokens_delta": numbers(1, 40)},
        dict(trainable_token_indices=[131]),
    ),
}


@pytest.mark.parametrize("said", WRONG)
def test_what_is_refused(said, tmp_path, capsys):
    tensors, config = WRONG[said]
    folder, out = adapter(tmp_path / "a", tensors, **config), tmp_path / "x.bin"
    found = refusal(capsys, GOLDEN / "llama", out, "--adapter", folder)
    assert said in found and (str(folder) in found or "NaN" in said)
    assert not list(tmp_path.glob("x.bin*"))


def test_other_refusals(tmp_path, capsys):
    folder, out = adapter(tmp_path / "a", low(Q, 40, 40)), tmp_path / "x.bin"
    for scale in ("nan", "inf"):
        with pytest.raises(SystemExit):
            export.main([str(GOLDEN / "llama"), str(out), "--adapter", f"{folder}:{scale}"])
        assert f"the scale is {scale}, expected a finite number" in capsys.readouterr().err
    said = refusal(capsys, GOLDEN / "llama", out, "--adapter", folder / "adapter_config.json")
    assert "is no folder and no GGUF file" in said
    weights = folder / "adapter_model.safetensors"
    said = refusal(capsys, GOLDEN / "llama", weights, "--adapter", folder)
    assert "belongs to the source" in said
    weights.unlink()
    said = refusal(capsys, GOLDEN / "llama", out, "--adapter", folder)
    assert "has no adapter_model.safetensors and no adapter_model.bin" in said
    (folder / "adapter_config.json").unlink()
    said = refusal(capsys, GOLDEN / "llama", out, "--adapter", folder)
    assert "has no adapter_config.json" in said
    saved = {f"{PREFIX}lm_head.weight": numbers(131, 40)}
    both = [adapter(tmp_path / n, saved, modules_to_save=["lm_head"]) for n in "bc"]
    args = (f"--adapter={one}" for one in both)
    said = refusal(capsys, GOLDEN / "llama", out, *args)
    assert "too replaces lm_head.weight, which only one adapter can" in said
    assert not out.exists()


def test_an_adapter_brings_its_tokenizer(tmp_path, capsys):
    """And its chat template; what ended the base's texts still ends one."""
    base = ROOT / "models" / "hf"
    folder = adapter(tmp_path / "a", low("model.layers.0.self_attn.o_proj", 128, 128))
    shutil.copy(base / "tokenizer.json", folder)
    config = {**json.loads((base / "tokenizer_config.json").read_text()), "eos_token": "<|begin|>"}
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))
    out = tmp_path / "x.bin"
    assert export.main([str(base), str(out), "--adapter", str(folder)]) == 0
    assert f"the tokenizer and the chat template are those of {folder}" in capsys.readouterr().err
    meta = Checkpoint(str(out)).metadata
    assert meta["tokenizer.eos"].tolist() == [0, 1] and meta["chat.template"] == template.encode()
