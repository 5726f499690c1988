"""POST /tokenize and /detokenize, as llama-server and vLLM have them."""

from __future__ import annotations

from ..model import Model
from .messages import Refused
from .requests import check_names, flag


def tokenize(model: Model, body: dict, name: str) -> dict:
    """content, in which add_special is false unless it is given; or vLLM's prompt and
    add_special_tokens, which is true."""
    check_names(body, {"content", "prompt", "model", "add_special", "add_special_tokens"}, name)
    text = body.get("content", body.get("prompt"))
    if not isinstance(text, str):
        raise Refused("content: expected a string", "content")
    special = "content" not in body
    for field in ("add_special", "add_special_tokens"):
        if body.get(field) is not None:
            special = flag(body, field)
    ids = model.encode(text, special=special)
    return {"tokens": ids, "count": len(ids), "max_model_len": model.context}


def detokenize(model: Model, body: dict, name: str) -> dict:
    check_names(body, {"tokens", "model"}, name)
    ids = body.get("tokens")
    if not isinstance(ids, list) or not all(type(id) is int for id in ids):
        raise Refused("tokens: expected an array of token ids", "tokens")
    if not all(0 <= id < model.shape.vocab_size for id in ids):
        raise Refused(f"tokens: ids are from 0 to {model.shape.vocab_size - 1}", "tokens")
    text = model.decode(ids)
    return {"content": text, "prompt": text}
