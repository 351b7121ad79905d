"""`demo`: load the model, then serve the page and the API until Ctrl-C or SIGTERM."""

import errno
import os
import signal
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import getproxies

from adt_tree.pipeline import Pipeline
from configs.fields import Flag, SettingsError, mismatch
from configs.tools import PageSettings
from page.stage import HERE
from support.durable import make_writable, reason
from support.progress import announce, plural

if TYPE_CHECKING:  # slow to import
    from gradio import Blocks
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from page.batches import ImageQueue

# The browser loads nothing but what this server sends.
POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'; "
    "script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; font-src 'self' data:; "
    "connect-src 'self'; worker-src 'self' blob:"
)
NO_PROXY = ("no_proxy", "NO_PROXY")  # libraries read either


def serve(settings: PageSettings) -> None:
    """Load the model and serve the page until Ctrl-C or SIGTERM; who still waits is told."""
    make_writable("output_dir", Path(settings.output_dir).absolute())
    check_port(settings)  # first, since loading takes minutes
    engine = settings.engine
    announce(f"loading the model ({engine.model}) from {engine.model_path}")
    page, url, queue = launch(settings, Pipeline({}, settings.given))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    print(f"{url}: the page; {url}v1: OpenAI's image API; Ctrl-C ends both", flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        announce(f"stopping: 503 to {plural(queue.stop(), 'unfinished request')}")
        page.close(verbose=False)  # waits until the answers are sent


def launch(settings: PageSettings, pipe: Pipeline) -> tuple["Blocks", str, "ImageQueue"]:
    """Serve a pipeline's page and API from a thread; returns the page, its address and queue."""
    folder = Path(settings.output_dir).absolute()
    os.environ |= {  # gradio and matplotlib, which it loads, read them when they are imported
        "MPLCONFIGDIR": str(folder / "matplotlib"),
        "GRADIO_TEMP_DIR": str(folder / "gradio"),
        "GRADIO_ANALYTICS_ENABLED": "False",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    # gradio calls its own server once, which a proxy cannot reach
    direct = [getproxies().get("no"), "localhost", "127.0.0.1", settings.share_on]
    os.environ |= dict.fromkeys(NO_PROXY, ",".join(filter(None, direct)))
    from starlette.middleware import Middleware

    from page.api import ImageApi
    from page.app import THEME, build_page, fast_methods

    page = build_page(pipe, settings.drafted, settings.visitors)
    methods = ("ar", *fast_methods(settings.drafted))
    api = ImageApi(pipe, methods, settings.visitors, settings.api_key)
    try:
        _, url, _ = page.launch(
            server_name=settings.share_on,
            server_port=settings.port,
            prevent_thread_lock=True,
            _frontend=False,  # no second test call, which a busy machine answers too late
            quiet=True,
            share=False,
            ssr_mode=False,
            num_workers=0,  # a second process would outlive Ctrl-C and keep the next port
            footer_links=[],
            theme=THEME,
            css_paths=HERE / "stage.css",
            app_kwargs={
                "middleware": [Middleware(own_policy)],
                "routes": api.routes,
            },
        )
    except OSError as error:
        advice = "If it is free, this machine is too busy to start a server. Try again."
        raise _no_port(settings, "a port that could not be opened", advice) from error
    return page, url, api.queue


def check_port(settings: PageSettings) -> None:
    """Raise a SettingsError if the port of the page is taken."""
    try:
        addresses = socket.getaddrinfo(settings.share_on, settings.port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = addresses[0]
        with socket.socket(family, kind, protocol) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server itself does
            one.bind(address)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        got = "one that another program uses" if taken else reason(error)
        raise _no_port(settings, got, "Choose another --port." * taken) from error


def _no_port(settings: PageSettings, got: str, advice: str) -> SettingsError:
    expected = f"a free port of {settings.share_on}"
    return mismatch(Flag("port", settings.port), got, expected, advice)


def own_policy(app: "ASGIApp") -> "ASGIApp":
    """Return an application that adds the policy to every answer."""

    async def run(scope: "Scope", receive: "Receive", send: "Send") -> None:
        async def sent(message: "Message") -> None:
            if message["type"] == "http.response.start":
                policy = (b"content-security-policy", POLICY.encode())
                message["headers"] = [*message.get("headers", ()), policy]
            await send(message)

        await app(scope, receive, sent)

    return run
