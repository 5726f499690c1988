"""The sentence-transformers files of a checkpoint: how hidden states are pooled, what follows the
pooling, and where texts are cut."""

from __future__ import annotations


import os
import re
from dataclasses import dataclass, field
from typing import Callable, Dict, List, Tuple

from ..config import Config
from ..tensor import ExportError, Tensor, expect
from ..json_files import beside, read_value

NONE, MEAN, FIRST, LAST, MAX, WEIGHTED, SQRT, EACH = range(8)  # values of model.pooling
TOKENS = "model.pooling_tokens"
MODES = {
    "mean_tokens": MEAN,
    "cls_token": FIRST,
    "lasttoken": LAST,
    "max_tokens": MAX,
    "weightedmean_tokens": WEIGHTED,
    "mean_sqrt_len_tokens": SQRT,
}
SHORT = {
    "mean": MEAN,
    "cls": FIRST,
    "lasttoken": LAST,
    "max": MAX,
    "weightedmean": WEIGHTED,
    "mean_sqrt_len_tokens": SQRT,
}
# The activations of Dense modules, as values of model.pooling_acts.
ACTIVATIONS = {"SiLU": 0, "GELU": 1, "ReLU": 3, "Sigmoid": 7, "Tanh": 8, "Identity": 9}
ORDER = re.compile("Transformer, Pooling(, Dense){0,8}(, Normalize)?")
# A vector for each token (ColBERT), and a weight for each word of the vocabulary (SPLADE).
OF_TOKENS = re.compile("Transformer(, Dense){1,8}(, MultiVectorMask)?(, Normalize)?")
SPARSE = re.compile("(MLM)?Transformer, SpladePooling")
CONFIG = "config_sentence_transformers.json"
Weights = Callable[[str], Tuple[Dict[str, Tensor], List[str]]]  # of a folder, and their files


@dataclass
class Sentences:
    """What these files add: metadata, tensors, and remarks for the user."""

    entries: dict[str, object] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


def cross_encoder(directory: str) -> dict[str, object]:
    """What a CrossEncoder's own file says, as older ones have it in config.json."""
    config = beside(directory, CONFIG)
    if config.get("model_type") != "CrossEncoder" or not config.get("activation_fn"):
        return {}
    return {"sentence_transformers": {"activation_fn": config["activation_fn"]}}


def sentences(
    directory: str, context: int, n_embd: int, encoder: bool, classifies: bool, weights: Weights
) -> Sentences:
    """How texts become vectors, and where they are cut. Errors: ExportError."""
    path = os.path.join(directory, "modules.json")
    modules = _modules(path) if os.path.isfile(path) else None
    if modules is None and not encoder and not classifies:
        return Sentences()
    kinds = [str(module.get("type")).rpartition(".")[2] for module in modules or []]
    own_head = classifies and kinds == ["Transformer"]  # a CrossEncoder
    sparse, of_tokens = (order.fullmatch(", ".join(kinds)) for order in (SPARSE, OF_TOKENS))
    outputs = (
        "fill-mask" if sparse else "sequence-classification" if own_head else "feature-extraction"
    )
    tokens = {TOKENS: _most_tokens(directory, context, outputs, modules is not None)}
    if own_head or modules is None and not encoder:
        return Sentences(tokens)
    if modules is None:
        remark = (
            "no modules.json: --embed takes the mean of the hidden states, as "
            "sentence-transformers does then"
        )
        return Sentences({"model.pooling": MEAN, "model.pooling_unit": 0, **tokens}, {}, [remark])
    if sparse:
        _check_sparse(directory, _folder(modules[1].get("path"), "SpladePooling"))
        remark = "SPLADE: heads.Model.sparse and the server give the weights of a text's words"
        return Sentences(tokens, {}, [*_prompts(directory), remark])
    if not ORDER.fullmatch(", ".join(kinds)) and not of_tokens:
        raise ExportError(
            f"modules.json: the modules are {', '.join(kinds)}, of which this exporter knows "
            "Transformer, Pooling, up to eight Dense and Normalize, in this order; without Pooling "
            "and with Dense and MultiVectorMask; and Transformer with SpladePooling"
        )
    found = Sentences(remarks=_prompts(directory))
    if of_tokens:
        mode, unit = EACH, "Normalize" in kinds or str(modules[1].get("type")).startswith("pylate.")
        found.remarks += _masked(directory, modules)
    else:
        mode, unit = (
            _mode(directory, _folder(modules[1].get("path"), "Pooling")),
            "Normalize" in kinds,
        )
    found.entries = {"model.pooling": mode, "model.pooling_unit": int(unit), **tokens}
    acts, width, of = [], n_embd, "token_embeddings" if of_tokens else "sentence_embedding"
    for module in modules:
        if str(module.get("type")).endswith(".Dense"):
            folder, name = _folder(module.get("path"), "Dense"), f"pooling.{len(acts)}"
            act, width = _dense(directory, folder, width, name, found.tensors, weights, of)
            acts.append(act)
    if acts:
        found.entries["model.pooling_acts"] = acts
    dimensions = _dimensions(directory, width)
    if dimensions and not of_tokens:
        found.entries["model.pooling_dimensions"] = dimensions
    return found


def _dimensions(directory: str, width: int) -> int | None:
    """Of vectors that are cut, and made length 1 again if they were (Matryoshka)."""
    dimensions = beside(directory, CONFIG).get("truncate_dim")
    if dimensions is None:
        return None
    if type(dimensions) is not int or dimensions < 1:
        raise ExportError(f"{CONFIG}: truncate_dim is {dimensions!r}, expected a number from 1")
    return dimensions if dimensions < width else None


def _check_sparse(directory: str, folder: str) -> None:
    """That a text's weights are max over log(1 + relu(logits)), which heads.Model.sparse gives."""
    c = Config(beside(directory, os.path.join(folder, "config.json")), f"{folder}/config.json")
    c.require(pooling_strategy="max", activation_function="relu")
    c.ignore("word_embedding_dimension", "embedding_dimension")
    c.finish()


def _masked(directory: str, modules: list[dict]) -> list[str]:
    """A remark on tokens of documents that MultiVectorMask does not count."""
    for module in modules:
        if str(module.get("type")).endswith(".MultiVectorMask"):
            folder = _folder(module.get("path"), "MultiVectorMask")
            words = beside(directory, os.path.join(folder, "config.json")).get("skiplist_words")
            if words:
                return [
                    f"each token has its vector; leave these out of documents yourself: {words}"
                ]
    return []


def _dense(
    directory: str,
    folder: str,
    width: int,
    name: str,
    tensors: dict[str, Tensor],
    weights: Weights,
    of: str,
) -> tuple[int, int]:
    """Adds a Dense module's tensors; returns its activation and its width."""
    path = os.path.join(directory, folder)
    c = Config(beside(directory, os.path.join(folder, "config.json")), f"{folder}/config.json")
    rows, biased = c.int("out_features"), c.flag("bias", True)
    c.require(in_features=width, module_input_name=of, module_output_name=of, use_residual=False)
    given = str(c.get("activation_function", "Tanh"))
    short = given.rpartition(".")[2]
    if short not in ACTIVATIONS or not given.startswith(("torch.nn.", "Tanh")):
        raise ExportError(
            f"{c.where}: activation_function is {given!r}, expected one of torch.nn's "
            f"{', '.join(ACTIVATIONS)}"
        )
    c.finish()
    left, _ = weights(path)
    for part, end, shape in (("weight", "", (rows, width)), ("bias", ".bias", (rows,))):
        if part == "bias" and not biased:
            continue
        if "linear." + part not in left:
            raise ExportError(f"{folder} lacks the tensor linear.{part}")
        tensors[name + end] = expect(left.pop("linear." + part), *shape)
    if left:
        raise ExportError(f"{folder} holds {next(iter(left))}, which nothing uses")
    return ACTIVATIONS[short], rows


def _modules(path: str) -> list[dict]:
    modules = read_value(path)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise ExportError("modules.json: expected an array of objects")
    return modules


def _folder(path: object, kind: str) -> str:
    """The folder of such a module, which lies in the checkpoint's."""
    if kind == "Pooling" and (path is None or path == ""):
        return "1_Pooling"
    if not isinstance(path, str) or not path or os.path.isabs(path) or ".." in path.split("/"):
        raise ExportError(
            f"modules.json: the path of {kind} is {path!r}, expected a folder in the "
            f'checkpoint\'s own, such as "1_{kind}"'
        )
    return path


def _mode(directory: str, path: str) -> int:
    c = Config(beside(directory, os.path.join(path, "config.json")), f"{path}/config.json")
    c.ignore("word_embedding_dimension", "embedding_dimension", "include_prompt")
    if c.get("pooling_mode") is not None:
        mode = c.choice("pooling_mode", SHORT)
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


# What the file of Transformer says of a task: the model's output, and its name there.
TASKS = {
    "sequence-classification": ("logits", "scores"),
    "feature-extraction": ("last_hidden_state", "token_embeddings"),
    "fill-mask": ("logits", "token_embeddings"),
}


def _most_tokens(directory: str, context: int, task: str, has_modules: bool) -> int:
    """A text is cut at max_seq_length; without one, where the tokenizer or the positions end. The
    file that says so belongs to a module: without modules.json it is not read."""
    name = "sentence_bert_config.json"
    c = Config(beside(directory, name) if has_modules else {}, name)
    c.require(do_lower_case=False)
    output, result = TASKS[task]
    c.require(
        transformer_task=task,
        modality_config={"text": {"method": "forward", "method_output_name": output}},
        module_output_name=result,
    )
    c.ignore("query_length", "query_expansion")  # of ColBERT's queries, which users pad
    document = c.get("document_length")
    limit = c.get("max_seq_length")
    if limit is None:
        limit = beside(directory, "tokenizer_config.json").get("model_max_length") or context
    else:
        limit = c.int("max_seq_length")
    c.finish()
    _check_side(directory)
    return int(min(limit, document or context, context))


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
        raise ExportError(
            f"{where} is {side!r}: sentence-transformers cuts the beginning of a long "
            "text off, which this exporter has no rule for"
        )


def _prompts(directory: str) -> list[str]:
    config = beside(directory, CONFIG)
    default, prompts = config.get("default_prompt_name"), config.get("prompts") or {}
    if default is not None and prompts.get(default):
        raise ExportError(
            f"{CONFIG}: default_prompt_name is {default!r}: sentence-transformers puts "
            f"{prompts[default]!r} before every text, which this exporter has no rule for"
        )
    given = [f"{key} {text!r}" for key, text in prompts.items() if text]
    if not given:
        return []
    return [f"prompts are not put before texts; give them yourself: {', '.join(given)}"]
