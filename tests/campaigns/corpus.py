"""Small files of every kind that the engine reads: what the fuzzers start from.

python tests/campaigns/corpus.py FOLDER
"""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
sys.path[:0] = [str(ROOT), *(str(ROOT / "tests" / f) for f in ("", "support", "engine"))]

import chat_templates  # noqa: E402  (found through the line above)
import chats  # noqa: E402
import checkpoints  # noqa: E402
import classifiers  # noqa: E402
import tokenizer_texts  # noqa: E402
from test_encoder_decoders import with_letters  # noqa: E402
from test_encoders import with_texts  # noqa: E402

import export  # noqa: E402
from exporter.templates.chat import chat_metadata  # noqa: E402
from exporter.tokenizers.files import tokenizer_metadata  # noqa: E402

# Dense, windows, experts, latent attention, mixers with states, rope by length, encoders, and
# encoder-decoders; each dtype.
MODELS = {
    "llama": "f32",
    "gemma3": "bf16",
    "gemma4": "q8",
    "gemma4-experts": "q4",
    "gpt_oss": "q8",
    "phi3-longer": "bf16",
    "phimoe": "f32",
    "deepseek_v2": "q8",
    "deepseek_v3": "q4",
    "qwen3_next": "q4",
    "lfm3": "q4",
    "lfm2_moe": "f32",
    "nemotron_h": "q8",
    "falcon_h1-norm": "bf16",
    "mamba2": "q8",
    "falcon_mamba": "q4",
    "olmo_hybrid": "q4",
    "bloom-normed": "q8",
    "kimi_linear": "q8",
    "llama4": "q8",
    "recurrent_gemma": "bf16",
    "zamba2": "q8",
    "encoders/albert": "q8",
    "encoders/deberta-v2": "f32",
    "encoders/modernbert": "f32",
    "encoders/mpnet": "q4",
    "encoder_decoders/bart": "bf16",
    "encoder_decoders/t5-gated": "q8",
    "encoder_decoders/m2m_100": "q4",
}
CLASSES = {"bert": "f32", "bert-tokens": "q8"}
SHAPES = ["gpt_oss", "encoder_decoders/bart"]
TOKENIZERS = ["albert", "marian-pair", "mbart50", "nllb"]
NARROW = {"n_embd": 8, "n_layers": 1, "n_heads": 1, "n_kv_heads": 1, "head_dim": 8, "d_ff": 8}


def exported(source: Path, to: Path, *options: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert export.main([str(source), str(to), *options]) == 0, source


def make(folder: Path) -> None:
    """Models as NAME.bin and NAME.shape; the rest are around a model of next to nothing:
    tokenizer-NAME.bin; template-NAME.bin, with some tokenizer; chat-NAME.bin, with a tokenizer that
    knows words."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, dtype in MODELS.items():
        exported(GOLDEN / name, folder / f"{Path(name).name}.bin", "--dtype", dtype)
    for name in SHAPES:
        exported(GOLDEN / name, folder / f"{Path(name).name}.shape", "--shape-only")
    # With tokenizers of their own: masks and vectors; classes; languages.
    sources = folder / "sources"
    if not sources.exists():
        with_texts(sources / "bert")
        with_letters(sources / "mbart")
        for name in CLASSES:
            classifiers.make(name, sources / f"classes-{name}")
    for name, dtype in CLASSES.items():
        exported(sources / f"classes-{name}", folder / f"classes-{name}.bin", "--dtype", dtype)
    exported(sources / "bert", folder / "bert.bin", "--dtype", "q8")
    exported(sources / "mbart", folder / "mbart.bin", "--dtype", "q8")
    for name in TOKENIZERS:
        metadata = tokenizer_metadata(str(GOLDEN / "unigram" / name))
        tokenizer_texts.write_model(folder / f"tokenizer-{name}.bin", metadata)
    stories = ROOT / "models" / "stories.bin"
    narrow = checkpoints.random_model(tokenizer=stories, **NARROW)
    (folder / "tokenizer-stories.bin").write_bytes(narrow)
    for name in ("thinking", "date", "llama3", "mistral"):
        chat, _ = chat_metadata(chat_templates.EXACT[name], {"eos_token": "</s>"})
        (folder / f"chat-{name}.bin").write_bytes(chats.with_chat(narrow, chat))
        small = (folder / "tokenizer-albert.bin").read_bytes()
        (folder / f"template-{name}.bin").write_bytes(chats.with_chat(small, chat))


if __name__ == "__main__":
    make(Path(sys.argv[1]))
