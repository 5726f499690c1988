"""Heads that classify texts or tokens, by the architecture that config.json names: what follows the
hidden states is a list of steps, which the names of the tensors tell."""

from __future__ import annotations

from ..config import Config
from ..knobs import ACTS, Knobs
from ..tensor import ExportError, Tensor, expect

TEXTS, TOKENS, REPLACED = "ForSequenceClassification", "ForTokenClassification", "ForPreTraining"
SIGMOID, TANH, NONE = 7, 8, 9  # activations of steps besides ACTS
EACH, MEAN, FIRST, LAST = range(4)  # values of model.class_pooling
RAW, SOFTMAX, SIGMOIDS = range(3)  # values of model.class_scores
MOST_LABELS = 1 << 16
DISCRIMINATOR = "discriminator_predictions"
# Encoder-decoders whose decoder reads a text after the token that all targets begin with, and where
# the text ends has the head; their eos_token_id. Others begin with the text's own last token.
EOS = {"bart": 2, "mt5": 1, "mvp": 2, "t5": 1, "umt5": 1}
OF_EOS = "classification_head.out_proj"
# XLM's head.
SUMMARY = "sequence_summary.summary"
SUMMARIES = {"first": FIRST, "last": LAST, "mean": MEAN, "cls_index": LAST}
SUMMARY_ACTS = {**ACTS, "sigmoid": SIGMOID, "tanh": TANH, "linear": NONE}
Steps = list[tuple[str, int]]  # modules and their activations


def task(c: Config) -> str | None:
    """What the checkpoint's head is for, if it is for classes."""
    names = [str(name) for name in c.get("architectures") or []]
    if names and names[0] == "Electra" + REPLACED:
        return REPLACED
    return next((kind for kind in (TEXTS, TOKENS) if names and names[0].endswith(kind)), None)


def add_classes(
    c: Config, family: str, knobs: Knobs, left: dict[str, Tensor], names: dict[str, str | None]
) -> dict[str, Tensor]:
    """Moves the head from the checkpoint's tensors to the canonical ones that are returned, and its
    knobs into `knobs`. The model has no logits then. Errors: ExportError."""
    kind = task(c)
    if not kind:
        return {}
    if knobs.source_layers and (kind != TEXTS or family not in EOS):
        raise ExportError(f"a head for classes on an encoder-decoder of {family} is not supported")
    steps = _steps(c, family, kind, left)
    found: dict[str, Tensor] = {}
    width = knobs.n_embd
    for i, (module, _) in enumerate(steps):
        width = _take_step(left, found, f"classes.{i}", module, width)
    pooling, after = _pooling(c, family, kind, steps)
    labels = ["replaced"] if kind == REPLACED else _labels(c, width)
    knobs.classes = {
        "model.class_acts": [act for _, act in steps],
        "model.class_pooling": pooling,
        "model.class_scores": SIGMOIDS if kind == REPLACED else _scores(c, kind, len(labels)),
        **_text_of(labels),
    }
    if after:
        knobs.classes["model.class_after"] = after
    if knobs.source_layers:
        knobs.classes["model.class_eos"] = c.int(
            "eos_token_id", EOS[family], 0, knobs.vocab_size - 1
        )
    pad = c.get("pad_token_id") if steps[-1][0] in ("score", "classifier") else None
    if pooling == LAST and isinstance(pad, int) and 0 <= pad < knobs.vocab_size:
        knobs.classes["model.class_pad"] = pad
    knobs.names = {name: of for name, of in names.items() if name != "output"}
    return found


def _steps(c: Config, family: str, kind: str, left: dict[str, Tensor]) -> Steps:
    last = "score" if "score.weight" in left else "classifier"
    if kind == REPLACED:
        act = c.choice("hidden_act", ACTS, "gelu")
        return [(f"{DISCRIMINATOR}.dense", act), (f"{DISCRIMINATOR}.dense_prediction", NONE)]
    if OF_EOS + ".weight" in left:
        return [("classification_head.dense", TANH), (OF_EOS, NONE)]
    if family == "xlm" and kind == TEXTS:
        c.require(summary_use_proj=True)
        named = c.get("summary_activation")
        return [(SUMMARY, c.choice("summary_activation", SUMMARY_ACTS) if named else NONE)]
    if family in ("modernbert", "modernbert-decoder"):
        return [("head", c.choice("classifier_activation", ACTS, "gelu")), (last, NONE)]
    if kind == TOKENS or last == "score" or family == "ctrl":
        return [(last, NONE)]
    if "classifier.out_proj.weight" in left:
        act = {"electra": ACTS["gelu"]}.get(family, TANH)
        if family in ("big_bird", "roformer"):
            act = c.choice("hidden_act", ACTS, "gelu")
        return [("classifier.dense", act), ("classifier.out_proj", NONE)]
    if "pre_classifier.weight" in left:
        return [("pre_classifier", ACTS["relu"]), (last, NONE)]
    if family == "eurobert":
        return [("dense", ACTS["gelu"]), (last, NONE)]
    pooler = [n for n in left if n.endswith(("pooler.dense.weight", "pooler.weight"))]
    if not pooler:
        raise ExportError(
            f"the checkpoint lacks the pooler that a head of {family} for texts reads, or the head "
            "has a form that is not supported"
        )
    act = c.choice("pooler_hidden_act", ACTS, "gelu") if family == "deberta-v2" else TANH
    return [(pooler[0].rpartition(".")[0], act), (last, NONE)]


def _take_step(left, found, name: str, module: str, width: int) -> int:
    """Moves a step's tensors; returns how many numbers it gives."""
    dense = module + ".dense" if module == "head" else module
    weight = left.pop(dense + ".weight", None)
    if weight is None:
        raise ExportError(f"the checkpoint lacks the tensor {dense}.weight")
    rows = weight.shape[0]
    found[name] = expect(weight, rows, width)
    more = {".bias": dense + ".bias"}
    if module == "head":
        if "head.norm.weight" not in left:
            raise ExportError("the checkpoint lacks the tensor head.norm.weight")
        more |= {".norm": "head.norm.weight", ".norm.bias": "head.norm.bias"}
    for end, old in more.items():
        if old in left:
            found[name + end] = expect(left.pop(old), rows)
    return rows


def _pooling(c: Config, family: str, kind: str, steps: Steps) -> tuple[int, int]:
    """What becomes one row for a text, and after how many steps."""
    if kind != TEXTS:
        return EACH, 0
    if family == "modernbert":
        return c.choice("classifier_pooling", {"cls": FIRST, "mean": MEAN}, "cls"), 0
    if family == "eurobert":
        ways = {"bos": (FIRST, 0), "mean": (MEAN, 0), "late": (MEAN, 2)}
        return c.choice("classifier_pooling", ways, "late")
    if family == "xlm":
        return c.choice("summary_type", SUMMARIES, "first"), 0
    of_last = family in ("ctrl", "modernbert-decoder") or steps[-1][0] in ("score", OF_EOS)
    return (LAST if of_last else FIRST), 0


def _labels(c: Config, n: int) -> list[str]:
    """The classes' names: id2label's, or LABEL_0 and so on, as transformers has them."""
    if n > MOST_LABELS:
        raise ExportError(f"the head has {n} classes, expected at most {MOST_LABELS}")
    given = c.get("id2label")
    if given is None:
        return [f"LABEL_{i}" for i in range(n)]
    if not isinstance(given, dict) or sorted(given) != sorted(map(str, range(n))):
        raise ExportError(
            f"{c.where}: id2label must name the {n} classes of the head, 0 to {n - 1}"
        )
    labels = [given[str(i)] for i in range(n)]
    if not all(isinstance(label, (str, int)) for label in labels):
        raise ExportError(f"{c.where}: id2label has a name that is no text")
    return [str(label) for label in labels]


def _scores(c: Config, kind: str, n: int) -> int:
    """What the numbers become: as transformers' pipelines do it, and for a single number of a pair
    as sentence-transformers' CrossEncoder does, where the config says how."""
    chosen = c.get("sentence_transformers") or {}
    name = chosen.get("activation_fn") if isinstance(chosen, dict) else None
    name = name or c.get("sbert_ce_default_activation_function")
    problem = c.get("problem_type")
    problems = (None, "regression", "single_label_classification", "multi_label_classification")
    if problem not in problems:
        raise ExportError(f"{c.where}: problem_type is {problem!r}, expected one of {problems[1:]}")
    if kind == TOKENS:
        return SOFTMAX
    if name and n == 1:
        short = str(name).rpartition(".")[2]
        ways = {"Identity": RAW, "Sigmoid": SIGMOIDS}
        if short not in ways:
            raise ExportError(
                f"{c.where}: sentence-transformers puts {name} after the head, expected "
                + " or ".join(ways)
            )
        return ways[short]
    if problem == "regression":
        return RAW
    return SIGMOIDS if n == 1 or problem == "multi_label_classification" else SOFTMAX


def _text_of(labels: list[str]) -> dict[str, object]:
    texts = [label.encode("utf-8", "replace") for label in labels]
    begin = [0]
    for text in texts:
        begin.append(begin[-1] + len(text))
    return {"model.labels": b"".join(texts), "model.labels.begin": begin}
