"""The rows of a benchmark as a Markdown table."""

from collections.abc import Mapping, Sequence
from typing import Any

from eval.bench.plausible import exceeds_tau
from eval.bench.quality import QUALITIES
from support.tables import Table

COLUMNS = (
    "cell",
    "method",
    "proposal",
    "verifier",
    "seconds_per_image",
    "tokens_per_second",
    "tau",
    "mean_depth",
    "mean_nodes",
    "target_forwards",
    "ms_per_target_forward",
    "ms_per_draft_forward",
    "overhead_share",
    "speedup",
    "promised",
    "identical",
    "near_ties",
    "lossless",
    *QUALITIES,
)
Row = Mapping[str, Any]


def table(rows: Sequence[Row], images: int) -> str:
    """Return a Markdown table of the columns that some row has.

    Args:
        rows: figures by column; a speed-up above tau is marked with (!).
        images: how many were decoded, for the column `identical`.
    """
    columns = tuple(name for name in COLUMNS if any(name in row for row in rows))
    cells = tuple(tuple(_cell(row, name, images) for name in columns) for row in rows)
    return Table(columns, cells).markdown()


def doubts(rows: Sequence[Row]) -> list[str]:
    """Return a warning for every row whose speed-up exceeds its tau."""
    found = [
        (row.get("cell") or row["method"], exceeds_tau(row["speedup"], row["tau"]))
        for row in rows
        if "speedup" in row
    ]
    return [f"{name}: {text}" for name, text in found if text is not None]


def _cell(row: Row, name: str, images: int) -> str:
    value = row.get(name)
    if value is None:
        return "-"
    if name == "identical":
        return f"{value}/{images}"
    if not isinstance(value, float):
        return str(value)
    mark = " (!)" if name == "speedup" and exceeds_tau(value, row["tau"]) else ""
    return (f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}") + mark
