"""GGUF files with layers that guess next tokens, as llama.cpp's converter writes them, against the
same weights in Hugging Face's form."""

from __future__ import annotations

import json
import re
from pathlib import Path

import gguf
import gguf_files
import guess_layers
import numpy as np
import pytest
from conftest import ROOT
from safetensors.numpy import load_file, save_file

import export
from exporter.checkpoint import Checkpoint

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": False,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16, "first_k_dense_replace": 1}
EXPERTS |= {"n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5}
V3 = {
    "expert_count": 4,
    "expert_shared_count": 1,
    "expert_gating_func": 2,
    "leading_dense_block_count": 1,
    "expert_group_count": 1,
    "expert_group_used_count": 1,
    "expert_weights_norm": True,
    "expert_weights_scale": 2.5,
}
# By architecture: what config.json has beside the sizes, and the file beside what every file has.
MODELS = {
    "glm4moe": (
        {"model_type": "glm4_moe", "n_routed_experts": 4, "n_shared_experts": 1, **EXPERTS}
        | {"num_nextn_predict_layers": 1, "partial_rotary_factor": 0.5, "use_qk_norm": True},
        {**V3, "rope.dimension_count": 8},
    ),
    "exaone-moe": (
        {"model_type": "exaone_moe", "num_experts": 4, "num_shared_experts": 1, **EXPERTS}
        | {"layer_types": ["full_attention"] * 2, "sliding_window": None},
        {**V3, "expert_shared_feed_forward_length": 16},
    ),
    "qwen35": (
        {"model_type": "qwen3_5_text", "full_attention_interval": 1, "mtp_num_hidden_layers": 1}
        | {"partial_rotary_factor": 0.25, "linear_num_key_heads": 2, "linear_num_value_heads": 2}
        | {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4},
        {"full_attention_interval": 1, "ssm.conv_kernel": 4, "ssm.state_size": 8}
        | {"ssm.group_count": 2, "ssm.time_step_rank": 2, "ssm.inner_size": 16}
        | {"rope.dimension_count": 4, "rope.dimension_sections": [1, 1, 0, 0]},
    ),
}
BIASES = {
    "glm4_moe": "gate.e_score_correction_bias",
    "exaone_moe": "e_score_correction_bias",
}
# Which this version of the gguf package has no names for.
QWEN35 = {
    "eh_proj": "nextn.eh_proj",
    "enorm": "nextn.enorm",
    "hnorm": "nextn.hnorm",
    "shared_head.norm": "nextn.shared_head_norm",
}


def directory_of(arch: str, out: Path, own_head: bool = False) -> Path:
    config = {**SIZES, **MODELS[arch][0]}
    kind, random, tensors = config["model_type"], np.random.default_rng(1), {}

    def add(name: str, *shape: int) -> None:
        tensors[name] = random.normal(0, 0.2, shape).astype(np.float32)

    wide = 2 if kind == "qwen3_5_text" else 1  # q and its gate
    for i in range(2):
        layer = f"model.layers.{i}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            add(f"{layer}{norm}.weight", 32)
        for part, rows in (("q", 64 * wide), ("k", 32), ("v", 32)):
            add(f"{layer}self_attn.{part}_proj.weight", rows, 32)
        add(f"{layer}self_attn.o_proj.weight", 32, 64)
        for part in "qk":
            add(f"{layer}self_attn.{part}_norm.weight", 16)
        sparse = i and "first_k_dense_replace" in config
        mlps = {"mlp": 48} if not sparse else {"mlp.shared_experts": 16}
        mlps |= {f"mlp.experts.{e}": 16 for e in range(4)} if sparse else {}
        for mlp, width in mlps.items():
            for part in ("gate", "up"):
                add(f"{layer}{mlp}.{part}_proj.weight", width, 32)
            add(f"{layer}{mlp}.down_proj.weight", 32, width)
        if sparse:
            add(f"{layer}mlp.gate.weight", 4, 32)
            add(f"{layer}mlp.{BIASES[kind]}", 4)
    add("model.embed_tokens.weight", 64, 32)
    add("model.norm.weight", 32)
    add("lm_head.weight", 64, 32)
    out.mkdir()
    (out / "config.json").write_text(json.dumps(config))
    save_file(tensors, out / "model.safetensors")
    guess_layers.add_guesses(out)
    if own_head:
        tensors = load_file(out / "model.safetensors")
        add("model.layers.2.shared_head.head.weight", 64, 32)
        add("model.layers.2.embed_tokens.weight", 64, 32)
        save_file(tensors, out / "model.safetensors")
    return out


def converted(arch: str, directory: Path, out: Path) -> Path:
    """As the converter does: mtp's modules become those of a layer behind the text's."""
    config = json.loads((directory / "config.json").read_text())
    around = dict(zip(guess_layers.MTP, ("eh_proj", "enorm", "hnorm", "shared_head.norm")))
    tensors = {}
    for name, w in load_file(directory / "model.safetensors").items():
        module, _, end = name.rpartition(".")
        if name.startswith("mtp.layers.0."):
            name = name.replace("mtp.layers.0", "model.layers.2")
        elif module in around:
            name = f"model.layers.2.{around[module]}.{end}"
        name = re.sub(
            r"mlp\.(gate\.)?e_score_correction_bias", "mlp.gate.e_score_correction.bias", name
        )
        if arch == "qwen35" and name.endswith("norm.weight"):
            w = w + np.float32(1)
        if arch == "qwen35":
            name = re.sub(
                rf"model\.layers\.2\.({'|'.join(QWEN35)})\.",
                lambda m: f"blk.2.{QWEN35[m[1]]}.",
                name,
            )
        tensors[name] = w
    out.mkdir()
    config |= {"num_hidden_layers": 3, "model_type": arch}
    for key in ("layer_types", "n_routed_experts", "num_experts"):
        config.pop(key, None)
    (out / "config.json").write_text(json.dumps(config))
    save_file(tensors, out / "model.safetensors")
    keys = {**MODELS[arch][1], "nextn_predict_layers": 1}
    path = out / "x.gguf"
    gguf_files.convert(out, path, change={f"{arch}.{key}": value for key, value in keys.items()})
    return path


# Only NextN's layout has places for an embedding and an output of its own.
@pytest.mark.parametrize(
    ("arch", "own_head"), [*((arch, False) for arch in MODELS), ("glm4moe", True)]
)
def test_guesses_of_a_gguf(arch, own_head, tmp_path):
    """Tensors and knobs are those of the Hugging Face export."""
    directory = directory_of(arch, tmp_path / "hf", own_head)
    path = converted(arch, directory, tmp_path / "gguf")
    for source, out in ((directory, "hf.bin"), (path, "gguf.bin")):
        assert export.main([str(source), str(tmp_path / out), "--dtype", "f32"]) == 0
    theirs, ours = (Checkpoint(str(tmp_path / name)) for name in ("hf.bin", "gguf.bin"))
    assert ours.metadata["model.guess_layers"] == 1
    assert ours.tensors.keys() == theirs.tensors.keys()
    assert ("guess_output" in ours.tensors) == ("guess_embed" in ours.tensors) == own_head
    for name in ours.tensors:
        same = np.array_equal if arch != "qwen35" else np.allclose  # (1 + w) - 1 is rounded
        assert same(ours.tensor(name), theirs.tensor(name)), name
    a, b = (
        {k: v for k, v in file.metadata.items() if not k.startswith("info.")}
        for file in (ours, theirs)
    )
    assert a.keys() == b.keys() and all(np.allclose(a[key], b[key]) for key in a)


def test_a_gguf_without_its_guesses(tmp_path, capsys):
    """By wish, or since a tensor is missing."""
    directory = directory_of("glm4moe", tmp_path / "hf")
    path = converted("glm4moe", directory, tmp_path / "gguf")
    out = tmp_path / "x.bin"
    assert export.main([str(path), str(out), "--no-guesses"]) == 0
    assert "model.guess_layers" not in Checkpoint(str(out)).metadata
    tensors = load_file(directory / "model.safetensors")
    del tensors["model.layers.2.hnorm.weight"]
    save_file(tensors, directory / "model.safetensors")
    path = converted("glm4moe", directory, tmp_path / "damaged")
    capsys.readouterr()
    assert export.main([str(path), str(out)]) == 0
    assert "left out: the checkpoint lacks the tensor" in capsys.readouterr().err
    assert "model.guess_layers" not in Checkpoint(str(out)).metadata


def nemotron(out: Path) -> Path:
    """Four layers of the golden model, where a GGUF has either networks or experts, and two that guess."""
    config = json.loads((ROOT / "tests/golden/nemotron_h/config.json").read_text())
    chosen, tensors = (0, 5, 2, 4), {}
    for name, w in load_file(ROOT / "tests/golden/nemotron_h/model.safetensors").items():
        layer = re.match(r"backbone\.layers\.(\d+)(.*)", name)
        if layer and int(layer[1]) in chosen:
            name = f"backbone.layers.{chosen.index(int(layer[1]))}{layer[2]}"
        if not layer or int(layer[1]) in chosen:
            tensors[name] = w
    kinds = [config["layers_block_type"][i] for i in chosen]
    out.mkdir()
    (out / "config.json").write_text(json.dumps(config | {"layers_block_type": kinds}))
    save_file(tensors, out / "model.safetensors")
    guess_layers.add_guesses(out)
    return out


NEMOTRON = {
    "embeddings": "token_embd",
    "norm_f": "output_norm",
    "lm_head": "output",
    "norm": "attn_norm",
    "mixer.in_proj": "ssm_in",
    "mixer.conv1d": "ssm_conv1d",
    "mixer.dt_bias": "ssm_dt.bias",
    "mixer.A_log": "ssm_a",
    "mixer.D": "ssm_d",
    "mixer.norm": "ssm_norm",
    "mixer.out_proj": "ssm_out",
    "mixer.q_proj": "attn_q",
    "mixer.k_proj": "attn_k",
    "mixer.v_proj": "attn_v",
    "mixer.o_proj": "attn_output",
    "mixer.gate": "ffn_gate_inp",
    "mixer.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mixer.shared_experts.up_proj": "ffn_up_shexp",
    "mixer.shared_experts.down_proj": "ffn_down_shexp",
    "mixer.experts.up_proj": "ffn_up_exps",
    "mixer.experts.down_proj": "ffn_down_exps",
    "enorm": "nextn.enorm",
    "hnorm": "nextn.hnorm",
    "eh_proj": "nextn.eh_proj",
    "final_layernorm": "nextn.shared_head_norm",
}


def folded(directory: Path) -> dict[str, np.ndarray]:
    """As llama.cpp's converter: a layer of attention and experts behind the text's four."""
    found, stacks = {}, {}
    for name, w in load_file(directory / "model.safetensors").items():
        name, suffix = re.fullmatch(r"(.*?)(\.weight|\.bias)?", name).groups()
        match = re.fullmatch(r"(?:backbone|mtp)\.layers\.(\d)\.(.*)", name)
        block = "" if not match else f"blk.{4 if name.startswith('mtp') else match[1]}."
        part = match[2] if match else name.replace("backbone.", "")
        expert = re.fullmatch(r"mixer\.experts\.(\d)(\..*)", part)
        if expert:
            stacks.setdefault(f"{block}{NEMOTRON['mixer.experts' + expert[2]]}.weight", []).append(
                w
            )
            continue
        stored = NEMOTRON[part]
        if name == "mtp.layers.1.norm":
            stored = "ffn_norm"
        if part == "mixer.A_log":
            w = -np.exp(w).reshape(-1, 1)
        if part == "mixer.D":
            w = w.reshape(-1, 1)
        if part == "mixer.conv1d":
            w = w.squeeze(1) if suffix == ".weight" else w
        if part == "mixer.norm":
            w = w.reshape(2, -1)
        found[block + stored + (suffix or "")] = w
    return found | {name: np.stack(parts) for name, parts in stacks.items()}


def test_guesses_of_nemotron(tmp_path):
    """Two layers, which llama.cpp keeps in one."""
    directory, path = nemotron(tmp_path / "hf"), tmp_path / "x.gguf"
    c = json.loads((directory / "config.json").read_text())
    writer = gguf.GGUFWriter(str(path), "nemotron_h_moe")
    values = {
        "block_count": 5,
        "nextn_predict_layers": 1,
        "context_length": 192,
        "embedding_length": 36,
        "feed_forward_length": [0, 18, 0, 0, 18],
        "attention.head_count": 6,
        "attention.head_count_kv": [0, 0, 2, 0, 2],
        "attention.key_length": 10,
        "attention.value_length": 10,
        "attention.layer_norm_rms_epsilon": 1e-3,
        "attention.layer_norm_epsilon": 1e-3,
        "vocab_size": 61,
        "rope.freq_base": 10000.0,
        "rope.dimension_count": 10,
        "rope.scaling.finetuned": False,
        "ssm.conv_kernel": 4,
        "ssm.inner_size": 54,
        "ssm.state_size": 10,
        "ssm.time_step_rank": 6,
        "ssm.group_count": 2,
        "expert_feed_forward_length": 18,
        "expert_shared_feed_forward_length": 22,
        "expert_count": 8,
        "expert_shared_count": 1,
        "expert_used_count": 3,
        "expert_group_count": 4,
        "expert_group_used_count": c["topk_group"],
        "expert_weights_norm": True,
        "expert_weights_scale": 2.5,
        "expert_gating_func": 2,
    }
    for key, value in values.items():
        gguf_files.add(writer, f"nemotron_h_moe.{key}", value)
    for name, w in folded(directory).items():
        writer.add_tensor(name, np.ascontiguousarray(w, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    for source, out in ((directory, "hf.bin"), (path, "gguf.bin")):
        assert export.main([str(source), str(tmp_path / out), "--dtype", "f32"]) == 0
    theirs, ours = (Checkpoint(str(tmp_path / name)) for name in ("hf.bin", "gguf.bin"))
    assert ours.metadata["model.guess_layers"] == theirs.metadata["model.guess_layers"] == 2
    assert ours.tensors.keys() == theirs.tensors.keys()
    for name in ours.tensors:
        assert np.allclose(ours.tensor(name), theirs.tensor(name)), name
