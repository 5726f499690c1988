"""Experts as families spell them: names of tensors, sizes, and DeepSeek-V3's router."""

from __future__ import annotations

from ..config import Config
from ..knobs import Knobs
from ..layers.experts import SIGMOID, TOP2, Experts
from ..layers.part import Skipped
from ..tensor import ExportError
from .common import in_layer


def expert_names(module: str, router: str = "gate", dense: str | None = None) -> dict[str, str]:
    """A table's entries of the feed-forward networks of a layer: `module` holds the experts, or
    where a layer has none, a network of its own; `dense` is where all tokens' network is besides
    the experts."""
    names = in_layer(
        f"model.layers.N.{module}",
        router=router,
        selection_bias="selection",
        shared_gate="shared_expert_gate",
        expert_gate="experts.gate",
        expert_up="experts.up",
        expert_down="experts.down",
    )
    for matrix in ("gate", "up", "down"):
        own = f"model.layers.N.{module}.{matrix}_proj"
        names[f"layers.N.ffn_{matrix}"] = (
            own if dense is None else f"{own}|model.layers.N.{module}.{dense}.{matrix}_proj"
        )
    return names


def no_training(c: Config) -> None:
    """Keys that matter to training alone."""
    c.ignore("output_router_logits", "router_aux_loss_coef", "aux_loss_alpha", "seq_aux", "ep_size")


def experts(
    c: Config, k: Knobs, n: str = "num_experts", width: str = "moe_intermediate_size", **more
) -> Experts:
    """Experts in all layers, of which the config says how many there are and how wide; `more` are
    fields of Experts."""
    no_training(c)
    part = Experts(
        [True] * k.n_layers,
        n=c.int(n, most=4096),
        top_k=c.int("num_experts_per_tok", most=64),
        d_ff=c.int(width),
        **more,
    )
    k.parts.append(part)
    k.d_ff = 0
    return part


def sparse_layers(c: Config, k: Knobs, part: Experts, shared: int = 0) -> None:
    """Which layers have experts, in Qwen's way; `shared` is the width of their network for all
    tokens."""
    step, dense = c.int("decoder_sparse_step", 1), c.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise ExportError(f"{c.where}: mlp_only_layers is {dense!r}, expected a list")
    part.layers = [i not in dense and (i + 1) % step == 0 for i in range(k.n_layers)]
    k.d_ff = [shared if sparse else c.int("intermediate_size") for sparse in part.layers]


def deepseek_experts(c: Config, k: Knobs, first: int = 0, **more) -> Experts:
    """Experts after a number of dense layers, beside a network for all tokens, as many times as
    wide as an expert as n_shared_experts says."""
    width = k.d_ff
    first = c.int("first_k_dense_replace", first, least=0)
    c.require(moe_layer_freq=1)
    part = experts(
        c, k, "n_routed_experts" if "n_routed_experts" in c.values else "num_local_experts", **more
    )
    part.scale = c.number("routed_scaling_factor", 1.0)
    sparse = [i >= first for i in range(k.n_layers)]
    after_dense(k, part, sparse, width, part.d_ff * c.int("n_shared_experts", least=0))
    return part


def after_dense(k: Knobs, part: Experts, sparse: list[bool], width: int, shared: int) -> None:
    """Which layers have experts; `width` is how wide the other layers' network is,
    `shared` how wide the network that all tokens pass beside experts."""
    part.layers = sparse
    k.d_ff = [shared if has else width for has in sparse]


def listed_layers(c: Config, n_layers: int, first: int) -> list[bool]:
    """The layers with experts: those that mlp_layer_types calls sparse, or those from
    first_k_dense_replace on."""
    kinds, first = c.get("mlp_layer_types"), c.int("first_k_dense_replace", first, least=0)
    if kinds is None:
        return [i >= first for i in range(n_layers)]
    if (
        not isinstance(kinds, list)
        or len(kinds) != n_layers
        or not all(kind in ("dense", "sparse") for kind in kinds)
    ):
        raise ExportError(f"{c.where}: mlp_layer_types has not dense or sparse for each layer")
    return [kind == "sparse" for kind in kinds]


def v3_router(c: Config) -> dict[str, object]:
    """The fields of Experts for DeepSeek-V3's router."""
    return dict(
        score=SIGMOID,
        biased=True,
        groups=c.int("n_group", 1),
        top_groups=c.int("topk_group", 1),
        group_score=TOP2,
        renorm=c.flag("norm_topk_prob", True),
        renorm_eps=1e-20,
    )


def v3_experts(c: Config, k: Knobs, first: int = 0, listed: bool = False) -> None:
    """DeepSeek-V3's router: sigmoids, a bias for the choice, groups by their two best. listed: the
    family reads mlp_layer_types."""
    width = k.d_ff
    c.choice("scoring_func", {"sigmoid": SIGMOID, "noaux_tc": SIGMOID}, "sigmoid")
    c.require(topk_method="noaux_tc")
    part = deepseek_experts(c, k, first, **v3_router(c))
    if listed:
        shared = part.d_ff * c.int("n_shared_experts", least=0)
        after_dense(k, part, listed_layers(c, k.n_layers, first), width, shared)
    c.ignore("num_mtp_layers", "num_nextn_predict_layers")
    k.parts.append(Skipped([], n_layers=k.n_layers))
