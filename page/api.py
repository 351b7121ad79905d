"""The OpenAI image API next to the page, so that programs that know it work unchanged."""

import asyncio
import json
import secrets
import time
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import MISSING, dataclass, fields, replace
from functools import cached_property
from itertools import count
from queue import Full
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from adt_tree.pipeline import Pipeline
from adt_tree.sources import call_items, with_options
from configs.fields import (
    Settings,
    SettingsError,
    flags_in,
    near_names,
    one_of,
    refuse,
    setting,
)
from configs.gone import ALIASES
from configs.model import EngineSettings
from configs.targets import own_flags, targets_with
from configs.tools import PageSettings
from page.batches import ImageQueue, Order, Stopping
from page.monitor import TOLD, Monitor
from page.stage import encoded
from runs.drawing import Drawn, image_jobs
from support.progress import plural

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

MOST_BYTES = 2**18  # of a request: more than the longest prompt
_LEFT = 499  # nginx's status of a request whose client has left; nobody reads it
MOST_IMAGES = 10  # as the API says
_IGNORED = ("user", "safety_identifier")  # who asks: changes nothing
_NO_KEY = "Missing API key: send it as `Authorization: Bearer KEY`."
# parameters of other image models and servers, and how to say the same here
_ELSEWHERE = {
    "generator": "Use seed.",
    "num_images": "Use n.",
    "num_images_per_prompt": "Use n.",
    "num_inference_steps": "Leave it out: an image takes as many rounds as its tokens need.",
    "style": "Say it in the prompt.",
    "width": "Use size.",  # a tree's is a flag, which nobody means
    "height": "Use size.",
}
_WHOLE = ", since only finished images are sent"


@dataclass(frozen=True)
class ImageRequest(Settings):
    """The API's parameters, and ours: seed, method and sampling.

    None: the server's own. A value that would have no effect is refused.
    """

    prompt: str = setting("what the images show", MISSING)
    model: str | None = setting("the loaded model's name")
    n: int = setting("images", 1, low=1, high=MOST_IMAGES)
    size: str = setting("width x height in pixels", "auto")
    seed: int | None = setting("base seed; another each time", low=0, high=2**63 - 1)
    method: str | None = setting("how to draft")
    cfg: float | None = setting("guidance scale")
    temperature: float | None = setting("sampling temperature")
    top_k: int | None = setting("sample from the k likeliest codes")
    top_p: float | None = setting("sample from the likeliest codes with this probability")
    response_format: str = setting(
        "how images come back",
        "b64_json",
        choices=("b64_json",),
        wanted="b64_json, since this server stores no images",
    )
    output_format: str = setting("file format", "png", choices=("png",))
    output_compression: int = setting(
        "quality of lossy files", 100, choices=(100,), wanted="100, since PNG files lose nothing"
    )
    background: str = setting("transparent or not", "auto", choices=("auto", "opaque"))
    quality: str = setting("a model has one quality", "auto", choices=("auto", "standard"))
    moderation: str = setting("prompts are not filtered", "auto", choices=("auto", "low"))
    stream: bool = setting(
        "send images before they are finished", False, choices=(False,), wanted=f"false{_WHOLE}"
    )
    partial_images: int = setting("unfinished images to send", 0, choices=(0,), wanted=f"0{_WHOLE}")

    def settle(self) -> None:
        self.fill(seed=secrets.randbelow(2**32))


NAMES = tuple(f.name for f in fields(ImageRequest))


class Problem(Exception):
    """Why a request has no answer, as the API tells it."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str = ""):
        super().__init__(message)
        self.status, self.param, self.code = status, param, code or None


def image_request(values: Mapping[str, Any], model: str) -> ImageRequest:
    """Return the request of a body; a Problem for an unknown parameter. model: that is loaded."""
    given = {name: v for name, v in values.items() if v is not None and name not in _IGNORED}
    for name in [name for name in given if ALIASES.get(name) in NAMES]:  # Python's guidance_scale
        if ALIASES[name] in given:
            raise Problem(400, f"Use {name} or {ALIASES[name]}, not both.", name, "invalid_value")
        given[ALIASES[name]] = given.pop(name)
    for name in given:
        if name not in NAMES:
            text = f"Unknown parameter: {name!r}. {_advice(name, model)}"
            raise Problem(400, text.strip(), name, "unknown_parameter")
    if isinstance(given.get("prompt"), list):
        refuse("prompt", given["prompt"], "one text", "Send one request per prompt.")
    return ImageRequest.of(given)


def _advice(name: str, model: str) -> str:
    """Return what to do instead of giving a parameter that requests do not have."""
    if name in _ELSEWHERE:
        return _ELSEWHERE[name]
    flag = ALIASES.get(name, name)
    if flag in own_flags() and model not in targets_with(flag):
        return f"Only {one_of(targets_with(flag))} has it."
    if flag in flags_in(PageSettings):
        return f"It is set when the server starts, by --{flag}."
    return near_names(name, NAMES)


class ImageApi:
    """Answers requests with images of one pipeline's model."""

    def __init__(
        self, pipe: Pipeline, methods: Sequence[str], waiting: int, key: str | None = None
    ):
        """methods: that requests may name; waiting: requests that may wait; key: they must have."""
        self.pipe, self.methods = pipe, methods
        self.queue = ImageQueue(pipe.weights, waiting)
        self.monitor = Monitor(self.queue, pipe.settings.model, key)
        self._orders = count(1)
        self._started = int(time.time())

    @property
    def routes(self) -> list[BaseRoute]:
        """What the server answers in addition to the page."""
        routes = [
            Route("/models", self._models),
            Route("/models/{name:path}", self._model),
            Route("/images/generations", self._generations, methods=["POST"]),
        ]
        handlers: Any = {Problem: _tell, HTTPException: _tell}
        app = Starlette(routes=routes, exception_handlers=handlers)
        return [
            Mount("/v1", app=self.monitor(self._locked(app))),
            Route("/health", self.monitor.health),
            Route("/metrics", self.monitor.metrics),
        ]

    def _locked(self, app: "ASGIApp") -> "ASGIApp":
        """Return an application that answers requests with the key."""

        async def run(scope: "Scope", receive: "Receive", send: "Send") -> None:
            answer = app
            if scope["type"] == "http" and not self.monitor.admits(request := Request(scope)):
                said = "Incorrect API key." if "authorization" in request.headers else _NO_KEY
                problem = Problem(401, said, code="invalid_api_key")
                answer = _tell(request, problem)
            await answer(scope, receive, send)

        return run

    @cached_property
    def size(self) -> str:
        """Width and height of an image in pixels, as the API writes them."""
        return "{}x{}".format(*self.pipe.weights.paint(torch.zeros(0, dtype=torch.long)).size)

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._loaded()]})

    async def _model(self, request: Request) -> Response:
        self._check_model(request.path_params["name"])
        return JSONResponse(self._loaded())

    def _loaded(self) -> dict[str, Any]:
        name = self.pipe.settings.model
        return {"id": name, "object": "model", "created": self._started, "owned_by": "adt-tree"}

    def _check_model(self, name: str) -> None:
        if name != (loaded := self.pipe.settings.model):
            text = f"The model {name!r} does not exist; this server has {loaded!r}."
            raise Problem(404, text, "model", "model_not_found")

    async def _generations(self, request: Request) -> Response:
        """Generate images; the work stops if the client leaves."""
        try:
            values = await _body(request)
            # In a thread: `size` waits for the lock and decodes an image, and other requests go on.
            asked, order = await run_in_threadpool(self._order, values)
            self.queue.put(order)
            drawn = await _while_connected(order.images, request)
            method = order.settings.method.method
            request.scope[TOLD] = f"{plural(asked.n, 'image')} by {method}, seed {asked.seed}"
            return JSONResponse(await run_in_threadpool(self._answer, asked, drawn))
        except Full as error:
            return _tell(request, error, {"Retry-After": str(self.queue.pause)})
        except Exception as error:  # starlette would raise it again, and nothing would be sent
            return _tell(request, error)

    def _order(self, values: dict[str, Any]) -> tuple[ImageRequest, Order]:
        """Return a request and its images; a Problem or SettingsError if it cannot be done."""
        asked = image_request(values, self.pipe.settings.model)
        if asked.model is not None:
            self._check_model(asked.model)
        if asked.size not in ("auto", self.size):
            refuse("size", asked.size, f"{self.size} or auto")
        settings = self._settings(asked)
        images = 1 if settings.repeats else asked.n
        items = call_items(self.pipe.weights.target, asked.prompt, images)
        assert asked.seed is not None  # `settle` has filled it
        number = next(self._orders)  # images of several orders are in one batch
        jobs = [replace(job, id=f"{number}-{job.id}") for job in image_jobs(items, asked.seed)]
        return asked, Order(settings, jobs)

    def _settings(self, asked: ImageRequest) -> EngineSettings:
        pipe, method = self.pipe, asked.method
        if method is not None:
            if method not in self.methods:
                refuse("method", method, one_of(self.methods), near_names(method, self.methods))
            pipe = Pipeline.from_pipe(pipe, method=method)
        names = ("temperature", "top_k", "top_p")
        sampling: Any = {"guidance_scale": asked.cfg} | {
            name: getattr(asked, name) for name in names
        }
        return with_options(pipe.settings, sampling)

    def _answer(self, asked: ImageRequest, drawn: Sequence[Drawn]) -> dict[str, Any]:
        """Return the answer's JSON; `seed` is ours, for the same images again."""
        target = self.pipe.weights.target
        read, made = target.length(asked.prompt), len(drawn) * target.grid.tokens
        height, width = drawn[0].pixels.shape[:2]
        images = [{"b64_json": encoded(Image.fromarray(one.pixels), "PNG")} for one in drawn]
        return {
            "created": int(time.time()),
            "data": images * (asked.n // len(drawn)),  # at temperature 0 one is generated
            "background": "opaque",
            "output_format": "png",
            "size": f"{width}x{height}",
            "seed": asked.seed,
            "usage": {
                "input_tokens": read,
                "input_tokens_details": {"image_tokens": 0, "text_tokens": read},
                "output_tokens": made,
                "total_tokens": read + made,
            },
        }


async def _body(request: Request) -> dict[str, Any]:
    """Return a request's JSON; a Problem if it is too long or something else."""
    # browsers let pages of other sites send this type only if the server agrees; it does not
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        text = f"Content-Type: expected application/json, got {kind or 'nothing'}"
        raise Problem(415, text, code="unsupported_content_type")
    content = bytearray()
    async for chunk in request.stream():  # not request.body(), which reads without a limit
        content += chunk
        if len(content) > MOST_BYTES:
            text = f"The request is longer than {MOST_BYTES} bytes."
            raise Problem(413, text, code="request_too_large")
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Problem(400, f"The body is not JSON: {error}", code="invalid_json") from error
    if not isinstance(values, dict):
        raise Problem(400, "The body is JSON, but not an object.", code="invalid_json")
    return values


async def _while_connected(images: Future[list[Drawn]], request: Request) -> list[Drawn]:
    """Return the images; ClientDisconnect, and they are cancelled, if the client leaves first."""
    finished: asyncio.Future[Any] = asyncio.wrap_future(images)
    left: asyncio.Future[Any] = asyncio.create_task(_left(request))
    try:
        await asyncio.wait([finished, left], return_when=asyncio.FIRST_COMPLETED)
        if not finished.done():
            raise ClientDisconnect
        return finished.result()
    finally:
        left.cancel()
        images.cancel()  # changes nothing once they are there


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _tell(request: Request, error: Exception, headers: Mapping[str, str] | None = None) -> Response:
    problem = _problem(request, error)
    request.scope[TOLD] = str(problem)
    kinds = {429: "rate_limit_error", 500: "server_error", 503: "server_error"}
    kind = kinds.get(problem.status, "invalid_request_error")
    told = {"message": str(problem), "type": kind, "param": problem.param, "code": problem.code}
    # in ASCII: a name that is not UTF-8 could not be quoted otherwise
    return Response(json.dumps({"error": told}), problem.status, headers, "application/json")


def _problem(request: Request, error: Exception) -> Problem:
    match error:
        case Problem():
            return error
        case SettingsError():  # with the names of parameters as the API has them
            error.spell = lambda flag: flag if flag in NAMES else f"--{flag}"
            param = error.flag if error.flag in NAMES else None
            return Problem(400, str(error), param, "invalid_value")
        case Full():
            return Problem(429, "Too many requests wait; try later.", code="rate_limit_exceeded")
        case Stopping():
            return Problem(503, "The server is being stopped.", code="server_stopping")
        case ClientDisconnect():
            return Problem(_LEFT, "The client has left.")
        case HTTPException():
            text = f"{error.detail}: {request.method} {request.url.path}"
            return Problem(error.status_code, text, code="unknown_url")
        case FloatingPointError():  # weights with NaN, which it names
            return Problem(500, str(error))
        case torch.OutOfMemoryError():
            return Problem(500, "Out of memory; `demo` needs a smaller --batch_size.")
    traceback.print_exception(error)
    return Problem(500, "The server failed; its terminal shows why.")
