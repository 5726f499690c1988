"""Every tensor and every entry of metadata, of every kind of layer, tokenizer and chat template, left
out or changed so that it does not fit: the refusal names it, or what it belongs to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tokenizer_texts as texts
from chat_templates import EXACT
from test_encoder_decoders import GOLDEN, exported
from test_refusals import (
    EXPERT_NORMS,
    KINDS,
    LONG,
    LONG_FREQ,
    NARROW_EMBEDDING,
    NO_KEYS,
    QUERY_RANK,
)
from test_refusals import CONTEXT, D, HEADS, floats, in_layers, ints, matrix, vector

import chats
import checkpoints
from checkpoints import F32_META, I32, U8, Meta, Tensor
from conftest import ALL, ROOT
from heads._native import HeadsError, calls

from exporter.tokenizers.files import tokenizer_metadata

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

# ---- models ----


def with_all(name: str, meta: dict, tensors: dict) -> tuple[dict, dict]:
    """A kind of test_refusals's with more in it."""
    k = KINDS[name]
    return {**k.meta, **meta}, {**k.tensors, **tensors}


# Two steps after the first token's state, a norm between them, and four labels.
CLASSES = (
    {
        "model.head": ints(0),
        "model.class_acts": ints(8, 9),
        "model.class_pooling": ints(3),
        "model.class_pad": ints(2),
        "model.class_after": ints(0),
        "model.class_scores": ints(1),
        "model.labels": Meta(U8, 7, b"aabbccc"),
        "model.labels.begin": ints(0, 2, 4, 4, 7),
    },
    {
        "classes.0": matrix(20, D),
        "classes.0.bias": vector(20),
        "classes.0.norm": vector(20),
        "classes.0.norm.bias": vector(20),
        "classes.1": matrix(4, 20),
    },
)


def of_parts() -> dict[str, tuple[dict, dict]]:
    """The kinds, and what they can have beside."""
    norms = {name: vector(D) for name in ("attn_post_norm", "ffn_post_norm")}
    others = {
        "attn_q_norm": vector(8),
        "attn_k_norm": vector(8),
        "attn_v_norm": vector(8),
        "attn_sub_norm": vector(16),
        "attn_sinks": vector(HEADS),
        "attn_relative": vector(HEADS * 5),
        "out_scale": vector(1),
        "ffn_sub_norm": vector(28),
    }
    rope = {**LONG, **LONG_FREQ, "model.rope.0.long_multiplier": floats(1.1)}
    q_temp = {"model.q_temp": floats(2, 3), "model.q_temp_length": ints(2)}
    q_temp |= {"model.q_temp_ahead": ints(1), "layer.q_temp": ints(1)}
    pooling = {f"model.pooling{key}": ints(1) for key in ("", "_unit", "_tokens")}
    positions = {"embed_pos": matrix(CONTEXT, D), "embed_norm": vector(D)}
    narrow = {"model.d_embed": ints(10), "model.head_act": ints(2)}
    return {
        **{name: (k.meta, k.tensors) for name, k in KINDS.items()},
        "all norms": with_all(
            "attention", {**rope, "layer.norms": ints(15)}, in_layers({**norms, **others})
        ),
        "head": with_all("attention", {**q_temp, **narrow}, NARROW_EMBEDDING),
        "pooled": with_all("LayerNorm", pooling, positions),
        "classes": with_all("LayerNorm", *CLASSES),
        "query rank": with_all("latent", {}, QUERY_RANK.tensors),
        "norms of experts": with_all("experts and a shared one", {}, in_layers(EXPERT_NORMS)),
    }


def of_files(folder: Path) -> dict[str, tuple[dict, dict]]:
    """Encoder-decoders, and tokenizers and chats beside a small model."""
    found, path = {}, folder / "x.bin"
    for name in ("bart", "t5"):
        found[name] = checkpoints.parse(exported(GOLDEN / name, path).read_bytes())
    for name in ("albert", "marian-pair", "mbart"):
        texts.write_model(path, tokenizer_metadata(str(ROOT / "tests/golden/unigram" / name)))
        meta, tensors = checkpoints.parse(path.read_bytes())
        pairs = {"tokenizer.between": ints(3), "tokenizer.second_type": ints(1)}
        found[f"tokenizer {name}"] = ({**meta, **pairs}, tensors)
    tiny = checkpoints.random_model(
        tokenizer=ROOT / "models/stories.bin", n_embd=8, n_layers=1, n_heads=1, n_kv_heads=1, d_ff=8
    )
    for name in ("thinking", "date"):
        chat = {**chats.metadata_of(EXACT[name], TOKENS), "chat.template": "x"}
        found[f"chat {name}"] = checkpoints.parse(chats.with_chat(tiny, chat))
    return found


# ---- the walk ----


def refusal(path: Path, meta: dict, tensors: dict) -> str:
    """What the library says of the file; "" if it takes the model, its tokenizer and its chat."""
    path.write_bytes(checkpoints.build(meta, tensors))
    model = tokenizer = chat = None
    try:
        model = calls.model_open(str(path).encode())
        if any(key.startswith("tokenizer.") for key in meta):
            tokenizer = calls.tokenizer_new(model)
        if any(key.startswith("chat.") for key in meta):
            chat = calls.chat_new(model)
    except HeadsError as error:
        return str(error)
    finally:
        calls.chat_free(chat)
        calls.tokenizer_free(tokenizer)
        calls.model_close(model)
    return ""


def changed(key: str, m: Meta) -> Iterator[tuple[str, Meta | None]]:
    """What may become of an entry of metadata."""
    width = 1 if m.type == U8 else 4
    yield "absent", None
    if m.count == 0:
        return
    whole = m.values[: len(m.values) // 4 * 4]
    yield "of another type", Meta(F32_META if m.type == I32 else I32, len(whole) // 4, whole)
    yield "longer", m._replace(count=m.count + 1, values=m.values + m.values[-width:])
    yield "empty", Meta(m.type, 0, b"")
    if m.type == I32:
        yield "least", m._replace(values=ints(*[-(2**31)] * m.count).values)
    others = {U8: [0, 255], I32: [-1, 0, 1, 2**31 - 1], F32_META: [np.nan, -1, 1e30]}
    make = {U8: lambda *n: Meta(U8, len(n), bytes(n)), I32: ints, F32_META: floats}[m.type]
    for n in others[m.type]:
        yield f"{n}", m._replace(values=make(*[n] * m.count).values)


ALWAYS_REFUSED = {"of another type", "least", "wider", "taller"}
NEEDS_NONE = "info.", "chat.template"  # nothing reads them
# What a file may lack, its other entries being as they are.
OPTIONAL = set(
    """
    classes.0.bias classes.0.norm.bias model.class_after model.class_pad model.head tokenizer.between attn_k.bias attn_k_norm attn_norm.bias attn_o.bias attn_q.bias attn_q_norm attn_relative attn_sinks attn_sub_norm attn_v.bias attn_v_norm chat.0.pieces chat.1.pieces chat.2.pieces chat.3.pieces chat.4.pieces chat.5.pieces chat.6.pieces chat.7.pieces chat.distinct chat.no_think chat.template chat.trigger.assistant chat.trigger.final chat.trigger.system chat.trigger.user conv.bias embed_norm embed_norm.bias embed_pos ffn_down.bias ffn_norm.bias ffn_sub_norm ffn_up.bias info.dtype info.exporter info.family info.source layer.mixer layer.q_temp layer.renorm layer.score model.eos model.greedy model.last model.least model.no_repeat model.pooling_tokens model.pooling_unit model.q_temp_ahead model.rope.0.long_multiplier norm out_scale output.bias source_embed_norm.bias source_embed_pos source_norm ssm_norm ssm_step_norm tokenizer.eos tokenizer.fuse_unk tokenizer.marks tokenizer.normalizer tokenizer.prefix tokenizer.splits tokenizer.strip tokenizer.suffix tokenizer.unigram.single
    """.split()
)


def test_what_does_not_fit_is_refused_by_name(tmp_path):
    """Every twelfth of the changes, or with HEADS_TESTS=all each."""
    every = 1 if ALL else 12
    wrong, lacked, path = [], set(), tmp_path / "changed.bin"
    for name, (meta, tensors) in {**of_parts(), **of_files(tmp_path)}.items():
        assert refusal(path, meta, tensors) == "", name
        tried = [
            (key, how, {**meta, key: other}, tensors)
            for key, m in meta.items()
            for how, other in changed(key, m)
        ]
        for key, t in tensors.items():
            wider, taller = t._replace(cols=t.cols + 1), t._replace(rows=t.rows + 16)
            if not key.startswith("layers.") or key.startswith("layers.1."):
                for how, other in (("absent", None), ("wider", wider), ("taller", taller)):
                    tried.append((key, how, meta, {**tensors, key: other}))
        for key, how, *parts in tried[::every]:
            said = refusal(path, *({k: v for k, v in p.items() if v is not None} for p in parts))
            stem = key.removeprefix("layers.1.")
            if how == "absent" and not said:
                lacked.add(stem)
            elif said and not re.search(
                r"(metadata|tensor|layer|knob|chat template) |model\.", said
            ):
                wrong.append(f"{name}, {key} {how}: {said}")
            elif how in ALWAYS_REFUSED and key not in said and not key.startswith(NEEDS_NONE):
                wrong.append(f"{name}, {key} {how}: {said or 'it was accepted'}")
    assert not wrong, "\n".join(wrong)
    assert lacked == OPTIONAL if every == 1 else lacked <= OPTIONAL


# ---- what fits by itself, but not with the rest ----

NO_HEAD = dict.fromkeys(("head_dense", "head_norm"))
BF16_POSITIONS = Tensor(1, CONTEXT, D, bytes(1024))
UNIGRAM, BYTES = "tokenizer albert", "chat thinking"
SECOND_EMPTY = ints(0, 17, 17, 67, 100, 119, 130, 140, 150, 160, 170, 238)
TOGETHER = [
    ("attention", {"layer.topology": ints(2), "layer.norms": ints(1)}, {}, "but layer.norms is 1"),
    (
        "attention",
        {"layer.kv_source": ints(-1, 0), "layer.head_dim": ints(8, 4)},
        NO_KEYS,
        "kv_source",
    ),
    ("attention", {"layer.kv_source": ints(-1, 0), "layer.mask": ints(1)}, NO_KEYS, "layer.mask 1"),
    ("pooled", {}, {"embed_pos": BF16_POSITIONS}, "tensor embed_pos is bf16, expected f32"),
    ("head", {"model.head_act": None}, NO_HEAD, "model.d_embed is 10 and n_embd 24: logits need"),
    ("bart", {"layer.mask": ints(1, 0, 0, 0)}, {}, "layer 1: layer.mask is 0, but model.source"),
    ("bart", {"layer.topology": ints(2, 2, 3, 3)}, {}, "layer 2: model.source_layers needs"),
    ("bart", {"model.d_embed": ints(10)}, {}, "model.source_layers knows no model.ple and d_embed"),
    ("bart", {"model.banned.begin": ints(0, 1, 1), "model.banned": ints(3)}, {}, "row 1 is empty"),
    (UNIGRAM, {"tokenizer.splits": ints(*[11] * 17)}, {}, "splits: more than 16 steps"),
    (UNIGRAM, {"tokenizer.normalizer": ints(*[1] * 17)}, {}, "normalizer: more than 16 steps"),
    (UNIGRAM, {"tokenizer.splits": ints(11, 23)}, {}, '"prefix space" must be the first step'),
    (UNIGRAM, {"tokenizer.splits": ints(20)}, {}, '"byte digit" needs a byte-level tokenizer'),
    (BYTES, {"tokenizer.splits": ints(20, 11)}, {}, '"digit" follows a step that works on bytes'),
    (BYTES, {"tokenizer.prefix": ints(*[0] * 65)}, {}, "more than 64 ids"),
    (UNIGRAM, {"tokenizer.words": ints(3)}, {}, "words: only a byte-level tokenizer has it"),
    (BYTES, {"tokenizer.target.begin": ints(0, 0)}, {}, "needs a tokenizer over characters"),
    (BYTES, {"tokenizer.wordpiece": ints(5)}, {}, "wordpiece needs tokenizer.unk, and no chars"),
    (UNIGRAM, {"tokenizer.unk": None}, {}, "unigram needs tokenizer.unk, and no chars"),
    (UNIGRAM, {"tokenizer.added.begin": ints(0, 0, 10, 15, 21, 26)}, {}, "token 0 has 0 char"),
    (UNIGRAM, {"tokenizer.replace.begin": ints(0, 0, 3, 5, 6)}, {}, "replacement 0 replaces is"),
    (BYTES, {"chat.text.begin": SECOND_EMPTY, "chat.trigger.user": ints(1)}, {}, "names an empty"),
]


def test_what_does_not_fit_together(tmp_path):
    files = {**of_parts(), **of_files(tmp_path)}
    for name, *more, message in TOGETHER:
        parts = [{**old, **new} for old, new in zip(files[name], more)]
        parts = [{k: v for k, v in part.items() if v is not None} for part in parts]
        assert message in refusal(tmp_path / "x.bin", *parts), message
    meta, tensors = files["attention"]
    twice = checkpoints.build({**meta, "layer.d_fF": ints(1)}, tensors).replace(b".d_fF", b".d_ff")
    (tmp_path / "x.bin").write_bytes(checkpoints.seal(twice))
    with pytest.raises(HeadsError, match="metadata layer.d_ff occurs twice"):
        calls.model_open(str(tmp_path / "x.bin").encode())
