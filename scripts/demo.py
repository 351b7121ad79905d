"""What drafting does, in a minute: `make demo`, or `python -m scripts.demo`.

The included model generates images by plain decoding and by a fast method, from the same seeds. A
picture shows how far both are after the same number of forward passes.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from adt_tree import Pipeline
from adt_tree.stream import StreamStep
from support.durable import make_writable
from support.provenance import cpu_name
from support.script import run_script

PROMPTS = (
    "a large red circle on a plain blue background",
    "a small yellow star above a large red square on a grassy green background",
)
FAST = "block"
# Milliseconds of a round, measured with Anole's sizes in bf16 on an H100 (docs/gpu.md).
H100_MS = {"ar": 6.3, FAST: 10.1}
NEXT = (
    "Next: `source .venv/bin/activate`, then `python main.py demo` serves a page for your browser, "
    "and `python main.py tune` finds the fastest method for your machine; a model of your own: "
    "docs/models.md"
)
PARTS = 4  # the fast image is shown after so many equal parts of its forward passes
SIDE, GAP, LINE = 160, 10, 18  # pixels
FEW, MANY = np.array([226, 232, 242]), np.array([16, 56, 140])  # 1 token a pass, and the most


@dataclass(frozen=True)
class Decoded:
    """An image, round by round."""

    method: str
    steps: list[StreamStep]

    @property
    def passes(self) -> int:
        """Forward passes for the whole image; the first one reads the prompt."""
        return self.steps[-1].forwards

    @property
    def image(self) -> Image.Image:
        return self.steps[-1].image

    def after(self, passes: int) -> Image.Image:
        """Return the image after so many forward passes, grey where nothing is decided."""
        return self.steps[passes - 2].image

    def heat(self, shape: tuple[int, int]) -> Image.Image:
        """Return how many tokens were decided together with each token, as colours."""
        counts = np.ones(shape[0] * shape[1])
        for step in self.steps:
            counts[step.position : step.decided] = step.decided - step.position
        share = (counts - 1)[:, None] / max(counts.max() - 1, 1)
        colours = (FEW + share * (MANY - FEW)).round().astype(np.uint8).reshape(*shape, 3)
        return Image.fromarray(colours)


def demo(*, output: str = "outputs/demo") -> None:
    """Generate images by both methods, draw them, and print what they took.

    Args:
        output: folder of the pictures.
    """
    folder = Path(output)
    make_writable("output", folder)
    plain = Pipeline.from_pretrained("tiny", method="ar", torch_dtype="float32", progress_bar=False)
    fast = Pipeline.from_pipe(plain, method=FAST)
    for pipe in (plain, fast):
        list(pipe.stream(PROMPTS[0], seed=1))  # allocates memory, and captures graphs on a GPU
    passes = {"ar": 0, FAST: 0}
    for number, prompt in enumerate(PROMPTS):
        both = [Decoded(pipe.method, list(pipe.stream(prompt, seed=0))) for pipe in (plain, fast)]
        path = folder / f"{number}.png"
        strip(both[0], both[1], plain.grid).save(path)
        print(f"\n{prompt}\n{told(*both)}\n  picture: {path}")
        passes = {one.method: passes[one.method] + one.passes for one in both}
    where = "this GPU" if plain.device.type == "cuda" else cpu_name()
    print(f"\nSeconds: on {where}.\n{on_a_gpu(passes)}\n\n{NEXT}")


def on_a_gpu(passes: dict[str, int]) -> str:
    """Say what rounds take on a GPU, and why it is another proportion. passes: by method."""
    plain, fast = (passes[name] * ms / 1000 for name, ms in H100_MS.items())
    return (
        f"The same rounds of a 7B model on an H100: {plain:.1f} s by plain decoding, {fast:.1f} s "
        f"by {FAST} (by rounds of {H100_MS['ar']} and {H100_MS[FAST]} ms, measured: docs/gpu.md), "
        "because there a pass takes as long as reading 13 GB of weights, for one token or for 59, "
        "while a CPU has to compute every token."
    )


def told(plain: Decoded, fast: Decoded) -> str:
    """Say how many forward passes and seconds both images took, and whether they are the same."""
    same = plain.steps[-1].tokens.equal(fast.steps[-1].tokens)
    rows = (
        f"  {name:15} {one.passes:3} forward passes, {one.steps[-1].seconds:.2f} s"
        for name, one in (("plain decoding", plain), (fast.method, fast))
    )
    return "\n".join(rows) + f": {'the same image' if same else 'another image, by rounding'}"


def strip(plain: Decoded, fast: Decoded, shape: tuple[int, int]) -> Image.Image:
    """Draw both after the same forward passes: plain decoding above, the fast method below."""
    shown = [round(fast.passes * part / PARTS) for part in range(1, PARTS + 1)]
    most = max(step.decided - step.position for step in fast.steps)
    columns = [
        *((f"after {n} passes", plain.after(n), fast.after(n)) for n in shown),
        (f"plain: {plain.passes} passes", plain.image, fast.heat(shape)),
    ]
    width = GAP + len(columns) * (SIDE + GAP)
    canvas = Image.new("RGB", (width, 2 * (LINE + SIDE) + LINE + 3 * GAP), "white")
    pen, font = ImageDraw.Draw(canvas), ImageFont.load_default(13)
    below = GAP + LINE + SIDE + GAP
    for number, (text, *pictures) in enumerate(columns):
        left = GAP + number * (SIDE + GAP)
        pen.text((left, GAP), text, "black", font)
        for top, picture in zip((GAP + LINE, below), pictures, strict=True):
            canvas.paste(picture.resize((SIDE, SIDE), Image.Resampling.NEAREST), (left, top))
    words = (
        f"above: plain decoding; below: {fast.method}; right: tokens per pass, 1 to {most} (dark)"
    )
    pen.text((GAP, below + SIDE + GAP), words, "black", font)
    return canvas


if __name__ == "__main__":
    run_script(demo)
