"""Draw the same images with and without learning, and say what each takes.

`python -m scripts.tools.learning_gain --drafter_path new --output work/gain.json`
"""

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path

from configs.command_line import listed_method
from configs.methods import MethodSettings
from configs.schema import RunSettings
from drafters.loading import LoadedDrafter
from eval.bench.machine import cpu_name
from runs.drawing import draw
from runs.generate import open_real_session
from runs.learning import Learner, open_learner
from runs.prompts import PromptItem, prompt_items
from runs.session import Session
from runs.spans import Span
from support.durable import replace_file
from support.script import run_script
from support.tables import Table


@dataclass(frozen=True)
class Arm:
    """One way to draw the images. spans: of 32 images each, of `ar` none. codes: by id."""

    name: str
    seconds: float
    spans: tuple[Span, ...]
    codes: dict[str, tuple[int, ...]]

    @property
    def learning(self) -> float:
        return sum(span.learning for span in self.spans)


def learning_gain(
    *,
    prompt: str = "configs/prompts/tiny_test.txt",
    images: int = 500,
    batch_size: int = 1,
    method: str = "adt",
    drafter_path: str | None = None,
    learn_share: float | None = None,
    model_path: str | None = None,
    dtype: str = "fp32",
    output: str | None = None,
) -> None:
    """Draw images by `ar`, with the drafter as it begins, and with learning; print two tables.

    Args:
        prompt: file of prompts, all of them as often as the images ask for.
        images: how many; T = 1, guidance scale 3, seed 9.
        batch_size: images decoded together.
        method: name[:flag=value...].
        drafter_path: the drafter's folder, or new for one that has learned nothing.
        learn_share: share of the time that learning takes, at most.
        model_path: the target's folder; the shipped model if None.
        dtype: fp32, fp64 or bf16.
        output: JSON file of all figures; none if None.
    """
    with tempfile.TemporaryDirectory() as folder:
        settings = RunSettings(
            prompt=prompt, samples_per_prompt=images, num_images=-1, batch_size=batch_size,
            method=listed_method(method, {}, "--method"), drafter_path=drafter_path, learn=True,
            learn_share=learn_share, seed=9, model_path=model_path, dtype=dtype,
            output_dir=folder, overwrite=True)  # fmt: skip
        arms = draw_arms(settings, images)
    print(f"{cpu_name()}, `{method}`, batches of {batch_size}, {dtype}, {date.today()}\n")
    print(f"{totals(arms)}\n{by_span(arms)}", end="")
    if output is not None:
        found = [figures(arm, arms) for arm in arms]
        Path(output).parent.mkdir(parents=True, exist_ok=True)
        replace_file(Path(output), (json.dumps(found) + "\n").encode())


def draw_arms(settings: RunSettings, images: int) -> list[Arm]:
    """Return plain decoding, the drafter as it begins, and the drafter that learns.

    Samples of one prompt are spread over the run, since the head would learn that prompt.
    """
    items = sorted(prompt_items(settings), key=lambda item: item.sample)[:images]
    plain = replace(settings, method=MethodSettings("ar"), drafter_path=None, learn=None,
                    learn_share=None)  # fmt: skip
    arms = [_arm("ar", open_real_session(plain), items, None)]
    for name, learns in (("without learning", False), ("learning", True)):
        session, learner = open_learner(settings, len(items), 0, open_real_session)
        learner.going = learns
        if not learns:  # what it decides is not noted
            session = replace(session, drafter=LoadedDrafter(learner.network, learner.calibrations))
        arms.append(_arm(name, session, items, learner))
    return arms


def _arm(name: str, session: Session, items: Sequence[PromptItem], learner: Learner | None) -> Arm:
    """Draw the images; the learner is told of every round."""
    codes, started = {}, time.perf_counter()
    for step in draw(session, items, session.settings.seed):
        if learner is not None:
            learner.after(step)
        for drawn in step.finished:
            codes[drawn.image.job.id] = tuple(map(int, drawn.image.codes))
    seconds, spans = time.perf_counter() - started, learner.spans if learner is not None else ()
    print(f"{name}: {seconds:.0f} s", file=sys.stderr)
    return Arm(name, seconds, tuple(spans), codes)


def same(arm: Arm, other: Arm) -> int:
    """Return how many images have the same tokens in both."""
    return sum(arm.codes[name] == codes for name, codes in other.codes.items())


def figures(arm: Arm, arms: Sequence[Arm]) -> dict[str, object]:
    """Return what is written of one way to draw."""
    spans = [asdict(span) | {"tau": span.tau} for span in arm.spans]
    as_others = {f"images as {other.name}": same(arm, other) for other in arms[:2]}
    return {"name": arm.name, "seconds": arm.seconds, "learning": arm.learning,
            "images": len(arm.codes), "spans": spans} | as_others  # fmt: skip


def totals(arms: Sequence[Arm]) -> str:
    """Return a line per way to draw: seconds in all, of learning, and the images that are equal."""
    rows = []
    for arm in arms:
        equal = [f"{same(arm, other)}/{len(arm.codes)}" for other in arms[:2]]
        rows.append((arm.name, f"{arm.seconds:.0f}", f"{arm.learning:.0f}", *equal))
    columns = "", "seconds", "of them learning", "images as `ar`", "as without learning"
    return Table(columns, tuple(rows)).markdown()


def by_span(arms: Sequence[Arm]) -> str:
    """Return a line per 32 images: tau and seconds without and with learning."""
    rows, images = [], 0
    for before, after in zip(arms[1].spans, arms[2].spans, strict=False):
        images += after.images
        seconds = (f"{time:.1f}" for time in (before.drawing, after.drawing, after.learning))
        rows.append((str(images), f"{before.tau:.2f}", f"{after.tau:.2f}", *seconds))
    columns = "images", "tau without", "tau", "s without", "s drawing", "s learning"
    return Table(columns, tuple(rows)).markdown()


if __name__ == "__main__":
    run_script(learning_gain)
