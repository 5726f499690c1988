"""Clients that people use, against the server on SmolLM2: each of tests/extras/clients/.

    clients.py MODEL [NAME ..]     the instructed SmolLM2-135M, exported

Its chat template is given what Hermes models' have for tools. Needs what
tests/extras/clients/requirements.txt names."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), *(str(ROOT / part) for part in ("python", "tests", "tests/support"))]

import chats  # noqa: E402
from servers import Server  # noqa: E402

from exporter.templates.chat import chat_metadata  # noqa: E402

CLIENTS = ROOT / "tests" / "extras" / "clients"
OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # not from GitHub
TEMPLATE = r"""
{%- if tools %}
{{- '<|im_start|>system\nYou can call these functions:\n' }}
{%- for tool in tools %}{{ tool | tojson + '\n' }}{% endfor %}
{{- 'A call is <tool_call>\n{"name": .., "arguments": {..}}\n</tool_call><|im_end|>\n' }}
{%- endif %}
{%- for m in messages %}
{%- if loop.first and m.role != 'system' and not tools %}
{{- '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face' }}
{{- '<|im_end|>\n' }}
{%- endif %}
{{- '<|im_start|>' + m.role + '\n' + m.content }}
{%- for call in m.tool_calls or [] %}
{{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson + '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""


def with_tools(model: Path, out: Path) -> None:
    tokens = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    metadata, remark = chat_metadata(TEMPLATE, tokens)
    assert not remark, remark
    out.write_bytes(chats.with_chat(model.read_bytes(), metadata))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("names", nargs="*")
    o = parser.parse_args()
    scripts, failed = sorted(CLIENTS.glob("with_*.py")), 0
    scripts = [x for x in scripts if not o.names or x.stem.removeprefix("with_") in o.names]
    if not scripts:
        parser.error(f"no client is called {' or '.join(o.names)}")
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "smollm2.bin"
        with_tools(o.model, model)
        server = Server(model, "--parallel", 4)
        try:
            for script in scripts:
                start, env = time.monotonic(), {**os.environ, **OFFLINE}
                command = [sys.executable, script, server.url + "/v1"]
                status = subprocess.run(command, env=env, timeout=300).returncode
                failed += status != 0
                said = f"{script.stem}: {time.monotonic() - start:.0f} s"
                print("not ok" if status else "ok", said, flush=True)
        finally:
            log = server.stop()
    assert not log, log
    print(f"{len(scripts)} clients, {failed} failed")
    return min(1, failed)


if __name__ == "__main__":
    sys.exit(main())
