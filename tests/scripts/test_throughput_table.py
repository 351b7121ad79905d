"""The table of throughput by batch size."""

import json

import pytest
from small import write_checkpoint

from scripts.tools.throughput import throughput


def test_a_row_per_batch_and_three_columns_per_method(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model, output = write_checkpoint(tmp_path / "model"), tmp_path / "new" / "throughput.json"
    throughput(prompt="a red dot", batches="1,2", least=2, model_path=str(model), dtype="fp64",
               output=str(output))  # fmt: skip
    said = capsys.readouterr()
    rows = [line for line in said.out.splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[0] for row in rows] == ["| images at once", "| ---", "| 1", "| 2"]
    assert all(row.count(" | ") == 9 for row in rows)
    found = json.loads(output.read_text())
    assert [(each["batch"], each["method"]["method"], each["images"]) for each in found] == [
        (batch, name, max(2, 2 * batch)) for batch in (1, 2) for name in ("ar", "jacobi", "graft")
    ]
    assert all(each["tokens"] == each["images"] * 15 for each in found)
    assert "most tokens per second: `--batch_size " in said.out
    assert len(said.err.splitlines()) == len(found)


def test_what_is_no_batch_size_is_refused() -> None:
    with pytest.raises(ValueError, match="--batches: found '1,x'; allowed: whole numbers"):
        throughput(batches="1,x")
