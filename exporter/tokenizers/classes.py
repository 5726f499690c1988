"""The class that AutoTokenizer of transformers 5.23.0 takes for a directory, and what the class reads
in tokenizer_config.json.

Most classes build a tokenizer anew and forget how tokenizer.json normalizes and cuts a text. That
fault is not followed (docs/export.md): the file says it. What the configuration sets for the class
replaces the setting in the file, and so does the default of a class of bytes or of BERT."""

from __future__ import annotations

import copy
import os

from ..json_files import beside
from .components import opened
from .normalizers import SPACE_MARK

BERT, ROBERTA, XLM_ROBERTA = "BertTokenizer", "RobertaTokenizer", "XLMRobertaTokenizer"
GPT2, NEOX, QWEN = "GPT2Tokenizer", "GPTNeoXTokenizer", "Qwen2Tokenizer"
GEMMA, COHERE = "GemmaTokenizer", "CohereTokenizer"
# The class that reads tokenizer.json as it is, and the types of models that have it.
PLAIN = "TokenizersBackend"
PLAIN_TYPES = """aria ernie4_5 ernie4_5_moe flex_olmo glm glm4 glm4_moe glm4_moe_lite gpt_bigcode
granite granitemoe granitemoehybrid granitemoeshared hyperclovax internlm2 internlm3 iquestcoder jamba
kimi_linear llava llava_next minicpm3 minimax_m2 ministral ministral3 mistral mistral3 mixtral
modernbert modernbert-decoder nemotron olmo2 olmo3 olmo_hybrid persimmon phi3 phimoe pixtral smolvlm
stablelm umt5 xlm-roberta-xl""".split()
# The class of a type whose tokenizer_config.json names none.
CLASSES = {
    **dict.fromkeys(PLAIN_TYPES, PLAIN),
    **dict.fromkeys(("bert", "distilbert", "electra", "ernie", "megatron-bert"), BERT),
    "nomic_bert": BERT,
    **dict.fromkeys(("roberta", "roberta-prelayernorm", "data2vec-text", "bart"), ROBERTA),
    **dict.fromkeys(("xlm-roberta", "gte", "jina_embeddings_v3"), XLM_ROBERTA),
    **dict.fromkeys(("gpt2", "gpt_neo", "gptj", "codegen", "phi", "opt", "starcoder2"), GPT2),
    **dict.fromkeys(("dbrx", "jais2"), GPT2),
    **dict.fromkeys(("gpt_neox", "olmo", "olmoe", "mpt", "mamba", "mamba2", "falcon_mamba"), NEOX),
    **dict.fromkeys(("cohere", "cohere2", "aya_vision"), COHERE),
    **dict.fromkeys(("gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n"), GEMMA),
    **dict.fromkeys(("gemma3n_text", "recurrent_gemma"), GEMMA),
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next"), QWEN),
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "internvl"), QWEN),
    **dict.fromkeys(("qwen3_5_text", "qwen3_5", "qwen3_5_moe"), "Qwen3_5Tokenizer"),
    "qwen3_5_moe_text": "Qwen3_5Tokenizer",
    "idefics2": "LlamaTokenizer",
    "albert": "AlbertTokenizer",
    "big_bird": "BigBirdTokenizer",
    "blenderbot": "BlenderbotTokenizer",
    "camembert": "CamembertTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "luke": "LukeTokenizer",
    "mpnet": "MPNetTokenizer",
    "xglm": "XGLMTokenizer",
}
# The types that have it whatever tokenizer_config.json says.
CERTAIN = {*PLAIN_TYPES, "qwen2", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text"}
# Other names of classes, all without Fast.
ALIASES = {
    **dict.fromkeys(("PreTrainedTokenizer", "BloomTokenizer"), PLAIN),
    **dict.fromkeys(("ElectraTokenizer", "LayoutLMTokenizer", "LxmertTokenizer"), BERT),
    **dict.fromkeys(("MobileBertTokenizer", "SqueezeBertTokenizer"), BERT),
    **dict.fromkeys(("BartTokenizer", "LEDTokenizer", "LongformerTokenizer"), ROBERTA),
    "MvpTokenizer": ROBERTA,
    "Phi3Tokenizer": "LlamaTokenizer",
}
# Classes that are BERT's, but for their names.
LIKE_BERT = (BERT, "ConvBertTokenizer", "DPRContextEncoderTokenizer", "DPRQuestionEncoderTokenizer")
# The classes that give a model types of tokens.
TYPED = (*LIKE_BERT, "DebertaTokenizer", "DebertaV2Tokenizer", "FNetTokenizer")


def tokenizer_class(directory: str) -> str:
    """The name of the class; of one that this module does not know, perhaps, where it is PLAIN.
    Errors: ExportError."""
    model = beside(directory, "config.json")
    kind, of_model = model.get("model_type"), model.get("tokenizer_class")
    own = CLASSES.get(kind) if isinstance(kind, str) else None
    named = beside(directory, "tokenizer_config.json").get("tokenizer_class") or of_model
    if not isinstance(named, str) or kind in CERTAIN:
        return own or PLAIN
    named = named.removesuffix("Fast")
    named = ALIASES.get(named, named)
    return PLAIN if named == "LlamaTokenizer" and _of_bytes(directory) else named


def _of_bytes(directory: str) -> bool:
    path = os.path.join(directory, "tokenizer.json")
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return b'"ByteLevel"' in file.read()


def gives_types(directory: str) -> bool:
    """Whether models get the types of tokens that tell two texts apart. Errors: ExportError."""
    inputs = beside(directory, "tokenizer_config.json").get("model_input_names")
    if isinstance(inputs, list):
        return "token_type_ids" in inputs
    return tokenizer_class(directory) in TYPED


# ---- what a class takes from tokenizer_config.json -----------------------------------------------

# Classes of bytes: whether a space goes before a text where nothing says it.
BYTES = {
    **dict.fromkeys((GPT2, "CodeGenTokenizer", NEOX, COHERE, QWEN, "Qwen3_5Tokenizer"), False),
    **dict.fromkeys((ROBERTA, "DebertaTokenizer", "LukeTokenizer"), False),
    "BlenderbotTokenizer": True,
}
# Classes with BERT's normalizer, and what its fields are called there, with their defaults.
NORMALIZED = (*LIKE_BERT, "DistilBertTokenizer", "MPNetTokenizer")
FIELDS = {
    "lowercase": ("do_lower_case", True),
    "handle_chinese_chars": ("tokenize_chinese_chars", True),
    "strip_accents": ("strip_accents", None),
}
# Classes with Metaspace: what it does where no space goes before a text.
MARKED = {
    **dict.fromkeys(("AlbertTokenizer", "BarthezTokenizer", "BigBirdTokenizer"), "never"),
    **dict.fromkeys(("CamembertTokenizer", XLM_ROBERTA, "XGLMTokenizer"), "never"),
    "DebertaV2Tokenizer": "first",
}
LLAMAS = ("LlamaTokenizer", "CodeLlamaTokenizer")  # they have the mark of one before merging


def with_settings(data: dict, directory: str) -> dict:
    """A tokenizer.json with the settings that the class takes from elsewhere. Errors:
    ExportError."""
    config, kind = beside(directory, "tokenizer_config.json"), tokenizer_class(directory)
    space, lower = config.get("add_prefix_space"), config.get("do_lower_case")
    data = data | copy.deepcopy({key: data.get(key) for key in _PARTS})
    steps, cuts, ends = (opened(data[key], _PARTS[key]) for key in _PARTS)
    for step in steps:
        if kind in NORMALIZED and step.get("type") == "BertNormalizer":
            step.update({field: config.get(key, usual) for field, (key, usual) in FIELDS.items()})
    for part in cuts + ends:
        if kind in BYTES and part.get("type") == "ByteLevel":
            part["add_prefix_space"] = BYTES[kind] if space is None else space
        elif kind in MARKED and part.get("type") == "Metaspace" and space is not None:
            part.pop("add_prefix_space", None)
            part["prepend_scheme"] = "always" if space else MARKED[kind]
    if kind in ("AlbertTokenizer", "DebertaV2Tokenizer") and lower is not None:
        data["normalizer"] = _lowercase(steps, lower, first=kind == "DebertaV2Tokenizer")
    if kind in LLAMAS and space not in (None, _prepends(steps, cuts)):
        data |= _llama(kind, space, config.get("legacy"))
    return data


_PARTS = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}


def _lowercase(steps: list[dict], lower: bool, first: bool) -> dict:
    """The normalizer with or without Lowercase, which comes first or before the charsmap."""
    kinds = [step.get("type") for step in steps]
    if lower and "Lowercase" not in kinds:
        at = 0 if first else kinds.index("Precompiled") if "Precompiled" in kinds else len(steps)
        steps = [*steps[:at], {"type": "Lowercase"}, *steps[at:]]
    steps = [step for step in steps if lower or step.get("type") != "Lowercase"]
    return {"type": "Sequence", "normalizers": steps}


def _prepends(steps: list[dict], cuts: list[dict]) -> bool:
    """Whether a mark of a space goes before a text."""
    return any(step.get("type") == "Prepend" for step in steps) or any(
        cut.get("type") == "Metaspace" and cut.get("prepend_scheme", "always") != "never"
        for cut in cuts
    )


def _llama(kind: str, space: bool, legacy: object) -> dict:
    """The parts as Llama's class makes them."""
    scheme = "never" if not space else "always" if legacy and kind == "LlamaTokenizer" else "first"
    mark = {"type": "Metaspace", "replacement": SPACE_MARK, "prepend_scheme": scheme}
    ends = [{"type": "Replace", "pattern": {"String": SPACE_MARK}, "content": " "}]
    ends += [{"type": "ByteFallback"}, {"type": "Fuse"}]
    if space or kind == "CodeLlamaTokenizer":
        ends.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "normalizer": None,
        "pre_tokenizer": {**mark, "split": False},
        "decoder": {"type": "Sequence", "decoders": ends},
    }
