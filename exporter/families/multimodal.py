"""Text models inside of multimodal checkpoints: their config and their tensors."""

from __future__ import annotations

from ..config import Config
from ..packed.methods import KEYS as PACKING
from ..tensor import ExportError, Tensor, Tensors

# The type of the text model, and whether its head is the embedding unless the config says it.
MULTIMODAL = {
    "audioflamingo3": ("qwen2", False),
    "fuyu": ("persimmon", False),
    "gemma3": ("gemma3_text", True),
    "gemma4": ("gemma4_text", True),
    "gemma4_unified": ("gemma4_unified_text", True),
    "glmasr": ("llama", True),
    "got_ocr2": ("qwen2", True),
    "idefics3": ("llama", False),
    "internvl": ("qwen2", True),
    "lfm2_vl": ("lfm2", True),
    "llama4": ("llama4_text", False),
    "llava": ("llama", False),
    "mistral3": ("mistral", True),
    "musicflamingo": ("qwen2", False),
    "paligemma": ("gemma", True),
    "qwen2_5_vl": ("qwen2", False),
    "qwen2_audio": ("qwen2", False),
    "qwen2_vl": ("qwen2", False),
    "qwen3_vl": ("qwen3", False),
    "qwen3_5": ("qwen3_5_text", False),
    "qwen3_5_moe": ("qwen3_5_moe_text", False),
    "smolvlm": ("llama", False),
    "voxtral": ("llama", False),
}
# Types of text_config that are models of text alone by another name: a text has one position for
# all axes of a picture.
SAME = {"qwen2_5_vl_text": "qwen2", "qwen2_vl_text": "qwen2", "qwen3_vl_text": "qwen3"}
QWEN2_VL = dict(
    vocab_size=152064,
    hidden_size=8192,
    intermediate_size=29568,
    num_hidden_layers=80,
    num_attention_heads=64,
    num_key_value_heads=8,
    max_window_layers=80,
    rms_norm_eps=1e-5,
)
LLAMA = dict(
    vocab_size=32000,
    hidden_size=4096,
    intermediate_size=11008,
    num_hidden_layers=32,
    num_attention_heads=32,
)
# What a text_config that lacks them has, where it is not what the text model's class has.
ABSENT = {
    "glmasr": dict(
        vocab_size=59264,
        hidden_size=2048,
        intermediate_size=6144,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=4,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
    ),
    "got_ocr2": dict(
        vocab_size=151860,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=24,
        num_attention_heads=16,
        num_key_value_heads=16,
    ),
    "idefics3": dict(LLAMA, rms_norm_eps=1e-5),
    "qwen2_5_vl": QWEN2_VL,
    "qwen2_vl": QWEN2_VL,
    "qwen3_vl": dict(max_position_embeddings=128000, num_key_value_heads=32),
    "smolvlm": dict(LLAMA, rms_norm_eps=1e-5),
    "voxtral": dict(
        vocab_size=131072,
        hidden_size=3072,
        intermediate_size=8192,
        num_hidden_layers=30,
        num_key_value_heads=8,
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        head_dim=128,
    ),
}
# The theta of a text_config that has none.
THETA = {"got_ocr2": 1e6, "qwen2_5_vl": 1e6, "qwen2_vl": 1e6, "qwen3_vl": 5e5, "voxtral": 1e8}
# Keys beside text_config that are about pictures and sounds.
OTHER_KEYS = """
    _pad_token_id audio_bos_token_id audio_config audio_eos_token_id audio_frame_step audio_token_id
    audio_token_index boa_token_id boi_token_id boi_token_index do_image_splitting
    downsample_factor downsample_ratio encoder_patch_size eoa_token_id eoa_token_index eoi_token_id eoi_token_index head_dim hidden_size ignore_index image_seq_length image_size
    image_token_id image_token_index max_position_embeddings
    mm_tokens_per_image multimodal_projector_bias num_channels patch_size projection_dim projector_bias
    projector_hidden_act projector_hidden_size projector_use_layernorm rope_parameters
    scale_factor spatial_merge_size
    video_token_id vision_config vocab_size vision_end_token_id vision_feature_layer
    vision_feature_select_strategy vision_token_id
    vision_soft_tokens_per_image vision_start_token_id
    """.split()
# What a user should know of a text model that runs alone.
ALONE = "the text model alone: what the checkpoint has for pictures or sounds is left out"
LEFT_OUT = {
    "paligemma": "; so is that the tokens of a prompt see those after them: here a token sees those "
    "before it, as in transformers without token_type_ids"
}
# Keys of text_config that no class of transformers reads.
UNREAD = """
    _flash_attn_2_enabled _pad_token_id neftune_noise_alpha perceiver_config pixel_shuffle_factor qk_layer_norms
    num_image_tokens use_resampler
    """.split()
TEXT_KEYS = "head_dim hidden_size max_position_embeddings rope_parameters vocab_size".split()
PREFIXES = {
    "model.text_model.": "model.",
    "model.language_model.": "model.",
    "language_model.model.": "model.",
    "language_model.lm_head": "lm_head",
}
OTHER_TOWERS = (
    "vision_tower.",
    "vision_model.",
    "multi_modal_projector.",
    "model.vision_tower.",
    "model.multi_modal_projector.",
    "model.visual.",
    "model.audio_tower.",
    "model.embed_vision.",
    "model.embed_audio.",
    "audio_tower.",
    "vision_embed_tokens.",
    "model.vision_model.",
    "model.connector.",
    "visual.",
)


def text_model(config: dict, tensors: dict[str, Tensor]) -> tuple[dict, dict[str, Tensor]]:
    """The config and the tensors of the text model in a multimodal checkpoint. Any other
    checkpoint's stay as they are."""
    if config.get("model_type") not in list(MULTIMODAL):
        return config, Tensors(tensors)
    model_type, tied = MULTIMODAL[config["model_type"]]
    outer = Config(config)
    text = outer.get("text_config")
    if text is None and config["model_type"] in ("qwen2_vl", "qwen2_5_vl"):  # as they were first
        text = {k: v for k, v in config.items() if k in TEXT_KEYS or k not in OTHER_KEYS}
        outer.ignore(*text)
        text.pop("model_type")
    if not isinstance(text, dict):
        raise ExportError(
            f"config.json: model_type is {config['model_type']!r}, but there is no text_config"
        )
    family = config["model_type"]
    text = {"model_type": model_type, **ABSENT.get(family, {}), **text}
    if family == "llava" and text["model_type"] == "llama":
        text = {**LLAMA, **text}
    text["model_type"] = SAME.get(text["model_type"], text["model_type"])
    both_ways = "use_bidirectional_attention"
    if family == "paligemma":  # which means a prompt, where a processor marks it: LEFT_OUT says so
        text.pop(both_ways, None)
    if family == "gemma3":  # whose masks do not follow it, though its windows do
        Config(text, "config.json: text_config").require(**{both_ways: False})
    for key in UNREAD:
        text.pop(key, None)
    if not any(key in text for key in ("rope_theta", "rope_parameters")) and family in THETA:
        text["rope_theta"] = THETA[family]
    # The classes with pictures tie the head by the outer config, classes of text alone by the inner.
    tied = outer.flag("tie_word_embeddings", tied) or text.get("tie_word_embeddings") or False
    text |= {key: outer.get(key) or text.get(key) for key in PACKING}
    text["tie_word_embeddings"] = tied
    outer.require(is_encoder_decoder=False)
    outer.ignore(*OTHER_KEYS)
    outer.finish()
    found = Tensors()
    for name, tensor in tensors.items():
        of_text = text_name(name)
        if of_text:
            found[of_text] = tensor
    return text, found


def text_name(name: str) -> str | None:
    """What the text model calls a tensor of the whole; None if it is for pictures or sounds."""
    if name.startswith(OTHER_TOWERS):
        return None
    old = next((prefix for prefix in PREFIXES if name.startswith(prefix)), "")
    return PREFIXES.get(old, "") + name[len(old) :]
