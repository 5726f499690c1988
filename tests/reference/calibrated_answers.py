#!/usr/bin/env python3
"""What --calibrate is worth to an encoder-decoder with random weights: BART and T5, 256 wide, four
layers on each side, with the tokenizer of models/hf. Sources are stories of research/stories.py, most
of them for calibration; what the f32 model writes, by chance, for 60 others is what is measured.

    python tests/reference/calibrated_answers.py FOLDER     (torch 2.13.0, transformers 5.23.0)

For each coding it prints the mean KL divergence of the next token's distribution from f32's, in
nats, and how often the likeliest token is the same."""

from __future__ import annotations

import contextlib
import io
import json
import random
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "python")]

import export  # noqa: E402
import heads  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from transformers import BartConfig, BartForConditionalGeneration  # noqa: E402
from transformers import T5Config, T5ForConditionalGeneration  # noqa: E402

from research import stories  # noqa: E402

BEGIN, END = 0, 1
SHAPE = {"vocab_size": 3071, "d_model": 256, "pad_token_id": BEGIN, "eos_token_id": END}
CODINGS = ("q8", "q8 --calibrate", "q4", "q4 --calibrate")


def bart():
    return BartForConditionalGeneration(
        BartConfig(
            **SHAPE,
            encoder_layers=4,
            decoder_layers=4,
            encoder_attention_heads=8,
            decoder_attention_heads=8,
            encoder_ffn_dim=1024,
            decoder_ffn_dim=1024,
            init_std=0.08,
            max_position_embeddings=256,
            bos_token_id=BEGIN,
            decoder_start_token_id=END,
            forced_eos_token_id=None,
        )
    )


def t5():
    model = T5ForConditionalGeneration(
        T5Config(
            **SHAPE,
            d_kv=32,
            num_heads=8,
            d_ff=640,
            num_layers=4,
            feed_forward_proj="gated-gelu",
            tie_word_embeddings=False,
            decoder_start_token_id=BEGIN,
        )
    )
    model.lm_head.weight.data *= 0.1  # else one token has it all
    return model


def save(model, folder: Path) -> None:
    model.generation_config.max_length = 256
    model.generation_config.forced_eos_token_id = None
    model.save_pretrained(folder)
    tokenizer = json.loads((ROOT / "models/hf/tokenizer.json").read_text())
    end = "<|end|>"
    around = [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": end, "type_id": 0}}]
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": around,
        "pair": around,
        "special_tokens": {end: {"id": end, "ids": [END], "tokens": [end]}},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    shutil.copy(ROOT / "models/hf/tokenizer_config.json", folder)


def rows(path: Path, pairs: list) -> np.ndarray:
    """The logarithms of what is likely next, everywhere in the texts."""
    with heads.Model(path, kv="f32") as model:
        logits = np.concatenate([model.logits(ids, source=source) for source, ids in pairs])
    logits = logits.astype(np.float64) - logits.max(1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def main() -> None:
    folder = Path(sys.argv[1])
    numbers = random.Random(1)
    sources = [" ".join(stories.story(numbers).split()[:120]) for _ in range(260)]
    folder.mkdir(parents=True, exist_ok=True)
    lines = folder / "sources.txt"
    lines.write_text("\n".join(sources[60:]))
    for name, make, start in (("bart", bart, END), ("t5", t5, BEGIN)):
        torch.manual_seed(3)
        save(make(), folder / name)
        for coding in ("f32", *CODINGS):
            path = folder / f"{name} {coding}.bin"
            options = [*coding.split(), *([str(lines)] if "cal" in coding else [])]
            with contextlib.redirect_stdout(io.StringIO()):
                assert export.main([str(folder / name), str(path), "--dtype", *options]) == 0
            if coding == "f32":
                with heads.Model(path) as model:
                    texts = model.generate(sources[:60], 64, temperature=1, seed=5)
                pairs = [(s, [start, *t.tokens]) for s, t in zip(sources, texts)]
                exact = rows(path, pairs)
                continue
            found = rows(path, pairs)
            nats = (np.exp(exact) * (exact - found)).sum(1).mean()
            same = (exact.argmax(1) == found.argmax(1)).mean()
            size = path.stat().st_size / 1e6
            print(f"{name} {coding}: {size:.2f} MB, {nats:.4f} nats, {same:.1%}", flush=True)


if __name__ == "__main__":
    main()
