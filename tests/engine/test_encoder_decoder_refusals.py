"""What an encoder-decoder refuses: keys and rules that it cannot follow, damaged files, and options
that mean nothing for it; and what other models refuse of its."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from test_encoder_decoders import GOLDEN, NAMES, exported, with_letters
from test_encoders import named_verbs_work

from exporter.families.registry import canonical
from exporter.sources.generation import generation_rules
from exporter.sources.huggingface import open_safetensors
from exporter.tensor import ExportError


def taken(name: str, config: dict, generation: dict | None) -> tuple:
    """All that a checkpoint of these values would be, but for the numbers of its tensors."""
    tensors = open_safetensors(str(GOLDEN / name / "model.safetensors"))
    family, knobs, found, _ = canonical(config, tensors)
    knobs.rules, _ = generation_rules(config, family, knobs.vocab_size, generation)
    meta = {key: np.asarray(value).tolist() for key, value in knobs.metadata(found).items()}
    sums = {n: float(np.abs(t.array()).sum()) for n, t in found.items() if t.shape}
    return meta, sums


# Keys of config.json that change nothing that is computed, as tests/reference/live_models.py shows
# by changing them.
HARMLESS = set(
    """
    _name_or_path activation_dropout architectures attention_dropout bos_token_id
    chunk_size_feed_forward classifier_dropout decoder_layerdrop dropout dropout_rate dtype
    encoder_layerdrop eos_token_id forced_eos_token_id id2label init_std initializer_factor
    is_decoder label2id output_attentions output_hidden_states pad_token_id return_dict
    transformers_version use_cache decoder_start_token_id num_hidden_layers
    """.split()
)


def harmless(config: dict) -> set[str]:
    """Those of HARMLESS that are, for this family."""
    counts = config["model_type"] in ("m2m_100", "fsmt")
    return HARMLESS - ({"pad_token_id"} if counts else set())


def changed(value):
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, float):
        return value + 0.25
    if isinstance(value, int):
        return value - 1 if value > 2 else value + 1
    return "of_tomorrow" if isinstance(value, str) else ["of_tomorrow"]


@pytest.mark.parametrize("name", NAMES)
def test_every_key_counts_or_is_refused(name):
    config = json.loads((GOLDEN / name / "config.json").read_text())
    generation = json.loads((GOLDEN / name / "generation_config.json").read_text())
    plain = taken(name, config, generation)
    more = {"relative_attention_of_tomorrow": 1, "encoder_attention_window": 7}
    for key, value in {**config, **more}.items():
        if key in harmless(config) or value is None:
            continue
        # A key of its own that scales even if the tying, which is forced, is not asked for.
        other = {**config, key: changed(value) if key in config else value}
        if key == "tie_word_embeddings":
            other.pop("scale_decoder_outputs", None)
        if key == "tie_word_embeddings" and config["model_type"] in ("mt5", "umt5"):
            continue
        if key == "share_encoder_decoder_embeddings" and not value:
            continue  # what is there then has the wrong shape, and says so below
        try:
            assert taken(name, other, generation) != plain, f"{key} changes nothing"
        except ExportError as error:
            assert str(error), key


RULES = dict(
    repetition_penalty=1.2,
    suppress_tokens=[3],
    begin_suppress_tokens=[4],
    guidance_scale=2.0,
    sequence_bias=[[[3], 1.0]],
    penalty_alpha=0.6,
    exponential_decay_length_penalty=[3, 1.1],
    forced_decoder_ids=[[1, 3]],
    epsilon_cutoff=0.1,
    encoder_repetition_penalty=1.3,
    force_words_ids=[[3]],
    rule_of_tomorrow=1,
    bad_words_ids=[3],
    forced_eos_token_id=[3, 4],
    stop_strings=["a"],
    forced_bos_token_id=99,
    no_repeat_ngram_size=-1,
)
COUNT = dict(
    forced_bos_token_id=5,
    forced_eos_token_id=6,
    bad_words_ids=[[3], [4, 5]],
    max_length=77,
    min_length=15,
    min_new_tokens=19,
    max_new_tokens=11,
    no_repeat_ngram_size=4,
    do_sample=True,
    decoder_start_token_id=7,
)


@pytest.mark.parametrize("name", NAMES)
def test_every_rule_counts_or_is_refused(name):
    config = json.loads((GOLDEN / name / "config.json").read_text())
    rules = json.loads((GOLDEN / name / "generation_config.json").read_text())
    plain = taken(name, config, rules)
    for key, value in COUNT.items():
        assert taken(name, config, {**rules, key: value}) != plain, key
    for key, value in RULES.items():
        with pytest.raises(ExportError, match=key):
            taken(name, config, {**rules, key: value})
    for key in ("num_beams", "length_penalty", "early_stopping", "renormalize_logits"):
        assert taken(name, config, {**rules, key: 3}) == plain


def test_the_source_may_be_repeated(tmp_path, capsys):
    """Blenderbot forbids it by the default of its class, which a generation_config.json replaces:
    a remark says that the rule is left out."""
    key = "encoder_no_repeat_ngram_size"
    config = json.loads((GOLDEN / "bart" / "config.json").read_text())
    said = "encoder_no_repeat_ngram_size {} is left out: a text may repeat {} tokens of its source"
    for family, values, n in (
        ("blenderbot", None, 3),
        ("blenderbot", {key: 4}, 4),
        ("blenderbot", {}, 0),
        ("bart", {key: 2}, 2),
        ("bart", None, 0),
    ):
        meta, remarks = generation_rules(config, family, 61, values)
        assert [remark for remark in remarks if key in remark] == (
            [
                f"{'config' if values is None else 'generation_config'}.json: "
                + said.format(n, n)
                + " in their order"
            ]
            if n
            else []
        )
        assert meta["model.start"] == [2]
    assert any(key in r for r in generation_rules({**config, key: 5}, "bart", 61, None)[1])


def test_beams_are_said_to_be_ignored(tmp_path, capsys):
    shutil.copytree(GOLDEN / "bart", tmp_path / "bart")
    path = tmp_path / "bart" / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_beams": 4}))
    exported(tmp_path / "bart", tmp_path / "model.bin")
    assert "num_beams 4 is ignored" in capsys.readouterr().err


RULE_KEYS = {
    "model.source_layers": 1,
    "model.start": 3,
    "model.last": 3,
    "model.least": 3,
    "model.eos": 3,
    "model.most": 9,
    "model.no_repeat": 2,
    "model.banned": 3,
    "model.banned.begin": [0, 1],
    "model.greedy": 1,
    "model.languages": 3,
}
SOURCE_TENSORS = (
    "cross_q",
    "cross_k",
    "cross_v",
    "cross_o",
    "cross_norm",
    "source_embed",
    "source_embed_pos",
    "source_embed_norm",
    "source_norm",
)


def changed_file(path: Path, drop: str = "", **meta) -> None:
    """Writes the golden BART with other metadata, None for an entry that is left out, and without
    a tensor."""
    from exporter.checkpoint import entries, write_checkpoint

    config = json.loads((GOLDEN / "bart" / "config.json").read_text())
    rules = json.loads((GOLDEN / "bart" / "generation_config.json").read_text())
    tensors = open_safetensors(str(GOLDEN / "bart" / "model.safetensors"))
    family, knobs, found, _ = canonical(config, tensors)
    knobs.rules, _ = generation_rules(config, family, knobs.vocab_size, rules)
    found.pop(drop, None)
    values = {**knobs.metadata(found), **{key.replace("__", "."): v for key, v in meta.items()}}
    values = {key: value for key, value in values.items() if value is not None}
    write_checkpoint(str(path), values, entries(found, "f32"))


@pytest.mark.parametrize(
    "meta, message",
    [
        (dict(model__start=None), "metadata model.start"),
        (dict(model__start=61), "metadata model.start"),
        (dict(model__last=61), "metadata model.last"),
        (dict(model__least=0), "metadata model.least"),
        (dict(model__most=1), "metadata model.most"),
        (dict(model__eos=[2, -1]), "metadata model.eos: value 1"),
        (dict(model__no_repeat=0), "metadata model.no_repeat"),
        (dict(model__greedy=2), "metadata model.greedy"),
        (dict(model__languages=[99]), "metadata model.languages: value 0"),
        (dict(model__banned=[3, 4]), "knob model.banned is not known"),
        (dict(model__banned=[3, 4], model__banned__begin=[0, 3]), "model.banned: it has 2 values"),
        (
            dict(model__banned=[3, 4], model__banned__begin=[0, 2, 1, 2]),
            "less than the one before it",
        ),
        (dict(model__banned=[3, 4], model__banned__begin=[0, 2, 2]), "begin: row 1 is empty"),
        (dict(model__source_layers=None), "knob model.start is not known"),
        (dict(model__source_layers=4), "metadata model.source_layers"),
        (dict(model__source_layers=1), "layer 1: layer.mask is 1, but model.source_layers is 1"),
        (dict(layer__topology=1), "layer.topology 0 or 2"),
        (dict(drop="layers.2.cross_k"), "tensor layers.2.cross_k is missing"),
        (dict(drop="layers.3.cross_norm"), "tensor layers.3.cross_norm is missing"),
    ],
)
def test_damaged_files_are_refused(tmp_path, run, meta, message):
    changed_file(tmp_path / "x.bin", **meta)
    done = run(tmp_path / "x.bin", "--tokens", "5", "-n", 1)
    assert done.returncode == 1 and message in done.stderr, done.stderr


def test_a_decoder_has_no_rules_and_no_cross_attention(tmp_path, run):
    import test_refusals

    plain, path = test_refusals.KINDS["attention"], tmp_path / "x.bin"
    for key, value in RULE_KEYS.items():
        path.write_bytes(plain.file({key: test_refusals.ints(*np.atleast_1d(value).tolist())}, {}))
        done = run(path, "--info")
        assert done.returncode == 1 and ("model." in done.stderr or "mask" in done.stderr), key
    for name in SOURCE_TENSORS:
        place = f"layers.1.{name}" if name.startswith("cross") else name
        path.write_bytes(plain.file({}, {place: test_refusals.matrix(24, 24)}))
        done = run(path, "--info")
        assert done.returncode == 1 and place in done.stderr, (name, done.stderr)


def test_a_refusal_names_what_works(tmp_path, run):
    binary = exported(with_letters(tmp_path / "source"), tmp_path / "x.bin")
    names = named_verbs_work(run, binary, tmp_path, "--target", "5 6")
    assert {"--batch", "--kv", "--heads"} <= names and "--embed" not in names


@pytest.mark.parametrize(
    "options, message",
    [
        (("--chat",), "is an encoder-decoder"),
        (("--bench",), "is an encoder-decoder"),
        (("--ppl", "x"), "is an encoder-decoder"),
        (("-p", "a", "--embed"), "is an encoder-decoder"),
        (("-p", "a", "-md", "x"), "--lookup guesses for it"),
        (("--tokens", "5", "--lang", "fr"), "names no languages"),
        (("--tokens", "5", "--target", "77", "--logits", "x"), "--target: 77 is no token"),
        (("--tokens", "77"), "--tokens: 77 is no token"),
    ],
)
def test_what_means_nothing(tmp_path, run, options, message):
    binary = exported(GOLDEN / "t5", tmp_path / "model.bin")
    done = run(binary, *options, cwd=tmp_path)
    assert done.returncode == 2 and message in done.stderr


def test_a_decoder_has_no_source(run, tiny):
    done = run(tiny, "--tokens", "5", "--target", "5", "--logits", "/dev/null")
    assert done.returncode == 2 and "is no encoder-decoder" in done.stderr
