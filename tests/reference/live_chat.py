#!/usr/bin/env python3
"""Chat templates of real models, compiled by export.py's code and rendered by the engine, against transformers.

    HEADS_TESTS=all live_chat.py chat_templates.json [SEED]

The file is a list of {"name", "text"}. Of each template hundreds of random conversations are rendered by
tests/c/render_chat and by transformers' own code for apply_chat_template. Every text must be equal or refused, and 85 % of
the templates must be exact on all plain conversations. What transformers fails with must be refused. Without
HEADS_TESTS=all a third of the conversations of a quarter of the templates, drawn by chance."""

from __future__ import annotations

import collections
import json
import os
import random
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import chats  # noqa: E402
from transformers.utils import chat_template_utils  # noqa: E402

from exporter.templates.chat import chat_metadata  # noqa: E402

TOKENS = [
    {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "</s>"},
    {"bos_token": "<|begin_of_text|>", "eos_token": "<|im_end|>"},
]
ALL = os.environ.get("HEADS_TESTS") == "all"
CASES = 60 if ALL else 20  # of each class


def some(templates: list[dict]) -> list[dict]:
    return templates if ALL else random.sample(templates, len(templates) // 4)


class Clock(chat_template_utils.datetime):
    """datetime whose now() is what a case says."""

    fixed = None

    @classmethod
    def now(cls, tz=None):
        return cls.fixed


chat_template_utils.datetime = Clock


def wanted(template: str, case: chats.Case, variables: dict) -> str | None:
    """What transformers renders; None: it fails."""
    Clock.fixed = case.now
    switch = variables["switch"] if case.no_think else {}
    try:
        rendered, _ = chat_template_utils.render_jinja_template(
            [case.messages],
            chat_template=template,
            add_generation_prompt=case.prompt,
            **variables["tokens"],
            **switch,
        )
    except Exception:  # a template may raise anything
        return None
    return rendered[0]


def compare(
    name: str, template: str, tokens: dict, rng: random.Random, model: Path
) -> dict[str, str]:
    """The result for each class: exact, partly (the rest refused), refused, or wrong; "compiled": the reason why it was
    not."""
    metadata, _ = chat_metadata(template, tokens)
    if "chat.refused" in metadata:
        return {"compiled": metadata["chat.refused"]}
    chats.write_model(model, metadata)
    control = chats.strings_of(template)
    switch = (
        dict(item.split("=") for item in metadata["chat.no_think"].split(", "))
        if "chat.no_think" in metadata
        else {}
    )
    variables = {
        "tokens": tokens,
        "switch": {key: json.loads(value) for key, value in switch.items()},
    }
    results = {}
    for kind in chats.CLASSES:
        cases = [chats.random_case(rng, kind, control, bool(switch)) for _ in range(CASES)]
        counts = collections.Counter()
        for case, (ok, text) in zip(cases, chats.render(model, cases)):
            want = wanted(template, case, variables)
            verdict = (
                ("exact" if text == want else "wrong")
                if ok
                else "refused"
                if want is not None
                else "fails"
            )
            counts[verdict] += 1
            if verdict == "wrong":
                print(f"not ok {name}, {kind}: {case}\n    ours   {text!r}\n    theirs {want!r}")
        results[kind] = (
            "wrong"
            if counts["wrong"]
            else "exact"
            if not counts["refused"]
            else "partly"
            if counts["exact"]
            else "refused"
        )
    return results


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    templates = some(json.loads(Path(sys.argv[1]).read_text()))
    rng = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    found: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    with tempfile.TemporaryDirectory() as directory:
        for i, template in enumerate(templates):
            results = compare(
                template["name"],
                template["text"],
                TOKENS[i % 2],
                rng,
                Path(directory) / "model.bin",
            )
            if "compiled" in results:
                print(f"refused {template['name']}: {results['compiled']}")
            less = {
                kind: result
                for kind, result in results.items()
                if kind != "compiled" and result != "exact"
            }
            if less:
                print(
                    f"{template['name']}: "
                    + ", ".join(f"{kind} {result}" for kind, result in less.items())
                )
            for kind, result in results.items():
                found[kind][result if kind != "compiled" else "no"] += 1
    for kind in chats.CLASSES:
        print(f"{kind}: " + ", ".join(f"{n} {result}" for result, n in sorted(found[kind].items())))
    wrong = sum(counts["wrong"] for counts in found.values())
    plain = found["plain"]["exact"]
    good = wrong == 0 and plain >= 0.85 * len(templates)
    print(
        f"{'ok' if good else 'not ok'}: of {len(templates)} templates {plain} are exact on plain text, "
        f"{found['compiled']['no']} could not be compiled; {wrong} classes have a wrong text"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
