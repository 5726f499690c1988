"""How the module behaves towards people: what help(), notebooks and errors show, bars, defaults."""

from __future__ import annotations

import asyncio
import base64
import inspect
import pydoc
import re
import subprocess
import zlib

import numpy as np
import pytest
import test_encoder_decoders

import heads
from conftest import ROOT

GOLDEN = ROOT / "tests" / "golden"


@pytest.fixture(scope="module")
def model(stories):
    with heads.Model(stories, threads=1) as m:
        yield m


# ---- names ----


@pytest.mark.parametrize("kind", [heads.Model, heads.Session])
def test_help_shows_no_workings(kind):
    """Only public names, all of them the class's own, and each with a sentence."""
    text = pydoc.render_doc(kind, renderer=pydoc.plaintext)
    assert "heads._" not in text and "Method resolution order" not in text
    shown = {name for name in dir(kind) if not name.startswith("_")}
    workings = {"turn", "opened", "run", "begin", "target", "check_prompt", "copied_by"}
    assert not shown & workings
    assert not [name for name in shown if not inspect.getdoc(getattr(kind, name))]
    assert re.findall(r"(?m)^class .*", text) == [f"class {kind.__name__}(builtins.object)"]


def test_errors_name_what_was_called(model):
    session = model.session()
    for named, call in (
        ("Model.generate()", lambda: model.generate("a", temp=1)),
        ("Model.chat()", lambda: model.chat()),
        ("Model.encode()", lambda: model.encode()),
        ("Model.kv()", lambda: model.kv(None, None)),
        ("Model.__init__()", lambda: heads.Model()),
        ("Session.feed()", lambda: session.feed()),
    ):
        with pytest.raises(TypeError, match=re.escape(named)):
            call()
    for kind in (heads.HeadsError, heads.FileError, heads.InputError, heads.ContextError):
        assert f"{kind.__module__}.{kind.__qualname__}" == f"heads.{kind.__name__}"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"revision": "main"}, "revision is for hub ids"),
        ({"tokenizer": "x"}, "tokenizer is for llama2.c files"),
        ({"kv_heads": 5}, "kv_heads 5 does not divide"),
        ({"dtype": "q4", "bits": 9}, "bits 9: expected 4.5"),
        ({"bits": 2}, "bits 2: expected 2.3125 (all q2) to 8.5"),
        ({"size": 9}, "size 9: the smallest file, all in q2, has "),
        ({"size": 9, "memory": 9}, "give one of size, memory"),
        ({"dtype": "q8", "memory": 9}, "memory belongs to q4"),
    ],
)
def test_errors_of_export_name_its_arguments(tmp_path, options, says):
    with pytest.raises(heads.HeadsError) as error:
        heads.export(GOLDEN / "llama", tmp_path / "x.bin", **options)
    assert str(error.value).startswith(says)


def test_unknown_ids_are_refused_alike(model):
    """Whatever is asked; a session that has tokens too."""
    size = model.shape.vocab_size
    says = f"{size} is no token of this model; its ids are 0 to {size - 1}"
    session = model.session()
    for call in (
        lambda: model.generate([5, size]),
        lambda: model.score([[5]], [[size]]),
        lambda: model.logits([size]),
        lambda: model.attention([size]),
        lambda: model.probs([size]),
        lambda: model.lens([size]),
        lambda: model.embed([[size]]),
        lambda: model.text_ids([5, size]),
        lambda: model.decode([5, size]),
        lambda: model.token_text(size),
        lambda: model.token_bytes(size),
        lambda: model.is_special(size),
        lambda: session.feed([size]),
    ):
        with pytest.raises(heads.InputError) as error:
            call()
        assert str(error.value) == says


# ---- what is shown ----


def test_what_things_say_of_themselves(stories):
    model = heads.Model(stories, threads=1)
    session = model.session()
    session.feed("Once upon")
    assert repr(model) == f"<heads.Model {str(stories)!r}>"
    assert repr(session) == f"<heads.Session of {str(stories)!r}, 3 of 512 tokens>"
    assert repr(model.attention("Once upon")) == (
        f"<heads.Attention: {model.shape.n_layers} layers of 8 heads, 3 tokens>"
    )
    session.close()
    assert repr(session) == f"<heads.Session of {str(stories)!r}, closed>"
    session = model.session()
    model.close()
    assert repr(model) == f"<heads.Model {str(stories)!r}, closed>" and "closed" in repr(session)


def pictures(html: str) -> list[np.ndarray]:
    """The greys of the PNGs in a page."""
    found = []
    for data in re.findall(r"data:image/png;base64,([\w+/=]+)", html):
        png, parts, at = base64.b64decode(data), {}, 8
        while at < len(png):
            size = int.from_bytes(png[at : at + 4], "big")
            kind, body = png[at + 4 : at + 8], png[at + 8 : at + 8 + size]
            assert zlib.crc32(kind + body) == int.from_bytes(png[at + 8 + size :][:4], "big")
            parts[kind], at = body, at + 12 + size
        width, height = (int.from_bytes(parts[b"IHDR"][i : i + 4], "big") for i in (0, 4))
        rows = np.frombuffer(zlib.decompress(parts[b"IDAT"]), np.uint8)
        found.append(rows.reshape(height, width + 1)[:, 1:])
    return found


def test_a_notebook_shows_attention(model):
    for text in ("Once upon a <time>", "Once upon a time. " * 12):
        found = model.attention(text)
        html = found._repr_html_()
        assert found.texts == [model.token_text(id) for id in found.tokens]
        maps = found.weights.reshape(-1, *found.weights.shape[2:])
        shown = pictures(html)
        assert len(shown) == len(maps) and len(html) < 3000 * len(maps)
        for map, picture in zip(maps, shown):
            assert max(picture.shape) <= 48 and picture.min() == 255 - round(255 * map.max() ** 0.5)
            if len(map) <= 48:
                assert np.array_equal(picture == 255, np.rint(255 * map**0.5) == 0)
    assert "&lt;" in model.attention("<")._repr_html_() and "<time" not in html


def test_a_notebook_shows_a_model_that_reads_a_source(tmp_path):
    letters = test_encoder_decoders.with_letters(tmp_path / "t")
    with heads.Model(test_encoder_decoders.exported(letters, tmp_path / "x.bin")) as m:
        found = m.attention([5, 6], source="cab", lang="fr_XX")
        n = sum(int(np.prod(x.shape[:2])) for x in (found.weights, found.cross, found.encoder))
        html = found._repr_html_()
        assert len(pictures(html)) == n and len(found.source_texts) == len(found.source)
        assert found.source_texts[0] in html


def test_a_notebook_shows_what_a_cache_takes(model):
    found = model.kv(100)
    assert isinstance(found, dict) and found["context"] == 100
    html = found._repr_html_()
    assert "a context of 100 tokens" in html
    for name in ("bytes_per_token", "reserved"):
        assert f"<td>{found[name] / 1000:.3g} KB</td>" in html


# ---- bars ----


@pytest.fixture
def few_texts(monkeypatch):
    from heads.exporter.quantize import calibrate

    few = calibrate.Amounts(texts=14, length=64, held=2, measured=32, batch=7, least=4)
    monkeypatch.setattr(calibrate, "AMOUNTS", few)


@pytest.mark.parametrize("options", [{}, {"dtype": "q4", "calibrate": True}])
def test_an_export_tells_how_far_it_is(tmp_path, few_texts, capsys, options):
    told: list[tuple[str, float]] = []
    source, out = ROOT / "models" / "hf", tmp_path / "x.bin"
    heads.export(source, out, progress=lambda phase, share: told.append((phase, share)), **options)
    shares = [share for _, share in told]
    assert shares == sorted(shares) and 0 <= shares[0] and 0.999 < shares[-1] <= 1
    phases = list(dict.fromkeys(phase for phase, _ in told))
    calibrated = ["q8", "texts", "inputs", "codes", "costs", "file"]
    assert phases == (calibrated if options else ["q8"])
    assert capsys.readouterr().err == ""
    if not options:
        for progress, shown in ((True, True), (False, False), (None, False)):  # no terminal here
            heads.export(source, out, progress=progress)
            assert ("100%" in capsys.readouterr().err) == shown


def test_an_export_ends_with_what_its_function_raises(tmp_path):
    def stop(phase, share):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        heads.export(ROOT / "models" / "hf", tmp_path / "x.bin", progress=stop)
    assert not list(tmp_path.iterdir())
    with pytest.raises(heads.InputError, match="progress: expected True or False"):
        heads.export(ROOT / "models" / "hf", tmp_path / "x.bin", progress=5)


def test_what_a_calibration_leaves_is_ignored():
    if not (ROOT / ".git").exists():
        pytest.skip("no clone")
    command = ["git", "check-ignore", "-q", "stories.bin.calibration/model.bin"]
    assert subprocess.run(command, cwd=ROOT).returncode == 0


# ---- asyncio, and defaults ----


def test_async_with(stories):
    async def ask() -> tuple:
        async with heads.Model(stories, threads=1) as m:
            async with m.session() as session:
                session.feed("Once")
            text = await m.agenerate("Once", 3)
        return m, session, text

    model, session, text = asyncio.run(ask())
    assert len(text.tokens) == 3 and "closed" in repr(model) and "closed" in repr(session)


def test_a_text_is_as_long_as_runs(run, model, stories):
    """Unless one says how long."""
    for seed in range(3):
        done = run(stories, "-p", "Once upon a time", "-s", seed)
        assert model.generate("Once upon a time", seed=seed) == done.stdout.decode()[16:]
    for name in ("generate", "agenerate"):
        assert inspect.signature(getattr(heads.Model, name)).parameters["max_tokens"].default == 256
