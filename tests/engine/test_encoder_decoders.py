"""Encoder-decoders against transformers: small random checkpoints of every family, with logits and
greedy texts that transformers computed from the same files
(tests/reference/make_encoder_decoders.py made them); and what ./run does with them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT

import export
from exporter.sources import generation

GOLDEN = ROOT / "tests" / "golden" / "encoder_decoders"
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
        done = run(
            binary,
            "--tokens",
            spelled(source),
            "--target",
            spelled(target),
            "--logits",
            file,
            *options,
        )
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
    assert len(texts) == len(golden)
    return [i for i, (a, b) in enumerate(zip(golden, texts)) if b[: len(a)] != a]


def test_every_family_is_compared():
    """With a committed checkpoint or with fresh ones (tests/reference/live_models.py)."""
    import make_encoder_decoders
    from exporter.families.registry import ENCODER_DECODERS

    assert NAMES == sorted(make_encoder_decoders.MODELS)
    every = {**make_encoder_decoders.MODELS, **make_encoder_decoders.MORE}
    assert {kind for kind, *_ in every.values()} == set(ENCODER_DECODERS)


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
        assert model.info()["source_vocab"] == 61


@pytest.mark.parametrize("kv", ["f32", "f16", "q8"])
def test_forks_and_saved_sessions_have_the_source(tmp_path, run, kv):
    import heads
    from heads._native import Run, byref, calls, int_array

    binary, golden = exported(GOLDEN / "bart", tmp_path / "m.bin"), golden_of(GOLDEN / "bart")
    with heads.Model(binary, threads=1, kv=kv) as model:

        def rows(sequence: int, ids: list[int]) -> list[bytes]:
            found = []
            for id in ids:
                logits = calls.forward(sequence, int_array([id]), 1, 1)
                found.append(np.ctypeslib.as_array(logits, (61,)).tobytes())
            return found

        def read(shared: int, source: list[int]) -> int:
            sequence = calls.sequence_new(model._handles.workspace, shared)
            run_of = Run(sequence, int_array(source), len(source), 0)
            calls.read_sources(model._handles.workspace, byref(run_of), 1)
            return sequence

        source, target = golden["sources"][3], golden["targets"][4][:40]
        plain = rows(read(0, source), target)
        for shared in (0, 1):
            parent = read(shared, source)
            empty = calls.sequence_fork(parent, 0)
            assert rows(parent, target[:33]) == plain[:33]
            fork = calls.sequence_fork(parent, 20)
            grandchild = calls.sequence_fork(fork, 7)
            calls.sequence_save(parent, str(tmp_path / "saved").encode())
            if shared:  # its memory is theirs too
                with pytest.raises(heads.HeadsError, match="cannot get another source"):
                    other = Run(parent, int_array([5]), 1, 0)
                    calls.sequence_rewind(parent, 33)
                    calls.read_sources(model._handles.workspace, byref(other), 1)
            calls.sequence_free(parent)
            loaded = calls.sequence_load(model._handles.workspace, str(tmp_path / "saved").encode())
            assert rows(loaded, target[33:]) == plain[33:]
            assert rows(empty, target) == plain
            assert rows(fork, target[20:]) == plain[20:]
            assert rows(grandchild, target[7:]) == plain[7:]
            # Another source in the place of what was mapped.
            calls.sequence_rewind(loaded, 0)
            again = Run(loaded, int_array(golden["sources"][2]), 17, 0)
            calls.read_sources(model._handles.workspace, byref(again), 1)
            assert rows(loaded, target) == rows(read(0, golden["sources"][2]), target) != plain
            for sequence in (loaded, empty, fork, grandchild):
                calls.sequence_free(sequence)


# ---- texts ---------------------------------------------------------------------------------------

CODES = ("en_XX", "fr_XX", "ro_RO")


def with_letters(directory: Path, name: str = "mbart") -> Path:
    """A golden model with a tokenizer of letters, and languages."""
    shutil.copytree(GOLDEN / name, directory)
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "\u2581", *"abcdefghijklmnopqrstuvwxyz", *CODES]
    tokens += [f"<{i}>" for i in range(61 - len(tokens))]
    ids = {token: id for id, token in enumerate(tokens)}
    mark = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"}
    around = [
        {"SpecialToken": {"id": "en_XX", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "</s>", "type_id": 0}},
    ]
    special = {t: {"id": t, "ids": [ids[t]], "tokens": [t]} for t in ("en_XX", "</s>")}
    added = [
        dict(
            id=ids[t],
            content=t,
            special=True,
            normalized=False,
            single_word=False,
            lstrip=False,
            rstrip=False,
        )
        for t in (*tokens[:4], *CODES)
    ]
    (directory / "tokenizer.json").write_text(
        json.dumps(
            {
                "model": {"type": "Unigram", "unk_id": 3, "vocab": [[t, -2.0] for t in tokens]},
                "normalizer": None,
                "pre_tokenizer": mark,
                "decoder": mark,
                "added_tokens": added,
                "post_processor": {
                    "type": "TemplateProcessing",
                    "single": around,
                    "pair": around,
                    "special_tokens": special,
                },
            }
        )
    )
    return directory


@pytest.fixture(scope="module")
def letters(tmp_path_factory) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("letters")
    binary = exported(with_letters(folder / "source"), folder / "model.bin")
    data = json.loads((folder / "source" / "tokenizer.json").read_text())
    return binary, {token: id for id, (token, _) in enumerate(data["model"]["vocab"])}


def test_texts_and_languages(letters, run, tmp_path):
    binary, ids = letters
    spell = [ids["\u2581"], *(ids[c] for c in "cab"), ids["</s>"]]

    def by_ids(source: str, first: list[str]) -> str:
        """The text that the ids alone would give, by way of teacher forcing."""
        text = [2, *(ids[f] for f in first)]
        while len(text) < 13 and text[-1] != 2 or len(text) == 1 + len(first):
            file = tmp_path / "rows"
            done = run(
                binary,
                "--tokens",
                spelled([ids[source], *spell]),
                "--target",
                spelled(text),
                "--logits",
                file,
            )
            assert done.returncode == 0, done.stderr
            rows = np.fromfile(file, "<f4").reshape(len(text), -1)
            text.append(2 if len(text) == 12 else int(rows[-1].argmax()))
        tokens = list(ids)
        shown = "".join(tokens[i] for i in text if tokens[i] not in (*CODES, *tokens[:4]))
        return shown.replace("\u2581", " ").removeprefix(" ")

    for option, source, first in (
        ((), "en_XX", []),
        (("--lang", "fr_XX"), "en_XX", ["fr_XX"]),
        (("--lang", "ro_RO:fr_XX"), "ro_RO", ["fr_XX"]),
    ):
        done = run(binary, "-p", "cab", "-n", 12, *option)
        assert done.returncode == 0, done.stderr
        assert done.stdout.decode() == by_ids(source, first)
    (tmp_path / "in").write_text('{"prompt": "cab", "max_tokens": 12}\n')
    found = run(binary, "--batch", tmp_path / "in", "--lang", "ro_RO:fr_XX")
    assert json.loads(found.stdout)["text"] == done.stdout.decode()
    import heads

    with heads.Model(binary, threads=1) as model:
        assert model.generate("cab", 12, lang="ro_RO:fr_XX") == done.stdout.decode()


def log_probabilities(rows: np.ndarray) -> np.ndarray:
    shifted = rows.astype(np.float64) - rows.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_python_scores_what_is_given(name, tmp_path, run):
    """score(), session() and logits(): the numbers of --target --logits, a source read once for
    all that follow it."""
    import heads

    binary = exported(GOLDEN / name, tmp_path / "model.bin")
    golden, start = golden_of(GOLDEN / name), beginning(GOLDEN / name)
    sources = [source for source in golden["sources"] for _ in range(3)]
    targets = [target[at : at + 40] or [5] for target in golden["targets"] for at in (0, 1, 2)]
    expected, greedy_, file = [], [], tmp_path / "rows"
    for source, target in zip(sources, targets):
        done = run(
            binary,
            "--tokens",
            spelled(source),
            "--target",
            spelled(start + target),
            "--logits",
            file,
        )
        assert done.returncode == 0, done.stderr
        rows = np.fromfile(file, "<f4").reshape(len(start) + len(target), -1)
        told = rows[len(start) - 1 : -1]
        expected.append(log_probabilities(told)[range(len(target)), target].sum())
        greedy_.append(told.argmax(1).tolist() == target)
    with heads.Model(binary, threads=2) as model:
        found = model.score(sources, targets, parallel=5)
        assert found == [model.score([a], [b])[0] for a, b in zip(sources, targets)]
        assert np.allclose([value for value, _ in found], expected, rtol=1e-5)
        best = [int(told[0].argmax())]
        assert [g for _, g in found] == greedy_ and model.score([sources[-1]], [best])[0][1]
        session = model.session(source=sources[-1])
        assert np.array_equal(session.feed(start + targets[-1], all_rows=True), rows)
        assert np.array_equal(model.logits(start + targets[-1], source=sources[-1]), rows)
        session.rewind(len(start))
        fork = session.fork()
        fork.save(tmp_path / "saved")
        for other in (session, fork, model.session(tmp_path / "saved")):
            assert np.array_equal(other.feed(targets[-1], all_rows=True), rows[len(start) :])


def test_python_scores_texts(letters):
    """A text begins as the checkpoint and lang say; the source is the context with its language."""
    import heads

    binary, ids = letters
    spell = [ids["\u2581"], *(ids[c] for c in "egg")]
    with heads.Model(binary, threads=1) as model:
        source = [ids["ro_RO"], *model.encode("cab", special=False), ids["</s>"]]
        rows = model.logits([2, ids["fr_XX"], *spell], source=source)
        value = log_probabilities(rows[1:-1])[range(4), spell].sum()
        (found,) = model.score(["cab"], ["egg"], lang="ro_RO:fr_XX")
        assert abs(found[0] - value) < 1e-5
        assert model.score(["cab"] * 2, ["egg"] * 2, lang=["ro_RO:fr_XX", "en_XX"])[0] == found
        session = model.session(source="cab", lang="ro_RO:fr_XX")
        assert np.array_equal(session.feed("egg"), rows[-1])
        assert session.tokens == [2, ids["fr_XX"], *spell]
        looked = model.attention("egg", source="cab", lang="ro_RO:fr_XX")
        assert looked.tokens == session.tokens and looked.source[0] == ids["ro_RO"]
        session.save(binary.with_suffix(".session"))
        saved = model.session(binary.with_suffix(".session"))
        saved.rewind(0)
        with pytest.raises(heads.HeadsError, match="in which language"):
            saved.feed("egg")
        with pytest.raises(heads.HeadsError, match="at least one token"):
            model.score(["cab"], [[]])
        with pytest.raises(heads.HeadsError, match="needs a source"):
            model.session()
        with pytest.raises(heads.HeadsError, match="has its source"):
            model.session(binary.with_suffix(".session"), source="cab")
        for refused in (
            model.perplexity,
            model.attention,
            lambda text: model.chat([{"role": "user", "content": text}]),
        ):
            with pytest.raises(heads.HeadsError, match="is an encoder-decoder"):
                refused("cab")


def test_a_language_for_each_request(letters, run, tmp_path):
    """In a batch, in Python: what --lang gives for the one request alone."""
    import heads
    import heads.ray

    binary, ids = letters
    source = [ids["en_XX"], ids["\u2581"], ids["c"], ids["</s>"]]
    requests = [
        {"prompt": text, "lang": lang}
        for lang in ("fr_XX", "ro_RO", "fr_XX:ro_RO")
        for text in ("cab", "a bad egg")
    ]
    requests += [{"tokens": source, "lang": "ro_RO:en_XX"}, {"prompt": "cab"}]
    file = tmp_path / "in"
    file.write_text("".join(json.dumps({**r, "max_tokens": 12}) + "\n" for r in requests))
    found = run(binary, "--batch", file, "--lang", "ro_RO:en_XX").stdout
    found = [json.loads(line)["text"] for line in found.splitlines()]
    alone = []
    for request in requests:
        prompt = ["-p", request["prompt"]] if "prompt" in request else ["--tokens", spelled(source)]
        done = run(binary, *prompt, "-n", 12, "--lang", request.get("lang", "ro_RO:en_XX"))
        alone.append(done.stdout.decode())
    assert found == alone and len(set(alone)) > 4
    prompts = [r.get("prompt", source) for r in requests]
    langs = [r.get("lang", "ro_RO:en_XX") for r in requests]
    with heads.Model(binary, threads=1) as model:
        assert model.generate(prompts, 12, lang=langs) == alone
        with pytest.raises(heads.HeadsError, match="1 languages for 2 prompts"):
            model.generate(["a", "b"], lang=["fr_XX"])
    rows = {"prompt": ["cab", "cab", "a bad egg"], "lang": ["fr_XX", float("nan"), "ro_RO"]}
    found = heads.ray.Generate(binary, {"max_tokens": 12}, threads=1)(rows)["text"]
    usual = run(binary, "-p", "cab", "-n", 12).stdout.decode()
    assert list(found) == [alone[0], usual, alone[3]]
    rows = {"context": ["cab"] * 2, "continuation": ["egg"] * 2, "lang": ["fr_XX", None]}
    scores = heads.ray.Score(binary, threads=1)(rows)["log_probability"]
    with heads.Model(binary, threads=1) as model:
        assert list(scores) == [
            model.score(["cab"], ["egg"], lang=lang)[0][0] for lang in ("fr_XX", None)
        ]


@pytest.mark.parametrize(
    "lang, message",
    [
        ('"de_DE"', 'the model knows no language "de_DE"; it has en_XX fr_XX ro_RO'),
        ('"de_DE:fr_XX"', 'the model knows no language "de_DE"'),
        ('"fr_XX\\u0000"', '"lang" has to be a string: the language to write, or FROM:TO'),
        ("5", '"lang" has to be a string'),
    ],
)
def test_a_wrong_language_is_an_error_of_its_line(letters, run, tmp_path, lang, message):
    file = tmp_path / "in"
    file.write_text(f'{{"id": 3, "prompt": "a", "lang": {lang}}}\n{{"prompt": "a"}}\n')
    done = run(letters[0], "--batch", file)
    bad, good = map(json.loads, done.stdout.splitlines())
    assert done.returncode == 1 and bad["id"] == 3 and bad["error"].startswith(message)
    assert "text" in good
    done = run(letters[0], "--batch", file, "--lang", "de_DE")
    assert done.returncode == 2 and done.stdout == b"" and "--lang: the model" in done.stderr


def test_a_long_language(run, tmp_path, monkeypatch):
    """A code is compared whole, with and without the underscores, however long it is."""
    code = "abcd" * 24
    other = code[:-1] + "x"
    monkeypatch.setitem(generation.LANGUAGES, "mbart", "(__)?(abcd)+(__)?")
    directory = with_letters(tmp_path / "source")
    for marked in (code, f"__{code}__"):
        text = (with_letters(tmp_path / marked) / "tokenizer.json").read_text()
        (directory / "tokenizer.json").write_text(text.replace("fr_XX", marked))
        binary = exported(directory, tmp_path / "model.bin")
        for lang in (code, f"{code}:{code}"):
            done = run(binary, "-p", "cab", "-n", 4, "--lang", lang)
            assert done.returncode == 0, done.stderr
        for lang in (other, code[:60], f"{code}:{other}", f"{other}:{code}"):
            done = run(binary, "-p", "cab", "-n", 4, "--lang", lang)
            assert done.returncode == 2 and 'the model knows no language "abcd' in done.stderr


def test_a_list_of_languages_that_is_cut_says_so(run, tmp_path, monkeypatch):
    code = "abcd" * 64
    monkeypatch.setitem(generation.LANGUAGES, "mbart", "(abcd)+|.._XX")
    directory = with_letters(tmp_path / "source")
    text = (directory / "tokenizer.json").read_text()
    (directory / "tokenizer.json").write_text(text.replace("fr_XX", code))
    binary = exported(directory, tmp_path / "model.bin")
    done = run(binary, "-p", "cab", "-n", 4, "--lang", "de_DE")
    assert done.returncode == 2 and "it has en_XX .. (" in done.stderr


def test_a_decoder_writes_no_language(run, tiny, tmp_path):
    (tmp_path / "in").write_text('{"tokens": [5], "lang": "fr"}')
    found = json.loads(run(tiny, "--batch", tmp_path / "in").stdout)
    assert found == {"error": '"lang" means nothing here: the model is no encoder-decoder'}


def test_texts_of_tokens_in_the_head_page(letters, tmp_path, run):
    binary, ids = letters
    done = run(
        binary, "-p", "a cab", "--lang", "ro_RO:fr_XX", "-n", 9, "--heads", tmp_path / "x.json"
    )
    assert done.returncode == 0, done.stderr
    data = json.loads((tmp_path / "x.json").read_text())
    shown = [token["text"] for token in data["source_tokens"]]
    assert shown == ["ro_RO", " ", "a", " ", "c", "a", "b", "</s>"]
    assert [token["id"] for token in data["tokens"]][:2] == [2, ids["fr_XX"]]
    texts = {id: token.replace("\u2581", " ") for token, id in ids.items()}
    assert all(token["text"] == texts[token["id"]] for token in data["tokens"])


def test_the_head_page_of_two_vocabularies(tmp_path, run):
    """Ids of the target have texts of their own."""
    source, own = GOLDEN.parent / "unigram" / "marian", tmp_path / "marian"
    shutil.copytree(GOLDEN / "marian", own)
    for file in ("vocab.json", "source.spm", "tokenizer_config.json"):
        shutil.copy(source / file, own / file)
    vocab = json.loads((own / "vocab.json").read_text())
    target = {token: int(id) for token, id in zip(vocab, reversed(range(len(vocab))))}
    (own / "target_vocab.json").write_text(json.dumps(target))
    config = json.loads((own / "tokenizer_config.json").read_text())
    (own / "tokenizer_config.json").write_text(json.dumps({**config, "separate_vocabs": True}))
    binary = exported(own, tmp_path / "model.bin")
    run(binary, "--tokens", "5 20", "--target", "5 20 9", "--heads", tmp_path / "x.json")
    data = json.loads((tmp_path / "x.json").read_text())
    for tokens, table in ((data["source_tokens"], vocab), (data["tokens"], target)):
        texts = {id: token.replace("\u2581", " ") for token, id in table.items()}
        assert [token["text"] for token in tokens] == [texts[token["id"]] for token in tokens]


def test_a_vocabulary_for_each_side(tmp_path, run):
    """Marian's: source.spm and vocab.json for what is read, target_vocab.json for what is written.
    The pieces are those of the golden Marian tokenizer, more than the model has rows for."""
    source, directory = GOLDEN.parent / "unigram" / "marian", tmp_path / "marian"
    shutil.copytree(source, directory)
    rng = np.random.default_rng(1)
    vocab = json.loads((directory / "vocab.json").read_text())
    target = {token: int(id) for token, id in zip(vocab, rng.permutation(len(vocab)))}
    (directory / "target_vocab.json").write_text(json.dumps(target))
    config = json.loads((directory / "tokenizer_config.json").read_text())
    (directory / "tokenizer_config.json").write_text(
        json.dumps({**config, "separate_vocabs": True})
    )
    import tokenizer_texts as texts

    from exporter.tokenizers.files import tokenizer_metadata

    plain, own = tmp_path / "plain.bin", tmp_path / "own.bin"
    texts.write_model(plain, tokenizer_metadata(str(source)))
    texts.write_model(own, tokenizer_metadata(str(directory)))
    words = ["The weather", "caf\u00e9, 12", "a  b"]
    before = texts.tokenize(texts.PROGRAM, plain, [word.encode() for word in words])
    after = texts.tokenize(texts.PROGRAM, own, [word.encode() for word in words])
    tokens = {id: token for token, id in vocab.items()}
    for a, b in zip(before, after):
        assert a.ids == b.ids  # read alike, and written by the other table
        shown = {id: token for token, id in target.items()}
        skipped = "".join(shown[i] for i in b.ids if shown[i] not in ("</s>", "<unk>", "<pad>"))
        assert b.skipped.decode() == skipped.replace("\u2581", " ").removeprefix(" ")
        assert a.skipped.decode() == "".join(
            tokens[i] for i in a.ids if tokens[i] not in ("</s>", "<unk>", "<pad>")
        ).replace("\u2581", " ").removeprefix(" ")


LONG = "x" * 96  # once copied into less


@pytest.mark.parametrize(
    "code", ["de_DE", "en", "fr_XX:de_DE", "de_DE:fr_XX", "a", LONG, LONG * 50, f"{LONG}:fr_XX"]
)
def test_languages_that_it_does_not_know(letters, run, code):
    done = run(letters[0], "-p", "cab", "--lang", code)
    assert done.returncode == 2
    assert "knows no language" in done.stderr and "en_XX fr_XX ro_RO" in done.stderr
