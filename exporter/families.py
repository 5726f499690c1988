"""Model families: a row says how a family's config.json becomes knobs, and where its tensors are.
To add a family that needs no new knob: a function from Config to Knobs and a table of names, in
llamas.py or gpts.py, and a row here. Class defaults are those of transformers 5.23.0.

A table of names maps canonical names of docs/format.md to modules of the checkpoint, which hold
`.weight` and perhaps `.bias`; N stands for the layer, * for the head, | stands between names of
which one is there, and None is for a weight of ones that no file holds. `attn_qkv` is a matrix of
q, k and v, `ffn_gate_up` one of gate and up, one below the other."""

from __future__ import annotations

from typing import Callable

from . import encoder_decoders, encoders, gpts, hybrids, llamas, mixtures
from .assemble import assemble, hollow
from .common import LLAMA, POST_NORM, QK_NORM, in_layer, without
from .config import Config
from .knobs import Knobs, values_of
from .lowbits import dequantize
from .tensor import ExportError, Tensor

PLAIN_FFN = without(LLAMA, "ffn_gate")
FUSED_FFN = {
    **without(PLAIN_FFN, "ffn_up"),
    **in_layer("model.layers.N.mlp", ffn_gate_up="gate_up_proj", ffn_down="down_proj"),
}

FAMILIES: dict[str, tuple[Callable[[Config], Knobs], dict[str, str | None]]] = {
    "apertus": (
        llamas.apertus,
        {
            **PLAIN_FFN,
            **in_layer(
                "model.layers.N",
                attn_norm="attention_layernorm",
                ffn_norm="feedforward_layernorm",
                ffn_act="mlp.act_fn",
            ),
            **QK_NORM,
        },
    ),
    "arcee": (llamas.arcee, PLAIN_FFN),
    "bitnet": (
        llamas.bitnet,
        {
            **LLAMA,
            **in_layer(
                "model.layers.N",
                attn_sub_norm="self_attn.attn_sub_norm",
                ffn_sub_norm="mlp.ffn_sub_norm",
            ),
        },
    ),
    "bloom": (gpts.bloom, gpts.BLOOM),
    "cohere": (gpts.cohere, gpts.COHERE),
    "cohere2": (gpts.cohere2, gpts.COHERE2),
    "ernie4_5": (llamas.ernie4_5, LLAMA),
    "exaone4": (llamas.exaone4, POST_NORM),
    "falcon": (gpts.falcon, gpts.FALCON),
    "gemma": (llamas.gemma, LLAMA),
    "gemma2": (llamas.gemma2, llamas.GEMMA2),
    "gemma3_text": (llamas.gemma3, {**llamas.GEMMA2, **QK_NORM}),
    "gemma4_text": (llamas.gemma4, llamas.GEMMA4),
    "gemma4_unified_text": (llamas.gemma4_unified, llamas.GEMMA4),
    "glm": (llamas.glm, FUSED_FFN),
    "glm4": (
        llamas.glm,
        {
            **FUSED_FFN,
            **in_layer(
                "model.layers.N",
                attn_post_norm="post_self_attn_layernorm",
                ffn_post_norm="post_mlp_layernorm",
            ),
        },
    ),
    "gpt2": (gpts.gpt2, gpts.GPT2),
    "gpt_bigcode": (gpts.gpt_bigcode, gpts.GPT2),
    "gpt_neo": (gpts.gpt_neo, gpts.GPT_NEO),
    "gpt_neox": (gpts.gpt_neox, gpts.GPT_NEOX),
    "gptj": (gpts.gptj, gpts.GPTJ),
    "granite": (llamas.granite, LLAMA),
    "granite_swa": (
        llamas.granite_swa,
        {**LLAMA, **in_layer("model.layers.N", attn_sinks="self_attn.sinks")},
    ),
    "helium": (llamas.helium, LLAMA),
    "hunyuan_v1_dense": (
        llamas.hunyuan,
        {
            **LLAMA,
            **in_layer(
                "model.layers.N.self_attn",
                attn_q_norm="query_layernorm",
                attn_k_norm="key_layernorm",
            ),
        },
    ),
    "jais2": (gpts.jais2, PLAIN_FFN),
    "llama": (llamas.llama, LLAMA),
    "ministral": (llamas.mistral, LLAMA),
    "ministral3": (llamas.ministral3, LLAMA),
    "mistral": (llamas.mistral, LLAMA),
    "mpt": (gpts.mpt, gpts.MPT),
    "nemotron": (gpts.nemotron, PLAIN_FFN),
    "olmo": (
        llamas.olmo,
        {**LLAMA, **in_layer("model.layers.N", attn_norm=None, ffn_norm=None), "norm": None},
    ),
    "olmo2": (llamas.olmo2, POST_NORM),
    "olmo3": (llamas.olmo3, POST_NORM),
    "opt": (gpts.opt, gpts.OPT),
    "phi": (gpts.phi, gpts.PHI),
    "phi3": (
        llamas.phi3,
        {
            **without(FUSED_FFN, "attn_q", "attn_k", "attn_v"),
            **in_layer("model.layers.N.self_attn", attn_qkv="qkv_proj"),
        },
    ),
    "qwen2": (llamas.qwen2, LLAMA),
    "qwen3": (llamas.qwen3, {**LLAMA, **QK_NORM}),
    "seed_oss": (llamas.seed_oss, LLAMA),
    "smollm3": (llamas.smollm3, LLAMA),
    "stablelm": (gpts.stablelm, gpts.STABLELM),
    "starcoder2": (
        gpts.starcoder2,
        {**PLAIN_FFN, **in_layer("model.layers.N.mlp", ffn_up="c_fc", ffn_down="c_proj")},
    ),
    "vaultgemma": (
        llamas.gemma2,
        {**LLAMA, **in_layer("model.layers.N", ffn_norm="pre_feedforward_layernorm")},
    ),
    **mixtures.FAMILIES,
    **hybrids.FAMILIES,
    **encoders.FAMILIES,
    **encoder_decoders.FAMILIES,
}

REFUSED = {  # what is asked for often enough to deserve a reason
    "deepseek_v32": "its attention chooses keys by an indexer",
    "deepseek_v4": "its cache is compressed along the text, and its residual stream is several",
    "gemma3n": "it has four residual streams that predict each other (AltUp)",
    "gemma3n_text": "it has four residual streams that predict each other (AltUp)",
    "kimi_linear": "its delta rule decays by channel",
    "mamba": "it has Mamba layers, a kind of mixer that the engine lacks",
    "qwen4_exp": "its attention is sparse by an indexer, and it has four residual streams",
    "qwen4_exp_text": "its attention is sparse by an indexer, and it has four residual streams",
}

# ---- text models inside of others ----------------------------------------------------------------

# The type of the text model, and whether its head is the embedding unless the config says it.
MULTIMODAL = {
    "gemma3": ("gemma3_text", True),
    "gemma4": ("gemma4_text", True),
    "gemma4_unified": ("gemma4_unified_text", True),
    "mistral3": ("mistral", True),
    "qwen3_5": ("qwen3_5_text", False),
    "qwen3_5_moe": ("qwen3_5_moe_text", False),
}
# Keys beside text_config that are about pictures and sounds.
OTHER_KEYS = """
    audio_config audio_token_id boa_token_id boi_token_id boi_token_index eoa_token_id
    eoa_token_index eoi_token_id eoi_token_index image_token_id image_token_index
    mm_tokens_per_image multimodal_projector_bias projector_hidden_act spatial_merge_size
    video_token_id vision_config vision_end_token_id vision_feature_layer
    vision_soft_tokens_per_image vision_start_token_id
    """.split()
PREFIXES = {
    "model.language_model.": "model.",
    "language_model.model.": "model.",
    "language_model.lm_head": "lm_head",
}
OTHER_TOWERS = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.",
                "model.multi_modal_projector.", "model.visual.", "model.audio_tower.",
                "model.embed_vision.", "model.embed_audio.")  # fmt: skip


def text_model(config: dict, tensors: dict[str, Tensor]) -> tuple[dict, dict[str, Tensor]]:
    """The config and the tensors of the text model in a multimodal checkpoint; those of any other
    as they are."""
    if config.get("model_type") not in list(MULTIMODAL):
        return config, dict(tensors)
    model_type, tied = MULTIMODAL[config["model_type"]]
    outer = Config(config)
    text = outer.get("text_config")
    if not isinstance(text, dict):
        raise ExportError(
            f"config.json: model_type is {config['model_type']!r}, but there is no text_config"
        )
    text = {"model_type": model_type, **text}
    # The classes with pictures tie the head by the outer config, those of text alone by the inner.
    tied = outer.flag("tie_word_embeddings", tied) or text.get("tie_word_embeddings") or False
    quantization = outer.get("quantization_config") or text.get("quantization_config")
    text |= {"tie_word_embeddings": tied, "quantization_config": quantization}
    outer.require(is_encoder_decoder=False)
    outer.ignore(*OTHER_KEYS)
    outer.finish()
    found = {}
    for name, tensor in tensors.items():
        if name.startswith(OTHER_TOWERS):
            continue
        old = next((prefix for prefix in PREFIXES if name.startswith(prefix)), "")
        found[PREFIXES.get(old, "") + name[len(old) :]] = tensor
    return text, found


def canonical(
    config: dict, tensors: dict[str, Tensor] | None
) -> tuple[str, Knobs, dict[str, Tensor], list[str]]:
    """A Hugging Face config and its tensors -> the family, its knobs, the canonical tensors in the
    order of the file, and remarks for the user. Nothing is read but two embeddings that may be one.
    tensors None: the canonical ones have no numbers. Errors: ExportError."""
    config, left = text_model(config, tensors or {})
    c = Config(config)
    family = c.get("model_type")
    if isinstance(family, str) and family in REFUSED:
        raise ExportError(
            f"config.json: model_type is {family!r}, which is not supported: {REFUSED[family]}"
        )
    if not isinstance(family, str) or family not in FAMILIES:
        raise ExportError(
            f"config.json: model_type is {family!r}, which is not supported; supported: "
            f"{', '.join(FAMILIES)}"
        )
    c.require(is_encoder_decoder=family in encoder_decoders.FAMILIES)
    dequantize(c, left)
    if tensors is None and family in encoders.FAMILIES:
        raise ExportError(
            f"--shape-only: {family} is an encoder, which keeps no KV cache to plan for, and whose "
            "head only the checkpoint tells; export it with its weights"
        )
    knobs_of, names = FAMILIES[family]
    knobs = knobs_of(c)
    c.finish()
    if any(knobs.n_heads % n for n in values_of(knobs.n_kv_heads)):
        raise ExportError(
            f"config.json: {knobs.n_heads} query heads are no multiple of {knobs.n_kv_heads} KV "
            "heads"
        )
    names = knobs.names or names
    found, remarks = (hollow(knobs, names), []) if tensors is None else assemble(knobs, names, left)
    return family, knobs, found, remarks
