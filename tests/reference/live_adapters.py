#!/usr/bin/env python3
"""Adapters that peft has made for fresh random models, merged by export.py, and the logits of
peft's own merge_and_unload.

    python tests/reference/live_adapters.py [--seed S] [--sample N] [CASE...]

Needs torch, transformers and peft (0.21.2); exit status 1 if any differs. A case is a model and what
its adapter has: ranks, patterns, modules that are saved, kinds of peft, forms of the file."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import re
import shutil
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Callable

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import conftest  # noqa: E402
import gguf_files  # noqa: E402
import make_encoder_decoders  # noqa: E402
import make_encoders  # noqa: E402
import make_golden  # noqa: E402
import peft  # noqa: E402
import test_encoder_decoders  # noqa: E402
import test_encoders  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from live_models import as_transformers_holds_it, mistral_with_pictures  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

import export  # noqa: E402
from heads import Model, _classes  # noqa: E402

TOLERANCE = 1e-4  # of the largest logit, at every position
EAGER = dict(attn_implementation="eager", dtype=torch.float32)
DECODERS = {**make_golden.MODELS, **make_golden.MORE}
ENCODERS = {**make_encoders.MODELS, **make_encoders.MORE}
PAIRS = {**make_encoder_decoders.MODELS, **make_encoder_decoders.MORE}
DECODER, SEQ2SEQ = "AutoModelForCausalLM", "AutoModelForSeq2SeqLM"


def lora(**options) -> peft.LoraConfig:
    return peft.LoraConfig(**{"r": 4, "lora_alpha": 6, "init_lora_weights": False, **options})


def experts(*modules: str, where: str = "mlp.experts", **options) -> peft.LoraConfig:
    stacks = [f"{where}.gate_up_proj", f"{where}.down_proj"]
    return lora(target_modules=list(modules), target_parameters=stacks, **options)


LINEAR = "all-linear"
PATTERNS = dict(
    rank_pattern={"layers.0.self_attn.q_proj": 7, ".*down_proj": 2, "v_proj": 3},
    alpha_pattern={"o_proj": 11, r"layers\.1\..*": 5},
)
IA3 = dict(init_ia3_weights=False)
EMBED = ["embed_tokens", "q_proj"]

# case: (model, the adapters' configurations), and what is done to the files.
CASES: dict[str, tuple] = {
    "llama": ("llama", lora(target_modules=LINEAR)),
    "rslora-patterns": ("llama", lora(target_modules=LINEAR, use_rslora=True, **PATTERNS)),
    "dora-layers": (
        "qwen3",
        lora(
            target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"],
            use_dora=True,
            layers_to_transform=[1],
            layers_pattern="layers",
            exclude_modules=["v_proj"],
        ),
    ),
    "biases": ("llama-3", lora(target_modules=LINEAR, bias="all")),
    "biases-lora_only": ("llama-3", lora(target_modules=["q_proj", "up_proj"], bias="lora_only")),
    "lora_bias": ("llama-3", lora(target_modules=["q_proj", "down_proj"], lora_bias=True)),
    "norms-saved": ("qwen2", lora(target_modules=["k_proj"], modules_to_save=["norm"])),
    "tied-embed": ("smollm2", lora(target_modules=EMBED)),
    "tied-both": ("smollm2", lora(target_modules=["embed_tokens", "lm_head"])),
    "tied-together": (
        "smollm2",
        lora(target_modules=["embed_tokens", "v_proj"], ensure_weight_tying=True),
    ),
    "tied-saved-embed": ("smollm2", lora(target_modules=["q_proj"], modules_to_save=EMBED[:1])),
    "tied-saved-head": ("smollm2", lora(target_modules=["q_proj"], modules_to_save=["lm_head"])),
    "tied-saved-both": (
        "smollm2",
        lora(target_modules=["q_proj"], modules_to_save=["lm_head", "embed_tokens"]),
    ),
    "tied-saved-together": (
        "smollm2",
        lora(
            target_modules=["q_proj"], modules_to_save=["embed_tokens"], ensure_weight_tying=True
        ),
    ),
    "untied-saved": (
        "llama",
        lora(target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"]),
    ),
    "tokens-tied": ("smollm2", lora(target_modules=["q_proj"], trainable_token_indices=[3, 96, 7])),
    "tokens": (
        "llama",
        lora(
            target_modules=["q_proj"],
            trainable_token_indices={"embed_tokens": [5, 2], "lm_head": [9]},
        ),
    ),
    "gemma-tied": ("gemma", lora(target_modules=EMBED, use_dora=True)),
    "gemma3": ("gemma3", lora(target_modules=LINEAR, use_dora=True, use_rslora=True)),
    "gpt2": ("gpt2", lora(target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True)),
    "gpt2-dora": ("gpt2", lora(target_modules=["c_attn", "c_proj", "wte"], use_dora=True)),
    "gpt2-ia3": (
        "gpt2",
        peft.IA3Config(
            target_modules=["c_attn", "mlp.c_proj"], feedforward_modules=["mlp.c_proj"], **IA3
        ),
    ),
    "phi3": ("phi3", lora(target_modules=["qkv_proj", "gate_up_proj", "down_proj"], use_dora=True)),
    "falcon": ("falcon", lora(target_modules=["query_key_value", "dense_4h_to_h"], use_dora=True)),
    "gpt_neox": ("gpt_neox", lora(target_modules=LINEAR, bias="all")),
    "bloom": ("bloom", lora(target_modules=["query_key_value", "word_embeddings"])),
    "glm4": ("glm4", lora(target_modules=LINEAR)),
    "mpt": ("mpt", lora(target_modules=["Wqkv", "out_proj", "up_proj"])),
    "mixtral": ("mixtral", experts("q_proj", "gate", **PATTERNS)),
    "mixtral-held": ("mixtral", experts("q_proj"), as_transformers_holds_it),
    "mixtral-down": (
        "mixtral",
        lora(target_modules=["q_proj"], target_parameters=["mlp.experts.down_proj"]),
    ),
    "mixtral-router": ("mixtral", experts("q_proj", use_rslora=True)),
    "qwen3_moe": ("qwen3_moe", experts("v_proj", "up_proj", "gate_proj", "down_proj")),
    "qwen3_next": ("qwen3_next", experts("in_proj_qkvz", "out_proj", "q_proj")),
    "deepseek_v3": (
        "deepseek_v3",
        experts("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"),
    ),
    "deepseek_v2-dora": (
        "deepseek_v2",
        lora(target_modules=["q_proj", "kv_b_proj", "o_proj"], use_dora=True),
    ),
    "gpt_oss": ("gpt_oss", experts("q_proj", "o_proj")),
    "granitemoe": ("granitemoe", experts("q_proj", where="block_sparse_moe.experts")),
    "llama4": ("llama4", experts("q_proj", where="feed_forward.experts")),
    "aria": ("aria_text", experts("q_proj")),
    "lfm2_moe": ("lfm2_moe", experts("in_proj", "out_proj", "w1", where="feed_forward.experts")),
    "nemotron_h": (
        "nemotron_h",
        lora(
            target_modules=["in_proj", "q_proj"],
            target_parameters=["mixer.experts.up_proj", "mixer.experts.down_proj"],
        ),
    ),
    "kimi_linear": ("kimi_linear", experts("q_proj", "f_a_proj", "o_proj", "b_proj")),
    "mamba2": ("mamba2", lora(target_modules=["in_proj", "embeddings", "lm_head"])),
    "mamba": ("mamba", lora(target_modules=["x_proj", "dt_proj", "in_proj"], use_rslora=True)),
    "falcon_h1": ("falcon_h1", lora(target_modules=["in_proj", "q_proj", "down_proj"])),
    "t5": ("t5", lora(target_modules=["q", "v", "wo", "shared"])),
    "t5-dora": ("t5-gated", lora(target_modules=["q", "k", "o", "wi_0"], use_dora=True)),
    "bart": ("bart", lora(target_modules=["q_proj", "fc1", "out_proj"], bias="all")),
    "bert": ("bert", lora(target_modules=["query", "value", "output.dense"], use_dora=True)),
    "bert-embed": ("bert", lora(target_modules=["word_embeddings", "key"])),
    "bert-bare": ("bert-bare", lora(target_modules=["query", "dense"])),
    "nomic_bert": ("nomic_bert", lora(target_modules=["q_proj", "v_proj", "up_proj"])),
    "gte": ("gte", lora(target_modules=["k_proj", "gate_proj", "down_proj"], use_dora=True)),
    "distilbert": ("distilbert", lora(target_modules=["q_lin", "lin1"])),
    "ia3": (
        "llama-3",
        peft.IA3Config(
            target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"], **IA3
        ),
    ),
    "adalora": ("llama", peft.AdaLoraConfig(init_r=5, target_modules=["q_proj"], total_step=9)),
    "loha": (
        "llama",
        peft.LoHaConfig(
            r=3, alpha=5, target_modules=["q_proj", "up_proj"], init_weights=False,
            rank_pattern={"up_proj": 2},
        ),
    ),
    "lokr": (
        "llama",
        peft.LoKrConfig(
            r=2, alpha=5, target_modules=["q_proj", "up_proj", "down_proj"], init_weights=False,
            decompose_both=True, decompose_factor=4,
        ),
    ),
    "lokr-whole": ("llama", peft.LoKrConfig(r=9, target_modules=["v_proj"], init_weights=False)),
    "norms": ("qwen2", peft.LNTuningConfig(target_modules=["input_layernorm", "norm"])),
    "trainable-tokens": ("smollm2", peft.TrainableTokensConfig(token_indices=[4, 90])),
    "two": (
        "llama",
        [lora(target_modules=["q_proj", "up_proj"]), lora(target_modules=LINEAR, r=2)],
    ),
    "two-dora": (
        "llama",
        [lora(target_modules=LINEAR, use_dora=True), lora(target_modules=["q_proj"], r=3)],
    ),
}  # fmt: skip


def randomize(model) -> None:
    """Numbers for all that training would have changed."""
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        with torch.no_grad():
            if "magnitude" in name or "ia3_l" in name:
                p.mul_(torch.empty_like(p).uniform_(0.6, 1.4))
            elif re.search(r"lora_(?!magnitude)|hada_|lokr_", name):
                p.normal_(0, 0.3)
            else:
                p.add_(torch.randn_like(p) * 0.2)


def make_base(name: str, seed: int, out: Path, edit: Callable | None) -> tuple[Path, str]:
    """A random checkpoint, and the class that reads it."""
    torch.manual_seed(seed)
    directory = out / "base"
    shutil.rmtree(directory, ignore_errors=True)
    if name in PAIRS:
        make_encoder_decoders.save_random(name, directory)
        return directory, SEQ2SEQ
    model_type, values, *kind = {**DECODERS, **ENCODERS}[name]
    kind = kind[0] if kind else DECODER
    if kind == DECODER and model_type not in make_golden.WITHOUT_COMMON:
        values = {**make_golden.COMMON, **values}
    config = transformers.AutoConfig.for_model(model_type, **values)
    model = getattr(transformers, kind).from_config(config).float()
    (make_golden if kind == DECODER else make_encoders).randomize(model, torch)
    model.save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)
    if edit:
        edit(directory)
    return directory, kind


def load(directory: Path, kind: str):
    options = {**EAGER, "experts_implementation": "eager"} if kind == DECODER else EAGER
    return getattr(transformers, kind).from_pretrained(directory, **options).eval()


def make_adapter(base: Path, kind: str, config, folder: Path, form: str = "") -> None:
    """An adapter as peft saves it after training."""
    model = peft.get_peft_model(load(base, kind), config)
    randomize(model)
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, safe_serialization=form != "bin")


def rename(folder: Path) -> None:
    """The name of the adapter in its tensors' names, and torch.compile's wrapper before them."""
    renamed = {}
    for name, tensor in load_file(folder / "adapter_model.safetensors").items():
        name = re.sub(r"(\.lora_(?:[AB]|embedding_[AB]))(?=$|\.)", r"\1.default", name)
        renamed[name.replace("base_model.model.", "base_model.model._orig_mod.", 1)] = tensor
    save_file(renamed, folder / "adapter_model.safetensors")


def merged(base: Path, kind: str, folders: list[Path], scales: list[float]):
    """What peft makes of them."""
    model = peft.PeftModel.from_pretrained(load(base, kind), folders[0], adapter_name="a0")
    for i, folder in enumerate(folders[1:], 1):
        model.load_adapter(folder, adapter_name=f"a{i}")
    for i, scale in enumerate(scales):
        for module in model.modules():
            if scale != 1 and hasattr(module, "set_scale") and f"a{i}" in module.scaling:
                module.set_scale(f"a{i}", scale)
    if len(folders) > 1:
        model.base_model.set_adapter([f"a{i}" for i in range(len(folders))])
    return model.merge_and_unload().eval()


def prompts(name: str, kind: str, vocab: int) -> list:
    """Texts; of an encoder-decoder pairs."""
    if kind == SEQ2SEQ:
        lengths = ((7, 5), (20, 9))
        return [
            (torch.randint(5, 49, (n,)).tolist(), [0, *torch.randint(5, 49, (m,)).tolist()])
            for n, m in lengths
        ]
    n = 60 if kind in ("AutoModel", make_encoders.MASKED) else 90
    return [torch.randint(3, vocab, (n,)).tolist()]


def reference(model, kind: str, texts: list) -> np.ndarray:
    """Logits, or hidden states of a model without a head."""
    rows = []
    with torch.no_grad():
        for text in texts:
            if kind == SEQ2SEQ:
                inputs = dict(decoder_input_ids=torch.tensor([text[1]]), use_cache=False)
                rows.append(model(torch.tensor([text[0]]), **inputs).logits[0])
                continue
            ids = torch.tensor([text])
            output = model(input_ids=ids)
            rows.append(output.logits[0] if "logits" in output else output.last_hidden_state[0])
    return torch.cat(rows).float().numpy()


def ours(binary: Path, kind: str, texts: list, *options: str) -> np.ndarray:
    run = conftest.run_command
    if kind == SEQ2SEQ:
        golden = dict(sources=[s for s, _ in texts], targets=[t for _, t in texts])
        return np.frombuffer(
            test_encoder_decoders.rows_of(
                run, binary, golden, *test_encoder_decoders.F32, *options
            ),
            "<f4",
        )
    what = "hidden" if kind == "AutoModel" else "logits"
    of_encoder = kind in ("AutoModel", make_encoders.MASKED)
    f32 = () if of_encoder else test_encoder_decoders.F32
    return np.frombuffer(test_encoders.rows_of(run, binary, what, texts, *f32, *options), "<f4")


def difference(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.abs(got.reshape(want.shape) - want).max() / np.abs(want).max())


def exported(base: Path, binary: Path, *arguments: str) -> bool:
    return export.main([str(base), str(binary), "--dtype", "f32", *arguments]) == 0


def with_adapters(folders: list[Path], scales: list[float]) -> list[str]:
    named = [str(f) + ("" if s == 1 else f":{s}") for f, s in zip(folders, scales)]
    return [argument for name in named for argument in ("--adapter", name)]


def report(label: str, seed: int, error: float, effect: float = 1.0) -> bool:
    good = error <= TOLERANCE and effect > 100 * TOLERANCE
    print(
        f"{'ok' if good else 'not ok'} {label}, seed {seed}: differs by {error:.1e}, the adapter "
        f"changes {effect:.1e}",
        flush=True,
    )
    return good


def check(case: str, seed: int, out: Path) -> bool:
    name, configs, *edit = CASES[case]
    configs = configs if isinstance(configs, list) else [configs]
    rng = random.Random(f"{case} {seed}")
    form = rng.choice(("safetensors", "bin", "named"))
    base, kind = make_base(name, seed, out, edit[0] if edit else None)
    folders = [out / f"adapter{i}" for i in range(len(configs))]
    for config, folder in zip(configs, folders):
        make_adapter(base, kind, config, folder, form)
    adds = all(c.peft_type == "LORA" and not c.lora_bias for c in configs)
    scales = [rng.choice((1, 0.5, -0.5)) if adds else 1 for _ in configs]
    label = f"{case} ({form}, {', '.join(f'{s:g}' for s in scales)})"
    return compare(label, name, seed, base, kind, folders, scales, out, form=form)


def compare(
    label: str,
    name: str,
    seed: int,
    base: Path,
    kind: str,
    folders: list[Path],
    scales: list[float],
    out: Path,
    exported_base: Path | None = None,
    exported_adapter: Path | None = None,
    form: str = "",
) -> bool:
    """The logits of an export and of peft; exported_base and exported_adapter: the same in other
    forms."""
    model = load(base, kind)
    texts = prompts(name, kind, model.config.get_text_config().vocab_size)
    plain = reference(model, kind, texts)
    want = reference(merged(base, kind, folders, scales), kind, texts)
    for folder in folders if form == "named" else ():  # which peft does not read
        rename(folder)
    binary = out / "model.bin"
    named = [exported_adapter] if exported_adapter else folders
    if not exported(exported_base or base, binary, *with_adapters(named, scales)):
        print(f"not ok {label}, seed {seed}: the export failed")
        return False
    got = ours(binary, kind, texts)
    good = report(label, seed, difference(got, want), difference(plain, want))
    apart = (exported_base or base, kind, texts, named, scales, got, out)
    return compare_apart(label, *apart) and good


def compare_apart(
    label: str,
    base: Path,
    kind: str,
    texts: list,
    folders: list[Path],
    scales: list[float],
    want: np.ndarray,
    out: Path,
) -> bool:
    """The logits with the adapters beside an f32 base, and with them merged: most are within 1e-5,
    but some of these random models make much of any rounding. What is no product of two matrices
    is refused with a sentence that says so."""
    binary, apart, said = out / "base.bin", out / "one.adapter", io.StringIO()
    if not exported(base, binary):
        return False
    arguments = [str(base), str(apart), "--for", str(binary), *with_adapters(folders, scales)]
    with contextlib.redirect_stderr(said):
        failed = export.main(arguments)
    if failed:
        good = "merge it: export.py BASE OUT --adapter" in said.getvalue()
        print(f"{'ok' if good else 'not ok'} {label}, apart: {said.getvalue().splitlines()[-1]}")
        return good
    error = difference(ours(binary, kind, texts, "--adapter", str(apart)), want)
    good = error <= TOLERANCE
    print(f"{'ok' if good else 'not ok'} {label}, apart: differs by {error:.1e} from merged")
    return good


def check_older_experts(case: str, seed: int, out: Path) -> bool:
    """An adapter of before transformers 5, with a part for each expert's matrix, which peft makes
    one of all experts; of a checkpoint that has them one by one, and of one that has not."""
    name = "mixtral"
    base, kind = make_base(
        name, seed, out, random.Random(seed).choice((None, as_transformers_holds_it))
    )
    folder = out / "adapter0"
    make_adapter(base, kind, lora(target_modules=["q_proj", "w1", "w2", "w3"]), folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    changes = dict(target_parameters=None, rank_pattern={}, alpha_pattern={})
    changes |= dict(target_modules=["q_proj", "w1", "w2", "w3"])
    (folder / "adapter_config.json").write_text(json.dumps(config | changes))
    tensors = load_file(folder / "adapter_model.safetensors")
    tensors = {name: t for name, t in tensors.items() if ".experts." not in name}
    values = DECODERS[name][1]
    wide, inner = values["hidden_size"], values["intermediate_size"]
    for layer in range(2):
        for expert in range(values["num_local_experts"]):
            for matrix, n_in, n_out in (
                ("w1", wide, inner),
                ("w2", inner, wide),
                ("w3", wide, inner),
            ):
                module = f"base_model.model.model.layers.{layer}.block_sparse_moe.experts.{expert}"
                tensors[f"{module}.{matrix}.lora_A.weight"] = 0.3 * torch.randn(4, n_in)
                tensors[f"{module}.{matrix}.lora_B.weight"] = 0.3 * torch.randn(n_out, 4)
    save_file(tensors, folder / "adapter_model.safetensors")
    return compare(case, name, seed, base, kind, [folder], [1], out)


def check_multimodal(case: str, seed: int, out: Path) -> bool:
    """An adapter of a model with pictures, of which the text's part counts."""
    torch.manual_seed(seed)
    base, kind = out / "base", "AutoModelForImageTextToText"
    shutil.rmtree(base, ignore_errors=True)
    config = transformers.AutoConfig.for_model("mistral3", **mistral_with_pictures())
    model = getattr(transformers, kind).from_config(config).float()
    make_golden.randomize(model, torch)
    model.save_pretrained(base, save_original_format=random.Random(seed).random() < 0.5)
    folder = out / "adapter0"
    make_adapter(base, kind, lora(target_modules=["q_proj", "up_proj"], use_dora=True), folder)
    return compare(case, "mistral", seed, base, kind, [folder], [1], out)


def check_classes(case: str, seed: int, out: Path) -> bool:
    """A head for classes on a base that has another one or none."""
    rng = random.Random(seed)
    name, kind, task = rng.choice(
        [
            ("bert-pretraining", "AutoModelForSequenceClassification", "SEQ_CLS"),
            ("roberta", "AutoModelForSequenceClassification", "SEQ_CLS"),
            ("distilbert", "AutoModelForTokenClassification", "TOKEN_CLS"),
            ("llama", "AutoModelForSequenceClassification", "SEQ_CLS"),
        ]
    )
    base, _ = make_base(name, seed, out, None)
    torch.manual_seed(seed)
    model = getattr(transformers, kind).from_pretrained(base, num_labels=3, **EAGER)
    modules = {"llama": ["q_proj"], "distilbert": ["q_lin"]}.get(name, ["query", "value"])
    model = peft.get_peft_model(model, lora(target_modules=modules, task_type=task))
    randomize(model)
    folder, binary = out / "adapter0", out / "model.bin"
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    text = torch.randint(3, 60, (1, 20))
    with torch.no_grad():
        want = model.merge_and_unload().eval()(text).logits.softmax(-1).numpy()
    label = f"{case}, {name}"
    if not exported(base, binary, "--adapter", str(folder)):
        print(f"not ok {label}, seed {seed}: the export failed")
        return False
    with Model(str(binary), kv="f32") as classifier:
        found = _classes.scores(classifier, [(text[0].tolist(),)])
    return report(label, seed, difference(found, want))


def check_gguf(case: str, seed: int, out: Path) -> bool:
    """A base in a GGUF file, and peft's adapter for it or the same one as llama.cpp's."""
    rng = random.Random(seed)
    name = rng.choice(("llama-3", "qwen3", "phi3", "gemma", "granite"))
    base, kind = make_base(name, seed, out, None)
    folder, path = out / "adapter0", out / "base.gguf"
    modules = ["qkv_proj", "down_proj"] if name == "phi3" else ["q_proj", "k_proj", "down_proj"]
    make_adapter(base, kind, lora(target_modules=modules), folder)
    gguf_files.convert(base, path)
    adapter = as_gguf(base, folder, out / "adapter.gguf") if rng.random() < 0.7 else folder
    label = f"{case} {name} {adapter.name}"
    return compare(label, name, seed, base, kind, [folder], [1], out, path, adapter)


def as_gguf(base: Path, folder: Path, path: Path) -> Path:
    """What convert_lora_to_gguf.py makes of an adapter: b with the base's rows in GGUF's order."""
    import gguf

    config = json.loads((base / "config.json").read_text())
    arch = gguf_files.ARCHITECTURES.get(config["model_type"], config["model_type"])
    writer = gguf.GGUFWriter(str(path), arch)
    values = {"general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": 6.0}
    for key, value in values.items():
        gguf_files.add(writer, key, value)
    tensors = load_file(folder / "adapter_model.safetensors")
    for part, end in (("A", "lora_a"), ("B", "lora_b")):
        named = {
            name.removeprefix("base_model.model.").replace(f".lora_{part}", ""): tensor.numpy()
            for name, tensor in tensors.items()
            if f".lora_{part}" in name
        }
        turned = named if part == "B" else {}
        found = gguf_files.stored_tensors(arch, config, turned)
        plain = gguf_files.stored_tensors(
            "qwen2" if arch in gguf_files.PERMUTED else arch, config, named
        )
        for name, values in ({**plain, **found}).items():
            if name != "rope_freqs.weight":
                writer.add_tensor(f"{name}.{end}", np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


OWN = {
    "older-experts": check_older_experts,
    "multimodal": check_multimodal,
    "classes": check_classes,
    "gguf": check_gguf,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join([*CASES, *OWN])}")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1000000 + 100000)
    parser.add_argument("--sample", type=int, help="so many, chosen by the seed")
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    names = [*CASES, *OWN]
    chosen = args.cases or random.Random(args.seed).sample(names, args.sample or len(names))
    failed = 0
    with tempfile.TemporaryDirectory() as out:
        for case in chosen:
            failed += not OWN.get(case, check)(case, args.seed, Path(out))
    print(f"live_adapters: seed {args.seed}, {failed} of {len(chosen)} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
