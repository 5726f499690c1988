#!/usr/bin/env python3
"""Fresh random checkpoints of every family from a new seed, exported, run, and compared with transformers.

    python tests/ci_live.py [--seed S] [NAME...]      (torch and transformers; exit status 1 if any differs)

Also what the golden files leave out: pytorch_model.bin, bf16 files, and the rules of tied embeddings; and each
checkpoint by way of GGUF."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import conftest  # noqa: E402
import gguf_files  # noqa: E402
import make_golden  # noqa: E402
from test_golden import TOLERANCE, measure  # noqa: E402

import export  # noqa: E402


def as_torch_file(directory: Path) -> None:
    """The weights as a pytorch_model.bin."""
    import torch
    from safetensors.torch import load_file

    file = directory / "model.safetensors"
    torch.save(load_file(file), directory / "pytorch_model.bin")
    file.unlink()


def with_another_head(directory: Path) -> None:
    """A head that differs from the embedding although the config ties them: transformers uses it."""
    import torch
    from safetensors.torch import load_file, save_file

    tensors = load_file(directory / "model.safetensors")
    tensors["lm_head.weight"] = 0.5 * torch.randn_like(tensors["model.embed_tokens.weight"])
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def with_head_only(directory: Path) -> None:
    """Tied embeddings under the head's name."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(directory / "model.safetensors")
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def as_bf16(directory: Path) -> None:
    """The weights in bf16, which the reference widens to float32."""
    import torch
    from safetensors.torch import load_file, save_file

    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in load_file(directory / "model.safetensors").items()}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


EDITED = {
    "smollm2": (with_another_head, with_head_only, as_torch_file, as_bf16),
    "gpt2": (as_torch_file,),
    "gemma": (as_bf16,),
}

# GGUF has no word for a window in some layers only, nor for another activation than the family's.
IN_GGUF = {"llama", "llama-linear", "llama-3", "smollm2", "mistral", "mistral-full", "qwen3", "gpt2", "falcon", "falcon-bias",
           "gemma", "gemma-mha"}  # fmt: skip


def check(name: str, seed: int, edit, out: Path) -> bool:
    directory = make_golden.make(name, seed, out, edit)
    binary = out / "model.bin"
    label = name + (f" {edit.__name__}" if edit else "")
    if export.main([str(directory), str(binary), "--dtype", "f32"]) != 0:
        print(f"not ok {label}: the export failed")
        return False
    error, greedy, expected = measure(directory, binary, conftest.run_command)
    good = error <= TOLERANCE and greedy == expected
    print(
        f"{'ok' if good else 'not ok'} {label}, seed {seed}: logits differ by {error:.1e}, greedy tokens "
        + ("equal" if greedy == expected else f"{greedy} instead of {expected}"),
        flush=True,
    )
    return good


def check_gguf(name: str, seed: int, out: Path) -> bool:
    """The same checkpoint by way of a GGUF file."""
    directory, path, binary = make_golden.make(name, seed, out), out / "x.gguf", out / "model.bin"
    gguf_files.convert(directory, path)
    if export.main([str(path), str(binary), "--dtype", "f32"]) != 0:
        print(f"not ok {name} as GGUF: the export failed")
        return False
    error, greedy, expected = measure(directory, binary, conftest.run_command)
    good = error <= TOLERANCE and greedy == expected
    print(f"{'ok' if good else 'not ok'} {name} as GGUF, seed {seed}: logits differ by {error:.1e}", flush=True)
    return good


def main() -> int:
    names = [*make_golden.MODELS, *make_golden.MORE]
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", default=names, metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1000000 + 100000)
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    failed = 0
    with tempfile.TemporaryDirectory() as out:
        for name in args.names:
            for edit in (None, *EDITED.get(name, ())):
                failed += not check(name, args.seed, edit, Path(out))
            if name in IN_GGUF:
                failed += not check_gguf(name, args.seed, Path(out))
    print(f"ci_live: seed {args.seed}, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
