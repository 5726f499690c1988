"""What clients of llama-server ask for in its own words: /completion, /apply-template, /props and
/slots. https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from .. import __version__
from .._batch import Sampling
from .._native import HeadsError
from ..model import Model
from .messages import Refused
from .requests import Request, chat_request, completion_request
from .templates import chat_text, shows_tools, special_tokens, template_text, thinking
from .texts import Answer

if TYPE_CHECKING:
    from .engine import Engine

# Samplers that are not here, and the values that leave them out.
OFF = {"mirostat": 0, "typical_p": 1, "dry_multiplier": 0, "xtc_probability": 0, "n_probs": 0}
OFF |= {"dynatemp_range": 0, "top_n_sigma": -1, "ignore_eos": False, "repeat_last_n": 64}
SILENT = ("id_slot", "timings_per_token", "return_progress", "sse_ping_interval", "n_cache_reuse")
REASONS = {"eos": "eos", "stop": "word"}

# ---- /completion ----


def llama_request(body: dict, model: str) -> Request:
    found = {name: value for name, value in body.items() if name not in SILENT}
    for name, value in OFF.items():
        if name in found and found[name] in (None, value):
            del found[name]
    most, schema = found.pop("n_predict", None), found.pop("json_schema", None)
    found.setdefault("max_tokens", -1 if most is None else most)
    if schema is not None:
        found["response_format"] = {"type": "json_schema", "schema": schema}
    request = completion_request(found, model)
    if len(request.prompts) * request.n > 1 or request.n_top is not None or request.echo:
        raise Refused("/completion is for one text; see /v1/completions", "prompt")
    return request


class Completion(Answer):
    def told(self, content: str, over: bool) -> dict:
        job, (prompt,) = self.jobs[0], self.request.prompts
        told = {
            "index": 0,
            "content": content,
            "tokens": [],
            "stop": over,
            "id_slot": -1,
            "tokens_predicted": len(job.tokens),
            "tokens_evaluated": len(self.prompts[0]),
        }
        if not over:
            return told
        stops, by_word = self.request.stop, job.stopped == "stop"
        return {
            **told,
            "model": self.engine.model_name,
            "prompt": prompt if isinstance(prompt, str) else self.model.decode(prompt),
            "generation_settings": settings(self.model, self.request),
            "truncated": job.stopped == "context",
            "stop_type": REASONS.get(job.stopped, "limit"),
            # Of several, which one it was is not known.
            "stopping_word": stops[0] if by_word and len(stops) == 1 else "",
        }

    def whole(self) -> dict:
        return self.told(self.jobs[0].new_text(), True)

    async def events(self) -> AsyncIterator[str]:
        try:
            async for _ in self.passes():
                text = self.jobs[0].new_text()
                if text:
                    yield f"data: {json.dumps(self.told(text, False))}\n\n"
        except Refused as error:
            yield f"data: {json.dumps(error.body)}\n\n"
            return
        yield f"data: {json.dumps(self.told('', True))}\n\n"


# ---- what a model is ----


def settings(model: Model, request: Request | None = None) -> dict:
    sampling = asdict(request.sampling if request else Sampling(seed=-1))
    biases = sampling.pop("logit_bias")
    return {
        **sampling,
        "repeat_last_n": 64,
        "logit_bias": [[id, bias] for id, bias in biases.items()],
        "n_predict": -1 if request is None or request.max_tokens is None else request.max_tokens,
        "stop": request.stop if request else [],
        "n_ctx": model.context,
    }


def slots(engine: Engine) -> list[dict]:
    """Places of the batch: the first ones are at work."""
    return [
        {
            "id": i,
            "id_task": -1,
            "n_ctx": engine.model.context,
            "speculative": False,
            "is_processing": i < engine.batch.running,
        }
        for i in range(engine.batch.parallel)
    ]


def props(engine: Engine) -> dict:
    model = engine.model
    try:
        tools = shows_tools(model)
    except (HeadsError, Refused):
        tools = False
    idle = {**slots(engine)[0], "is_processing": False}
    return {
        "default_generation_settings": {**idle, "params": settings(model)},
        "total_slots": engine.batch.parallel,
        "model_alias": engine.model_name,
        "model_path": Path(model.path).name,
        "chat_template": template_text(model),
        "chat_template_caps": {"supports_tools": tools, "supports_tool_calls": tools},
        "modalities": {"vision": False, "audio": False},
        **{"bos_token": "", "eos_token": "", **special_tokens(model)},
        "build_info": f"heads {__version__}",
        "is_sleeping": False,
    }


def apply_template(model: Model, body: dict, name: str) -> dict:
    """The text that /v1/chat/completions gives the model, without the token that reading it as a
    prompt puts before it."""
    r = chat_request(body, name)
    text = chat_text(model, r.prompts[0], r.tools or None, thinking(model, r), r.end)
    begin = special_tokens(model).get("bos_token", "")
    return {"prompt": text[len(begin) :] if text.startswith(begin) else text}
