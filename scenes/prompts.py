"""Write the captions of a split as a prompt file.

`python -m scenes.prompts --split test --count 200 --output FILE`
"""

from pathlib import Path

from scenes.captions import caption
from scenes.scene import sample_scene
from support.script import run_script


def write_prompts(*, split: str, count: int, output: str) -> None:
    """Write the caption of scene i of the split (train, validation or test) as line i."""
    Path(output).write_text("\n".join(scene_captions(split, count)) + "\n", encoding="utf-8")


def scene_captions(split: str, count: int) -> list[str]:
    """Return the captions of the first scenes of a split."""
    return [caption(sample_scene(split, index), index) for index in range(count)]


if __name__ == "__main__":
    run_script(write_prompts)
