"""Image metrics of runs: over which images, with which reference, and what is skipped."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from made_runs import settings_of, write_run

from configs.evaluation import GENERAL_METRICS, TINY_METRICS, EvaluateSettings
from eval.metrics import registry
from eval.metrics.base import Score, Unavailable
from eval.metrics.intervals import Estimate
from eval.metrics.networks import AttributeNetwork
from eval.report.evaluate import compute_scores, with_prices
from eval.report.run import read_run, read_runs
from scenes.pictures import rendered_scenes
from support.processes import Processes

COUNT = 24

pytestmark = pytest.mark.usefixtures("one_thread")


def scores_of(chosen: EvaluateSettings) -> tuple[dict, list[str]]:
    runs = read_runs(chosen.folders)
    return compute_scores(chosen, runs)


def test_identical_folders_have_distance_zero_and_the_same_manifold(folders, tmp_path):
    flags = {"ref_dir": str(folders[0] / "img"), "metrics": "tiny_fid,tiny_pr"}
    scores, skipped = scores_of(settings_of(tmp_path, folders[0], **flags))
    assert not skipped and abs(scores["ar"]["tiny_fid"].value) < 1e-4
    assert scores["ar"]["tiny_pr.precision"].value == scores["ar"]["tiny_pr.recall"].value == 1


def test_runs_are_compared_on_the_images_that_all_have(drawn, folders, tmp_path):
    images, prompts = drawn
    relaxed = {"verifier": "lantern"}
    short = write_run(tmp_path / "short", images[:10], prompts[:10], relaxed, lossless=False)
    scores, skipped = scores_of(settings_of(tmp_path, folders[0], short, metrics="accuracy"))
    assert scores["ar"]["accuracy.shape"].count == scores["short"]["accuracy.shape"].count == 10
    shared = "image metrics are of the 10 prompts and seeds that all runs have, of ar 24, short 10"
    assert skipped == [shared]
    shuffled = write_run(tmp_path / "shuffled", images, prompts[1:] + prompts[:1])
    scores, skipped = scores_of(settings_of(tmp_path, folders[0], shuffled, metrics="accuracy"))
    right, wrong = (scores[name]["accuracy.background"] for name in ("ar", "shuffled"))
    assert right.value > 0.95 and wrong.value < 0.5 and wrong.high < right.low
    assert right.count == COUNT and "not to be compared: ar 24, shuffled 24" in skipped[0]


def test_the_price_of_a_run_by_hand():
    score = Score("m", 0.0, 9, "n", "r")
    plain, dear = (replace(score, shares=((hit, 1.0),) * 9) for hit in (0.5, 0.25))
    runs = {"a": {"m": plain}, "b": {"m": dear}, "c": {"m": score}}
    scores = with_prices(runs, {"b": "a", "c": "a"})
    assert scores["b"]["m"].price == Estimate(-0.25, -0.25, -0.25)
    assert scores["a"]["m"].price is scores["c"]["m"].price is scores["a"]["m"].shares is None


def test_what_one_process_lacks_is_skipped_by_all(folders, tmp_path):
    lacks = Unavailable("the other has no library")
    other = Processes(0, 2, lambda value: [value, lacks])
    flags = {"ref_dir": str(folders[0] / "img"), "metrics": "tiny_is,tiny_fid"}
    chosen = settings_of(tmp_path, folders[0], **flags)
    scores, skipped = compute_scores(chosen, read_runs(chosen.folders), other)
    assert scores == {"ar": {}} and len(skipped) == 2
    assert all("no library" in text for text in skipped)


def test_prompts_of_other_domains_are_counted_out(drawn, tmp_path):
    images, prompts = drawn
    mixed = write_run(tmp_path / "mixed", images, ["a red fox in the snow", *prompts[1:]])
    scores, _ = scores_of(settings_of(tmp_path, mixed, metrics="accuracy"))
    assert scores["mixed"]["accuracy.shape"].count == COUNT - 1
    foreign = write_run(tmp_path / "foreign", images, ["a red fox in the snow"] * COUNT)
    scores, skipped = scores_of(settings_of(tmp_path, foreign, metrics="accuracy,tiny_is"))
    assert list(scores["foreign"]) == ["tiny_is"] and "no prompt names a background" in skipped[0]


def test_features_are_computed_once_and_damaged_ones_are_a_named_skip(
    folders, tmp_path, monkeypatch
):
    chosen = settings_of(tmp_path, folders[0], metrics="tiny_is")
    first, _ = scores_of(chosen)
    kind, again = AttributeNetwork, "computed again"
    monkeypatch.setattr(kind, "encode", lambda self, images: pytest.fail(again))
    assert scores_of(chosen)[0] == first
    # by content: a copy of another image is known, too
    (folders[0] / "img/00000_0.png").write_bytes((folders[0] / "img/00001_0.png").read_bytes())
    scores_of(chosen)
    next((tmp_path / "features").rglob("*.npy")).write_bytes(b"")
    scores, (remark,) = scores_of(settings_of(tmp_path, folders[0], metrics="tiny_is,accuracy"))
    assert "accuracy.exact" in scores["ar"] and "tiny_is" not in scores["ar"]
    assert ".npy is damaged" in remark


def test_images_of_another_size_are_a_named_skip(tmp_path):
    images, prompt = [np.zeros((64, 64, 3), np.uint8)] * 12, "a plain red background, a blue star"
    small = write_run(tmp_path / "small", images, [prompt] * 12)
    scores, skipped = scores_of(settings_of(tmp_path, small, ref_dir=str(small / "img")))
    assert scores == {"small": {}} and len(skipped) == len(TINY_METRICS)
    assert all("64 x 64 pixels" in text for text in skipped if "tiny_is" in text)


def test_rendered_scenes_are_the_tiny_models_reference(folders, tmp_path, monkeypatch):
    few = partial(rendered_scenes, count=30)
    monkeypatch.setattr("eval.report.evaluate.rendered_scenes", few)
    runs = [read_run(str(folders[0]), "ar")]
    chosen = settings_of(tmp_path, folders[0], metrics="tiny_fid")
    scores, skipped = compute_scores(chosen, runs)
    assert not skipped and scores["ar"]["tiny_fid"].reference == "tiny_reference, 30 images"
    assert scores["ar"]["tiny_fid"].value > 0.1


def test_metrics_are_those_of_the_settings():
    assert tuple(registry.METRICS) == TINY_METRICS + GENERAL_METRICS
