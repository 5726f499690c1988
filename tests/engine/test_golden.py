"""The exporter and the engine against transformers: small random checkpoints of every family, with logits and greedy tokens
that transformers computed from the same files (tests/reference/make_golden.py made them)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, in_part

import export
import test_classes
from exporter.checkpoint import Checkpoint
from exporter.families.registry import canonical
from exporter.sources.huggingface import open_safetensors
from exporter.tensor import ExportError

GOLDEN = ROOT / "tests" / "golden"
NAMES = sorted(path.parent.name for path in GOLDEN.glob("*/golden.json"))
TOLERANCE = 1e-4  # of the reference's largest logit, at every position


def measure(directory: Path, binary: Path, run) -> tuple[float, list[int], list[int]]:
    """Runs the prompt of a golden directory through `binary`: the largest difference of a logit over the largest logit, the
    greedy tokens, and those expected. `run` is that of conftest.py."""
    golden = json.loads((directory / "golden.json").read_text())
    expected = np.load(directory / "logits.npy")
    if expected.dtype == np.int16:
        expected = expected * np.float32(golden["largest"] / 32767)
    prompt = ["--tokens", " ".join(map(str, golden["prompt"])), "-ctk", "f32", "-ctv", "f32"]
    logits_file = binary.with_suffix(".logits")
    done = run(binary, *prompt, "--logits", logits_file)
    assert done.returncode == 0, done.stderr
    logits = np.fromfile(logits_file, "<f4").reshape(expected.shape)
    done = run(binary, *prompt, "--temp", 0, "-n", len(golden["greedy"]))
    assert done.returncode == 0, done.stderr
    ids = list(map(int, done.stdout.split()))
    assert ids[: len(golden["prompt"])] == golden["prompt"]
    error = np.abs(logits - expected).max() / np.abs(expected).max()
    return float(error), ids[len(golden["prompt"]) :], golden["greedy"]


def test_every_family_is_compared():
    """With a committed checkpoint or with fresh ones (tests/reference/live_models.py)."""
    import make_golden

    # test_encoders.py and test_encoder_decoders.py have the others.
    from exporter.families.registry import ENCODER_DECODERS, ENCODERS, FAMILIES

    assert NAMES == sorted(make_golden.COMMITTED)
    made = {kind for kind, _ in {**make_golden.MODELS, **make_golden.MORE}.values()}
    others = set(ENCODERS) | set(ENCODER_DECODERS)  # of which some are decoders, too
    alone = {"mimo"}  # which transformers lacks: live_guesses.py compares it
    assert made - others == set(FAMILIES) - others - alone


def test_every_knob_is_in_a_golden_checkpoint(tmp_path):
    """Every key and every tensor that docs/format.md lists for the transformer."""
    text = (GOLDEN.parent.parent / "docs" / "format.md").read_text()
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    known = {
        name.replace(".S.", ".0.")
        for row in rows
        for name in re.findall(r"`((?:model|layer)\.[\w.]+)`", row)
    }
    few = (
        r"(embed_(?:norm|type|proj)|head_(?:dense|norm)|output\.bias|ple_\w+|out_scale|"
        r"(?:attn|ffn)_(?:\w+_norm|sinks|slopes|act|relative)|expert_\w*norm)"
    )
    tensors = {name for row in rows for name in re.findall(few, row)}
    assert len(known) > 25 and len(tensors) > 9
    seen: set[str] = set()
    encoders = sorted(path.parent for path in GOLDEN.glob("encoder*/*/golden.json"))
    for directory in [*(GOLDEN / name for name in NAMES), *encoders]:
        assert export.main([str(directory), str(tmp_path / "model.bin"), "--dtype", "f32"]) == 0
        file = Checkpoint(str(tmp_path / "model.bin"))
        seen |= {*file.metadata, *(tensor.removeprefix("layers.0.") for tensor in file.tensors)}
    # In test_encoder_decoders.py and test_refusals.py, made for the test.
    elsewhere = {"model.languages", "model.most", "model.pooling_dimensions"}
    assert (known | tensors) - seen == elsewhere | test_classes.KEYS


@in_part(1)
@pytest.mark.parametrize("name", NAMES)
def test_logits_and_greedy_tokens_are_those_of_transformers(name, tmp_path, run):
    binary = tmp_path / "model.bin"
    assert export.main([str(GOLDEN / name), str(binary), "--dtype", "f32"]) == 0
    error, greedy, expected = measure(GOLDEN / name, binary, run)
    assert error <= TOLERANCE
    assert greedy == expected


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_has_the_same_bits_however_it_is_cut(name, tmp_path, run):
    """Prompt and continuation in one piece, by pieces, and token by token; long enough to leave a window's ring."""
    binary, golden = tmp_path / "model.bin", json.loads((GOLDEN / name / "golden.json").read_text())
    assert export.main([str(GOLDEN / name), str(binary), "--dtype", "f32"]) == 0
    ids = " ".join(map(str, golden["prompt"] + golden["greedy"]))
    found = []
    for chunk, threads in ((160, 1), (64, 3), (7, 2), (1, 1)):
        done = run(
            binary, "--tokens", ids, "-b", chunk, "-t", threads, "--logits", tmp_path / "logits"
        )
        assert done.returncode == 0, done.stderr
        found.append((tmp_path / "logits").read_bytes())
    assert found[1:] == found[:1] * 3


# ---- what a config must not ask for --------------------------------------------------------------------------------------

ACTIVATIONS = (
    "hidden_act",
    "hidden_activation",
    "activation_function",
    "activation",
    "mlp_hidden_act",
    "mamba_hidden_act",
)
# What other families than the one at hand may have, turned on.
FLAGS = dict(
    use_qk_norm=True,
    qk_layernorm=True,
    attn_output_gate=True,
    attention_sinks=True,
    attn_logit_softcapping=50.0,
    final_logit_softcapping=30.0,
    clip_qkv=8.0,
    alibi=True,
    use_bidirectional_attention=True,
    use_cla=True,
    use_mrope=True,
    position_embedding_type="relative_key",
    attention_multiplier=0.5,
    residual_multiplier=0.5,
    logit_scale=0.5,
    query_pre_attn_scalar=64,
    no_rope_layer_interval=4,
    num_local_experts=8,
    is_encoder_decoder=True,
    quantization_config=dict(quant_method="gptq"),
    attention_chunk_size=64,
    rotary_pct=0.125,
    n_shared_experts=2,
)
# The families that read such a key; what follows from it is their business.
READ = {
    "use_qk_norm": ("cohere", "hunyuan_v1_dense", "llama4_text"),
    "qk_layernorm": ("phi", "stablelm"),
    "attn_logit_softcapping": ("gemma2", "gemma3_text"),
    "final_logit_softcapping": ("gemma2", "gemma3_text", "gemma4_text"),
    "clip_qkv": ("olmo",),
    "alibi": ("falcon",),
    "attention_multiplier": ("granite_swa", "granitemoe", "granitemoehybrid"),
    "residual_multiplier": ("granite_swa", "granitemoe", "granitemoehybrid"),
    "logit_scale": ("cohere",),
    "num_local_experts": ("gpt_oss", "granitemoe", "granitemoehybrid", "llama4_text", "phimoe"),
    "n_shared_experts": ("deepseek_v2", "deepseek_v3"),
    "attention_chunk_size": ("llama4_text",),
    "attn_output_gate": ("qwen3_next",),
    "query_pre_attn_scalar": ("gemma2", "gemma3_text"),
    "no_rope_layer_interval": ("llama4_text", "smollm3"),
    "rotary_pct": ("gpt_neox",),
    "use_bidirectional_attention": ("gemma3_text",),
}


def refusal(name: str, **changes) -> str:
    """What the exporter says to a golden checkpoint whose config is changed, "" if it takes it."""
    directory = GOLDEN / name
    config = {**json.loads((directory / "config.json").read_text()), **changes}
    tensors = {}
    for file in directory.glob("*.safetensors"):
        tensors |= open_safetensors(str(file))
    try:
        canonical(config, tensors)
    except ExportError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", NAMES)
def test_what_a_config_must_not_ask_for(name):
    config = json.loads((GOLDEN / name / "config.json").read_text())
    assert refusal(name) == ""
    for key in ACTIVATIONS:
        unread = (
            config["model_type"] in ("gemma2", "gemma3_text", "gpt_oss") and key == "hidden_act"
        )
        if config.get(key) and not unread:
            assert f"{key} is 'mish', which is not supported" in refusal(name, **{key: "mish"})
    for key in ("rope_parameters", "rope_scaling"):
        rope = config.get(key)
        for part in [k for k in rope or {} if k.endswith("_attention")] or [None]:
            spiral = {**(rope[part] if part else rope or {}), "rope_type": "spiral"}
            if rope:
                said = refusal(name, **{key: {**rope, part: spiral} if part else spiral})
                assert "rope_type is 'spiral', which is not supported" in said
    for key, value in FLAGS.items():
        if config["model_type"] not in READ.get(key, ()):
            assert key in refusal(name, **{key: value}), f"{key} = {value!r} is taken"
    assert "attention_of_tomorrow (True) is unknown" in refusal(name, attention_of_tomorrow=True)
    spelling = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    assert "rope_of_tomorrow" in refusal(
        name, **{spelling: {**(config.get(spelling) or {}), "rope_of_tomorrow": 1}}
    )
