#!/usr/bin/env python3
"""Makes tests/golden/tokenizer_classes.json: which class AutoTokenizer takes for the small tokenizers
of tests/support/tokenizer_classes.py, and what the class makes of tokenizer.json.

    python tests/reference/make_tokenizer_classes.py

(transformers 5.23.0.) Each row: a model's type, a tokenizer, its tokenizer_config.json, the class,
whether it gives token types, the parts that text goes through, and the tokenizer that is
right where those are not."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import conftest  # noqa: E402, F401
import tokenizer_classes  # noqa: E402
import transformers  # noqa: E402

SPACE, NO_SPACE = {"add_prefix_space": True}, {"add_prefix_space": False}
TYPES = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
NO_TYPES = {"model_input_names": ["input_ids", "attention_mask"]}
# A model's type, a tokenizer, its class, what else the configuration says.
ROWS = [
    # which class it is, and whether it gives types
    ("bert", "uncased", None, {}),
    ("bert", "uncased", "BertTokenizer", {}),
    ("bert", "uncased", "BertTokenizerFast", NO_TYPES),
    ("bert", "uncased", "PreTrainedTokenizerFast", {}),
    ("bert", "uncased", "PreTrainedTokenizerFast", TYPES),
    ("bert", "uncased", "TokenizersBackend", {}),
    ("bert", "uncased", "ElectraTokenizerFast", {}),
    ("bert", "uncased", "MobileBertTokenizer", {}),
    ("bert", "uncased", "DistilBertTokenizer", {}),
    ("bert", "bytes", "RobertaTokenizerFast", {}),
    ("bert", "words", "XLMRobertaTokenizer", {}),
    ("electra", "uncased", "ElectraTokenizer", {}),
    ("electra", "uncased", None, {}),
    ("distilbert", "uncased", None, {}),
    ("mpnet", "uncased", None, {}),
    ("mpnet", "uncased", "MPNetTokenizer", {}),
    ("roberta", "bytes", None, {}),
    ("xlm-roberta", "words", None, {}),
    ("modernbert", "bytes", None, {}),
    ("modernbert", "bytes", "PreTrainedTokenizerFast", TYPES),
    ("eurobert", "bytes", None, {}),
    ("xlm-roberta-xl", "words", "XLMRobertaTokenizer", NO_SPACE),
    ("nomic_bert", "uncased", "BertTokenizer", {}),
    ("llama", "bytes", "LlamaTokenizerFast", NO_SPACE),
    ("llama", "space", "PreTrainedTokenizerFast", NO_SPACE),
    ("mistral", "prepend", "LlamaTokenizer", NO_SPACE),
    ("phi3", "prepend", "LlamaTokenizerFast", NO_SPACE),
    ("bloom", "bytes", "BloomTokenizerFast", SPACE),
    # settings that a class takes
    ("gpt2", "space", None, {}),
    ("gpt2", "bytes", "GPT2Tokenizer", SPACE),
    ("gpt2", "space", "GPT2TokenizerFast", NO_SPACE),
    ("phi", "space", "CodeGenTokenizer", {}),
    ("roberta", "space", "RobertaTokenizer", {}),
    ("roberta", "bytes", "RobertaTokenizer", SPACE),
    ("bart", "bytes", "BartTokenizer", SPACE),
    ("luke", "space", "LukeTokenizer", {}),
    ("blenderbot", "bytes", "BlenderbotTokenizer", {}),
    ("blenderbot", "space", "BlenderbotTokenizer", NO_SPACE),
    ("bert", "cased", None, {}),
    ("bert", "cased", "BertTokenizer", {"do_lower_case": False, "tokenize_chinese_chars": False}),
    ("bert", "uncased", "BertTokenizer", {"do_lower_case": False, "strip_accents": True}),
    ("distilbert", "cased", "DistilBertTokenizerFast", {}),
    ("mpnet", "uncased", "MPNetTokenizer", {"do_lower_case": False}),
    ("xlm-roberta", "words", "XLMRobertaTokenizer", NO_SPACE),
    ("xlm-roberta", "no words", "XLMRobertaTokenizer", SPACE),
    ("camembert", "words", "CamembertTokenizer", NO_SPACE),
    ("llama", "prepend", "LlamaTokenizer", NO_SPACE),
    ("llama", "first", "LlamaTokenizer", NO_SPACE),
    ("llama", "replace", "LlamaTokenizer", SPACE),
    ("llama", "replace", "LlamaTokenizer", {**SPACE, "legacy": True}),
    ("llama", "first", "LlamaTokenizer", SPACE),
]
# Where the class forgets what the file says, the file that is right.
FORGETFUL = [
    ("llama", "prepend", "LlamaTokenizer", {}, "prepend"),
    ("llama", "prepend", "LlamaTokenizerFast", SPACE, "prepend"),
    ("llama", "replace", "LlamaTokenizer", {}, "replace"),
    ("llama", "prepend", "GemmaTokenizer", {}, "prepend"),
    ("gpt2", "nfc", "GPT2Tokenizer", {}, "nfc"),
    ("gpt2", "digits", "GPT2TokenizerFast", {}, "digits"),
    ("starcoder2", "digits", None, {}, "digits"),
    ("gpt_neox", "space", "GPTNeoXTokenizerFast", {}, "bytes"),
    ("cohere", "space", "CohereTokenizer", {}, "bytes"),
    ("qwen2", "space", "LlamaTokenizerFast", {}, "bytes"),
    ("qwen3", "bytes", "Qwen2Tokenizer", SPACE, "space"),
    ("xlm-roberta", "marks", "XLMRobertaTokenizer", {}, "marks"),
    ("albert", "marks", None, {}, "marks"),
    ("albert", "lower", "AlbertTokenizer", {"do_lower_case": False}, "nfc marks"),
    ("albert", "nfc marks", "AlbertTokenizerFast", {"do_lower_case": True}, "lower"),
    ("deberta-v2", "marks", None, {}, "marks"),
    ("deberta-v2", "nfc marks", "DebertaV2Tokenizer", {"do_lower_case": True}, "lower first"),
    ("deberta-v2", "marks", "DebertaV2TokenizerFast", NO_SPACE, "first mark"),
]
PARTS = ("normalizer", "pre_tokenizer", "decoder")


def row(folder: Path, model_type: str, file: str, kind: str | None, more: dict, *right) -> list:
    config = {"tokenizer_class": kind, **more} if kind else more
    tokenizer_classes.make(folder, model_type, file, config)
    made = transformers.AutoTokenizer.from_pretrained(folder)
    data = json.loads(made.backend_tokenizer.to_str())
    types = "token_type_ids" in made.model_input_names
    parts = {key: data[key] for key in PARTS}
    return [model_type, file, config, type(made).__name__, types, parts, *right]


def main() -> None:
    transformers.logging.set_verbosity_error()
    lines = ['"by": "tests/reference/make_tokenizer_classes.py"']
    lines += [f'"transformers": "{transformers.__version__}"']
    with tempfile.TemporaryDirectory() as out:
        for name, rows in (("rows", ROWS), ("forgetful", FORGETFUL)):
            made = [row(Path(out) / f"{name}{i}", *each) for i, each in enumerate(rows)]
            lines.append(f'"{name}": [\n' + ",\n".join(map(json.dumps, made)) + "]")
    path = conftest.ROOT / "tests" / "golden" / "tokenizer_classes.json"
    path.write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main()
