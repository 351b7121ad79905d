"""The documentation's commands and programs run: some in `make test`, all in `make test-all`, and
those of the OpenAI image API against the server of `demo`.
"""

import base64
import io
import json
import os
import shutil
import signal
import sys
from itertools import groupby
from pathlib import Path
from types import ModuleType

import pytest
from browser import ALL, only_in_all, serving
from fakes import codes
from markdown_pages import PAGES, Block, blocks
from PIL import Image, ImageChops
from program import FOLDERS
from ran import ran

from adt_tree import Pipeline
from configs import methods
from configs.targets import ROOT
from decoding.images import Job

INSTALLED = Path(sys.prefix, "bin", "adt-tree")
LEFT_OUT = ("outputs", "work", "main.py", *FOLDERS)


def runnable(page: str) -> list[Block]:
    """The blocks of a page that are run or written now, in order."""
    found = [block for block in blocks(page) if block.mark("not run") is None]
    found = [block for block in found if block.language in ("bash", "python")]
    return found if ALL else [block for block in found if block.mark("smoke") is not None]


# as after `source .venv/bin/activate`, without network
ACTIVATED = {
    "PATH": f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}",
    "HF_HUB_OFFLINE": "1",
    "MPLBACKEND": "Agg",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout to work in: nothing that a page writes gets into the real one."""
    for name in FOLDERS:  # copied, since pages may add files to them; other files are linked
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "main.py", tmp_path)  # Python looks for modules next to the file itself
    paths = [path for path in ROOT.iterdir() if path.name not in LEFT_OUT]
    for path in (path for path in paths if not path.name.startswith(".")):
        if path.is_dir():
            shutil.copytree(path, tmp_path / path.name, copy_function=os.symlink)
        else:
            (tmp_path / path.name).symlink_to(path)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return tmp_path


@pytest.mark.parametrize("page", [page for page in PAGES if runnable(page)])
def test_a_page_runs(page: str, checkout: Path) -> None:
    """In order; neighbouring blocks of one language are one program."""
    if any(".venv/bin/adt-tree" in b.text for b in runnable(page)) and not INSTALLED.exists():
        pytest.skip("adt-tree is not installed; `make test` does it")
    for (language, written), group in groupby(runnable(page), lambda b: (b.language, b.written)):
        if written:
            for block in group:
                _write(block, checkout)
        else:
            text = "\n".join(block.tested for block in group)
            _run(language, text, checkout)


def _write(block: Block, checkout: Path) -> None:
    if (name := block.mark("file")) is not None:
        assert not (checkout / name).exists(), f"{name} exists already"
        (checkout / name).parent.mkdir(exist_ok=True)
        (checkout / name).write_text(block.text, encoding="utf-8")
    else:
        path = checkout / block.mark("append")
        path.write_text(path.read_text(encoding="utf-8") + "\n" + block.text, encoding="utf-8")


def _run(language: str, text: str, checkout: Path) -> None:
    program = checkout / f"block.{language}"
    program.write_text(text, encoding="utf-8")
    command = ["bash", "-euo", "pipefail"] if language == "bash" else [sys.executable]
    done = ran([*command, program], checkout, **ACTIVATED, PYTHONPATH=str(checkout))
    assert done.returncode == 0, f"{text}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


def test_the_drafter_of_a_page_generates_the_tokens_of_plain_decoding(session, monkeypatch) -> None:
    """On a small model; `make test-all` runs the whole page."""
    page = [block for block in blocks("docs/extending.md") if block.written]
    drafter = next(block for block in page if block.mark("file") == "drafters/seen.py")
    entry = next(block for block in page if '["seen"]' in block.text)
    module = ModuleType("drafters.seen")
    exec(drafter.text, vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(methods.METHODS, "seen", None)  # which is undone
    exec(entry.text, {**vars(methods)})
    engines = (session.open_engine(methods.MethodSettings(name)) for name in ("ar", "seen"))
    plain, fast = (codes(engine, [Job("a", "a red circle", 3)]) for engine in engines)
    assert plain == fast


USUAL = "127.0.0.1:7860"
EXAMPLES = [block for block in blocks("docs/generating.md") if f"{USUAL}/v1" in block.text]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
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
