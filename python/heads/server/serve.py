"""python -m heads serve MODEL: OpenAI's protocol over continuous batches. A text's bits depend on
its request alone, never on what else is running."""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import os
import re
import signal
import socket
import sys
from pathlib import Path
from typing import TextIO

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from .._native import HeadsError
from .._adapters import Adapter
from ..model import Model
from .app import create_app
from .bodies import DROPPED
from .engine import Engine

HEAD_SECONDS = 15  # once or twice that, and a connection whose request has not begun is closed
IDLE_SECONDS = 60  # that a connection stays after an answer
HEAD_BYTES = 1 << 16  # of a request's first line and headers


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Parser(argparse.ArgumentParser):
    def error(self, message: str):
        self.exit(2, f"heads: {message}; see {self.prog} --help\n")


def _api_key(parser: Parser, path: str | None) -> str | None:
    """Not from the command line, which every user of the machine sees."""
    key = os.environ.get("HEADS_API_KEY")
    if path is not None:
        try:
            key = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            parser.error(f"--api-key-file {path}: {getattr(error, 'strerror', None) or error}")
        if not key:
            parser.error(f"--api-key-file {path} is empty")
    return key or None


def _named(parser: Parser, given: list[str], alias: str | None) -> dict[str, str]:
    """Paths by their models' names."""
    if alias and len(given) > 1:
        parser.error("--alias names one model; with several, give each as NAME=MODEL")
    found = {}
    for path in given:
        name, equals, rest = path.partition("=")
        if not equals or not re.fullmatch(r"[\w.:-]+", name):
            name, rest = Path(path).name.removesuffix(".bin"), path
        name = alias or name
        if name in found:
            parser.error(f"two models are called {name}; give one as NAME=MODEL")
        found[name] = rest
    return found


def _adapters(parser: Parser, given: list[str], models: dict[str, str]) -> dict:
    """FILE[:SCALE] by the names of adapters, by the names of their models."""
    found: dict[str, dict[str, str]] = {name: {} for name in models}
    for text in given:
        name, _, file = text.partition("=")
        bases = [base for base in models if name.startswith(base + ":")]
        base = max(bases or (models if len(models) == 1 else [""]), key=len)
        name = name.removeprefix(base + ":")
        if not base or not file or not re.fullmatch(r"[\w.:-]+", name):
            expected = "NAME=FILE" if len(models) == 1 else "MODEL:NAME=FILE, MODEL as it is called"
            parser.error(f"--adapter {text}: expected {expected}")
        if name in found[base] or f"{base}:{name}" in models:
            parser.error(f"two are called {base}:{name}; give one another name")
        found[base][name] = file
    return found


def _adapter(model: Model, given: str) -> Adapter:
    """Of FILE, or FILE:SCALE where no file is called so, as ./run has it."""
    path, colon, number = given.rpartition(":")
    try:
        scale = float(number) if colon and not Path(given).exists() else None
    except ValueError:
        scale = None
    return model.adapter(given) if scale is None else model.adapter(path).scaled(scale)


def _printable(text: str) -> str:
    """On one line, whatever a file is called."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _log(parser: Parser, path: str | None) -> TextIO | None:
    if path in (None, "-"):
        return sys.stdout if path else None
    try:
        return open(path, "a", encoding="utf-8")
    except OSError as error:
        parser.error(f"--access-log {path}: {error.strerror}")


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m heads serve",
        allow_abbrev=False,
        description="Answers in OpenAI's protocol.",
    )
    whole = dict(type=int, metavar="N")
    parser.add_argument(
        "models",
        metavar="[NAME=]MODEL",
        nargs="+",
        help="checkpoints that export made, and the names that requests choose them by",
    )
    parser.add_argument("--alias", metavar="NAME", help="the name of the only model")
    parser.add_argument(
        "--adapter",
        metavar="NAME=FILE[:SCALE]",
        action="append",
        default=[],
        help="an adapter apart, which requests choose as MODEL:NAME; may be repeated, and with "
        "several models is MODEL:NAME=FILE",
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="where to listen (127.0.0.1); any but loopback needs a key",
    )
    parser.add_argument("--port", default=8080, **whole, help="(8080); 0: a free one")
    parser.add_argument("--parallel", default=8, **whole, help="texts at work at a time (8)")
    parser.add_argument(
        "--queue", default=64, **whole, help="texts that may wait (64); more get a 429"
    )
    parser.add_argument(
        "--api-key-file",
        metavar="FILE",
        help="has the key that clients send as a bearer token; or HEADS_API_KEY is it",
    )
    parser.add_argument(
        "--cors-origin",
        metavar="ORIGIN",
        action="append",
        default=[],
        help="a site whose pages may ask, such as https://example.org; may be repeated",
    )
    parser.add_argument(
        "--access-log", metavar="FILE", help="gets a line of JSON for each request; -: stdout"
    )
    parser.add_argument(
        "--grace", default=10, **whole, help="seconds to finish answers at the end (10)"
    )
    parser.add_argument(
        "--lookup",
        default=0,
        **whole,
        help="guess up to N tokens from what followed the same words before; texts stay the same",
    )
    parser.add_argument(
        "--draft", metavar="FILE", help="a smaller checkpoint with the same tokens that guesses"
    )
    parser.add_argument(
        "--guess",
        **whole,
        help="guess up to N tokens by layers that the model has for it; 0: none (3)",
    )
    parser.add_argument("-c", "--context", **whole, help="positions of each text (the model's)")
    parser.add_argument("-t", "--threads", **whole, help="(the physical cores)")
    parser.add_argument(
        "--kv", default="f16", metavar="TYPE", help="of the KV cache: f16, f32, q8 or q4 (f16)"
    )
    o = parser.parse_args(arguments)
    o.api_key = _api_key(parser, o.api_key_file)
    if not _is_loopback(o.host) and not o.api_key:
        parser.error(
            f"--host {o.host} is open to others, which needs --api-key-file or HEADS_API_KEY"
        )
    o.models = _named(parser, o.models, o.alias)
    o.adapters = _adapters(parser, o.adapter, o.models)
    o.log = _log(parser, o.access_log)
    if o.parallel < 1 or o.queue < 0 or o.grace < 0 or not 0 <= o.port < 2**16:
        parser.error("--parallel is 1 or more, --queue and --grace 0 or more, --port 0 to 65535")
    return o


class Connection(H11Protocol):
    """uvicorn's, which hangs up on a client that sends no more, though it may still listen."""

    half = False  # the client has closed its side

    def eof_received(self) -> bool:
        """Whether an answer is still due. HTTP/1.0 has no words to ask whether anybody listens."""
        cycle = self.cycle
        due = cycle is not None and not cycle.response_complete and not cycle.more_body
        if not due or self.scope["http_version"] == "1.0":
            return False
        if not self.half:
            self.half = True
            self.ask(0.1)
        return True

    def ask(self, seconds: float) -> None:
        """Says again and again what means nothing: if nobody listens, the system will say so."""
        if self.transport.is_closing():
            return
        if not self.cycle.response_started:
            head = h11.InformationalResponse(status_code=100, headers=[], reason="Continue")
            self.transport.write(self.conn.send(head))
        elif not self.cycle.response_complete:  # events
            self.transport.write(self.conn.send(h11.Data(data=b":\n\n")))
        self.loop.call_later(seconds, self.ask, min(2 * seconds, 5))

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.half and self.cycle.response_complete:
            self.transport.close()


class Server(uvicorn.Server):
    """uvicorn's, which knows no limit for the beginning of a request, nor how to end an answer."""

    def __init__(self, app, engines: list[Engine], grace: int):
        config = uvicorn.Config(
            app,
            log_level="error",
            access_log=False,
            ws="none",
            http=Connection,  # of h11: httptools has no bound on headers
            h11_max_incomplete_event_size=HEAD_BYTES,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=grace + 2,
            callback_notify=self.close_idle,
            timeout_notify=HEAD_SECONDS,
            backlog=64,  # without descriptors, asyncio tries and logs so many times a second
        )
        super().__init__(config)
        self.engines, self.grace = engines, grace
        self.idle: dict = {}  # connections between two requests, and the last one's cycle

    async def close_idle(self) -> None:
        """Closes the connections that have begun no request since the last call."""
        before, self.idle = self.idle, {}
        for connection in list(self.server_state.connections):
            cycle = connection.cycle
            answering = cycle is not None and not cycle.response_complete
            begun, _ = connection.conn.trailing_data  # a part of the next request's head
            waits = connection.timeout_keep_alive_task and not begun  # uvicorn closes these
            if answering or waits:
                continue
            self.idle[connection] = cycle
            if connection in before and before[connection] is cycle:
                connection.transport.close()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.hang_up(lambda cycle: DROPPED in cycle.scope)
        timer = asyncio.get_running_loop().call_later(self.grace, self.close)
        await super().shutdown(sockets)
        timer.cancel()

    def close(self) -> None:
        """The grace is over."""
        for engine in self.engines:
            engine.close()
        self.hang_up(lambda cycle: True)

    def hang_up(self, which) -> None:
        """On clients that still send a body, where `which` says so of its cycle."""
        for connection in list(self.server_state.connections):
            cycle = connection.cycle
            if cycle is not None and cycle.more_body and which(cycle):
                connection.transport.close()


def main(arguments: list[str]) -> int:
    o = _options(arguments)
    models: dict[str, Model] = {}
    adapters: dict[str, dict[str, Adapter]] = {}
    try:
        for name, path in o.models.items():
            models[name] = Model(
                path,
                o.threads,
                o.kv,
                o.context,
                chunk=max(128, o.parallel),
                lookup=o.lookup,
                draft=o.draft,
                guess=o.guess,
            )
            given = o.adapters[name].items()
            adapters[name] = {own: _adapter(models[name], file) for own, file in given}
        family = socket.AF_INET6 if ":" in o.host else socket.AF_INET
        listener = socket.create_server((o.host, o.port), family=family)
    except HeadsError as error:
        print(f"heads: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        why = str(error.strerror).partition(" (")[0]
        print(f"heads: cannot listen on {o.host}, port {o.port}: {why}", file=sys.stderr)
        return 1
    engines = [Engine(m, o.parallel, o.queue, name, adapters[name]) for name, m in models.items()]
    host, port = f"[{o.host}]" if ":" in o.host else o.host, listener.getsockname()[1]
    local = ("localhost", "127.0.0.1", "[::1]", host)
    hosts = local if _is_loopback(o.host) else ("*",)
    app = create_app(engines, o.api_key, hosts, tuple(o.cors_origin), o.log)
    for engine in engines:
        engine.start()
    names = ", ".join(map(_printable, o.models.values()))
    print(f"heads: {names} at http://{host}:{port}/v1", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn's, which it raises again at its end
    server = Server(app, engines, o.grace)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, server.handle_exit)  # unless nohup has it ignored
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        pass
    finally:
        for engine in engines:
            engine.stop()
            engine.model.close()
    return 0
