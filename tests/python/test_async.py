"""Texts for asyncio: what generate and chat give, in one batch, whose places come back."""

from __future__ import annotations

import asyncio
import threading

import checkpoints
import pytest
import talkers

import heads
from heads import _together

PROMPTS = ["Once upon a time", "One fine day", "A", "The little dog"]
QUESTION = [{"role": "user", "content": "what is it?"}]


@pytest.fixture(scope="module")
def model(stories):
    with heads.Model(stories, threads=1) as m:
        yield m


@pytest.fixture
def passes(monkeypatch):
    """How many texts each pass had."""
    found, step = [], heads._batch.Batch.step

    def counted(batch):
        found.append(len(batch.jobs))
        return step(batch)

    monkeypatch.setattr(heads._batch.Batch, "step", counted)
    return found


async def joined(stream) -> str:
    return "".join([piece async for piece in stream])


def test_gives_what_generate_does_in_one_batch(model, passes):
    async def ask():
        several = model.agenerate(PROMPTS, 60, 0.9, 2, stop=["."], top_k=40)
        # The long ones first, so that none has ended when the last one comes, on a busy machine too.
        return await asyncio.gather(
            *(model.agenerate(p, 200, seed=i) for i, p in enumerate(PROMPTS)), several
        )

    *each, several = asyncio.run(ask())
    assert max(passes) == 2 * len(PROMPTS)
    assert several == model.generate(PROMPTS, 60, 0.9, 2, stop=["."], top_k=40)
    want = [model.generate(p, 200, seed=i) for i, p in enumerate(PROMPTS)]
    assert each == want and [t.tokens for t in each] == [t.tokens for t in want]
    assert not _together._runners


def test_streams(model):
    async def ask():
        texts = [""] * len(PROMPTS)
        async for index, piece in model.agenerate(PROMPTS, 9, stream=True):
            texts[index] += piece
        assert [x async for x in model.agenerate([], stream=True)] == await model.agenerate([])
        return await joined(model.agenerate(PROMPTS[0], 9, stream=True)), texts

    one, several = asyncio.run(ask())
    assert one == several[0] and several == model.generate(PROMPTS, 9)


def test_chats(tmp_path):
    (tmp_path / "plain").write_bytes(checkpoints.random_model(context=64))
    talkers.make(tmp_path / "plain", tmp_path / "talker", talkers.PLAIN, 64)
    with heads.Model(tmp_path / "talker") as m:

        async def ask():
            whole = m.achat(QUESTION, 9, seed=4)
            return await asyncio.gather(whole, joined(m.achat(QUESTION, 9, seed=4, stream=True)))

        assert asyncio.run(ask()) == [m.chat(QUESTION, 9, seed=4)] * 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_cancelled_task_gives_its_place_back(model, passes, stream):
    """Whether it waits, or leaves a stream."""

    async def ask():
        if stream:
            pieces = model.agenerate(["One day"] * 15, 400, stream=True)
            await pieces.__anext__()
            leave = pieces.aclose
        else:
            task = asyncio.create_task(model.agenerate(["One day"] * 15, 400))
            while not passes:
                await asyncio.sleep(0)
            leave = task.cancel
        other = asyncio.create_task(model.agenerate("Once", 40, seed=1))
        while passes[-1] < 16:
            await asyncio.sleep(0)
        left = leave()
        if stream:
            await left
        text = await other
        assert passes[-1] == 1 and passes.count(1) > 9
        if not stream:
            with pytest.raises(asyncio.CancelledError):
                await task
        return text

    assert asyncio.run(ask()) == model.generate("Once", 40, seed=1)
    assert not _together._runners


def test_an_event_loop_that_ends_in_work(model):
    """Ctrl-C does so: nothing is left, nothing is said, and the model can be used."""

    async def ask():
        tasks = [asyncio.create_task(model.agenerate(p, 400)) for p in PROMPTS]
        async for _ in model.agenerate("Once", 400, stream=True):
            return tasks

    tasks = asyncio.run(ask())
    assert all(task.cancelled() for task in tasks) and not _together._runners
    assert len(model.generate("Once", 5).tokens) == 5


def test_the_loop_goes_on_during_passes(model, monkeypatch):
    step, said = heads._batch.Batch.step, threading.Event()

    def waits(batch):
        assert said.wait(60)
        return step(batch)

    async def ask():
        task = asyncio.create_task(model.agenerate("Once", 4))
        while not _together._runners:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        said.set()
        return await task

    monkeypatch.setattr(heads._batch.Batch, "step", waits)
    assert len(asyncio.run(ask()).tokens) == 4


def test_errors(stories):
    """Of the arguments, of a model that is closed meanwhile, and of the texts of one task alone."""
    with heads.Model(stories, threads=1) as m:

        async def ask():
            for given, says in (({"top_p": 2}, "top_p"), ({"lang": "fr"}, "encoder-decoder")):
                with pytest.raises(heads.InputError, match=says):
                    await m.agenerate("Once", **given)
            with pytest.raises(heads.InputError, match="prompts: expected"):
                m.agenerate(5)
            with pytest.raises(heads.InputError, match="no chat template"):
                await m.achat(QUESTION)
            right, wrong = m.agenerate("Once", 9), m.agenerate(["Once", "Once " * 600])
            text, error = await asyncio.gather(right, wrong, return_exceptions=True)
            assert text == m.generate("Once", 9) and isinstance(error, heads.ContextError)
            pieces = m.agenerate("Once", 400, stream=True)
            await pieces.__anext__()
            m.close()
            with pytest.raises(heads.HeadsError, match="closed"):
                async for _ in pieces:
                    pass

        asyncio.run(ask())
