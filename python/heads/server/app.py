"""The server's ASGI application: its routes, and who may use them."""

from __future__ import annotations

import asyncio
import hmac
import json
import re
from base64 import b64encode
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from typing import Dict, TextIO, Union

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request as HttpRequest
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from .._native import ContextError, HeadsError
from ..model import Model
from .anthropic import Message, error_body, messages_request
from .answers import Asked, RankAnswer, ScoreAnswer, SparseAnswer, TokenAnswer, VectorAnswer
from .bodies import parsed, read_body
from .engine import Adapted, Engine, by_names
from .llama import Completion, apply_template, llama_request, props, slots
from .messages import GONE, Refused
from .requests import chat_request, completion_request, rerank_request, score_request
from .requests import sparse_request, token_request, vector_request
from .responses import Response as ResponseAnswer
from .responses import responses_request
from .texts import Answer
from .threads import Threads
from .tokens import detokenize, tokenize
from .watch import Metrics, Watch

THREADS = 32  # that requests take while they are read and written
PAGE = Path(__file__).with_name("chat.html").read_text(encoding="utf-8")

# ---- answers ----


async def _until_gone(http: HttpRequest) -> None:
    """Waits: after its body, nothing else comes from a client."""
    while (await http.receive())["type"] != "http.disconnect":
        pass


async def _unless_gone(http: HttpRequest, work: Awaitable):
    """What it gives. A client that goes away cancels it."""
    work, gone = asyncio.ensure_future(work), asyncio.ensure_future(_until_gone(http))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise Refused(GONE, status=499)
        return work.result()
    finally:
        work.cancel()
        gone.cancel()


async def _finish(answer: Asked) -> None:
    async for _ in answer.passes():
        pass


class Events(StreamingResponse):
    """An answer as server-sent events. A client that goes away before the first ends it too."""

    def __init__(self, answer: Answer):
        headers = {"cache-control": "no-store"}
        super().__init__(answer.events(), media_type="text/event-stream", headers=headers)
        self.answer = answer

    async def __call__(self, scope, receive, send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.answer.end()


Parse = Callable[[dict, str], object]
Endpoint = Callable[[HttpRequest], Awaitable[Response]]
Engines = Dict[str, Union[Engine, Adapted]]  # by the names that requests say


def _engine(engines: Engines, body: dict) -> Engine:
    """The one that a request names; parsing it refuses another name than the only one's."""
    name = body.get("model")
    if isinstance(name, str) and name in engines:
        return engines[name]
    if name is not None and len(engines) > 1:
        raise _no_model(engines)
    return next(iter(engines.values()))


def _no_model(engines: Engines) -> Refused:
    names = f"the model here is {next(iter(engines))}"
    if len(engines) > 1:
        names = f"the models here are {', '.join(engines)}"
    return Refused(names, "model", 404, "model_not_found")


def _done(engines: Engines, data: bytes, work: Callable[[Engine, dict], object]):
    """work(engine, body) of the engine that a body names."""
    try:
        body = parsed(data)
        engine = _engine(engines, body)
        engine.check()
        return work(engine, body)
    except ContextError as error:
        raise Refused(str(error), code="context_length_exceeded") from None
    except HeadsError as error:
        raise Refused(str(error)) from None
    except RecursionError:
        raise Refused("the body is nested too deeply") from None
    except MemoryError:
        raise Refused("no memory for this request", status=503) from None


def _written(answer: Asked) -> bytes:
    whole = answer.whole()
    return json.dumps(whole, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


# ---- the application ----


def _page_headers() -> dict[str, str]:
    """The page runs its own script and style, known by their hashes, and asks this server only."""
    allowed = {}
    for kind in ("script", "style"):
        inline = re.search(f"<{kind}>(.*?)</{kind}>", PAGE, re.DOTALL)[1].encode()
        allowed[kind] = f"'sha256-{b64encode(sha256(inline).digest()).decode()}'"
    policy = (
        f"default-src 'none'; script-src {allowed['script']}; style-src {allowed['style']}; "
        "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return {
        "content-security-policy": policy,
        "x-frame-options": "DENY",
        "cross-origin-opener-policy": "same-origin",  # these two isolate it from other sites' pages
        "cross-origin-embedder-policy": "require-corp",
    }


class Ended:
    """Middleware: requests that the server cuts off at its end leave no traceback."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send) -> None:
        try:
            await self.app(scope, receive, send)
        except asyncio.CancelledError:
            pass


class Hosts:
    """Middleware: Starlette's check of the Host header, with the refusal in OpenAI's shape."""

    def __init__(self, app, hosts: tuple[str, ...]):
        self.app, self.hosts = app, hosts

    async def __call__(self, scope, receive, send) -> None:
        known = False

        async def ask(*_) -> None:
            nonlocal known
            known = True
            await self.app(scope, receive, send)

        async def drop(_) -> None:
            pass

        check = TrustedHostMiddleware(ask, allowed_hosts=self.hosts, www_redirect=False)
        await check(scope, receive, drop)
        if not known and scope["type"] == "http":
            names = " or ".join(self.hosts)
            refusal = Refused(f"host: this server is {names}", "host")
            await JSONResponse(refusal.body, refusal.status)(scope, receive, send)


class Application:
    """What the routes do."""

    def __init__(self, engines: list[Engine], api_key: str | None):
        self.engines = by_names(engines)
        self.api_key, self.metrics = api_key, Metrics(engines)
        self.page_headers, self.threads = _page_headers(), Threads(THREADS)

    # ---- requests ----

    async def worked(self, http: HttpRequest, work: Callable, *given):
        """What takes long (JSON, templates, tokens), by another thread than the event loop's."""
        return await _unless_gone(http, self.threads.run(work, *given))

    async def respond(
        self, http: HttpRequest, parse: Parse, answer_to: Callable[..., Asked]
    ) -> Response:
        def ask(engine: Engine, body: dict) -> Asked:
            engine.counts["requests"] += 1
            return answer_to(engine, parse(body, engine.model_name))

        answer = await self.worked(http, _done, self.engines, await read_body(http), ask)
        http.scope["heads.asked"] = answer
        answer.start()
        if answer.stream:
            return Events(answer)
        try:
            await _unless_gone(http, _finish(answer))
            data = await self.worked(http, _written, answer)
        finally:
            answer.end()
        return Response(data, media_type="application/json")

    # ---- routes ----

    def authorize(self, http: HttpRequest) -> None:
        scheme, _, given = http.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            given = http.headers.get("x-api-key", "")  # Anthropic's
        same = hmac.compare_digest(given.strip().encode(), (self.api_key or "").encode())
        if self.api_key and not same:
            raise Refused("a valid API key is needed", status=401, code="invalid_api_key")

    def guarded(self, path: str, endpoint: Endpoint, method: str = "GET") -> Route:
        async def with_key(http: HttpRequest) -> Response:
            self.authorize(http)
            return await endpoint(http)

        return Route(path, with_key, methods=[method])

    def asks(self, path: str, parse: Parse, answer_to: Callable[..., Asked]) -> Route:
        async def endpoint(http: HttpRequest) -> Response:
            return await self.respond(http, parse, answer_to)

        return self.guarded(path, endpoint, "POST")

    def at_once(self, path: str, work: Callable[[Model, dict, str], dict]) -> Route:
        def of_engine(engine: Engine, body: dict) -> dict:
            return work(engine.model, body, engine.model_name)

        async def endpoint(http: HttpRequest) -> Response:
            data = await read_body(http)
            return JSONResponse(await self.worked(http, _done, self.engines, data, of_engine))

        return self.guarded(path, endpoint, "POST")

    def routes(self) -> list[Route]:
        return [
            self.asks("/v1/completions", completion_request, Answer),
            self.asks("/v1/chat/completions", chat_request, Answer),
            self.asks("/v1/responses", responses_request, ResponseAnswer),
            self.asks("/v1/messages", messages_request, Message),
            self.asks("/v1/embeddings", vector_request, VectorAnswer),
            self.asks("/pooling", token_request, TokenAnswer),
            self.asks("/embed_sparse", sparse_request, SparseAnswer),
            self.asks("/v1/rerank", rerank_request, RankAnswer),
            self.asks("/v2/rerank", rerank_request, RankAnswer),
            self.asks("/rerank", rerank_request, RankAnswer),
            self.asks("/v1/score", score_request, ScoreAnswer),
            self.asks("/completion", llama_request, Completion),
            self.at_once("/apply-template", apply_template),
            self.at_once("/tokenize", tokenize),
            self.at_once("/detokenize", detokenize),
            self.guarded("/v1/models", self.models),
            self.guarded("/v1/models/{name}", self.model),
            self.guarded("/props", self.props),
            self.guarded("/slots", self.slots),
            self.guarded("/metrics", self.measured),
            Route("/health", self.health),
            Route("/", self.page),
        ]

    # ---- what is told without a body ----

    def entry(self, name: str) -> dict:
        engine = self.engines[name]
        model, adapter = engine.model, engine.adapter
        return {
            "id": name,
            "object": "model",
            "created": 0,
            "owned_by": "heads",
            "root": Path((adapter or model).path).name,  # these two as vLLM has them
            "parent": engine.engine.model_name if adapter else None,
            "max_model_len": model.context,  # vLLM's word, and llama-server's
            "meta": {"n_ctx": model.context, "n_ctx_train": model.shape.context},
        }

    async def models(self, _: HttpRequest) -> Response:
        return JSONResponse({"object": "list", "data": [*map(self.entry, self.engines)]})

    def named(self, http: HttpRequest) -> Engine:
        name = http.query_params.get("model", next(iter(self.engines)))
        if name not in self.engines:
            raise _no_model(self.engines)
        self.engines[name].check()
        return self.engines[name]

    async def props(self, http: HttpRequest) -> Response:
        return JSONResponse(await self.worked(http, props, self.named(http)))

    async def slots(self, http: HttpRequest) -> Response:
        found = slots(self.named(http))
        if http.query_params.get("fail_on_no_slot") and all(x["is_processing"] for x in found):
            raise Refused("no slot is available", status=503)
        return JSONResponse(found)

    async def model(self, http: HttpRequest) -> Response:
        name = http.path_params["name"]
        if name not in self.engines:
            raise _no_model(self.engines)
        return JSONResponse(self.entry(name))

    async def health(self, _: HttpRequest) -> Response:
        for engine in self.engines.values():
            engine.check()
        return JSONResponse({"status": "ok"})

    async def measured(self, _: HttpRequest) -> Response:
        return PlainTextResponse(self.metrics.written(), media_type="text/plain; version=0.0.4")

    async def page(self, _: HttpRequest) -> Response:
        return HTMLResponse(PAGE, headers=self.page_headers)

    # ---- errors ----

    async def refused(self, http: HttpRequest, error: Refused) -> Response:
        next(iter(self.engines.values())).counts["refused"] += 1
        body = error_body(error) if http.url.path == "/v1/messages" else error.body
        return JSONResponse(body, error.status, error.headers)

    async def unknown(self, http: HttpRequest, error: HTTPException) -> Response:
        refusal = Refused(f"there is no {http.method} {http.url.path[:80]} here")
        return JSONResponse(refusal.body, error.status_code, error.headers)

    async def failed(self, _: HttpRequest, error: Exception) -> Response:
        return JSONResponse(Refused("the server failed; its log says more", status=500).body, 500)


def create_app(
    engines: Engine | list[Engine],
    api_key: str | None = None,
    hosts: tuple[str, ...] = ("*",),
    origins: tuple[str, ...] = (),
    log: TextIO | None = None,
) -> Starlette:
    """The application; whoever makes it starts and stops the engines. hosts: the names that it
    answers to. A page of another site cannot come in by a name that it made point here. origins:
    sites whose pages may."""
    all_engines = [engines] if isinstance(engines, Engine) else engines
    does = Application(all_engines, api_key)
    cors = Middleware(
        CORSMiddleware, allow_origins=origins, allow_methods=["GET", "POST"], allow_headers=["*"]
    )
    app = Starlette(
        routes=does.routes(),
        middleware=[
            Middleware(Ended),
            Middleware(Watch, metrics=does.metrics, log=log),
            *([cors] if origins else []),
            Middleware(Hosts, hosts=hosts),
        ],
        exception_handlers={
            Refused: does.refused,
            HTTPException: does.unknown,
            Exception: does.failed,
        },
    )
    app.router.redirect_slashes = False
    return app
