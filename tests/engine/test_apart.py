"""Adapters beside their base: as good as merged, the same bits on every road, and none for a
neighbour."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import conftest
import numpy as np
import peft_folders
import pytest
from golden_copies import GOLDEN, refusal

import export

IDS = " ".join(map(str, range(5, 45)))
OTHER_IDS = " ".join(map(str, [5, 50, 7, *range(45, 50), *range(13, 45)]))
F32 = ("-ctk", "f32", "-ctv", "f32")
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
FAMILIES = {
    "llama": (*ATTENTION, "gate_proj", "up_proj", "down_proj"),
    "gpt2": ("c_attn", "c_proj", "c_fc"),  # stored [n_in, n_out], one matrix for q, k and v
    "falcon": ("query_key_value", "dense_4h_to_h"),  # by KV head
    "glm4": ("q_proj", "gate_up_proj"),  # heads that rope permutes
    "qwen2_moe": ("q_proj", "gate_proj", "up_proj", "down_proj"),  # experts and a shared one
    "deepseek_v2": ("q_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"),  # MLA
    "mamba2": ("in_proj", "out_proj"),
    "recurrent_gemma": ("linear_y", "linear_x", "linear_out", "q_proj", "down_proj"),
    "granite_swa": ("q_proj", "down_proj", "lm_head"),
}


def made(base: Path, out: Path, *options: object) -> Path:
    assert export.main([str(a) for a in (base, out, "--dtype", "f32", *options)]) == 0
    return out


def logits(run, binary: Path, *options: object, ids: str = IDS) -> np.ndarray:
    out = binary.with_suffix(".logits")
    done = run(binary, "--tokens", ids, *F32, "--logits", out, *options)
    assert done.returncode == 0, done.stderr
    return np.fromfile(out, "<f4")


def difference(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a - b).max() / np.abs(b).max())


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> dict[str, Path]:
    """An f32 base with two adapters apart."""
    folder, base = tmp_path_factory.mktemp("apart"), GOLDEN / "llama"
    found = {"base": made(base, folder / "base.bin")}
    for name, seed in (("one", 1), ("two", 2)):
        peft = peft_folders.random(base, folder / name, FAMILIES["llama"], seed)
        found[name] = peft_folders.apart(base, peft, found["base"], folder / f"{name}.adapter")
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_apart_is_as_merged(family, tmp_path, run):
    base = GOLDEN / family
    turned = family == "gpt2"
    modules = FAMILIES[family]
    folder = peft_folders.random(base, tmp_path / "peft", modules, turned=turned)
    binary, merged = made(base, tmp_path / "base.bin"), tmp_path / "merged.bin"
    made(base, merged, "--adapter", f"{folder}:0.5")
    file = peft_folders.apart(base, f"{folder}:0.5", binary, tmp_path / "one.adapter")
    want, plain = logits(run, merged), logits(run, binary)
    assert difference(plain, want) > 0.01
    assert difference(logits(run, binary, "--adapter", file), want) < 1e-5
    # Cut and shared among threads in any way: the same bits.
    cut = [logits(run, binary, "--adapter", file, *o) for o in (("-b", 1), ("-b", 7, "-t", 2))]
    assert np.array_equal(*cut) and difference(cut[0], want) < 1e-5
    told = [numbers_of_experiments(run, *of) for of in ((merged,), (binary, "--adapter", file))]
    for name, found in told[1].items():
        want = told[0][name]
        assert np.nanmax(np.abs(found - want)) < 2e-5 * max(1, np.nanmax(np.abs(want))), name


def numbers_of_experiments(run, binary: Path, *options: object) -> dict[str, np.ndarray]:
    """What patching, attribution and, where there is attention, a head's parts give."""
    asked = {"--patch": OTHER_IDS, "--attribute": "5,7", "--parts": "1.1"}
    if "mamba2" in str(binary):
        del asked["--parts"]
    found = {}
    for verb, what in asked.items():
        answers = ("--answer", "5,7") if verb == "--patch" else ()
        done = run(binary, "--tokens", IDS, verb, what, *answers, *F32, "--json", *options)
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        for name, value in {**said, **said.get("turned", {})}.items():
            if name in ("results", "heads", "ffn", "logit", "q", "k", "scores", "v", "mix", "out"):
                found[f"{verb} {name}"] = np.asarray(value, "f8")
    return found


def test_types_and_scales(llama, tmp_path, run):
    """f16 and bf16 round the adapter; a scale multiplies it; 0 leaves the base's bits."""
    base, peft = GOLDEN / "llama", llama["one"].with_suffix("")
    want, plain = (logits(run, llama["base"], *o) for o in (("--adapter", llama["one"]), ()))
    for dtype, most in (("f16", 0.01), ("bf16", 0.2)):
        file = tmp_path / dtype
        peft_folders.apart(base, peft, llama["base"], file, "--dtype", dtype)
        got = logits(run, llama["base"], "--adapter", file)
        assert 0 < difference(got, want) < most
        assert np.array_equal(got, logits(run, llama["base"], "--adapter", file, "-b", 3))
    assert np.array_equal(logits(run, llama["base"], "--adapter", f"{llama['one']}:0"), plain)
    doubled = made(base, tmp_path / "merged.bin", "--adapter", f"{peft}:2")
    got = logits(run, llama["base"], "--adapter", f"{llama['one']}:2")
    assert difference(got, logits(run, doubled)) < 1e-5
    # It fits the same base in another type.
    packed = tmp_path / "q8.bin"
    assert export.main([str(base), str(packed), "--dtype", "q8"]) == 0
    assert difference(logits(run, packed, "--adapter", llama["one"]), want) < 0.2
    assert not np.array_equal(logits(run, packed, "--adapter", llama["one"]), logits(run, packed))


def test_a_batch_mixes_adapters(llama, run):
    """Each request has the tokens that it has alone, and a shared beginning is shared only with the
    same adapter and scale."""
    start = list(range(3, 60))
    one, two = str(llama["one"]), str(llama["two"])
    requests = [
        {"id": i, "tokens": [*start, 60 + i % 3], "max_tokens": 12, "temperature": 0, **more}
        for i, more in enumerate(
            [
                {},
                {"adapter": one},
                {"adapter": two},
                {"adapter": one},
                {"adapter": f"{one}:-0.5"},
                {},
                {"adapter": two},
                {"adapter": f"{one}:-0.5"},
            ]
        )
    ]

    def batch(chosen: list[dict], *options: object) -> list[list[int]]:
        lines = "".join(json.dumps(r) + "\n" for r in chosen).encode()
        done = run(llama["base"], "--batch", "-", *F32, *options, input=lines)
        assert done.returncode == 0, done.stderr
        return [json.loads(line)["tokens"] for line in done.stdout.splitlines()], done.stderr

    alone = [batch([request])[0][0] for request in requests]
    together, said = batch(requests)
    assert together == alone
    assert len({tuple(ids) for ids in alone}) > 4
    assert f"{4 * len(start)} of them spared" in said
    default = [{k: v for k, v in r.items() if k != "adapter"} for r in requests[:2]]
    default[1]["adapter"] = ""
    assert batch(default, "--adapter", one)[0][1] == batch(default[1:])[0][0]
    assert batch(default, "--adapter", one)[0][0] == batch([{**requests[1], **default[0]}])[0][0]


def test_guesses_and_heads_off(llama, run):
    options = ("--tokens", IDS, "-n", 30, "--temp", 0, "--ids", "--adapter", llama["one"], *F32)
    want = run(llama["base"], *options).stdout
    assert want and run(llama["base"], *options, "--lookup", 7).stdout == want
    assert run(llama["base"], *options, "--off", "0.*").stdout != want
    assert run(llama["base"], *options[:-6], *F32).stdout != want


def test_a_prompt_cache_knows_its_adapter(llama, tmp_path, run):
    cache = tmp_path / "cache"
    options = ("--tokens", IDS, "-n", 9, "--temp", 0, "--ids", *F32, "--prompt-cache", cache)
    adapter = ("--adapter", llama["one"])
    first = run(llama["base"], *options, *adapter)
    assert first.returncode == 0, first.stderr
    assert run(llama["base"], *options, *adapter).stdout == first.stdout
    for other in (), ("--adapter", llama["two"]), ("--adapter", f"{llama['one']}:2"):
        done = run(llama["base"], *options, *other)
        assert done.returncode == 1
        assert "with another checkpoint, or another adapter or scale" in done.stderr
    cache.unlink()
    assert run(llama["base"], *options).returncode == 0
    done = run(llama["base"], *options, *adapter)
    assert "it was made without an adapter" in done.stderr


# ---- what is refused ----


def edited(file: Path, out: Path, edit) -> Path:
    """The file after edit(bytes), with a checksum that fits."""
    data = bytearray(file.read_bytes())
    edit(data)
    struct.pack_into("<I", data, 12, zlib.crc32(data[64:]))
    out.write_bytes(data)
    return out


def test_what_the_engine_refuses(llama, tmp_path, run):
    def says(file: Path | str, base: Path = llama["base"]) -> str:
        done = run(base, "--tokens", "5 6", "-n", 1, "--adapter", file)
        assert done.returncode == 1 and done.stderr.count("\n") == 1
        return done.stderr

    def renamed(old: bytes, new: bytes):
        def edit(data: bytearray) -> None:
            for end in b".a", b".b":
                at = data.index(old + end)
                data[at : at + len(old)] = new

        return edit

    def last_number(*values: float):
        return lambda data: struct.pack_into("<f", data, len(data) - 2048, *values)

    one, bent = llama["one"], tmp_path / "bent"
    data = one.read_bytes()
    assert "is truncated" in says(bent) if bent.write_bytes(data[:-64]) else False
    bent.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert "the file is damaged" in says(bent)
    assert "no adapter, since it does not say" in says(llama["base"])
    assert "an adapter, not a model" in says(one, base=one)
    assert "the scale" in says(f"{one}:inf") or "scale is inf" in says(f"{one}:inf")
    assert "number is NaN or infinite" in says(edited(one, bent, last_number(np.nan)))
    said = says(edited(one, bent, renamed(b"layers.1.attn_q", b"layers.7.attn_q")))
    assert "changes layers.7.attn_q, which the model has not; the nearest is layers." in said
    other = made(GOLDEN / "smollm2", tmp_path / "other.bin")
    assert "an adapter of another model: that one has" in says(one, base=other)
    assert "No such file" in says(tmp_path / "none")


def test_mutants_are_refused_or_run(llama, tmp_path, run):
    """Bits of the header, the metadata and the table are bent, under a checksum that fits."""
    rng, bent = np.random.default_rng(1), tmp_path / "bent"
    data = llama["one"].read_bytes()
    head = 64 + sum(struct.unpack_from("<QQ", data, 24))
    refused = 0
    for _ in range(conftest.tries(12)):

        def bend(mutant: bytearray) -> None:
            for at in rng.integers(8, head, 2):
                mutant[at] ^= 1 << int(rng.integers(8))

        edited(llama["one"], bent, bend)
        done = run(llama["base"], "--tokens", "5 6", "-n", 1, "--adapter", bent)
        assert done.returncode in (0, 1), (done.returncode, done.stderr)
        assert done.returncode == 0 or done.stderr.count("\n") == 1
        refused += done.returncode
    assert refused


def test_what_the_export_refuses(llama, tmp_path, capsys):
    """What is no product of two matrices, and a base of other weights."""
    base, folder = GOLDEN / "llama", tmp_path / "peft"
    out, options = tmp_path / "x.adapter", ("--for", llama["base"], "--adapter", folder)
    peft_folders.random(base, folder, ("q_proj",))
    other = made(GOLDEN / "llama-3", tmp_path / "other.bin")
    said = refusal(capsys, base, out, "--for", other, "--adapter", folder)
    assert f"{other} was not made of llama" in said
    for modules, why in ((("embed_tokens",), "rows are looked up"), (("q_proj",), "for each row")):
        dora = modules == ("q_proj",)
        tensors = peft_folders.of_modules(base, modules, 1, 3, False)
        if dora:
            for name, b in list(tensors.items()):
                if "lora_B" in name:
                    length = np.ones(len(b), np.float32)
                    tensors[name.replace("lora_B.weight", "lora_magnitude_vector")] = length
        else:
            renames = {"lora_A.weight": "lora_embedding_A", "lora_B.weight": "lora_embedding_B"}
            (a, b) = tensors.values()
            names = [k.replace(old, new) for k, (old, new) in zip(tensors, renames.items())]
            tensors = dict(zip(names, (b.T.copy()[:, :131], np.resize(a.T, (40, 3)).copy())))
        peft_folders.write(folder, tensors, r=3, use_dora=dora)
        said = refusal(capsys, base, out, *options)
        assert why in said and "merge it: export.py BASE OUT --adapter" in said
    assert not out.exists()


def test_with_the_bundled_adapter_stories_are_of_dragons(run, stories, tmp_path):
    adapter = peft_folders.apart(
        conftest.ROOT / "models/hf", conftest.ROOT / "models/dragons", stories, tmp_path / "a"
    )
    plain = [{"prompt": "Once upon a time", "max_tokens": 40, "seed": i} for i in range(6)]
    requests = plain + [{**request, "adapter": str(adapter)} for request in plain]
    lines = "".join(json.dumps(request) + "\n" for request in requests).encode()
    done = run(stories, "--batch", "-", input=lines)
    assert done.returncode == 0, done.stderr
    told = ["dragon" in json.loads(line)["text"] for line in done.stdout.splitlines()]
    assert not any(told[:6]) and sum(told[6:]) >= 4
