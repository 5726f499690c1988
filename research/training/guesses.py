"""Trains a layer that guesses the token after the next for SmolLM2-135M-Instruct.

    python -m research.training.guesses smollm2.gguf OUT

    OUT/base    the text's model, with modules.json: the engine gives a hidden state for each token
    OUT/texts   what it wrote itself, asked for code, prose and chat, with these hidden states
    OUT/state   the training's, every few minutes: a run that was stopped goes on
    OUT/model   the checkpoint with the layer, for export.py

The layer is MiMo's (arXiv 2505.07608), whose main part without biases is Llama's. Its targets are
what the text's model says of the token, over the tokens that it uses most; it learns guesses two
and three from its own hidden states, as the engine chains them. 20 minutes of a Zen 5 core, from
768 texts. `--requests KIND` writes requests about subjects that these texts have not, for
`./run OUT/model.bin --batch`. gguf and safetensors beside what `make model` installs.

Of 24 such texts a kind (q8, -np 8, a stopped clock) the first guesses taken: code 43 % greedy, 32 %
at temperature 0.8; prose 33 % and 21 %; chat 29 % and 19 %. A guess costs 0.38 of a pass there,
since a fifth of the bytes that a token reads is the output matrix: one guess makes greedy code 1.05
times as fast, two 0.94, three 0.81, where no guard ends them (CPU seconds of four texts, one
thread, a busy machine).
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import shutil
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

import heads
from research.learning import cosine_schedule, update

KINDS = ("code", "prose", "chat")
CODE = (
    ("Write a Python function", "Write a C function", "Write a JavaScript function"),
    ("that sorts", "that reverses", "that counts", "that prints", "that finds the largest of")
    + ("that removes duplicates from", "that checks", "that sums", "that filters", "that copies"),
    ("a list of numbers", "a string", "the words of a text", "a linked list", "a matrix")
    + ("a file of lines", "a binary tree", "an array of names", "a dictionary", "a stack"),
)
PROSE = (
    ("Write a short story", "Write a letter", "Write a poem", "Write a news article", "Write"),
    ("about", "about a child and", "about an old man and", "in simple words about"),
    ("the sea", "a lost dog", "winter", "a train journey", "the moon", "a garden", "a small town")
    + ("a storm", "music", "friendship", "a mountain", "a robot", "a market", "a school"),
)
CHAT = (
    ("What is", "Explain", "Give me tips about", "Why should I care about", "Tell me three facts")
    + ("How do I learn about", "Summarize what you know of", "List questions about"),
    ("", "briefly:", "to a child:"),
    ("photosynthesis", "saving money", "healthy food", "the French Revolution", "gravity")
    + ("job interviews", "running", "climate", "volcanoes", "computers", "sleep", "Shakespeare")
    + ("electricity", "cooking rice", "the heart", "planets", "democracy", "bees", "writing"),
)
LONGEST, CHAIN, FREQUENT = 256, 3, 4096  # tokens of a text; guesses; targets
THETA, EPS = 1e5, 1e-5


def prompts(part: str) -> list[tuple[str, str]]:
    """(kind, request), mixed; one subject of five is kept for "test"."""
    found = []
    for kind, words in zip(KINDS, (CODE, PROSE, CHAT)):
        for chosen in itertools.product(*words):
            held = words[-1].index(chosen[-1]) % 5 == 4
            if held == (part == "test"):
                found.append((kind, " ".join(word for word in chosen if word) + "."))
    random.Random(1).shuffle(found)
    return found


# ---- what the text's model says ----


def make_base(gguf: Path, base: Path) -> None:
    if (base / "modules.json").exists():
        return
    base.mkdir(exist_ok=True)
    given = {"gguf_file": gguf.name, "dtype": torch.float32}
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, **given)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(base)
    tensors = {name: w.contiguous() for name, w in model.state_dict().items()}
    tensors.pop("lm_head.weight", None)
    save_file(tensors, base / "model.safetensors", {"format": "pt"})
    config = model.config.to_dict()
    for key in ("quantization_config", "_model_name_or_path"):
        config.pop(key)
    (base / "config.json").write_text(json.dumps(config, indent=1))
    (base / "1_Pooling").mkdir(exist_ok=True)
    pooling = {"word_embedding_dimension": config["hidden_size"], "pooling_mode_mean_tokens": True}
    (base / "1_Pooling/config.json").write_text(json.dumps(pooling))
    kinds = (("", "Transformer"), ("1_Pooling", "Pooling"))
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": "sentence_transformers.models." + kind}
        for i, (path, kind) in enumerate(kinds)
    ]
    (base / "modules.json").write_text(json.dumps(modules))


def write_texts(base: Path, out: Path, n: int) -> None:
    """n texts in files of 64: ids, where the answer begins, hidden states after the last norm."""
    out.mkdir(exist_ok=True)
    tokenizer, binary = AutoTokenizer.from_pretrained(base), base / "q8.bin"
    if not binary.exists():
        heads.export(base, binary, dtype="q8")
    asked = [text for _, text in prompts("train")]
    with heads.Model(binary, threads=1, context=512) as model:
        for first in range(0, n, 64):
            path = out / f"{first:05}.npz"
            if path.exists():
                continue
            ids = [
                tokenizer.apply_chat_template(
                    [{"role": "user", "content": asked[i % len(asked)]}],
                    add_generation_prompt=True,
                )["input_ids"]
                for i in range(first, first + 64)
            ]
            heat = 0 if first // 64 % 2 else 0.8
            most = LONGEST - max(map(len, ids))
            said = model.generate(ids, most, temperature=heat, seed=first, parallel=64)
            whole = [a + b.tokens for a, b in zip(ids, said)]
            rows = model.token_vectors(whole)
            partial = path.with_suffix(".partial.npz")
            np.savez(
                partial,
                ids=np.concatenate(whole),
                lengths=[len(one) for one in whole],
                begin=[len(one) for one in ids],
                hidden=np.concatenate(rows).astype(np.float16),
            )
            partial.rename(path)
            print(f"{first + 64} texts, {sum(len(one.tokens) for one in said)} tokens", flush=True)


def read_texts(out: Path) -> list[tuple]:
    texts = []
    for path in sorted(out.glob("?????.npz")):
        file = dict(np.load(path))
        ends = np.cumsum(file["lengths"])
        for end, n, begin in zip(ends, file["lengths"], file["begin"]):
            some = slice(end - n, end)
            if n - begin > CHAIN:
                texts.append((file["ids"][some], file["hidden"][some], int(begin)))
    return texts


# ---- the layer ----


class Guesser(nn.Module):
    """MiMo's layer, begun as a copy of the text's last."""

    def __init__(self, tensors: dict[str, torch.Tensor], n_layers: int, n_heads: int):
        super().__init__()
        last = f"model.layers.{n_layers - 1}."
        self.layer = nn.ParameterDict(
            {
                name[len(last) :].replace(".", "_"): nn.Parameter(w.clone())
                for name, w in tensors.items()
                if name.startswith(last)
            }
        )
        self.names = {
            n[len(last) :].replace(".", "_"): n[len(last) :] for n in tensors if last in n
        }
        n = tensors["model.norm.weight"].shape[0]
        self.n_heads, self.width = n_heads, n // n_heads
        self.proj = nn.Parameter(torch.cat([torch.eye(n), 0.1 * torch.eye(n)], 1))
        self.norms = nn.ParameterDict(
            {
                "token_layernorm": nn.Parameter(torch.ones(n)),
                "hidden_layernorm": nn.Parameter(torch.ones(n)),
                "final_layernorm": nn.Parameter(tensors["model.norm.weight"].clone()),
            }
        )

    def split(self, x: torch.Tensor, name: str) -> torch.Tensor:
        w = self.layer[f"self_attn_{name}_weight"]
        return (x @ w.T).unflatten(-1, (-1, self.width)).transpose(1, 2)

    def turned(self, x: torch.Tensor, first: int) -> torch.Tensor:
        half = self.width // 2
        speed = THETA ** (-torch.arange(half) / half)
        angle = torch.outer(torch.arange(first, first + x.shape[2]), speed)
        cos, sin = angle.cos(), angle.sin()
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def forward(self, hidden, embedded, step: int, before: list):
        """A row's hidden state and its next token's embedding, `step` tokens behind the text's row;
        before: keys and values of the steps before, to which this one's are added. A row sees the
        text's rows up to its own, and what chained from its own."""
        p = self.layer
        pair = [
            norm(hidden, self.norms["hidden_layernorm"]),
            norm(embedded, self.norms["token_layernorm"]),
        ]
        x = torch.cat(pair, -1) @ self.proj.T
        y = norm(x, p["input_layernorm_weight"])
        q, k, v = (self.split(y, name) for name in ("q_proj", "k_proj", "v_proj"))
        before.append((self.turned(k, step), v))
        n = x.shape[1]
        own = torch.eye(n, dtype=torch.bool)
        seen = torch.cat([torch.ones_like(own).tril(), *[own] * step], 1)
        keys, values = (torch.cat(some, 2) for some in zip(*before))
        mixed = F.scaled_dot_product_attention(
            self.turned(q, step), keys, values, seen, enable_gqa=True
        )
        x = x + mixed.transpose(1, 2).flatten(2) @ p["self_attn_o_proj_weight"].T
        y = norm(x, p["post_attention_layernorm_weight"])
        gate = F.silu(y @ p["mlp_gate_proj_weight"].T)
        x = x + (gate * (y @ p["mlp_up_proj_weight"].T)) @ p["mlp_down_proj_weight"].T
        return norm(x, self.norms["final_layernorm"])

    def tensors(self) -> dict[str, torch.Tensor]:
        named = {self.names[name]: w for name, w in self.layer.items()}
        named |= {f"{name}.weight": w for name, w in self.norms.items()}
        named["input_proj.weight"] = self.proj
        return {f"model.mtp_layers.0.{n}": w.detach().contiguous() for n, w in named.items()}


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, weight.shape, weight, EPS)


def losses(guesser: Guesser, embedding, output, some: list, steps: int):
    """The loss of some texts, and of each step the share of guesses that are the text's model's."""
    longest = max(len(ids) for ids, _, _ in some)
    ids = torch.zeros(len(some), longest, dtype=torch.long)
    hidden = torch.zeros(len(some), longest, embedding.shape[1])
    wanted = torch.zeros(len(some), longest, dtype=torch.bool)
    for i, (tokens, rows, begin) in enumerate(some):
        ids[i, : len(tokens)] = torch.from_numpy(tokens.astype(np.int64))
        hidden[i, : len(tokens)] = torch.from_numpy(rows.astype(np.float32))
        wanted[i, begin - 1 : len(tokens) - 1] = True  # rows that say a token of the answer
    with torch.no_grad():
        said = torch.zeros(len(some), longest, len(output))
        said[wanted] = (hidden[wanted] @ output.T).softmax(-1)
    loss, shares, before, rows = 0.0, [], [], hidden
    n = longest - CHAIN
    rows = rows[:, :n]
    for step in range(steps):
        rows = guesser(rows, embedding[ids[:, step + 1 : step + 1 + n]], step, before)
        mask = wanted[:, step + 1 : step + 1 + n]
        logits, target = rows[mask] @ output.T, said[:, step + 1 : step + 1 + n][mask]
        loss = loss - (target * logits.log_softmax(-1)).sum(-1).mean()
        shares.append(float((logits.argmax(-1) == target.argmax(-1)).float().mean()))
    return loss / steps, shares


def train(texts: list, tensors: dict, config: dict, out: Path, args) -> Guesser:
    embedding = tensors["model.embed_tokens.weight"]
    counts = np.bincount(np.concatenate([ids for ids, _, _ in texts]), minlength=len(embedding))
    output = embedding[torch.from_numpy(np.argsort(-counts, kind="stable")[:FREQUENT].copy())]
    guesser = Guesser(tensors, config["num_hidden_layers"], config["num_attention_heads"])
    optimizer = torch.optim.AdamW(
        guesser.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.01
    )
    schedule = cosine_schedule(optimizer, args.steps, 50)
    state, first = out / "state", 0
    if state.exists():
        saved = torch.load(state)
        first = saved.pop("step")
        for name, to in (("model", guesser), ("optimizer", optimizer), ("schedule", schedule)):
            to.load_state_dict(saved[name])
    begun = time.time()
    for step in range(first, args.steps):
        some = random.Random(f"{args.seed} {step}").sample(texts, args.batch)
        steps = 1 if step < args.steps // 2 else CHAIN
        loss, shares = losses(guesser, embedding, output, some, steps)
        update(guesser, loss, [optimizer], [schedule])
        if step % 20 == 0:
            right = " ".join(f"{share:.2f}" for share in shares)
            print(f"step {step}, {time.time() - begun:.0f} s: {loss:.3f} nats, {right}", flush=True)
        if (step + 1) % args.save == 0 or step + 1 == args.steps:
            parts = {"model": guesser, "optimizer": optimizer, "schedule": schedule}
            saved = {name: part.state_dict() for name, part in parts.items()}
            torch.save({**saved, "step": step + 1}, out / "state.partial")
            (out / "state.partial").rename(state)
            write_model(guesser, tensors, config, out)
    return guesser


def write_model(guesser: Guesser, tensors: dict, config: dict, out: Path) -> None:
    model = out / "model"
    shutil.rmtree(model, ignore_errors=True)
    skipped = shutil.ignore_patterns("*.bin", "modules.json", "1_Pooling", "*.safetensors")
    shutil.copytree(out / "base", model, ignore=skipped)
    given = {"model_type": "mimo", "architectures": ["MiMoForCausalLM"], "attention_bias": False}
    config = {**config, **given, "num_nextn_predict_layers": 1}
    del config["mlp_bias"]  # no key of MiMo's
    (model / "config.json").write_text(json.dumps(config, indent=1))
    save_file({**tensors, **guesser.tensors()}, model / "model.safetensors", {"format": "pt"})


def requests(kind: str, n: int, most: int, heat: float) -> str:
    """Lines for ./run --batch, of subjects that the layer has not seen."""
    some = [text for one, text in prompts("test") if one == kind][:n]
    lines = [
        {"id": i, "messages": [{"role": "user", "content": text}], "max_tokens": most}
        | {"temperature": heat, "seed": i}
        for i, text in enumerate(some)
    ]
    return "".join(json.dumps(line) + "\n" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a layer that guesses next tokens.")
    parser.add_argument("gguf", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--requests", choices=KINDS, help="write 24 of them, and train nothing")
    parser.add_argument("--temperature", type=float, default=0, help="theirs")
    parser.add_argument("--texts", type=int, default=768)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=6)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--save", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.requests:
        print(requests(args.requests, 24, 160, args.temperature), end="")
        return
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    args.out.mkdir(exist_ok=True, parents=True)
    base = args.out / "base"
    make_base(args.gguf, base)
    write_texts(base, args.out / "texts", args.texts)
    config = json.loads((base / "config.json").read_text())
    tensors = load_file(base / "model.safetensors")
    train(read_texts(args.out / "texts"), tensors, config, args.out, args)


if __name__ == "__main__":
    main()
