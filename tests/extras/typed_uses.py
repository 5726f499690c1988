"""Uses of the module as type checkers should see them: test_types.py asks mypy and pyright, which
refuse the lines that end in `# wrong` and no others. Nobody runs this."""

from collections.abc import AsyncGenerator, Generator
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import heads

Floats = NDArray[np.float32]

# ---- opening ----

m = heads.Model("model.bin", threads=2, kv=("q8", "f16"), context=512, isa="avx2")
heads.Model("model.bin", kv="q5")  # wrong
heads.Model("model.bin", ctx=512)  # wrong
heads.Model(5)  # wrong
with heads.Model("model.bin") as opened:
    assert_type(opened, heads.Model)

# ---- texts ----

text = m.generate("Once", max_tokens=9, temperature=0.5, seed=3, stop=["."], top_k=5, min_p=0.1)
assert_type(text, heads.Completion)
assert_type(text.tokens, list[int])
assert_type(text.stopped, str)
assert_type(m.generate([1, 2]), heads.Completion)
assert_type(m.generate(["Once", "A"], parallel=2, progress=True), list[heads.Completion])
assert_type(m.generate([[1, 2], [3]]), list[heads.Completion])
assert_type(m.generate(str(i) for i in range(3)), list[heads.Completion])
assert_type(m.generate("cab", lang="fr"), heads.Completion)
assert_type(m.generate("Once", stream=True), Generator[str, None, None])
assert_type(m.generate(["a"], stream=True), Generator[tuple[int, str], None, None])
m.generate("Once", schema={"type": "object", "properties": {"a": {"type": "integer"}}})
m.generate(["Once", "A"], schema=[{"type": "integer"}, None])
m.generate("Once", top_kk=5)  # wrong
m.generate("Once", schema=5)  # wrong
m.generate("Once", seed="3")  # wrong
m.generate("Once", stop=5)  # wrong
m.generate("Once", stream="yes")  # wrong
m.generate(5)  # wrong
m.generate("Once").token  # wrong
m.generate(["Once"]).tokens  # wrong

messages = [{"role": "user", "content": "Hello"}]
assert_type(m.chat(messages, 99, no_think=True), heads.Completion)
assert_type(m.chat(messages, stream=True), Generator[str, None, None])
m.chat("Hello")  # wrong
m.chat(messages, lang="fr")  # wrong


async def texts() -> None:
    assert_type(await m.agenerate("Once", top_p=0.9), heads.Completion)
    assert_type(await m.agenerate(["Once", "A"]), list[heads.Completion])
    assert_type(m.agenerate("Once", stream=True), AsyncGenerator[str, None])
    async for piece in m.agenerate("Once", stream=True):
        assert_type(piece, str)
    async for index, piece in m.agenerate(["Once"], stream=True):
        assert_type(index, int)
    assert_type(await m.achat(messages), heads.Completion)
    async for piece in m.achat(messages, stream=True):
        print(piece)
    m.agenerate("Once").tokens  # wrong
    await m.agenerate("Once", stream=True)  # wrong
    await m.agenerate("Once", progress=True)  # wrong


# ---- what it says of texts ----

assert_type(m.score(["Once"], [" upon"]), list[tuple[float, bool]])
assert_type(m.logits("Once"), Floats)
assert_type(m.lens("Once", off="5.3"), Floats)
assert_type(m.adapter("one.adapter").scaled(0.5), heads.Adapter)
assert_type(m.generate("Once", adapter=m.adapter("one.adapter")), heads.Completion)
m.generate("Once", adapter="one.adapter")  # wrong
assert_type(m.probs("Once", k=3), list[list[tuple[int, float]]])
assert_type(m.perplexity("Once"), float)
assert_type(m.embed(["Once"]), Floats)
assert_type(m.classify("Once"), list[heads.Label])
assert_type(m.classify(("Once", "upon")), list[heads.Label])
assert_type(m.classify(["Once", "upon"]), list[list[heads.Label]])
assert_type(m.classify([("Once", "upon")])[0][0].score, float)
assert_type(m.rank("Once", ["upon"]), list[heads.Ranked])
assert_type(m.labels, list[str])
m.rank(["Once"], ["upon"])  # wrong
assert_type(m.attention("Once"), heads.Attention)
assert_type(m.attention("Once").weights, Floats)
assert_type(m.attention("Once").cross, Floats | None)
assert_type(m.encode("Once"), list[int])
assert_type(m.decode([1]), str)
assert_type(m.kv()["reserved"], int)
assert_type(m.info(), dict[str, Any])
m.score("Once", 5)  # wrong
m.decode("Once")  # wrong

# ---- sessions, files, errors ----

with m.session() as session:
    assert_type(session, heads.Session)
    assert_type(session.feed("Once", all_rows=True), Floats)
    assert_type(session.fork(2).tokens, list[int])
    session.rewind("2")  # wrong
heads.export("hf", "model.bin", "q4", bits=4.5, calibrate=True)
heads.export("hf")  # wrong
try:
    m.close()
except heads.ContextError as error:
    assert_type(str(error), str)
except heads.Error:  # wrong
    pass
