"""The documentation's examples of the OpenAI image API run, against the server of `demo`."""

import base64
import io
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import only_in_all, serving
from markdown_pages import blocks
from PIL import Image, ImageChops
from ran import ran

from adt_tree import Pipeline

USUAL = "127.0.0.1:7860"
EXAMPLES = [block for block in blocks("docs/generating.md") if f"{USUAL}/v1" in block.text]


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("server")) as (own, process):
        yield own
        process.send_signal(signal.SIGINT)
        assert process.wait(60) in (0, 130) and "Traceback" not in process.stdout.read()


@only_in_all
@pytest.mark.parametrize("block", EXAMPLES, ids=lambda block: block.language)
def test_an_example_runs(block, address: str, tmp_path: Path) -> None:
    program = [sys.executable, "-c"] if block.language == "python" else ["bash", "-euc"]
    done = ran([*program, block.text.replace(USUAL, address)], tmp_path)
    assert done.returncode == 0, done.stderr
    if block.language == "python":
        file = (tmp_path / "red.png").read_bytes()
    else:
        file = base64.b64decode(json.loads(done.stdout)["data"][0]["b64_json"])
    method = "jacobi" if block.language == "python" else None
    pipe = Pipeline.from_pretrained("tiny", method=method, device="cpu", progress_bar=False)
    wanted = pipe("a red circle", seed=7).images[0]
    assert ImageChops.difference(Image.open(io.BytesIO(file)), wanted).getbbox() is None


def test_there_is_an_example_in_each_language() -> None:
    assert {block.language for block in EXAMPLES} == {"bash", "python"}
