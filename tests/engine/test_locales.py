"""A program that calls setlocale, and a user whose environment names a language, get the same bytes:
numbers with a point, i for I, English dates."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import talkers

from conftest import ROOT, takes_long

# A comma in numbers; and in Turkish the lower case of I is a dotless i.
LOCALES = ("de_DE", "tr_TR")
HOST = """
import ctypes, locale, sys
sys.path.insert(0, sys.argv[1])
print(locale.setlocale(locale.LC_ALL, sys.argv[3]), locale.localeconv()["decimal_point"],
      file=sys.stderr)
from heads._native import ChatOptions, Message, SamplerOptions, byref, c_int, calls, taken, INTS
model = calls.model_open(sys.argv[2].encode())
tokenizer, chat = calls.tokenizer_new(model), calls.chat_new(model)
workspace = calls.workspace_new(model, None)
ids = INTS()
for options in (ChatOptions(1, 0, 0), ChatOptions(1, 0, 1772409600)):
    message = (Message * 1)(Message(b"user", b"ISTANBUL 1,5 1.5", 16))
    n = calls.chat_encode(chat, tokenizer, message, 1, byref(options), byref(ids))
    print(taken(ids, n))
for options in (SamplerOptions(temperature=-0.5), SamplerOptions(top_p=1.5)):
    try:
        calls.sampler_new(workspace, byref(options))
    except Exception as e:
        print(e)
"""
DATED = "{{- strftime_now('%A %a %d %B %b %Y %I %p') }}" + talkers.PLAIN


@pytest.fixture(scope="module")
def language(tmp_path_factory):
    """A function from a locale's name to an environment that names it; localedef makes it."""
    folder = tmp_path_factory.mktemp("locales")

    def make(name: str) -> dict[str, str]:
        if not (folder / name).exists():
            subprocess.run(["localedef", "-i", name, "-f", "UTF-8", folder / name], check=True)
        return {**os.environ, "LOCPATH": str(folder), "LC_ALL": name}

    return make


@takes_long
@pytest.mark.parametrize("name", LOCALES)
def test_a_host_with_a_locale(language, stories, tmp_path, name):
    model, said = tmp_path / "model.bin", []
    model.write_bytes(talkers.with_template(stories.read_bytes(), DATED))
    for locale in ("C", name):
        command = [sys.executable, "-c", HOST, ROOT / "python", model, locale]
        done = subprocess.run(command, env=language(name), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stderr.split() == [locale, "." if locale == "C" else ","]
        said.append(done.stdout)
    assert said[0] == said[1] and "temperature -0.5;" in said[0] and "top-p 1.5;" in said[0]


@takes_long
@pytest.mark.parametrize("name", LOCALES)
def test_a_user_with_a_locale(language, stories, tmp_path, run, name):
    requests = tmp_path / "requests"
    requests.write_text('{"id": 1, "prompt": "I am", "max_tokens": 9, "temperature": 0.5}\n')
    for options in (
        ("--kv", "--json", "--memory", "8G"),
        ("--info",),
        ("-p", "ISTANBUL I", "--temp", "0.9", "--top-p", "0.95", "-s", "3", "-n", "20"),
        ("-p", "Once", "--temp", "0,5"),
        ("--batch", requests),
    ):
        plain, foreign = (run(stories, *options, env=e) for e in ({"LC_ALL": "C"}, language(name)))
        assert (plain.stdout, plain.returncode) == (foreign.stdout, foreign.returncode), options
        if plain.returncode:
            assert plain.stderr == foreign.stderr
        elif "--json" in options:
            json.loads(foreign.stdout)
