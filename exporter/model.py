"""A model that is ready to be written: what every reader of sources/ gives."""

from __future__ import annotations

from dataclasses import dataclass, field

from .knobs import Knobs
from .tensor import Tensor
from .tokenizers.vocabulary import Vocabulary


@dataclass
class Model:
    """A checkpoint ready to be written. `tensors` are the canonical ones, in the order of the file;
    `files` are what must not be overwritten; `directory` is a Hugging Face checkpoint's;
    `tokenizer` is what tokenizer_metadata takes, None if there is no tokenizer;
    `remarks` are for the user; `template` is the chat template, and
    `special_tokens` those that it knows by name, if no directory holds them; `dtype` is what it is
    written in, if nobody says otherwise; `adapters` says which were merged, for people;
    `more_eos` are ids that end a text besides the tokenizer's."""

    name: str
    family: str
    knobs: Knobs
    tensors: dict[str, Tensor]
    files: list[str]
    directory: str | None = None
    tokenizer: str | Vocabulary | None = None
    remarks: list[str] = field(default_factory=list)
    template: str | None = None
    special_tokens: dict[str, str] = field(default_factory=dict)
    dtype: str = "q8"
    adapters: str = ""
    more_eos: list[int] = field(default_factory=list)
