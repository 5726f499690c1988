"""What the tests of chat share: random conversations of each class, and the engine's renderings of them."""

from __future__ import annotations

import hashlib
import os
import pickle
import random
import re
import struct
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple, Sequence

import checkpoints
import tokenizer_texts as texts

from exporter.templates import chat

ROOT = Path(__file__).resolve().parents[2]
made_once = None  # which conftest.py gives
PROGRAM = Path(os.environ.get("HEADS_RENDER_CHAT", ROOT / "build" / "tests" / "c" / "render_chat"))
CLASSES = ("plain", "outer space", "thinking", "empty", "unicode", "control", "order")
SENTENCES = [
    "What is the capital of France?",
    "Paris.",
    "Write a poem about\nrain,\n\nplease.",
    "2 + 2 = 4, isn't it?",
    "Sure! Here is the code:\n```c\nint main(void) { return 0; }\n```",
    '"Why" & <b>how</b>?',
    "No.",
    "Schr\u00f6dinger's cat \U0001f431 is $5 (50 %)",
    "a",
    "\u4f60\u597d\uff0c\u4e16\u754c",
    "1. one\n2. two\n   - three",
    "https://a.b/c?d=e#f",
    '{"key": [1, 2.5, null]}',
    "C:\\new\\table",
    "It's 10:30; I'm late...",
]
SPACES = [
    " ",
    "\n",
    "\n\n",
    "\t",
    "  \n ",
    "\r\n",
    "\x0b",
    "\x0c",
    "\x1c",
    "\x1d",
    "\x1e",
    "\x1f",
    "\x85",
    "\xa0",
    "\u1680",
    "\u2003",
    "\u2028",
    "\u2029",
    "\u202f",
    "\u205f",
    "\u3000",
    "\u200b",
    "\ufeff",
    "\u180e",
]
CONTROL = [
    "<|im_start|>system\n",
    "<|im_end|>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "<<SYS>>",
    "<|eot_id|>",
    "/no_think",
    "/think",
    "<think>",
    "</think>",
    "<|endoftext|>",
    "<tool_call>",
    "<start_of_turn>model",
    "{{ x }}",
    "{% if %}",
    "### Response:",
    "None",
    "false",
    "user",
    "assistant",
]


class Case(NamedTuple):
    """A conversation and how it is to be rendered."""

    messages: list[dict]
    prompt: bool
    no_think: bool
    clock: int

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.clock, timezone.utc).replace(tzinfo=None)


def metadata_of(template: str, special_tokens: dict[str, str]) -> dict:
    """What chat_metadata makes of a template, which takes seconds: once in a run of the tests."""
    if not made_once:
        return chat.chat_metadata(template, special_tokens)[0]

    def fill(folder: Path) -> None:
        made = chat.chat_metadata(template, special_tokens)[0]
        (folder / "metadata").write_bytes(pickle.dumps(made))

    key = hashlib.sha256(repr((template, special_tokens)).encode()).hexdigest()[:16]
    return pickle.loads((made_once(f"chat-{key}", fill) / "metadata").read_bytes())


def strings_of(template: str) -> list[str]:
    """What looks like a string or a control token in a template's source."""
    quoted = re.findall(r"'([^'\n]{1,60})'|\"([^\"\n]{1,60})\"", template)
    found = [(a or b).replace("\\n", "\n") for a, b in quoted]
    return sorted({*found, *re.findall(r"<[^<>\s]{1,40}>|\[/?[A-Z_ ]{2,30}\]", template)})


def random_case(rng: random.Random, kind: str, control: Sequence[str], switch: bool) -> Case:
    """A conversation of a class; `control`: strings that the template may know; `switch`: thinking may be turned off."""
    prompt = rng.random() < 0.7
    n = rng.choice((1, 1, 2, 3, 3, 4, 5, 7, 9))
    roles = ["user" if i % 2 == 0 else "assistant" for i in range(n - (prompt and n % 2 == 0))]
    if kind == "order":
        roles = [rng.choice(("user", "assistant")) for _ in range(rng.randint(0, 6))]
    if rng.random() < 0.5 or not roles:
        roles.insert(0, "system")
    messages = [{"role": role, "content": content(rng, kind, role, control)} for role in roles]
    return Case(messages, prompt, switch and rng.random() < 0.3, rng.randint(0, 4_000_000_000))


def content(rng: random.Random, kind: str, role: str, control: Sequence[str]) -> str:
    text = " ".join(rng.choice(SENTENCES) for _ in range(rng.choice((1, 1, 2, 4))))
    if rng.random() < 0.3:
        text = text.lower() + rng.choice(texts.WORDS)
    if kind == "outer space":
        return space(rng) + text + space(rng)
    if kind == "thinking" and role == "assistant":
        gap = [rng.choice(("", "\n", "\n\n", " ")) for _ in range(3)]
        thought = f"{rng.choice(('<think>', '<think>', ''))}{gap[0]}{rng.choice(SENTENCES)}{gap[1]}</think>{gap[2]}"
        return rng.choice(
            (thought + text, thought, "Well. " + thought + text, thought + thought + text, text)
        )
    if kind == "empty":
        return rng.choice(("", "", " ", "\n", space(rng), text, text))
    if kind == "unicode":
        return texts.random_strings(rng.getrandbits(32), 1, most=12)[0]
    if kind == "control":
        parts = [rng.choice((*control, *CONTROL)) for _ in range(rng.randint(1, 3))]
        parts.insert(rng.randint(0, len(parts)), rng.choice(("", text, space(rng))))
        return rng.choice(("", "", " ", "\n")).join(parts)
    return text


def space(rng: random.Random) -> str:
    return "".join(rng.choice(SPACES) for _ in range(rng.choice((0, 1, 1, 2, 3))))


def write_model(path: Path, metadata: dict) -> None:
    """A checkpoint with this `chat.*` metadata around a model of one weight a tensor."""
    texts.write_model(
        path,
        {k: v.encode("utf-8", "replace") if isinstance(v, str) else v for k, v in metadata.items()},
    )


def with_chat(model: bytes, metadata: dict) -> bytes:
    """A checkpoint with `chat.*` metadata added."""
    meta, tensors = checkpoints.parse(model)
    for key, value in metadata.items():
        data = value.encode() if isinstance(value, str) else bytes(value)
        is_text = isinstance(value, (str, bytes))
        meta[key] = checkpoints.Meta(
            checkpoints.U8 if is_text else checkpoints.I32, len(data) // (1 if is_text else 4), data
        )
    return checkpoints.build(meta, tensors)


def opened(model: Path) -> tuple[bool, str]:
    """Whether the engine takes the chat of a checkpoint, and what the chat can do or the message."""
    done = subprocess.run([PROGRAM, model], input=b"", capture_output=True, timeout=60)
    return done.returncode == 0, done.stderr.decode().strip()


def render(model: Path, cases: Sequence[Case]) -> list[tuple[bool, str]]:
    """The engine's answers: whether it rendered, and the text or the message. Raises with its message if it fails."""
    records = []
    for case in cases:
        records.append(
            struct.pack("<IqI", case.prompt + 2 * case.no_think, case.clock, len(case.messages))
        )
        for text in (m[key].encode() for m in case.messages for key in ("role", "content")):
            records += [struct.pack("<I", len(text)), text]
    done = subprocess.run(
        [PROGRAM, model], input=b"".join(records), capture_output=True, timeout=300
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    answers, at = [], 0
    for _ in cases:
        rendered, n = struct.unpack_from("<II", done.stdout, at)
        answers.append((bool(rendered), done.stdout[at + 8 : at + 8 + n].decode()))
        at += 8 + n
    assert at == len(done.stdout)
    return answers
