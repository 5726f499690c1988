"""What the exporter reads: Hugging Face directories in one file or shards, hub ids, llama2.c files;
and what it says of damaged, missing and mistaken ones."""

from __future__ import annotations

import json
import os
import struct
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from golden_copies import GOLDEN, copy, edit_config, edit_tensors, exported, refusal, same
from safetensors.numpy import load_file, save_file
from test_encoders import with_texts

import export
import exporter.sources.huggingface
from exporter.quantize import panels
from exporter.checkpoint import Checkpoint
from exporter.sources.kinds import HUB_ID
from exporter.templates import jinja


# ---- sources -------------------------------------------------------------------------------------


def test_one_file_and_shards_give_the_same(tmp_path):
    directory = copy(tmp_path, "mistral")
    sharded = exported(directory)
    tensors = {
        k: v for shard in directory.glob("*.safetensors") for k, v in load_file(shard).items()
    }
    for file in directory.glob("model*"):
        file.unlink()
    save_file(tensors, directory / "model.safetensors")
    assert len(sharded.tensors) == 3 + 2 * 9 and same(sharded, exported(directory))


def test_one_file_comes_before_shards(tmp_path, monkeypatch):
    """And safetensors before pytorch_model.bin: the order of transformers 5.23.0,
    modeling_utils._get_resolved_checkpoint_files."""
    for reader in ("open_safetensors", "open_torch"):
        monkeypatch.setattr(
            exporter.sources.huggingface, reader, lambda path: {"w": os.path.basename(path)}
        )
    order = ["model.safetensors", "model-1-of-1.safetensors"]
    order += ["pytorch_model.bin", "pytorch_model-1-of-1.bin"]
    for single, shard in zip(order[::2], order[1::2]):
        (tmp_path / single).touch()
        (tmp_path / shard).touch()
        index = {"weight_map": {"w": shard}}
        (tmp_path / f"{single}.index.json").write_text(json.dumps(index))
    for name in order:
        tensors, files = exporter.sources.huggingface._open_weights(str(tmp_path))
        assert tensors == {"w": name} and str(tmp_path / name) in files
        os.unlink(tmp_path / name if len(files) == 1 else files[0])


def test_names_without_prefix_and_buffers(tmp_path):
    directory = copy(tmp_path, "gpt2")
    before = exported(directory)

    def edit(tensors):
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        tensors["h.0.attn.bias"] = np.tril(np.ones((1, 1, 8, 8), np.float32))
        tensors["h.1.attn.masked_bias"] = np.float32([-1e4])

    edit_tensors(directory, edit)
    assert same(before, exported(directory))


def test_a_decoder_without_its_output(tmp_path, capsys, run):
    """As AutoModel saves one for vectors of texts: it has hidden states, and writes no text. By the
    names of a model with an output it is a damaged file."""
    directory = copy(tmp_path, "llama")
    plain = exported(directory)
    edit_tensors(directory, lambda tensors: tensors.pop("lm_head.weight"))
    said = refusal(capsys, directory, tmp_path / "x.bin")
    assert "lacks the tensor lm_head.weight" in said

    def edit(tensors):
        for name in list(tensors):
            tensors[name.removeprefix("model.")] = tensors.pop(name)

    edit_tensors(directory, edit)
    bare = exported(directory)
    assert "has no output matrix" in capsys.readouterr().err
    assert set(plain.tensors) - set(bare.tensors) == {"output"} and bare.metadata["model.head"] == 0
    assert all(np.array_equal(plain.tensor(name), bare.tensor(name)) for name in bare.tensors)
    file = tmp_path / "exported.bin"
    assert run(file, "--tokens", "5 6", "--hidden", tmp_path / "hidden").returncode == 0
    for verb in (("--tokens", "5 6", "-n", 1), ("--chat",), ("--bench",), ("--ppl", "x")):
        done = run(file, *verb)
        assert done.returncode == 2, done.stderr
        assert "has no output matrix, so it generates nothing; it has" in done.stderr


def test_f16_and_f64_weights(tmp_path):
    directory = copy(tmp_path, "smollm2")
    expected = {
        k: v.astype(np.float16).astype(np.float32)
        for k, v in load_file(directory / "model.safetensors").items()
    }
    for dtype in (np.float16, np.float64):
        edit_tensors(
            directory,
            lambda t, dtype=dtype: t.update({k: v.astype(dtype) for k, v in expected.items()}),
        )
        file = exported(directory)
        assert np.array_equal(file.tensor("embed"), expected["model.embed_tokens.weight"])


def test_bf16_weights(tmp_path):
    """The file is written by hand, since numpy has no bf16."""
    directory = copy(tmp_path, "smollm2")
    header, data, expected = {}, b"", {}
    for name, w in load_file(directory / "model.safetensors").items():
        raw = (w.view(np.uint32) >> 16).astype(np.uint16)
        expected[name] = (raw.astype(np.uint32) << 16).view(np.float32)
        header[name] = dict(
            dtype="BF16", shape=w.shape, data_offsets=[len(data), len(data) + raw.nbytes]
        )
        data += raw.tobytes()
    head = json.dumps(header).encode()
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
    file = exported(directory)
    assert np.array_equal(
        file.tensor("layers.1.ffn_down"), expected["model.layers.1.mlp.down_proj.weight"]
    )
    assert np.array_equal(file.tensor("norm"), expected["model.norm.weight"])


def test_a_hub_id_is_downloaded(tmp_path, monkeypatch, capsys):
    import huggingface_hub

    def snapshot_download(hub_id, revision, allow_patterns):
        assert hub_id == "some-org/tiny-llama" and "*.json" in allow_patterns
        asked.append(revision)
        return str(GOLDEN / "llama")

    asked = []
    out = tmp_path / "x.bin"
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert export.main(["some-org/tiny-llama", str(out)]) == 0
    assert Checkpoint(str(out)).metadata["info.source"] == b"some-org/tiny-llama"
    said = "export: some-org/tiny-llama is no file or directory here: downloading it from the hub\n"
    assert capsys.readouterr().err.startswith(said)
    assert export.main(["some-org/tiny-llama", str(out), "--revision", "v1.5"]) == 0
    assert Checkpoint(str(out)).metadata["info.source"] == b"some-org/tiny-llama@v1.5"
    assert "downloading its revision v1.5 from the hub\n" in capsys.readouterr().err
    assert asked == [None, "v1.5"]

    def offline(*_, **__):
        raise OSError("no network\nand much more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    said = refusal(capsys, "some-org/other", tmp_path / "y.bin")
    assert said == "export: cannot download some-org/other: no network"

    def unreached(*_, **__):
        raise OSError("Got: ConnectError: [Errno -2] Name or service not known\nAn error happened")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreached)
    said = refusal(capsys, "some-org/other", tmp_path / "y.bin")
    assert said.endswith("some-org/other: the hub is not reached: Name or service not known")


PATHS = [
    "./modles/foo",
    "/modles/foo",
    "../modles/foo",
    "modles/foo/",
    "modles/foo/bar",
    "foo",
    r"modles\foo",
    "~/foo",
    "modles/x.gguf",
    "modles/x.bin",
    "modles/model.safetensors",
    "tests/foo",
]


@pytest.mark.parametrize("source", PATHS)
def test_a_mistyped_path_is_no_hub_id(source, tmp_path, monkeypatch, capsys):
    """Nothing is asked of the hub for what has the form of a path, or whose owner is a directory
    here."""
    import huggingface_hub

    assert HUB_ID.fullmatch("some-org/model-v1.5-gguf")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", None)
    monkeypatch.chdir(GOLDEN.parent.parent)
    said = refusal(capsys, source, tmp_path / "x.bin")
    assert said == f"export: {source}: no such file or directory, and not a hub id such as org/name"


def test_a_revision_belongs_to_a_hub_id(tmp_path, capsys):
    model = tmp_path / "model.bin"
    llama2c_file(model, llama2c_tensors(), True, 0)
    for source in (GOLDEN / "llama", model):
        said = refusal(capsys, source, tmp_path / "x.bin", "--revision", "main")
        assert said == f"export: --revision is for hub ids; {source} is a file or directory here"


def llama2c_tensors() -> dict[str, np.ndarray]:
    """The golden llama's weights with llama2.c's order of rope pairs: x[i], x[i + d / 2] to x[2 i],
    x[2 i + 1]."""
    tensors = load_file(GOLDEN / "llama" / "model.safetensors")
    for name, w in tensors.items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            tensors[name] = np.ascontiguousarray(
                w.reshape(4, 2, 5, 40).transpose(0, 2, 1, 3)
            ).reshape(40, 40)
    return tensors


def llama2c_file(
    path: Path, tensors: dict[str, np.ndarray], shared: bool, version: int
) -> dict[str, np.ndarray]:
    """Writes a llama2.c file, and returns the weights as it holds them."""
    held = {}

    def layers(part):
        return [f"model.layers.{i}.{part}.weight" for i in range(2)]

    def put(name):
        w = held[name] = tensors[name]
        file.write(w.astype("<f4").tobytes())

    def put_q8(name, group=4):
        w = tensors[name].reshape(-1, group)
        scale = (np.abs(w).max(1) / 127).astype(np.float32)
        q = np.rint(w / scale[:, None]).astype(np.int8)
        held[name] = (q * scale[:, None]).reshape(tensors[name].shape)
        file.write(q.tobytes() + scale.tobytes())

    parts = (
        [f"self_attn.{n}_proj" for n in "qkvo"],
        [f"mlp.{n}_proj" for n in ("gate", "down", "up")],
    )
    with open(path, "wb") as file:
        if version == 0:
            file.write(struct.pack("<7i", 40, 54, 2, 4, 4, 131 if shared else -131, 192))
            order = [
                "model.embed_tokens.weight",
                *layers("input_layernorm"),
                *sum(map(layers, parts[0]), []),
                *layers("post_attention_layernorm"),
                *sum(map(layers, parts[1]), []),
                "model.norm.weight",
            ]
            for name in order:
                put(name)
            file.write(bytes(4 * 192 * 10))  # two tables of rope, unused
            if not shared:
                put("lm_head.weight")
        else:
            file.write(
                struct.pack("<Ii7iBi", 0x616B3432, 2, 40, 54, 2, 4, 4, 131, 192, shared, 4).ljust(
                    256, b"\0"
                )
            )
            for name in [
                *layers("input_layernorm"),
                *layers("post_attention_layernorm"),
                "model.norm.weight",
            ]:
                put(name)
            for name in [
                "model.embed_tokens.weight",
                *sum(map(layers, parts[0] + parts[1]), []),
                *["lm_head.weight"] * (not shared),
            ]:
                put_q8(name)
    return held


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("shared", [False, True])
def test_llama2c_files_give_the_same_model(version, shared, tmp_path):
    path = tmp_path / "model.bin"
    held = llama2c_file(path, llama2c_tensors(), shared, version)
    got = exported(path)
    directory = copy(tmp_path, "llama")  # the same weights, as a Hugging Face checkpoint

    def edit(tensors):
        for name, w in held.items():
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                w = np.ascontiguousarray(w.reshape(4, 5, 2, 40).transpose(0, 2, 1, 3)).reshape(
                    40, 40
                )
            tensors[name] = w
        if shared:
            del tensors["lm_head.weight"]

    edit_tensors(directory, edit)
    edit_config(directory, tie_word_embeddings=shared)
    assert same(got, exported(directory))
    assert ("output" in got.tensors) == (not shared)


def test_llama2c_files_that_are_none(tmp_path, capsys):
    path, out = tmp_path / "model.bin", tmp_path / "x.bin"
    llama2c_file(path, llama2c_tensors(), True, 0)
    whole = path.read_bytes()
    for data, said in [
        (whole[:-4], "a llama2.c checkpoint with its header has"),
        (whole + b"\0", "a llama2.c checkpoint with its header has"),
        (b"ggml" + bytes(300), "no llama2.c checkpoint"),
        (b"x", "too short for a llama2.c checkpoint"),
        (
            struct.pack("<Ii", 0x616B3432, 1) + bytes(300),
            "is a llama2.c checkpoint of version 1; supported: 0 and 2",
        ),
        (
            struct.pack("<Ii7iBi", 0x616B3432, 2, 40, 54, 2, 4, 4, 131, 192, 1, 0) + bytes(300),
            "the group size is 0",
        ),
        (
            struct.pack("<Ii7iBi", 0x616B3432, 2, 40, 54, 2, 4, 4, 131, 192, 1, 3) + bytes(300),
            "group size 3 does not divide",
        ),
        (b"heads.c\0" + bytes(300), "is a heads.c checkpoint already"),
    ]:
        path.write_bytes(data)
        assert said in refusal(capsys, path, out)
    path.write_bytes(whole)
    for name in ("tok1.bin", "tok2.bin"):
        (tmp_path / name).write_bytes(b"")
    assert "holds several tokenizers (tok1.bin, tok2.bin); name one with --tokenizer" in refusal(
        capsys, path, out
    )
    assert "no such file" in refusal(capsys, path, out, "--tokenizer", tmp_path / "nowhere")
    assert "--tokenizer is for llama2.c files" in refusal(
        capsys, GOLDEN / "llama", out, "--tokenizer", path
    )
    assert not out.exists()


# ---- bad files and bad options -------------------------------------------------------------------


@pytest.mark.parametrize(
    "value, said", [(np.nan, "NaN"), (np.inf, "infinite"), (-np.inf, "infinite")]
)
@pytest.mark.parametrize(
    "tensor", ["model.layers.1.mlp.up_proj.weight", "model.layers.0.input_layernorm.weight"]
)
def test_a_weight_that_is_no_number_is_refused_by_name(tensor, value, said, tmp_path, capsys):
    directory = copy(tmp_path, "llama")
    edit_tensors(directory, lambda t: t[tensor].reshape(-1).__setitem__(7, value))
    for dtype in panels.WEIGHTS:
        assert f"tensor {tensor}: a weight is {said}" in refusal(
            capsys, directory, tmp_path / "x.bin", "--dtype", dtype
        )
    assert [p.name for p in tmp_path.iterdir()] == ["llama"]


def test_missing_files(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(GOLDEN.parent.parent)
    out = tmp_path / "x.bin"
    directory = copy(tmp_path, "mistral")
    shard = directory / "model-00002-of-00003.safetensors"
    content = shard.read_bytes()
    shard.unlink()
    assert f"the shard {shard.name} is missing from {directory}" in refusal(capsys, directory, out)
    shard.write_bytes(content)
    index = directory / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    index.write_text(json.dumps(dict(weight_map={**weight_map, "model.norm.weight": shard.name})))
    assert f"tensor model.norm.weight is not in {shard.name}" in refusal(capsys, directory, out)
    index.write_text(
        json.dumps(dict(weight_map={**weight_map, "model.norm.weight": "../../secret"}))
    )
    assert "the shard ../../secret is missing" in refusal(capsys, directory, out)
    index.write_text("{}")
    assert "has no weight_map" in refusal(capsys, directory, out)
    for file in directory.glob("model*"):
        file.unlink()
    assert "has no model.safetensors and no pytorch_model.bin" in refusal(capsys, directory, out)
    (directory / "config.json").write_text("[1]")
    assert "holds no JSON object" in refusal(capsys, directory, out)
    (directory / "config.json").write_text("{")
    assert "is not JSON" in refusal(capsys, directory, out)
    (directory / "config.json").unlink()
    assert "has no config.json" in refusal(capsys, directory, out)


def test_damaged_safetensors(tmp_path, capsys):
    directory = copy(tmp_path, "llama")
    file = directory / "model.safetensors"
    whole = file.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])

    def with_entry(**changes):
        head = json.dumps(
            {**header, "model.norm.weight": {**header["model.norm.weight"], **changes}}
        ).encode()
        return struct.pack("<Q", len(head)) + head + whole[8 + length :]

    for data, said in [
        (whole[:-1000], "lies outside the file"),
        (whole[:100], "its header claims"),
        (b"", "its header claims"),
        (b"\xff" * 100, "its header claims"),
        (struct.pack("<Q", 4) + b"null", "is no safetensors file"),
        (struct.pack("<Q", 9) + b'{"a": {}}', "is no safetensors file"),
        (with_entry(shape=[41]), "has 160 bytes, its shape makes 164"),
        (with_entry(data_offsets=[10, -10]), "lies outside the file"),
        (
            with_entry(dtype="F8_E5M2"),
            "model.norm.weight is stored as F8_E5M2, which is not supported",
        ),
    ]:
        file.write_bytes(data)
        assert said in refusal(capsys, directory, tmp_path / "x.bin")


def test_pytorch_files_need_torch(tmp_path, capsys, monkeypatch):
    directory = copy(tmp_path, "llama")
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "needs torch, which is not installed" in refusal(capsys, directory, tmp_path / "x.bin")
    for version in ("1.13.1", "2.5.1+cu121", "2.0"):
        monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(__version__=version))
        said = refusal(capsys, directory, tmp_path / "x.bin")
        assert f"needs torch 2.6 or later, and {version} is installed" in said
        assert "CVE-2025-32434" in said
    for version in ("2.6.0", "2.13.0+cpu", "3.0.0a1"):
        monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(__version__=version))
        said = refusal(capsys, directory, tmp_path / "x.bin")
        assert "has no attribute 'load'" in said


def test_weights_nested_in_state_dict(tmp_path, monkeypatch):
    """As trainers save them, among other things."""

    class Stored:
        """As much of torch.Tensor as is asked for."""

        def __init__(self, rows):
            self.rows, self.shape = rows, rows.shape

        def __getitem__(self, part):
            return Stored(self.rows[part])

        def numpy(self):
            return self.rows

        def element_size(self):
            return 4

        detach = float = lambda self: self
        reshape = lambda self, shape: self
        is_floating_point = lambda self: True

    directory = copy(tmp_path, "llama")
    plain = exported(directory)
    tensors = load_file(directory / "model.safetensors")
    stored = {name: Stored(rows) for name, rows in tensors.items()}
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    for state in (stored, {"state_dict": stored, "epoch": 3}):
        torch = types.SimpleNamespace(__version__="2.6.0", Tensor=Stored)
        torch.load = lambda path, state=state, **options: state
        monkeypatch.setitem(sys.modules, "torch", torch)
        assert same(plain, exported(directory))


def test_the_source_is_not_overwritten(tmp_path, capsys):
    directory = copy(tmp_path, "llama")
    before = {p.name: p.read_bytes() for p in directory.iterdir()}
    (tmp_path / "link").symlink_to(directory / "config.json")
    for out in (directory / "model.safetensors", directory / "config.json", tmp_path / "link"):
        assert "belongs to the source" in refusal(capsys, directory, out)
    path = tmp_path / "model.bin"
    llama2c_file(path, llama2c_tensors(), True, 0)
    assert "belongs to the source" in refusal(capsys, path, path)
    assert {p.name: p.read_bytes() for p in directory.iterdir()} == before
    assert f"{directory} is a directory" in refusal(capsys, directory, directory)
    assert "its directory does not exist" in refusal(capsys, directory, tmp_path / "no" / "x.bin")


# ---- what is no checkpoint, and what to do -------------------------------------------------------

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_pointer_of_git_lfs_is_named(name, tmp_path, capsys):
    directory = copy(tmp_path, "llama")
    (directory / name).write_text(POINTER)
    said = refusal(capsys, directory, tmp_path / "x.bin")
    assert f"{name} is a pointer of Git LFS" in said and "git lfs pull" in said
    assert "pointer of Git LFS" in refusal(capsys, directory / name, tmp_path / "x.bin")


def test_a_pointer_in_a_module_is_named(tmp_path, capsys):
    """Files of sentence-transformers lie in folders of their own."""
    directory = with_texts(tmp_path / "x")
    (directory / "1_Pooling" / "config.json").write_text(POINTER)
    said = refusal(capsys, directory, tmp_path / "x.bin")
    assert "1_Pooling/config.json is a pointer of Git LFS" in said


@pytest.mark.parametrize(
    "wrapper", ["_orig_mod.", "module.", "base_model.model.", "module._orig_mod."]
)
def test_names_of_wrappers_are_left_out(wrapper, tmp_path, capsys):
    directory = copy(tmp_path, "llama")
    plain = exported(directory)
    wrapped = {wrapper + k: v for k, v in load_file(directory / "model.safetensors").items()}
    save_file(wrapped, directory / "model.safetensors")
    capsys.readouterr()
    assert same(plain, exported(directory))
    assert f"begin with {wrapper}, of a wrapper: left out" in capsys.readouterr().err


def test_adapters_are_refused(tmp_path, capsys):
    directory = copy(tmp_path, "llama")
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    edit_tensors(directory, lambda t: t.update({name: np.zeros((2, 20), "f4")}))
    assert "merge_and_unload" in refusal(capsys, directory, tmp_path / "x.bin")
    (directory / "config.json").unlink()
    (directory / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
    said = refusal(capsys, directory, tmp_path / "x.bin")
    assert "holds an adapter" in said and "org/base" in said


def test_files_and_folders_of_other_kinds(tmp_path, capsys):
    directory = copy(tmp_path, "llama")
    said = refusal(capsys, directory / "model.safetensors", tmp_path / "x.bin")
    assert "name the directory that holds it" in said
    (directory / "config.json").unlink()
    (directory / "some.gguf").write_bytes(b"GGUF\0\0\0\3" + bytes(16))
    assert "name that file, some.gguf" in refusal(capsys, directory, tmp_path / "x.bin")
    said = refusal(capsys, directory / "some.gguf", tmp_path / "x.bin")
    assert "is big-endian; convert it: gguf-convert-endian" in said


def test_templates_as_an_object_and_beside(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(
        '{"chat_template": {"default": "a", "rag": "b"}}'
    )
    assert jinja.chat_template(str(tmp_path)) == "a"
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": {"rag": "b"}}')
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("c")
    assert jinja.chat_template(str(tmp_path)) is None
    assert "only tool_use, rag are there" in jinja.left_out(str(tmp_path))
