"""callers.py CHECKPOINT ROUNDS [SEED]: threads call a model in every way while another closes it,
forks the process and drops sessions. Each call gives what it gives alone or says that the model is
closed. A script of its own: a defect here is a crash, and ThreadSanitizer wants to be preloaded."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
import time

import heads
from heads._batch import GenerateJob, Sampling
from heads.server.engine import Engine

TEXT = "Once upon a time there was a dog"


def feed(model: heads.Model):
    with model.session() as session:
        session.feed(TEXT)
        fork = session.fork(3)
        fork.rewind(2)
        return fork.tokens, float(session.feed(" and")[7]), len(session)


def dropped(model: heads.Model):
    """Sessions that only the garbage collector finds."""
    cycle = [model.session()]
    cycle[0].itself = cycle
    return cycle[0].feed(TEXT)[5]


def serve(model: heads.Model):
    """A text of the server's thread, which ends by itself if the model is closed."""
    engine, done = Engine(model, 2, 4), threading.Event()
    job = GenerateJob(model, model.encode(TEXT), 6, Sampling(), [])
    gone = GenerateJob(model, model.encode(TEXT), 50, Sampling(seed=1), [])
    engine.start()
    try:
        engine.submit([gone], lambda: None)
        engine.submit([job], lambda: done.set() if job.done else None)
        engine.cancel([gone])
        assert done.wait(60)
    finally:
        engine.stop()
    if job.error:
        raise job.error
    return job.bytes


CALLS = [
    lambda m: m.generate([TEXT, "A"], 6),
    lambda m: list(m.generate(TEXT, 6, stream=True)),
    lambda m: m.score([TEXT], [" b"]),
    feed,
    dropped,
    serve,
    lambda m: m.decode(m.encode(TEXT * 9)),
    lambda m: [m.token_text(i) for i in range(20)],
    lambda m: m.attention(TEXT).weights[0, 0, 3, 1],
    lambda m: m.eos_ids(),
    lambda m: m.info()["isa"],
    lambda m: m.kv(),
]


def call_until_closed(model: heads.Model, want: list, rng: random.Random, wrong: list) -> None:
    try:
        while True:
            i = rng.randrange(len(CALLS))
            got = CALLS[i](model)
            if got != want[i]:
                wrong.append((i, got, want[i]))
    except heads.HeadsError as error:
        if not any(word in str(error) for word in ("closed", "has stopped")):
            wrong.append(error)
    except BaseException as error:
        wrong.append(error)


def child_agrees(model: heads.Model, want: list) -> bool:
    """Whether a child of fork() gets the same, while the parent's threads are at work."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # one that hangs fails
        try:
            os._exit(0 if CALLS[0](model) == want[0] else 1)
        finally:
            os._exit(2)
    return os.waitpid(child, 0)[1] == 0


def main() -> None:
    path, rounds = sys.argv[1], int(sys.argv[2])
    rng = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 1)
    threading.excepthook = lambda args: None  # an engine whose model is closed ends with an error
    sys.setswitchinterval(1e-4)
    with heads.Model(path, threads=2) as alone:
        want = [call(alone) for call in CALLS]
    wrong: list = []
    for _ in range(rounds):
        model = heads.Model(path, threads=2)
        threads = [
            threading.Thread(
                target=call_until_closed, args=(model, want, random.Random(rng.random()), wrong)
            )
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        time.sleep(rng.random() * 0.2)
        if "thread" not in os.environ.get("LD_PRELOAD", "") and rng.random() < 0.3:
            wrong += [] if child_agrees(model, want) else ["a child of fork() failed"]
        gc.collect()
        model.close()
        for thread in threads:
            thread.join(60)
            wrong += ["a thread hangs"] if thread.is_alive() else []
        assert not wrong, wrong[:3]
    print(f"{rounds} models closed while 4 threads called them")


if __name__ == "__main__":
    main()
