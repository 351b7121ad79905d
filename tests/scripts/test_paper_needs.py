"""What a table of the paper needs is named before its hours begin, and how many they are."""

import json
from pathlib import Path

import pytest

from configs.evaluation import GENERAL_METRICS, TINY_METRICS
from configs.fields import SettingsError
from configs.schema import ROOT
from scripts.tools.paper_hours import paper_hours
from scripts.tools.paper_needs import WEIGHTS, method_of, paper_needs
from support.border import Failure

TINY = f"--config {ROOT}/configs/tiny.yaml --prompt {ROOT}/configs/prompts/tiny_test.txt"


def test_the_shipped_model_has_all_that_it_needs(capsys) -> None:
    paper_needs(flags=f"{TINY} --num_images 20")
    said = capsys.readouterr().out
    assert "tiny_test.txt, 20 of them" in said and "FAULT" not in said
    assert "together" in said and "image quality: computed: accuracy, tiny_fid" in said


def test_all_that_is_missing_is_named_at_once(tmp_path: Path, capsys) -> None:
    flags = f"--model anole --model_path {tmp_path}/none --prompt cat --drafter_path {tmp_path}/no"
    with pytest.raises(Failure) as told:
        paper_needs(flags=flags)
    assert "target (folder)" in str(told.value) and "drafter (folder)" in str(told.value)
    said = capsys.readouterr().out
    assert "hf download leloy/Anole-7b-v0.1-hf" in said and "jadohu/anole_drafter" in said
    assert "fid left out: it needs real images" in said and "clip left out: --clip_path" in said
    assert "image quality: computed: none" in said


def test_metrics_that_are_chosen_and_real_images(tmp_path: Path, capsys) -> None:
    weights = tmp_path / "inception.pth"
    weights.write_bytes(b"")
    evaluate = f"--metrics fid,is --inception_path {weights} --ref_dir {tmp_path}"
    with pytest.raises(Failure):
        paper_needs(flags=f"--model anole --model_path {tmp_path}/no --prompt x", evaluate=evaluate)
    assert "image quality: computed: fid, is\n" in capsys.readouterr().out


@pytest.mark.parametrize(("methods", "fits"), [("ar eagle2", False), ("ar jacobi", True)])
def test_a_missing_drafter_matters_only_to_methods_that_have_one(
    methods: str, fits: bool, tmp_path: Path, capsys
) -> None:
    for path in (ROOT / "ckpts/tiny").iterdir():
        if path.name != "drafter":
            (tmp_path / path.name).symlink_to(path)
    flags = f"{TINY} --model_path {tmp_path}"
    if fits:
        paper_needs(flags=flags, methods=methods)
    else:
        with pytest.raises(Failure, match="no drafter for eagle2: .*DRAFTER=folder"):
            paper_needs(flags=flags, methods=methods)


def test_rows_are_methods_or_recipes_of_the_paper() -> None:
    assert (method_of("lantern_pp"), method_of("jacobi")) == ("static", "jacobi")
    with pytest.raises(SettingsError, match="METHODS: found 'eagle3'; allowed: adt, adt_lantern"):
        method_of("eagle3")


def test_every_metric_has_its_weights() -> None:
    assert WEIGHTS.keys() == {*TINY_METRICS, *GENERAL_METRICS}


def test_hours_are_those_of_each_row(tmp_path: Path, capsys) -> None:
    rows = [("ar", 360.0), ("adt", 45.0), ("adt", 99.0)]
    place = tmp_path / "benchmark.json"
    place.write_text(json.dumps({"rows": [{"method": m, "seconds_per_image": s} for m, s in rows]}))
    paper_hours(benchmark=str(place), flags=f"{TINY} --num_images 20", methods="ar adt lantern")
    assert capsys.readouterr().out == (
        "20 images per row, one at a time: about 2.2 h (ar 2.0 h, adt 15 min)\n"
    )
    with pytest.raises(SettingsError, match="--benchmark .*allowed: a benchmark.json"):
        paper_hours(benchmark=str(tmp_path / "none.json"), flags=TINY)
