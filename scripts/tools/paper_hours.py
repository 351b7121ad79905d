"""Estimate the hours of a table of the paper from the speeds that were just measured.

`python -m scripts.tools.paper_hours --benchmark out/benchmark.json --flags="--prompt PartiPrompts"`
"""

import math
from pathlib import Path

from configs.fields import SettingsError
from scripts.tools.paper_needs import count_prompts, flag_values, method_of
from support.json_files import parse_json
from support.script import run_script


def paper_hours(*, benchmark: str, flags: str, methods: str = "ar eagle2 adt") -> None:
    """Print how long the images of all rows take, one at a time.

    Args:
        benchmark: benchmark.json of the same model.
        flags: those of the table's commands, as generate_images takes them.
        methods: the table's rows, with blanks between: methods, or recipes of configs/paper. A
            row is estimated by the first measurement of its method; others are left out.

    Raises:
        SettingsError: a flag, the prompts or the file cannot be used.
    """
    seconds = _seconds(Path(benchmark))
    images = count_prompts(flag_values(flags))
    hours = {
        name: images * seconds[method_of(name)] / 3600
        for name in methods.split()
        if method_of(name) in seconds
    }
    parts = ", ".join(f"{name} {_time(value)}" for name, value in hours.items())
    print(f"{images} images per row, one at a time: about {_time(sum(hours.values()))} ({parts})")


def _seconds(path: Path) -> dict[str, float]:
    """Return the seconds per image, by method; of several rows of a method, those of the first."""
    try:
        rows = parse_json(path.read_text(encoding="utf-8"))["rows"]
        return {row["method"]: row["seconds_per_image"] for row in reversed(rows)}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingsError(
            f"--benchmark {path}: cannot be read ({error}); allowed: a benchmark.json"
        ) from error


def _time(hours: float) -> str:
    """Return hours in words, or minutes if they are less than one hour."""
    return f"{hours:.1f} h" if hours >= 1 else f"{math.ceil(60 * hours)} min"


if __name__ == "__main__":
    run_script(paper_hours)
