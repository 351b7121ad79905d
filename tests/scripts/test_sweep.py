"""The sweep: its cells, its counts, its prediction, and that it continues instead of counting again."""

import json

import pytest
from small import write_checkpoint

from configs.fields import SettingsError
from scripts import sweep as module
from scripts.sweep import cells, predicted, sweep


def test_cells_are_all_combinations() -> None:
    assert cells("adt:proposal=topk", "nodes=4|8,adt_d_max=5") == [
        "adt:proposal=topk:nodes=4:adt_d_max=5",
        "adt:proposal=topk:nodes=8:adt_d_max=5",
    ]


def test_a_method_without_drafts_has_speed_up_one_and_nodes_cost() -> None:
    plain = {"tokens": 255, "rounds": 255.0, "nodes": 0.0, "levels": 0}
    assert predicted(plain, 10, 1, 2) == 1
    half = {"tokens": 255, "rounds": 127.5, "nodes": 5.0, "levels": 255}
    assert predicted(half, 10, 1, 2) == pytest.approx(255 * 10 / (127.5 * 15 + 255 * 2))


def test_a_sweep_counts_each_cell_once(tmp_path, monkeypatch, capsys) -> None:
    write_checkpoint(tmp_path / "model")
    (tmp_path / "prompts.txt").write_text("a red dot\nblue squares\n")
    settings = {"grid": "nodes=2|6", "prompt": str(tmp_path / "prompts.txt"), "images": 2, "costs": "10,1,2"}
    places = {"model_path": str(tmp_path / "model"), "report": str(tmp_path / "sweep.jsonl")}
    sweep(**settings, **places, part="0/2")
    sweep(**settings, **places, part="1/2")
    capsys.readouterr()
    monkeypatch.setattr(module, "counts", lambda *_: pytest.fail("counted again"))
    sweep(**settings, **places)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["cell"] for row in rows} == {"adt:nodes=2", "adt:nodes=6"}
    assert rows[0]["predicted"] <= rows[1]["predicted"] and all(1 <= row["tau"] <= 16 for row in rows)
    assert all(row["nodes"] <= int(row["cell"][-1]) for row in rows)


@pytest.mark.parametrize(
    "flags",
    [{"grid": "nodes"}, {"grid": "nodes=8|x"}, {"part": "2/2"}, {"part": "1"}, {"costs": "1,2"}, {"costs": "a,1,1"}],
)
def test_bad_values_are_refused_by_name_before_anything_is_loaded(flags, monkeypatch) -> None:
    monkeypatch.setattr(module, "open_session", lambda *_: pytest.fail("loaded"))
    with pytest.raises(SettingsError, match=f"--{next(iter(flags))}|--nodes"):
        sweep(**flags)
