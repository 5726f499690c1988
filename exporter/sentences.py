"""What a checkpoint's sentence-transformers files say of the vector of a text: how hidden states
are pooled, whether the vector is divided by its length, and where texts are cut."""

from __future__ import annotations

import json
import os

from .added_tokens import beside
from .config import Config
from .tensor import ExportError

NONE, MEAN, FIRST, LAST, MAX = range(5)  # values of model.pooling
MODES = {"mean_tokens": MEAN, "cls_token": FIRST, "lasttoken": LAST, "max_tokens": MAX}
MODULES = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])


def pooling(directory: str, context: int, encoder: bool) -> tuple[dict[str, int], list[str]]:
    """The `model.pooling` entries, and remarks for the user. Errors: ExportError."""
    path = os.path.join(directory, "modules.json")
    if not os.path.isfile(path):
        if not encoder:
            return {}, []
        return _entries(directory, context, MEAN, False), [
            "no modules.json: --embed takes the mean of the hidden states, as "
            "sentence-transformers does then"
        ]
    modules = _modules(path)
    kinds = [str(module.get("type")).rpartition(".")[2] for module in modules]
    if kinds not in MODULES:
        raise ExportError(
            f"modules.json: the modules are {', '.join(kinds)}, of which this exporter knows "
            "Transformer, Pooling and Normalize, in this order"
        )
    remarks = _prompts(directory)
    mode = _mode(directory, modules[1].get("path") or "1_Pooling")
    return _entries(directory, context, mode, "Normalize" in kinds), remarks


def _modules(path: str) -> list[dict]:
    try:
        with open(path, encoding="utf-8") as file:
            modules = json.load(file)
    except ValueError as error:
        raise ExportError(f"modules.json: not JSON: {error}") from error
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise ExportError("modules.json: expected an array of objects")
    return modules


def _mode(directory: str, path: str) -> int:
    c = Config(beside(directory, os.path.join(path, "config.json")), f"{path}/config.json")
    c.ignore("word_embedding_dimension", "embedding_dimension", "include_prompt")
    if c.get("pooling_mode") is not None:
        short = {name.partition("_")[0]: mode for name, mode in MODES.items()}
        mode = c.choice("pooling_mode", short)
    else:
        on = [m for name, m in MODES.items() if c.flag("pooling_mode_" + name, False)]
        others = [key for key, value in c.values.items() if value and key not in c.asked]
        if len(on) != 1 or others:
            raise ExportError(
                f"{c.where}: {', '.join(others) or 'pooling_mode'}: expected one of "
                f"{', '.join('pooling_mode_' + name for name in MODES)}"
            )
        (mode,) = on
        c.ignore(*c.values)
    c.finish()
    return mode


def _entries(directory: str, context: int, mode: int, unit: bool) -> dict[str, int]:
    """A text is cut at max_seq_length; without one, where the tokenizer or the positions end."""
    c = Config(beside(directory, "sentence_bert_config.json"), "sentence_bert_config.json")
    c.require(do_lower_case=False)
    limit = c.get("max_seq_length")
    if limit is None:
        limit = beside(directory, "tokenizer_config.json").get("model_max_length") or context
    else:
        limit = c.int("max_seq_length")
    c.finish()
    _check_side(directory)
    return {
        "model.pooling": mode,
        "model.pooling_unit": int(unit),
        "model.pooling_tokens": int(min(limit, context)),
    }


def _check_side(directory: str) -> None:
    """Texts are cut where tokenizer_config.json or else tokenizer.json says. The rest of its
    `truncation` counts for nothing: the length is the one above, stride is for what was cut off,
    and strategy for pairs."""
    side = beside(directory, "tokenizer_config.json").get("truncation_side")
    where = "tokenizer_config.json: truncation_side"
    if side is None:
        where = "tokenizer.json: truncation.direction"
        side = (beside(directory, "tokenizer.json").get("truncation") or {}).get("direction")
    if side not in (None, "right", "Right"):
        raise ExportError(f"{where} is {side!r}: sentence-transformers cuts the beginning of a long "
                          "text off, which this exporter has no rule for")  # fmt: skip


def _prompts(directory: str) -> list[str]:
    name = "config_sentence_transformers.json"
    config = beside(directory, name)
    default, prompts = config.get("default_prompt_name"), config.get("prompts") or {}
    if default is not None and prompts.get(default):
        raise ExportError(
            f"{name}: default_prompt_name is {default!r}: sentence-transformers puts "
            f"{prompts[default]!r} before every text, which this exporter has no rule for"
        )
    given = [f"{key} {text!r}" for key, text in prompts.items() if text]
    if not given:
        return []
    return [f"prompts are not put before texts; give them yourself: {', '.join(given)}"]
