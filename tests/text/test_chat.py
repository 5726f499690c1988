"""Chat templates: compiled by the exporter, rendered by the engine, and compared with jinja2."""

from __future__ import annotations

import collections
import json
import random
import re
import resource
from functools import lru_cache
from pathlib import Path

import chats
import golden_copies
import numpy as np
import pytest
from chat_templates import CHATML, EXACT, GEMMA, LLAMA2, LLAMA3, REFUSED, THINKING
from chats import Case
from conftest import in_part
from outputs import processor_seconds

import export
from exporter.templates import bounded, chat, jinja, tables
from exporter.tokenizers.added_tokens import named_tokens
from exporter.checkpoint import Checkpoint

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
# Changes where two messages are equal.
DISTINCT = (
    "{% for m in messages %}<{% if m == messages[-1] %}!{% endif %}{{ m.content }}>{% endfor %}"
)


@lru_cache
def metadata_of(template: str) -> dict:
    metadata = chats.metadata_of(template, TOKENS)
    assert "chat.refused" not in metadata, metadata["chat.refused"]
    return metadata


def compiled(tmp_path: Path, template: str) -> tuple[Path, dict]:
    """A checkpoint with the compiled template, and its metadata."""
    metadata = dict(metadata_of(template))
    chats.write_model(tmp_path / "x.bin", metadata)
    return tmp_path / "x.bin", metadata


def by_jinja(template: str, cases: list[Case], switch: dict) -> list[str | None]:
    """What jinja2 makes of the conversations, None where the template fails."""
    compiled, out = jinja.Template(template, TOKENS), []
    for case in cases:
        compiled.now = case.now
        try:
            out.append(compiled.render(case.messages, case.prompt, switch if case.no_think else {}))
        except jinja.TemplateFails:
            out.append(None)
    return out


def case(
    *contents: str,
    system: str | None = None,
    prompt: bool = True,
    no_think: bool = False,
    clock: int = 0,
) -> Case:
    """A conversation that alternates."""
    roles = ["user", "assistant"] * len(contents)
    messages = [{"role": role, "content": content} for role, content in zip(roles, contents)]
    return Case(
        [{"role": "system", "content": system}] * (system is not None) + messages,
        prompt,
        no_think,
        clock,
    )


def one(model: Path, conversation: Case) -> str:
    ((good, text),) = chats.render(model, [conversation])
    return text if good else f"refused: {text}"


# ---- against jinja2 ------------------------------------------------------------------------------------------------------


@in_part(3)
@pytest.mark.parametrize("name", EXACT)
def test_equal_or_refused(name, tmp_path):
    """Every text is jinja2's or refused; what jinja2 fails with is refused; and no plain text is refused that it renders."""
    template, rng = EXACT[name], random.Random(name)
    model, metadata = compiled(tmp_path, template)
    switch = dict(item.split("=") for item in metadata.get("chat.no_think", "").split(", ") if item)
    variables = {key: json.loads(value) for key, value in switch.items()}
    counts = collections.Counter()
    for kind in chats.CLASSES:
        cases = [
            chats.random_case(rng, kind, chats.strings_of(template), bool(switch))
            for _ in range(60)
        ]
        wants = by_jinja(template, cases, variables)
        for conversation, want, (good, text) in zip(cases, wants, chats.render(model, cases)):
            assert not good or text == want, conversation
            assert good or want is None or kind not in ("plain", "outer space"), (
                f"{text}: {conversation}"
            )
            counts["rendered" if good else "fails" if want is None else "refused"] += 1
    assert counts["rendered"] > 150 and counts["refused"] < 100, counts


def test_every_kind_of_white_space(tmp_path):
    """`trim` is Python's str.strip, character by character."""
    model, _ = compiled(tmp_path, LLAMA3)
    spaces = [chr(c) for c in range(0x110000) if chr(c).isspace()] + [
        "\u200b",
        "\ufeff",
        "\u180e",
        "\0",
        "\x7f",
    ]
    cases = [case(f"{c}a{c}b{c}", f"{c}{c}x", "y") for c in spaces]
    assert [text for _, text in chats.render(model, cases)] == by_jinja(LLAMA3, cases, {})


def test_the_clock(tmp_path):
    model, _ = compiled(tmp_path, EXACT["date"])
    assert one(model, case("Hi", clock=0)).startswith(
        "<|system|>Today is 01 Jan 1970, Thursday 1.1. 00:00 AM 001 70.\n"
    )
    assert one(model, case("Hi", clock=1_709_218_740)).startswith(
        "<|system|>Today is 29 Feb 2024, Thursday 29.2. 14:59 PM 060 24.\n"
    )
    assert "is no date" in one(model, case("Hi", clock=1 << 60))


def test_every_code_of_a_date(tmp_path):
    """They are Python's of the C locale, with which every test runs."""
    codes = [f"%{flag}{code}" for flag in ("", "-") for code in "dmHIMSjy"]
    codes += [f"%{code}" for code in "YBbAap%"]
    template = f"{{{{ strftime_now('{'|'.join(codes[:16])}') }}}}\n"
    template += f"{{{{ strftime_now('{'|'.join(codes[16:])}') }}}}\n" + EXACT["chatml"]
    model, _ = compiled(tmp_path, template)
    months = [86400 * (31 * i + 5) + 3607 * i for i in range(24)]
    cases = [case("Hi", clock=c) for c in (*months, -30610224000, 253402300799, 951868800)]
    assert [text for _, text in chats.render(model, cases)] == by_jinja(template, cases, {})


def test_thinking_in_history(tmp_path):
    """It is cut out, and where it is not understood it is refused."""
    model, _ = compiled(tmp_path, THINKING)
    answer = "<think>\nHm.\n</think>\n\nYes."
    assert one(model, case("A?", answer, "B?")).count("Hm.") == 0
    assert '"</think>" was not compiled' in one(model, case("A?", answer, prompt=False))
    assert "Be kind." in one(model, case("A?", system="Be kind."))
    assert 'holds "/quiet" was not compiled' in one(model, case("A?", system="Be /quiet"))


def test_no_thinking(tmp_path):
    model, metadata = compiled(tmp_path, THINKING)
    assert metadata["chat.no_think"] == "enable_thinking=false"
    assert one(model, case("A?", no_think=True)).endswith(
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    model, metadata = compiled(tmp_path, EXACT["effort"])
    assert metadata["chat.no_think"] == 'reasoning_effort="low"'
    assert "Reasoning: low" in one(model, case("A?", no_think=True))
    model, _ = compiled(tmp_path, CHATML)
    assert "no switch that turns thinking off" in one(model, case("A?", no_think=True))


# ---- what is refused -----------------------------------------------------------------------------------------------------


ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
TOO_MUCH = {
    ENDLESS: "it takes more than 2 seconds",
    "{{ 9 ** (9 ** 9) }}": "it takes more than 2 seconds",
    "{{ messages[0].content * 6000000000 }}": "it takes more than 1024 MB of memory",
    "{{ 'x' * 6000000000 }}": "it takes more than 1024 MB of memory",
    "{{ '%6000000000d' % (1,) }}": "it takes more than 1024 MB of memory",
    "{{ messages[0].content * 6000000 }}": "characters",
}


@pytest.mark.parametrize("template", TOO_MUCH)
def test_templates_without_bounds(template, monkeypatch):
    """A template may loop for years or fill the memory: it is refused with a sentence."""
    monkeypatch.setattr(bounded, "SECONDS", 2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    metadata, remark = chat.chat_metadata(template, TOKENS)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000
    assert TOO_MUCH[template] in metadata["chat.refused"] and TOO_MUCH[template] in remark


@pytest.mark.parametrize("template", REFUSED)
def test_templates_that_cannot_be_compiled(template, tmp_path):
    metadata, remark = chat.chat_metadata(template, TOKENS)
    assert (
        metadata["chat.refused"].startswith(REFUSED[template])
        and metadata["chat.refused"] in remark
    )
    assert set(metadata) == {"chat.template", "chat.refused"}
    chats.write_model(tmp_path / "x.bin", metadata)
    good, message = chats.opened(tmp_path / "x.bin")
    assert not good and f"the chat template could not be compiled: {REFUSED[template]}" in message


@pytest.mark.parametrize(
    "template, conversation, message",
    [
        (CHATML, Case([], True, False, 0), "a conversation needs a message"),
        (
            CHATML,
            Case([{"role": "tool", "content": ""}], True, False, 0),
            'message 1: role is "tool", expected system, user or assistant',
        ),
        (
            CHATML,
            Case([{"role": r, "content": "x"} for r in ("user", "system")], True, False, 0),
            "message 2: a system message can only be the first",
        ),
        (
            GEMMA,
            case("A", system="B"),
            "the chat template cannot write a conversation with a system message: it fails with: System role not supported",
        ),
        (
            LLAMA2,
            Case([{"role": "user", "content": "x"}] * 2, True, False, 0),
            "the chat template was not compiled for a user's message after a user's message",
        ),
        (
            LLAMA2,
            case(" ", system="B"),
            "message 2 (user): what the chat template does with a text of nothing but white space was not compiled",
        ),
        (
            LLAMA2,
            case("", system="B"),
            "message 2 (user): what the chat template does with an empty text was not compiled",
        ),
        (
            "{% for m in messages %}<{% if m.content != m.content.strip() %}!{% endif %}{{ m.content }}>{% endfor %}",
            case("A", " B "),
            "message 2 (assistant): what the chat template does with white space around a text",
        ),
        (
            DISTINCT,
            case("A", "B", "A"),
            "messages 1 and 3 are equal, and what the chat template then does was not compiled",
        ),
    ],
)
def test_refusals(template, conversation, message, tmp_path):
    model, _ = compiled(tmp_path, template)
    assert one(model, conversation).startswith(f"refused: {message}")


def test_many_messages(tmp_path):
    """Where all must differ, they are sorted, not compared each with each: the first that repeats
    one is named, and 64,000 take no seconds."""
    model, metadata = compiled(tmp_path, DISTINCT)
    assert metadata["chat.distinct"]
    contents = [f"{i:06}" for i in range(63_999)]
    before = processor_seconds()
    text = one(model, case(*contents))
    assert processor_seconds() - before < 2
    assert text.count("000123") == 1 and len(text) > 6 * len(contents)
    for first, again, more in ((3, 40_000, 50_000), (7, 8, 9)):
        said = list(contents)
        said[again] = said[more] = said[first]
        said[60_000] = said[59_000]  # a later pair
        assert f"messages {first + 1} and {again + 1} are equal" in one(model, case(*said))


def test_characters_that_trigger_something(tmp_path):
    """One of a string of them: the template names the string."""
    template = "{% for m in messages %}{% if m.content[:1] in '@$' %}!{% endif %}{{ m.content }};{% endfor %}"
    model, _ = compiled(tmp_path, template)
    assert 'a text that holds "$" was not compiled' in one(model, case("$HOME"))


def test_words_that_trigger_something(tmp_path):
    """A string that the template looks for is refused where it stands, and nowhere else."""
    template = (
        "{% for m in messages %}{% if m.role == 'user' and m.content.endswith('/loud') %}LOUD {% endif %}"
        "{{ m.role }}: {{ m.content }}\n{% endfor %}"
    )
    for template in (
        template,
        template.replace("m.content.endswith", "m.content.lower().endswith"),
    ):
        model, _ = compiled(tmp_path, template)
        assert 'a text that holds "/loud" was not compiled' in one(model, case("Hi /loud"))
        assert 'a text that holds "/loud" was not compiled' in one(model, case("Hi /LouD"))
    assert one(model, case("Hi", "Hi /loud", "No")) == "user: Hi\nassistant: Hi /loud\nuser: No\n"


# ---- metadata ------------------------------------------------------------------------------------------------------------


def test_what_the_chat_can_do(tmp_path):
    for name, said in [
        ("chatml", "system yes, thinking no, date no"),
        ("gemma", "system no, thinking no, date no"),
        ("date", "system yes, thinking no, date yes"),
        ("thinking", "system yes, thinking yes (off: enable_thinking=false), date no"),
    ]:
        model, _ = compiled(tmp_path, EXACT[name])
        assert chats.opened(model) == (True, f"{said}, stop -1")
    dropped = (
        "{% for m in messages if m.role != 'system' %}{{ m.role + ':' + m.content }}{% endfor %}"
    )
    model, _ = compiled(tmp_path, dropped)
    assert chats.opened(model)[1].startswith("system ignored")


def test_the_token_that_ends_an_answer(tmp_path, tiny):
    """The special token with which the text after an answer begins; the bundled tokenizer has two, with ids 0 and 1."""
    for template, stop in [
        (LLAMA2, -1),
        (LLAMA2.replace("+ ' ' + eos_token", "+ bos_token"), 0),
        (CHATML, -1),
    ]:
        base = Checkpoint(str(tiny)).metadata
        special = [
            bytes(base["tokenizer.token.text"])[a:b].decode()
            for a, b in zip(base["tokenizer.token.begin"][:2], base["tokenizer.token.begin"][1:3])
        ]
        metadata, _ = chat.chat_metadata(template, dict(zip(("bos_token", "eos_token"), special)))
        model = tmp_path / "x.bin"
        chats.write_model(
            model, {**{k: v for k, v in base.items() if k.startswith("tokenizer.")}, **metadata}
        )
        assert chats.opened(model)[1].endswith(f"stop {stop}")


@pytest.mark.parametrize(
    "key, value, message",
    [
        ("chat.text.begin", [1, 2], "value 0 is 1, expected 0"),
        ("chat.text.begin", [], "it has 0 values, expected 1..1048576"),
        ("chat.text.begin", [0, 5, 3], "less than the one before it"),
        ("chat.text", b"x", "it has 1 values, expected"),
        ("chat.text", [1], "type is 2, expected 1 (u8)"),
        ("chat.piece.begin", [], "it has 0 values, expected 1.."),
        ("chat.piece.begin", [0], "metadata chat.item.kind: it has"),
        ("chat.item.kind", "3 first", "value 0 is 3, expected 0..2"),
        ("chat.item.kind", "2 first", "which an item of kind 2 cannot have"),
        ("chat.item.text", "1000000 first", "expected -1.."),
        ("chat.item.text", "-1 first", "which an item of kind 0 cannot have"),
        ("chat.transform", [0], "it has 1 values, expected a multiple of 6"),
        ("chat.transform", [-1, -1, -1, 2, -1, -1], "value 3 is 2, which cannot be"),
        ("chat.transform", [99, -1, -1, 0, -1, -1], "value 0 is 99"),
        ("chat.trigger.user", [-1], "value 0 is -1, expected 0.."),
        ("chat.distinct", [2], "chat.distinct is 2, expected 0..1"),
        ("chat.0.pieces", [0], "it has 1 values, expected 121"),
        ("chat.0.pieces", [10000] * 121, "value 0 is 10000, expected -1.."),
        ("chat.0.transforms", [5] * 11, "value 0 is 5, expected 0.."),
        ("chat.0.classes", [64] * 11, "value 0 is 64, expected 0..63"),
    ],
)
def test_bad_metadata(key, value, message, tmp_path):
    _, metadata = compiled(tmp_path, LLAMA3)
    if isinstance(value, str):
        number = int(value.split()[0])
        value = metadata[key].copy()
        value[0] = number
    metadata[key] = value if isinstance(value, bytes) else np.array(value, np.int32)
    chats.write_model(tmp_path / "x.bin", metadata)
    good, said = chats.opened(tmp_path / "x.bin")
    assert not good and message in said, said


@pytest.mark.parametrize("format", ["%s", "%-Y", "%", "%-", "%d\0", "%Ed", "%d" * 40])
def test_a_format_that_is_no_date(format, tmp_path):
    _, metadata = compiled(tmp_path, EXACT["date"])
    texts, begin = metadata["chat.text"], metadata["chat.text.begin"].copy()
    date = next(
        t
        for k, t in zip(metadata["chat.item.kind"], metadata["chat.item.text"])
        if k == tables.DATE
    )
    metadata["chat.text"] = texts[: begin[date]] + format.encode() + texts[begin[date + 1] :]
    begin[date + 1 :] += len(format) - (begin[date + 1] - begin[date])
    metadata["chat.text.begin"] = begin
    chats.write_model(tmp_path / "x.bin", metadata)
    assert "names no format of a date" in chats.opened(tmp_path / "x.bin")[1]


def test_a_table_without_system_may_not_write_one(tmp_path):
    _, metadata = compiled(tmp_path, LLAMA3)
    metadata["chat.0.pieces"] = metadata["chat.1.pieces"]
    chats.write_model(tmp_path / "x.bin", metadata)
    assert "names a piece with a system message" in chats.opened(tmp_path / "x.bin")[1]


def test_checkpoints_without_a_compiled_template(tmp_path):
    chats.write_model(tmp_path / "x.bin", {})
    assert "the checkpoint has no chat template" in chats.opened(tmp_path / "x.bin")[1]
    chats.write_model(tmp_path / "x.bin", {"chat.template": "{{ messages }}"})
    assert "was not compiled; export the checkpoint again" in chats.opened(tmp_path / "x.bin")[1]


# ---- where checkpoints keep it -------------------------------------------------------------------------------------------


def exported(directory: Path, out: Path) -> dict:
    assert export.main([str(directory), str(out), "--dtype", "f32"]) == 0
    return Checkpoint(str(out)).metadata


def test_the_forms_of_a_directory(tmp_path, capsys):
    """A list of named templates, BOS null, EOS an object; chat_template.jinja before them, with CRLF."""
    directory = golden_copies.copy(tmp_path, "llama")
    named = [
        {"name": "tool_use", "template": "no"},
        {"name": "default", "template": LLAMA2.replace("bos_token + ", "")},
    ]
    config = {
        "chat_template": named,
        "bos_token": None,
        "eos_token": {"content": "</s>", "special": True},
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    exported(directory, tmp_path / "x.bin")
    assert one(tmp_path / "x.bin", case("A", "B", "C")) == "[INST] A [/INST] B </s>[INST] C [/INST]"
    (directory / "chat_template.jinja").write_bytes(EXACT["CRLF"].encode())
    exported(directory, tmp_path / "x.bin")
    (want,) = by_jinja(EXACT["CRLF"], [case("A")], {})
    assert one(tmp_path / "x.bin", case("A")) == want and "\r" not in want
    (directory / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert exported(directory, tmp_path / "x.bin")["chat.refused"] == b"it leaves out a message"
    assert re.search(
        "note: the chat template cannot be compiled: it leaves out a message",
        capsys.readouterr().err,
    )


def test_special_tokens_of_a_directory(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<a>", "eos_token": None, "pad_token": 3})
    )
    (tmp_path / "special_tokens_map.json").write_text(
        json.dumps({"eos_token": {"content": "<b>"}, "bos_token": "<c>"})
    )
    assert named_tokens(str(tmp_path)) == {"bos_token": "<c>", "eos_token": "<b>"}
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<a>", "added_tokens_decoder": {}})
    )
    assert named_tokens(str(tmp_path)) == {"bos_token": "<a>"}
    config = {"image_token": "<i>", "boi_token": {"content": "<j>"}, "add_bos_token": True}
    config["extra_special_tokens"] = {"video_token": "<v>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "special_tokens_map.json").unlink()
    named = {"image_token": "<i>", "boi_token": "<j>", "video_token": "<v>"}
    assert named_tokens(str(tmp_path)) == named
    config |= {"tokenizer_class": "LlamaTokenizerFast", "unk_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert named_tokens(str(tmp_path)) == named | {"bos_token": "<s>", "eos_token": "</s>"}
