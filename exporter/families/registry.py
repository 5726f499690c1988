"""The table of families: by model_type, the function that makes knobs of a config.json, and the
table of names that says where the tensors are. To add a family that needs no new knob: a file of
its name with such a function and such a table, and a row here. Class defaults are
transformers 5.23.0's.

A table of names maps canonical names of docs/format.md to modules of the checkpoint, which hold
`.weight` and perhaps `.bias`; N stands for the layer, * for the head, | stands between names of
which one is there, and None is for a weight of ones that no file holds. `attn_qkv` is a matrix of
q, k and v, `ffn_gate_up` one of gate and up, one below the other."""

from __future__ import annotations

from typing import Callable, Optional, Sequence

from ..adapters.adapter import Adapter
from ..adapters.merge import merge_checkpoint, widen
from ..assemble import assemble, hollow
from ..config import Config
from ..knobs import Knobs, of_layer
from ..packed.methods import dequantize
from ..tensor import ExportError, Tensor
from . import (
    albert,
    apertus,
    arcee,
    aria,
    bamba,
    bart,
    bert,
    bitnet,
    bloom,
    cohere,
    dbrx,
    deberta,
    deepseek,
    distilbert,
    dots,
    electra,
    ernie,
    eurobert,
    exaone,
    falcon,
    falcon_h1,
    flint,
    gemma,
    gemma4,
    glm,
    gpt2,
    gpt_neo,
    gpt_neox,
    gpt_oss,
    gptj,
    granite,
    gte,
    helium,
    hunyuan,
    jais,
    kimi,
    lfm2,
    llama,
    llama4,
    m2m_100,
    mamba,
    mamba2,
    marian,
    mellum,
    mimo,
    minimax,
    mistral,
    mixtral,
    modernbert,
    mpnet,
    mpt,
    nanochat,
    nemotron,
    nomic_bert,
    olmo,
    opt,
    pegasus,
    persimmon,
    phi,
    qwen,
    qwen3_next,
    recurrent_gemma,
    roberta,
    roformer,
    seed_oss,
    smollm3,
    solar,
    stablelm,
    starcoder,
    t5,
    xlm,
    youtu,
    zamba2,
)
from .classes import add_classes
from .common import FUSED_FFN, LLAMA, PLAIN_FFN, POST_NORM
from .encoder import PAIR_HEADS
from .encoder_decoder import alone
from .guesses import take_guesses
from .multimodal import ALONE, LEFT_OUT, text_model
from .refused import REFUSED

Row = tuple[Callable[[Config], Knobs], dict[str, Optional[str]]]

DECODERS: dict[str, Row] = {
    "apertus": (apertus.apertus, apertus.APERTUS),
    "arcee": (arcee.arcee, PLAIN_FFN),
    "bert-generation": (bert.bert_generation, bert.BERT_GENERATION),
    "biogpt": (opt.biogpt, opt.BIOGPT),
    "bitnet": (bitnet.bitnet, bitnet.BITNET),
    "bloom": (bloom.bloom, bloom.BLOOM),
    "codegen": (gptj.codegen, gptj.GPTJ),
    "cohere": (cohere.cohere, cohere.COHERE),
    "cohere2": (cohere.cohere2, cohere.COHERE2),
    "ctrl": (gpt2.ctrl, gpt2.CTRL),
    "cwm": (llama.cwm, LLAMA),
    "ernie4_5": (ernie.ernie4_5, LLAMA),
    "exaone4": (exaone.exaone4, POST_NORM),
    "falcon": (falcon.falcon, falcon.FALCON),
    "gemma": (gemma.gemma, LLAMA),
    "gemma2": (gemma.gemma2, gemma.GEMMA2),
    "gemma3_text": (gemma.gemma3, gemma.GEMMA3),
    "gemma4_text": (gemma4.gemma4, gemma4.GEMMA4),
    "gemma4_unified_text": (gemma4.gemma4_unified, gemma4.GEMMA4),
    "glm": (glm.glm, FUSED_FFN),
    "glm4": (glm.glm, glm.GLM4),
    "gpt-sw3": (gpt2.gpt2, gpt2.GPT2),
    "gpt2": (gpt2.gpt2, gpt2.GPT2),
    "gpt_bigcode": (starcoder.gpt_bigcode, gpt2.GPT2),
    "gpt_neo": (gpt_neo.gpt_neo, gpt_neo.GPT_NEO),
    "gpt_neox": (gpt_neox.gpt_neox, gpt_neox.GPT_NEOX),
    "gpt_neox_japanese": (gpt_neox.gpt_neox_japanese, gpt_neox.GPT_NEOX_JAPANESE),
    "gptj": (gptj.gptj, gptj.GPTJ),
    "granite": (granite.granite, LLAMA),
    "granite_swa": (granite.granite_swa, granite.GRANITE_SWA),
    "helium": (helium.helium, LLAMA),
    "hunyuan_v1_dense": (hunyuan.hunyuan, hunyuan.HUNYUAN),
    "hyperclovax": (granite.hyperclovax, granite.HYPERCLOVAX),
    "internlm3": (llama.internlm3, LLAMA),
    "iquestcoder": (llama.iquestcoder, LLAMA),
    "jais2": (jais.jais2, PLAIN_FFN),
    "llama": (llama.llama, LLAMA),
    "mimo": (mimo.mimo, LLAMA),
    "ministral": (mistral.mistral, LLAMA),
    "ministral3": (mistral.ministral3, LLAMA),
    "mistral": (mistral.mistral, LLAMA),
    "modernbert-decoder": (modernbert.modernbert_decoder, modernbert.MODERNBERT_DECODER),
    "mpt": (mpt.mpt, mpt.MPT),
    "nanochat": (nanochat.nanochat, nanochat.NANOCHAT),
    "nemotron": (nemotron.nemotron, PLAIN_FFN),
    "olmo": (olmo.olmo, olmo.OLMO),
    "olmo2": (olmo.olmo2, POST_NORM),
    "olmo3": (olmo.olmo3, POST_NORM),
    "openai-gpt": (gpt2.openai_gpt, gpt2.OPENAI_GPT),
    "opt": (opt.opt, opt.OPT),
    "persimmon": (persimmon.persimmon, persimmon.PERSIMMON),
    "phi": (phi.phi, phi.PHI),
    "phi3": (phi.phi3, phi.PHI3),
    "qwen2": (qwen.qwen2, LLAMA),
    "qwen3": (qwen.qwen3, qwen.QWEN3),
    "seed_oss": (seed_oss.seed_oss, LLAMA),
    "smollm3": (smollm3.smollm3, LLAMA),
    "stablelm": (stablelm.stablelm, stablelm.STABLELM),
    "starcoder2": (starcoder.starcoder2, starcoder.STARCODER2),
    "vaultgemma": (gemma.gemma2, gemma.VAULTGEMMA),
    "xglm": (opt.xglm, opt.XGLM),
    # With experts, latent attention, short convolution or gated DeltaNet.
    "afmoe": (arcee.afmoe, arcee.AFMOE),
    "aria_text": (aria.aria_text, aria.ARIA_TEXT),
    "axk1": (deepseek.axk1, deepseek.AXK1),
    "cohere2_moe": (cohere.cohere2_moe, cohere.COHERE2_MOE),
    "dbrx": (dbrx.dbrx, dbrx.DBRX),
    "deepseek_v2": (deepseek.deepseek_v2, deepseek.DEEPSEEK),
    "deepseek_v3": (deepseek.deepseek_v3, deepseek.DEEPSEEK),
    "dots1": (dots.dots1, dots.DOTS),
    "ernie4_5_moe": (ernie.ernie4_5_moe, ernie.ERNIE4_5_MOE),
    "exaone_moe": (exaone.exaone_moe, exaone.EXAONE_MOE),
    "flex_olmo": (olmo.flex_olmo, olmo.FLEX_OLMO),
    "flint": (flint.flint, flint.FLINT),
    "glm4_moe": (glm.glm4_moe, dots.DOTS),
    "glm4_moe_lite": (deepseek.glm4_moe_lite, deepseek.DEEPSEEK),
    "gpt_oss": (gpt_oss.gpt_oss, gpt_oss.GPT_OSS),
    "granitemoe": (granite.granitemoe, granite.GRANITEMOE),
    "granitemoe_swa": (granite.granitemoe_swa, granite.GRANITEMOE_SWA),
    "granitemoeshared": (granite.granitemoeshared, granite.GRANITE_SHARED),
    "hunyuan_v1_moe": (hunyuan.hunyuan_moe, hunyuan.HUNYUAN_MOE),
    "hy_v3": (hunyuan.hy_v3, hunyuan.HY_V3),
    "kimi_linear": (kimi.kimi_linear, kimi.KIMI_LINEAR),
    "lfm2": (lfm2.lfm2, lfm2.LFM2),
    "lfm2_moe": (lfm2.lfm2_moe, lfm2.LFM2_MOE),
    "lfm3": (lfm2.lfm3, lfm2.LFM3),
    "llama4_text": (llama4.llama4_text, llama4.LLAMA4),
    "mellum": (mellum.mellum, mellum.MELLUM),
    "minicpm3": (deepseek.minicpm3, deepseek.DEEPSEEK),
    "minimax_m2": (minimax.minimax_m2, minimax.MINIMAX_M2),
    "mixtral": (mixtral.mixtral, mixtral.MIXTRAL),
    "olmoe": (olmo.olmoe, olmo.OLMOE),
    "phimoe": (phi.phimoe, mixtral.MIXTRAL),
    "qwen2_moe": (qwen.qwen2_moe, qwen.QWEN2_MOE),
    "qwen3_5_moe_text": (qwen3_next.qwen3_5_moe, qwen3_next.QWEN3_NEXT),
    "qwen3_5_text": (qwen3_next.qwen3_5, qwen3_next.QWEN3_5),
    "qwen3_moe": (qwen.qwen3_moe, qwen.QWEN3_MOE),
    "qwen3_next": (qwen3_next.qwen3_next, qwen3_next.QWEN3_NEXT),
    "solar_open": (solar.solar_open, solar.SOLAR_OPEN),
    "youtu": (youtu.youtu, youtu.YOUTU),
    # With Mamba layers, or OLMo Hybrid's.
    "bamba": (bamba.bamba, bamba.BAMBA),
    "falcon_h1": (falcon_h1.falcon_h1, falcon_h1.FALCON_H1),
    "falcon_mamba": (mamba.falcon_mamba, mamba.MAMBA),
    "granitemoehybrid": (granite.granite_hybrid, granite.GRANITE_HYBRID),
    "jamba": (mamba.jamba, mamba.JAMBA),
    "mamba": (mamba.mamba, mamba.MAMBA),
    "mamba2": (mamba2.mamba2, mamba2.MAMBA2),
    "nemotron_h": (nemotron.nemotron_h, nemotron.NEMOTRON_H),
    "olmo_hybrid": (olmo.olmo_hybrid, olmo.OLMO_HYBRID),
    "recurrent_gemma": (recurrent_gemma.recurrent_gemma, recurrent_gemma.RECURRENT_GEMMA),
    "zamba2": (zamba2.zamba2, zamba2.ZAMBA2),
}

ENCODERS: dict[str, Row] = {
    "albert": (albert.albert, albert.ALBERT),
    "bert": (bert.bert, bert.BERT),
    "big_bird": (bert.big_bird, bert.BERT),
    "camembert": (roberta.roberta, roberta.ROBERTA),
    "data2vec-text": (roberta.roberta, roberta.DATA2VEC),
    "deberta-v2": (deberta.deberta_v2, deberta.DEBERTA_V2),
    "distilbert": (distilbert.distilbert, distilbert.DISTILBERT),
    "electra": (electra.electra, electra.ELECTRA),
    "ernie": (ernie.ernie, ernie.ERNIE),
    "eurobert": (eurobert.eurobert, LLAMA),
    "gte": (gte.gte, gte.GTE),
    "jina_embeddings_v3": (gte.jina_embeddings_v3, gte.JINA_EMBEDDINGS_V3),
    "luke": (roberta.luke, roberta.LUKE),
    "megatron-bert": (bert.megatron_bert, bert.MEGATRON_BERT),
    "modernbert": (modernbert.modernbert, modernbert.MODERNBERT),
    "mpnet": (mpnet.mpnet, mpnet.MPNET),
    "nomic_bert": (nomic_bert.nomic_bert, nomic_bert.NOMIC_BERT),
    "roberta": (roberta.roberta, roberta.ROBERTA),
    "roberta-prelayernorm": (roberta.roberta_prelayernorm, roberta.ROBERTA_PRELAYERNORM),
    "roformer": (roformer.roformer, roformer.ROFORMER),
    "xlm": (xlm.xlm, xlm.XLM),
    "xlm-roberta": (roberta.roberta, roberta.ROBERTA),
    "xlm-roberta-xl": (roberta.xlm_roberta_xl, roberta.XLM_ROBERTA_XL),
}

# Their names depend on the config, so the function makes the table.
ENCODER_DECODERS: dict[str, Row] = {
    "bart": (bart.bart, {}),
    "blenderbot": (bart.blenderbot, {}),
    "blenderbot-small": (bart.blenderbot_small, {}),
    "fsmt": (bart.fsmt, {}),
    "m2m_100": (m2m_100.m2m_100, {}),
    "marian": (marian.marian, {}),
    "mbart": (bart.mbart, {}),
    "mvp": (bart.mvp, {}),
    "mt5": (t5.mt5, {}),
    "pegasus": (pegasus.pegasus, {}),
    "plbart": (bart.plbart, {}),
    "t5": (t5.t5, {}),
    "umt5": (t5.umt5, {}),
}

FAMILIES = {**DECODERS, **ENCODERS, **ENCODER_DECODERS}


def canonical(
    config: dict,
    tensors: dict[str, Tensor] | None,
    adapters: Sequence[Adapter] = (),
    guesses: bool = True,
) -> tuple[str, Knobs, dict[str, Tensor], list[str]]:
    """A Hugging Face config and its tensors -> the family, its knobs, the canonical tensors in the
    order of the file, after the adapters' changes, and remarks for the user. Nothing is read but
    embeddings that may be one. tensors None: the canonical ones have no numbers. guesses False:
    without the layers that guess next tokens. Errors: ExportError."""
    whole = config
    config, left = text_model(whole, tensors or {})
    c = Config(config)
    if config is not whole:
        c.remarks.append(ALONE + LEFT_OUT.get(whole["model_type"], ""))
    family = c.get("model_type")
    if isinstance(family, str) and family in REFUSED:
        raise ExportError(
            f"config.json: model_type is {family!r}, which is not supported: {REFUSED[family]}"
        )
    if not isinstance(family, str) or family not in FAMILIES:
        raise ExportError(
            f"config.json: model_type is {family!r}, which is not known; docs/families.md lists "
            "those that are"
        )
    half = alone(c) if family in ENCODER_DECODERS else "decoder"
    if half == "encoder":
        c.ignore("is_encoder_decoder")  # such classes change it, and not in every file
    else:
        c.require(is_encoder_decoder=half is None)
    knobs_of, names = FAMILIES[family]
    with c.odd_values():
        dequantize(c, left)
        around, n_guess = take_guesses(c, family, left, guesses)
        widen(adapters, c, left, names)
        knobs = knobs_of(c)
        table = knobs.names = {**(knobs.names or names), **around}
        knobs.guess_layers = n_guess
        merged = merge_checkpoint(adapters, c, family, knobs, left, table) if adapters else []
        classes = add_classes(c, family, knobs, left, table) if left else {}
    c.remarks += merged
    c.finish()
    layers = range(knobs.n_layers)
    per_layer = [(of_layer(knobs.n_heads, i), of_layer(knobs.n_kv_heads, i)) for i in layers]
    if any(n % n_kv for n, n_kv in per_layer):
        raise ExportError(
            f"config.json: {knobs.n_heads} query heads are no multiple of {knobs.n_kv_heads} KV "
            "heads"
        )
    names = knobs.names or names
    if tensors is None:
        return family, knobs, hollow(knobs, names), c.remarks
    dropped = [name for name in left if name.endswith(PAIR_HEADS)]
    with left.odd_shapes():
        found, remarks = assemble(knobs, names, left)
    if dropped:
        remarks.append(f"{dropped[0]} is left out: the head that tells whether sentences follow")
    return family, knobs, {**found, **classes}, c.remarks + remarks
