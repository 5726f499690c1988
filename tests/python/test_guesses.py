"""Guesses at the next tokens, by the text itself and by a draft model: no text, log-probability or
end depends on them, and where they are right there are fewer passes."""

from __future__ import annotations

import os
import subprocess
import sys

import checkpoints
import guess_layers
import numpy as np
import pytest
from conftest import on_linux

import heads
from heads._batch import Batch, GenerateJob, Sampling
from heads._grammars import matcher, of_syntax

# Nothing takes time then, so the guard lets all guesses be made.
STOPPED = "HEADS_CLOCK" in os.environ
# Every mixer with a state, which a wrong guess has changed.
STATES = ["falcon_mamba", "kimi_linear", "lfm2-bias", "mamba2", "qwen3_next", "recurrent_gemma"]
# A window, a state beside attention, a longer rope table, shared keys and values, experts.
FAMILIES = ["llama", "mistral", "falcon_h1-norm", "phi3-longer", "phimoe", *STATES]
# Greedy and without the rest, such a model comes to a token that it repeats.
LOOPS = Sampling(temperature=0, frequency_penalty=-0.2)
SAMPLINGS = [Sampling(temperature=0), Sampling(seed=3, frequency_penalty=0.2, repeat_penalty=1.1)]


def texts_of(path, prompts, n_top=2, **options) -> tuple[list, int]:
    """What jobs give, and the steps that they took."""
    with heads.Model(path, chunk=32, threads=2, **options) as m:
        batch = Batch(m, 3)
        jobs = [
            GenerateJob(m, prompt, 40, sampling, [], n_top=n_top)
            for prompt in prompts
            for sampling in SAMPLINGS
        ]
        for job in jobs:
            batch.submit(job)
        steps = 0
        while batch.jobs:
            batch.step()
            steps += 1
        batch.close()
    assert not [job.error for job in jobs if job.error]
    return [(job.tokens, job.bytes, job.stopped, job.likely) for job in jobs], steps


@pytest.mark.parametrize("family", FAMILIES)
def test_no_text_depends_on_guesses(exported, family):
    path = exported(family)
    rng = np.random.default_rng(7)
    with heads.Model(path) as m:
        size = m.shape.vocab_size
    loop = rng.integers(0, size, 5).tolist()
    prompts = [loop * 6, rng.integers(0, size, 30).tolist(), loop[:1] * 12]
    want, steps = texts_of(path, prompts)
    for options in ({"lookup": 7}, {"lookup": 40}, {"draft": path}):
        found, fewer = texts_of(path, prompts, **options)
        assert found == want, options
        if STOPPED and "draft" in options:  # the model itself is always right where it is greedy
            assert fewer < 0.8 * steps


def test_where_a_text_repeats_itself_passes_are_fewer(tmp_path):
    path = tmp_path / "m.bin"
    path.write_bytes(checkpoints.random_model(context=256))
    found = []
    for options in ({}, {"lookup": 7}):
        with heads.Model(path, threads=1, **options) as m:
            batch, n = Batch(m, 1), 0
            job = GenerateJob(m, [5, 6], 200, LOOPS, [])
            batch.submit(job)
            while batch.jobs:
                batch.step()
                n += 1
            found.append((job.tokens, n))
    assert found[0][0] == found[1][0]
    assert not STOPPED or found[1][1] < 0.7 * found[0][1], found


@on_linux
@pytest.mark.skipif(STOPPED, reason="it is what runs")
def test_all_of_these_where_guesses_cost_nothing():
    if not guess_layers.STOPPED:
        pytest.skip("wants `make c-tests`")
    chosen = " or ".join(["fewer", "own_layers", "llama", *STATES])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", chosen],
        env={**os.environ, **guess_layers.STOPPED},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:]


def test_the_models_own_layers(tmp_path):
    """In batches, which share beginnings, and after a session's rewinding."""
    path, prompt = guess_layers.checkpoint_with_guesses("deepseek_v3", tmp_path)
    found = []
    for options in ({"guess": 0}, {}, {"guess": 7}):
        prompts = [prompt, prompt[:60], [*prompt[:70], 5, 6], prompt[:8]]
        found.append(texts_of(path, prompts, kv="f32", **options))
    assert found[0][0] == found[1][0] == found[2][0]
    assert not STOPPED or found[2][1] < found[0][1], [steps for _, steps in found]
    with pytest.raises(heads.InputError, match="guess: expected a whole number"):
        heads.Model(path, guess=-1)


def test_the_modules_calls_with_guesses(stories):
    prompt = "One tree, two birds. One tree, two birds. One tree, two"
    with heads.Model(stories, threads=1) as m, heads.Model(stories, threads=1, lookup=7) as g:
        for options in ({}, {"stop": "t"}, {"temperature": 0}, {"top_k": 3, "seed": 5}):
            assert g.generate([prompt, "A", ""], 60, **options) == (
                m.generate([prompt, "A", ""], 60, **options)
            )
        streamed = "".join(g.generate(prompt, 60, stream=True))
        assert streamed == m.generate(prompt, 60)


def test_a_grammar_sees_the_guesses_that_were_right(stories):
    pytest.importorskip("llguidance")
    texts = []
    for options in ({}, {"lookup": 9}):
        with heads.Model(stories, threads=1, **options) as m:
            grammar = of_syntax("regex", "( ?(one|two) )*end")
            given = matcher(m, grammar)
            ids = m.encode("one two one two one two one")
            job = GenerateJob(m, ids, 60, Sampling(temperature=0), [], matcher=given)
            m._run([job], 1, False)
            texts.append((job.tokens, job.stopped))
    assert texts[0] == texts[1]


def test_contexts_and_numbers_of_tokens_end_a_text(tmp_path):
    """Also where guesses would go further."""
    path = tmp_path / "m.bin"
    path.write_bytes(checkpoints.random_model(context=64))
    for n in (1, 2, 3, 1000):
        found = []
        for options in ({}, {"lookup": 30}, {"draft": path}):
            with heads.Model(path, threads=1, **options) as m:
                job = GenerateJob(m, [5, 6] * 20, n, Sampling(temperature=0), [])
                m._run([job], 1, False)
                found.append((job.tokens, job.stopped))
        assert found[0] == found[1] == found[2] and len(found[0][0]) == min(n, 25)


def test_what_guesses_need(stories, tmp_path):
    (tmp_path / "other.bin").write_bytes(checkpoints.random_model())
    with pytest.raises(heads.InputError, match="draft model has other tokens"):
        heads.Model(stories, draft=tmp_path / "other.bin")
    with pytest.raises(heads.FileError, match="no such file|cannot"):
        heads.Model(stories, draft=tmp_path / "none.bin")
    with pytest.raises(heads.InputError, match="lookup: expected a whole number"):
        heads.Model(stories, lookup=-1)
