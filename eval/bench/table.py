"""A benchmark's rows as a table."""

from eval.bench.quality import QUALITIES

COLUMNS = ("cell", "method", "proposal", "verifier", "seconds_per_image", "tokens_per_second", "tau", "mean_depth",
           "mean_nodes", "target_forwards", "ms_per_target_forward", "ms_per_draft_forward", "overhead_share",
           "speedup", "promised", "identical", "near_ties", "lossless", *QUALITIES)  # fmt: skip


def table(rows: list[dict[str, object]], images: int) -> str:
    """The rows as a Markdown table of the columns that a row has; `identical` and `near_ties` count images."""
    columns = [name for name in COLUMNS if any(name in row for row in rows)]
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    for row in rows:
        cells = {name: _cell(row.get(name)) for name in columns}
        if "identical" in row:
            cells["identical"] += f"/{images}"
        lines.append("| " + " | ".join(cells.values()) + " |")
    return "\n".join(lines)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return (
        f"{value:.3g}"
        if isinstance(value, float) and abs(value) < 100
        else f"{value:.0f}"
        if isinstance(value, float)
        else str(value)
    )
