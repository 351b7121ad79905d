"""Time forward passes and compare them with the time it takes to read the weights.

`python -m scripts.tools.bench_forward --model anole --model_path work/random_anole --dtype bf16`
"""

import json
from typing import Any

from configs.fields import refuse
from configs.methods import MethodSettings
from configs.model import EngineSettings
from runs.methods import sampling_distribution
from runs.session import Session, open_session
from scripts.gpu.passes import Passes, peak_memory
from support.script import run_script


def measure(session: Session, counts: tuple[int, ...], width: int, repeats: int) -> dict[str, Any]:
    """Return milliseconds and bytes: of passes over so many tokens, and of a level of `width`
    nodes.
    """
    passes = Passes(
        session.target, sampling_distribution(session.settings.sampling), repeats=repeats
    )
    bound = passes.bound()
    rows = [{"tokens": count, "ms": passes.forward(count)} for count in counts]
    return {
        "rows": [row | {"of_bound": bound / row["ms"]} for row in rows],
        "level_ms": passes.level(session.drafter.network, width),
        "bound_ms": bound,
        "weights": passes.weight_bytes(),
        "peak": peak_memory(session.target.device),
    }


def show(figures: dict[str, Any], width: int) -> None:
    """Print the figures as a table."""
    size, bound = figures["weights"] / 2**30, figures["bound_ms"]
    print(f"weights {size:.2f} GiB, read in {bound:.2f} ms at the speed of a copy")
    for row in figures["rows"]:
        share = f"{row['of_bound']:6.1%} of the bound"
        print(f"{row['tokens']:4d} tokens  {row['ms']:9.2f} ms  {share}")
    level, peak = figures["level_ms"], figures["peak"] / 2**30
    print(f"draft level of {width} nodes {level:.2f} ms; peak memory {peak:.2f} GiB")


def bench(
    *,
    model: str = "tiny",
    model_path: str | None = None,
    dtype: str = "fp32",
    tokens: tuple[int, ...] = (1, 16, 32, 59),
    width: int = 10,
    repeats: int = 20,
) -> None:
    """Print a table and, last, one line of JSON.

    Args:
        model, model_path, dtype: the target, as for main.py; its drafter is in its folder.
        tokens: per row and pass: the root and nodes of a tree.
        width: nodes in a draft level.
        repeats: measurements per figure, of which the median is shown.
    """
    counts = (tokens,) if isinstance(tokens, int) else tokens  # fire reads 1,16 as a tuple
    if not all(isinstance(count, int) and count > 0 for count in (*counts, width, repeats)):
        refuse("tokens, --width, --repeats", (tokens, width, repeats), "whole numbers from 1")
    method = MethodSettings(method="eagle2")
    session = open_session(
        EngineSettings(model=model, model_path=model_path, dtype=dtype, method=method)
    )
    figures = measure(session, counts, width, repeats)
    show(figures, width)
    print(json.dumps(figures | {"hardware": session.hardware()}))


if __name__ == "__main__":
    run_script(bench)
