"""Requests for texts and their answers, whole or as server-sent events."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING

from .. import _adapters as adapters
from .. import _grammars as grammars
from .._batch import GenerateJob, Job, Likely, ScoreJob
from .answers import Asked
from .likely import Offsets, of_chat, of_text
from .messages import Refused
from .reader import SAID, THOUGHT, HarmonyReader, Inputs, Reader, TaggedReader
from .requests import Request
from .templates import chat_ids, shows_tools, template_text
from .tools import Harmony, Tagged, after_thoughts, call_id, format_of, is_harmony, parameters
from .tools import token

if TYPE_CHECKING:
    from .engine import Engine


class Answer(Asked):
    """Texts."""

    def __init__(self, engine: Engine, request: Request):
        super().__init__(engine)
        self.model._must_continue()
        self.request, self.stream = request, request.stream
        kind = "chatcmpl" if request.is_chat else "cmpl"
        self.head = {
            "id": f"{kind}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": engine.model_name,
        }
        if request.echo:
            self.model._must_have_one_text("echo")
        template = template_text(self.model) if request.is_chat else ""
        functions = [x["function"] for x in request.tools]
        self.format = format_of(self.model, template, functions) if functions else None
        if functions and not self.format and not shows_tools(self.model):
            raise Refused("tools: this model's chat template has no place for them", "tools")
        self.harmony, self.thinks = is_harmony(template), "</think>" in template
        for id in request.sampling.logit_bias:
            if id >= self.model.shape.vocab_size:
                raise Refused(f"logit_bias: {id} is no token of this model", "logit_bias")
        self.prompts = [self._prompt_ids(prompt) for prompt in request.prompts]
        begun = [self.model._begin(ids, request.lang) for ids in self.prompts]
        self.opened = self.thinks and self._thought_begun()
        self.ends = self._ends()
        self.matcher = self._matcher()
        self.jobs = [self._job(*pair, i) for pair in begun for i in range(request.n)]
        # The prompts' own log-probabilities, by their numbers, where they are asked for.
        scored = request.echo and request.n_top is not None
        self.scores = {
            i: ScoreJob(ids, len(ids) - 1, request.n_top)
            for i, ids in enumerate(self.prompts)
            if scored and len(ids) > 1
        }
        for job in self.scores.values():
            job.adapted = adapters.of(self.model, engine.adapter)
        self.readers = [self._reader() for _ in self.jobs]
        self.inputs = [Inputs(request.custom) for _ in self.jobs]
        self.reported = [0] * len(self.jobs)  # tokens whose log-probabilities were sent
        self.offsets: dict[int, Offsets] = {}  # of these, where they are asked for

    def _thought_begun(self) -> bool:
        """Whether the prompt ends with the beginning of a thought."""
        last = b"".join(map(self.model.token_bytes, self.prompts[0][-16:]))
        return last.rstrip().endswith(b"<think>")

    def _ends(self) -> list[int] | None:
        """What ends an answer, besides EOS, where it is not what ends a message."""
        if not self.harmony:
            return None
        call = token(self.model, "<|call|>")
        return self.model.eos_ids() + ([] if call is None else [call])

    def _reader(self) -> Reader | None:
        free = self.request.tool_choice in ("none", "auto")
        form = None if free and self.request.is_json else self.format
        if self.harmony:
            return HarmonyReader(form, False, False)
        if not (form or self.thinks):
            return None
        kind = TaggedReader if isinstance(form, Tagged) else Reader
        return kind(form, self.thinks, self.opened)

    def _matcher(self):
        forced, asked = self._forced_calls(), self.request.grammar
        grammar = forced or asked
        if not grammar:
            return None
        if self.harmony and not forced:
            grammar = Harmony(self.model).final(asked)
        elif self.opened:
            grammar = after_thoughts(self.model, grammar)
        return grammars.matcher(self.model, grammar, self.ends)

    def _forced_calls(self) -> str | None:
        """The grammar of the calls that have to come."""
        choice, tools = self.request.tool_choice, [x["function"] for x in self.request.tools]
        if choice in ("none", "auto"):
            return None
        if not (self.format and self.format.forcible):
            raise Refused(
                "tool_choice: in the form that this model's template has for calls, none can be "
                "forced here",
                "tool_choice",
            )
        if choice != "required":
            tools = [tool for tool in tools if choice == "=" + tool["name"]]
        tools = [{**x, "parameters": grammars.readable(parameters(x))} for x in tools]
        text = self.format.grammar(tools, self.request.several_calls and choice == "required")
        return grammars.of_syntax("lark", text)

    def _prompt_ids(self, prompt) -> list[int]:
        if self.request.is_chat:
            ids = chat_ids(self.model, self.request)
        else:
            ids = self.model.encode(prompt) if isinstance(prompt, str) else prompt
        self.model._check_prompt(ids, self.model.shape.source_vocab)
        return ids

    def _job(self, ids: list[int], source: list[int] | None, choice: int) -> GenerateJob:
        r = self.request
        most = self.model.context if r.max_tokens is None else r.max_tokens
        stops = [stop.encode() for stop in r.stop]
        sampling = replace(r.sampling, seed=(r.sampling.seed + choice) % 2**63)
        if self.model.shape.greedy and not r.by_chance:
            sampling.temperature = 0.0
        copy = self.matcher and self.matcher.deep_copy()
        job = GenerateJob(
            self.model,
            ids,
            most,
            sampling,
            stops,
            r.is_chat,
            r.n_top,
            source,
            copy,
            r.steer,
            self.engine.adapter,
        )
        if self.ends is not None:
            job.end = self.ends[-1]
        return job

    def all_jobs(self) -> list[Job]:
        return [*self.scores.values(), *(self.jobs if self.request.max_tokens != 0 else [])]

    def failure(self, job) -> Refused:
        grammar = getattr(job, "matcher", None)
        if (
            self.engine.closing
            or not grammar
            or not (grammar.is_error() or "mask" in str(job.error))
        ):
            return super().failure(job)
        return Refused(f"this model's tokens cannot write what the grammar asks for: {job.error}")

    # ---- what is sent ----

    def finish_reason(self, index: int) -> str | None:
        job, reader = self.jobs[index], self.readers[index]
        if self.request.max_tokens == 0:
            return "length"
        reason = {None: None, "eos": "stop", "stop": "stop"}.get(job.stopped, "length")
        called = reason == "stop" and reader and reader.n_calls and reader.complete
        return "tool_calls" if called else reason

    def spent(self) -> tuple[int, int]:
        return sum(map(len, self.prompts)), sum(len(job.tokens) for job in self.jobs)

    def usage(self) -> dict:
        prompt, new = self.spent()
        found = {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}
        if self.thinks or self.harmony:
            thought = sum(map(self._thought_tokens, self.jobs, self.readers))
            found["completion_tokens_details"] = {"reasoning_tokens": thought}
        return found

    def _thought_tokens(self, job: GenerateJob, reader: Reader) -> int:
        """The tokens whose first byte lies in a thought."""
        text = job.bytes.decode("utf-8", "replace") if reader.thoughts else ""
        spans = [[len(text[:at].encode()) for at in span] for span in reader.thoughts]
        at = n = 0
        for id in job.tokens if spans else ():
            n += any(first <= at < end for first, end in spans)
            at += len(self.model.token_bytes(id))
        return n

    def echoed(self, index: int) -> str:
        prompt = self.request.prompts[index // self.request.n]
        if not self.request.echo:
            return ""
        return prompt if isinstance(prompt, str) else self.model.decode(prompt)

    def log_probabilities(self, index: int, whole: bool) -> dict | None:
        """The log-probabilities of tokens that were not sent yet."""
        if self.request.n_top is None:
            return None
        job = self.jobs[index]
        likely = job.likely[self.reported[index] :]
        self.reported[index] += len(likely)
        if self.request.is_chat:
            return {"content": [of_chat(self.model, x) for x in likely]}
        number = index // self.request.n
        prompt = self.prompts[number] if self.request.echo and whole else []
        first = [Likely(id, float("nan"), []) for id in prompt[:1]]
        rest = self.scores[number].likely if len(prompt) > 1 else []
        likely = [*first, *rest, *likely]
        return of_text(self.model, likely, [self._offset(index, x.id) for x in likely])

    def _offset(self, index: int, id: int) -> int:
        """Where the next token of a text begins."""
        if index not in self.offsets:
            r, number = self.request, index // self.request.n
            prompt = [] if self.model.shape.source_vocab else self.prompts[number]
            self.offsets[index] = Offsets(self.model, prompt, r.prompts[number], r.echo)
        return self.offsets[index].next(id)

    def whole(self) -> dict:
        choices = [
            {
                "index": i,
                **self._whole_text(i),
                "logprobs": self.log_probabilities(i, True),
                "finish_reason": self.finish_reason(i),
            }
            for i in range(len(self.jobs))
        ]
        kind = "chat.completion" if self.request.is_chat else "text_completion"
        return {**self.head, "object": kind, "choices": choices, "usage": self.usage()}

    def _whole_text(self, index: int) -> dict:
        if not self.request.is_chat:
            return {"text": self.echoed(index) + self.jobs[index].new_text()}
        return {"message": message(self.parts(index, True))}

    def parts(self, index: int, over: bool) -> list[tuple[str, str]]:
        """What is new of a text."""
        text, reader = self.jobs[index].new_text(), self.readers[index]
        if reader:
            return self.inputs[index].push(reader.push(text, over), over)
        return [(SAID, text)] if text else []

    def chunk(self, choices: list[dict], **more) -> str:
        kind = "chat.completion.chunk" if self.request.is_chat else "text_completion"
        chunk = {**self.head, "object": kind, "choices": choices, **more}
        return f"data: {json.dumps(chunk)}\n\n"

    def deltas(self, index: int, over: bool) -> list[dict]:
        """The same in a stream's form."""
        if not self.request.is_chat:
            text = self.jobs[index].new_text()
            return [{"text": text}] if text else []
        n = self.readers[index].n_calls if self.readers[index] else 0
        return [{"delta": x} for x in call_deltas(self.parts(index, over), n)]

    def pieces(self, index: int, over: bool, first: bool) -> list[str]:
        """A stream's next events of one text."""
        deltas = self.deltas(index, over)
        reason = self.finish_reason(index) if over else None
        if first and self.echoed(index):
            new = "".join(delta["text"] for delta in deltas)
            deltas = [{"text": self.echoed(index) + new}]
        if reason and not deltas:
            deltas = [{"delta": {}} if self.request.is_chat else {"text": ""}]
        return [
            self.chunk(
                [
                    {
                        "index": index,
                        **delta,
                        "finish_reason": reason if i == len(deltas) - 1 else None,
                        "logprobs": self.log_probabilities(index, first),
                    }
                ]
            )
            for i, delta in enumerate(deltas)
        ]

    async def events(self) -> AsyncIterator[str]:
        """Server-sent events: pieces of text as they come."""
        ended = [False] * len(self.jobs)
        if self.request.is_chat:
            role = {"role": "assistant", "content": ""}
            for i in range(len(self.jobs)):
                yield self.chunk([{"index": i, "delta": role, "finish_reason": None}])
        begun = [not self.request.echo] * len(self.jobs)
        try:
            async for _ in self.passes():
                for i, job in enumerate(self.jobs):
                    over = job.done or self.request.max_tokens == 0
                    if ended[i] or not all(score.done for score in self.scores.values()):
                        continue
                    for piece in self.pieces(i, over, not begun[i]):
                        yield piece
                        begun[i] = True
                    ended[i] = over
        except Refused as error:
            yield f"data: {json.dumps(error.body)}\n\n"
            return
        if self.request.usage_in_stream:
            yield self.chunk([], usage=self.usage())
        yield "data: [DONE]\n\n"


def message(parts: list[tuple[str, str]]) -> dict:
    """What an assistant says, thinks and calls."""
    texts: dict[str, str] = {}
    calls: list[dict] = []
    for kind, text in parts:
        if kind in (SAID, THOUGHT):
            texts[kind] = texts.get(kind, "") + text
        elif kind == "name":
            calls.append(call_entry(text))
        elif kind == "custom":
            calls.append(custom_entry(text))
        elif kind == "input":
            calls[-1]["custom"]["input"] = text
        else:
            calls[-1]["function"]["arguments"] += text
    found = {"role": "assistant", SAID: texts.pop(SAID, None if calls else ""), **texts}
    return {**found, "tool_calls": calls} if calls else found


def call_entry(name: str) -> dict:
    return {"id": call_id(), "type": "function", "function": {"name": name, "arguments": ""}}


def custom_entry(name: str) -> dict:
    return {"id": call_id(), "type": "custom", "custom": {"name": name, "input": ""}}


def call_deltas(parts: list[tuple[str, str]], n: int) -> list[dict]:
    """Parts in a stream, of a text with n calls before them."""
    deltas = []
    for kind, text in parts:
        if kind in (SAID, THOUGHT):
            deltas.append({kind: text})
        elif kind in ("name", "custom"):
            entry = call_entry(text) if kind == "name" else custom_entry(text)
            deltas.append({"tool_calls": [{"index": n, **entry}]})
            n += 1
        else:
            own = {"custom": {"input": text}} if kind == "input" else {}
            entry = {"index": n - 1, **(own or {"function": {"arguments": text}})}
            deltas.append({"tool_calls": [entry]})
    return deltas
