"""Draw images with the tiny model itself: `python -m scripts.tiny.sample --work_dir work/tiny --count 2000`.

A drafter is asked about the images that its target makes, not about those that the target has learnt from; trained on
the former it is right more often (self-distillation). The captions are the first of the training split.
"""

import json
import time
from itertools import islice
from pathlib import Path

from configs.methods import MethodSettings
from configs.schema import RunSettings
from decoding.flight import Job
from decoding.noise import image_seed
from eval.script import run_script
from eval.session import open_session
from scripts.tiny.codes import open_codes, write_progress
from scripts.tiny.common import JsonLog


def sample(
    *, work_dir: str = "work/tiny", model_dir: str = "ckpts/tiny", count: int = 2000, batch_size: int = 16
) -> None:
    """Write `codes_own.npy` and `captions_own.jsonl` at temperature 1 and guidance 3; continues if stopped.

    Args:
        work_dir: folder with the training captions.
        model_dir: folder of the target.
        count: images.
        batch_size: images decoded together.
    """
    folder, method = Path(work_dir), MethodSettings(method="ar")
    settings = RunSettings(prompt="x", model_path=model_dir, method=method, batch_size=batch_size)
    engine = open_session(settings).engine
    with open(folder / "captions_train.jsonl", encoding="utf-8") as lines:
        captions = list(islice(lines, count))
    (folder / "captions_own.jsonl").write_text("".join(captions), encoding="utf-8")
    texts = [json.loads(line)["caption"] for line in captions]
    codes, first = open_codes(folder / "codes_own.npy", (count, engine.target.grid.tokens))
    log, started = JsonLog(folder / "sample.jsonl"), time.perf_counter()
    for start in range(first, count, 8 * batch_size):
        stop = min(start + 8 * batch_size, count)
        jobs = [Job(str(i), texts[i], image_seed(0, texts[i], i)) for i in range(start, stop)]
        for image in (image for step in engine.generate(jobs) for image in step.finished):
            codes[int(image.job.id)] = image.codes.numpy()
        codes.flush()
        write_progress(folder / "codes_own.npy", stop)
        log.write(event="sample", done=stop, images_per_second=(stop - first) / (time.perf_counter() - started))


if __name__ == "__main__":
    run_script(sample)
