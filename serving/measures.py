"""Around every request: its counts, headers that protect the page, and errors without details."""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger(__name__)

# Nothing from another host, nothing inline.
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
POLICY += "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
HEADERS = {
    b"content-security-policy": POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
}


class Measures:
    """Counts and times, for `GET /metrics`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        known: dict[str, Any] = {"registry": self.registry}
        labels = ["path", "status"]
        self.requests = Counter("fr2en_requests", "Requests that were answered", labels, **known)
        buckets = (*Histogram.DEFAULT_BUCKETS[:-1], 30, 60, 120)
        what = "From request to answer"
        self.latency = Histogram("fr2en_request_seconds", what, ["path"], buckets=buckets, **known)
        sizes = [2**n for n in range(10)]
        what = "Items computed at once"
        self.sizes = Histogram("fr2en_batch_size", what, buckets=sizes, **known)
        ProcessCollector(registry=self.registry)
        self.busy = Counter("fr2en_busy_seconds", "Seconds spent in computing", **known)
        self.waiting = Gauge("fr2en_waiting", "Items that wait", **known)

    def batch(self, size: int, seconds: float) -> None:
        self.sizes.observe(size)
        self.busy.inc(seconds)

    def text(self) -> bytes:
        """All counts and times in Prometheus' text format."""
        return generate_latest(self.registry)


class Watched:
    """Middleware: measures requests, guards answers, and reports an error without its trace."""

    def __init__(self, app: ASGIApp, measures: Measures, paths: Sequence[str]) -> None:
        self.app, self.measures, self.paths = app, measures, set(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, status = time.monotonic(), 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                held = {name.lower() for name, _ in message["headers"]}
                guards = [item for item in HEADERS.items() if item[0] not in held]
                message["headers"] = [*message["headers"], *guards]
            await send(message)

        try:
            await self.app(scope, receive, sending)
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a panic of a library in Rust is no Exception
            logger.exception("a request failed")
            if not status:
                answer = JSONResponse({"error": "internal error"}, 500)
                await answer(scope, receive, sending)
        path = scope["path"] if scope["path"] in self.paths else "other"
        self.measures.requests.labels(path, str(status)).inc()
        self.measures.latency.labels(path).observe(time.monotonic() - begun)


class Hosts(TrustedHostMiddleware):
    """Refuses other Host headers, but not of probes and scrapers, which ask by address."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        free = scope["type"] == "http" and scope["path"] in ("/health", "/metrics")
        await (self.app if free else super().__call__)(scope, receive, send)
