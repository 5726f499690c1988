#!/usr/bin/env python3
"""Prompts with tools as the server writes them, against transformers.

    HEADS_TESTS=all live_tools.py chat_templates.json [SEED]

The file is a list of {"name", "text"}. Of each template that takes tools, random conversations with calls and what these
gave are rendered by the server's code and by transformers' own for apply_chat_template: every text must be equal, and where
one fails the other has to. Equal texts have equal ids, since both are encoded as they stand. Without HEADS_TESTS=all fewer
conversations of half of the templates, drawn by chance."""

from __future__ import annotations

import collections
import copy
import json
import random
import sys
from datetime import datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), *(str(ROOT / part) for part in ("python", "tests/reference"))]

from live_chat import ALL, TOKENS, Clock, chat_template_utils, some  # noqa: E402

from heads.exporter.templates.jinja import Template, TemplateFails  # noqa: E402
from heads.server.messages import OPEN, PROMPT  # noqa: E402
from heads.server.rendering import _forms, text_of  # noqa: E402

CASES = 40 if ALL else 15
WORDS = [
    "Oslo",
    "a <b> & c",
    'say "so"',
    "K\u00f6ln \u4f60\u597d",
    "line\nline",
    "it's",
    "{{ x }}",
    " ",
]
KINDS = ["string", "integer", "number", "boolean", ["string", "null"]]


def random_tool(rng: random.Random, number: int) -> dict:
    properties = {
        f"p{i}": {"type": rng.choice(KINDS), "description": rng.choice(WORDS)}
        for i in range(rng.randrange(4))
    }
    parameters = {"type": "object", "properties": properties, "required": list(properties)[:1]}
    function = {
        "name": f"tool_{number}",
        "description": rng.choice(WORDS),
        "parameters": parameters,
    }
    return {"type": "function", "function": function}


def random_value(rng: random.Random):
    return rng.choice([rng.choice(WORDS), 5, -0.5, True, None, [1, "a"], {"b": {"c": []}}])


def random_call(rng: random.Random, tools: list[dict]) -> dict:
    function = rng.choice(tools)["function"]
    arguments = {name: random_value(rng) for name in function["parameters"]["properties"]}
    id = "".join(rng.choice("abcdefgh0123456789") for _ in range(9))
    return {
        "id": id,
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def random_conversation(rng: random.Random) -> tuple[list[dict], list[dict]]:
    """As the server's messages_of and tools_of have them."""
    tools = [random_tool(rng, i) for i in range(rng.randrange(1, 4))]
    messages = [{"role": "system", "content": rng.choice(WORDS)}] if rng.random() < 0.4 else []
    for _ in range(rng.randrange(1, 4)):
        messages.append({"role": "user", "content": rng.choice(WORDS)})
        if rng.random() < 0.7:
            calls = [random_call(rng, tools) for _ in range(rng.choice([1, 1, 2, 3]))]
            said = rng.choice(["", "", rng.choice(WORDS)])
            messages.append({"role": "assistant", "content": said, "tool_calls": calls})
            if rng.random() < 0.2:
                messages[-1]["reasoning_content"] = rng.choice(WORDS)
            for call in calls:
                gave = {"role": "tool", "content": rng.choice(WORDS), "tool_call_id": call["id"]}
                messages.append(
                    {**gave, "name": call["function"]["name"]} if rng.random() < 0.5 else gave
                )
        if rng.random() < 0.7:
            messages.append({"role": "assistant", "content": rng.choice(WORDS)})
    if messages[-1]["role"] == "assistant":
        messages.append({"role": "user", "content": rng.choice(WORDS)})
    return messages, tools


def theirs(
    template: str, messages: list[dict], tools, variables: dict, goes_on: bool = False
) -> str | None:
    try:
        rendered, _ = chat_template_utils.render_jinja_template(
            [copy.deepcopy(messages)],
            tools=tools,
            chat_template=template,
            add_generation_prompt=not goes_on,
            continue_final_message=goes_on,
            **variables,
        )
    except Exception:  # a template may raise anything
        return None
    return rendered[0]


def compare(name: str, text: str, tokens: dict, rng: random.Random) -> collections.Counter:
    template, counts = Template(text, tokens), collections.Counter()
    for _ in range(CASES):
        messages, tools = random_conversation(rng)
        switch = {"enable_thinking": False} if rng.random() < 0.3 else {}
        template.now = Clock.fixed = datetime(2026, rng.randrange(1, 13), rng.randrange(1, 29), 12)
        goes_on = rng.random() < 0.2
        if goes_on:  # an assistant's message, to be continued
            messages.append({"role": "assistant", "content": rng.choice(WORDS[:-1])})
        variables = {**tokens, **switch}
        want = [theirs(text, form, tools, variables, goes_on) for form in _forms(messages)]
        try:
            found = text_of(template, messages, tools, switch, OPEN if goes_on else PROMPT)
        except TemplateFails:
            found = None
        right = found in want if found is not None else not any(want)
        counts["equal" if right and found else "refused" if right else "wrong"] += 1
        if not right:
            print(
                f"not ok {name}: {messages} {tools}\n    ours   {found!r}\n    theirs {want[0]!r}"
            )
    return counts


def takes_tools(text: str, tokens: dict) -> bool:
    messages, tools = [{"role": "user", "content": "a"}], [random_tool(random.Random(1), 0)]
    return theirs(text, messages, tools, tokens) != theirs(text, messages, None, tokens)


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    templates = some(json.loads(Path(sys.argv[1]).read_text()))
    rng = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    counts: collections.Counter = collections.Counter()
    for i, template in enumerate(templates):
        if takes_tools(template["text"], TOKENS[i % 2]):
            found = compare(template["name"], template["text"], TOKENS[i % 2], rng)
            print(f"{template['name']}: " + ", ".join(f"{n} {x}" for x, n in sorted(found.items())))
            counts.update(found)
            counts["templates"] += 1
            counts["without one"] += not found["equal"]
    good = counts["templates"] and not counts["wrong"]
    print(
        f"{'ok' if good else 'not ok'}: {counts['templates']} templates take tools; of their prompts "
        f"{counts['equal']} are equal, {counts['refused']} refused by both, {counts['wrong']} wrong; "
        f"{counts['without one']} templates refuse all"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
