"""Requests of OpenAI's protocol: which fields there are, what they may hold, and what is refused by
name. https://platform.openai.com/docs/api-reference"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field

from .. import _grammars as grammars
from .._batch import BOUNDS, CHANCES, Sampling
from .._native import InputError
from .._steering import Steering
from .messages import CLOSED, OPEN, PROMPT, Refused, custom_names, has_more, messages_of
from .messages import tool_choice_of, tools_of

MAX_CHOICES = 128  # prompts x n of one request
MAX_LOGPROBS = 20
MAX_BIASES = 1024
MAX_VECTORS = 2048  # of one request
FORMS = ("float", "base64", "int8", "binary", "ubinary")  # of the numbers of a vector


@dataclass
class Request:
    """One request for texts, whatever its endpoint."""

    prompts: list  # texts or ids; of a chat, one list of messages
    is_chat: bool
    max_tokens: int | None
    sampling: Sampling
    n: int = 1
    stop: list[str] = field(default_factory=list)
    stream: bool = False
    usage_in_stream: bool = False
    by_chance: bool = False  # a field says how tokens are chosen
    echo: bool = False
    n_top: int | None = None  # tokens to name beside each; None: no log-probabilities
    no_think: bool = False
    end: str = PROMPT  # how a chat's prompt ends
    effort: str | None = None  # of its thoughts, one of EFFORTS
    lang: str | None = None  # that the texts of an encoder-decoder are in
    grammar: str | None = None  # that the texts keep to, in llguidance's form
    is_json: bool = False  # it is of JSON, so no tool is called
    tools: list[dict] = field(default_factory=list)
    tool_choice: str = "none"  # none, auto, required, or = and the name of a function
    several_calls: bool = True
    custom: set[str] = field(default_factory=set)  # tools whose input is text
    given: dict = field(default_factory=dict)  # the body, where the answer repeats it
    steer: Steering | None = None
    with_more: bool = False  # messages hold calls, thoughts, or what tools said


@dataclass
class VectorRequest:
    """One request for the vectors of texts."""

    texts: list  # or ids
    form: str = "float"  # FORMS
    dimensions: int | None = None
    late_chunking: bool = False  # the texts are parts of one
    truncate: bool = True  # texts that are longer than the checkpoint allows; else they are refused


@dataclass
class PairRequest:
    """One request for the scores of pairs of texts."""

    pairs: list[tuple[str, str]]
    top_n: int | None = None  # the best of them; None: all
    with_texts: bool = False
    truncate: bool = True  # as above


def _number(body: dict, name: str, default, low: float, high: float, kind: type = float):
    value = body.get(name)
    if value is None:
        return default
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not (whole or (kind is float and isinstance(value, float))) or not low <= value <= high:
        what = "whole number" if kind is int else "number"
        raise Refused(f"{name}: expected a {what} from {low} to {high}", name)
    return kind(value)


def flag(body: dict, name: str) -> bool:
    value = body.get(name)
    if not isinstance(value, (bool, type(None))):
        raise Refused(f"{name}: expected true or false", name)
    return bool(value)


def _stop(body: dict) -> list[str]:
    value = body.get("stop")
    stops = [value] if isinstance(value, str) else value or []
    ok = isinstance(stops, list) and len(stops) <= 16
    if not ok or not all(isinstance(s, str) and s for s in stops):
        raise Refused("stop: expected a string or up to 16 of them, none of them empty", "stop")
    return stops


def _is_ids(value) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(type(i) is int for i in value)


def _prompts(body: dict, name: str = "prompt") -> list:
    value = body.get(name)
    prompts = [value] if isinstance(value, str) or _is_ids(value) else value
    ok = isinstance(prompts, list) and len(prompts) > 0
    if not ok or not all(isinstance(p, str) or _is_ids(p) for p in prompts):
        raise Refused(
            f"{name}: expected a string, an array of token ids, or an array of these", name
        )
    return prompts


PENALTIES = ("frequency_penalty", "presence_penalty")
# Known fields that change no answer; docs/python.md names them.
IGNORED = """user metadata store prediction prompt_cache_key prompt_cache_options
prompt_cache_retention safety_identifier verbosity service_tier cache_prompt""".split()
EFFORT = "reasoning_effort"
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
# Other servers' names of fields, and their values that mean another of ours.
OTHER_NAMES = {"repetition_penalty": "repeat_penalty"}
OTHER_VALUES = {"top_k": (-1, 0), "seed": (-1, None), "top_p": (0, BOUNDS["top_p"][1])}
COMMON = {"model", "max_tokens", "n", "stop", "stream", "stream_options", "logit_bias"}
COMMON |= {"steer"}
COMMON |= {"response_format", *PENALTIES, *BOUNDS, *IGNORED}
# Known fields whose other values are not implemented, and the values that say nothing.
NEUTRAL = {
    "best_of": (None, 1),
    "suffix": (None, ""),
    "modalities": (None, ["text"]),
}


def in_our_words(body: dict) -> dict:
    found = {}
    for name, value in body.items():
        name = OTHER_NAMES.get(name, name)
        if name in found and value is None:
            continue
        theirs, ours = OTHER_VALUES.get(name, (None, None))
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        found[name] = ours if number and value == theirs else value
    return found


def check_names(body: dict, known: set[str], model: str) -> None:
    """Unknown ones that are null say nothing: clients send all that their own objects have."""
    for name, value in body.items():
        if value is None:
            continue
        if name in NEUTRAL:
            if value not in NEUTRAL[name]:
                raise Refused(f"{name} is not implemented here", name, code="unsupported_parameter")
        elif name == "grammar":
            raise Refused(
                "grammar: not in llama-server's form; give response_format {type: grammar, syntax: "
                "lark or regex, definition}",
                name,
            )
        elif name not in known:
            raise Refused(f"unknown parameter: {name[:80]}", name[:80], code="unknown_parameter")
    if body.get("model") not in (None, model):
        raise Refused(f"the model here is {model}", "model", 404, "model_not_found")


def _logit_bias(body: dict) -> dict[int, float]:
    value = body.get("logit_bias") or {}
    expected = f"logit_bias: expected up to {MAX_BIASES} ids, each with a number from -100 to 100"
    if not isinstance(value, dict) or len(value) > MAX_BIASES:
        raise Refused(expected, "logit_bias")
    found = {}
    for id, bias in value.items():
        number = isinstance(bias, (int, float)) and not isinstance(bias, bool)
        if not re.fullmatch("[0-9]{1,9}", id) or not number or not -100 <= bias <= 100:
            raise Refused(expected, "logit_bias")
        found[int(id)] = bias
    return found


def _sampling(body: dict, is_chat: bool) -> Sampling:
    defaults = Sampling.usual(is_chat, seed=secrets.randbits(32))
    bounds = {**BOUNDS, **dict.fromkeys(PENALTIES, (float, -2, 2))}
    return Sampling(
        logit_bias=_logit_bias(body),
        **{
            name: _number(body, name, getattr(defaults, name), low, high, kind)
            for name, (kind, low, high) in bounds.items()
        },
    )


def _steer(body: dict) -> Steering | None:
    """Vectors with their layers and scales; two of one layer add up."""
    given = body.get("steer")
    if given is None:
        return None
    expected = 'steer: expected an array of {"layer": N, "vector": numbers, "scale": number (1)}'
    total = Steering({})
    for one in given if isinstance(given, list) else [None]:
        known = isinstance(one, dict) and {"layer", "vector"} <= set(one)
        if not known or not set(one) <= {"layer", "vector", "scale"}:
            raise Refused(expected, "steer")
        try:
            total += Steering({one["layer"]: one["vector"]}) * one.get("scale", 1)
        except InputError as error:
            raise Refused(f"steer: {error}", "steer") from None
        except (TypeError, ValueError):
            raise Refused(expected, "steer") from None
    return total


def _max_tokens(body: dict, name: str, default: int | None, low: int) -> int | None:
    """-1: as many as the context has room for."""
    value = body.get(name)
    return None if value == -1 else _number(body, name, default, low, 10**9, int)


def _grammar(body: dict) -> str | None:
    """The grammar that answers keep to. A schema is refused where llguidance refuses it."""
    form = body.get("response_format") or {"type": "text"}
    known = "response_format: expected type text, json_object, json_schema or grammar"
    kind = form.get("type") if isinstance(form, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        schema = form.get("schema")  # llama-server's
        return grammars.of_schema({"type": "object"} if schema is None else schema)
    if kind == "json_schema":
        inner = form.get("json_schema") or form  # llama-server's has the schema itself
        schema = inner.get("schema") if isinstance(inner, dict) else None
        if not isinstance(schema, (dict, bool)):
            raise Refused("response_format: json_schema needs a schema", "response_format")
        return grammars.of_schema(schema)
    if kind != "grammar":
        raise Refused(known, "response_format")
    syntax, definition = form.get("syntax"), form.get("definition")
    if syntax not in ("lark", "regex") or not isinstance(definition, str):
        raise Refused(
            "response_format: a grammar needs syntax, lark or regex, and a definition",
            "response_format",
        )
    return grammars.of_syntax(syntax, definition)


def _stream_usage(body: dict) -> bool:
    options = body.get("stream_options")
    if options is None:
        return False
    # Nothing is obfuscated here: lengths of pieces are no secret on a loopback.
    known = {"include_usage", "include_obfuscation"}
    if not isinstance(options, dict) or not set(options) <= known:
        raise Refused("stream_options: only include_usage is known", "stream_options")
    return flag(options, "include_usage")


def _request(
    body: dict, model: str, known: set[str], prompts: list, is_chat: bool, max_tokens: int | None
) -> Request:
    check_names(body, COMMON | known, model)
    n = _number(body, "n", 1, 1, MAX_CHOICES, int)
    if len(prompts) * n > MAX_CHOICES:
        raise Refused(f"a request has at most {MAX_CHOICES} texts, prompts times n", "n")
    request = Request(
        prompts,
        is_chat,
        max_tokens,
        _sampling(body, is_chat),
        n,
        _stop(body),
        flag(body, "stream"),
        _stream_usage(body),
    )
    request.steer = _steer(body)
    request.grammar = _grammar(body)
    request.is_json = bool(request.grammar) and body["response_format"]["type"] != "grammar"
    request.by_chance = any(body.get(name) is not None for name in CHANCES)
    return request


def completion_request(body: dict, model: str) -> Request:
    """POST /v1/completions."""
    body = in_our_words(body)
    max_tokens = _max_tokens(body, "max_tokens", 16, 0)
    request = _request(
        body, model, {"prompt", "echo", "logprobs", "lang"}, _prompts(body), False, max_tokens
    )
    request.lang = body.get("lang")
    if not isinstance(request.lang, (str, type(None))) or "\0" in (request.lang or ""):
        raise Refused("lang: expected a string, the language to write, or FROM:TO", "lang")
    request.echo = flag(body, "echo")
    if request.echo and request.steer:
        raise Refused("steer: not with echo, whose prompt is scored as the model is", "steer")
    request.n_top = _number(body, "logprobs", None, 0, MAX_LOGPROBS, int)
    if max_tokens == 0 and not request.echo:
        raise Refused("max_tokens is 0, which makes sense with echo only", "max_tokens")
    return request


def chat_request(body: dict, model: str) -> Request:
    """POST /v1/chat/completions."""
    body = in_our_words(body)
    older = _max_tokens(body, "max_tokens", None, 1)
    max_tokens = _max_tokens(body, "max_completion_tokens", older, 1)
    known = {
        "messages",
        "max_completion_tokens",
        EFFORT,
        "logprobs",
        "top_logprobs",
        "chat_template_kwargs",
        "add_generation_prompt",
        "continue_final_message",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
    }
    messages = messages_of(body)
    request = _request(body, model, known, [messages], True, max_tokens)
    request.tool_choice, tools = tool_choice_of(body, tools_of(body))
    request.tools = tools if request.tool_choice != "none" else []
    request.custom = custom_names(body)
    request.several_calls = body.get("parallel_tool_calls") is None or flag(
        body, "parallel_tool_calls"
    )
    request.with_more = has_more(messages)
    n_top = _number(body, "top_logprobs", 0, 0, MAX_LOGPROBS, int)
    request.n_top = n_top if flag(body, "logprobs") else None
    if n_top and request.n_top is None:
        raise Refused("top_logprobs needs logprobs: true", "top_logprobs")
    template = body.get("chat_template_kwargs") or {}
    if not isinstance(template, dict) or not set(template) <= {"enable_thinking", EFFORT}:
        known = f"only enable_thinking and {EFFORT} are known"
        raise Refused(f"chat_template_kwargs: {known}", "chat_template_kwargs")
    request.effort = _effort(template) if body.get(EFFORT) is None else _effort(body)
    request.no_think = template.get("enable_thinking") is False
    request.end = _end(body)
    return request


def _end(body: dict) -> str:
    """How the prompt ends, in the words of vLLM and transformers."""
    begins, goes_on = flag(body, "add_generation_prompt"), flag(body, "continue_final_message")
    if begins and goes_on:
        name = "continue_final_message"
        raise Refused(f"{name}: not with add_generation_prompt, which begins another", name)
    given = body.get("add_generation_prompt") is not None
    return OPEN if goes_on else CLOSED if given and not begins else PROMPT


def _effort(body: dict) -> str | None:
    effort = body.get(EFFORT)
    if effort is not None and effort not in EFFORTS:
        raise Refused(f"{EFFORT}: expected {', '.join(EFFORTS[:-1])} or {EFFORTS[-1]}", EFFORT)
    return effort


def vector_request(body: dict, model: str) -> VectorRequest:
    """POST /v1/embeddings. late_chunking is Jina's; the forms beside OpenAI's are Mixedbread's."""
    known = {"input", "model", "encoding_format", "dimensions", "late_chunking", "truncate"}
    check_names(body, {*known, *IGNORED}, model)
    form = body.get("encoding_format") or "float"
    if form not in FORMS:
        raise Refused(f"encoding_format: expected one of {', '.join(FORMS)}", "encoding_format")
    texts = _few(_prompts(body, "input"), "input")
    dimensions = _number(body, "dimensions", None, 1, 1 << 16, int)
    return VectorRequest(texts, form, dimensions, flag(body, "late_chunking"), _truncate(body))


def token_request(body: dict, model: str) -> VectorRequest:
    """POST /pooling, as vLLM has it."""
    check_names(body, {"input", "model", "encoding_format", "truncate", *IGNORED}, model)
    if body.get("encoding_format") not in (None, "float"):
        raise Refused("encoding_format: expected float", "encoding_format")
    return VectorRequest(_few(_prompts(body, "input"), "input"), truncate=_truncate(body))


def sparse_request(body: dict, model: str) -> VectorRequest:
    """POST /embed_sparse, as text-embeddings-inference has it."""
    check_names(body, {"inputs", "model", "truncate", *IGNORED}, model)
    return VectorRequest(_few(_prompts(body, "inputs"), "inputs"), truncate=_truncate(body))


def _truncate(body: dict) -> bool:
    """Cohere has names for true and false."""
    value = body.get("truncate")
    names = {None: True, "END": True, "NONE": False}
    found = names.get(value, value) if isinstance(value, (str, type(None))) else value
    if not isinstance(found, bool):
        raise Refused("truncate: expected true, false, END or NONE", "truncate")
    return found


def rerank_request(body: dict, model: str) -> PairRequest:
    """POST /v1/rerank, as Cohere and Jina have it: a document is a text, or an object with one."""
    known = {"model", "query", "documents", "top_n", "return_documents", "truncate", *IGNORED}
    check_names(body, known, model)
    query, given = body.get("query"), body.get("documents")
    if not isinstance(query, str):
        raise Refused("query: expected a string", "query")
    several = given if isinstance(given, list) else []
    texts = [x.get("text") if isinstance(x, dict) else x for x in several]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise Refused(
            'documents: expected an array of strings, or of objects {"text": string}', "documents"
        )
    pairs = _few([(query, text) for text in texts], "documents")
    top_n = _number(body, "top_n", None, 1, MAX_VECTORS, int)
    with_texts = body.get("return_documents") is None or flag(body, "return_documents")
    return PairRequest(pairs, top_n, with_texts, _truncate(body))


def score_request(body: dict, model: str) -> PairRequest:
    """POST /v1/score, as vLLM has it: a text with each of several, or as many with as many."""
    known = {"model", "text_1", "text_2", "encoding_format", "truncate", *IGNORED}
    check_names(body, known, model)
    if body.get("encoding_format") not in (None, "float"):
        raise Refused("encoding_format: expected float", "encoding_format")
    sides = []
    for name in ("text_1", "text_2"):
        value = body.get(name)
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not texts or not all(isinstance(t, str) for t in texts):
            raise Refused(f"{name}: expected a string or an array of strings", name)
        sides.append(texts)
    first, second = sides
    if len(first) == 1:
        first = first * len(second)
    if len(first) != len(second):
        raise Refused(
            f"text_1 has {len(first)} texts and text_2 {len(second)}; expected one and several, or "
            "as many of both",
            "text_2",
        )
    return PairRequest(_few(list(zip(first, second)), "text_2"), truncate=_truncate(body))


def _few(texts: list, name: str) -> list:
    if len(texts) > MAX_VECTORS:
        raise Refused(f"{name}: a request has at most {MAX_VECTORS} texts", name)
    return texts
