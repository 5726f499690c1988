"""Kinds of attention: over a latent, with gates, with keys of another layer, with biases by
distance."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..tensor import Tensor, expect, modules, pick, stack, stack_rows
from .part import Part


@dataclass
class Latent(Part):
    """Multi-head latent attention: `heads` with `nope` and `rope` numbers in a query and `value` in
    a value, over a latent of `rank`. `kv_b_proj`, the keys and values of each head from the latent,
    becomes the modules `k_up` (transposed: it goes to the query instead) and `v_up`; interleaved
    rope becomes half-split."""

    heads: int = 0
    rank: int = 0
    nope: int = 0
    rope: int = 0
    value: int = 0
    q_rank: int = 0  # of the query's own latent; 0: it has none
    interleaved: bool = True
    eps: float = 1e-6  # of the norms inside, whatever config.json says of the others

    @property
    def mixes(self):
        return True

    def metadata(self):
        return {
            "layer.latent": self.rank,
            "layer.n_nope": self.nope,
            "layer.n_value": self.value,
            "model.latent_eps": self.eps,
        }

    def shapes(self, n_embd):
        down = (
            {"attn_q_down": (self.q_rank, n_embd), "attn_q_down_norm": (self.q_rank,)}
            if self.q_rank
            else {}
        )
        return {
            **down,
            "attn_q": (self.heads * (self.nope + self.rope), self.q_rank or n_embd),
            "attn_latent_norm": (self.rank,),
            "attn_k": (self.rank + self.rope, n_embd),
            "attn_k_up": (stack_rows(self.heads, self.rank), self.nope),
            "attn_v_up": (stack_rows(self.heads, self.value), self.rank),
            "attn_o": (n_embd, self.heads * self.value),
        }

    def arrange(self, left):
        for module in modules(left, "kv_b_proj.weight"):
            both = left.pop(module + ".kv_b_proj.weight")
            heads = self.by_head(expect(both, self.heads * (self.nope + self.value), self.rank))
            left[module + ".k_up.weight"] = stack(
                [h.map(self.key_part, (self.rank, self.nope)) for h in heads]
            )
            left[module + ".v_up.weight"] = stack(
                [h.slice(self.nope, self.nope + self.value) for h in heads]
            )
        if not self.interleaved:
            return
        query = self.nope + self.rope
        order = np.concatenate([h * query + self.half_split(self.nope) for h in range(self.heads)])
        for module, rows, order in (
            ("q_proj", self.heads * query, order),
            ("q_b_proj", self.heads * query, order),
            ("kv_a_proj_with_mqa", self.rank + self.rope, self.half_split(self.rank)),
        ):
            for kind in ("weight", "bias"):
                for base in modules(left, f"{module}.{kind}"):
                    name = f"{base}.{module}.{kind}"
                    left[name] = pick(expect(left[name], rows, *left[name].shape[1:]), order)

    def by_head(self, tensor: Tensor) -> list[Tensor]:
        rows = self.nope + self.value
        return [tensor.slice(h * rows, (h + 1) * rows) for h in range(self.heads)]

    def key_part(self, head: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(head[: self.nope].T)

    def half_split(self, before: int) -> np.ndarray:
        """Rows of which the last `rope` are rotated: the pairs (2i, 2i + 1) become
        (i, i + rope / 2)."""
        rotated = before + np.arange(self.rope)
        return np.concatenate([np.arange(before), rotated[0::2], rotated[1::2]])


@dataclass
class SharedKeys(Part):
    """Layers that read the keys and values of an earlier layer, `kv_layer` (-1 in the others). A
    checkpoint may hold unused weights for them. Layers of `key_is_value` have one matrix for
    both."""

    kv_layer: list[int]
    key_is_value: list[bool]
    lacks = ("attn_k", "attn_v", "attn_k_norm", "attn_v_norm")

    def metadata(self):
        return {"layer.kv_source": self.kv_layer} if any(self.layers) else {}

    def arrange(self, left):
        for i, shared in enumerate(self.layers):
            module = f"model.layers.{i}.self_attn."
            if shared:
                for name in (
                    "k_proj.weight",
                    "v_proj.weight",
                    "k_proj.bias",
                    "v_proj.bias",
                    "k_norm.weight",
                ):
                    left.pop(module + name, None)
            elif self.key_is_value[i] and module + "k_proj.weight" in left:
                left[module + "v_proj.weight"] = left[module + "k_proj.weight"]


@dataclass
class OutGate(Part):
    """A sigmoid multiplies the output of attention. The checkpoint has its matrix head by head,
    each after the query's."""

    heads: int = 0
    head_dim: int = 0

    def shapes(self, n_embd):
        return {"attn_gate": (self.heads * self.head_dim, n_embd)}

    def arrange(self, left):
        for kind in ("weight", "bias"):
            for module in modules(left, f"q_proj.{kind}"):
                both = left.pop(f"{module}.q_proj.{kind}")
                rows = np.arange(
                    expect(both, 2 * self.heads * self.head_dim, *both.shape[1:]).shape[0]
                )
                rows = rows.reshape(self.heads, 2, self.head_dim)
                left[f"{module}.q_proj.{kind}"] = pick(both, rows[:, 0].reshape(-1))
                left[f"{module}.gate_proj.{kind}"] = pick(both, rows[:, 1].reshape(-1))


@dataclass
class Gate(Part):
    """Sigmoids multiply the output of attention, one for each head, or for each number; the
    checkpoint has their matrix apart."""

    rows: int = 0

    def shapes(self, n_embd):
        return {"attn_gate": (self.rows, n_embd)}


@dataclass
class RelativeBias(Part):
    """A table of `buckets` of distances, whose biases all layers add to the scores of `heads`; it
    becomes a row of every distance up to `reach`, beyond which the last bucket goes on."""

    heads: int = 0
    buckets: int = 32
    reach: int = 128

    def shapes(self, n_embd):
        return {"attn_relative": (self.heads * (2 * self.reach + 1),)}

    def arrange(self, left):
        for module in modules(left, "relative_attention_bias.weight"):
            table = left.pop(module + ".relative_attention_bias.weight")
            rows = self.rows(table)
            for i in range(len(self.layers)):
                left[f"{module}.relative.{i}.table.weight"] = rows

    def rows(self, table: Tensor, causal: bool = False) -> Tensor:
        """For each head, the biases of all distances from -reach to reach."""
        found = self.bucket_of(np.arange(-self.reach, self.reach + 1), causal)
        return expect(table, self.buckets, self.heads).map(
            lambda w: np.ascontiguousarray(w[found].T).reshape(-1), self.shapes(0).popitem()[1]
        )

    def bucket_of(self, distance: np.ndarray, causal: bool = False) -> np.ndarray:
        """The bucket of key - query. Each side has half the buckets, or the earlier side all; half
        of those hold one distance each, the others grow by the logarithm."""
        half = self.buckets if causal else self.buckets // 2
        exact, n = half // 2, np.maximum(-distance, 0) if causal else np.abs(distance)
        ratio = np.maximum(n, 1).astype(np.float32) / np.float32(exact)
        log = np.log(ratio) / np.float32(math.log(self.reach / exact)) * np.float32(half - exact)
        large = np.minimum(exact + log.astype(np.int64), half - 1)
        return half * (distance > 0) * (not causal) + np.where(n < exact, n, large)
