"""What a table of the paper needs is named before its hours begin, and how many they are."""

import json
from pathlib import Path

import pytest

from configs.fields import SettingsError, settings_dict
from configs.schema import ROOT
from scripts.paper.hours import paper_hours
from scripts.paper.needs import methods_of, paper_needs
from support.border import Failure

TINY = f"--config {ROOT}/configs/tiny.yaml --prompt {ROOT}/configs/prompts/tiny_test.txt"


def test_the_shipped_model_has_all_that_it_needs(capsys) -> None:
    paper_needs(flags=f"{TINY} --num_images 20", methods="ar adt lantern")
    said = capsys.readouterr().out
    assert "tiny_test.txt, 20 of them" in said and "FAULT" not in said
    assert "together" in said and "image quality: computed: accuracy, tiny_fid" in said


def test_all_that_is_missing_is_named_at_once(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("scripts.paper.needs.ROOT", tmp_path)  # without the prompts, too
    flags = f"--model anole --model_path {tmp_path}/none --drafter_path {tmp_path}/no"
    with pytest.raises(Failure) as told:
        paper_needs(flags=f"{flags} --prompt PartiPrompts")
    assert "target (folder)" in str(told.value) and "drafter (folder)" in str(told.value)
    said = capsys.readouterr().out
    assert "hf download leloy/Anole-7b-v0.1-hf" in said and "jadohu/anole_drafter" in said
    assert "prompts: PartiPrompts, not here yet: scripts/get_prompts.sh" in said
    assert "fid skipped: it needs real images" in said and "clip skipped: --clip_path" in said
    assert "image quality: computed: none" in said


def test_metrics_that_are_chosen_and_real_images(tmp_path: Path, capsys) -> None:
    weights = tmp_path / "inception.pth"
    weights.write_bytes(b"")
    evaluate = f"--metrics fid,is --inception_path {weights} --ref_dir {tmp_path}"
    with pytest.raises(Failure):
        paper_needs(flags=f"--model anole --model_path {tmp_path}/no --prompt x", evaluate=evaluate)
    assert "image quality: computed: fid, is\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("without", "methods", "missing"),
    [
        ("drafter", "ar eagle2", "no drafter for eagle2: .*DRAFTER=folder"),
        ("drafter", "ar jacobi", None),
        ("vq_distances", "ar lantern", "table of nearest codes for lantern: .*vq_distances"),
        ("vq_distances", "ar eagle2", None),
    ],
)
def test_what_is_missing_matters_to_rows_that_read_it(
    without: str, methods: str, missing: str | None, tmp_path: Path, capsys
) -> None:
    for path in (ROOT / "ckpts/tiny").iterdir():
        if path.name != without:
            (tmp_path / path.name).symlink_to(path)
    if missing is None:
        paper_needs(flags=f"{TINY} --model_path {tmp_path}", methods=methods)
    else:
        with pytest.raises(Failure, match=missing):
            paper_needs(flags=f"{TINY} --model_path {tmp_path}", methods=methods)


def test_rows_are_methods_or_recipes_of_the_paper() -> None:
    rows = methods_of("lantern_pp jacobi adt")
    assert [row.method for row in rows.values()] == ["static", "jacobi", "adt"]
    assert (rows["adt"].nodes, rows["adt"].adt.d_max) == (58, 8), "the paper's, not our default"
    with pytest.raises(SettingsError, match="METHODS: expected .*got 'eagle3'"):
        methods_of("ar eagle3")


def test_hours_are_those_of_the_same_tree(tmp_path: Path, capsys) -> None:
    """Our six-node `adt`, which was measured first, does not count for the paper's."""
    own = methods_of("ar adt:nodes=6 adt").values()
    rows = [
        settings_dict(method) | {"seconds_per_image": seconds}
        for method, seconds in zip(own, (360.0, 1.0, 45.0), strict=True)
    ]
    path = tmp_path / "benchmark.json"
    path.write_text(json.dumps({"rows": rows}))
    paper_hours(benchmark=str(path), flags=f"{TINY} --num_images 20", methods="ar adt")
    assert capsys.readouterr().out == (
        "20 images per row, one at a time: about 2 h 15 min (ar 2 h 0 min, adt 15 min)\n"
    )
    with pytest.raises(SettingsError, match="has no row of eagle2; measure it first"):
        paper_hours(benchmark=str(path), flags=TINY, methods="ar eagle2")
    with pytest.raises(SettingsError, match="missing file: .*none.json"):
        paper_hours(benchmark=str(tmp_path / "none.json"), flags=TINY)
