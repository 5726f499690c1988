"""--heads: attention weights against transformers, the scores against their formulas in numpy,
roles of heads made by hand, the page, and that looking changes nothing."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

import chats
import export
import head_files
from chat_templates import EXACT
from conftest import ROOT
from head_files import array_of, attention_layers, heads_of, ids_of, shape_of
from heads._native import Look, Probe, Run, byref, calls, int_array
from test_golden import GOLDEN, NAMES

TOLERANCE = 1e-5  # of a weight
SUM = 2e-5  # of a row, of six digits a weight
SEE_ALL = sorted(
    str(path.parent.relative_to(GOLDEN))
    for kind in ("encoders", "encoder_decoders")
    for path in GOLDEN.glob(f"{kind}/*/golden.json")
)
F32_CACHE = ("-ctk", "f32", "-ctv", "f32")


def in_f32(name: str, folder: Path) -> Path:
    path = folder / f"{Path(name).name}.bin"
    assert export.main([str(GOLDEN / name), str(path), "--dtype", "f32"]) == 0
    return path


def prompt_of(name: str) -> str:
    return " ".join(map(str, json.loads((GOLDEN / name / "golden.json").read_text())["prompt"]))


def rows_of(head: dict, shape: tuple[int, int] | None = None) -> np.ndarray:
    """What each row and its sink add up to."""
    return array_of(head, shape).sum(1) + np.array(head.get("sink", 0.0))


# ---- weights ----


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_those_of_transformers(name, tmp_path, run):
    golden = np.load(GOLDEN / name / "attention.npz")
    assert json.loads(str(golden["made"]))["transformers"] == "5.23.0"
    model, prompt = in_f32(name, tmp_path), prompt_of(name)
    data = heads_of(model, tmp_path / "x.json", "--tokens", prompt, *F32_CACHE)
    layers = attention_layers(data)
    assert len(layers) == len(golden.files) - 2  # "made" and "positions"
    for i, found in enumerate(layers):
        assert np.abs(found[:, golden["positions"]] - golden[str(i)]).max() <= TOLERANCE
    for layer in data["layers"]:
        for head in layer.get("heads", []):
            assert np.abs(rows_of(head) - 1).max() <= SUM


def texts_of(name: str, i: int) -> tuple[str, ...]:
    """As options, text number i of a golden encoder, or source and target."""
    golden = json.loads((GOLDEN / name / "golden.json").read_text())
    texts = [(golden.get("texts") or golden["sources"])[i], golden.get("targets", [None] * 9)[i]]
    spelled = [" ".join(map(str, ids)) for ids in texts if ids]
    return "--tokens", spelled[0], *(("--target", spelled[1]) if texts[1] else ())


@pytest.mark.parametrize("name", SEE_ALL)
def test_weights_of_encoders_and_encoder_decoders(name, tmp_path, run):
    golden = np.load(GOLDEN / name / "attention.npz")
    assert json.loads(str(golden["made"]))["transformers"] == "5.23.0"
    model, left = in_f32(name, tmp_path), set(golden.files) - {"made", "rounding"}
    tolerance = max(TOLERANCE, 2 * float(golden["rounding"]))
    texts = {key.split(".")[0] for key in left}
    assert len(texts) == (2 if "decoders" in name else 1)
    for i in texts:
        more = () if name.startswith("encoders") else F32_CACHE
        data = heads_of(model, tmp_path / "x.json", *texts_of(name, int(i)), *more)
        for layer in data["layers"]:
            key, shape = f"{i}.{layer['kind']}.{layer['layer']}", shape_of(data, layer)
            found = np.stack([array_of(head, shape) for head in layer["heads"]])
            n = found.shape[1]
            want = golden[key]
            assert np.abs(found[:, [1, n // 2, n - 1]] - want).max() <= tolerance, key
            assert np.abs(found.sum(2) - 1).max() <= SUM
            left.remove(key)
    assert not left


def test_what_it_says_of_layers(tmp_path, run):
    """Mixers, windows, shared keys, sinks, and which query heads share a KV head."""
    found = {}
    for name in ("lfm3", "qwen3_next", "deepseek_v3", "gemma4", "gpt_oss", "nemotron_h"):
        model = in_f32(name, tmp_path)
        found[name] = heads_of(model, tmp_path / "x.json", "--tokens", prompt_of(name))["layers"]
    assert [layer["mixer"] for layer in found["lfm3"]] == ["short convolution"] + ["attention"] * 2
    assert found["lfm3"][0].keys() == {"layer", "mixer"}
    assert [layer["window"] for layer in found["lfm3"][1:]] == [0, 9]
    assert found["qwen3_next"][0]["mixer"] == "gated DeltaNet"
    assert found["deepseek_v3"][0]["mixer"] == "latent attention"
    assert [layer["mixer"] for layer in found["nemotron_h"][:3]] == ["Mamba-2", "none", "attention"]
    assert found["deepseek_v3"][0]["n_kv_heads"] == 1
    assert [layer.get("kv_source") for layer in found["gemma4"]] == [None, None, 0, 1]
    heads = found["gpt_oss"][1]["heads"]
    assert [head["kv_head"] for head in heads] == [0, 0, 0, 1, 1, 1]
    assert min(min(head["sink"]) for head in heads) > 0
    assert not any("sink" in head for head in found["gemma4"][0]["heads"])


@pytest.mark.parametrize("name", ["gpt_oss", "gemma4", "deepseek_v3", "bloom", "qwen3_next"])
def test_the_same_bytes_for_any_threads_and_chunk(name, tmp_path, run):
    model, prompt = in_f32(name, tmp_path), ("--tokens", prompt_of(name))
    want = heads_of(model, tmp_path / "x.json", *prompt, "-t", 1, "-b", 128)
    for threads, chunk in ((3, 7), (2, 1), (3, 64)):
        assert heads_of(model, tmp_path / "x.json", *prompt, "-t", threads, "-b", chunk) == want


@pytest.mark.parametrize("name", ["encoder_decoders/umt5", "encoders/modernbert"])
def test_the_same_bytes_of_texts_that_see_all(name, tmp_path, run):
    model, texts = in_f32(name, tmp_path), texts_of(name, 3)
    want = heads_of(model, tmp_path / "x.json", *texts, "-t", 1, "-b", 128)
    for threads, chunk in ((3, 7), (2, 1)):
        assert heads_of(model, tmp_path / "x.json", *texts, "-t", threads, "-b", chunk) == want


@pytest.mark.parametrize("window", [0, 40])
@pytest.mark.parametrize("types", [F32_CACHE, (), ("-ctk", "q8", "-ctv", "q8")])
def test_a_long_text(window, types, tmp_path, run):
    """Rows of more than a tile of positions, cut into parts and not; their sums come from elsewhere
    than they."""
    model, n = tmp_path / "model.bin", 300
    random = head_files.checkpoints.random_model(context=1024, window=window, n_layers=1)
    model.write_bytes(random)
    ids = " ".join(str(i * i % 299) for i in range(n))
    found = []
    for threads, chunk in ((1, 256), (3, 1)):
        found.append(
            heads_of(
                model,
                tmp_path / "x.json",
                "--tokens",
                ids,
                "--no-cost",
                "-t",
                threads,
                "-b",
                chunk,
                *types,
            )
        )
    assert found[0] == found[1]
    for layer in found[0]["layers"]:
        for head in layer["heads"]:
            assert np.abs(rows_of(head) - 1).max() <= SUM
            assert not array_of(head)[~head_files.sees(n, window)].any()


@pytest.mark.parametrize("name", ["gpt_oss", "mistral", "deepseek_v2", "phi3-longer", "falcon"])
def test_looking_changes_no_bit(name, tmp_path, run):
    model, out = in_f32(name, tmp_path), tmp_path / "logits"
    found = []
    for heads in ([], ["--heads", tmp_path / "x.json"], ["--heads", tmp_path / "x.html"]):
        done = run(model, "--tokens", prompt_of(name), "--logits", out, "-b", 40, *heads)
        assert done.returncode == 0, done.stderr
        found.append(out.read_bytes())
    assert found[0] == found[1] == found[2]


# ---- scores and roles ----


def check_scores(data: dict, tolerance: float = 1e-5) -> None:
    for layer in data["layers"]:
        if "heads" not in layer:
            continue
        kind, shape = layer.get("kind", "decoder"), shape_of(data, layer)
        ids, there = ids_of(data, layer)
        seen = head_files.sees(len(there), layer["window"], kind, len(ids))
        equal = head_files.scores_of(seen / seen.sum(1, keepdims=True), ids, seen, kind)
        about = head_files.targets(ids, seen, kind)
        assert layer["rows"] == {role: int(mask.any(1).sum()) for role, mask in about.items()}
        assert_scores(layer["uniform"], {role: equal[role] for role in about}, tolerance)
        for head in layer["heads"]:
            weights = array_of(head, shape)
            scores = head_files.scores_of(weights, ids, seen, kind)
            assert_scores(head["scores"], scores, tolerance)
            assert head["role"] == head_files.role_of(scores, equal)
            want = head_files.pairs_of(weights, kind)
            assert len(head["pairs"]) == len(want)
            for found, pair in zip(head["pairs"], want):
                assert found[2] == pytest.approx(pair[2], abs=1e-6)
                assert weights[found[0], found[1]] == pytest.approx(found[2], abs=1e-6)


def assert_scores(found: dict, want: dict, tolerance: float) -> None:
    assert found.keys() == want.keys()
    for name, value in want.items():
        if math.isnan(value):
            assert found[name] is None, name
        else:
            assert found[name] == pytest.approx(value, rel=tolerance, abs=tolerance), name


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt_oss", "deepseek_v2", "lfm3", "gemma4"])
def test_scores_are_those_of_the_formulas(name, tmp_path, run):
    model = in_f32(name, tmp_path)
    check_scores(heads_of(model, tmp_path / "x.json", "--tokens", prompt_of(name), "-b", 40))


SHORT = [("5", "5"), ("5", "0 6"), ("5 6", "0"), ("5 6 7", "0 9 9")]


@pytest.mark.parametrize("name", ["encoder_decoders/marian", "encoder_decoders/t5"])
def test_scores_of_two_texts(name, tmp_path, run):
    model = in_f32(name, tmp_path)
    for texts in (texts_of(name, 3), texts_of(name, 4)):
        check_scores(heads_of(model, tmp_path / "x.json", *texts))
    for source, target in SHORT:
        check_scores(heads_of(model, tmp_path / "x.json", "--tokens", source, "--target", target))


def test_scores_of_encoders(tmp_path, run):
    model = in_f32("encoders/modernbert", tmp_path)
    for texts in (texts_of("encoders/modernbert", 3), ("--tokens", "5 6 5"), ("--tokens", "5")):
        data = heads_of(model, tmp_path / "x.json", *texts)
        check_scores(data)
        assert "source_tokens" not in data and "target" not in data
    assert {layer["window"] for layer in data["layers"]} == {0, 8}


@pytest.mark.parametrize("ids", ["5", "5 5", "5 6 7", "1 2 3 4 5 6 7 8 9 10 11"])
def test_scores_of_short_texts(ids, tmp_path, bare, run):
    """Where some have no rows."""
    data = heads_of(bare, tmp_path / "x.json", "--tokens", ids)
    check_scores(data)
    heads = [head for layer in data["layers"] for head in layer["heads"]]
    assert (heads[0]["scores"]["duplicate"] is None) == (ids != "5 5")
    assert (heads[0]["scores"]["entropy"] is None) == (ids == "5")


def repeated(n: int) -> list[int]:
    """A first token, and n others twice (as in Olsson et al.)."""
    return [0, *([*(1 + np.random.default_rng(7).permutation(399)[:n])] * 2)]


@pytest.mark.parametrize("n", [50, 280])
def test_heads_made_by_hand_get_their_roles(n, tmp_path, run):
    """The longer text has three tiles of positions."""
    model = tmp_path / "model.bin"
    model.write_bytes(head_files.handmade())
    ids = repeated(n)
    data = heads_of(model, tmp_path / "x.json", "--tokens", " ".join(map(str, ids)))
    roles = [[head["role"] for head in layer["heads"]] for layer in data["layers"]]
    assert roles == head_files.HANDMADE_ROLES
    previous, itself, _, equal = data["layers"][0]["heads"]
    induction, duplicate, first, _ = data["layers"][1]["heads"]
    assert previous["scores"]["previous"] > 0.99 and previous["scores"]["distance"] < 0.2
    assert itself["scores"]["itself"] > 0.99 and itself["scores"]["distance"] < 0.01
    assert equal["scores"]["entropy"] == pytest.approx(1) == equal["scores"]["distance"]
    # It rests on the first token where it finds nothing, and that is not its role.
    assert 0.5 < induction["scores"]["induction"] < induction["scores"]["first"]
    assert first["scores"]["first"] > 0.99
    # Half of it is on the token itself, and all of it where that is the only such token.
    assert 0.4 < duplicate["scores"]["duplicate"] < 0.6 < duplicate["scores"]["itself"]
    alike = np.tri(len(ids)) / np.arange(1, len(ids) + 1)[:, None]
    assert np.abs(array_of(equal) - alike).max() < 1e-6
    check_scores(data)


def test_heads_made_by_hand_behind_a_window(tmp_path, run):
    """What lies outside of it is nobody's to see: few rows have an earlier token, one the first."""
    model, n, window = tmp_path / "model.bin", 50, 30
    model.write_bytes(head_files.handmade(window=window))
    data = heads_of(model, tmp_path / "x.json", "--tokens", " ".join(map(str, repeated(n))))
    roles = [[head["role"] for head in layer["heads"]] for layer in data["layers"]]
    assert roles == [["previous", "itself", None, None], ["first", "itself", "first", None]]
    rows, few = data["layers"][1]["rows"], {"duplicate": 0, "induction": 0, "first": window - 1}
    assert rows == {"previous": 2 * n, "itself": 2 * n, **few}
    check_scores(data)


def test_heads_of_an_encoder_made_by_hand(tmp_path, run):
    """By T5's biases one head sees the token before, one the token after. One rests on the last
    token, which all embeddings ask for and its own answers, and that is not its role, since it sees
    the token after too. The decoder's attention to the source sees all alike."""
    model = in_f32("encoder_decoders/t5", tmp_path)
    meta, tensors = head_files.checkpoints.parse(model.read_bytes())
    biases = np.zeros((3, 75))  # by key position - query position, from -37 to 37
    biases[0, 36] = biases[1, 38] = 60
    biases[2, 38] = 5
    embed, asks, answers = np.zeros((61, 36)), np.zeros((30, 36)), np.zeros((30, 36))
    embed[:, 0] = embed[1, 1] = 1
    asks[20, 0] = answers[20, 1] = math.sqrt(5.4 / (6 * math.sqrt(18)))  # of x over its size
    changed = {
        "embed": embed,
        "layers.0.attn_q": asks,
        "layers.0.attn_k": answers,
        "layers.2.cross_q": np.zeros((30, 36)),
    }
    tensors |= {name: head_files.matrix(values) for name, values in changed.items()}
    tensors["layers.0.attn_norm"] = head_files.vector(np.ones(36))
    tensors["layers.0.attn_relative"] = head_files.vector(biases.ravel())
    model.write_bytes(head_files.checkpoints.build(meta, tensors))
    texts = ("--tokens", "5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 1", "--target", "0 5 6 7 8 9 1")
    data = heads_of(model, tmp_path / "x.json", *texts)
    check_scores(data)
    layers = {(layer["kind"], layer["layer"]): layer for layer in data["layers"]}
    assert list(layers) == [(kind, i) for kind in ("encoder", "decoder", "cross") for i in (0, 1)]
    by_hand = layers["encoder", 0]["heads"]
    assert [head["role"] for head in by_hand] == ["previous", "next", "next"]
    assert 0.35 < by_hand[2]["scores"]["next"] < 0.5 < by_hand[2]["scores"]["last"] < 0.65
    for head in layers["cross", 0]["heads"]:
        assert head["role"] is None and head["scores"]["entropy"] == pytest.approx(1)
        assert head["scores"]["diagonal"] == pytest.approx(
            layers["cross", 0]["uniform"]["diagonal"]
        )


TRAINED = ROOT / "models" / "heads.bin"  # on repeated random tokens: research/training


def test_the_trained_heads_have_their_roles(tmp_path, run):
    """One head of the first layer tells each token its predecessor, the others read the token
    itself, those of the second find what followed before: on random tokens, and on words."""
    once = np.random.default_rng(1).integers(2, 3000, 50).tolist()
    twice = ("--tokens", " ".join(map(str, [0, *once, *once])))
    words = ("-p", "The fox and the hen went to the mill. The fox and the hen went to the mill.")
    for prompt in (twice, words):
        data = heads_of(TRAINED, tmp_path / "x.json", *prompt)
        first, second = ([head["role"] for head in layer["heads"]] for layer in data["layers"])
        assert sorted(first) == ["itself"] * 3 + ["previous"]
        assert second == ["induction"] * 4
        check_scores(data)
    data = heads_of(TRAINED, tmp_path / "x.json", *twice)
    best = [
        max(head["scores"][role] for head in layer["heads"])
        for layer, role in zip(data["layers"], ("previous", "induction"))
    ]
    assert min(best) > 0.8


# ---- the page ----


def test_the_page_has_the_same_numbers(tmp_path, run):
    """Scores as in the JSON, weights as a byte each; the sinks too."""
    model, prompt = in_f32("gpt_oss", tmp_path), ("--tokens", prompt_of("gpt_oss"))
    data, page = (heads_of(model, tmp_path / f"x.{end}", *prompt) for end in ("json", "html"))
    for layer, shown in zip(data["layers"], page["layers"]):
        for head, drawn in zip(layer["heads"], shown["heads"]):
            found, want = array_of(drawn), np.rint(255 * np.sqrt(array_of(head)))
            assert np.abs(found - want).max() <= 1 and (found == want).mean() > 0.99
            sinks = np.frombuffer(head_files.base64.b64decode(drawn.pop("sink")), np.uint8)
            assert np.abs(sinks - 255 * np.sqrt(head.pop("sink"))).max() < 0.6
            del head["map"], drawn["map"]
    assert data == page


def test_the_page_of_two_texts_has_the_same_numbers(tmp_path, run):
    model, texts = in_f32("encoder_decoders/bart", tmp_path), texts_of("encoder_decoders/bart", 2)
    data, page = (heads_of(model, tmp_path / f"x.{end}", *texts) for end in ("json", "html"))
    for layer, shown in zip(data["layers"], page["layers"]):
        shape = shape_of(data, layer)
        for head, drawn in zip(layer["heads"], shown["heads"]):
            want = np.rint(255 * np.sqrt(array_of(head, shape)))
            assert np.abs(array_of(drawn, shape) - want).max() <= 1
            del head["map"], drawn["map"]
    assert data == page


# ---- two texts ----


def ids_in(tokens: list[dict]) -> list[int]:
    return [token["id"] for token in tokens]


def test_the_target_is_given_or_written(tmp_path, run):
    """Written as without --heads, with the same options; its last token the decoder never reads."""
    model, out = in_f32("encoder_decoders/bart", tmp_path), tmp_path / "x.json"
    source = ("--tokens", "5 6 7 8 9")
    data = heads_of(model, out, *source, "--target", "2 0 9")
    assert (data["target"], ids_in(data["tokens"])) == ("given", [2, 0, 9])
    assert ids_in(data["source_tokens"]) == [5, 6, 7, 8, 9]
    options = {
        "greedy": [("-n", 20), ("--temp", 0, "-n", 9), ("-n", 20, "--repeat-penalty", 1.5)],
        "sampled": [("--temp", 2, "-s", 3, "-n", 15), ("--top-k", 5, "-s", 4, "-n", 15)],
    }
    texts = set()
    for how, kinds in options.items():
        for more in kinds:
            written = [int(word) for word in run(model, *source, *more).stdout.split()]
            data = heads_of(model, out, *source, *more)
            assert (data["target"], ids_in(data["tokens"])) == (how, [2, 0, *written[:-1]]), more
            texts.add(tuple(written))
            page = heads_of(model, tmp_path / "x.html", *source, *more)
            assert (page["target"], page["tokens"]) == (how, data["tokens"])
    assert len(texts) > 3


@pytest.mark.parametrize(
    "name", ["encoder_decoders/t5-gated", "encoder_decoders/marian", "encoders/bert"]
)
def test_looking_at_two_texts_changes_no_bit(name, tmp_path, run):
    model, texts = in_f32(name, tmp_path), texts_of(name, 3)
    found = []
    for heads in ([], ["--heads", tmp_path / "x.json"], ["--heads", tmp_path / "x.html"]):
        done = run(model, *texts, "--logits", tmp_path / "logits", "-b", 40, *heads)
        assert done.returncode == 0, done.stderr
        found.append((tmp_path / "logits").read_bytes())
    assert found[0] == found[1] == found[2]


def heads_in_both(whole: dict, part: dict):
    """The layers and heads of a page, and whether one that leaves some maps out has the head's: but
    for maps the two are equal."""
    for layer, same in zip(whole["layers"], part["layers"]):
        for head, other in zip(layer["heads"], same["heads"]):
            assert {**head, "map": other.get("map")} == {"map": None, **other}
            assert other.get("map") in (None, head["map"])
            yield layer, head, "map" in other


def test_what_a_page_of_two_texts_leaves_out(tmp_path, run):
    """Where a large map does not fit, a smaller one still may. It comes from a second run, in which
    the source is read again."""
    model = in_f32("encoder_decoders/t5", tmp_path)
    source = " ".join(str(5 + i * i % 37) for i in range(500))
    texts = ("--tokens", source, "--target", "0 " + "9 8 7 " * 10, "-c", 500, "--no-cost")
    whole = heads_of(model, tmp_path / "x.html", *texts)
    assert "left_out" not in whole
    part = heads_of(model, tmp_path / "x.html", "--heads-max", 1, *texts)
    size = (tmp_path / "x.html").stat().st_size
    assert 0.7e6 < size < 1e6
    kept, left = [], []
    for layer, head, has_map in heads_in_both(whole, part):
        (kept if has_map else left).append((layer["kind"], head))
    assert part["left_out"] == {"heads": len(left), "of": 18, "limit_mb": 1}
    assert {kind for kind, _ in left} == {"encoder"} and 12 < len(kept) < 18
    stay = [strength(head) for kind, head in kept if kind == "encoder"]
    assert min(stay) >= max(strength(head) for _, head in left)


@pytest.fixture(scope="module")
def many_heads(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("many") / "many.bin"
    path.write_bytes(
        head_files.checkpoints.random_model(
            n_layers=2, n_heads=64, n_kv_heads=16, head_dim=16, n_embd=24
        )
    )
    return path


def strength(head: dict) -> float:
    role = head["role"]
    return (2 - (role == "first")) + head["scores"][role] if role else head["pairs"][0][2]


def test_what_a_page_leaves_out(many_heads, tmp_path, run):
    """It keeps to its size with the heads that have roles and the strongest of the others, whose
    maps come from a second run."""
    prompt = ("--tokens", " ".join(str(i * i % 37) for i in range(290)), "-b", 64, "--no-cost")
    whole = heads_of(many_heads, tmp_path / "x.html", *prompt)
    assert "left_out" not in whole
    done = run(many_heads, "--heads", tmp_path / "y.html", "--heads-max", 2, *prompt)
    assert "the maps of" in done.stderr
    part = heads_of(many_heads, tmp_path / "x.html", "--heads-max", 2, *prompt)
    size = (tmp_path / "x.html").stat().st_size
    assert 1.8e6 < size < 2e6
    all_heads, kept = [], []
    for _, head, has_map in heads_in_both(whole, part):
        all_heads.append(head)
        kept += [head] if has_map else []
    assert part["left_out"] == {"heads": 128 - len(kept), "of": 128, "limit_mb": 2}
    assert 10 < len(kept) < 100
    left = [head for head in all_heads if head not in kept]
    assert min(map(strength, kept)) >= max(map(strength, left))


def test_a_page_without_room_for_a_map(tmp_path, run):
    model = tmp_path / "model.bin"
    model.write_bytes(head_files.checkpoints.random_model(n_layers=1, context=2048))
    page = heads_of(
        model, tmp_path / "x.html", "--heads-max", 1, "--no-cost", "--tokens", "1 2 3 4 " * 400
    )
    assert page["left_out"] == {"heads": 6, "of": 6, "limit_mb": 1}
    assert not any("map" in head for head in page["layers"][0]["heads"])


def test_texts_of_tokens(stories, bare, tmp_path, run):
    """No text ends the page's script; half a character is shown as its bytes."""
    text = '</script><!-- \U0001f98a "\\\n'
    page = heads_of(stories, tmp_path / "x.html", "-p", text)
    shown = [token["text"] for token in page["tokens"]]
    script = (tmp_path / "x.html").read_text(encoding="utf-8").partition('id="data">')[2]
    assert "<" not in script.partition("</script>")[0]
    assert shown[0] == "<|begin|>"
    pieces = "".join(shown[1:])
    for byte in "\U0001f98a".encode():
        pieces = pieces.replace(f"\u27e8{byte:02X}\u27e9", chr(0xDC00 + byte))
    assert pieces.encode("utf-8", "surrogateescape").decode() == text
    ids = [int(word) for word in run(stories, "-p", text, "--tokenize").stdout.split()]
    assert [token["id"] for token in page["tokens"]] == ids
    data = heads_of(bare, tmp_path / "x.json", "--tokens", "5 17")
    assert [token["text"] for token in data["tokens"]] == ["\u27e85\u27e9", "\u27e817\u27e9"]
    assert data["model"] == "bare.bin"


def test_texts_come_from_everywhere(stories, tmp_path, run):
    (tmp_path / "text").write_text("A fox.")
    want = heads_of(stories, tmp_path / "x.json", "--no-cost", "-p", "A fox.")
    assert heads_of(stories, tmp_path / "x.json", "--no-cost", "-f", tmp_path / "text") == want
    ids = " ".join(str(token["id"]) for token in want["tokens"])
    assert heads_of(stories, tmp_path / "x.json", "--no-cost", "--tokens", ids) == want
    talker, talk = tmp_path / "talker.bin", tmp_path / "talk.json"
    chat = chats.metadata_of(EXACT["thinking"], {"bos_token": "<s>", "eos_token": "</s>"})
    talker.write_bytes(chats.with_chat(stories.read_bytes(), chat))
    talk.write_text('[{"role": "user", "content": "Who is there?"}]')
    ids = run(talker, "--messages", talk, "--tokenize").stdout.decode()
    found = heads_of(talker, tmp_path / "x.json", "--no-cost", "--messages", talk)
    assert found == heads_of(talker, tmp_path / "x.json", "--no-cost", "--tokens", ids)


# ---- refusals ----


def test_refusals(stories, tmp_path, run):
    out, copy, large = tmp_path / "x.json", tmp_path / "model.json", tmp_path / "large.bin"
    copy.write_bytes(stories.read_bytes())
    large.write_bytes(
        head_files.checkpoints.random_model(
            n_layers=16, n_heads=64, n_kv_heads=16, n_embd=8, d_ff=8
        )
    )
    text = ("-p", "A fox.")
    cases = [
        ((stories, *text, "--heads", "x.txt"), 2, "ends in .html or .json"),
        (
            (stories, *text, "--heads", out, "--heads-max", 4),
            2,
            "--heads-max is for --heads FILE.html",
        ),
        ((stories, *text, "--heads-max", 4), 2, "--heads-max means nothing for generation"),
        ((stories, *text, "--heads", out, "-n", 4), 2, "-n means nothing for --heads"),
        ((stories, *text, "--logits", out, "-s", 4), 2, "-s means nothing for --logits"),
        ((stories, *text, "--heads", out, "--kv"), 2, "one thing at a time"),
        ((stories, *text, "--heads", out, "--prompt-cache", tmp_path / "c"), 2, "does not run"),
        ((stories, *text, "--heads", tmp_path / "none" / "x.json"), 1, "No such file or directory"),
        ((copy, *text, "--heads", copy), 1, "it is the model itself"),
        ((stories, *text, "--heads", out, "--logits", out), 1, "two results would go there"),
        ((stories, *text, "--heads", tmp_path / "." / "x.json", "--logits", out), 1, "two results"),
        ((large, "--tokens", "1 2 " * 256, "--heads", out), 2, "about 1 GB of JSON"),
    ]
    for arguments, status, text_ in cases:
        done = run(*arguments)
        assert done.returncode == status and text_ in done.stderr, (arguments, done.stderr)
    assert {path.name for path in tmp_path.iterdir()} == {"model.json", "large.bin"}
    assert copy.read_bytes() == stories.read_bytes()


def test_refusals_of_two_texts(tmp_path, run):
    model, out = in_f32("encoder_decoders/t5", tmp_path), tmp_path / "x.json"
    source, target = ("--tokens", "5 6"), ("--target", "0 7")
    cases = [
        (
            (*source, "--heads", out, "--logits", tmp_path / "l"),
            "of the --target, which is missing",
        ),
        (
            (*source, *target, "--heads", out, "-n", 3),
            "-n means nothing for a --target that is given",
        ),
        ((*source, "--logits", out, "--temp", 1), "--temp means nothing for --logits"),
        ((*source, "--heads", out, "--target", "0 99"), "--target: 99 is no token"),
        ((*source, "--heads", out, "--target", "0 " * 131), "do not fit into a context of 130"),
    ]
    for arguments, message in cases:
        done = run(model, *arguments)
        assert done.returncode in (1, 2) and message in done.stderr, (arguments, done.stderr)
        assert [path.name for path in tmp_path.iterdir()] == ["t5.bin"]


def test_nothing_is_left_behind_where_one_of_two_files_fails(stories, tmp_path, run):
    (tmp_path / "logits").write_text("old")
    done = run(stories, "-p", "A fox.", "--logits", tmp_path / "logits", "--heads", "/none/x.html")
    assert done.returncode == 1 and "cannot write /none/x.html" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["logits"]
    assert (tmp_path / "logits").read_text() == "old"


# ---- the library ----


def test_a_probe_of_the_library(tmp_path, run):
    """The rows of two texts in one call, by thread and sequence; and none when it has ended."""
    path = in_f32("gpt_oss", tmp_path)
    model = calls.model_open(str(path).encode())
    w = calls.workspace_new(model, None)
    found, threads = {}, calls.workspace_threads(w)

    def take(context, row, thread):
        row = row.contents
        assert context == 77 and 0 <= thread < threads
        key = row.sequence, row.layer, row.head, row.position
        assert key not in found
        found[key] = row.first, row.weights[: row.n], row.sink

    texts = [[5, 6, 7, 8, 5, 6, 9] * 5, [3, 4, 3]]
    sequences = [calls.sequence_new(w, 0) for _ in texts]
    runs = (Run * 2)(*[Run(s, int_array(text), len(text), 0) for s, text in zip(sequences, texts)])
    probe = Probe(Look(take), 77)
    calls.workspace_probe(w, byref(probe))
    calls.forward_runs(w, runs, 2)
    calls.workspace_probe(w, None)
    n_rows = len(found)
    calls.forward_runs(w, runs, 2)
    assert len(found) == n_rows
    for s, text in zip(sequences, texts):
        data = heads_of(path, tmp_path / "x.json", "--tokens", " ".join(map(str, text)))
        for layer in data["layers"]:
            for head in layer["heads"]:
                weights = array_of(head)
                for i in range(len(text)):
                    first, row, sink = found.pop((s, layer["layer"], head["head"], i))
                    assert np.allclose(weights[i, first : i + 1], row, rtol=1e-5, atol=0)
                    assert not weights[i, :first].any()
                    assert head["sink"][i] == pytest.approx(sink, rel=1e-5)
    assert not found
    for s in sequences:
        calls.sequence_free(s)
    calls.workspace_free(w)
    calls.model_close(model)
