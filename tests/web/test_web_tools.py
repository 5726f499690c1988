"""heads.js with tools and thoughts, in node: the prompts and the messages of the server.

It needs `make web lib`, node and tests/browser's packages; CI installs them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import chats
import pytest
import talkers
import tool_texts as server

import heads
from heads.server.reader import HarmonyReader, Reader, TaggedReader
from heads.server.requests import chat_request
from heads.server.templates import chat_ids
from heads.server.texts import message
from heads.server.tools import Tagged, format_of

ROOT = Path(__file__).resolve().parents[2]
CALL = {"name": "weather", "arguments": '{"city": "Zürich", "days": 2}'}
CALLED = {"id": "abcdefghi", "type": "function", "function": CALL}
TURN = [
    *server.QUESTION,
    {"role": "assistant", "content": "I look.", "tool_calls": [CALLED], "reasoning_content": "Hm."},
    {"role": "tool", "tool_call_id": "abcdefghi", "name": "weather", "content": "rain"},
]
ASKED = [  # messages, options
    (server.QUESTION, {"tools": server.TOOLS}),
    (TURN, {"tools": server.TOOLS}),
    ([TURN[0], {**TURN[1], "content": None}, TURN[2]], {}),
    (server.QUESTION, {}),
]
EFFORT = "{# </think> #}{{ '[' + reasoning_effort + ']' if reasoning_effort }}"
TALK = "{% if tools %}[S]{% endif %}" + talkers.PLAIN + "{# </think> <tool_call> #}"
PIECES = ("\n<tool_call>\n", '{"name": "now", "argu', 'ments": {}}', "\n</tool_call>")
WRITTEN = {  # what a model writes: text, reasoning_content, calls, stopped
    ("<think>Hm", ".</think>", "\n\nIt is ", "fine."): ("It is fine.", "Hm.", [], "eos"),
    ("Ah. ", *PIECES): ("Ah.", "", [("now", "{}")], "tool_calls"),
    ("<think>a</think>", *PIECES): ("", "a", [("now", "{}")], "tool_calls"),
    ("<tool", "_call>{", " no "): ("", "", [], "eos"),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("tools")

    def saved(name: str, data: bytes) -> str:
        (folder / name).write_bytes(data)
        return str(folder / name)

    def with_template(name: str, template: str) -> str:
        metadata = talkers.template_metadata(server.TEMPLATES["hermes"])
        metadata = {**metadata, "chat.template": template}
        return saved(
            name, chats.with_chat((ROOT / "models" / "stories.bin").read_bytes(), metadata)
        )

    templates = {**server.TEMPLATES, "effort": server.TEMPLATES["hermes"] + EFFORT}
    templates["raises"] = server.TEMPLATES["hermes"] + "{{ raise_exception('no') if tools }}"
    paths = {name: with_template(name, text) for name, text in templates.items()}
    names = ("hermes", "mistral", "mistral-11", "deepseek", "deepseek-3.1", "llama")
    asked = [(name, *one) for name in names for one in ASKED]
    thinks = talkers.with_template((ROOT / "models" / "stories.bin").read_bytes(), talkers.THINKING)
    paths["thinks"] = saved("thinks", thinks)
    efforts = [("effort", "low"), ("thinks", "none"), ("thinks", "high")]
    asked += [(name, server.QUESTION, {"reasoning_effort": one}) for name, one in efforts]
    writers = [
        saved(f"writes-{i}", talkers.that_writes(pieces, TALK)) for i, pieces in enumerate(WRITTEN)
    ]
    tools = server.TOOLS
    read = [
        (server.TEMPLATES[name], text, server.functions_of(calls), False)
        for name, text, _, calls in server.FOUND
    ]
    read += [("", text, [], True) for text, _ in server.THOUGHT]
    harmony = server.TEMPLATES["harmony"]
    read += [
        (harmony, text, server.functions_of(calls), False) for text, _, calls in server.HARMONY
    ]
    hermes = {"path": paths["hermes"], "messages": server.QUESTION}
    plan = {
        "conversations": [
            {"path": paths[name], "messages": messages, "options": options}
            for name, messages, options in asked
        ],
        "answers": [
            {
                "path": path,
                "messages": [{"role": "user", "content": "a"}],
                "options": {"tools": tools},
            }
            for path in writers
        ],
        "read": [
            {
                "template": template,
                "text": text,
                "tools": [{"type": "function", "function": x} for x in functions],
                "thinks": thinks,
            }
            for template, text, functions, thinks in read
        ],
        "refused": {
            "without": {**hermes, "options": {"tools": tools}, "without": True},
            "place": {**hermes, "path": paths["plain"], "options": {"tools": tools}},
            "raises": {**hermes, "path": paths["raises"], "options": {"tools": tools}},
            "choice": {**hermes, "options": {"tools": tools, "tool_choice": "required"}},
            "tools": {**hermes, "options": {"tools": [{"type": "function"}]}},
            "calls": {
                **hermes,
                "messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}],
                "options": {},
            },
            "effort": {**hermes, "options": {"reasoning_effort": "huge"}},
            "think": {**hermes, "options": {"no_think": True}},
        },
    }
    (folder / "plan").write_text(json.dumps(plan))
    script = ROOT / "tests" / "browser" / "tools.mjs"
    done = subprocess.run(["node", script, folder / "plan"], capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    return {**json.loads(done.stdout), "asked": asked, "paths": paths, "texts": read}


def test_prompts(found):
    for (name, messages, options), ids in zip(found["asked"], found["ids"]):
        with heads.Model(found["paths"][name]) as model:
            request = chat_request({"messages": messages, **options}, name)
            assert ids == list(chat_ids(model, request)), (name, messages, options)


def test_answers(found):
    for told, (text, thought, calls, stopped) in zip(found["answers"], WRITTEN.values()):
        called = told["tool_calls"]
        assert (told["text"], told["reasoning_content"], told["stopped"]) == (
            text,
            thought,
            stopped,
        )
        assert [(x["function"]["name"], x["function"]["arguments"]) for x in called] == calls
        assert all(x["type"] == "function" and len(x["id"]) == 9 for x in called)


def read(template: str, text: str, functions: list[dict], thinks: bool) -> dict:
    """By the server."""
    form = format_of(None, template, functions)
    kind = TaggedReader if isinstance(form, Tagged) else Reader
    kind = HarmonyReader if "<|channel|>" in template else kind
    reader = kind(form, thinks, False)
    return message(reader.push(text) + reader.push("", True))


def test_what_is_found(found):
    assert len(found["read"]) > 50
    for given, told in zip(found["texts"], found["read"]):
        want = read(*given)
        calls = [
            (x["function"]["name"], json.loads(x["function"]["arguments"]))
            for x in want.get("tool_calls", [])
        ]
        for text, thought, called in told:
            assert (text, thought) == (want["content"] or "", want.get("reasoning_content", "")), (
                given
            )
            assert [(name, json.loads(x)) for name, x in called] == calls, given


def test_refusals(found):
    said = found["refused"]
    code, text = said["without"]
    assert code == "unsupported" and text.startswith("tools: ") and "@huggingface/jinja" in text
    assert said["place"] == ["refused", "tools: this model's chat template has no place for them"]
    assert said["raises"] == ["refused", "the chat template refuses this: no"]
    assert said["choice"][0] == "unsupported" and said["choice"][1].startswith("tool_choice: ")
    assert said["tools"][1].startswith("tools: expected a list of tools, each with type function")
    assert said["calls"][1].startswith("messages: tool_calls: expected a list of calls, each with")
    assert said["effort"][1].startswith("reasoning_effort: expected none, minimal, low, ")
    assert said["think"][1].startswith("the chat template has no switch that turns thinking off")
