"""Rope: angular frequencies from a config, in the operations and the order of transformers'
modeling_rope_utils.py (the same bits but where torch's vectorised pow is off by one), and which
layers have which."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Callable

import numpy as np

from .config import Config
from .tensor import ExportError

f32 = np.float32
MROPE = ("mrope_section", "mrope_interleaved")  # which axis turns which pairs
FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, eq=False)
class Rope:
    """A rope set of docs/format.md: float32 [n_rot / 2] frequencies, and others for texts of
    more than `length` tokens."""

    inv_freq: np.ndarray
    multiplier: float = 1.0
    long_freq: np.ndarray | None = None
    length: int = 0
    long_multiplier: float | None = None  # None: the same


@dataclass(frozen=True)
class Shape:
    """What the frequencies of a model depend on besides its rope parameters. `theta` and `partial`
    are the family's values of rope_theta and partial_rotary_factor where the config has none;
    partial None: the family rotates whole heads. `kinds`: the types that the family has, if not
    all. `known`: keys among the parameters that the family reads itself."""

    head_dim: int
    context: int
    theta: float = 10000.0
    partial: float | None = None
    kinds: tuple[str, ...] = ()
    known: tuple[str, ...] = ()


def rope_set(c: Config, shape: Shape) -> Rope:
    """The rope of all layers, in both spellings of a config: rope_theta with rope_scaling, and
    rope_parameters."""
    old, new = c.get("rope_scaling"), c.get("rope_parameters")
    if old and new and old != new:
        raise ExportError(f"{c.where} has both rope_scaling and rope_parameters; keep one")
    name, values = ("rope_scaling" if old else "rope_parameters"), old or new or {}
    if not isinstance(values, dict):
        raise ExportError(f"{c.where}: {name} is {values!r}, expected an object")
    values = {"original_max_position_embeddings": shape.context, **values}
    for key in ("rope_theta", "partial_rotary_factor"):  # the inner one wins
        if c.get(key) is not None:
            values.setdefault(key, c.get(key))
    if c.get("original_max_position_embeddings") is not None:  # the outer one wins
        values["original_max_position_embeddings"] = c.get("original_max_position_embeddings")
    inner = Config(values, f"{c.where}: {name}")
    inner.remarks = c.remarks
    return _rope(inner, shape)


def rope_by_type(c: Config, shape: Shape, sliding_theta: float) -> dict[str, Rope]:
    """A rope for full_attention, whose default theta is `shape`'s, and one for
    sliding_attention: nested rope_parameters; or rope_theta and rope_scaling for the full layers,
    rope_local_base_freq for the others."""
    old, new = c.get("rope_scaling") or {}, c.get("rope_parameters") or {}
    theta, local = c.get("rope_theta"), c.get("rope_local_base_freq")
    if old and new:
        raise ExportError(f"{c.where} has both rope_scaling and rope_parameters; keep one")
    if not isinstance(old, dict) or not isinstance(new, dict) or not set(new) <= {FULL, SLIDING}:
        raise ExportError(
            f"{c.where}: rope_parameters is {new or old!r}, expected one object for each of "
            f"{FULL}, {SLIDING}"
        )
    ropes = {}
    for kind, outer, default in ((FULL, theta, shape.theta), (SLIDING, local, sliding_theta)):
        values = {
            "rope_theta": default if outer is None else outer,
            "original_max_position_embeddings": shape.context,
        }
        values.update(new.get(kind) or (old if kind == FULL else {}))
        where = f"{c.where}: " + (
            f"rope_parameters.{kind}" if new else "rope_scaling" if kind == FULL else "rope_local"
        )
        ropes[kind] = _rope(Config(values, where), shape, nested=True)
    return ropes


def rope_frequencies(c: Config, head_dim: int, context: int) -> np.ndarray:
    """The frequencies of a model whose heads are rotated whole, by one table."""
    return rope_set(c, Shape(head_dim, context)).inv_freq


def _rope(p: Config, shape: Shape, nested: bool = False) -> Rope:
    """The rope of one object of parameters."""
    kinds: dict[str, Callable[[Config, Shape, float, int], Rope]] = {
        "default": _unscaled,
        "linear": lambda p, shape, theta, n_rot: Rope(
            _plain(theta, n_rot) / f32(p.number("factor"))
        ),
        "mrope": _unscaled,  # one position for each axis of a picture, of a text the same
        "dynamic": _dynamic,
        "llama3": _llama3,
        "yarn": _yarn,
        "longrope": _longrope,
        "su": _longrope,  # its first name
        "proportional": _proportional,
    }
    kinds = {kind: make for kind, make in kinds.items() if kind in shape.kinds or not shape.kinds}
    p.get("type")
    # The former for the types that do not read it.
    p.ignore("original_max_position_embeddings", *MROPE, *shape.known)
    make = p.choice("rope_type" if "rope_type" in p.values else "type", kinds, "default")
    theta = p.number("rope_theta", shape.theta)
    if shape.partial is None and make is not _proportional:
        p.require(partial_rotary_factor=1)
    share = p.number("partial_rotary_factor", shape.partial or 1.0)
    if share > 1:
        raise ExportError(f"{p.where}: partial_rotary_factor is {share}, expected 1 at most")
    n_rot = shape.head_dim if make is _proportional else int(shape.head_dim * share)
    if n_rot % 2 or n_rot < 2:
        raise ExportError(
            f"head_dim is {shape.head_dim}, of which {n_rot} elements are rotated; rope needs "
            "an even number"
        )
    if nested:
        p.require(truncate=True)  # the reference looks for it elsewhere
    rope = make(p, shape, theta, n_rot)
    p.finish()
    return rope


def _powers(theta: float, n_rot: int, of: int | None = None) -> np.ndarray:
    """theta^(2i / of) of the first n_rot / 2 pairs; `of` is n_rot unless the share of a head that
    is rotated is thinned out."""
    exponent = np.arange(0, n_rot, 2).astype(f32) / f32(of or n_rot)
    return (theta ** exponent.astype(np.float64)).astype(f32)  # the power is rounded once


def _plain(theta: float, n_rot: int) -> np.ndarray:
    return f32(1) / _powers(theta, n_rot)


def _unscaled(p: Config, shape: Shape, theta: float, n_rot: int) -> Rope:
    return Rope(_plain(theta, n_rot))


def _dynamic(p: Config, shape: Shape, theta: float, n_rot: int) -> Rope:
    """Dynamic NTK scaling changes texts longer than max_position_embeddings alone."""
    p.number("factor")
    p.remarks.append(
        f"{p.where}: dynamic changes nothing in texts of at most {shape.context} tokens; in longer "
        "ones (-c) the model would differ from transformers"
    )
    return _unscaled(p, shape, theta, n_rot)


def _llama3(p: Config, shape: Shape, theta: float, n_rot: int) -> Rope:
    """Llama 3.1's scaling: long waves are stretched by a factor, short ones kept, those between
    interpolated."""
    old_context = p.int("original_max_position_embeddings")
    factor, low, high = (
        p.number("factor"),
        p.number("low_freq_factor"),
        p.number("high_freq_factor"),
    )
    if not low < high:
        raise ExportError(
            f"{p.where}: low_freq_factor is {low}, expected less than high_freq_factor ({high})"
        )
    inv_freq = _plain(theta, n_rot)
    # A number over a tensor is its reciprocal times the number in torch.
    wavelength = f32(1) / inv_freq * f32(2 * np.pi)
    scaled = np.where(wavelength > f32(old_context / low), inv_freq / f32(factor), inv_freq)
    smooth = (f32(1) / wavelength * f32(old_context) - f32(low)) / f32(high - low)
    between = (f32(1) - smooth) * scaled / f32(factor) + smooth * scaled
    is_between = (wavelength >= f32(old_context / high)) & (wavelength <= f32(old_context / low))
    return Rope(np.where(is_between, between, scaled).astype(f32))


def _yarn(p: Config, shape: Shape, theta: float, n_rot: int) -> Rope:
    """YaRN (Peng et al. 2023): pairs that rotate often are kept, pairs that rotate seldom are
    stretched, a ramp between."""
    original = p.int("original_max_position_embeddings")
    factor = shape.context / original if p.get("factor") is None else p.number("factor")

    def pair_that_rotates(times: float) -> float:
        return n_rot * math.log(original / (times * 2 * math.pi)) / (2 * math.log(theta))

    low = pair_that_rotates(p.get("beta_fast") and p.number("beta_fast") or 32)
    high = pair_that_rotates(p.get("beta_slow") and p.number("beta_slow") or 1)
    if p.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, n_rot - 1)
    if low == high:
        high += 0.001
    kept = f32(1) - np.clip(
        (np.arange(n_rot // 2).astype(f32) - f32(low)) / f32(high - low), 0, 1
    ).astype(f32)
    powers = _powers(theta, n_rot)
    inv_freq = f32(1) / (f32(factor) * powers) * (f32(1) - kept) + f32(1) / powers * kept
    return Rope(inv_freq.astype(f32), _yarn_multiplier(p, factor))


def _yarn_multiplier(p: Config, factor: float) -> float:
    def grown(m: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * m * math.log(factor) + 1.0

    given, m, m_all = p.get("attention_factor"), p.get("mscale"), p.get("mscale_all_dim")
    if given is not None:
        return p.number("attention_factor")
    return (
        grown(p.number("mscale")) / grown(p.number("mscale_all_dim")) if m and m_all else grown(1.0)
    )


def _longrope(p: Config, shape: Shape, theta: float, n_rot: int) -> Rope:
    """LongRoPE (Ding et al. 2024): every pair is stretched by a number of its own, another one in
    long texts."""
    original = p.int("original_max_position_embeddings")
    factor = shape.context / original if p.get("factor") is None else p.number("factor")
    if p.get("attention_factor") is not None:
        multiplier = p.number("attention_factor")
    else:
        multiplier = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))

    def stretched(key: str) -> np.ndarray:
        stretch = p.get(key)
        if (
            not isinstance(stretch, list)
            or len(stretch) != n_rot // 2
            or not all(isinstance(x, (int, float)) and x > 0 for x in stretch)
        ):
            raise ExportError(
                f"{p.where}: {key} is no list of {n_rot // 2} positive numbers, one a pair"
            )
        return f32(1) / (np.array(stretch, f32) * _powers(theta, n_rot))

    return Rope(stretched("short_factor"), multiplier, stretched("long_factor"), original)


def _proportional(p: Config, shape: Shape, theta: float, n_rot: int) -> Rope:
    """The first share of a head's pairs rotate as they would if all did; the rest stand still."""
    rotated = int(p.number("partial_rotary_factor", 1.0) * n_rot // 2)
    inv_freq = np.zeros(n_rot // 2, f32)
    inv_freq[:rotated] = f32(1) / _powers(theta, 2 * rotated, n_rot)
    return Rope(inv_freq / f32(p.number("factor", 1.0)))


def layer_kinds(c: Config, n_layers: int, sliding: Callable[[int], bool]) -> list[str]:
    """full_attention or sliding_attention for each layer: layer_types, or sliding where `sliding`
    says so."""
    types = c.get("layer_types")
    if types is None:
        types = [SLIDING if sliding(i) else FULL for i in range(n_layers)]
    if not isinstance(types, list) or len(types) != n_layers:
        raise ExportError(
            f"{c.where}: layer_types has not one entry for each of the {n_layers} layers"
        )
    for t in types:
        if t not in (FULL, SLIDING):
            raise ExportError(
                f"{c.where}: layer_types holds {t!r}, which is not supported; supported: {FULL}, "
                f"{SLIDING}"
            )
    return types


def windows(c: Config, types: list[str], size) -> list[int]:
    """A window a layer: `size` where it is sliding."""
    if SLIDING not in types:
        return [0] * len(types)
    size = Config({"sliding_window": size}, c.where).int("sliding_window")
    return [size if t == SLIDING else 0 for t in types]
