"""python -m heads serve MODEL: OpenAI's protocol over continuous batches. A text's bits depend on
its request alone, never on what else is running."""

from __future__ import annotations

import argparse
import asyncio
import hmac
import ipaddress
import json
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Union

import uvicorn
from fastapi import APIRouter, Depends, FastAPI
from fastapi import Request as HttpRequest
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, StreamingResponse

from ._answers import Answer, Asked, VectorAnswer, model_name
from ._batch import Batch, Job
from ._native import ContextError, HeadsError
from ._requests import Refused, chat_request, completion_request, vector_request
from ._vectors import VectorJob, VectorQueue
from .model import Model

MAX_BODY = 4 << 20
PAGE = Path(__file__).with_name("chat.html")
AnyJob = Union[Job, VectorJob]


# ---- the engine's thread ----


class Engine(threading.Thread):
    """Owns the batch: takes jobs, runs passes, and tells who waits after each."""

    def __init__(self, model: Model, parallel: int, queue: int):
        super().__init__(name="heads-engine", daemon=True)
        self.model, self.batch, self.queue_limit = model, Batch(model, parallel), queue
        self.vectors = VectorQueue(model)
        self.no_vectors: HeadsError | None = None
        try:
            model.embed([])
        except HeadsError as error:
            self.no_vectors = error
        self.listeners: dict[AnyJob, Callable[[], None]] = {}
        self.new: list[AnyJob] = []
        self.gone: list[AnyJob] = []
        self.closing = False
        self.wake = threading.Condition()
        self.counts: Counter = Counter()

    @property
    def waiting(self) -> int:
        return len(self.batch.waiting) + len(self.vectors.waiting) + len(self.new)

    def submit(self, jobs: list[AnyJob], listener) -> None:
        """listener() is called after each pass, until the jobs are done. Errors: Refused (429)."""
        with self.wake:
            free = self.batch.parallel - len(self.batch.busy)
            if self.waiting + len(jobs) > self.queue_limit + free:
                raise Refused("the queue is full; try again later", status=429, code="queue_full")
            for job in jobs:
                self.listeners[job] = listener
            self.new += jobs
            self.wake.notify()

    def cancel(self, jobs: list[AnyJob]) -> None:
        with self.wake:
            self.gone += [job for job in jobs if job in self.listeners]
            self.wake.notify()

    def stop(self) -> None:
        with self.wake:
            self.closing = True
            self.wake.notify()
        self.join()

    def run(self) -> None:
        while self._take_orders():
            self.batch.step()
            self.vectors.step()
            for job, listener in list(self.listeners.items()):
                listener()
                if job.done:
                    self._count(job)
                    del self.listeners[job]
        self.batch.close()

    def _queue_of(self, job: AnyJob) -> Union[Batch, VectorQueue]:
        return self.vectors if isinstance(job, VectorJob) else self.batch

    def _take_orders(self) -> bool:
        """Waits for something to do; False: the end."""
        with self.wake:
            while not (self.new or self.gone or self.closing or self.batch.busy
                       or self.batch.waiting or self.vectors.waiting):  # fmt: skip
                self.wake.wait()
            for job in self.new:
                self._queue_of(job).submit(job)
            for job in self.gone:
                if self.listeners.pop(job, None):
                    self._queue_of(job).cancel(job)
                    self.counts["cancelled"] += 1
            self.new, self.gone = [], []
            return not self.closing

    def _count(self, job: AnyJob) -> None:
        texts = job.texts if isinstance(job, VectorJob) else [job.source or job.prompt]
        self.counts["texts"] += len(texts)
        self.counts["prompt_tokens"] += sum(map(len, texts))
        self.counts["generated_tokens"] += len(getattr(job, "tokens", ()))


# ---- HTTP ----


async def _body(http: HttpRequest) -> dict:
    """The JSON object of a request. A page of another site cannot send this content type without
    asking the browser first, which then asks us, who do not answer. What is too much is read and
    dropped, within reason: a client that still sends would not see the answer."""
    if http.headers.get("content-type", "").split(";")[0].strip() != "application/json":
        raise Refused("content-type: expected application/json", status=415)
    data, size = bytearray(), 0
    async for piece in http.stream():
        size += len(piece)
        if size <= MAX_BODY:
            data += piece
        elif size > 16 * MAX_BODY:
            break
    if size > MAX_BODY:
        raise Refused(f"a request has at most {MAX_BODY} bytes", status=413)
    try:
        body = json.loads(bytes(data).decode("utf-8"))
        json.dumps(body, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    except (ValueError, RecursionError) as error:
        raise Refused(f"the body is not JSON: {error}"[:300]) from None
    if not isinstance(body, dict):
        raise Refused("the body is no JSON object")
    return body


async def _until_gone(http: HttpRequest) -> None:
    while not await http.is_disconnected():
        await asyncio.sleep(0.2)


async def _whole(http: HttpRequest, answer: Asked) -> dict:
    """Waits for all of an answer, unless the client goes away."""

    async def finish() -> None:
        async for _ in answer.passes():
            pass

    work, gone = asyncio.ensure_future(finish()), asyncio.ensure_future(_until_gone(http))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise Refused("the client went away", status=499)
        work.result()
    finally:
        work.cancel()
        gone.cancel()
    return answer.whole()


async def _respond(http: HttpRequest, engine: Engine, parse: Callable[[dict, str], object],
                   answer_to: Callable[..., Asked]):  # fmt: skip
    engine.counts["requests"] += 1
    try:
        answer = answer_to(engine, parse(await _body(http), model_name(engine.model)))
    except ContextError as error:
        raise Refused(str(error), code="context_length_exceeded") from None
    except HeadsError as error:
        raise Refused(str(error)) from None
    answer.start()
    if answer.stream:
        return StreamingResponse(answer.events(), media_type="text/event-stream",
                                 headers={"cache-control": "no-store"})  # fmt: skip
    return JSONResponse(await _whole(http, answer))


METRICS = {  # name: what it says, its kind
    "texts": ("Texts that were done", "counter"),
    "cancelled": ("Texts whose client went away", "counter"),
    "prompt_tokens": ("Tokens of prompts", "counter"),
    "generated_tokens": ("Tokens that were generated", "counter"),
    "requests": ("Requests for texts or vectors", "counter"),
    "refused": ("Requests that were refused", "counter"),
    "texts_running": ("Texts at work now", "gauge"),
    "texts_waiting": ("Texts in the queue", "gauge"),
}


def _metrics(engine: Engine) -> str:
    """https://prometheus.io/docs/instrumenting/exposition_formats/"""
    now = {"texts_running": len(engine.batch.busy), "texts_waiting": engine.waiting}
    lines = []
    for name, (says, kind) in METRICS.items():
        full = f"heads_{name}_total" if kind == "counter" else f"heads_{name}"
        lines += [f"# HELP {full} {says}.", f"# TYPE {full} {kind}",
                  f"{full} {now.get(name, engine.counts[name])}"]  # fmt: skip
    return "\n".join(lines) + "\n"


async def _check_name(http: HttpRequest) -> None:
    """A page of another site cannot come in by a name that it made point here."""
    if not _is_loopback(http.url.hostname or ""):
        raise Refused(f"this server is at localhost, not at {str(http.url.hostname)[:80]}; --host "
                      "and --api-key open it to others", status=403)  # fmt: skip


def create_app(engine: Engine, api_key: str | None = None, local: bool = False) -> FastAPI:
    """The ASGI application; whoever makes it starts and stops the engine. local: it answers to
    names of this machine's loopback only."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None,
                  dependencies=[Depends(_check_name)] if local else [])  # fmt: skip

    @app.exception_handler(Refused)
    async def refused(_: HttpRequest, error: Refused) -> JSONResponse:
        engine.counts["refused"] += 1
        return JSONResponse(error.body, error.status)

    @app.exception_handler(404)
    @app.exception_handler(405)
    async def unknown(http: HttpRequest, error) -> JSONResponse:
        message = f"there is no {http.method} {http.url.path[:80]} here"
        return JSONResponse(Refused(message).body, error.status_code)

    @app.exception_handler(Exception)
    async def failed(_: HttpRequest, error: Exception) -> JSONResponse:
        return JSONResponse(Refused("the server failed; its log says more", status=500).body, 500)

    async def authorize(http: HttpRequest) -> None:
        given = http.headers.get("authorization", "").encode()
        if api_key and not hmac.compare_digest(given, f"Bearer {api_key}".encode()):
            raise Refused("a valid API key is needed", status=401, code="invalid_api_key")

    guarded = APIRouter(dependencies=[Depends(authorize)])

    @guarded.post("/v1/completions")
    async def completions(http: HttpRequest):
        return await _respond(http, engine, completion_request, Answer)

    @guarded.post("/v1/chat/completions")
    async def chat_completions(http: HttpRequest):
        return await _respond(http, engine, chat_request, Answer)

    @guarded.post("/v1/embeddings")
    async def embeddings(http: HttpRequest):
        return await _respond(http, engine, vector_request, VectorAnswer)

    @guarded.get("/v1/models")
    async def models() -> dict:
        entry = {"id": model_name(engine.model), "object": "model", "created": 0,
                 "owned_by": "heads"}  # fmt: skip
        return {"object": "list", "data": [entry]}

    @guarded.get("/v1/models/{name}")
    async def model(name: str) -> dict:
        if name != model_name(engine.model):
            raise Refused(f"the model here is {model_name(engine.model)}", "model", 404,
                          "model_not_found")  # fmt: skip
        return (await models())["data"][0]

    @app.get("/health")
    async def health() -> dict:
        return {"status": "ok"}

    @guarded.get("/metrics")
    async def metrics() -> PlainTextResponse:
        return PlainTextResponse(_metrics(engine), media_type="text/plain; version=0.0.4")

    @app.get("/")
    async def page() -> HTMLResponse:
        return HTMLResponse(PAGE.read_text(encoding="utf-8"))

    app.include_router(guarded)
    return app


# ---- the command ----


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Parser(argparse.ArgumentParser):
    def error(self, message: str):
        self.exit(2, f"heads: {message}; see {self.prog} --help\n")


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(prog="python -m heads serve", allow_abbrev=False,
                    description="Answers in OpenAI's protocol.")  # fmt: skip
    whole = dict(type=int, metavar="N")
    parser.add_argument("model", metavar="MODEL", help="a checkpoint that export made")
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (127.0.0.1); any but "
                        "loopback needs --api-key")  # fmt: skip
    parser.add_argument("--port", default=8080, **whole, help="(8080); 0: a free one")
    parser.add_argument("--parallel", default=8, **whole, help="texts at work at a time (8)")
    parser.add_argument("--queue", default=64, **whole, help="texts that may wait (64); more get a "
                        "429")  # fmt: skip
    parser.add_argument("--api-key", metavar="KEY", help="clients send it as a bearer token")
    parser.add_argument("-c", "--context", **whole, help="positions of each text (the model's)")
    parser.add_argument("-t", "--threads", **whole, help="(the physical cores)")
    parser.add_argument("--kv", default="f16", metavar="TYPE", help="of the KV cache: f16, f32, q8 "
                        "or q4 (f16)")  # fmt: skip
    o = parser.parse_args(arguments)
    if not _is_loopback(o.host) and not o.api_key:
        parser.error(f"--host {o.host} is open to others, which needs --api-key")
    if o.parallel < 1 or o.queue < 0 or not 0 <= o.port < 2**16:
        parser.error("--parallel is 1 or more, --queue 0 or more, --port 0 to 65535")
    return o


def main(arguments: list[str]) -> int:
    o = _options(arguments)
    try:
        model = Model(o.model, o.threads, o.kv, o.context, chunk=max(128, o.parallel))
        family = socket.AF_INET6 if ":" in o.host else socket.AF_INET
        listener = socket.create_server((o.host, o.port), family=family)
    except HeadsError as error:
        print(f"heads: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        why = str(error.strerror).partition(" (")[0]
        print(f"heads: cannot listen on {o.host}, port {o.port}: {why}", file=sys.stderr)
        return 1
    engine = Engine(model, o.parallel, o.queue)
    app = create_app(engine, o.api_key, local=_is_loopback(o.host))
    engine.start()
    host, port = f"[{o.host}]" if ":" in o.host else o.host, listener.getsockname()[1]
    print(f"heads: {o.model} at http://{host}:{port}/v1", flush=True)
    try:
        config = uvicorn.Config(app, log_level="warning", access_log=False,
                                timeout_graceful_shutdown=2)  # fmt: skip
        uvicorn.Server(config).run(sockets=[listener])
    except KeyboardInterrupt:
        pass
    finally:
        engine.stop()
        model.close()
    return 0
