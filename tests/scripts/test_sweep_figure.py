"""The picture of a sweep."""

import json
from dataclasses import asdict

import pytest
from PIL import Image

from configs.fields import SettingsError
from eval.costs import Costs
from scripts.sweep_figure import columns, sweep_figure

COSTS = Costs((0.0, 10.0), (10.0, 20.0), 2.0)


def row(cell: str, tau: float, run: str = "T=1") -> dict:
    rounds = 255 / tau
    return {"id": f"{cell} {run}", "cell": cell, "tau": tau, "rounds": rounds, "levels": 2 * rounds, "nodes": 5.0,
            "tokens": 255}  # fmt: skip


def test_columns_are_the_parameters_that_vary_in_the_order_of_their_values() -> None:
    rows = [row(f"adt:nodes={n}:adt_d_max=3:adt_init={i}", 2.0) for n in (12, 4) for i in ("vertical", "fixed")]
    found = columns(rows, [1.0, 1.1, 1.2, 1.3])
    assert list(found) == ["nodes", "adt_init"]
    assert [(value, speedup) for value, speedup, _ in found["nodes"]] == [
        ("4", 1.2), ("4", 1.3), ("12", 1.0), ("12", 1.1)
    ]  # fmt: skip
    assert [value for value, *_ in found["adt_init"]] == ["fixed", "fixed", "vertical", "vertical"]


def test_a_picture_per_run(tmp_path, capsys) -> None:
    rows = [row(f"adt:nodes={n}", 2 + n / 10, run) for run in ("T=1", "T=0") for n in (4, 8)]
    (tmp_path / "sweep.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    (tmp_path / "costs.json").write_text(json.dumps({"costs": asdict(COSTS)}))
    places = {"report": str(tmp_path / "sweep.jsonl"), "costs": str(tmp_path / "costs.json")}
    sweep_figure(**places, output=str(tmp_path / "new" / "sweep.png"))
    assert capsys.readouterr().out.count("2 cells") == 2
    for number in (1, 2):
        picture = Image.open(tmp_path / "new" / f"sweep-{number}.png")
        assert picture.width > 400 and len(set(picture.convert("RGB").getdata())) > 50
    (tmp_path / "sweep.jsonl").write_text("")
    with pytest.raises(SettingsError, match="--report"):
        sweep_figure(**places, output=str(tmp_path / "none.png"))
