"""The models of the laboratory: the variants of attention, their shapes, and what they weigh, in
closed form, so that nothing here needs torch.

All have as many parameters as MHA, within 1 %: what a variant saves in its keys and values goes to
its feed-forward layers.
"""

from __future__ import annotations

from dataclasses import dataclass

LAYERS, WIDTH, HEADS, HEAD_DIM, ROPE_DIM = 2, 64, 8, 16, 8
D_FF = 128  # of MHA
THETA = 100.0  # of rope: its slowest pair turns by 0.02 a token, enough for 64 tokens
CONTEXT = 16_384  # what a checkpoint says; documents are far shorter, --bench is not


@dataclass(frozen=True)
class Variant:
    """`kv_heads` for MHA, GQA and MQA; `rank` of the latent for MLA, 0 for the others."""

    name: str
    kv_heads: int = 0
    rank: int = 0

    @property
    def cached(self) -> int:
        """Numbers that a layer keeps for a token."""
        return self.rank + ROPE_DIM if self.rank else 2 * self.kv_heads * HEAD_DIM

    @property
    def attention(self) -> int:
        """Parameters of a layer's attention. MLA's query has a part with rope beside the part
        without; its keys and values come from the latent, which has a norm."""
        output = HEADS * HEAD_DIM * WIDTH
        if not self.rank:
            return 2 * output + 2 * self.kv_heads * HEAD_DIM * WIDTH
        query = HEADS * (HEAD_DIM + ROPE_DIM) * WIDTH
        down, up = (self.rank + ROPE_DIM) * WIDTH, self.rank * HEADS * 2 * HEAD_DIM
        return query + down + self.rank + up + output

    @property
    def d_ff(self) -> int:
        """The width of the feed-forward layers with which the total is as near MHA's as can be."""
        return D_FF + round((MHA.attention - self.attention) / (3 * WIDTH))

    def parameters(self, vocab_size: int, d_ff: int | None = None) -> int:
        """All of them; the output is the embedding, used again."""
        layer = self.attention + 3 * WIDTH * (d_ff or self.d_ff) + 2 * WIDTH
        return vocab_size * WIDTH + LAYERS * layer + WIDTH


MHA = Variant("MHA", kv_heads=8)
HEADED = [MHA, Variant("GQA-4", kv_heads=4), Variant("GQA-2", kv_heads=2), Variant("MQA", 1)]
RANKS = (8, 16, 23, 56)
LATENT = [Variant(f"MLA-{rank}", rank=rank) for rank in RANKS]
VARIANTS = {variant.name: variant for variant in HEADED + LATENT}
POOLED = HEADED[1:]  # what a trained MHA is pooled to


def largest_rank(share: float) -> int:
    """The largest rank with which MLA's cache is smaller than `share` of MHA's."""
    rank = 0
    while rank + 1 + ROPE_DIM < share * MHA.cached:
        rank += 1
    return rank


def shape(vocab_size: int, d_ff: int) -> dict:
    """What Llama's and Youtu's configs have in common."""
    return dict(
        vocab_size=vocab_size,
        hidden_size=WIDTH,
        intermediate_size=d_ff,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        initializer_range=WIDTH**-0.5,
        bos_token_id=0,
        eos_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
    )


def latent(rank: int) -> dict:
    """What Youtu's config has besides: MLA without experts and without a latent for the query."""
    return dict(
        num_key_value_heads=HEADS,
        kv_lora_rank=rank,
        q_lora_rank=None,
        qk_rope_head_dim=ROPE_DIM,
        qk_nope_head_dim=HEAD_DIM,
        v_head_dim=HEAD_DIM,
        embedding_initializer_range=WIDTH**-0.5,
    )
