"""What --info says of each kind of layer."""

from __future__ import annotations

import test_missing
from test_refusals import D, HEADS, NO_KEYS, floats, in_layers, ints, matrix, vector

import checkpoints

HEADS_LINE = "2 query heads, 1 KV heads (MQA), head_dim 8, attention scale 0.3"
FFN = "; feed-forward 28, SiLU, gated"
MAMBA = "Mamba-2, 2 heads of 4 in 1 groups, states of 5, convolution over 3 tokens"
MLA = "2 query heads of 6 + 4 over a latent of 4 + 4 (MLA), values of 5, attention scale 0.3"
EXPERTS = "2 of 4 experts of 10, SiLU"
PLAIN = f"{HEADS_LINE}, rope set 0"
KINDS = {
    "parallel": f"{PLAIN}{FFN}; attention and feed-forward in parallel",
    "plain FFN": f"{PLAIN}; feed-forward 28, SiLU",
    "xIELU": f"{PLAIN}; feed-forward 28, xIELU",
    "clamped SwiGLU": f"{PLAIN}; feed-forward 28, clamped SwiGLU, gated",
    "latent": f"{MLA}, rope set 0{FFN}",
    "short convolution": f"convolution over 3 tokens{FFN}",
    "gated DeltaNet": "gated DeltaNet, 1 key heads of 6, 2 value heads of 4, convolution over 3 tokens"
    + FFN,
    "experts only": f"{PLAIN}; {EXPERTS}, gated",
    "experts and a shared one": f"{PLAIN}{FFN}, for all tokens; {EXPERTS}, gated",
    "Mamba-2": MAMBA + FFN,
    "Mamba-1": "Mamba-1, 70 channels, states of 5, steps of rank 3, convolution over 3 tokens"
    + FFN,
    "RG-LRU": "RG-LRU, 2 heads of 4, convolution over 3 tokens" + FFN,
    "Mamba-2 beside attention": f"{PLAIN}; beside it {MAMBA}{FFN}",
    "all norms": f"{HEADS_LINE}, q and k normalised, sinks, rope set 0, biases of distances up to 2"
    + FFN,
}
WHOLE = {"attn_q_norm": vector(16), "attn_k_norm": vector(8)}
MORE = [  # of attention: knobs, tensors of each layer, and what they add
    ({"layer.softcap": floats(2)}, {}, f"{HEADS_LINE}, softcap 2, rope set 0{FFN}"),
    ({"layer.clip": floats(0.5)}, {}, f"{HEADS_LINE}, clip 0.5, rope set 0{FFN}"),
    (
        {"layer.qk_norm": ints(1)},
        WHOLE,
        f"{HEADS_LINE}, q and k normalised as wholes, rope set 0{FFN}",
    ),
    ({}, {"attn_slopes": vector(HEADS)}, f"{HEADS_LINE}, ALiBi, rope set 0{FFN}"),
    ({}, {"attn_gate": matrix(HEADS, D)}, f"{HEADS_LINE}, output gated, rope set 0{FFN}"),
    ({"layer.window": ints(3)}, {}, f"{PLAIN}, window 3{FFN}"),
    ({"layer.mask": ints(1)}, {}, f"{PLAIN}, to both sides{FFN}"),
    ({"layer.topology": ints(2)}, {}, f"{PLAIN}{FFN}; norms of the sums"),
    ({"layer.topology": ints(3)}, {}, f"{PLAIN}{FFN}; norms of the stream itself"),
]


def layers(run, path, meta: dict, tensors: dict) -> list[str]:
    path.write_bytes(checkpoints.build(meta, tensors))
    done = run(path, "--info")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.decode().splitlines()
    return [line.split(maxsplit=2)[2] for line in lines if line.startswith("layer")]


def test_every_kind_of_layer(tmp_path, run):
    parts = test_missing.of_parts()
    for name, line in KINDS.items():
        assert layers(run, tmp_path / "x.bin", *parts[name]) == [line], name
    meta, tensors = parts["attention"]
    for knobs, more, line in MORE:
        found = layers(run, tmp_path / "x.bin", {**meta, **knobs}, {**tensors, **in_layers(more)})
        assert found == [line]
    shared = {name: t for name, t in tensors.items() if name not in NO_KEYS}
    found = layers(run, tmp_path / "x.bin", {**meta, "layer.kv_source": ints(-1, 0)}, shared)
    assert found == [PLAIN + FFN, f"{PLAIN}, keys and values of layer 0{FFN}"]
