"""Estimate the hours of a table of the paper from the speeds that were just measured.

`python -m scripts.paper.hours --benchmark out/benchmark.json --flags="--prompt PartiPrompts"`
"""

from pathlib import Path

from configs.fields import SettingsError, settings_dict
from scripts.paper.needs import count_images, flag_values, methods_of
from support.json_files import read_object
from support.progress import duration
from support.script import run_script


def paper_hours(*, benchmark: str, flags: str, methods: str = "ar eagle2 adt") -> None:
    """Print how long the images of all rows take, one at a time.

    Args:
        benchmark: benchmark.json, in which every row was measured.
        flags: those of the table's commands, as generate_images takes them.
        methods: the table's rows, with blanks between: methods, or recipes of configs/paper.

    Raises:
        SettingsError: a flag, the prompts or the file cannot be used, or the file lacks a row.
    """
    images = count_images(flag_values(flags))
    rows = read_object(Path(benchmark)).get("rows", [])
    seconds: dict[str, float] = {}
    for name, method in methods_of(methods).items():
        # By all settings, not by the method's name: an `adt` with other bounds has another speed.
        wanted = settings_dict(method)
        row = next((r for r in rows if all(r.get(k) == v for k, v in wanted.items())), None)
        if row is None:
            raise SettingsError(f"--benchmark {benchmark}: has no row of {name}; measure it first")
        seconds[name] = images * row["seconds_per_image"]
    shares = ", ".join(f"{name} {duration(value)}" for name, value in seconds.items())
    total = duration(sum(seconds.values()))
    print(f"{images} images per row, one at a time: about {total} ({shares})")


if __name__ == "__main__":
    run_script(paper_hours)
