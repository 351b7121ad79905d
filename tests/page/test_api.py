"""The OpenAI image API of the page's server, as the official client sees it."""

import base64
import io
import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from urllib.error import HTTPError
from urllib.request import Request, build_opener

import numpy as np
import pytest
import torch
from browser import only_in_all, serving
from openai import APIStatusError, OpenAI
from openai.types import ImagesResponse
from PIL import Image
from program import page_settings
from starlette.applications import Starlette
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from adt_tree import Pipeline
from page.api import MOST_BYTES, ImageApi
from page.batches import GATHER, UNMEASURED, Counts, ImageQueue, Order, next_batch
from page.server import NO_PROXY, launch

# in the process of the page's tests, which has gradio loaded
pytestmark = pytest.mark.xdist_group(str(Path(__file__).with_name("test_page.py")))
CAT = "a cat"


class Gate:
    """Lets batches go round by round; stands before the weights of a pipeline."""

    def __init__(self, pipe: Pipeline):
        self._draw = pipe.weights.draw
        self.batches: list[int] = []  # images of each batch
        self.ended = 0  # batches
        self.rounds = 0
        self.fault: Exception | None = None
        self.way = threading.Event()
        self.way.set()

    def draw(self, settings, jobs, watcher=None, joining=()) -> Iterator:
        if self.fault is not None:
            raise self.fault
        self.batches.append(len(jobs))
        return self._gated(self._draw(settings, jobs, watcher, joining))

    def _gated(self, steps: Iterator) -> Iterator:
        try:
            for step in steps:
                assert self.way.wait(30)
                self.rounds += 1
                yield step
        finally:
            self.ended += 1


class KeptOrders(ImageQueue):
    def put(self, order: Order) -> None:
        super().put(order)
        orders.append(order)


orders: list[Order] = []


@dataclass
class Served:
    url: str
    pipe: Pipeline
    gate: Gate

    def __post_init__(self):
        self.client = OpenAI(base_url=f"{self.url}v1", api_key="none", max_retries=0, timeout=30)

    def images(self, prompt: str = CAT, **own) -> ImagesResponse:
        return self.client.images.generate(prompt=prompt, **own)


@pytest.fixture(scope="module")
def served(checkpoint, tmp_path_factory) -> Iterator[Served]:
    """Two requests may wait; gradio's own test call came too late, and a proxy was set."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    texts = {"model_path": str(checkpoint), "dtype": "fp64", "device": "cpu", "port": port}
    texts |= {"visitors": "2", "output_dir": str(tmp_path_factory.mktemp("page"))}
    settings = page_settings(texts)
    pipe = Pipeline({}, settings.given)
    pipe.set_progress_bar_config(disable=True)
    gate = Gate(pipe)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MPLCONFIGDIR", "GRADIO_TEMP_DIR", "GRADIO_ANALYTICS_ENABLED"):
            patch.setenv(name, "")  # the server's own are gone after the tests
        for name in NO_PROXY:
            patch.setenv(name, "example.org")
        patch.setenv("http_proxy", "http://127.0.0.1:9")  # nothing is there
        patch.setattr("gradio.networking.url_ok", lambda url: False)
        patch.setattr(pipe.weights, "draw", gate.draw)
        patch.setattr("page.api.ImageQueue", KeptOrders)
        page, url, _ = launch(settings, pipe)
        yield Served(url, pipe, gate)
        page.close()


def pixels(answer: ImagesResponse) -> list[np.ndarray]:
    files = [base64.b64decode(image.b64_json) for image in answer.data]
    return [np.asarray(Image.open(io.BytesIO(file))) for file in files]


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_proxy_is_left_out_for_this_machine_only(served):
    for name in ("no_proxy", "NO_PROXY"):
        assert os.environ[name] == "example.org,localhost,127.0.0.1,127.0.0.1"


def test_the_model_is_listed(served):
    (model,) = served.client.models.list()
    assert (model.id, model.object) == ("tiny", "model")
    assert served.client.models.retrieve("tiny") == model
    for ask in (served.client.models.retrieve, lambda name: served.images(model=name)):
        with pytest.raises(APIStatusError, match="'dall-e-3' does not exist.*'tiny'") as caught:
            ask("dall-e-3")
        assert (caught.value.status_code, caught.value.code) == (404, "model_not_found")


def test_a_seed_gives_the_images_of_the_pipeline(served):
    size = served.pipe.weights.target.grid
    answer = served.images(model="tiny", n=2, extra_body={"seed": 5}, user="", size="auto")
    wanted = [np.asarray(image) for image in served.pipe(CAT, num_images=2, seed=5).images]
    assert np.array_equal(pixels(answer), wanted) and not np.array_equal(*wanted)
    height, width = wanted[0].shape[:2]
    assert (answer.size, answer.seed) == (f"{width}x{height}", 5)
    assert answer.usage.output_tokens == 2 * size.tokens and answer.output_format == "png"
    own = {"method": "jacobi", "cfg": 1.5, "temperature": 0.5, "top_k": 9, "seed": 5}
    own |= {"output_compression": 100}
    other = served.images(size=answer.size, response_format="b64_json", extra_body=own)
    own["guidance_scale"] = own.pop("cfg")  # as in Python
    assert served.images(extra_body=own).data == other.data
    pipe = Pipeline.from_pipe(served.pipe, method="jacobi", cfg=1.5, temperature=0.5, top_k=9)
    assert np.array_equal(pixels(other), [np.asarray(pipe(CAT, seed=5).images[0])])
    assert not np.array_equal(pixels(other)[0], wanted[0])


def test_at_temperature_0_one_image_is_generated_for_all(served):
    answer = served.images(n=3, extra_body={"temperature": 0})
    first, *others = pixels(answer)
    assert len(others) == 2 and all(np.array_equal(first, other) for other in others)
    assert answer.usage.output_tokens == served.pipe.weights.target.grid.tokens


def test_without_a_seed_the_images_differ_and_the_seed_is_told(served):
    first, second = served.images(), served.images()
    assert first.seed != second.seed
    assert np.array_equal(pixels(served.images(extra_body={"seed": first.seed})), pixels(first))


@pytest.mark.parametrize(
    ("values", "param", "message"),
    [
        ({"size": "1024x1024"}, "size", r"size: expected (\d+)x\1 or auto, got '1024x1024'"),
        ({"n": 11}, "n", "n: expected a whole number from 1 to 10, got 11"),
        ({"method": "magic"}, "method", "method: expected ar, .*, got 'magic'"),
        ({"temperature": "hot"}, "temperature", "temperature: expected a number, got 'hot'"),
        ({"prompt": [CAT]}, "prompt", "expected one text, got .'a cat'.. Send one request per"),
        ({"guidance_scale": 2, "cfg": 2}, "guidance_scale", "Use guidance_scale or cfg, not both"),
        ({"num_inference_steps": 9}, "num_inference_steps", "Leave it out: an image takes"),
        ({"nodes": 3}, "nodes", "'nodes'. It is set when the server starts, by --nodes."),
        ({"torch_dtype": "bf16"}, "torch_dtype", "when the server starts, by --dtype."),
        ({"prompt": "word " * 300}, "prompt", "at most [0-9]+ fit"),
        ({"prompt": " "}, "prompt", "prompt: expected text that is not blank, got ' '"),
        ({"response_format": "url"}, "response_format", "expected b64_json, since this server"),
        ({"stream": True}, "stream", "stream: expected false, since .*, got True"),
        ({"output_compression": 50}, "output_compression", "expected 100, since PNG .*, got 50"),
        ({"style": "vivid"}, "style", "Unknown parameter: 'style'. Say it in the prompt."),
        ({"width": 128}, "width", "Unknown parameter: 'width'. Use size."),
        ({"negative_prompt": "x"}, "negative_prompt", "'negative_prompt'. Only emu3 has it."),
        ({"tempreature": 1}, "tempreature", "Unknown parameter: .* Did you mean temperature?"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused(served, values, param, message):
    with pytest.raises(APIStatusError, match=message) as caught:
        served.images(extra_body=values)
    error = caught.value
    assert (error.status_code, error.type, error.param) == (400, "invalid_request_error", param)


JSON = "application/json; charset=utf-8"


@pytest.mark.parametrize(
    ("path", "content", "kind", "status", "message"),
    [
        ("images/generations", b"prompt=cat", "text/plain", 415, "expected application/json"),
        ("images/generations", b"{", JSON, 400, "The body is not JSON"),
        ("images/generations", b"[1]", JSON, 400, "not an object"),
        ("images/generations", b'{"prompt": "\\ud800"}', JSON, 400, "not UTF-8"),
        ("images/generations", b'{"prompt": "a", "\\ud800": 1}', JSON, 400, "Unknown parameter"),
        ("images/generations", b" " * (MOST_BYTES + 1), JSON, 413, "longer than"),
        ("images/generations", None, JSON, 405, "Method Not Allowed: GET /v1/images/generations"),
        ("chat/completions", b"{}", JSON, 404, "Not Found: POST /v1/chat/completions"),
    ],
)
def test_every_error_has_the_form_of_the_api(served, path, content, kind, status, message):
    request = Request(f"{served.url}v1/{path}", content, {"Content-Type": kind})
    with pytest.raises(HTTPError) as caught:
        build_opener().open(request, timeout=30)  # urlopen would keep the proxy for other tests
    error = json.load(caught.value)["error"]
    assert caught.value.code == status and message in error["message"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (FloatingPointError("weights: NaN"), "weights: NaN"),
        (torch.OutOfMemoryError(), "--batch_size"),
        (RuntimeError("a shape"), "its terminal shows why"),
    ],
)
def test_what_fails_while_it_is_generated_is_told(served, monkeypatch, fault, message):
    monkeypatch.setattr(served.gate, "fault", fault)
    with pytest.raises(APIStatusError, match=message) as caught:
        served.images()
    assert (caught.value.status_code, caught.value.type) == (500, "server_error")
    monkeypatch.undo()
    assert served.images().data  # the next request is answered


@pytest.fixture
def closed(served) -> Iterator[Gate]:
    """The gate, closed until the test opens it, with a batch of one image before it."""
    gate = served.gate
    gate.way.clear()
    gate.batches.clear()
    orders.clear()
    gate.ended = 0
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(served.images)
        try:
            until(lambda: gate.batches == [1])
            yield gate
        finally:
            gate.way.set()
            assert len(first.result().data) == 1


def test_requests_that_wait_are_generated_together_up_to_a_limit(served, closed):
    asked = [{"prompt": CAT, "n": 2, "seed": 1}, {"prompt": "two dogs", "seed": 2}]
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(lambda own=own: served.images(extra_body=own)) for own in asked]
        until(lambda: len(orders) == 3)
        with pytest.raises(APIStatusError, match="Too many requests wait") as caught:
            served.images()
        assert (caught.value.status_code, caught.value.type) == (429, "rate_limit_error")
        assert int(caught.value.response.headers["Retry-After"]) >= 1
        assert "adt_tree_requests_waiting 2\n" in text_at(served, "metrics")
        closed.way.set()
        answers = [answer.result() for answer in answers]
    assert closed.batches == [1, 3]
    for own, answer in zip(asked, answers, strict=True):
        call = {"num_images": own.get("n", 1), "seed": own["seed"]}
        wanted = served.pipe(own["prompt"], **call).images
        assert np.array_equal(pixels(answer), [np.asarray(image) for image in wanted])


def test_images_of_two_requests_may_end_in_the_same_round(served, closed):
    """As by plain decoding, whose images all take as many rounds."""
    asked = {"extra_body": {"seed": 1, "method": "ar"}}
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(lambda: served.images(**asked)) for _ in range(2)]
        until(lambda: len(orders) == 3)
        closed.way.set()
        one, other = (pixels(answer.result()) for answer in answers)
    assert closed.batches == [1, 2] and np.array_equal(one, other)


def test_a_client_that_leaves_ends_its_images(served, closed):
    waits = sent(served, n=2)
    until(lambda: len(orders) == 2)
    waits.close()
    until(lambda: orders[1].images.cancelled())
    closed.way.set()
    until(lambda: closed.ended == 1)
    time.sleep(3 * GATHER)
    closed.way.clear()
    begun = sent(served, n=3)
    until(lambda: len(closed.batches) == 2)
    assert closed.batches == [1, 3]  # none of 2
    begun.close()
    until(lambda: orders[2].images.cancelled())
    rounds = closed.rounds
    closed.way.set()
    until(lambda: closed.ended == 2)
    assert closed.rounds == rounds + 1


def test_an_order_joins_a_full_batch_when_a_row_is_free(served, closed):
    """Four images fill the batch; one of another order takes the first row that is free."""
    with ThreadPoolExecutor(2) as pool:
        full = pool.submit(lambda: served.images(n=4, extra_body={"seed": 1}))
        until(lambda: len(orders) == 2)
        late = pool.submit(lambda: served.images(extra_body={"seed": 2}))
        until(lambda: len(orders) == 3)
        other = pool.submit(lambda: served.images(extra_body={"seed": 2, "top_k": 5}))
        closed.way.set()
        answers = [full.result(), late.result()]
        assert other.result().data
    assert closed.batches in ([1, 4, 1], [1, 4, 1, 1])  # the last if all four ended at once
    for seed, answer in enumerate(answers, 1):
        wanted = served.pipe(CAT, num_images=len(answer.data), seed=seed).images
        assert np.array_equal(pixels(answer), [np.asarray(image) for image in wanted])


def text_at(served: Served, path: str) -> str:
    with build_opener().open(f"{served.url}{path}", timeout=30) as answer:
        return answer.read().decode()


def test_health_and_figures_are_told(served):
    assert json.loads(text_at(served, "health")) == {"status": "ok", "model": "tiny"}
    before = figures(text_at(served, "metrics"))
    served.images(n=2)
    after = figures(text_at(served, "metrics"))
    assert after["images_total"] == before.get("images_total", 0) + 2
    tokens = served.pipe.weights.target.grid.tokens - 1  # the prefill decides the first
    assert after["tokens_total"] - before.get("tokens_total", 0) == 2 * tokens
    assert after["tau"] == pytest.approx(after["tokens_total"] / after["rounds_total"])
    assert after['requests_total{status="200"}'] >= 1 and after["decoding_seconds_total"] > 0


def figures(text: str) -> dict[str, float]:
    pairs = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name.removeprefix("adt_tree_"): float(value) for name, _, value in pairs}


def test_a_line_of_log_tells_of_each_request_and_its_fault(served, monkeypatch):
    lines: list[str] = []
    monkeypatch.setattr("page.monitor.announce", lines.append)
    served.images(extra_body={"seed": 3})
    with pytest.raises(APIStatusError):
        served.images(n=11)
    deadline = time.monotonic() + 30
    while len(lines) < 2 and time.monotonic() < deadline:  # a line follows its answer
        time.sleep(0.01)
    said = "".join(f"{line}\n" for line in lines)
    assert re.search(
        r"POST /v1/images/generations 200, [0-9.]+ s: 1 image by jacobi, seed 3\n", said
    )
    assert re.search(r"generations 400, [0-9.]+ s: n: expected a whole number from 1 to 10", said)
    assert CAT not in said  # a visitor's prompt is nobody's business


def test_a_request_writes_one_printable_line_of_log(served, capfd):
    api = ImageApi(served.pipe, ["ar"], 1)
    with TestClient(Starlette(routes=api.routes)) as client:
        client.get("/v1/a%1b[2J")
        client.post("/v1/images/generations", json={"prompt": CAT, "size": "\x1b[2J\x9b"})
    first, second = capfd.readouterr().err.splitlines()
    assert "GET /v1/a%1B%5B2J 404, " in first and second.isprintable()


def test_a_websocket_is_closed(served):
    for key in (None, "secret"):
        api = ImageApi(served.pipe, ["ar"], 1, key)
        with TestClient(Starlette(routes=api.routes)) as client, pytest.raises(WebSocketDisconnect):
            client.websocket_connect("/v1/models").__enter__()


def test_a_key_is_asked_for_by_the_api_alone(served):
    api = ImageApi(served.pipe, ["ar"], 1, key="secret")
    with TestClient(Starlette(routes=api.routes)) as client:
        for key in ("", "other", "sécret"):
            answer = client.get("/v1/models", headers={"Authorization": f"Bearer {key}".encode()})
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "invalid_api_key"
        assert client.get("/v1/models", headers={"Authorization": "secret"}).status_code == 401
        said = client.get("/v1/models").json()["error"]["message"]
        assert said == "Missing API key: send it as `Authorization: Bearer KEY`."
        assert client.get("/v1/models", headers={"Authorization": "Bearer secret"}).json()["data"]
        assert client.get("/health").status_code == client.get("/metrics").status_code == 200


def sent(served: Served, **own) -> HTTPConnection:
    connection = HTTPConnection(served.url.split("/")[2], timeout=30)
    body = json.dumps({"prompt": CAT} | own)
    connection.request("POST", "/v1/images/generations", body, {"Content-Type": JSON})
    return connection


@only_in_all
def test_a_stopped_server_tells_those_who_wait(tmp_path):
    """One request is being generated, one of other settings waits."""
    asked: list[dict] = [{"n": 10}, {"temperature": 0.5}]
    with serving(tmp_path) as (address, process), ThreadPoolExecutor(2) as pool:
        client = OpenAI(base_url=f"http://{address}/v1", api_key="none", max_retries=0)
        page = SimpleNamespace(url=f"http://{address}/")

        def ask(own: dict) -> APIStatusError:
            with pytest.raises(APIStatusError) as caught:
                client.images.generate(prompt=CAT, extra_body=own)
            return caught.value

        answers = [pool.submit(ask, asked[0])]
        until(lambda: figures(text_at(page, "metrics"))["rounds_total"] > 0)
        answers.append(pool.submit(ask, asked[1]))
        until(lambda: figures(text_at(page, "metrics"))["requests_waiting"] == 1)
        process.send_signal(signal.SIGTERM)
        for answer in answers:
            error = answer.result()
            assert (error.status_code, error.type) == (503, "server_error")
            assert error.code == "server_stopping" and "being stopped" in str(error)
        said = process.communicate(timeout=60)[0]
    assert process.returncode == 0 and "Traceback" not in said
    assert "] stopping: 503 to 2 unfinished requests\n" in said
    assert len(re.findall("generations 503, [0-9.]+ s: The server is being stopped.\n", said)) == 2


def test_a_request_without_room_is_told_when_to_come_again():
    queue = ImageQueue(SimpleNamespace(), 1)
    queue.counts = Counts(seconds=7.0)  # of an image that is not finished
    assert queue.pause == UNMEASURED
    queue.counts = Counts(images=2, seconds=7.0)
    assert queue.pause == 4


def test_a_batch_has_equal_settings_and_at_most_its_size():
    def order(images: int, settings: SimpleNamespace) -> Order:
        return Order(settings, ["job"] * images)

    one, other = SimpleNamespace(batch_size=4, cfg=1), SimpleNamespace(batch_size=4, cfg=2)
    waiting = [order(2, one), order(1, other), order(3, one), order(1, one), order(1, one)]
    assert next_batch(waiting) == [waiting[0], *waiting[3:]] and next_batch([]) == []
    large = [order(9, one), order(1, one)]
    assert next_batch(large) == large[:1]
