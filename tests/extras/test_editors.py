"""What Open WebUI, Continue, aider and Zed send, by their public sources, and what they read of the
answers. Each is a conversation with a small model that calls tools."""

from __future__ import annotations

import json

import chats
import httpx
import pytest
import talkers
from conftest import STORIES, Server
from test_tools import TEMPLATES, TOOLS

QUESTION = [{"role": "user", "content": "what is it?"}]
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = tmp_path_factory.mktemp("editors") / "m.bin"
    metadata = {**talkers.template_metadata(TEMPLATES["hermes"])}
    metadata["chat.template"] = TEMPLATES["hermes"]
    path.write_bytes(chats.with_chat(STORIES.read_bytes(), metadata))
    made = Server(path, key="k")
    yield made
    assert made.stop() == ""


@pytest.fixture
def http(server):
    key = {"authorization": "Bearer k"}
    with httpx.Client(base_url=server.url, headers=key, timeout=60) as client:
        yield client


def events(http, path: str, body: dict) -> list[dict]:
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def said(chunks: list[dict]) -> str:
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])


def test_open_webui(http):
    """backend/open_webui/routers/openai.py and utils/payload.py: the list of models, a chat with
    what its sliders set, and one that makes a title of it."""
    (model,) = http.get("/v1/models").json()["data"]
    body = {
        "model": model["id"],
        "messages": [{"role": "system", "content": "Be brief."}, *QUESTION],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.7,
        "top_p": 0.9,
        "min_p": 0.05,
        "max_tokens": 12,
        "frequency_penalty": 0.1,
        "presence_penalty": 0.0,
        "reasoning_effort": "low",
        "seed": 4,
        "stop": ["###"],
        "logit_bias": {"5": -100},
    }
    chunks = events(http, "/v1/chat/completions", body)
    assert said(chunks) and chunks[-1]["usage"]["completion_tokens"] == 12
    title = {
        "model": model["id"],
        "messages": QUESTION,
        "stream": False,
        "max_completion_tokens": 9,
    }
    assert http.post("/v1/chat/completions", json=title).json()["choices"][0]["message"]["content"]


def test_continue(http):
    """core/llm/llms/LlamaCpp.ts and OpenAI.ts: completions as one types, and a chat."""
    body = {"prompt": "Once", "stream": True, "n_predict": 12, "stop": ["\n\n"], "top_k": 40}
    body |= {"frequency_penalty": 0, "presence_penalty": 0, "min_p": 0.1, "top_p": 1}
    typed = events(http, "/completion", {**body, "temperature": 0.01})
    assert "".join(x["content"] for x in typed) and typed[-1]["stop"]
    body = {
        "messages": QUESTION,
        "model": "m",
        "max_tokens": 12,
        "temperature": 0.5,
        "stream": True,
    }
    assert said(events(http, "/v1/chat/completions", {**body, "tools": TOOLS}))
    body = {"prompt": "Once", "model": "m", "max_tokens": 8, "stop": ["\n"], "stream": True}
    (first, *_) = events(http, "/v1/completions", body)
    assert first["choices"][0]["text"]


def test_aider(http):
    """aider/models.py by way of litellm: a long system prompt in parts that may be cached, an
    example, and edits as the call of a function that it names."""
    part = {"type": "text", "text": "Act as an expert.", "cache_control": {"type": "ephemeral"}}
    messages = [{"role": "system", "content": [part]}, *QUESTION]
    messages += [{"role": "assistant", "content": "Ok."}, {"role": "user", "content": "Go on."}]
    body = {"model": "m", "messages": messages, "temperature": 0, "max_tokens": 12}
    assert said(events(http, "/v1/chat/completions", {**body, "stream": True}))
    choice = {"type": "function", "function": {"name": "weather"}}
    body |= {"tools": TOOLS, "tool_choice": choice, "max_tokens": 200}
    answer = http.post("/v1/chat/completions", json=body).json()["choices"][0]
    assert answer["message"]["tool_calls"][0]["function"]["name"] == "weather"


def test_zed(http):
    """crates/llama_cpp and crates/open_ai: what the model can do, and turns with a tool's result."""
    (model,) = http.get("/v1/models", headers={"accept": "application/json"}).json()["data"]
    props = http.get("/props").json()
    assert "status" not in model  # which is a router's
    assert props["default_generation_settings"]["n_ctx"] == model["meta"]["n_ctx"] > 0
    assert props["chat_template_caps"]["supports_tools"] and not props["modalities"]["vision"]
    body = {
        "model": model["id"],
        "messages": [{"role": "system", "content": "Be brief."}, *QUESTION],
        "stream": True,
        "max_tokens": 200,
        "stop": [],
        "temperature": 1.0,
        "tools": TOOLS,
        "tool_choice": "required",
        "stream_options": {"include_usage": True},
    }
    chunks = events(http, "/v1/chat/completions", body)
    assert set(chunks[-1]["usage"]) >= {"prompt_tokens", "completion_tokens", "total_tokens"}
    deltas = [
        x for c in chunks if c["choices"] for x in c["choices"][0]["delta"].get("tool_calls", ())
    ]
    call = {"id": deltas[0]["id"], "type": "function", "function": {"arguments": "{}"}}
    call["function"]["name"] = deltas[0]["function"]["name"]
    body["messages"] += [{"role": "assistant", "content": None, "tool_calls": [call]}]
    body["messages"] += [{"role": "tool", "content": "rain", "tool_call_id": call["id"]}]
    body |= {"tool_choice": "auto", "max_tokens": 9}
    del body["stop"]
    body |= {"max_completion_tokens": 9, "parallel_tool_calls": False, "prompt_cache_key": "a"}
    del body["max_tokens"]
    assert events(http, "/v1/chat/completions", body)


# What else they send: who and when, then the path and the body, and headers of their own.
CALL = {"id": "c", "type": "function", "function": {"name": "now", "arguments": "{}"}}
SAID = {"role": "tool", "tool_call_id": "c", "content": "noon"}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
OPEN_WEBUI = {
    "X-OpenWebUI-User-Name": "A%20B",
    "X-OpenWebUI-User-Id": "1",
    "X-OpenWebUI-User-Email": "a@example.org",
    "X-OpenWebUI-User-Role": "admin",
    "X-OpenWebUI-Chat-Id": "2",
}
OPENAI_PYTHON = {
    "User-Agent": "OpenAI/Python 2.20.0",
    "X-Stainless-Lang": "python",
    "X-Stainless-Async": "false",
    "X-Stainless-Raw-Response": "true",
    "x-stainless-retry-count": "0",
    "x-stainless-read-timeout": "600.0",
}
QWEN_STOPS = "endoftext fim_prefix fim_middle fim_suffix fim_pad repo_name file_sep im_start im_end"
ALSO = {
    "Open WebUI, after its tools ran": (
        CHAT,
        {
            "messages": [
                *QUESTION,
                {"role": "assistant", "content": "", "tool_calls": [{**CALL, "index": 0}]},
                SAID,
            ],
            "tools": TOOLS,
            "stream": True,
            "temperature": 0.7,
            "top_k": 40,
            "repeat_penalty": 1.1,
            "chat_template_kwargs": {"enable_thinking": False},  # of its custom parameters
        },
        OPEN_WEBUI,
    ),
    "Continue, an agent's turn": (
        CHAT,
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                *QUESTION,
                {"role": "assistant", "content": " ", "tool_calls": [CALL]},
                SAID,
            ],
            "tools": [{**x, "function": {**x["function"], "strict": False}} for x in TOOLS],
            "parallel_tool_calls": False,
            **STREAM,
        },
        {"api-key": "k", "x-api-key": "k"},
    ),
    "Continue, an edit": (
        CHAT,
        {
            "messages": QUESTION,
            "prediction": {"type": "content", "content": "a"},
            "stop": ["```"],
            **STREAM,
        },
        {},
    ),
    "Continue, as one types": (
        "/v1/completions",
        {
            "prompt": "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>",
            "stop": [*(f"<|{x}|>" for x in QWEN_STOPS.split()), "/src/", "#- coding: utf-8", "```"],
            "temperature": 0.01,
            "stream": True,
        },
        {"api-key": "k"},
    ),
    "aider, an edit": (
        CHAT,
        {
            "messages": [
                {"role": "system", "content": "Act as an expert."},
                {"role": "user", "content": "Change it."},
                {"role": "assistant", "content": "Ok."},
                *QUESTION,
            ],
            "stream": True,
            "temperature": 0,
        },
        OPENAI_PYTHON,
    ),
    "aider, a commit's message": (
        CHAT,
        {"messages": QUESTION, "stream": False, "temperature": 0},
        OPENAI_PYTHON,
    ),
    "Zed, parts and thoughts": (
        CHAT,
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": PARTS},
                {
                    "role": "assistant",
                    "content": None,
                    "reasoning_content": "hm",
                    "tool_calls": [CALL],
                },
                {**SAID, "content": PARTS},
            ],
            "tools": TOOLS,
            "temperature": 1.0,
            "max_completion_tokens": 9,
            "prompt_cache_key": "a",
            "reasoning_effort": "medium",
            **STREAM,
        },
        {},
    ),
    "Zed, by responses": (
        "/v1/responses",
        {
            "input": [
                {
                    "type": "message",
                    "role": "user",
                    "content": [{"type": "input_text", "text": "a"}],
                },
                {
                    "type": "message",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": "b", "annotations": []}],
                },
                {"type": "function_call", "call_id": "c", "name": "now", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "noon"},
            ],
            "tools": [{"type": "function", **x["function"]} for x in TOOLS],
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "store": False,
            "include": ["reasoning.encrypted_content"],
            "reasoning": {"effort": "low", "summary": "auto"},
            "max_output_tokens": 9,
            "prompt_cache_key": "a",
            "stream": True,
        },
        {},
    ),
}


def test_what_else_they_send(http):
    for name, (path, body, headers) in ALSO.items():
        limit = {} if "max_" in str(body) else {"max_tokens": 9}
        body = {"model": "m", **limit, **body}
        answer = http.post(path, json=body, headers=headers)
        assert answer.status_code == 200, (name, answer.text)
        if not body["stream"]:
            assert answer.json()["choices"][0]["message"]["content"], name
            continue
        lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
        found = [json.loads(line) for line in lines if line != "[DONE]"]
        assert not [x for x in found if x.get("error")], (name, found)
        ends = [c.get("finish_reason") for x in found for c in x.get("choices") or ()]
        last = found[-1].get("type", "").startswith("response.") or any(ends)
        assert last, (name, found[-1])
