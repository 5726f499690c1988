"""Encoders against transformers: small random checkpoints of every family, with hidden states and
logits that transformers computed from the same files (tests/reference/make_encoders.py made them);
and what ./run does with them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import checkpoints
import numpy as np
import pytest
from conftest import ROOT

import export
from exporter.families.registry import canonical
from exporter.sources.huggingface import open_safetensors
from exporter.tensor import ExportError

GOLDEN = ROOT / "tests" / "golden" / "encoders"
NAMES = sorted(path.parent.name for path in GOLDEN.glob("*/golden.json"))
BARE = ("embedding-gemma", "roberta")  # without a head
TOLERANCE = 1e-4  # of the largest number, at every position
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def read_golden(directory: Path, golden: dict, what: str) -> np.ndarray:
    rows = np.load(directory / f"{what}.npy")
    return rows * np.float32(golden[what] / 32767) if rows.dtype == np.int16 else rows


def rows_of(run, binary: Path, what: str, texts: list[list[int]], *options) -> bytes:
    """The rows that --hidden or --logits writes of the texts, one after the other."""
    file, found = binary.with_suffix(".rows"), b""
    for text in texts:
        done = run(binary, "--tokens", " ".join(map(str, text)), f"--{what}", file, *options)
        assert done.returncode == 0, done.stderr
        found += file.read_bytes()
    return found


def measure(directory: Path, binary: Path, run) -> dict[str, float]:
    """The largest differences of hidden states and of logits, over the largest of them."""
    golden = json.loads((directory / "golden.json").read_text())
    errors = {}
    for what in ("hidden", "logits"):
        if what in golden:
            expected = read_golden(directory, golden, what)
            found = np.frombuffer(rows_of(run, binary, what, golden["texts"]), "<f4")
            difference = np.abs(found.reshape(expected.shape) - expected).max()
            errors[what] = float(difference / np.abs(expected).max())
    return errors


def exported(directory: Path, binary: Path, dtype: str = "f32") -> Path:
    assert export.main([str(directory), str(binary), "--dtype", dtype]) == 0
    return binary


def test_every_family_is_compared():
    """With a committed checkpoint or with fresh ones (tests/reference/live_models.py)."""
    import make_encoders
    from exporter.families.registry import DECODERS, ENCODER_DECODERS, ENCODERS

    assert NAMES == sorted(make_encoders.MODELS)
    every = {**make_encoders.MODELS, **make_encoders.MORE}
    others = {*DECODERS, *ENCODER_DECODERS}  # of which some are encoders if the config says so
    assert {kind for kind, *_ in every.values()} - others == set(ENCODERS)


@pytest.mark.parametrize("name", NAMES)
def test_hidden_states_and_logits_are_those_of_transformers(name, tmp_path, run):
    errors = measure(GOLDEN / name, exported(GOLDEN / name, tmp_path / "model.bin"), run)
    assert set(errors) == ({"hidden"} if name in BARE else {"hidden", "logits"})
    assert max(errors.values()) <= TOLERANCE, errors


@pytest.mark.parametrize("dtype", ["f32", "q8"])
@pytest.mark.parametrize("name", NAMES)
def test_a_text_has_the_same_bits_for_any_threads_and_chunk(name, dtype, tmp_path, run):
    binary = exported(GOLDEN / name, tmp_path / "model.bin", dtype)
    golden = json.loads((GOLDEN / name / "golden.json").read_text())
    texts = golden["texts"]
    for what in {"hidden", "logits"} & set(golden):
        first = rows_of(run, binary, what, texts, "-b", 128, "-t", 2)
        for options in (("-b", 1, "-t", 1), ("-b", 40, "-t", 3)):
            assert rows_of(run, binary, what, texts, *options) == first


def test_layers_share_weights(tmp_path, run):
    """A tensor may have the whole data of one before it, and no other part of the file."""
    path = exported(GOLDEN / "albert", tmp_path / "model.bin")
    data = path.read_bytes()

    def entry(name: str) -> int:
        return data.index(name.encode() + b"\0") - 40

    def offset(name: str) -> bytes:
        return data[entry(name) + 24 : entry(name) + 32]

    assert offset("layers.2.attn_q") == offset("layers.0.attn_q") != offset("layers.1.attn_q")
    for other in ("layers.2.ffn_up", "layers.9.attn_norm", "embed"):
        at = entry("layers.2.attn_k") + 24
        path.write_bytes(data[:at] + offset(other) + data[at + 8 :])
        done = run(path, "--info")
        assert done.returncode == 1 and "tensor layers.2.attn_k: data begin at byte" in done.stderr


# ---- texts ---------------------------------------------------------------------------------------


def with_texts(directory: Path, **files: object) -> Path:
    """The golden BERT with a tokenizer of letters, and these JSON files, "__" for a slash in their
    names, None for one that is left out."""
    shutil.copytree(GOLDEN / "bert", directory)
    config = json.loads((directory / "config.json").read_text())
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *("##" + c for c in LETTERS)]
    tokens += [".", ",", "(", ")"]
    assert len(tokens) == config["vocab_size"]
    (directory / "vocab.txt").write_text("".join(token + "\n" for token in tokens))
    kinds = ("Transformer", "Pooling", "Normalize")
    modules = [{"path": f"{i}_{k}" * (i > 0), "type": f"a.b.{k}"} for i, k in enumerate(kinds)]
    files = {
        "modules": modules,
        "1_Pooling__config": {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False},
        "sentence_bert_config": {"max_seq_length": 20, "do_lower_case": False},
        "tokenizer_config": {"tokenizer_class": "BertTokenizer"},
        **files,
    }
    for name, value in files.items():
        path = directory / (name.replace("__", "/") + ".json")
        path.parent.mkdir(exist_ok=True)
        if value is not None:
            path.write_text(json.dumps(value))
    return directory


def spell(text: str) -> list[int]:
    """Ids of lower-case words between [CLS] and [SEP]."""
    words = [
        [5 + LETTERS.index(c) + 26 * (i > 0) for i, c in enumerate(word)] for word in text.split()
    ]
    return [2, *(id for word in words for id in word), 3]


TEXTS = ["hello world", "a", "", "the quick brown fox jumps over it", "hello world", "zz top"]


def vectors(run, binary: Path, *options) -> np.ndarray:
    done = run(binary, "--embed", *options)
    assert done.returncode == 0, done.stderr
    return np.array([json.loads(line) for line in done.stdout.splitlines()], np.float32)


def expected_vector(run, binary: Path, text: str, mode: str, unit: bool, most: int) -> np.ndarray:
    ids = spell(text)
    if len(ids) > most:
        ids = [*ids[: most - 1], 3]
    rows = np.frombuffer(rows_of(run, binary, "hidden", [ids]), "<f4").reshape(len(ids), -1)
    n = len(ids)
    pooled = {
        "mean": rows.mean(0),
        "cls": rows[0],
        "max": rows.max(0),
        "last": rows[-1],
        "weighted": np.arange(1, n + 1) @ rows / (n * (n + 1) / 2),
        "sqrt": rows.sum(0) / n**0.5,
    }[mode]
    return pooled / np.linalg.norm(pooled) if unit else pooled


@pytest.mark.parametrize(
    "mode, key",
    [
        ("mean", "mean_tokens"),
        ("cls", "cls_token"),
        ("max", "max_tokens"),
        ("last", "lasttoken"),
        ("weighted", "weightedmean_tokens"),
        ("sqrt", "mean_sqrt_len_tokens"),
    ],
)
def test_embed_pools_as_the_checkpoint_says(tmp_path, run, mode, key):
    source = with_texts(tmp_path / "source", **{"1_Pooling__config": {f"pooling_mode_{key}": True}})
    binary = exported(source, tmp_path / "model.bin")
    (tmp_path / "texts").write_text("\n".join(TEXTS) + "\n")
    found = vectors(run, binary, "-f", tmp_path / "texts")
    expected = [expected_vector(run, binary, text, mode, True, 20) for text in TEXTS]
    assert np.abs(found - np.array(expected)).max() < 1e-6
    (tmp_path / "texts").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(TEXTS).encode())
    assert np.array_equal(vectors(run, binary, "-f", tmp_path / "texts"), found)


DENSE = {"in_features": 36, "out_features": 50, "activation_function": "torch.nn.Tanh"}


def with_dense(
    directory: Path, unit: bool, *configs: dict, change=None, pooled: bool = True
) -> list[dict]:
    """BERT with Dense modules after its mean, or of each token; returns their tensors."""
    from safetensors.numpy import save_file

    kinds = ["Transformer", "Pooling", *["Dense"] * len(configs), *["Normalize"] * unit]
    if not pooled:
        kinds[1] = "Dense"
        kinds[1 + len(configs)] = "MultiVectorMask"
    modules = [{"path": f"{i}_{k}" * (i > 0), "type": f"a.b.{k}"} for i, k in enumerate(kinds)]
    with_texts(directory, modules=modules)
    made = []
    for i, config in enumerate(configs):
        folder = directory / f"{i + 1 + pooled}_Dense"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        rng = np.random.default_rng(i)
        rows, width = config["out_features"], config["in_features"]
        tensors = {"linear.weight": rng.normal(0, width**-0.5, (rows, width)).astype(np.float32)}
        if config.get("bias", True):
            tensors["linear.bias"] = rng.normal(0, 0.3, rows).astype(np.float32)
        if change:
            change(tensors)
        save_file(tensors, folder / "model.safetensors")
        made.append(tensors)
    return made


@pytest.mark.parametrize("unit", [False, True])
def test_dense_modules(tmp_path, run, unit):
    second = {"in_features": 50, "out_features": 7, "bias": False}
    second["activation_function"] = "torch.nn.modules.linear.Identity"
    made = with_dense(tmp_path / "source", unit, DENSE, second)
    binary = exported(tmp_path / "source", tmp_path / "model.bin", "q8")
    (tmp_path / "texts").write_text("\n".join(TEXTS) + "\n")
    found = vectors(run, binary, "-f", tmp_path / "texts")
    x = np.array([expected_vector(run, binary, text, "mean", False, 20) for text in TEXTS])
    x = np.tanh(x @ made[0]["linear.weight"].T + made[0]["linear.bias"])
    x = x @ made[1]["linear.weight"].T
    expected = x / np.linalg.norm(x, axis=1, keepdims=True) if unit else x
    assert found.shape == (len(TEXTS), 7) and np.abs(found - expected).max() < 1e-5
    done = run(binary, "--similar", "a", "-f", tmp_path / "texts")
    assert done.stdout.decode().splitlines()[0] == "1.0000\ta"


@pytest.mark.parametrize(
    "config, said",
    [
        ({"activation_function": "torch.nn.Mish"}, "activation_function is 'torch.nn.Mish'"),
        ({"activation_function": "my.Tanh"}, "activation_function is 'my.Tanh'"),
        ({"use_residual": True}, "use_residual is True"),
        ({"in_features": 35}, "in_features is 35"),
        ({"strange": 1}, "2_Dense/config.json: strange"),
    ],
)
def test_dense_modules_that_are_refused(tmp_path, capsys, config, said):
    with_dense(tmp_path / "source", False, {**DENSE, **config})
    assert export.main([str(tmp_path / "source"), str(tmp_path / "model.bin")]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda t: t.pop("linear.bias"), "2_Dense lacks the tensor linear.bias"),
        (lambda t: t.update(more=t["linear.bias"]), "2_Dense holds more"),
    ],
)
def test_dense_tensors_that_are_refused(tmp_path, capsys, change, said):
    with_dense(tmp_path / "source", False, DENSE, change=change)
    assert export.main([str(tmp_path / "source"), str(tmp_path / "model.bin")]) == 1
    assert said in capsys.readouterr().err


OF_TOKENS = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}


@pytest.mark.parametrize("unit", [False, True])
def test_a_vector_for_each_token(tmp_path, run, capsys, unit):
    """ColBERT: hidden states through Dense; lines by the sums of the most alike (MaxSim)."""
    (made,) = with_dense(tmp_path / "source", unit, {**DENSE, **OF_TOKENS}, pooled=False)
    mask = tmp_path / "source" / "2_MultiVectorMask"
    mask.mkdir()
    (mask / "config.json").write_text('{"skiplist_words": ["!"]}')
    binary = exported(tmp_path / "source", tmp_path / "model.bin")
    assert "leave these out of documents yourself: ['!']" in capsys.readouterr().err
    (tmp_path / "texts").write_text("\n".join(TEXTS) + "\n")
    done = run(binary, "--embed", "-f", tmp_path / "texts")
    found = [np.array(json.loads(line)) for line in done.stdout.splitlines()]
    expected = []
    for text in TEXTS:
        ids = spell(text) if len(spell(text)) <= 20 else [*spell(text)[:19], 3]
        rows = np.frombuffer(rows_of(run, binary, "hidden", [ids]), "<f4").reshape(-1, 36)
        x = np.tanh(rows @ made["linear.weight"].T + made["linear.bias"])
        expected.append(x / np.linalg.norm(x, axis=1, keepdims=True) if unit else x)
    for a, b in zip(found, expected):
        assert a.shape == b.shape == (len(b), 50) and np.abs(a - b).max() < 1e-5
    same = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in expected]
    scores = [float((same[1] @ x.T).max(1).sum()) for x in same]
    done = run(binary, "--similar", TEXTS[1], "-f", tmp_path / "texts")
    printed = [line.split("\t") for line in done.stdout.decode().splitlines()]
    order = np.argsort(-np.array(scores).round(9), kind="stable")
    assert [text for _, text in printed] == [TEXTS[i] for i in order]
    assert [float(score) for score, _ in printed] == pytest.approx(sorted(scores)[::-1], abs=1e-4)


@pytest.mark.parametrize("unit", [True, False])
def test_vectors_are_shortened(tmp_path, run, capsys, unit):
    """By the checkpoint, by an option, or by both: cut, and of length 1 again where they were."""
    pooling = {} if unit else {"modules": [{"path": "", "type": "a.Transformer"},
                                           {"path": "1_Pooling", "type": "a.Pooling"}]}  # fmt: skip
    whole = exported(with_texts(tmp_path / "whole", **pooling), tmp_path / "whole.bin")
    short = {"config_sentence_transformers": {"truncate_dim": 8}}
    short = exported(with_texts(tmp_path / "short", **pooling, **short), tmp_path / "short.bin")
    (tmp_path / "texts").write_text("\n".join(TEXTS) + "\n")

    def cut(x: np.ndarray, n: int) -> np.ndarray:
        return x[:, :n] / (np.linalg.norm(x[:, :n], axis=1, keepdims=True) if unit else 1)

    all = vectors(run, whole, "-f", tmp_path / "texts")
    for found, n in (
        (vectors(run, short, "-f", tmp_path / "texts"), 8),
        (vectors(run, whole, "-f", tmp_path / "texts", "--dimensions", 8), 8),
        (vectors(run, short, "-f", tmp_path / "texts", "--dimensions", 3), 3),
        (vectors(run, whole, "-f", tmp_path / "texts", "--dimensions", 36), 36),
    ):
        assert found.shape == (len(TEXTS), n) and np.abs(found - cut(all, n)).max() < 1e-6
    done = run(whole, "--similar", "a", "-f", tmp_path / "texts", "--dimensions", 5)
    near = cut(all, 5) / np.linalg.norm(cut(all, 5), axis=1, keepdims=True)
    assert [float(x.split("\t")[0]) for x in done.stdout.decode().splitlines()] == pytest.approx(
        sorted(near @ near[1])[::-1], abs=1e-4
    )
    for binary, n in ((whole, 37), (short, 9)):
        done = run(binary, "--embed", "-p", "a", "--dimensions", n)
        assert done.returncode == 1 and f"cannot have {n} dimensions" in done.stderr


def test_the_length_without_modules_is_the_tokenizers(tmp_path, run, capsys):
    """sentence_bert_config.json is a module's, which sentence-transformers does not read then."""
    limit = {"tokenizer_class": "BertTokenizer", "model_max_length": 50}
    source = with_texts(tmp_path / "source", modules=None, tokenizer_config=limit)
    binary = exported(source, tmp_path / "model.bin")
    long = " ".join(["abc"] * 100)
    found = vectors(run, binary, "-p", long)
    assert np.abs(found - expected_vector(run, binary, long, "mean", False, 50)).max() < 1e-5


def test_embed_without_sentence_transformers_files(tmp_path, run, capsys):
    source = with_texts(tmp_path / "source", modules=None, sentence_bert_config=None)
    binary = exported(source, tmp_path / "model.bin")
    assert "--embed takes the mean of the hidden states" in capsys.readouterr().err
    long = " ".join(["abc"] * 100)
    found = vectors(run, binary, "-p", long)
    assert np.abs(found - expected_vector(run, binary, long, "mean", False, 130)).max() < 1e-5


def test_truncation_of_a_tokenizer_json(tmp_path, run):
    """transformers sets it anew for every call: a text is whole, or cut at max_seq_length."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    source = with_texts(tmp_path / "source", tokenizer_config={"truncation_side": "right"})
    vocab = {t: i for i, t in enumerate((source / "vocab.txt").read_text().splitlines())}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.enable_truncation(8, stride=3, strategy="only_first", direction="left")
    tokenizer.save(str(source / "tokenizer.json"))
    binary = exported(source, tmp_path / "model.bin")
    text = "the quick brown fox jumps over it"
    assert [int(id) for id in run(binary, "-p", text, "--tokenize").stdout.split()] == spell(text)
    found = vectors(run, binary, "-p", text)
    assert np.abs(found - expected_vector(run, binary, text, "mean", True, 20)).max() < 1e-6


@pytest.mark.parametrize("dtype", ["f32", "q8"])
def test_a_vector_is_the_same_alone_or_among_others(tmp_path, run, dtype):
    binary = exported(with_texts(tmp_path / "source"), tmp_path / "model.bin", dtype)
    lines = [" ".join(LETTERS[i % 7 : i % 7 + j % 9] for j in range(i % 12)) for i in range(200)]
    (tmp_path / "texts").write_text("\n".join(lines))
    whole = run(binary, "--embed", "-f", tmp_path / "texts").stdout
    for options in (("-t", 1), ("-t", 3, "-b", 5), ("-b", 1), ("-b", 700)):
        assert run(binary, "--embed", "-f", tmp_path / "texts", *options).stdout == whole
    for i in (0, 7, 101, 199):
        assert run(binary, "--embed", "-p", lines[i]).stdout == whole.splitlines(True)[i]


def test_similar_ranks_lines(tmp_path, run):
    binary = exported(with_texts(tmp_path / "source"), tmp_path / "model.bin")
    (tmp_path / "texts").write_text("\n".join(TEXTS))
    done = run(binary, "--similar", "hello world", "-f", tmp_path / "texts")
    assert done.returncode == 0, done.stderr
    lines = [line.split("\t") for line in done.stdout.decode().splitlines()]
    every = np.array([expected_vector(run, binary, text, "mean", True, 20) for text in TEXTS])
    cosines = every @ every[0]
    order = sorted(range(len(TEXTS)), key=lambda i: (-round(float(cosines[i]), 5), i))
    assert [text for _, text in lines] == [TEXTS[i] for i in order]
    assert [float(c) for c, _ in lines] == pytest.approx([cosines[i] for i in order], abs=1e-4)


def test_masks_are_filled(tmp_path, run):
    source = with_texts(tmp_path / "source")
    binary = exported(source, tmp_path / "model.bin")
    done = run(binary, "-p", "(The [MASK]) of it, [MASK].")
    assert done.returncode == 0, done.stderr
    tokens = (source / "vocab.txt").read_text().split()
    ids = [2, 59, 24, 38, 35, 4, 60, 19, 36, 13, 50, 58, 4, 57, 3]
    rows = np.frombuffer(rows_of(run, binary, "logits", [ids]), "<f4").reshape(len(ids), -1)
    said = []
    for at in (5, 12):
        p = np.exp(rows[at] - rows[at].max())
        p /= p.sum()
        best = np.argsort(-p)[:5]
        said.append([(tokens[i].removeprefix("##"), float(p[i])) for i in best])
    lines = [line for line in done.stderr.splitlines() if line.startswith("mask ")]
    assert len(lines) == len(said)
    for line, expected in zip(lines, said):
        found = [item.split(" ") for item in line.partition(": ")[2].split(", ")]
        assert [word for word, _ in found] == [word for word, _ in expected]
        assert [float(p) for _, p in found] == pytest.approx([p for _, p in expected], abs=1e-4)
    filled = "(The [MASK]) of it, [MASK]."
    for at, (word, _) in zip((5, 12), [s[0] for s in said]):
        joined = tokens[int(rows[at].argmax())].startswith("##")
        filled = filled.replace(" [MASK]" if joined else "[MASK]", word, 1)
    assert done.stdout.decode() == filled + "\n"


def test_masks_beyond_the_context_that_the_model_was_made_for(tmp_path, run):
    """-c as in --hidden: words and their shares are those of a model that was made for as much."""
    letters = exported(with_texts(tmp_path / "source"), tmp_path / "letters.bin").read_bytes()
    meta, tensors = checkpoints.parse(
        exported(GOLDEN / "modernbert", tmp_path / "m.bin").read_bytes()
    )
    meta |= {k: m for k, m in checkpoints.parse(letters)[0].items() if k.startswith("tokenizer.")}
    found = []
    for made_for, options in ((300, ()), (130, ("-c", 300)), (130, ())):
        context = np.array([made_for], "<i4").tobytes()
        meta["model.context"] = meta["model.context"]._replace(values=context)
        (tmp_path / "m.bin").write_bytes(checkpoints.build(meta, tensors))
        found.append(run(tmp_path / "m.bin", "-p", "a [MASK] b" + " c" * 250 + "[MASK]", *options))
    larger, raised, refused = found
    assert larger.returncode == raised.returncode == 0, raised.stderr
    assert raised.stdout == larger.stdout
    shares = [line for line in larger.stderr.splitlines() if line.startswith("mask ")]
    assert len(shares) == 2 and raised.stderr.splitlines()[1:] == shares
    assert refused.returncode == 2 and "room for 130; shorten it" in refused.stderr


# ---- what is refused -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def texts_model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    return exported(with_texts(folder / "source"), folder / "model.bin")


@pytest.mark.parametrize("options", [("--chat",), ("--bench",), ("--ppl", "x"), ("--batch", "x")])
def test_verbs_that_generate(texts_model, run, options):
    done = run(texts_model, *options)
    assert done.returncode == 2
    assert "is an encoder: it reads texts as a whole" in done.stderr


def named_verbs_work(run, model: Path, folder: Path, *target: str) -> set[str]:
    """Those that a refusal lists."""
    listed = run(model, "--chat").stderr.partition("it has -p")[2].partition("(")[0]
    names = set(re.findall(r"--\w+", listed))
    (folder / "lines").write_text("a\nb\n")
    (folder / "jobs").write_text(json.dumps({"tokens": [5], "max_tokens": 1}))
    given = {
        **dict.fromkeys(("--kv", "--info", "--check"), ()),
        **dict.fromkeys(("--tokenize", "--embed"), ("-p", "a")),
        **dict.fromkeys(("--logits", "--hidden"), (folder / "x", "-p", "a", *target)),
        **dict.fromkeys(("--heads", "--lens"), (folder / "x.json", "-p", "a", *target)),
        "--similar": ("a", "-f", folder / "lines"),
        "--batch": (folder / "jobs",),
    }
    for name in names:
        done = run(model, name, *given[name])
        assert done.returncode == 0, (name, done.stderr)
    return names


def test_a_refusal_names_what_works(texts_model, run, tmp_path):
    names = named_verbs_work(run, texts_model, tmp_path)
    assert {"--embed", "--similar", "--kv", "--heads"} <= names and "--batch" not in names


@pytest.mark.parametrize(
    "option", [("-n", 3), ("--temp", 0), ("-ctk", "q8"), ("--lookup", 3), ("--prompt-cache", "x")]
)
def test_options_of_texts_that_grow(texts_model, run, option):
    done = run(texts_model, "-p", "a [MASK]", *option)
    assert done.returncode == 2
    assert f"so {option[0]} means nothing for it" in done.stderr


def test_other_refusals(texts_model, run, tmp_path, tiny):
    assert "has no mask to fill; write [MASK]" in run(texts_model, "-p", "abc").stderr
    assert "keeps no KV cache between tokens" in run(texts_model, "--kv").stdout.decode()
    assert json.loads(run(texts_model, "--kv", "--json").stdout)["encoder"] is True
    assert "no KV cache to compare" in run(texts_model, tiny, "--kv").stderr
    assert "so --svg means nothing" in run(texts_model, "--kv", "--svg", "x.svg").stderr
    assert "the context has room for 130" in run(texts_model, "-p", "a " * 200).stderr
    assert "--embed needs a text" in run(texts_model, "--embed").stderr
    assert "modules.json" in run(tiny, "--embed", "-p", "a").stderr
    info = run(texts_model, "--info").stdout.decode()
    assert "shape        encoder, 2 layers" in info


def test_a_decoder_has_hidden_states(tmp_path, run, tiny, bare):
    """Those that its output matrix makes the logits of; in chunks, too."""
    from exporter.checkpoint import Checkpoint

    ids = " ".join(str(i * 7 % 300) for i in range(100))
    found = {}
    for what in ("hidden", "logits"):
        done = run(bare, "--tokens", ids, f"--{what}", tmp_path / what, "-b", 33)
        assert done.returncode == 0, done.stderr
        found[what] = np.fromfile(tmp_path / what, "<f4").reshape(100, -1)
    file = Checkpoint(str(bare))
    output = file.tensor("output" if "output" in file.tensors else "embed")
    logits = found["hidden"] @ output.T
    assert np.abs(logits - found["logits"]).max() < 0.03 * np.abs(found["logits"]).max()


def refusal(name: str, rename=None, **changes) -> str:
    """What the exporter says to a golden checkpoint whose config, or whose tensors' names, are
    changed, "" if it takes it."""
    directory = GOLDEN / name
    config = {**json.loads((directory / "config.json").read_text()), **changes}
    tensors = open_safetensors(str(directory / "model.safetensors"))
    if rename:
        tensors[rename] = next(iter(tensors.values()))
    try:
        canonical(config, tensors)
    except ExportError as error:
        return str(error)
    return ""


FLAGS = dict(
    position_embedding_type="relative_key",
    is_decoder=True,
    add_cross_attention=True,
    use_mrope=True,
    attn_logit_softcapping=50.0,
    sliding_window=7,
    num_local_experts=8,
    quantization_config=dict(quant_method="gptq"),
    hidden_act_dropout_of_tomorrow=1,
    use_bidirectional_attention=False,
    is_encoder_decoder=True,
    rotary_fraction=0.5,
    hidden_activation_of_tomorrow="gelu",
)
GEMMA = ("embedding-gemma",)
READ = {
    "is_decoder": ("bert", "roberta"),  # which are decoders then
    "attn_logit_softcapping": GEMMA,
    "sliding_window": GEMMA,
    "use_bidirectional_attention": GEMMA,  # likewise
}


@pytest.mark.parametrize("name", NAMES)
def test_what_a_config_must_not_ask_for(name):
    config = json.loads((GOLDEN / name / "config.json").read_text())
    assert refusal(name) == ""
    for key in ("hidden_act", "hidden_activation", "activation", "classifier_activation"):
        if config.get(key):
            assert f"{key} is 'mish', which is not supported" in refusal(name, **{key: "mish"})
    for key, value in FLAGS.items():
        if name in READ.get(key, ()):
            continue
        assert key in refusal(name, **{key: value}), f"{key} = {value!r} is taken"


@pytest.mark.parametrize("name", NAMES)
def test_shapes_of_encoders_are_refused(name, tmp_path, capsys):
    (tmp_path / "config.json").write_bytes((GOLDEN / name / "config.json").read_bytes())
    assert export.main([str(tmp_path), str(tmp_path / "x.shape"), "--shape-only"]) == 1
    assert "is an encoder, which keeps no KV cache to plan for" in capsys.readouterr().err
    assert not (tmp_path / "x.shape").exists()


@pytest.mark.parametrize(
    "head, what",
    [
        ("classifier.weight", "a head for classes, which config.json's architectures does not"),
        ("qa_outputs.weight", "a head that answers questions"),
        ("discriminator_predictions.dense.weight", "a head for classes"),
    ],
)
def test_other_heads_are_refused_by_name(head, what):
    said = refusal("bert", rename=head)
    assert head in said and what in said


def test_a_tokenizer_without_a_decoder(tmp_path):
    """Nothing decodes what an encoder gives."""
    source = shutil.copytree(GOLDEN / "bert", tmp_path / "source")
    mark = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"}
    vocab = [[token, -1.0] for token in ("<unk>", "\u2581", "a", "b")]
    model = {"type": "Unigram", "unk_id": 0, "vocab": vocab}
    parts = {"model": model, "pre_tokenizer": mark, "decoder": None, "normalizer": None}
    (source / "tokenizer.json").write_text(json.dumps(parts))
    assert export.main([str(source), str(tmp_path / "x.bin"), "--dtype", "f32"]) == 0


MODULES = [
    (dict(modules=[{"type": "a.Dense"}, {"type": "a.Transformer"}]), "Dense, Transformer"),
    (dict(modules={"a": 1}), "modules.json: expected an array"),
    *(
        (
            dict(modules=[{"type": "a.Transformer"}, {"type": "a.Pooling", "path": path}]),
            f"modules.json: the path of Pooling is {path!r}, expected a folder",
        )
        for path in (1, False, ["a"], "../source", "a/../..", "/etc")
    ),
    ({"1_Pooling__config": {"pooling_mode_attention_tokens": True}}, "attention_tokens"),
    (
        {"1_Pooling__config": {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}},
        "expected one of",
    ),
    ({"1_Pooling__config": {"pooling_mode": "attention"}}, "pooling_mode is 'attention'"),
    (dict(sentence_bert_config={"max_seq_length": 20, "do_lower_case": True}), "do_lower_case"),
    (dict(sentence_bert_config={"max_seq_length": 0}), "max_seq_length is 0"),
    (dict(sentence_bert_config={"transformer_task": "seq2seq"}), "transformer_task"),
    (
        dict(
            config_sentence_transformers={"default_prompt_name": "q", "prompts": {"q": "query: "}}
        ),
        "default_prompt_name is 'q'",
    ),
    (
        dict(tokenizer={"truncation": {"direction": "Left", "max_length": 8}}),
        "tokenizer.json: truncation.direction is 'Left'",
    ),
    (dict(tokenizer_config={"truncation_side": "left"}), "truncation_side is 'left'"),
]


@pytest.mark.parametrize("files, message", MODULES)
def test_sentence_transformers_files_that_are_refused(tmp_path, capsys, files, message):
    source = with_texts(tmp_path / "source", **files)
    assert export.main([str(source), str(tmp_path / "model.bin")]) == 1
    assert message in capsys.readouterr().err
