"""The module when a call of the engine's fails, for test_module_faults.py. fault_shim.so is preloaded.

    module_faults.py TEXTS TALKER ENCODER STRIDE

For every STRIDE-th n of each scenario, the engine's n-th allocation or thread. What is asked for
must then come as without the fault, or raise a HeadsError with a sentence; and afterwards the same
model answers as before. Prints a line for each scenario, and for each run that went wrong."""

from __future__ import annotations

import ctypes
import sys

import heads

MEMORY, THREADS = 1, 2
shim = ctypes.CDLL(None)
shim.fault_count.restype = ctypes.c_int64
shim.fault_order.argtypes = [ctypes.c_int64, ctypes.c_int, ctypes.c_int]
PROMPTS = ["One day, a fox", "One day, a fox went to the old town by the river", "", "x"]


def text(model: heads.Model) -> object:
    return (
        model.generate("One day", 4, temperature=0),
        model.encode("caf\u00e9"),
        model.decode([9, 8]),
    )


def texts(model: heads.Model) -> object:
    return model.generate(PROMPTS, 3, temperature=0, stop=["zq"])


def stream(model: heads.Model) -> object:
    return list(model.generate("One day", 4, temperature=0, stream=True))


def session(model: heads.Model) -> object:
    with model.session() as s:
        s.feed("One day")
        with s.fork() as fork:
            fork.feed(" x")
            fork.rewind(2)
            kept = fork.tokens
        return kept, len(s), s.feed("y").tobytes()


def score(model: heads.Model) -> object:
    return model.score(["One day", "One"], [" a fox", " day"]), model.perplexity("One day, a fox")


def talk(model: heads.Model) -> object:
    return model.chat([{"role": "user", "content": "what is it?"}], 4, temperature=0)


def vectors(model: heads.Model) -> object:
    return model.embed(["abc de", "fox"]).tobytes()


def opened(path: str, scenario) -> object:
    with heads.Model(path, threads=1) as model:
        return scenario(model)


def tried(call, n: int, again: int) -> tuple[object, str]:
    """What a call gives, or how it failed."""
    shim.fault_order(n, MEMORY | THREADS, again)
    try:
        return call(), ""
    except heads.HeadsError as error:
        return None, str(error)
    finally:
        shim.fault_order(-1, 0, 0)


def climb(path: str, scenario, stride: int) -> int:
    """Returns how many runs went wrong."""
    model = heads.Model(path, threads=1)
    wrong = 0
    for whole in (True, False):  # with opening the model, or on one that stays open

        def call() -> object:
            return opened(path, scenario) if whole else scenario(model)

        expected, said = tried(call, 0, 0)
        assert expected is not None, said
        n_calls = shim.fault_count()
        for n in range(1, n_calls + 1, stride):
            for again in (0, 1):
                got, said = tried(call, n, again)
                after = scenario(model)
                if (got != expected and not said) or after != expected:
                    wrong += 1
                    print(f"not ok {scenario.__name__}, call {n}, again {again}: {got} {said!r}")
        print(f"{'not ' * bool(wrong)}ok {scenario.__name__}: {n_calls} calls")
    model.close()
    return wrong


def main(texts_model: str, talker: str, encoder: str, stride: str) -> int:
    scenarios = [(texts_model, f) for f in (text, texts, stream, session, score)]
    scenarios += [(talker, talk), (encoder, vectors)]
    return min(1, sum(climb(path, scenario, int(stride)) for path, scenario in scenarios))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
