#!/usr/bin/env python3
"""Layers that guess next tokens, of fresh random checkpoints of each family that may have them, against transformers:

    python tests/reference/live_guesses.py [NAME...] [--seed S] [--sample N]     (torch 2.13.0, transformers 5.23.0)

The oracle is the published formula, dense: the family's own layer, run by transformers behind the text's layers on
proj [norm of the next token's embedding; norm of the text's hidden state]; and where transformers has multi-token
prediction of its own (MtpModel), that too. Guesses chain: the layer's hidden state is the next guess's."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]
import conftest  # noqa: E402, F401  (which sets sys.path)
import export  # noqa: E402
import guess_layers  # noqa: E402
import make_golden  # noqa: E402

NAMES = (
    "deepseek_v3",
    "ernie4_5_moe",
    "glm4_moe",
    "glm4_moe_lite",
    "exaone_moe",
    "mellum",
    "mimo",
    "nemotron_h",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_next",
)
IN_TRANSFORMERS = ("deepseek_v3", "glm4_moe", "mellum")
N, CHAIN = 24, 3


def longer(config: dict) -> dict:
    """The config with one more layer, which is of the kind that guesses; of Nemotron's two."""
    if config["model_type"] == "nemotron_h":
        more = config["layers_block_type"] + ["full_attention", "moe"]
        return {**config, "layers_block_type": more, "num_hidden_layers": len(more)}
    n = config["num_hidden_layers"]
    config = {**config, "num_hidden_layers": n + 1}
    if config["model_type"] == "mimo":
        config |= {
            "model_type": "qwen2",
            "architectures": ["Qwen2ForCausalLM"],
            "attention_bias": True,
        }
    if config["model_type"] == "ernie4_5_moe":
        config["moe_layer_end_index"] = n - 1  # it has no experts
    for key, kind in (
        ("layer_types", "full_attention"),
        ("mlp_layer_types", "dense" if config["model_type"] == "exaone_moe" else "sparse"),
    ):
        if config.get(key):
            config[key] = config[key][:n] + [kind]
    return config


class Formula:
    """The text's model with the layer that guesses behind its layers, and hooks around that layer."""

    def __init__(self, directory: Path, out: Path):
        import torch
        from safetensors.torch import load_file, save_file

        config = json.loads((directory / "config.json").read_text())
        self.n, kind = guess_layers.text_layers(config), config["model_type"]
        tensors = load_file(directory / "model.safetensors")
        layers, around = guess_layers.modules(config)
        # What is around them stands in a layer's place in some checkpoints; Ernie's norm is the text's.
        names = [module + ".weight" for module in around]
        of_model = [
            tensors[name] if name == "model.norm.weight" else tensors.pop(name) for name in names
        ]
        prefix = next(name for name in tensors if ".layers.0." in name).split(".layers.")[0]
        moved = dict(tensors)
        for i, layer in enumerate(layers):
            for name in [name for name in moved if name.startswith(layer + ".")]:
                moved[f"{prefix}.layers.{self.n + i}{name[len(layer) :]}"] = moved.pop(name)
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        (out / "config.json").write_text(json.dumps(longer(config)))
        save_file(
            {name: values.contiguous() for name, values in moved.items()},
            out / "model.safetensors",
            {"format": "pt"},
        )
        self.model = opened(out)
        self.body, self.torch, self.first_hidden = self.model.model, torch, kind == "mimo"
        self.proj, *norms = of_model
        self.norms = [self.norm_of(weight) for weight in norms]
        last = self.last_norm()
        self.text_norm = self.norm_of(last.weight.detach().clone())
        last.weight.data.copy_(norms[2])
        self.body.layers[self.n].register_forward_pre_hook(self.before, with_kwargs=True)
        last.register_forward_hook(self.after)

    def last_norm(self):
        return self.body.norm_f if hasattr(self.body, "norm_f") else self.body.norm

    def norm_of(self, weight):
        last = self.last_norm()
        eps = getattr(last, "variance_epsilon", None) or last.eps
        norm = type(last)(weight.shape[0], eps=eps)
        norm.weight.data.copy_(weight)
        return norm

    def before(self, module, args, kwargs):
        x = args[0] if args else kwargs.pop("hidden_states")
        hidden = self.text_norm(x)
        for position, row in self.own.items():
            hidden[0, position] = row
        self.hidden = hidden
        nexts = self.ids[1:] + [0]  # the last row's is no token, and its result is not used
        parts = [
            self.norms[0](self.body.get_input_embeddings()(self.torch.tensor([nexts]))),
            self.norms[1](hidden),
        ]
        joined = self.torch.cat(parts[::-1] if self.first_hidden else parts, -1)
        return (joined @ self.proj.T, *args[1:]), kwargs

    def after(self, module, args, output):
        self.said = output

    def guesses(self, ids: list[int], most: int) -> tuple[list[int], float]:
        """The tokens after ids, and the least distance between a guess and the second."""
        found, margin, self.own = [], float("inf"), {}
        for _ in range(most):
            self.ids = ids + found
            with self.torch.no_grad():
                logits = self.model(self.torch.tensor([self.ids]), use_cache=False).logits[0, -2]
            best = self.torch.topk(logits, 2)
            margin = min(margin, float(best.values[0] - best.values[1]) / float(logits.abs().max()))
            self.own[len(self.ids) - 1] = self.said[0, -2]
            found.append(int(best.indices[0]))
        return found, margin


def opened(directory: Path):
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    ).eval()


def by_transformers(directory: Path, ids: list[int]) -> list[int]:
    """The first guess after each beginning of ids but the first token's, by transformers' MtpModel."""
    import torch
    import transformers.modeling_layers as layers
    from transformers.cache_utils import MtpCache

    model = opened(directory)
    # Its pattern of names has the layer's number in the published checkpoint.
    n = model.config.num_hidden_layers
    model._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{n}\..*", r"^mtp\."]
    guesser = layers.MtpModel.from_pretrained(model).eval()
    tokens = torch.tensor([ids])
    with torch.no_grad():
        hidden = model.model(tokens, use_cache=False).last_hidden_state
        positions = torch.arange(1, len(ids))[None]
        cache = MtpCache(config=model.config.get_mtp_config())
        said = guesser.forward_layer(0, hidden[:, :-1], positions, cache, input_ids=tokens[:, 1:])
        return guesser._project_to_logits(said)[0].argmax(-1).tolist()


def make(name: str, seed: int, out: Path) -> Path:
    def edit(directory: Path) -> None:
        path = directory / "config.json"
        config = json.loads(path.read_text())
        if name == "mimo":
            config |= {"model_type": "mimo", "num_nextn_predict_layers": 1, "attention_bias": True}
        if name == "mellum":
            config |= {
                "num_nextn_predict_layers": 1,
                "mtp_layer_types": ["full_attention"],
                "mtp_mlp_layer_types": ["sparse"],
            }
        if name == "ernie4_5_moe":
            config["moe_layer_end_index"] = -1  # the text's last
        if name == "exaone_moe":
            config |= {"mtp_layer_types": ["full_attention"]}
        path.write_text(json.dumps(config))
        guess_layers.add_guesses(directory, seed)

    golden = {"mimo": "qwen2-plain"}.get(name, name)
    make_golden.MORE["qwen2-plain"] = ("qwen2", make_golden.sizes(61, 36, 50, 6, 2))
    directory = make_golden.make(golden, seed, out)
    edit(directory)
    return directory


def check(name: str, seed: int, out: Path) -> bool:
    directory = make(name, seed, out)
    ids = json.loads((directory / "golden.json").read_text())["prompt"][:N]
    binary = out / "model.bin"
    if export.main([str(directory), str(binary), "--dtype", "f32"]) != 0:
        print(f"not ok {name}: the export failed")
        return False
    formula, wrong, unclear = Formula(directory, out / "longer"), [], 0
    found = guess_layers.guesses_after(binary, ids, CHAIN)
    later = guess_layers.guesses_after(binary, ids, CHAIN, chunk=5)
    for n, guesses in enumerate(found):
        expected, margin = formula.guesses(ids[: n + 2], CHAIN)
        if margin < 1e-4:
            unclear += 1
        elif guesses != expected:
            wrong.append((n, guesses, expected))
    chunks = later != found[-len(later) :]
    theirs = by_transformers(directory, ids) if name in IN_TRANSFORMERS else []
    others = sum(one[0] != their for one, their in zip(found, theirs))
    good = not wrong and not chunks and unclear < N // 4 and others <= unclear
    print(
        f"{'ok' if good else 'not ok'} {name}, seed {seed}: {len(found)} chains of {CHAIN} guesses"
        + (f", {len(theirs)} also by transformers" if theirs else "")
        + (f", {others} not transformers'" if others else "")
        + (f", other ones: {wrong[:3]}" if wrong else "")
        + (", other ones after a long prompt" if chunks else ""),
        flush=True,
    )
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1000000 + 100000)
    parser.add_argument(
        "--sample", type=int, default=len(NAMES), help="so many, chosen by the seed"
    )
    args = parser.parse_args()
    chosen = args.names or random.Random(args.seed).sample(NAMES, min(args.sample, len(NAMES)))
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as out:
        failed = sum(not check(name, args.seed, Path(out)) for name in chosen)
    print(f"live_guesses: seed {args.seed}, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
