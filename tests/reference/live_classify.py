#!/usr/bin/env python3
"""Fresh random models with heads for classes, and vectors of every pooling, compared with
transformers and sentence-transformers.

    python tests/reference/live_classify.py [--seed S] [NAME...]

Needs torch, transformers and sentence-transformers; exit status 1 if any differs. Every family of
encoders, and every decoder that transformers has such heads for, of which the tests know a
config."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import conftest  # noqa: E402, F401
import classifiers  # noqa: E402
import make_encoder_decoders  # noqa: E402
import make_encoders  # noqa: E402
import make_golden  # noqa: E402
import test_encoders  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from rounding import rounding  # noqa: E402

import export  # noqa: E402
from heads import Model, _classes  # noqa: E402

TEXTS = ((1,), (2,), (17,), (96,), (5, 3), (40, 30))  # lengths; of pairs two
LOGITS, SCORES = 1e-4, 1e-5  # of the largest; absolute
SEQUENCE, TOKENS = "AutoModelForSequenceClassification", "AutoModelForTokenClassification"
PRETRAINING = "AutoModelForPreTraining"
HOW = dict(attn_implementation="eager", experts_implementation="eager")
RAW = dict(problem_type="regression")  # so that the numbers are compared, not what they become
ENCODER_KINDS = {family for family, *_ in make_encoders.MODELS.values()} | {
    family for family, *_ in make_encoders.MORE.values()
}
ENCODERS = {**make_encoders.MODELS, **make_encoders.MORE}
BOTH = {**make_encoder_decoders.MODELS, **make_encoder_decoders.MORE}


def encoder_cases() -> dict[str, tuple[str, dict, str]]:
    found = {}
    for name, (family, values, _) in ENCODERS.items():
        for kind, short in ((SEQUENCE, "texts"), (TOKENS, "tokens")):
            found[f"{name}-{short}"] = (family, {**values, **RAW, "num_labels": 5}, kind)
    for family, ways in {
        "modernbert": ("cls", "mean"),
        "eurobert": ("bos", "mean", "late"),
    }.items():
        for way in ways:
            values = {**ENCODERS[family][1], **RAW, "num_labels": 3, "classifier_pooling": way}
            found[f"{family}-{way}"] = (family, values, SEQUENCE)
    del found["embedding-gemma-tokens"]  # for which transformers has no class
    for way in ("first", "last", "mean"):
        more = dict(summary_type=way, summary_activation="tanh" if way == "mean" else None)
        found[f"xlm-{way}"] = ("xlm", {**ENCODERS["xlm"][1], **RAW, **more}, SEQUENCE)
    for name in ("bart", "mvp", "t5-gated"):
        family, values, _ = BOTH[name]
        found[f"{name}-texts"] = (family, {**values, **RAW, "num_labels": 5}, SEQUENCE)
    values = ENCODERS["bert"][1]
    single, several = "single_label_classification", "multi_label_classification"
    for n, problems in ((1, (several, None)), (4, (single, several, None))):
        for problem in problems:
            name = f"bert-{n}-{str(problem).partition('_')[0]}"
            found[name] = ("bert", {**values, "num_labels": n, "problem_type": problem}, SEQUENCE)
    found["electra-discriminator"] = ("electra", ENCODERS["electra"][1], PRETRAINING)
    found["bert-wide"] = ("bert", {**values, **RAW, "num_labels": 500}, SEQUENCE)
    return found


def decoder_cases() -> dict[str, tuple[str, dict, str]]:
    """The first config of each family that has such a head."""
    found, seen = {}, set()
    auto = transformers.models.auto.modeling_auto
    maps = {
        SEQUENCE: auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
        TOKENS: auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    }
    for family, values in {**make_golden.MODELS, **make_golden.MORE}.values():
        if family not in make_golden.WITHOUT_COMMON:
            values = {**make_golden.COMMON, **values}
        for kind, has in maps.items():
            if family in make_golden.HALVES or family not in has or (family, kind) in seen:
                continue
            seen.add((family, kind))
            more = {**RAW, "num_labels": 5, "pad_token_id": 7}
            name = f"{family}-decoder-{'texts' if kind == SEQUENCE else 'tokens'}"
            found[name] = (family, {**values, **more}, kind)
    return found


def make(case: tuple[str, dict, str], seed: int, directory: Path):
    """Saves a random model and returns it as it was read back."""
    family, values, kind = case
    torch.manual_seed(seed)
    config = transformers.AutoConfig.for_model(family, **values)
    loader = getattr(transformers, kind)
    model = loader.from_config(config).float().eval()
    both = make_encoder_decoders if family in make_golden.HALVES else make_golden
    make = make_encoders if family in ENCODER_KINDS else both
    make.randomize(model, torch)
    shutil.rmtree(directory, ignore_errors=True)
    model.save_pretrained(directory)
    return loader.from_pretrained(directory, dtype=torch.float32, **HOW).eval()


def texts_of(model, kind: str, seed: int) -> list[tuple[list[int], int]]:
    """Ids, and where a second text begins. The last ends in padding tokens, as a text may."""
    config = model.config.get_text_config()
    types = getattr(config, "type_vocab_size", 0) or 0
    rng = np.random.default_rng(seed)
    low = 8 if getattr(config, "pad_token_id", None) == 7 else 3
    found = []
    for lengths in TEXTS:
        ids = rng.integers(low, config.vocab_size, sum(lengths)).tolist()
        if model.config.is_encoder_decoder:
            ids[-1] = config.eos_token_id
        found.append(
            (ids, lengths[0] if len(lengths) == 2 and types > 1 and kind == SEQUENCE else 0)
        )
    # A RoBERTa that is a decoder counts padding in transformers, too, once it has a cache.
    if low == 8 and not (getattr(config, "is_decoder", False) and "roberta" in config.model_type):
        found += [([9, 10, 7, 11, 7, 7], 0), ([7, 7, 7], 0)]
    return found


def expected(model, texts) -> np.ndarray:
    rows = []
    for ids, second in texts:
        more = {}
        if second:
            more["token_type_ids"] = torch.tensor([[int(i >= second) for i in range(len(ids))]])
        with torch.no_grad():
            logits = model(torch.tensor([ids]), **more).logits[0]
        one_class = type(model).__name__.endswith("ForPreTraining")  # a number for each token
        rows.append(logits.reshape(-1, 1 if one_class else model.config.num_labels))
    return np.concatenate([row.numpy() for row in rows])


def scored(model, kind: str, logits: np.ndarray) -> tuple[np.ndarray, float]:
    """What a pipeline makes of the logits, and how near the engine must come."""
    problem, x = model.config.problem_type, torch.tensor(logits)
    if kind == TOKENS:
        return x.softmax(-1).numpy(), SCORES
    if kind == PRETRAINING:
        return x.sigmoid().numpy(), SCORES
    if problem == "regression":
        return logits, LOGITS * float(np.abs(logits).max())
    several = problem == "multi_label_classification" or logits.shape[1] == 1
    return (x.sigmoid() if several else x.softmax(-1)).numpy(), SCORES


def rounding_of(case, directory: Path, texts) -> float:
    kind = case[2]

    def scores_of(model):
        return torch.from_numpy(scored(model, kind, expected(model, texts))[0])

    return rounding(getattr(transformers, kind), directory, scores_of, **HOW)


def check(name: str, case, seed: int, out: Path) -> bool:
    kind = case[2]
    model = make(case, seed, out / name)
    texts = texts_of(model, kind, seed)
    logits = expected(model, texts)
    want, tolerance = scored(model, kind, logits)
    binary = out / "model.bin"
    assert export.main([str(out / name), str(binary), "--dtype", "f32"]) == 0
    bits = set()
    for options in (dict(chunk=128), dict(chunk=16, threads=1)):
        with Model(binary, kv="f32", **options) as m:
            found = _classes.scores(m, texts)
            bits.add(found.tobytes())
            bits.add(np.concatenate([_classes.scores(m, [text]) for text in texts]).tobytes())
    error = float(np.abs(found - want).max()) if found.shape == want.shape else np.inf
    if tolerance < error < np.inf:  # a norm may be too steep for float32
        steepness = rounding_of(case, out / name, texts)
        tolerance = max(tolerance, 4 * steepness * float(np.abs(want).max()))
    good = error <= tolerance and len(bits) == 1
    print(f"{name:28} {error:.1e} of {tolerance:.1e}{'' if good else '  WRONG'}", flush=True)
    return good


# ---- sentence-transformers ----

WORDS = ("hello", "fox", "a", "zz", "quick", "brown", "lazy", "", "over", "dog")
POOLINGS = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")


def random_texts(rng, n: int) -> list[str]:
    lengths = [*rng.integers(0, 12, n - 3), 60, 90, 130]
    return [" ".join(WORDS[i] for i in rng.integers(0, len(WORDS), length)) for length in lengths]


def compared(name: str, found: np.ndarray, want: np.ndarray) -> bool:
    error = float(np.abs(found - want).max() / max(1, np.abs(want).max()))
    good = found.shape == want.shape and error <= SCORES
    print(f"{name:28} {error:.1e} of {SCORES:.1e}{'' if good else '  WRONG'}", flush=True)
    return good


def check_models_for_vectors(seed: int, out: Path) -> bool:
    """A decoder that was saved without its output, and EmbeddingGemma."""
    from sentence_transformers import SentenceTransformer, models

    good = True
    qwen = make_golden.sizes(61, 36, 50, 6, 2, **make_golden.COMMON)
    for family, values, mode in (
        ("qwen3", qwen, "lasttoken"),
        ("gemma3_text", ENCODERS["embedding-gemma"][1], "mean"),
    ):
        source = test_encoders.with_texts(out / family, modules=None, sentence_bert_config=None)
        torch.manual_seed(seed)
        config = transformers.AutoConfig.for_model(family, **values)
        model = transformers.AutoModel.from_config(config).float()
        make_golden.randomize(model, torch)
        model.save_pretrained(source)
        dense = models.Dense(36, 50, bias=False, activation_function=torch.nn.Identity())
        parts = [models.Transformer(str(source), max_seq_length=40), models.Pooling(36, mode)]
        theirs = SentenceTransformer(modules=[*parts, dense, models.Normalize()])
        theirs.save_pretrained(str(source / "saved"))
        texts = random_texts(np.random.default_rng(seed), 12)
        with exported(source / "saved") as m:
            good &= compared(f"vectors of {family}", m.embed(texts), theirs.encode(texts))
    return good


def exported(source: Path) -> Model:
    binary = source / "model.bin"
    assert export.main([str(source), str(binary), "--dtype", "f32"]) == 0
    return Model(binary, kv="f32")


def check_cross_encoder(seed: int, out: Path) -> bool:
    """A BERT with one class and pairs of any length, as old files and as CrossEncoder saves it, and
    with a tokenizer of no class, which gives no types."""
    from sentence_transformers import CrossEncoder

    rng, good = np.random.default_rng(seed), True
    identity = dict(sbert_ce_default_activation_function="torch.nn.modules.linear.Identity")
    for name, changes in (("sigmoid", {}), ("identity", identity)):
        source = classifiers.make("reranker", out / name, **changes)
        CrossEncoder(str(source)).save_pretrained(str(source / "saved"))
        bare = Path(shutil.copytree(source / "saved", source / "bare"))
        config = bare / "tokenizer_config.json"
        config.write_text(config.read_text().replace("BertTokenizer", "PreTrainedTokenizerFast"))
        queries, documents = random_texts(rng, 12), random_texts(rng, 12)
        pairs = list(zip(queries, documents[::-1]))
        for folder in (source, source / "saved", bare):
            theirs = CrossEncoder(str(folder))
            want = theirs.predict(pairs)
            ranked = [(x["corpus_id"], x["score"]) for x in theirs.rank(queries[0], documents)]
            with exported(folder) as m:
                found = np.array([row[0].score for row in m.classify(pairs)])
                good &= compared(f"CrossEncoder {name} {folder.name}", found, want)
                ours = m.rank(queries[0], documents)
                scores = np.array([score for _, score in ours])
                good &= compared("  ranked", scores, np.array([s for _, s in ranked]))
    return good


def check_vectors(seed: int, out: Path) -> bool:
    """Every pooling, alone and with Dense modules, and with vectors of length 1."""
    from sentence_transformers import SentenceTransformer, models

    rng, good = np.random.default_rng(seed), True
    torch.manual_seed(seed)
    acts = (torch.nn.Tanh(), torch.nn.Identity(), torch.nn.ReLU(), torch.nn.GELU(), torch.nn.SiLU())
    for i, mode in enumerate(POOLINGS):
        source = test_encoders.with_texts(out / mode, modules=None, sentence_bert_config=None)
        parts = [models.Transformer(str(source), max_seq_length=40)]
        parts.append(models.Pooling(36, mode))
        if i % 2:
            parts.append(models.Dense(36, 50, activation_function=acts[i % 5]))
            parts.append(models.Dense(50, 21, bias=False, activation_function=acts[i // 2]))
        if i % 3 == 1:
            parts.append(models.Normalize())
        theirs = SentenceTransformer(modules=parts)
        theirs.save_pretrained(str(out / mode / "saved"))
        texts = random_texts(rng, 12)
        with exported(out / mode / "saved") as m:
            good &= compared(f"vectors {mode}", m.embed(texts), theirs.encode(texts))
    return good


CASES = {**encoder_cases(), **decoder_cases()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seed", type=int, default=zlib.crc32(str(np.random.random()).encode()))
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    print(f"seed {args.seed}")
    names = args.names or list(CASES)
    failed = []
    with tempfile.TemporaryDirectory() as out:
        for name in names:
            if not check(name, CASES[name], args.seed, Path(out)):
                failed.append(name)
        others = (check_cross_encoder, check_vectors, check_models_for_vectors)
        for work in () if args.names else others:
            folder = Path(out) / work.__name__
            folder.mkdir()
            if not work(args.seed, folder):
                failed.append(work.__name__)
    print(
        f"seed {args.seed}, {len(names)} models, {len(failed)} differ: {' '.join(failed) or 'none'}"
    )
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
