"""Adapters of peft: a folder with adapter_config.json and adapter_model.safetensors or .bin, as
peft 0.21.2 reads them."""

from __future__ import annotations

import functools
import math
import os
import re
from typing import Callable

import numpy as np

from ..config import Config
from ..json_files import read_json
from ..sources.huggingface import WRAPPERS, open_safetensors, open_torch
from ..sources.pointers import refuse_pointer
from ..tensor import ExportError, Tensor
from .adapter import Adapter, of_rank
from .changes import Bias, Change, Factors, Low, Product, Rows, Whole, numbers

CONFIG = "adapter_config.json"
# What the ends of names say, after the module; a name of the adapter may stand between.
PART = re.compile(
    r"(?P<module>.*)\.(?P<part>lora_(?:A|B|E|embedding_A|embedding_B|magnitude_vector)|ia3_l|"
    r"hada_(?:w[12]_[ab]|t[12])|lokr_(?:w[12]|w[12]_[ab]|t2)|trainable_tokens_delta|"
    r"(?:lora|vera|oft|boft|adalora|randlora|hira|bone|miss)_\w+)"
    r"(?:\.(?!weight$|bias$)[^.]+)?(?P<bias>\.bias)?(?:\.weight)?"
)
INSIDE = re.compile(r"(?<![^.])(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
# What wraps a module that is saved whole.
SAVED = re.compile(r"\.(?:modules_to_save|ln_tuning_layers)(?:\.default)?(?=\.|$)")
# The order in which a module of transformers has its parameters, and so peft their adapters.
PARAMETERS = ("gate_up_proj", "gate_up_proj_bias", "up_proj", "down_proj", "down_proj_bias")
# About training, and how an adapter began.
TRAINING = """
    auto_mapping base_model_name_or_path bias corda_config ensure_weight_tying eva_config
    exclude_modules inference_mode init_ia3_weights init_weights layers_pattern layers_to_transform
    lora_dropout lora_ga_config loftq_config megatron_config megatron_core module_dropout
    modules_to_save peft_type peft_version qalora_group_size rank_dropout rank_dropout_scale
    revision runtime_config target_modules task_type velora_config
    """.split()
ADALORA = "beta1 beta2 deltaT orth_reg_weight target_r tfinal tinit total_step".split()
# Of lora: what is no matrix that could be added to the base's, and what is added elsewhere.
OTHER_FORMS = """
    alora_invocation_tokens arrow_config kasa_config layer_replication monteclora_config use_bdlora
    use_qalora
    """.split()
# Beginnings that took something away from the base, which the adapter's file does not tell.
TAKEN = ("pissa", "olora", "corda", "loftq", "lora_ga")
NO_WEIGHTS = """
    ADAPTION_PROMPT CARTRIDGE CPT MULTITASK_PROMPT_TUNING POLY PREFIX_TUNING PROMPT_TUNING P_TUNING
    SHADOW XLORA
    """.split()


def open_peft(directory: str, name: str, scale: float) -> Adapter:
    """The adapter in a folder; `name` is what it is called. Only headers are read. Errors:
    ExportError."""
    path = os.path.join(directory, CONFIG)
    if not os.path.isfile(path):
        raise ExportError(f"{name} has no {CONFIG}, so it is no adapter of peft")
    refuse_pointer(path)
    values = read_json(path)
    c = Config({k: v for k, v in values.items() if v not in (False, "", [], {})}, path)
    kind = c.get("peft_type", "LORA")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ExportError(f"{name} is an adapter of the kind {kind}, {_why_not(kind)}")
    tensors, files = _open_weights(directory, name)
    try:
        with c.odd_values():
            read = Reader(c, tensors, scale)
            KINDS[kind](read)
            c.ignore(*TRAINING)
            c.finish()
        changes = read.changes()
    except ExportError as error:
        raise ExportError(str(error) if path in str(error) else f"{name}: {error}") from error
    own = directory if os.path.isfile(os.path.join(directory, "tokenizer.json")) else None
    task = c.get("task_type") if isinstance(c.get("task_type"), str) else None
    remarks = c.remarks
    if scale != 1 and any(isinstance(change, (Whole, Rows)) for change in changes):
        remarks.append(f"{name}: its scale leaves alone what it has saved whole, as in peft")
    return Adapter(name, scale, read.kind, changes, [path, *files], own, task, remarks=remarks)


def base_of(directory: str) -> tuple[str | None, str | None]:
    """The base that an adapter's configuration names, and its revision. Errors: ExportError."""
    values = read_json(os.path.join(directory, CONFIG))
    found = [values.get(key) for key in ("base_model_name_or_path", "revision")]
    base, revision = (value if isinstance(value, str) and value else None for value in found)
    return base, revision


def _why_not(kind: object) -> str:
    if kind in NO_WEIGHTS:
        return (
            "which changes no weight of the base, so there is nothing to merge; kinds that are "
            f"merged: {', '.join(KINDS)}"
        )
    return (
        "which is not supported: merge it with peft's merge_and_unload() and export what "
        f"save_pretrained() writes; supported: {', '.join(KINDS)}"
    )


def _open_weights(directory: str, name: str) -> tuple[dict[str, Tensor], list[str]]:
    for file, read in (
        ("adapter_model.safetensors", open_safetensors),
        ("adapter_model.bin", open_torch),
    ):
        path = os.path.join(directory, file)
        refuse_pointer(path)
        if os.path.isfile(path):
            return read(path), [path]
    raise ExportError(f"{name} has no adapter_model.safetensors and no adapter_model.bin")


def _pattern(patterns: object, name: str):
    """The value of the first pattern that fits the end of a module's name, None if none does."""
    for pattern, value in patterns.items():
        try:
            if re.match(rf"(.*\.)?({pattern})$", name):
                return value
        except re.error as error:
            raise ExportError(
                f"the pattern {pattern!r} is no regular expression: {error}"
            ) from None
    return None


class Reader:
    """The tensors of an adapter by the module that they change, and what its configuration says of
    them. What is no part of a change is saved whole."""

    def __init__(self, c: Config, tensors: dict[str, Tensor], scale: float):
        self.c, self.user_scale, self.kind = c, scale, ""
        self.parts: dict[str, dict[str, Tensor]] = {}
        self.whole: list[Change] = []
        self.found: list[Change] = []
        saved = c.list("modules_to_save") or []
        if c.get("task_type") in ("SEQ_CLS", "TOKEN_CLS"):
            saved = [*saved, "classifier", "score"]
        for stored, tensor in tensors.items():
            name = self.bare(stored)
            match = PART.fullmatch(name)
            if match:
                module = match["module"].removesuffix(".token_adapter")
                part = match["part"] + (match["bias"] or "")
                self.parts.setdefault(module, {})[part] = tensor
                continue
            own = SAVED.sub("", name).replace(".base_layer.", ".")
            module = own.rpartition(".")[0]
            apart = own != name and ".base_layer." not in name
            apart |= any(f".{module}.".find(f".{m}.") >= 0 for m in saved)
            if ".original_module." not in name:
                self.whole.append(Whole(own, tensor, apart))

    @staticmethod
    def bare(name: str) -> str:
        """A tensor's name without what wraps the model."""
        name = INSIDE.sub("", name)
        while wrapper := next((w for w in WRAPPERS if name.startswith(w)), None):
            name = name[len(wrapper) :]
        return name

    def take(self, module: str, *names: str) -> list[Tensor]:
        """Parts of a module that must be there. Errors: ExportError."""
        parts = self.parts[module]
        missing = [name for name in names if name not in parts]
        if missing:
            raise ExportError(f"the adapter lacks the tensor {module}.{missing[0]}")
        return [parts.pop(name) for name in names]

    def changes(self) -> list[Change]:
        """All of them; the base's own tensors that it replaces come first. Errors: ExportError."""
        for module, parts in self.parts.items():
            for name in parts:
                raise ExportError(
                    f"the adapter holds {module}.{name}, which is no part of an adapter of its kind"
                )
        if not self.found and not self.whole:
            raise ExportError(f"{os.path.dirname(self.c.where)} holds no tensor")
        return self.whole + self.found

    # ---- LoRA ------------------------------------------------------------------------------------

    def lora(self) -> None:
        c = self.c
        dora = c.flag("use_dora", False)
        rank_stable = c.flag("use_rslora", False)
        c.require(**dict.fromkeys(OTHER_FORMS))
        c.ignore("fan_in_fan_out", "lora_bias")  # the tensors tell
        began = c.get("init_lora_weights")
        if isinstance(began, str) and began.startswith(TAKEN):
            raise ExportError(
                f"{c.where}: init_lora_weights is {began!r}, with which the adapter began as a part "
                "of the base's weights: save it with peft's path_initial_model_for_weight_conversion, "
                "or merge it with merge_and_unload()"
            )
        self.ranks: set[int] = set()
        r, alpha = c.int("r", 8), c.get("lora_alpha", 8)
        ranks, alphas = c.object("rank_pattern"), c.object("alpha_pattern")
        targets = c.list("target_parameters") or []
        self.modules = list(self.parts)
        for module in self.modules:
            if "trainable_tokens_delta" in self.parts[module]:
                self.tokens(module, "trainable_token_indices")
                continue
            parameter, of_many = self.parameter(module, targets)
            key = parameter if of_many else parameter.removesuffix(".weight")
            rank = _pattern(ranks, key) or r
            by = _number(_pattern(alphas, key), alpha)
            scale = by / (math.sqrt(rank) if rank_stable else rank)
            self.low(module, parameter, rank, scale * self.user_scale, of_many, dora)
        name = "rsLoRA" if rank_stable else "LoRA"
        self.kind = of_rank("DoRA" if dora else name, self.ranks)

    def parameter(self, module: str, targets: list[str]) -> tuple[str, bool]:
        """The parameter that the adapter of a module changes, and whether it may have several
        matrices: peft wraps a module that has several parameters several times, the first
        innermost."""
        bare = module.replace(".base_layer", "")
        found = []
        for target in targets:
            owner, _, name = target.rpartition(".")
            if f".{bare}".endswith(f".{owner}" if owner else "experts"):
                found.append(name)
        if not found:
            return f"{bare}.weight", False
        order = {name: i for i, name in enumerate(PARAMETERS)}
        found = sorted(set(found), key=lambda name: order.get(name, -1))
        deep = [
            m.count(".base_layer") for m in self.modules if m.replace(".base_layer", "") == bare
        ]
        if sorted(deep) != list(range(len(found))):
            raise ExportError(
                f"the adapter holds {len(deep)} parameters of {bare}, target_parameters names "
                f"{', '.join(found)}"
            )
        return f"{bare}.{found[-1 - module.count('.base_layer')]}", True

    def low(
        self, module: str, parameter: str, rank: int, scale: float, of_many: bool, dora: bool
    ) -> None:
        parts = self.parts[module]
        kinds = ("lora_embedding_A", "lora_embedding_B")
        of_embedding = kinds[0] in parts
        a, b = self.take(module, *(kinds if of_embedding else ("lora_A", "lora_B")))
        magnitude = self.take(module, "lora_magnitude_vector")[0] if dora else None
        bias = parts.pop("lora_B.bias", None)
        whole = a.shape[0] % rank == 0 if of_many else a.shape[0] == rank
        if _matrix(a).shape[0] != _matrix(b).shape[1] or not whole:
            raise ExportError(
                f"tensor {a.name} has shape {list(a.shape)}, and B {list(b.shape)}: "
                f"{self.c.where} makes the rank {rank}"
            )
        if magnitude:
            _expect_numbers(magnitude, b.shape[0])
        self.ranks.add(rank)
        count = a.shape[0] // rank if of_many else 1
        low = Low(parameter, a, a, b, scale, magnitude, count=count, turned=of_embedding)
        self.found.append(low)
        if bias:
            self.found.append(Bias(_sibling(parameter), bias, scale))

    def adalora(self) -> None:
        c = self.c
        c.ignore("rank_pattern", "fan_in_fan_out", "r", "lora_alpha", "init_lora_weights", *ADALORA)
        c.ignore(*OTHER_FORMS, "alpha_pattern", "use_rslora", "use_dora", "lora_bias")
        rank, alpha = c.int("init_r", 12), _number(c.get("lora_alpha", 8), 8)
        scale = (alpha if alpha > 0 else rank) / (rank + 1e-5) * self.user_scale
        for module in self.parts:
            a, b, diagonal = self.take(module, "lora_A", "lora_B", "lora_E")
            _expect_numbers(diagonal, a.shape[0])
            if _matrix(a).shape[0] != _matrix(b).shape[1]:
                raise ExportError(f"tensors {a.name} and {b.name} differ in rank")
            if a.shape[0]:
                low = Low(f"{module}.weight", a, a, b, scale, diagonal=diagonal)
                self.found.append(low)
        self.kind = of_rank("AdaLoRA", {rank})

    # ---- others ----------------------------------------------------------------------------------

    def tokens(self, module: str, key: str) -> None:
        """Rows of an embedding, which the configuration names by module or for the only one."""
        (new,) = self.take(module, "trainable_tokens_delta")
        given = self.c.get(key)
        if isinstance(given, dict):
            given = next((v for k, v in given.items() if f".{module}".endswith(f".{k}")), None)
        if not isinstance(given, list) or not all(type(i) is int and i >= 0 for i in given):
            raise ExportError(f"{self.c.where}: {key} does not list the tokens of {module}")
        if len(new.shape) != 2 or len(given) != new.shape[0]:
            raise ExportError(
                f"tensor {new.name} has shape {list(new.shape)}, for {len(given)} tokens of {key}"
            )
        self.found.append(Rows(f"{module}.weight", new, tuple(given)))

    def trainable_tokens(self) -> None:
        for module in self.parts:
            self.tokens(module, "token_indices")
        self.kind = "trainable tokens"

    def ia3(self) -> None:
        self.c.ignore("feedforward_modules", "fan_in_fan_out")  # the tensors tell
        for module in self.parts:
            (by,) = self.take(module, "ia3_l")
            if len(by.shape) != 2 or 1 not in by.shape:
                raise ExportError(f"tensor {by.name} has shape {list(by.shape)}, expected a vector")
            change = Factors(f"{module}.weight", by)
            self.found.append(change)
            if not change.of_columns:
                self.found.append(Factors(f"{module}.bias", by))
        if self.user_scale != 1:
            raise ExportError("an adapter of the kind IA3 multiplies, so it takes no scale")
        self.kind = "IA3"

    def norms(self) -> None:
        self.kind = "norms"

    def products(self, make: Callable) -> None:
        """LoHa and LoKr: make(parts) gives a shape and a function that makes the matrix."""
        c = self.c
        c.ignore("use_effective_conv2d", "decompose_both", "decompose_factor")  # the tensors tell
        ranks, alphas = c.object("rank_pattern"), c.object("alpha_pattern")
        r, alpha = c.int("r", 8), c.get("alpha", 8)
        for module, parts in self.parts.items():
            rank = _pattern(ranks, module) or r
            scale = _number(_pattern(alphas, module), alpha) / rank * self.user_scale
            first = next(iter(parts.values()))
            size, whole = make(self, module)
            whole = functools.partial(_times, whole, scale)
            self.found.append(Product(f"{module}.weight", first, size, whole))

    def loha(self) -> None:
        self.products(_loha)
        self.kind = of_rank("LoHa", {self.c.int("r", 8)})

    def lokr(self) -> None:
        self.products(_lokr)
        self.kind = of_rank("LoKr", {self.c.int("r", 8)})


def _times(make: Callable[[], np.ndarray], scale: float) -> np.ndarray:
    return make() * np.float32(scale)


def _loha(read: Reader, module: str):
    """The product, number by number, of two products of low rank (Hyeon-Woo et al. 2022)."""
    names = ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b")
    w1a, w1b, w2a, w2b = (_matrix(tensor) for tensor in read.take(module, *names))
    size = (w1a.shape[0], w1b.shape[1])
    return size, lambda: (numbers(w1a) @ numbers(w1b)) * (numbers(w2a) @ numbers(w2b))


def _lokr(read: Reader, module: str):
    """A Kronecker product of two matrices, of which each may be a product of low rank (Yeh et al.
    2024)."""
    pairs = []
    for name in ("lokr_w1", "lokr_w2"):
        names = (name,) if name in read.parts[module] else (f"{name}_a", f"{name}_b")
        pairs.append([_matrix(tensor) for tensor in read.take(module, *names)])
    (rows1, rows2) = (pair[0].shape[0] for pair in pairs)
    (columns1, columns2) = (pair[-1].shape[1] for pair in pairs)

    def whole(pair: list[Tensor]) -> np.ndarray:
        return functools.reduce(np.matmul, map(numbers, pair))

    return (rows1 * rows2, columns1 * columns2), lambda: np.kron(*map(whole, pairs))


def _matrix(tensor: Tensor) -> Tensor:
    if len(tensor.shape) != 2:
        raise ExportError(
            f"tensor {tensor.name} has shape {list(tensor.shape)}: adapters of convolutions are not "
            "supported"
        )
    return tensor


def _expect_numbers(tensor: Tensor, n: int) -> None:
    if math.prod(tensor.shape) != n:
        raise ExportError(
            f"tensor {tensor.name} has shape {list(tensor.shape)}, expected {n} numbers"
        )


def _sibling(parameter: str) -> str:
    """The bias beside a weight."""
    return parameter.rpartition(".")[0] + ".bias"


def _number(value: object, otherwise: object) -> float:
    value = otherwise if value is None else value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ExportError(f"an alpha of the adapter is {value!r}, expected a number")
    return float(value)


KINDS: dict[str, Callable[[Reader], None]] = {
    "LORA": Reader.lora,
    "ADALORA": Reader.adalora,
    "IA3": Reader.ia3,
    "LOHA": Reader.loha,
    "LOKR": Reader.lokr,
    "LN_TUNING": Reader.norms,
    "TRAINABLE_TOKENS": Reader.trainable_tokens,
}
