"""The check in one JSON file and one page of tables."""

from collections.abc import Iterable, Sequence
from typing import Any

from scripts.gpu.aims import Lines, judged
from scripts.gpu.record import MACHINE, Figures
from support.tables import Table


def document(lines: Lines, lacking: Sequence[str]) -> dict[str, Any]:
    """Return all of a check: machine, missing packages, aims, pieces, and what failed in them."""
    pieces = [line for name, line in lines.items() if name != MACHINE]
    return {
        "machine": lines.get(MACHINE, {}),
        "missing_packages": list(lacking),
        "failed": [line["id"] for line in pieces if has_failed(line)],
        "skipped": {line["id"]: line["skipped"] for line in pieces if "skipped" in line},
        "aims": list(judged(lines)),
        "pieces": pieces,
    }


def has_failed(line: Figures) -> bool:
    """Return whether a piece broke, or found a fault."""
    return "error" in line or line.get("passed") is False


def page(content: dict[str, Any]) -> str:
    """Return the tables of a document in Markdown."""
    pieces = content["pieces"]
    machine = ", ".join(f"{name} {value}" for name, value in content["machine"].items())
    tables = [
        _table("aims", ("name", "figure", "aim", "outcome"), content["aims"]),
        _checks(pieces),
        _passes(pieces),
        _table(
            "7B, rounds",
            ("id", "ms_per_round", "busy_ms", "host_share", "launches", "tau", "peak"),
            [row for row in pieces if "ms_per_round" in row],
        ),
        _table(
            "tiny model",
            ("id", "tau", "tokens_per_second", "images_per_s", "speedup", "overhead_share"),
            [row for row in pieces if "images_per_s" in row],
        ),
        _faults(pieces),
    ]
    shown = [f"## {table.title}\n\n{table.markdown()}" for table in tables if table.rows]
    return "\n".join([f"# {machine}\n", *shown])


def _checks(pieces: list[Figures]) -> Table:
    columns = ("id", "images", "identical", "near_ties", "same_tokens", "passed")
    return _table("tokens", columns, [row for row in pieces if row.get("part") == "tokens"])


def _passes(pieces: list[Figures]) -> Table:
    """Return milliseconds by mode, with the share of the bound that each reaches."""
    bound = next((row["bound_ms"] for row in pieces if "bound_ms" in row), None)
    rows = [
        {
            "images": row["images"],
            "tokens": row["tokens"],
            "mode": mode,
            "ms": milliseconds,
            "of the bound": bound / milliseconds if bound else None,
        }
        for row in pieces
        if isinstance(row.get("ms"), dict)
        for mode, milliseconds in row["ms"].items()
    ]
    return _table("7B, passes", ("images", "tokens", "mode", "ms", "of the bound"), rows)


def _faults(pieces: list[Figures]) -> Table:
    rows = [
        {"id": row["id"], "why": row.get("error") or row.get("skipped") or f"wrong {row}"}
        for row in pieces
        if has_failed(row) or "skipped" in row
    ]
    return _table("failed or skipped", ("id", "why"), rows)


def _table(title: str, columns: tuple[str, ...], rows: Iterable[Figures]) -> Table:
    cells = tuple(tuple(_text(row.get(name)) for name in columns) for row in rows)
    return Table(tuple(name.replace("_", " ") for name in columns), cells, title)


def _text(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
