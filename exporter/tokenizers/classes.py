"""The class that AutoTokenizer of transformers 5.23.0 takes for a directory, and whether it gives a
model types of tokens."""

from __future__ import annotations

import os

from ..json_files import beside

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
