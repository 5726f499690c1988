"""Heads switched off, what each layer of a decoder would say, activations of another text, and the
parts of a logit and of a head, in transformers: the oracle of --off, --lens, --patch, --attribute
and --parts.
live_models.py uses it for every family."""

from __future__ import annotations

import json
import random
import re
import sys
from contextlib import ExitStack
from inspect import signature
from pathlib import Path
from unittest.mock import patch

import numpy as np

import conftest
import head_files
import make_attention
import test_steering

OUTPUTS = ("o_proj", "c_proj", "dense", "out_proj", "wo")  # names of the matrix after the heads
# The same of models that read a text as a whole, whose layers may have two such matrices.
READS = re.compile(
    r"(attn|attention|attentions\.\d+|selfattention|encdecattention)\.(output\.dense|dense|o|wo|o_proj|out_proj|out_lin)$"
)
CROSS = re.compile(r"encoder_attn|encdecattention")
F32 = ("-ctk", "f32", "-ctv", "f32")
NORMS = ("attn_sub_norm",)  # of a norm between the heads and that matrix


def opened(directory: Path):
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    ).eval()


def layers_of(model):
    """The list of the model's layers."""
    import torch

    lists = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList)]
    n = model.config.get_text_config().num_hidden_layers
    found = [m for m in lists if len(m) == n and "Layer" in type(m[0]).__name__ + "Layer"]
    assert found, "no list of layers"
    return found[0]


def mixed_of(layer):
    """The module whose input is what the heads give, side by side."""
    for names in (NORMS, OUTPUTS):
        for path, module in layer.named_modules():
            parts = path.split(".")
            attends = len(parts) > 1 and "attention" in type(parent(layer, parts)).__name__.lower()
            if parts[-1] in names and attends:
                return module
    for path, module in layer.named_modules():
        if READS.search(path.lower()):
            return module
    raise AssertionError(f"no output matrix in {type(layer).__name__}")


def parent(layer, parts: list[str]):
    module = layer
    for part in parts[:-1]:
        module = getattr(module, part)
    return module


def without(head: int, n_heads: int):
    def hook(_, args):
        mixed = args[0].clone()
        width = mixed.shape[-1] // n_heads
        mixed[..., head * width : (head + 1) * width] = 0
        return (mixed, *args[1:])

    return hook


def logits_of(model, prompt: list[int]) -> np.ndarray:
    import torch

    with make_attention.corrected(), torch.no_grad():
        return model(torch.tensor([prompt]), use_cache=False).logits[0].float().numpy()


def ours(binary: Path, prompt: list[int], *args) -> np.ndarray:
    """What a command of these arguments writes into FILE."""
    out = binary.with_suffix(".f32")
    ids = ("--tokens", " ".join(map(str, prompt)))
    done = conftest.run_command(binary, *ids, *(a if a != "FILE" else out for a in args))
    assert done.returncode == 0, done.stderr
    return np.fromfile(out, "<f4")


def difference(found: np.ndarray, want: np.ndarray) -> float:
    return float(np.abs(found.reshape(want.shape) - want).max() / np.abs(want).max())


def off_error(directory: Path, binary: Path, seed: int) -> float:
    """With a random head of every layer that attends switched off; 0: there is none."""
    prompt = json.loads((directory / "golden.json").read_text())["prompt"]
    ids = ("--tokens", " ".join(map(str, prompt[:2])), "--no-cost")
    data = head_files.heads_of(binary, binary.with_suffix(".json"), *ids)
    attends = [layer for layer in data["layers"] if layer.get("heads")]
    if not attends:
        return 0.0
    model, rng, names = opened(directory), random.Random(seed), []
    for layer in attends:
        head = rng.randrange(layer["n_heads"])
        module = mixed_of(layers_of(model)[layer["layer"]])
        module.register_forward_pre_hook(without(head, layer["n_heads"]))
        names.append(f"{layer['layer']}.{head}")
    found = ours(binary, prompt, *F32, "--off", ",".join(names), "--logits", "FILE")
    return difference(found, logits_of(model, prompt))


def steered(vector: np.ndarray):
    """A hook that adds it to what a layer gives."""
    import torch

    def hook(_, args, output):
        if not isinstance(output, (tuple, list)):
            return output + torch.from_numpy(vector)
        return type(output)([output[0] + torch.from_numpy(vector), *output[1:]])

    return hook


def steer_error(directory: Path, binary: Path, seed: int) -> float:
    """With a vector added after each of two layers, by a file as repeng writes it."""
    prompt = json.loads((directory / "golden.json").read_text())["prompt"]
    model, rng = opened(directory), np.random.default_rng(seed)
    layers, width = layers_of(model), model.config.get_text_config().hidden_size
    some = rng.choice(len(layers), min(2, len(layers)), replace=False)
    vectors = {int(i): 0.25 * rng.standard_normal(width, np.float32) for i in some}
    for i, vector in vectors.items():
        layers[i].register_forward_hook(steered(2 * vector))
    path = test_steering.write(binary.with_suffix(".gguf"), vectors)
    found = ours(binary, prompt, *F32, "--steer", f"{path}:2", "--logits", "FILE")
    return difference(found, logits_of(model, prompt))


def reads_off_error(directory: Path, binary: Path, seed: int) -> float:
    """The same of an encoder, or of an encoder-decoder's encoder, decoder and cross-attention."""
    import torch
    import transformers

    golden, rng = json.loads((directory / "golden.json").read_text()), random.Random(seed)
    text, target = (golden.get(of, golden.get("texts"))[0] for of in ("sources", "targets"))
    decodes = "targets" in golden
    loader = transformers.AutoModelForSeq2SeqLM if decodes else transformers.AutoModel
    config = json.loads((directory / "config.json").read_text())
    if config["architectures"][0].endswith("EncoderModel"):  # half of what AutoModel gives
        loader = transformers.AutoModelForTextEncoding
    model = loader.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    more = ("--target", " ".join(map(str, target)), *F32) if decodes else ()
    ids = ("--tokens", " ".join(map(str, text)), *more)
    data = head_files.heads_of(binary, binary.with_suffix(".json"), *ids, "--no-cost")
    names = []
    for kind, mark in (("encoder", "e" if decodes else ""), ("decoder", ""), ("cross", "x")):
        layers = [layer for layer in data["layers"] if layer.get("kind", "encoder") == kind]
        modules = reading_of(model.eval(), kind, decodes)
        heads = [rng.randrange(layers[0]["n_heads"]) for _ in modules]
        for module, head in zip(modules, heads):
            module.register_forward_pre_hook(without(head, layers[0]["n_heads"]))
        inner = getattr(model.config, "inner_group_num", 1)  # ALBERT's layers share their weights
        for layer in layers:
            group, i = divmod(layer["layer"], inner)
            head = heads[group * len(modules) // len(layers) * inner + i]
            names.append(f"{mark}{layer['layer']}.{head}")
    with torch.no_grad():
        inputs = dict(decoder_input_ids=torch.tensor([target]), use_cache=False) if decodes else {}
        want = model(torch.tensor([text]), **inputs)[0][0].numpy()
    what = "--logits" if decodes else "--hidden"
    return difference(ours(binary, text, *more, "--off", ",".join(names), what, "FILE"), want)


def reading_of(model, kind: str, decodes: bool) -> list:
    """The output matrices of a kind of attention, a layer each."""
    found = []
    for path, module in model.named_modules():
        if READS.search(path.lower()):
            of_encoder = not decodes or path.startswith(("encoder.", "model.encoder."))
            cross = CROSS.search(path.lower())
            if kind == ("cross" if cross else "encoder" if of_encoder else "decoder"):
                found.append(module)
    return found


def lens_error(directory: Path, binary: Path) -> float:
    """Of the last token's logits after each layer: those of a model that ends there."""
    prompt = json.loads((directory / "golden.json").read_text())["prompt"]
    model = opened(directory)
    layers, want = layers_of(model), []
    for _ in range(len(layers)):
        want.insert(0, logits_of(model, prompt)[-1])
        del layers[-1]
    return difference(ours(binary, prompt, *F32, "--lens", "FILE"), np.stack(want))


# ---- experiments ----


def printed(binary: Path, prompt: list[int], *args) -> dict:
    ids = ("--tokens", " ".join(map(str, prompt)))
    done = conftest.run_command(binary, *ids, *F32, "--json", *args)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def attending(binary: Path, prompt: list[int]) -> list[tuple[int, int]]:
    """Layers that attend, and their heads."""
    ids = ("--tokens", " ".join(map(str, prompt[:2])), "--no-cost")
    data = head_files.heads_of(binary, binary.with_suffix(".json"), *ids)
    return [(x["layer"], x["n_heads"]) for x in data["layers"] if x.get("heads")]


def put(value, at: int, begin: int = 0):
    """A hook that puts numbers into the first argument's row `at`, from number `begin` on."""

    def hook(_, args):
        rows = args[0].clone()
        rows[0, at, begin : begin + len(value)] = value
        return (rows, *args[1:])

    return hook


def inputs_of(model, modules: list, prompt: list[int]) -> list:
    """What comes into each of the modules."""
    kept: dict[int, object] = {}

    def keep(i: int):
        return lambda _, args: kept.__setitem__(i, args[0][0].detach().clone())

    hooks = [m.register_forward_pre_hook(keep(i)) for i, m in enumerate(modules)]
    logits_of(model, prompt)
    for hook in hooks:
        hook.remove()
    return [kept.get(i) for i in range(len(modules))]


def patch_error(directory: Path, binary: Path, seed: int) -> float:
    """Of runs in which a random head of each layer that attends, and the stream before each layer,
    are another text's at a random position."""
    golden, rng = json.loads((directory / "golden.json").read_text()), random.Random(seed)
    clean, model = golden["prompt"], opened(directory)
    corrupted, differs = list(clean), rng.randrange(len(clean))
    corrupted[differs] = (clean[differs] + 1) % model.config.get_text_config().vocab_size
    layers, answer, against = layers_of(model), clean[-1], clean[0]
    args = ("--patch", " ".join(map(str, corrupted)), "--answer", f"{answer},{against}")
    maps = [
        np.array(printed(binary, clean, *args, "--of", of)["results"], float)
        for of in ("heads", "layers")
    ]
    attend = attending(binary, clean)
    modules = [mixed_of(layers[layer]) for layer, _ in attend]
    given = inputs_of(model, [*modules, *layers], clean)
    places = [
        (maps[0][layer, h], modules[i], given[i], h, n)
        for i, (layer, n) in enumerate(attend)
        for h in [rng.randrange(n)]
    ]
    places += [(maps[1][i], layer, given[len(modules) + i], 0, 1) for i, layer in enumerate(layers)]
    worst, largest = 0.0, np.abs(logits_of(model, clean)[-1]).max()
    for found, module, rows, head, n_heads in places:
        at, width = rng.randrange(differs, len(clean)), rows.shape[-1] // n_heads
        begin = head * width
        hook = module.register_forward_pre_hook(put(rows[at, begin : begin + width], at, begin))
        logits = logits_of(model, corrupted)[-1]
        hook.remove()
        worst = max(worst, abs(found[at] - (logits[answer] - logits[against])) / largest)
    return float(worst)


def is_norm(module) -> bool:
    return "norm" in type(module).__name__.lower() and not list(module.children())


def folded(norm, rows, value):
    """What a norm, its scale for these rows held, makes of the last row of a part of them."""
    import torch

    row = rows[-1]
    if isinstance(norm, torch.nn.LayerNorm):
        scale = (row.var(unbiased=False) + norm.eps).rsqrt()
        gain = 1 if norm.weight is None else norm.weight
        gain = gain + ("1P" in type(norm).__name__)  # Nemotron's weights are less one
        return (value - value.mean()) * scale * gain
    if norm(rows + 1).allclose(norm(rows), atol=1e-3):  # it takes the mean away
        row, value = row - row.mean(), value - value.mean()
    return value * norm(rows)[-1] / row


def attribute_error(directory: Path, binary: Path, seed: int) -> float:
    """Of the embedding's part, and of a random head's of each layer that attends. Models that
    attribution refuses have no error, nor has Gemma 4, whose layers scale the stream itself."""
    import torch

    golden, rng = json.loads((directory / "golden.json").read_text()), random.Random(seed)
    prompt, model = golden["prompt"], opened(directory)
    config = model.config.get_text_config()
    answer, against = prompt[-1], (prompt[-1] + 1) % config.vocab_size  # two tokens
    config.final_logit_softcapping = None  # a softcap comes after the sum
    if hasattr(config, "logits_soft_cap"):
        config.logits_soft_cap = 1e4
    ids = ("--tokens", " ".join(map(str, prompt)), *F32)
    done = conftest.run_command(binary, *ids, "--attribute", f"{answer},{against}", "--json")
    if "no sum over" in done.stderr or config.model_type.startswith("gemma4"):
        return 0.0
    found, layers, output = json.loads(done.stdout), layers_of(model), model.get_output_embeddings()
    inside = {id(m) for layer in layers for m in layer.modules()}
    norms = [m for m in model.modules() if is_norm(m)]
    last = [m for m in norms if id(m) not in inside][-1]
    attend = attending(binary, prompt)
    modules = [mixed_of(layers[layer]) for layer, _ in attend]
    given = inputs_of(model, [*modules, layers[0], last], prompt)
    logits = logits_of(model, prompt)[-1]
    with torch.no_grad():
        direction = output.weight[answer] - output.weight[against]
        whole = float(logits[answer] - logits[against])
        bias = 0 if output.bias is None else float(output.bias[answer] - output.bias[against])
        scale = (whole - bias) / float(direction @ last(given[-1])[-1])  # of what is normed

        def part(value) -> float:
            return scale * float(direction @ folded(last, given[-1], value))

        errors = [found["total"] - whole, found["embedding"] - part(given[-2][-1])]
        for (layer, n_heads), module, rows in zip(attend, modules, given):
            if is_norm(module):
                continue  # of all heads
            head, width = rng.randrange(n_heads), rows.shape[-1] // n_heads
            alone = torch.zeros_like(rows)
            alone[:, head * width : (head + 1) * width] = rows[:, head * width : (head + 1) * width]
            value = (module(alone) - module(torch.zeros_like(rows)))[-1]
            for multiplier in ("residual_multiplier", "attention_out_multiplier"):
                value = value * getattr(config, multiplier, 1)
            value = value * getattr(layers[layer], "residual_scale", 1)  # MiniCPM 3's
            for norm in branch_norms(model, layers[layer], module(rows), prompt):
                value = folded(norm, module(rows), value)
            errors.append(found["heads"][layer][head] - part(value))
    return float(np.abs(errors).max() / np.abs(logits).max())


def branch_norms(model, layer, rows, prompt: list[int]) -> list:
    """The layer's norms of a branch that gives these rows."""
    norms = [m for m in layer.modules() if is_norm(m)]
    inputs = inputs_of(model, norms, prompt) if norms else []
    met = [(m, x) for m, x in zip(norms, inputs) if x is not None]  # a decoder alone: not all
    return [m for m, x in met if x.shape == rows.shape and x.allclose(rows)]


# ---- one head ----

ROTATES = ("apply_rotary_pos_emb", "apply_rotary_pos_emb_interleave")


def seen_by(model, layer, prompt: list[int], still: bool) -> dict:
    """What the attention of a layer is given, and the weights and the mix that it gives; {}: it is
    none that transformers' eager attention computes. still: rope's angles in it are position 0's."""
    import torch

    attention = parent(layer, module_path(layer, mixed_of(layer)).split("."))
    home, found, inside = sys.modules[type(attention).__module__], {}, []

    def attend(module, q, k, v, *args, **options):  # args: the mask, the scale, ..
        mixed, weights = original(module, q, k, v, *args, **options)
        if module is attention:
            found.update(q=q[0], k=k[0], v=v[0], weights=weights[0], mix=mixed[0])
            found["scale"] = options.get(
                "scaling", args[1] if len(args) > 1 else q.shape[-1] ** -0.5
            )
        return mixed, weights

    def turn(rotate):
        at = list(signature(rotate).parameters).index("cos")  # sin comes next

        def turned(*args, **options):
            if inside and still:
                angles = (x[..., :1, :].expand_as(x) for x in args[at : at + 2])
                args = (*args[:at], *angles, *args[at + 2 :])
            return rotate(*args, **options)

        return turned

    if not hasattr(home, "eager_attention_forward"):
        return {}
    hooks = [
        attention.register_forward_pre_hook(lambda *_: inside.append(1)),
        attention.register_forward_hook(lambda *_: inside.clear()),
    ]
    with make_attention.corrected(), ExitStack() as patches:
        original = home.eager_attention_forward  # which attend calls
        patches.enter_context(patch.object(home, "eager_attention_forward", attend))
        for name in ROTATES:
            if hasattr(home, name):
                patches.enter_context(patch.object(home, name, turn(getattr(home, name))))
        with torch.no_grad():
            model(torch.tensor([prompt]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return {name: x.float().numpy() if hasattr(x, "numpy") else x for name, x in found.items()}


def module_path(layer, module) -> str:
    return next(path for path, one in layer.named_modules() if one is module)


def head_error(directory: Path, binary: Path, seed: int) -> float:
    """Of a random head's scores, weights, values, mix and part of the output, for a random token,
    with rope and without."""
    import torch

    prompt, rng = (
        json.loads((directory / "golden.json").read_text())["prompt"],
        random.Random(seed),
    )
    attend = attending(binary, prompt)
    if not attend:
        return 0.0
    layer, n_heads = rng.choice(attend)
    head, at = rng.randrange(n_heads), rng.randrange(len(prompt))
    model, errors = opened(directory), []
    there = layers_of(model)[layer]
    p = printed(binary, prompt, "--parts", f"{layer}.{head}:{at}")
    own = p["kv_layer"] == layer
    for name in ("turned", "plain"):
        seen = seen_by(model, there, prompt, name == "plain")
        if not seen or name == "plain" and not (own and can_be_still(there)):
            continue
        rows = slice(p["first"], p["first"] + len(p["v"]))
        kv = head * len(seen["k"]) // n_heads
        products = seen["k"][kv] @ seen["q"][head, at] * seen["scale"]
        want = [products[rows], seen["weights"][head, at, rows]]
        found = [p[name]["products"], p[name]["weights"]]
        if name == "turned":
            want += [seen["v"][kv][rows], seen["mix"].reshape(len(prompt), n_heads, -1)[at, head]]
            found += [p["v"], p["mix"]]
        errors += [relative(np.array(x), y) for x, y in zip(found, want)]
    module = mixed_of(there)
    rows = inputs_of(model, [module], prompt)[0]
    if not is_norm(module):
        width = rows.shape[-1] // n_heads
        alone = torch.zeros_like(rows)
        begin = head * width
        alone[:, begin : begin + width] = rows[:, begin : begin + width]
        with torch.no_grad():
            want = (module(alone) - module(torch.zeros_like(rows)))[at].float().numpy()
        want = want * getattr(there, "attn_out_multiplier", 1.0)  # Falcon-H1's, behind o
        errors.append(relative(np.array(p["out"]), want))
    return max(errors, default=0.0)


def can_be_still(layer) -> bool:
    attention = parent(layer, module_path(layer, mixed_of(layer)).split("."))
    home = sys.modules[type(attention).__module__]
    return any(hasattr(home, name) for name in ROTATES)


def relative(found: np.ndarray, want: np.ndarray) -> float:
    return float(np.abs(found - want).max() / max(1.0, np.abs(want).max()))
