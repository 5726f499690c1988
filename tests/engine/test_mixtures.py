"""Experts, latent attention, and mixers other than attention: what the cache costs, which weights
are read, and that the bits depend on nothing but the tokens."""

from __future__ import annotations

import json
from pathlib import Path

import checkpoints
import numpy as np
import pytest
from conftest import ALL, ROOT, in_part
from test_hashes import instruction_sets

import export

GOLDEN = ROOT / "tests" / "golden"
MIXTURES = [
    "deepseek_v2",
    "deepseek_v3",
    "falcon_h1-norm",
    "falcon_mamba",
    "gemma4-experts",
    "gpt_oss",
    "granitemoe",
    "granitemoehybrid-mamba",
    "lfm2_moe",
    "lfm3",
    "kimi_linear",
    "llama4",
    "mamba2",
    "nemotron_h",
    "olmo_hybrid",
    "phimoe",
    "qwen2_moe",
    "qwen3_next",
    "recurrent_gemma",
    "zamba2",
]
Q4 = 3


def exported(name: str, out: Path, dtype: str = "f32") -> Path:
    """A golden checkpoint as a file for ./run."""
    binary = out / f"{name}.{dtype}"
    assert export.main([str(GOLDEN / name), str(binary), "--dtype", dtype]) == 0
    return binary


def prompt_of(name: str) -> list[int]:
    return json.loads((GOLDEN / name / "golden.json").read_text())["prompt"]


def logits(run, binary: Path, tokens: list[int], *options, isa: str | None = None) -> bytes:
    """Of all tokens, as they are in the file."""
    out = binary.with_suffix(".logits")
    env = {"HEADS_ISA": isa} if isa else {}
    done = run(binary, "--tokens", " ".join(map(str, tokens)), "--logits", out, *options, env=env)
    assert done.returncode == 0, done.stderr
    return out.read_bytes()


@in_part(2)
@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("dtype", ["f32", "q8"])
def test_same_bits_for_any_chunk_thread_count_and_instruction_set(name, dtype, tmp_path, run):
    binary, prompt = exported(name, tmp_path, dtype), prompt_of(name)
    for kv in ("f32", "f16", "q8", "q4"):
        cache = ("-ctk", kv, "-ctv", kv)
        want = logits(run, binary, prompt, *cache, "-b", 64, "-t", 1)
        for chunk, threads in ((1, 1), (7, 2), (96, 3)):
            assert logits(run, binary, prompt, *cache, "-b", chunk, "-t", threads) == want, (
                f"-b {chunk} -t {threads}"
            )
        for isa in instruction_sets():
            assert logits(run, binary, prompt, *cache, "-b", 9, isa=isa) == want, f"HEADS_ISA={isa}"


# ---- latent attention ----


def v2_lite_cache() -> bytes:
    """A checkpoint of zeros with the cache of DeepSeek-V2-Lite: 27 layers, 16 heads of 128 + 64 and
    128, latent 512 + 64."""
    layers, heads, rank, rope, nope, value, d = 27, 16, 512, 64, 128, 128, 16
    panel = {
        64: 256 * 2 + 64,
        16: 256 + 64,
        nope: 256 * 4 + 128,
        rank: 256 * 16 + 512,
        heads * value: 256 * 64 + 2048,
    }

    def zeros(n_out: int, n_in: int) -> checkpoints.Tensor:
        return checkpoints.Tensor(Q4, n_out, n_in, bytes(-(-n_out // 16) * panel[n_in]))

    def ints(value: int) -> checkpoints.Meta:
        return checkpoints.Meta(checkpoints.I32, 1, np.array([value], "<i4").tobytes())

    def floats(*values: float) -> checkpoints.Meta:
        return checkpoints.Meta(
            checkpoints.F32_META, len(values), np.array(values, "<f4").tobytes()
        )

    knobs = dict(
        n_heads=heads,
        n_kv_heads=1,
        head_dim=rank + rope,
        rope=0,
        window=0,
        topology=0,
        d_ff=d,
        ffn=1,
        act=0,
        latent=rank,
        n_nope=nope,
        n_value=value,
    )
    meta = {f"layer.{key}": ints(value) for key, value in knobs.items()}
    knobs = dict(vocab_size=32, n_embd=d, n_layers=layers, context=4096, norm=0)
    meta |= {f"model.{key}": ints(value) for key, value in knobs.items()}
    meta |= {"layer.attn_scale": floats(0.1), "model.norm_eps": floats(1e-6)}
    meta["model.rope.0.inv_freq"] = floats(*[1] * (rope // 2))
    tensors = {"embed": zeros(32, d), "norm": checkpoints.vector(np.ones(d))}
    for i in range(layers):
        layer = {
            "attn_norm": checkpoints.vector(np.ones(d)),
            "attn_q": zeros(heads * (nope + rope), d),
            "attn_k": zeros(rank + rope, d),
            "attn_latent_norm": checkpoints.vector(np.ones(rank)),
            "attn_k_up": zeros(heads * rank, nope),
            "attn_v_up": zeros(heads * value, rank),
            "attn_o": zeros(d, heads * value),
            "ffn_norm": checkpoints.vector(np.ones(d)),
            **{f"ffn_{kind}": zeros(d, d) for kind in ("gate", "up", "down")},
        }
        tensors |= {f"layers.{i}.{name}": tensor for name, tensor in layer.items()}
    return checkpoints.build(meta, tensors)


def test_latent_attention_caches_the_latent_and_the_rope_key(tmp_path, run):
    binary = tmp_path / "v2lite.bin"
    binary.write_bytes(v2_lite_cache())
    report = json.loads(run(binary, "--kv", "--json", "-ctk", "f16", "-ctv", "f16").stdout)
    rows = {row["scheme"]: row for row in report["rows"]}
    assert rows["MLA"]["own"] and rows["MLA"]["bytes_per_token"] == 27 * (512 + 64) * 2 == 31104
    assert (
        not rows["MHA"]["own"]
        and rows["MHA"]["bytes_per_token"] == 27 * 16 * (192 + 128) * 2 == 276480
    )
    assert rows["MLA"]["bytes_at_2048"] == 2048 * 31104
    assert report["reserved_bytes"] == 4096 * 31104
    assert (
        256 * 31104 <= report["resident_bytes"] < 256 * 31104 + 27 * 2 * 4096
    )  # as many pages as tokens, and their ends
    if ALL:  # since it runs a text once more
        text = run(binary, "--kv").stdout.decode()
        assert "31,104" in text and "276,480" in text and "NOT" not in text


@pytest.mark.parametrize(("dtype", "size"), [("f32", 4), ("f16", 2)])
def test_cache_of_a_small_latent_model(dtype, size, tmp_path, run):
    report = json.loads(
        run(
            exported("deepseek_v3", tmp_path), "--kv", "--json", "-ctk", dtype, "-ctv", dtype
        ).stdout
    )
    own = next(row for row in report["rows"] if row["own"])
    assert own["bytes_per_token"] == 2 * (20 + 6) * size


# ---- states ----


def test_states_count_and_do_not_grow(tmp_path, run):
    binary = exported("qwen3_next", tmp_path)
    report = json.loads(run(binary, "--kv", "--json", "-ctk", "f32", "-ctv", "f32").stdout)
    state = (3 * (2 * 2 * 10 + 6 * 9) + 6 * 10 * 9 + 15) // 16 * 16 * 4
    own = next(row for row in report["rows"] if row["own"])
    assert report["state_bytes"] == state
    assert own["bytes_per_token"] == 2 * 2 * 16 * 4  # of the one layer with attention
    assert own["bytes_at_2048"] == 2048 * own["bytes_per_token"] + state
    text = run(binary, "--kv").stdout.decode()
    assert f"state: {state:,} bytes" in text and "NOT" not in text


def mixed_model(tokenizer: Path) -> bytes:
    """A random model of three layers: a short convolution, a gated DeltaNet, attention; with a
    tokenizer."""
    meta, tensors = checkpoints.parse(checkpoints.random_model(tokenizer=tokenizer, n_embd=40))
    rng = np.random.default_rng(3)
    d, taps, heads, width = 40, 4, 3, 8

    def ints(*values: int) -> checkpoints.Meta:
        return checkpoints.Meta(checkpoints.I32, len(values), np.array(values, "<i4").tobytes())

    def matrix(n_out: int, n_in: int) -> checkpoints.Tensor:
        return checkpoints.matrix(rng.normal(0, n_in**-0.5, (n_out, n_in)))

    meta["layer.mixer"], meta["layer.taps"] = ints(1, 2, 0), ints(taps, taps, 0)
    for key, value in dict(k_heads=1, v_heads=heads, k_dim=width, v_dim=width).items():
        meta[f"layer.delta_{key}"] = ints(value)
    for name in [
        name
        for name in tensors
        if name.startswith(("layers.0.attn_", "layers.1.attn_")) and "norm" not in name
    ]:
        del tensors[name]
    channels = 2 * width + heads * width
    tensors |= {
        "layers.0.mix_in": matrix(3 * d, d),
        "layers.0.conv": checkpoints.vector(rng.normal(0, 0.5, taps * d)),
        "layers.0.mix_out": matrix(d, d),
        "layers.1.mix_in": matrix(channels, d),
        "layers.1.conv": checkpoints.vector(rng.normal(0, 0.5, taps * channels)),
        "layers.1.mix_out": matrix(d, heads * width),
        "layers.1.delta_gate": matrix(heads * width, d),
        "layers.1.delta_beta": matrix(heads, d),
        "layers.1.delta_decay": matrix(heads, d),
        "layers.1.delta_rate": checkpoints.vector(np.full(heads, 0.02)),
        "layers.1.delta_norm": checkpoints.vector(np.ones(width)),
    }
    return checkpoints.build(meta, tensors)


def test_a_new_text_begins_without_a_state(tmp_path, run, stories):
    """--ppl runs one window after the other: windows of the same tokens must all be as surprising
    as the first."""
    binary, text = tmp_path / "mixed.bin", tmp_path / "text"
    binary.write_bytes(mixed_model(stories))
    ids = run(
        binary, "--tokenize", "-p", "One sunny day"
    ).stdout.split()  # the prefix and the text's

    def surprise(times: int) -> str:
        text.write_text("One sunny day" * times)
        assert len(run(binary, "--tokenize", "-f", text).stdout.split()) == 1 + times * (
            len(ids) - 1
        )
        done = run(binary, "--ppl", text, "-c", len(ids))
        assert done.returncode == 0, done.stderr
        return done.stdout.decode().split()[1]

    assert surprise(1) == surprise(3)


# ---- experts ----


@pytest.mark.parametrize(
    ("name", "n", "top_k"),
    [("gemma4-experts", 5, 2), ("granitemoe", 6, 2), ("qwen2_moe", 7, 3), ("deepseek_v3", 8, 3)],
)
def test_decode_reads_the_chosen_experts_only(name, n, top_k, tmp_path, run):
    """A NaN in an expert's weights shows in the logits of one token, as an error, if they are
    read."""
    binary = exported(name, tmp_path)
    data = binary.read_bytes()
    from exporter.checkpoint import Checkpoint

    _, rows, cols, offset, size = Checkpoint(str(binary)).tensors["layers.1.expert_up"]
    bytes_each = 2 * 64 * cols  # 18 rows are two panels of f32
    assert rows == 32 * (n - 1) + 18 and size == n * bytes_each
    read = set()
    for expert in range(n):
        end = min((expert + 1) * bytes_each, size)
        poisoned = bytearray(data)
        poisoned[offset + expert * bytes_each : offset + end] = b"\xff" * (
            end - expert * bytes_each
        )
        binary.write_bytes(poisoned)
        done = run(binary, "--tokens", "5", "--logits", tmp_path / "logits")
        if done.returncode != 0:
            assert "the logits of position 0 are no finite numbers" in done.stderr
            read.add(expert)
    assert len(read) == top_k


@pytest.mark.parametrize(
    ("name", "expert"),
    [
        ("granitemoe", 4 * (2 * 2 * 16 * 36 + 3 * 16 * 18)),  # gate and up of 2 panels, down of 3
        ("gpt_oss", 4 * 3 * (32 * 32 + 32)),  # with biases
    ],
)
def test_weights_read_per_token_leave_out_idle_experts(name, expert, tmp_path, run):
    binary = exported(name, tmp_path)
    from exporter.checkpoint import Checkpoint

    tensors = Checkpoint(str(binary)).tensors
    stacks = sum(size for name, (_, _, _, _, size) in tensors.items() if ".expert_" in name)
    total = sum(size for _, _, _, _, size in tensors.values()) - tensors["embed"][-1]
    idle = 2 * 4 * expert  # 2 layers, 4 of 6 experts
    assert stacks == 2 * 6 * expert
    assert json.loads(run(binary, "--info", "--json").stdout)["weight_bytes"] == total - idle


# ---- what --bench counts, by the families' papers and the golden models' configs ----


def attention(d: int, heads: int, kv_heads: int, head_dim: int) -> int:
    """Multiply-adds of a token with q, k, v and o."""
    return 2 * d * head_dim * (heads + kv_heads)


LATENT = (
    36 * 22 + 22 * 4 * 16 + 36 * (20 + 6) + 4 * (10 * 20 + 20 * 14) + 4 * 14 * 36
)  # q down and up, kv, heads, o
QWEN_EXPERTS = 36 * (
    7 + 3 * 3 * 18 + 3 * 22 + 1
)  # router, 3 of 7 experts, the one for all tokens and its gate
# name: multiply-adds of a token without the classifier, bytes of cache by position and of states
COUNTED = {
    "llama": (2 * (attention(40, 4, 4, 10) + 3 * 40 * 54), 2 * 4 * (10 + 16) * 2, 0),
    "qwen2_moe": (2 * attention(36, 6, 3, 6) + 3 * 36 * 40 + QWEN_EXPERTS, 2 * 3 * (6 + 16) * 2, 0),
    "deepseek_v3": (2 * LATENT + 3 * 36 * 40 + 36 * (8 + 3 * 3 * 18 + 3 * 2 * 18), 2 * 26 * 2, 0),
    "lfm2_moe": (
        attention(36, 6, 2, 6) + 3 * 36 * 40 + 4 * 36 * 36 + 36 * (7 + 3 * 3 * 18),
        2 * (6 + 16) * 2,
        4 * 36 * 4,
    ),
    # the delta rule's input, gate, beta, decay and output; attention has a gate as wide as q
    "qwen3_next": (
        36 * (94 + 54 + 6 + 6 + 54) + attention(36, 6, 2, 16) + 36 * 6 * 16 + 2 * QWEN_EXPERTS,
        2 * (16 + 16) * 2,
        4 * (3 * 94 + 6 * 10 * 9 + 10),
    ),
    # q, k and v read twice the width, in two layers of three; Mamba-2 is in all of them
    "zamba2": (
        2 * (attention(20, 2, 2, 20) + 3 * 20 * 40 + 3 * 20 * 30) + 3 * 20 * (72 + 40 + 4 + 40),
        2 * 2 * (20 + 32) * 2,
        3 * 4 * (2 * 72 + 4 * 10 * 8),
    ),
    # Mamba-2's input, gate, steps and output, beside attention in every layer
    "falcon_h1-norm": (
        2 * (36 * (82 + 42 + 6 + 42) + attention(36, 6, 2, 10) + 3 * 36 * 50),
        2 * 2 * (10 + 16) * 2,
        2 * 4 * (3 * 82 + 6 * 10 * 7 + 6),
    ),
}


# A run of --bench takes seconds, so `make test` tries two models; a step of CI tries all of them.
QUICK = ("deepseek_v3", "falcon_h1-norm")


@pytest.mark.parametrize("name", COUNTED)
def test_bench_counts_what_a_token_needs(name, tmp_path, run):
    if name not in QUICK and not ALL:
        pytest.skip("takes seconds: a step of CI runs it with HEADS_TESTS=all")
    binary = exported(name, tmp_path, "q8")
    report = json.loads(run(binary, "--bench", "--json", "-t", 1).stdout)
    info = json.loads(run(binary, "--info", "--json").stdout)
    products, per_position, states = COUNTED[name]
    assert report["dtype"] == "q8"
    for row in report["prefill"]:
        classifier = info["vocab_size"] * info["n_embd"] / row["tokens"]  # for the last token
        assert row["gflop_s"] / row["tok_s"] * 1e9 == pytest.approx(
            2 * (products + classifier), rel=1e-4
        )
    for row in report["decode"]:
        cache = row["gb_s"] / row["tok_s"] * 1e9 - info["weight_bytes"] - states
        assert (
            (row["depth"] + 1) * per_position - 1 < cache < (row["depth"] + 16) * per_position + 1
        )


# ---- files that make no sense ----

BAD = [
    ("deepseek_v3", {"layer.top_k": 9}, "9 of 8 experts of width 18"),
    ("deepseek_v3", {"layer.top_k": 0}, "0 of 8 experts"),
    ("deepseek_v3", {"layer.top_k": 65}, "layer.top_k of layer 0 is 65, expected 0..64"),
    ("deepseek_v3", {"layer.d_expert": 0}, "experts of width 0"),
    ("deepseek_v3", {"layer.groups": 3}, "8 experts in 3 groups"),
    ("deepseek_v3", {"layer.top_groups": 5}, "in 4 groups, of which 5 are kept"),
    ("deepseek_v3", {"layer.top_groups": 1}, "leave no 3 to choose"),
    ("deepseek_v3", {"layer.d_ff": 0}, "d_ff is 0, and there are no experts"),
    ("deepseek_v3", {"layer.experts": 0}, "layer.top_k needs experts, which no layer has"),
    ("deepseek_v3", {"layer.experts": 12}, "tensor layers.0.router is missing"),
    ("deepseek_v3", {"layer.experts": [0, 12]}, "tensor layers.1.router: it is (8, 36)"),
    ("deepseek_v3", {"layer.d_expert": 17}, "tensor layers.1.expert_gate: it is (242, 36)"),
    ("deepseek_v3", {"layer.score": 3}, "layer.score of layer 0 is 3, expected 0..2"),
    ("deepseek_v3", {"layer.latent": 27}, "layer.latent 27 needs one KV head at least as long"),
    ("deepseek_v3", {"layer.n_kv_heads": 2}, "layer.latent 20 needs one KV head"),
    ("deepseek_v3", {"layer.n_heads": 256}, "layer.latent needs 1..255 heads"),
    (
        "deepseek_v3",
        {"layer.latent": 21},
        "rope set 0 rotates 6 elements, head_dim is 5 without the latent",
    ),
    ("deepseek_v3", {"layer.n_value": 15}, "tensor layers.0.attn_v_up: it is (62, 20)"),
    ("qwen3_next", {"layer.taps": 0}, "taps is 0, its mixer has a convolution"),
    ("qwen3_next", {"layer.delta_v_heads": 5}, "2 key heads of 10 and 5 value heads of 9"),
    ("qwen3_next", {"layer.delta_v_heads": 1 << 24}, "is 16777216, expected 0..16384"),
    ("qwen3_next", {"layer.delta_k_dim": 11}, "tensor layers.0.mix_in: it is (94, 36)"),
    ("qwen3_next", {"layer.mixer": 99}, "layer.mixer of layer 0 is 99, expected 0.."),
    ("mamba2", {"layer.ssm_groups": 4}, "6 heads of 12 in 4 groups"),
    ("mamba2", {"layer.ssm_state": 0}, "a state of 0"),
    ("mamba2", {"layer.ssm_heads": 4}, "tensor layers.0.mix_in: it is (112, 36)"),
    ("mamba2", {"layer.ssm_head_dim": 1 << 23}, "heads of Mamba exceed 16777216 numbers"),
    ("falcon_mamba", {"layer.ssm_heads": 2}, "Mamba-1 (layer.mixer 5) has 2 heads, expected 1"),
    ("falcon_mamba", {"layer.ssm_groups": 2}, "1 heads of 68 in 2 groups"),
    (
        "falcon_mamba",
        {"layer.ssm_state": 9},
        "it has 17 rows, expected the 3 columns of",
    ),
    ("falcon_mamba", {"layer.ssm_head_dim": 1 << 24}, "heads of Mamba exceed 16777216 numbers"),
    ("recurrent_gemma", {"layer.ssm_groups": 3}, "an RG-LRU (layer.mixer 6) has 3 groups"),
    ("recurrent_gemma", {"layer.ssm_state": 2}, "1 groups, a state of 2 and activation 2"),
    ("recurrent_gemma", {"layer.act": 6}, "activation 6, expected 1, 1 and 0..4"),
    ("mamba2", {"layer.d_ff": 4}, "tensor layers.0.ffn_up is missing"),
    ("mamba2", {"layer.norms": 5}, "d_ff is 0, and there are no experts"),
    ("mamba2", {"layer.topology": 1}, "layer.topology 1 needs one mixer and a feed-forward"),
    ("nemotron_h", {"layer.norms": 1}, "layer.mixer 4 has no norms, but layer.norms is 1"),
    ("nemotron_h", {"layer.mixer": 4}, "layer.taps of layer 0 needs a convolution"),
    ("falcon_h1-norm", {"layer.beside": 0}, "layer.taps needs a convolution, which no layer has"),
    (
        "falcon_h1-norm",
        {"layer.topology": 3},
        "layer.topology 3 needs one mixer and a feed-forward",
    ),
    ("bloom-normed", {"layer.topology": 4}, "layer 0: layer.topology 4 needs attention without"),
    ("bloom-normed", {"layer.topology": 5}, "layer.topology of layer 0 is 5, expected 0..4"),
    ("zamba2", {"layer.norms": [5, 1, 13]}, "and layer.norms 13, not 5"),
    ("zamba2", {"layer.topology": 4}, "layer 1: layer.topology 4 needs attention without"),
    ("zamba2", {"layer.topology": 0}, "tensor layers.0.attn_norm: it is f32 (1, 40)"),
    ("zamba2", {"layer.beside": 0}, "layer 0: layer.topology 4 needs attention without"),
    ("zamba2", {"layer.d_ff": 0}, "layer 0: d_ff is 0, and there are no experts"),
    ("falcon_h1-norm", {"layer.topology": 4}, "and layer.norms 13, not 5"),
    ("qwen3_next", {"layer.mixer": [1, 0]}, "delta_k_heads of layer 0 needs a gated delta rule"),
]


@pytest.mark.parametrize(("name", "changes", "said"), BAD)
def test_a_file_that_makes_no_sense_is_refused(name, changes, said, tmp_path, run):
    binary = exported(name, tmp_path)
    meta, tensors = checkpoints.parse(binary.read_bytes())
    for key, value in changes.items():
        assert key in meta
        values = np.atleast_1d(np.array(value, "<i4"))
        meta[key] = checkpoints.Meta(checkpoints.I32, len(values), values.tobytes())
    binary.write_bytes(checkpoints.build(meta, tensors))
    done = run(binary, "--tokens", "5", "-n", 1)
    assert done.returncode == 1 and said in done.stderr
