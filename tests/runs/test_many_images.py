"""However many images a run has, only a batch of them is in memory."""

import weakref
from collections import Counter

import pytest
from made_runs import scenes, write_run
from PIL import Image

import main

pytestmark = pytest.mark.usefixtures("one_thread")


def test_images_in_memory_are_those_of_a_batch(tmp_path, monkeypatch):
    images, prompts = scenes(100)
    folder = write_run(tmp_path / "run", images, prompts)
    made, counts = Image.Image.__init__, Counter()

    def gone() -> None:
        counts["alive"] -= 1

    def count(image: Image.Image) -> None:
        made(image)
        counts.update(all=1, alive=1)
        counts["most"] = max(counts["most"], counts["alive"])
        weakref.finalize(image, gone)

    monkeypatch.setattr(Image.Image, "__init__", count)
    words = ["evaluate", f"--output_dir={folder}", f"--cache_dir={tmp_path / 'features'}"]
    words += ["--images=4", "--metrics=tiny_is", "--batch_size=8"]
    assert main.main(words) == 0
    assert counts["all"] > 3 * len(images) and 8 <= counts["most"] <= 12
