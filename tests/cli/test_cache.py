"""./run and heads.Model take a directory, a GGUF or a hub id: exported once, into the user's cache."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import gguf_files
import heads
import pytest
from conftest import ROOT

import export

LLAMA = ROOT / "tests" / "golden" / "llama"
IDS = ["--tokens", "5 6 7 8"]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HEADS_PYTHON", sys.executable)
    return tmp_path / "cache" / "heads"


def names(cache: Path, ending: str = ".bin") -> list[str]:
    return sorted(path.name for path in cache.glob("*" + ending))


def logits(run, source, out, **options) -> tuple[bytes, str]:
    done = run(source, *IDS, "--logits", out, **options)
    assert done.returncode == 0, done.stderr
    return out.read_bytes(), done.stderr


def test_a_directory_is_exported_once(run, cache, tmp_path):
    source = shutil.copytree(LLAMA, tmp_path / "my model")
    first, said = logits(run, source, tmp_path / "first")
    assert f"export: {source} is exported, once, to {cache}" in said
    made = names(cache)
    assert len(made) == 1 and made[0].startswith("my model-")
    again, said = logits(run, source, tmp_path / "again")
    assert again == first and "is exported" not in said and names(cache) == made
    assert export.main([str(source), str(tmp_path / "by hand.bin")]) == 0
    assert (tmp_path / "by hand.bin").read_bytes() == (cache / made[0]).read_bytes()

    os.utime(source / "config.json", (1, 1))  # what changed is exported again, in its place
    assert "is exported, once" in logits(run, source, tmp_path / "changed")[1]
    assert len(names(cache)) == 1 and names(cache) != made


def test_a_gguf_is_kept_as_it_is(run, cache, tmp_path):
    path = tmp_path / "small.gguf"
    gguf_files.convert(LLAMA, path)
    first, _ = logits(run, path, tmp_path / "first")
    with heads.Model(path) as model:
        assert model.path == str(path) and Path(model.file) == cache / names(cache)[0]
        with model.session() as session:
            assert session.feed([5, 6, 7, 8]).tobytes() == first[-4 * model.shape.vocab_size :]


def test_two_at_once_make_one_file(cache, tmp_path):
    command = [str(ROOT / "run"), str(LLAMA), "--info"]
    both = [subprocess.Popen(command, stdout=-1, stderr=-1, text=True) for _ in range(2)]
    said = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0] and said[0][0] == said[1][0]
    assert sum("is exported, once" in err for _, err in said) == 1
    assert len(names(cache)) == 1 and not names(cache, ".tmp")


def test_chat_is_a_word(run, cache):
    done = run("chat", LLAMA)
    assert "has no tokenizer, so it cannot chat" in done.stderr


def test_what_cannot_be_exported(run, cache, tmp_path):
    (tmp_path / "empty").mkdir()
    for source, why in (
        (tmp_path / "empty", "has no config.json"),
        ("no-owner/no-model", "cannot download no-owner/no-model"),
    ):
        done = run(source, *IDS, env={"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0"})
        assert done.returncode == 1 and why in done.stderr and "Traceback" not in done.stderr
        with pytest.raises(heads.FileError, match="has no config.json"):
            heads.Model(tmp_path / "empty")
    assert not names(cache)
    missing = run(tmp_path / "missing.gguf", *IDS)
    assert missing.returncode == 1 and "cannot open" in missing.stderr


def test_without_an_exporter(cache, tmp_path):
    program = shutil.copy(ROOT / "run", tmp_path / "run")
    for python in ("/nowhere/python", "false"):
        env = {**os.environ, "HEADS_PYTHON": python}
        done = subprocess.run([program, LLAMA], env=env, capture_output=True, text=True)
        if python == "false":
            assert done.returncode == 1
            continue
        assert done.returncode == 1 and "needs the package heads" in done.stderr
        assert done.stderr.count("\n") == 1
    # Nor is the package there.
    env = {**os.environ, "HEADS_PYTHON": sys.executable, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([program, LLAMA], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and "needs the package heads" in done.stderr
    env["PYTHONPATH"] = str(ROOT / "python")  # as pip installs it
    done = subprocess.run([program, LLAMA, "--info"], env=env, capture_output=True, text=True)
    assert done.returncode == 0 and len(names(cache)) == 1, done.stderr


def test_the_cache_is_listed_and_cleared(run, cache, capsys):
    assert run(LLAMA, "--info").returncode == 0
    (cache / "torn.lock").touch()
    capsys.readouterr()
    assert export.main(["--cache"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) == 2 and listed[0].endswith(f"{names(cache)[0]}  of {LLAMA}")
    assert listed[1].split()[0] == f"{(cache / names(cache)[0]).stat().st_size:,}"
    assert export.main(["--cache", "--clear"]) == 0
    assert "bytes are free again" in capsys.readouterr().out and not list(cache.iterdir())
    assert export.main(["--cache", "--other"]) == 2


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as a download asks for: a model's files at one commit."""

    asked: list[str] = []

    @staticmethod
    def about(file: Path) -> dict:
        return {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": "1"}

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.asked.append(self.path)
        path = self.path.partition("?")[0]
        file = LLAMA / path.rpartition("/")[2]
        if path.startswith("/api/models/org/small/tree"):
            body = json.dumps([self.about(file) for file in LLAMA.iterdir()]).encode()
        elif path.startswith("/api/models/org/small"):
            files = [{"rfilename": file.name} for file in LLAMA.iterdir()]
            body = json.dumps({"id": "org/small", "sha": COMMIT, "siblings": files}).encode()
        elif path.startswith("/org/small/resolve") and file.is_file():
            body = file.read_bytes()
        else:
            return self.send_error(404)
        self.send_response(200)
        self.send_header("ETag", '"' + hashlib.sha1(body).hexdigest() + '"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_a_hub_id_is_asked_for_once(run, cache, tmp_path):
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        env = {
            "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
            "HF_HOME": str(tmp_path / "hub"),
            "HF_HUB_OFFLINE": "0",
        }
        first, said = logits(run, "org/small", tmp_path / "first", cwd=tmp_path, env=env)
        assert "downloading it from the hub" in said and Hub.asked
        server.shutdown()
    again, said = logits(run, "org/small", tmp_path / "again", cwd=tmp_path)
    assert again == first and "is exported" not in said
    assert first == logits(run, LLAMA, tmp_path / "here")[0]
