#!/usr/bin/env python3
"""Changes each key of a small model's config.json, and takes each away: where transformers'
answers change, an export must change too, or refuse; where an absent key has a default, it must be
transformers'.

    python tests/reference/live_traps.py [--seed S] [--sample N] [NAME...]

The names are those of live_models.py, encoder-decoders aside (it does the like of them itself).
Needs torch and transformers; exit status 1 if a change is missed."""

from __future__ import annotations

import argparse
import contextlib
import copy
import hashlib
import io
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import conftest  # noqa: E402, F401
import make_encoders  # noqa: E402
import make_golden  # noqa: E402
import numpy as np  # noqa: E402

import export  # noqa: E402

DECODERS = {**make_golden.MODELS, **make_golden.MORE}
ENCODERS = {**make_encoders.MODELS, **make_encoders.MORE}
SAID = ("architectures", "model_type", "dtype", "transformers_version", "id2label", "label2id")
# Keys of which an absence gives other files and yet the same answers to a short text.
LENGTHS = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "sliding_window", "window_size"),
    *("attention_chunk_size", "block_size", "num_random_blocks"),
    "model_max_length",
)
KNOWN = {
    ("flex_olmo", "norm_topk_prob"),  # a norm follows, which takes the factor back
    ("nemotron_h-bias", "head_dim"),  # it has no attention, but its file has the number
    ("dbrx", "rope_parameters"),  # transformers 5.23.0 misses attn_config's rope_theta
}
# How weights begin, which transformers 5.23.0 does to those that it has read; and the pieces that
# it takes sums in, which rounding tells.
HARMLESS = ("rescale_prenorm_residual", "chunk_size", "mamba_chunk_size")
ZEROED = {("youtu", "pad_token_id")}  # the row of the embedding, likewise after it was read
ACTS = {"silu": "gelu", "gelu": "relu", "relu": "gelu", "relu2": "relu", "gelu_new": "gelu"}


def changed(value) -> list:
    """Other values of the same kind."""
    if value is None:
        return [1, True]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, float):
        return [value * 1.7 + 0.1]
    if isinstance(value, int):
        return [value + 1, max(value - 1, 0)]
    if isinstance(value, str):
        return [ACTS[value]] if value in ACTS else []
    return [value[::-1]] if isinstance(value, list) and value != value[::-1] else []


class Checkpoint:
    """A small random model in a folder, whose config.json may be another."""

    def __init__(self, name: str, seed: int, out: Path):
        import torch
        import transformers

        self.folder, self.binary = out / "model", out / "model.bin"
        model_type, values, *kind = ENCODERS.get(name) or DECODERS[name]
        self.loader = getattr(transformers, kind[0] if kind else "AutoModelForCausalLM")
        if not kind and model_type not in make_golden.WITHOUT_COMMON:
            values = {**make_golden.COMMON, **values}
        torch.manual_seed(seed)
        model = self.loader.from_config(transformers.AutoConfig.for_model(model_type, **values))
        (make_encoders if kind else make_golden).randomize(model.float().eval(), torch)
        model.save_pretrained(self.folder)
        self.config = json.loads((self.folder / "config.json").read_text())
        self.ids = torch.randint(5, 60, (1, 40))
        self.more = {} if kind else dict(experts_implementation="eager")
        self.without_cache = {} if kind else dict(use_cache=False)

    def set(self, config: dict) -> None:
        (self.folder / "config.json").write_text(json.dumps(config))

    def answers(self) -> np.ndarray | None:
        """What transformers gives; None if it fails."""
        import torch

        try:
            model = self.loader.from_pretrained(
                self.folder, dtype=torch.float32, attn_implementation="eager", **self.more
            )
            with torch.no_grad():
                output = model.eval()(self.ids, **self.without_cache)
        except Exception:  # whatever a class makes of such a config
            return None
        return (output["logits"] if "logits" in output else output[0]).numpy()

    def file(self) -> str:
        """A hash of what the export gives; empty if it refuses."""
        self.binary.unlink(missing_ok=True)
        failed = export.main([str(self.folder), str(self.binary), "--dtype", "f32"])
        return "" if failed else hashlib.sha256(self.binary.read_bytes()).hexdigest()


def missed(name: str, seed: int, out: Path) -> list[str]:
    """The changes that one sees and the other does not."""
    model, found = Checkpoint(name, seed, out), []
    plain, file, config = model.answers(), model.file(), model.config
    assert plain is not None and file, f"{name} is no model that both take"

    def same(answers: np.ndarray | None) -> bool:
        if answers is None or answers.shape != plain.shape:
            return False
        return float(np.abs(answers - plain).max()) <= 1e-6 * float(np.abs(plain).max())

    keys = [key for key in config if key not in (*SAID, *HARMLESS) and (name, key) not in ZEROED]
    paths = [(key,) for key in keys]
    paths += [(k, inner) for k in keys if isinstance(config[k], dict) for inner in config[k]]
    for path in paths:
        for value in changed(config[path[0]] if len(path) == 1 else config[path[0]][path[1]]):
            other = copy.deepcopy(config)
            (other if len(path) == 1 else other[path[0]])[path[-1]] = value
            model.set(other)
            if model.file() == file:
                answers = model.answers()
                if answers is not None and not same(answers):
                    found.append(f"{'.'.join(path)} = {value!r} is not seen")
    for key in keys:
        if key in LENGTHS or (name, key) in KNOWN:
            continue
        model.set({k: value for k, value in config.items() if k != key})
        exported = model.file()
        answers = model.answers() if exported else None
        if answers is not None and same(answers) != (exported == file):
            found.append(f"the default of {key} is not transformers'")
    return found


def main() -> int:
    names = [*DECODERS, *ENCODERS]
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument(
        "--sample", type=int, default=len(names), help="so many, chosen by the seed"
    )
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1000000)
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    chosen = args.names or random.Random(args.seed).sample(names, min(args.sample, len(names)))
    failed = 0
    for name in chosen:
        with tempfile.TemporaryDirectory() as out, contextlib.redirect_stdout(io.StringIO()):
            with contextlib.redirect_stderr(io.StringIO()):
                found = missed(name, args.seed, Path(out))
        failed += len(found)
        for what in found:
            print(f"not ok {name}: {what}", flush=True)
    print(f"live_traps: seed {args.seed}, {len(chosen)} models, {failed} changes missed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
