"""Figures of matplotlib, which is an extra's, in files."""

from pathlib import Path

from matplotlib.figure import Figure

from support.durable import new_file


def save_figure(figure: Figure, output: Path) -> None:
    """Write a figure as .png and .pdf; output: the file without its ending."""
    figure.tight_layout()
    for ending in ("png", "pdf"):
        with new_file(output.with_suffix(f".{ending}")) as file:
            figure.savefig(file, format=ending, dpi=220)
