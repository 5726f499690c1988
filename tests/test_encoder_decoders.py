"""Encoder-decoders against transformers: small random checkpoints of every family, with logits and
greedy texts that transformers computed from the same files
(tests/reference/make_encoder_decoders.py made them); and what ./run does with them."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import export
from exporter.families import canonical
from exporter.generation import generation_rules
from exporter.huggingface import open_safetensors
from exporter.tensor import ExportError

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))
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
    assert len(texts) == len(golden)
    return [i for i, (a, b) in enumerate(zip(golden, texts)) if b[: len(a)] != a]


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
            sequence = calls.sequence_new(model.workspace, shared)
            run_of = Run(sequence, int_array(source), len(source), 0)
            calls.read_sources(model.workspace, byref(run_of), 1)
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
                    calls.read_sources(model.workspace, byref(other), 1)
            calls.sequence_free(parent)
            loaded = calls.sequence_load(model.workspace, str(tmp_path / "saved").encode())
            assert rows(loaded, target[33:]) == plain[33:]
            assert rows(empty, target) == plain
            assert rows(fork, target[20:]) == plain[20:]
            assert rows(grandchild, target[7:]) == plain[7:]
            # Another source in the place of what was mapped.
            calls.sequence_rewind(loaded, 0)
            again = Run(loaded, int_array(golden["sources"][2]), 17, 0)
            calls.read_sources(model.workspace, byref(again), 1)
            assert rows(loaded, target) == rows(read(0, golden["sources"][2]), target) != plain
            for sequence in (loaded, empty, fork, grandchild):
                calls.sequence_free(sequence)


# ---- texts ---------------------------------------------------------------------------------------

CODES = ("en_XX", "fr_XX", "ro_RO")


def with_letters(directory: Path) -> Path:
    """The golden mBART with a tokenizer of letters, and languages."""
    shutil.copytree(GOLDEN / "mbart", directory)
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "\u2581", *"abcdefghijklmnopqrstuvwxyz", *CODES]
    tokens += [f"<{i}>" for i in range(61 - len(tokens))]
    ids = {token: id for id, token in enumerate(tokens)}
    mark = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"}
    around = [{"SpecialToken": {"id": "en_XX", "type_id": 0}}, {"Sequence": {"id": "A",
              "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}]  # fmt: skip
    special = {t: {"id": t, "ids": [ids[t]], "tokens": [t]} for t in ("en_XX", "</s>")}
    added = [
        dict(id=ids[t], content=t, special=True, normalized=False, single_word=False, lstrip=False,
             rstrip=False) for t in (*tokens[:4], *CODES)
    ]  # fmt: skip
    (directory / "tokenizer.json").write_text(json.dumps({
        "model": {"type": "Unigram", "unk_id": 3, "vocab": [[t, -2.0] for t in tokens]},
        "normalizer": None, "pre_tokenizer": mark, "decoder": mark, "added_tokens": added,
        "post_processor": {"type": "TemplateProcessing", "single": around, "pair": around,
                           "special_tokens": special},
    }))  # fmt: skip
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
            done = run(binary, "--tokens", spelled([ids[source], *spell]), "--target",
                       spelled(text), "--logits", file)  # fmt: skip
            assert done.returncode == 0, done.stderr
            rows = np.fromfile(file, "<f4").reshape(len(text), -1)
            text.append(2 if len(text) == 12 else int(rows[-1].argmax()))
        tokens = list(ids)
        shown = "".join(tokens[i] for i in text if tokens[i] not in (*CODES, *tokens[:4]))
        return shown.replace("\u2581", " ").removeprefix(" ")

    for option, source, first in (((), "en_XX", []), (("--lang", "fr_XX"), "en_XX", ["fr_XX"]),
                                  (("--lang", "ro_RO:fr_XX"), "ro_RO", ["fr_XX"])):  # fmt: skip
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
        done = run(binary, "--tokens", spelled(source), "--target", spelled(start + target),
                   "--logits", file)  # fmt: skip
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
        for refused in (model.perplexity, model.attention, lambda text: model.chat(
                [{"role": "user", "content": text}])):  # fmt: skip
            with pytest.raises(heads.HeadsError, match="is an encoder-decoder"):
                refused("cab")


def test_a_language_for_each_request(letters, run, tmp_path):
    """In a batch, in Python: what --lang gives for the one request alone."""
    import heads
    import heads.ray

    binary, ids = letters
    source = [ids["en_XX"], ids["\u2581"], ids["c"], ids["</s>"]]
    requests = [{"prompt": text, "lang": lang} for lang in ("fr_XX", "ro_RO", "fr_XX:ro_RO")
                for text in ("cab", "a bad egg")]  # fmt: skip
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
        assert list(scores) == [model.score(["cab"], ["egg"], lang=lang)[0][0]
                                for lang in ("fr_XX", None)]  # fmt: skip


@pytest.mark.parametrize("lang, message", [
    ('"de_DE"', 'the model knows no language "de_DE"; it has en_XX fr_XX ro_RO'),
    ('"de_DE:fr_XX"', 'the model knows no language "de_DE"'),
    ('"fr_XX\\u0000"', '"lang" is a string: the language to write, or FROM:TO'),
    ("5", '"lang" is a string'),
])  # fmt: skip
def test_a_wrong_language_is_an_error_of_its_line(letters, run, tmp_path, lang, message):
    file = tmp_path / "in"
    file.write_text(f'{{"id": 3, "prompt": "a", "lang": {lang}}}\n{{"prompt": "a"}}\n')
    done = run(letters[0], "--batch", file)
    bad, good = map(json.loads, done.stdout.splitlines())
    assert done.returncode == 1 and bad["id"] == 3 and bad["error"].startswith(message)
    assert "text" in good
    done = run(letters[0], "--batch", file, "--lang", "de_DE")
    assert done.returncode == 2 and done.stdout == b"" and "--lang: the model" in done.stderr


def test_a_decoder_writes_no_language(run, tiny, tmp_path):
    (tmp_path / "in").write_text('{"tokens": [5], "lang": "fr"}')
    found = json.loads(run(tiny, "--batch", tmp_path / "in").stdout)
    assert found == {"error": '"lang" means nothing here: the model is no encoder-decoder'}


def test_texts_of_tokens_in_the_head_page(letters, tmp_path, run):
    binary, ids = letters
    done = run(binary, "-p", "a cab", "--lang", "ro_RO:fr_XX", "-n", 9, "--heads", tmp_path / "x.json")
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
    (directory / "tokenizer_config.json").write_text(json.dumps({**config, "separate_vocabs": True}))
    import tokenizer_texts as texts

    from exporter.tokenizer_files import tokenizer_metadata

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


@pytest.mark.parametrize("code", ["de_DE", "en", "fr_XX:de_DE", "de_DE:fr_XX", "a"])
def test_languages_that_it_does_not_know(letters, run, code):
    done = run(letters[0], "-p", "cab", "--lang", code)
    assert done.returncode == 2
    assert "knows no language" in done.stderr and "en_XX fr_XX ro_RO" in done.stderr


# ---- what is refused -----------------------------------------------------------------------------


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
    return HARMLESS - ({"pad_token_id"} if config["model_type"] == "m2m_100" else set())


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


RULE_KEYS = {
    "model.source_layers": 1, "model.start": 3, "model.last": 3, "model.least": 3, "model.eos": 3,
    "model.most": 9, "model.no_repeat": 2, "model.banned": 3, "model.banned.begin": [0, 1],
    "model.greedy": 1, "model.languages": 3,
}  # fmt: skip
SOURCE_TENSORS = ("cross_q", "cross_k", "cross_v", "cross_o", "cross_norm", "source_embed",
                  "source_embed_pos", "source_embed_norm", "source_norm")  # fmt: skip


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


@pytest.mark.parametrize("meta, message", [
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
    (dict(model__banned=[3, 4], model__banned__begin=[0, 2, 1, 2]), "less than the one before it"),
    (dict(model__banned=[3, 4], model__banned__begin=[0, 2, 2]), "begin: row 1 is empty"),
    (dict(model__source_layers=None), "knob model.start is not known"),
    (dict(model__source_layers=4), "metadata model.source_layers"),
    (dict(model__source_layers=1), "layer 1: layer.mask is 1, but model.source_layers is 1"),
    (dict(layer__topology=1), "layer.topology 0 or 2"),
    (dict(drop="layers.2.cross_k"), "tensor layers.2.cross_k is missing"),
    (dict(drop="layers.3.cross_norm"), "tensor layers.3.cross_norm is missing"),
])  # fmt: skip
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


@pytest.mark.parametrize("options, message", [
    (("--chat",), "is an encoder-decoder"),
    (("--bench",), "is an encoder-decoder"),
    (("--ppl", "x"), "is an encoder-decoder"),
    (("-p", "a", "--embed"), "is an encoder-decoder"),
    (("-p", "a", "-md", "x"), "--lookup guesses for it"),
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
