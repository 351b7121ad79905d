"""The notebook runs from its first cell to its last, and what it shows is stored in it."""

from importlib.util import module_from_spec, spec_from_file_location

import nbformat
import pytest
from browser import only_in_all

from configs.schema import ROOT

PATH = ROOT / "notebooks" / "quickstart.ipynb"
_SPEC = spec_from_file_location("execute", PATH.with_name("execute.py"))
execute = module_from_spec(_SPEC)
_SPEC.loader.exec_module(execute)


def shown(notebook: nbformat.NotebookNode) -> list[set[str]]:
    """The kinds of output of every code cell, such as image/png."""
    code = (cell.outputs for cell in notebook.cells if cell.cell_type == "code")
    kinds = ([one.get("data", {one.output_type: ""}) for one in outputs] for outputs in code)
    return [set().union(*found) for found in kinds]


def test_its_outputs_are_stored() -> None:
    assert PATH.stat().st_size < 2_000_000
    notebook = nbformat.read(PATH, 4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]
    assert all(shown(notebook))
    assert not execute.complaints(notebook)
    assert str(ROOT) not in PATH.read_text(encoding="utf-8")


@only_in_all
@pytest.mark.filterwarnings("ignore")  # of the kernel's connection
def test_it_runs(monkeypatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", "")
    stored, notebook = nbformat.read(PATH, 4), execute.executed()
    assert shown(notebook) == shown(stored) and not execute.complaints(notebook)
    assert notebook.metadata == stored.metadata
    assert [cell.metadata for cell in notebook.cells] == [cell.metadata for cell in stored.cells]
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    printed = "".join(output.get("text", "") for output in outputs)
    assert "the same tokens as above: True" in printed
