"""Image metrics of runs: over which images, with which reference, and what is skipped."""

import numpy as np
import pytest
import torch
from made_runs import settings_of, write_run

from configs.evaluation import GENERAL_METRICS, TINY_METRICS, EvaluateSettings
from eval.metrics import registry
from eval.metrics.base import Score, Unavailable
from eval.metrics.networks import AttributeNetwork
from eval.metrics.paired import Estimate
from eval.metrics.store import FeatureStore
from eval.report.figures import compute_scores, with_prices
from eval.report.run import read_run, read_runs
from support.processes import Processes

COUNT = 24

pytestmark = pytest.mark.usefixtures("one_thread")


def scores_of(chosen: EvaluateSettings) -> tuple[dict, list[str]]:
    runs = read_runs(chosen.folders)
    scores, skipped = compute_scores(
        chosen, runs, lambda folder: pytest.fail("a reference was given")
    )
    return {name: {score.metric: score for score in own} for name, own in scores.items()}, skipped


def test_identical_folders_have_distance_zero_and_the_same_manifold(folders, tmp_path):
    scores, skipped = scores_of(
        settings_of(
            tmp_path, folders[0], ref_dir=str(folders[0] / "img"), metrics="tiny_fid,tiny_pr"
        )
    )
    assert not skipped
    assert abs(scores["ar"]["tiny_fid"].value) < 1e-4
    assert scores["ar"]["tiny_pr.precision"].value == scores["ar"]["tiny_pr.recall"].value == 1


def test_shuffled_prompts_lower_the_accuracy(drawn, folders, tmp_path):
    images, prompts = drawn
    shuffled = write_run(tmp_path / "shuffled", images, prompts[1:] + prompts[:1])
    scores, _ = scores_of(settings_of(tmp_path, folders[0], shuffled, metrics="accuracy"))
    right, wrong = (scores[name]["accuracy.background"] for name in ("ar", "shuffled"))
    assert right.value > 0.95 and wrong.value < 0.5 and wrong.high < right.low


def test_runs_are_compared_on_the_images_that_all_have(drawn, folders, tmp_path):
    images, prompts = drawn
    shorter = write_run(
        tmp_path / "short", images[:10], prompts[:10], {"verifier": "lantern"}, lossless=False
    )
    scores, skipped = scores_of(settings_of(tmp_path, folders[0], shorter, metrics="accuracy"))
    assert scores["ar"]["accuracy.shape"].count == scores["short"]["accuracy.shape"].count == 10
    assert skipped == [
        "image metrics are of the 10 prompts and seeds that all runs have, of ar 24, short 10"
    ]
    strange = write_run(tmp_path / "strange", images, [f"{prompt} again" for prompt in prompts])
    scores, skipped = scores_of(settings_of(tmp_path, folders[0], strange, metrics="accuracy"))
    assert (
        scores["ar"]["accuracy.shape"].count == COUNT
        and "not to be compared: ar 24, strange 24" in skipped[0]
    )


def test_the_price_of_a_run_by_hand():
    plain, own = (Score("m", 0.0, 9, "n", "r", shares=((hit, 1.0),) * 9) for hit in (0.5, 0.25))
    other = Score("m", 0.0, 9, "n", "r")
    scores = with_prices({"a": [plain], "b": [own], "c": [other]}, {"b": "a", "c": "a"})
    assert scores["b"][0].price == Estimate(-0.25, -0.25, -0.25)
    assert scores["a"][0].price is scores["c"][0].price is scores["a"][0].shares is None


def test_what_one_process_lacks_is_skipped_by_all(folders, tmp_path):
    lacks = Unavailable("the other has no library")
    other = Processes(0, 2, lambda value: [value, lacks])
    chosen = settings_of(
        tmp_path, folders[0], ref_dir=str(folders[0] / "img"), metrics="tiny_is,tiny_fid"
    )
    scores, skipped = compute_scores(
        chosen, read_runs(chosen.folders), lambda folder: folder, other
    )
    assert (
        scores == {"ar": []} and len(skipped) == 2 and all("no library" in text for text in skipped)
    )


def test_prompts_of_other_domains_are_counted_out(drawn, tmp_path):
    images, prompts = drawn
    mixed = write_run(tmp_path / "mixed", images, ["a red fox in the snow", *prompts[1:]])
    scores, _ = scores_of(settings_of(tmp_path, mixed, metrics="accuracy"))
    assert scores["mixed"]["accuracy.shape"].count == COUNT - 1
    foreign = write_run(tmp_path / "foreign", images, ["a red fox in the snow"] * COUNT)
    scores, skipped = scores_of(settings_of(tmp_path, foreign, metrics="accuracy,tiny_is"))
    assert list(scores["foreign"]) == ["tiny_is"] and "no prompt names a background" in skipped[0]


def test_features_are_computed_once_by_content(folders, tmp_path, monkeypatch):
    chosen = settings_of(tmp_path, folders[0], metrics="tiny_is")
    first, _ = scores_of(chosen)
    monkeypatch.setattr(
        AttributeNetwork, "encode", lambda self, images: pytest.fail("computed again")
    )
    assert scores_of(chosen)[0] == first
    (folders[0] / "img/00000_0.png").write_bytes((folders[0] / "img/00001_0.png").read_bytes())
    scores_of(chosen)


def test_damaged_features_are_a_named_skip(folders, tmp_path):
    chosen = settings_of(tmp_path, folders[0], metrics="tiny_is,accuracy")
    store = FeatureStore(tmp_path / "features", 8)
    AttributeNetwork(chosen.attributes_path, torch.device("cpu")).features(
        store, read_run(str(folders[0]), "ar").images
    )
    next((tmp_path / "features").rglob("*.npy")).write_bytes(b"")
    scores, (remark,) = scores_of(chosen)
    assert (
        "tiny_is" not in scores["ar"]
        and "accuracy.exact" in scores["ar"]
        and ".npy is damaged" in remark
    )


def test_images_of_another_size_are_a_named_skip(tmp_path):
    small = write_run(
        tmp_path / "small",
        [np.zeros((64, 64, 3), np.uint8)] * 12,
        ["a plain red background, a blue star"] * 12,
    )
    scores, skipped = scores_of(settings_of(tmp_path, small, ref_dir=str(small / "img")))
    assert scores == {"small": {}}
    assert len(skipped) == len(TINY_METRICS) and all(
        "64 x 64 pixels" in text for text in skipped if "tiny_is" in text
    )


def test_rendered_scenes_are_the_tiny_models_reference(folders, tmp_path):
    from scenes.pictures import rendered_scenes

    runs = [read_run(str(folders[0]), "ar")]
    chosen = settings_of(tmp_path, folders[0], metrics="tiny_fid")
    scores, skipped = compute_scores(chosen, runs, lambda folder: rendered_scenes(folder, 30))
    assert not skipped and scores["ar"][0].reference == "tiny_reference, 30 images"
    assert scores["ar"][0].value > 0.1


def test_metrics_are_those_of_the_settings():
    assert tuple(registry._BUILDERS) == TINY_METRICS + GENERAL_METRICS
