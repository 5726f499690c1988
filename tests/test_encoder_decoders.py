"""Encoder-decoders against transformers: small random checkpoints of every family, with logits and
greedy texts that transformers computed from the same files
(tests/reference/make_encoder_decoders.py made them); and what ./run does with them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import export
from exporter.families import canonical
from exporter.generation import generation_rules
from exporter.huggingface import open_safetensors
from exporter.tensor import ExportError

GOLDEN = Path(__file__).parent / "golden" / "encoder_decoders"
NAMES = sorted(path.parent.name for path in GOLDEN.glob("*/golden.json"))
TOLERANCE = 1e-4  # of the largest number, at every position
F32 = ("-ctk", "f32", "-ctv", "f32")


def golden_of(directory: Path) -> dict:
    return json.loads((directory / "golden.json").read_text())


def exported(directory: Path, binary: Path, dtype: str = "f32") -> Path:
    assert export.main([str(directory), str(binary), "--dtype", dtype]) == 0
    return binary


def spelled(ids: list[int]) -> str:
    return " ".join(map(str, ids))


def rows_of(run, binary: Path, golden: dict, *options) -> bytes:
    """The logits of all targets, one after the other."""
    file, found = binary.with_suffix(".rows"), b""
    for source, target in zip(golden["sources"], golden["targets"]):
        done = run(binary, "--tokens", spelled(source), "--target", spelled(target), "--logits",
                   file, *options)  # fmt: skip
        assert done.returncode == 0, done.stderr
        found += file.read_bytes()
    return found


def measure(directory: Path, binary: Path, run) -> float:
    """The largest difference of logits, over the largest of them."""
    golden = golden_of(directory)
    expected = np.load(directory / "logits.npy")
    if expected.dtype == np.int16:
        expected = expected * np.float32(golden["largest"] / 32767)
    found = np.frombuffer(rows_of(run, binary, golden, *F32), "<f4")
    return float(np.abs(found.reshape(expected.shape) - expected).max() / golden["largest"])


def beginning(directory: Path) -> list[int]:
    rules = json.loads((directory / "generation_config.json").read_text())
    first = rules.get("forced_bos_token_id")
    return [rules["decoder_start_token_id"], *([] if first is None else [first])]


def greedy(directory: Path, binary: Path, run, *options) -> list[list[int]]:
    """What ./run writes for every source, the tokens before that included."""
    texts = []
    for source in golden_of(directory)["sources"]:
        done = run(binary, "--tokens", spelled(source), "-n", 32, *options)
        assert done.returncode == 0, done.stderr
        texts.append(beginning(directory) + [int(i) for i in done.stdout.split()])
    return texts


def differing(directory: Path, texts: list[list[int]]) -> list[int]:
    """Sources whose text is not transformers'. Without a tokenizer ./run does not know what ends a
    text, so those of transformers may end before."""
    golden = golden_of(directory)["greedy"]
    return [i for i, (a, b) in enumerate(zip(golden, texts, strict=True)) if b[: len(a)] != a]


def test_every_family_is_compared():
    """With a committed checkpoint or with fresh ones (tests/reference/live_models.py)."""
    import make_encoder_decoders
    from exporter.encoder_decoders import FAMILIES

    assert NAMES == sorted(make_encoder_decoders.MODELS)
    every = {**make_encoder_decoders.MODELS, **make_encoder_decoders.MORE}
    assert {kind for kind, *_ in every.values()} == set(FAMILIES)


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_texts_are_those_of_transformers(name, tmp_path, run):
    binary = exported(GOLDEN / name, tmp_path / "model.bin")
    assert measure(GOLDEN / name, binary, run) <= TOLERANCE
    assert differing(GOLDEN / name, greedy(GOLDEN / name, binary, run, *F32)) == []


@pytest.mark.parametrize("dtype", ["f32", "q8"])
@pytest.mark.parametrize("name", NAMES)
def test_the_same_bits_for_any_threads_and_chunk(name, dtype, tmp_path, run):
    binary = exported(GOLDEN / name, tmp_path / "model.bin", dtype)
    golden = golden_of(GOLDEN / name)
    first = rows_of(run, binary, golden, "-b", 128, "-t", 2)
    for options in (("-b", 1, "-t", 1), ("-b", 40, "-t", 3)):
        assert rows_of(run, binary, golden, *options) == first


@pytest.mark.parametrize("name", ["bart", "umt5"])
def test_the_same_text_by_other_ways(name, tmp_path, run):
    """Guessed ahead, and continued from a saved session."""
    binary = exported(GOLDEN / name, tmp_path / "model.bin")
    plain = greedy(GOLDEN / name, binary, run)
    assert greedy(GOLDEN / name, binary, run, "--lookup", 7) == plain
    source, cache = spelled(golden_of(GOLDEN / name)["sources"][3]), tmp_path / "cache"
    options = ("--tokens", source, "-n", 32, "--prompt-cache", cache)
    for _ in range(2):
        done = run(binary, *options)
        assert beginning(GOLDEN / name) + [int(i) for i in done.stdout.split()] == plain[3]
    assert "from " + str(cache) in done.stderr or len(beginning(GOLDEN / name)) == 1
    other = spelled(golden_of(GOLDEN / name)["sources"][2])
    done = run(binary, "--tokens", other, "-n", 32, "--prompt-cache", cache)
    assert beginning(GOLDEN / name) + [int(i) for i in done.stdout.split()] == plain[2]


def test_chance_is_asked_for(tmp_path, run):
    binary = exported(GOLDEN / "t5", tmp_path / "model.bin")
    ids = ("--tokens", "5 6 7", "-n", 20)
    assert run(binary, *ids, "-s", 1).stdout == run(binary, *ids, "-s", 2).stdout
    texts = {run(binary, *ids, "-s", seed, "--temp", 3).stdout for seed in range(4)}
    assert len(texts) > 1


@pytest.mark.parametrize("name", ["bart", "marian", "t5-gated"])
def test_a_text_is_the_same_among_others(name, tmp_path, run):
    binary = exported(GOLDEN / name, tmp_path / "model.bin", "q8")
    begun, plain = len(beginning(GOLDEN / name)), greedy(GOLDEN / name, binary, run)
    sources = golden_of(GOLDEN / name)["sources"] * 3
    lines = [
        json.dumps({"id": i, "tokens": s, "max_tokens": 32 - i % 3}) for i, s in enumerate(sources)
    ]
    (tmp_path / "in").write_text("\n".join(lines))
    for options in (("-np", 16), ("-np", 3, "-b", 20), ("-np", 1)):
        done = run(binary, "--batch", tmp_path / "in", *options)
        assert done.returncode == 0, done.stderr
        for i, line in enumerate(done.stdout.splitlines()):
            found, alone = json.loads(line)["tokens"], plain[i % len(plain)][begun:]
            if i % 3 == 0:
                assert found == alone
            else:  # shorter: the same until the end that may be forced
                assert found[:-1] == alone[: len(found) - 1] and len(found) == 33 - begun - i % 3


def test_python_writes_the_same(tmp_path, run):
    import sys

    sys.path.insert(0, str(Path(__file__).parents[1] / "python"))
    import heads
    binary = exported(GOLDEN / "bart", tmp_path / "model.bin")
    plain = greedy(GOLDEN / "bart", binary, run)
    with heads.Model(binary, threads=1) as model:
        texts = model.generate(golden_of(GOLDEN / "bart")["sources"], 32, parallel=4)
        assert [beginning(GOLDEN / "bart") + text.tokens for text in texts] == plain
        with pytest.raises(heads.HeadsError, match="names no languages"):
            model.generate([5], lang="fr")
        with pytest.raises(heads.HeadsError, match="is no token of this model"):
            model.generate([99])
        with model.session() as session, pytest.raises(heads.HeadsError, match="has none yet"):
            session.feed([2])
        assert model.info()["source_vocab"] == 61


# ---- what is refused -----------------------------------------------------------------------------


def taken(name: str, config: dict, generation: dict | None) -> tuple:
    """All that a checkpoint of these values would be, but for the numbers of its tensors."""
    tensors = open_safetensors(str(GOLDEN / name / "model.safetensors"))
    family, knobs, found, _ = canonical(config, tensors)
    knobs.rules, _ = generation_rules("", config, family, knobs.vocab_size, generation)
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


def changed(value):
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    return "of_tomorrow" if isinstance(value, str) else ["of_tomorrow"]


@pytest.mark.parametrize("name", NAMES)
def test_every_key_counts_or_is_refused(name):
    config = json.loads((GOLDEN / name / "config.json").read_text())
    generation = json.loads((GOLDEN / name / "generation_config.json").read_text())
    plain = taken(name, config, generation)
    more = {"relative_attention_of_tomorrow": 1, "encoder_attention_window": 7}
    for key, value in {**config, **more}.items():
        if key in HARMLESS or value is None:
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
    repetition_penalty=1.2, encoder_no_repeat_ngram_size=3, suppress_tokens=[3],
    begin_suppress_tokens=[4], guidance_scale=2.0, sequence_bias=[[[3], 1.0]], penalty_alpha=0.6,
    exponential_decay_length_penalty=[3, 1.1], forced_decoder_ids=[[1, 3]], epsilon_cutoff=0.1,
    encoder_repetition_penalty=1.3, force_words_ids=[[3]], rule_of_tomorrow=1, bad_words_ids=[3],
    forced_eos_token_id=[3, 4], stop_strings=["a"], forced_bos_token_id=99, no_repeat_ngram_size=-1,
)  # fmt: skip
COUNT = dict(
    forced_bos_token_id=5, forced_eos_token_id=6, bad_words_ids=[[3], [4, 5]], max_length=77,
    min_length=15, min_new_tokens=19, max_new_tokens=11, no_repeat_ngram_size=4, do_sample=True,
    decoder_start_token_id=7,
)  # fmt: skip


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


def test_beams_are_said_to_be_ignored(tmp_path, capsys):
    shutil.copytree(GOLDEN / "bart", tmp_path / "bart")
    path = tmp_path / "bart" / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_beams": 4}))
    exported(tmp_path / "bart", tmp_path / "model.bin")
    assert "num_beams 4 is ignored" in capsys.readouterr().err


@pytest.mark.parametrize("options, message", [
    (("--chat",), "is an encoder-decoder"),
    (("--bench",), "is an encoder-decoder"),
    (("--ppl", "x"), "is an encoder-decoder"),
    (("-p", "a", "--embed"), "is an encoder-decoder"),
    (("--tokens", "5", "--lang", "fr"), "names no languages"),
    (("--tokens", "5", "--target", "77", "--logits", "x"), "--target: 77 is no token"),
    (("--tokens", "77"), "--tokens: 77 is no token"),
])  # fmt: skip
def test_what_means_nothing(tmp_path, run, options, message):
    binary = exported(GOLDEN / "t5", tmp_path / "model.bin")
    done = run(binary, *options, cwd=tmp_path)
    assert done.returncode == 2 and message in done.stderr


def test_a_decoder_has_no_source(run, tiny):
    done = run(tiny, "--tokens", "5", "--target", "5", "--logits", "/dev/null")
    assert done.returncode == 2 and "is no encoder-decoder" in done.stderr
