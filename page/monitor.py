"""What the server says of itself: a line of log per request, `/health` and `/metrics`."""

import secrets
import time
from collections import Counter
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from page.batches import ImageQueue
from support.progress import announce

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOLD = "adt_tree.told"  # key of a request's scope: what its line of log says
_METRICS = {  # name: help, kind
    "requests_total": ("API requests answered, by status", "counter"),
    "requests_waiting": ("API requests of which no image has been begun", "gauge"),
    "images_total": ("images generated for API requests", "counter"),
    "tokens_total": ("tokens decided in verification rounds", "counter"),
    "rounds_total": ("verification rounds, summed over images", "counter"),
    "decoding_seconds_total": ("seconds of generating", "counter"),
    "tau": ("mean tokens per round since the start", "gauge"),
}


class Monitor:
    """Counts and logs the requests of an API, and lets nobody in without its key."""

    def __init__(self, queue: ImageQueue, model: str, key: str | None):
        self.queue, self.model, self._key = queue, model, key
        self.requests = Counter[int]()  # by status

    def __call__(self, app: "ASGIApp") -> "ASGIApp":
        """Return the application with a line of log per request."""

        async def run(scope: "Scope", receive: "Receive", send: "Send") -> None:
            if scope["type"] != "http":
                return await app(scope, receive, send)
            started, status = time.perf_counter(), 500

            async def sent(message: "Message") -> None:
                nonlocal status
                status = message.get("status", status)
                await send(message)

            try:
                await app(scope, receive, sent)
            finally:
                self.requests[status] += 1
                told = " ".join(str(scope.get(TOLD, "")).split())
                told = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in told)
                seconds = f"{time.perf_counter() - started:.2f} s"
                path = quote(scope["path"], errors="replace")
                line = f"{scope['method']} {path} {status}, {seconds}"
                announce(": ".join(filter(None, [line, told])))

        return run

    def admits(self, request: Request) -> bool:
        """Return whether a request has the key."""
        given, wanted = request.headers.get("authorization", ""), f"Bearer {self._key}"
        return self._key is None or secrets.compare_digest(given.encode(), wanted.encode())

    async def health(self, request: Request) -> Response:
        """Answer that the model is loaded."""
        return JSONResponse({"status": "ok", "model": self.model})

    async def metrics(self, request: Request) -> Response:
        """Answer with figures in Prometheus' text format."""
        return PlainTextResponse(self.text(), media_type="text/plain; version=0.0.4")

    def text(self) -> str:
        """Return the figures since the start in Prometheus' text format."""
        counts = self.queue.counts
        values: dict[str, Any] = {
            "requests_waiting": self.queue.waiting,
            "images_total": counts.images,
            "tokens_total": counts.tokens,
            "rounds_total": counts.rounds,
            "decoding_seconds_total": round(counts.seconds, 3),
            "tau": counts.tokens / counts.rounds if counts.rounds else "NaN",
        }
        lines = []
        for name, (words, kind) in _METRICS.items():
            full = f"adt_tree_{name}"
            lines += [f"# HELP {full} {words}", f"# TYPE {full} {kind}"]
            by_status = [f'{full}{{status="{s}"}} {n}' for s, n in sorted(self.requests.items())]
            lines += [f"{full} {values[name]}"] if name in values else by_status
        return "\n".join([*lines, ""])
