"""How the bundled model's texts are made and kept, without torch and without the teacher:
research/training. tests/extras/test_training.py is about the training itself."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest

from research.training import beginnings, generate, shards
from research.training.vocabulary import Vocabulary

TOKENS = [*"abcdefgh", "Ġ", "ab", "Ġa", "Ġab", "Ġgun"]
MERGES = [("a", "b"), ("Ġ", "a"), ("Ġa", "b")]
IDS = {token: 17 + i for i, token in enumerate(TOKENS)}


def text(number: int, tokens: list[int], n_given: int = 2):
    """One that the teacher has written."""
    best = np.tile(np.arange(20), (len(tokens), 1))
    return SimpleNamespace(
        number=number, tokens=tokens, n_given=n_given, n_good=lambda: len(tokens), best=best,
        log_p=-best / 10, kind=beginnings.KINDS[0],
    )  # fmt: skip


def varied(seed: int, n: int = 100) -> list[int]:
    return random.Random(seed).choices(range(2, 5000), k=n)


# ---- the vocabulary ----


class Stopped(Exception):
    """As if the process had been killed here."""


def test_vocabulary_is_chosen_once_whenever_it_was_stopped(tmp_path, monkeypatch):
    def stop():
        raise Stopped

    chosen = []

    def choose(teacher):
        chosen.append(Vocabulary(TOKENS, MERGES, IDS))
        return chosen[-1]

    monkeypatch.setattr(generate, "choose_vocabulary", choose)
    data, rows = tmp_path / "data", np.arange(64.0).reshape(32, 2)
    with pytest.raises(Stopped):
        generate.load_or_choose(SimpleNamespace(ids=IDS, embedding=stop), data)
    assert (data / "tokenizer.json").exists() and not (data / "embedding.npy").exists()
    for _ in range(2):
        teacher = SimpleNamespace(ids=IDS, embedding=lambda: rows)
        vocabulary = generate.load_or_choose(teacher, data)
        assert vocabulary.tokens == chosen[0].tokens and len(chosen) == 1
        assert vocabulary.encode(" a") == chosen[0].encode(" a") == [12]
        assert np.array_equal(np.load(data / "embedding.npy"), rows[vocabulary.teachers])


def test_what_children_should_not_read_is_not_written():
    vocabulary = Vocabulary(TOKENS, MERGES, IDS)
    may = dict(zip(vocabulary.tokens, vocabulary.may_be_written))
    assert may["Ġab"] and not may["Ġgun"]


# ---- shards ----


def test_a_shard_is_whole_or_not_there(tmp_path, monkeypatch):
    def stop(file, **arrays):
        file.write(b"half of it")
        raise Stopped

    path = tmp_path / "0000.npz"
    written = [text(number, varied(number)) for number in range(3)]
    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", stop)
        with pytest.raises(Stopped):
            generate.save_shard(path, written)
    assert shards.shards_of(tmp_path) == []
    assert generate.save_shard(path, written) == 300
    assert shards.shards_of(tmp_path) == [path] and len(list(tmp_path.iterdir())) == 1
    with np.load(path) as shard:
        assert shard["tokens"].tolist() == sum((varied(number) for number in range(3)), [])
        assert shard["number"].tolist() == [0, 1, 2] and shard["kind"].tolist() == 3 * ["story"]


def test_what_is_there_is_not_written_again(tmp_path, capsys, monkeypatch):
    """Nor is a teacher started for nothing."""
    monkeypatch.setattr(generate, "Teacher", None)
    for shard in range(2):
        generate.save_shard(tmp_path / f"{shard:04}.npz", [text(shard, varied(shard))])
    generate.main([str(tmp_path), "--shards", "2"])
    assert "is done" in capsys.readouterr().out
    with pytest.raises(TypeError):  # there is one left to write
        generate.main([str(tmp_path), "--shards", "3"])


def test_loops_are_cut_and_near_duplicates_dropped(tmp_path):
    loop = varied(1, 60) + 20 * [7, 8, 9]
    written = [
        text(0, varied(0)),  # the first is held out
        text(1, loop),
        text(2, varied(2)),
        text(3, varied(2)[:70] + varied(3, 30)),  # as the one before, to begin with
        text(4, 30 * [5, 6, 7, 8]),  # nothing is left of it
        text(5, varied(5), n_given=90),  # too little is the teacher's
    ]
    generate.save_shard(tmp_path / "0000.npz", written)
    found = shards.TeachersTexts(tmp_path)
    assert [row[0].tolist() for row in found.held_out] == [varied(0)]
    cut, whole = (row[0].tolist() for row in found.training)
    assert cut == loop[: len(cut)] and 60 < len(cut) < 70 and whole == varied(2)
    assert found.dropped == {"alike": 1, "short": 1}
    assert found.tokens == 200 + len(cut)
    assert all(len(best) == len(log_p) == len(ids) for ids, best, log_p, _ in found.training)


def test_order_of_training_depends_on_the_place_alone():
    row = shards.in_order(7, seed=1, start=0, count=21)
    assert all(sorted(row[i : i + 7]) == list(range(7)) for i in (0, 7, 14))
    assert row[:7] != row[7:14] and row != shards.in_order(7, 2, 0, 21)
    assert row == [n for start in range(0, 21, 3) for n in shards.in_order(7, 1, start, 3)]


# ---- beginnings ----


def test_beginnings():
    rng, again = random.Random(1), random.Random(1)
    found = [beginnings.beginning(rng) for _ in range(3000)]
    assert found == [beginnings.beginning(again) for _ in range(3000)]
    texts = [begun for begun, _, _ in found]
    assert not [begun for begun in texts if set(begun) & set("{}|_") or begun != begun.strip()]
    assert len(set(texts)) > 2000 and "" in texts
    assert {kind.name for _, kind, _ in found} == {kind.name for kind in beginnings.KINDS}
    assert sum(kind.share for kind in beginnings.KINDS) == pytest.approx(1)


@pytest.mark.parametrize(
    ("one", "many"), [("fox", "foxes"), ("pony", "ponies"), ("boy", "boys"), ("mouse", "mice")]
)
def test_plural(one, many):
    assert beginnings.plural(one) == many
