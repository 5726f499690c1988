"""The server as a process, for what has tests/extras/requirements.txt."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[2]


class Server:
    """python -m heads serve, as a process."""

    def __init__(self, *args: object, key: str = ""):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "heads", "serve", *map(str, args), "--port", self.port]
        env = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "HEADS_API_KEY": key}
        self.said = tempfile.TemporaryFile()  # not a pipe, which fills
        self.process = subprocess.Popen([str(c) for c in command], env=env, stderr=self.said)
        for _ in range(300):
            try:
                httpx.get(self.url + "/health")
                return
            except httpx.TransportError:
                time.sleep(0.1)
        raise AssertionError(self.stop())

    def metric(self, name: str) -> int:
        lines = httpx.get(self.url + "/metrics").text.splitlines()
        return next(
            int(float(line.split()[1])) for line in lines if line.startswith(f"heads_{name} ")
        )

    def stop(self) -> str:
        """Ends it; what it wrote on stderr."""
        self.process.terminate()
        self.process.wait(timeout=30)
        self.said.seek(0)
        return self.said.read().decode()

    def resident(self, kind: str = "VmRSS") -> int:
        """Bytes of memory; of VmHWM the most that there were."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split(f"{kind}:")[1].split()[0]) * 1024

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))
