"""Makes tests/golden/unigram: SentencePiece files without a tokenizer.json, and the ids that
transformers gives texts with them.

    python3 tests/reference/make_unigram_files.py     needs transformers, sentencepiece, protobuf

Each folder has the files of a model of that class and expected.json: texts, their ids, and who
made them. The models are trained here, with a small map for the normalizer.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
import tokenizers
import transformers

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "support")]

import tokenizer_texts as texts  # noqa: E402

OUTPUT = ROOT / "tests" / "golden" / "unigram"
MAP = {
    "\u00e9": "e",
    "e\u0301": "e",
    "\u00a0": " ",
    "\t": " ",
    "\n": " ",
    "\ufb01": "fi",
    "\u2126": "\u03a9",
    "\u200b": "",
    "\r\n": " ",
    "\u2460": "1",
}
T5 = dict(pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
ALBERT = dict(
    pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, control_symbols=["[CLS]", "[SEP]", "[MASK]"]
)
# Folder -> (class, model type, file, the trainer's settings, tokenizer_config.json).
KINDS = {
    "t5": ("T5Tokenizer", "t5", "spiece.model", T5, {}),
    "xlm-roberta": ("XLMRobertaTokenizer", "xlm-roberta", "sentencepiece.bpe.model", {}, {}),
    "albert": ("AlbertTokenizer", "albert", "spiece.model", ALBERT, {}),
    "mbart": ("MBartTokenizer", "mbart", "sentencepiece.bpe.model", {}, {"src_lang": "de_DE"}),
    "mbart50": ("MBart50Tokenizer", "mbart", "sentencepiece.bpe.model", {}, {"src_lang": "ro_RO"}),
    "pegasus": ("PegasusTokenizer", "pegasus", "spiece.model", T5, {}),
    "marian": ("MarianTokenizer", "marian", "source.spm", {}, {}),
    "m2m_100": (
        "M2M100Tokenizer",
        "m2m_100",
        "sentencepiece.bpe.model",
        {"model_type": "bpe"},
        {"src_lang": "de"},
    ),
    "marian-pair": ("MarianTokenizer", "marian", "source.spm", {}, {"separate_vocabs": True}),
    "nllb": (
        "NllbTokenizer",
        "m2m_100",
        "sentencepiece.bpe.model",
        {"model_type": "bpe"},
        {"src_lang": "fra_Latn"},
    ),
    "nllb-legacy": (
        "NllbTokenizer",
        "m2m_100",
        "sentencepiece.bpe.model",
        {"model_type": "bpe"},
        {"legacy_behaviour": True},
    ),
}


def train(path: Path, seed: int, **settings) -> None:
    rules = path.with_suffix(".tsv")
    rules.write_text(
        "".join(
            " ".join(f"{ord(c):X}" for c in key) + "\t" + " ".join(f"{ord(c):X}" for c in to) + "\n"
            for key, to in MAP.items()
        )
    )
    lines = [line[:200] for line in texts.mixed_text(seed, 60_000).splitlines()]
    lines = ["".join(c for c in line if 32 <= ord(c) < 0x250) for line in lines]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_prefix=str(path.with_suffix("")),
        vocab_size=500,
        num_threads=1,
        minloglevel=2,
        normalization_rule_tsv=str(rules),
        **{"model_type": "unigram", **settings},
        **({} if settings.get("model_type") == "bpe" else {"hard_vocab_limit": False}),
    )
    model = sentencepiece_model_pb2.ModelProto.FromString(path.with_suffix(".model").read_bytes())
    model.trainer_spec.ClearField("model_prefix")  # where it was made is nobody's business
    model.normalizer_spec.ClearField("normalization_rule_tsv")
    path.with_suffix(".model").unlink()
    path.write_bytes(model.SerializeToString())
    rules.unlink()
    path.with_suffix(".vocab").unlink()


def marian_vocab(folder: Path, files: dict[str, list[str]]) -> None:
    """The vocabularies, each of the pieces of some models, and a target language's code."""
    train(folder / "target.spm", 9)
    for vocab, models in files.items():
        tokens = ["</s>", "<unk>", ">>fra<<"]
        for name in models:
            model = sentencepiece.SentencePieceProcessor(model_file=str(folder / name))
            tokens += [model.id_to_piece(i) for i in range(3, model.vocab_size())]
        tokens = [*dict.fromkeys([*tokens, "\u0416", "<pad>"])]
        (folder / vocab).write_text(json.dumps({token: i for i, token in enumerate(tokens)}))


MARIAN = {"vocab.json": ["source.spm", "target.spm"]}
MARIAN_PAIR = {"vocab.json": ["source.spm"], "target_vocab.json": ["target.spm"]}


def nllb_added(folder: Path) -> dict:
    """added_tokens_decoder: the languages after the pieces, and the mask after them."""
    file = str(folder / "sentencepiece.bpe.model")
    n = sentencepiece.SentencePieceProcessor(model_file=file).vocab_size() + 1
    plain = {
        "special": True,
        "normalized": False,
        "lstrip": False,
        "rstrip": False,
        "single_word": False,
    }
    names = dict(enumerate(["<s>", "<pad>", "</s>", "<unk>"]))
    names |= {n + i: code for i, code in enumerate(["ace_Arab", "eng_Latn", "fra_Latn"])}
    tokens = {id: {"content": name, **plain} for id, name in names.items()}
    tokens[n + 3] = {"content": "<mask>", **plain, "lstrip": True, "normalized": True}
    return {"added_tokens_decoder": tokens}


def m2m_vocab(folder: Path) -> None:
    """vocab.json: the pieces in another order."""
    file = str(folder / "sentencepiece.bpe.model")
    model = sentencepiece.SentencePieceProcessor(model_file=file)
    pieces = sorted(model.id_to_piece(i) for i in range(3, model.vocab_size()))
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *pieces]
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))


def make(name: str) -> None:
    cls, model_type, file, settings, config = KINDS[name]
    folder = OUTPUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        train(Path(scratch) / file, 7, **settings)
        shutil.copy(Path(scratch) / file, folder / file)
    if name.startswith("marian"):
        marian_vocab(folder, MARIAN if name == "marian" else MARIAN_PAIR)
    if name == "m2m_100":
        m2m_vocab(folder)
    if name.startswith("nllb"):
        config = {**config, **nllb_added(folder)}
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": cls, **config}))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    added = ["</s>", "<mask>", "[MASK]", "<extra_id_3>", "<unk_7>", "fr_XX", *MAP, "``", "''"]
    added += [">>fra<<", "\u0416"] * name.startswith("marian")
    added += ["__fr__"] * (name == "m2m_100") + ["eng_Latn", "fra_Latn"] * name.startswith("nllb")
    cases = [text.replace("\0", "") for text in texts.random_strings(5, 300, added, most=9)]
    made = (
        f"transformers {transformers.__version__}, tokenizers {tokenizers.__version__}, "
        f"sentencepiece {sentencepiece.__version__}; tests/reference/make_unigram_files.py"
    )
    answers = {"made by": made, "texts": cases, "ids": tokenizer(cases).input_ids}
    (folder / "expected.json").write_text(json.dumps(answers))
    print(name, sum(path.stat().st_size for path in folder.iterdir()), "bytes")


if __name__ == "__main__":
    for each in sys.argv[1:] or KINDS:
        make(each)
