"""Run the notebook and store its outputs: `make notebook`, on an otherwise idle machine."""

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

PATH = Path(__file__).with_name("quickstart.ipynb")


def executed(path: Path = PATH) -> nbformat.NotebookNode:
    """Return the notebook with the outputs of this run, and nothing that a run leaves besides."""
    notebook = nbformat.read(path, 4)
    metadata = notebook.metadata.copy()
    root = str(path.parent.parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([root, *os.environ.get("PYTHONPATH", "").split()])
    NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(path.parent)}},
    ).execute()
    notebook.metadata = metadata  # without the version of the Python that ran it
    return notebook


def complaints(notebook: nbformat.NotebookNode) -> list[str]:
    """Return what cells wrote to stderr."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return [output.text for output in outputs if output.get("name") == "stderr"]


if __name__ == "__main__":
    made = executed()
    if said := complaints(made):
        sys.exit(f"error: {PATH}: not stored, since cells wrote to stderr: {said[0]}")
    nbformat.write(made, PATH)
    marked = "(!)" in nbformat.writes(made).partition("speed-up (95 %)")[2]
    print(f"{PATH}: stored; {'a time is marked (!): other work ran' if marked else 'no marks'}")
