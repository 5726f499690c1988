"""Log-probabilities of tokens in OpenAI's two shapes, and where the tokens stand in their text."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

from .._batch import Likely
from .._checkpoint import Decoder

if TYPE_CHECKING:
    from ..model import Model


def of_chat(model: Model, x: Likely) -> dict:
    def entry(id: int, value: float) -> dict:
        text, data = model.token_text(id), model.token_bytes(id)
        return {"token": text, "logprob": value, "bytes": list(data)}

    return {**entry(x.id, x.log_probability), "top_logprobs": [entry(*t) for t in x.top]}


def piece(model: Model, id: int) -> str:
    """A token's text; of a part of a character its bytes, as OpenAI writes them."""
    data = model.token_bytes(id)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def of_text(model: Model, likely: list[Likely], offsets: list[int]) -> dict:
    known = [None if x.log_probability != x.log_probability else x for x in likely]
    return {
        "tokens": [piece(model, x.id) for x in likely],
        "token_logprobs": [x and x.log_probability for x in known],
        "top_logprobs": [x and _top(model, x) for x in known],
        "text_offset": offsets,
    }


def _top(model: Model, x: Likely) -> dict[str, float]:
    """Of tokens with the same bytes the likeliest."""
    found: dict[str, float] = {}
    for id, value in x.top:
        found.setdefault(piece(model, id), value)
    return found


class Offsets:
    """Where the tokens of a text begin, in its characters: one that begins inside of a character
    has the place of that."""

    def __init__(self, model: Model, prompt: list[int], given: str | list[int], echo: bool):
        """prompt: what runs of `given`, which is the beginning of the text if echo is true."""
        self.model, self.n_seen, self.n_characters = model, 0, 0
        self.decoder = Decoder(model._text(), False)
        self.bytes = codecs.getincrementaldecoder("utf-8")("replace")
        self.shown = self._shown(prompt, given)
        if not echo:
            for id in prompt:
                self.next(id)
            self.n_characters = 0

    def _shown(self, prompt: list[int], given: str | list[int]) -> list[bool]:
        """Which tokens of the prompt the text has: of a text not those that were put around it."""
        if isinstance(given, str):
            ids = self.model.encode(given, special=False)
            before = next((i for i in (0, 1, 2) if prompt[i : i + len(ids)] == ids), None)
            if before is not None:
                return [before <= i < before + len(ids) for i in range(len(prompt))]
        return [not self.model.is_special(id) for id in prompt]

    def next(self, id: int) -> int:
        """Of the next token."""
        at, self.n_seen = self.n_seen, self.n_seen + 1
        if not (self.shown[at] if at < len(self.shown) else not self.model.is_special(id)):
            return self.n_characters
        data = self.model.token_bytes(id)
        # Half of a character that does not go on is one.
        cut = bool(self.bytes.getstate()[0]) and data and not 0x80 <= data[0] < 0xC0
        begin = self.n_characters + bool(cut)
        self.bytes.decode(data)
        self.n_characters += len(self.decoder.push(id).decode("utf-8", "replace"))
        return begin
