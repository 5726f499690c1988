"""What the server tells of its work: metrics for Prometheus, and a line of JSON a request."""

from __future__ import annotations

import json
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, TextIO

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from .answers import Asked
    from .engine import Engine

COUNTS = {
    "texts": "Texts that were done",
    "cancelled": "Texts whose client went away",
    "prompt_tokens": "Tokens of prompts",
    "generated_tokens": "Tokens that were generated",
    "requests": "Requests for texts or vectors",
    "refused": "Requests that were refused",
}
GUESSES = {"drafted": "Guesses at next tokens", "accepted": "Guesses that were right"}
SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class _Counts(Collector):
    """What the engines count, of all models."""

    def __init__(self, engines: list[Engine]):
        self.engines = engines

    def collect(self):
        for name, says in COUNTS.items():
            value = sum(engine.counts[name] for engine in self.engines)
            yield CounterMetricFamily(f"heads_{name}", f"{says}.", value=value)
        for name, says in GUESSES.items():
            value = sum(getattr(engine.batch, name) for engine in self.engines)
            yield CounterMetricFamily(f"heads_{name}_tokens", f"{says}.", value=value)
        running = sum(engine.batch.running for engine in self.engines)
        waiting = sum(engine.waiting for engine in self.engines)
        yield GaugeMetricFamily("heads_texts_running", "Texts at work now.", value=running)
        yield GaugeMetricFamily("heads_texts_waiting", "Texts in the queue.", value=waiting)


class Metrics:
    """https://prometheus.io/docs/instrumenting/exposition_formats/"""

    def __init__(self, engines: list[Engine]):
        self.registry = CollectorRegistry()
        self.registry.register(_Counts(engines))

        def seconds(name: str, of: str) -> Histogram:
            says = f"Seconds {of}."
            return Histogram(f"heads_{name}", says, buckets=SECONDS, registry=self.registry)

        self.first = seconds("first_token_seconds", "from a request to its first token")
        self.each = seconds("token_seconds", "of a token after the first, a request's mean")
        self.whole = seconds("request_seconds", "of a request for texts or vectors")

    def written(self) -> bytes:
        return generate_latest(self.registry)

    def observe(self, seconds: float, asked: Asked, first: float | None) -> None:
        self.whole.observe(seconds)
        if first is not None:
            self.first.observe(first)
            n = asked.spent()[1]
            if n > 1:
                self.each.observe((seconds - first) / (n - 1))


class Watch:
    """Middleware: measures requests. An endpoint leaves what was asked for in the scope."""

    def __init__(self, app, metrics: Metrics, log: TextIO | None = None):
        self.app, self.metrics, self.log = app, metrics, log

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        begin, status = time.perf_counter(), 0

        async def noted(message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self.app(scope, receive, noted)
        finally:
            self._told(scope, status, time.perf_counter() - begin, begin)

    def _told(self, scope, status: int, seconds: float, begin: float) -> None:
        asked: Asked | None = scope.get("heads.asked")
        first = asked.first - begin if asked and asked.first else None
        if asked:
            self.metrics.observe(seconds, asked, first)
        if not self.log:
            return
        prompt, new = asked.spent() if asked else (0, 0)
        line = {
            "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            "method": scope["method"],
            "path": scope["path"][:200],
            "status": status,
            "prompt_tokens": prompt,
            "completion_tokens": new,
            "first_token_seconds": first and round(first, 6),
            "seconds": round(seconds, 6),
        }
        try:
            self.log.write(json.dumps(line) + "\n")
            self.log.flush()
        except OSError:  # a full disk stops no request
            pass
