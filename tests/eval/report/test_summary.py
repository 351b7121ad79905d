"""The first answers of a report, in words."""

from eval.metrics.paired import Estimate
from eval.report.report import summary
from eval.report.speed import SpeedRow


def row(**values: object) -> SpeedRow:
    """A run of eight images, twice as fast as its baseline and the same."""
    common = {
        "run": "fast", "method": "adt", "proposal": "coupled", "temperature": 1.0,
        "lossless": True, "same_tokens": True, "images": 8, "tau": 3.0, "mean_depth": 2.0,
        "mean_nodes": 6.0, "forwards": 80.0, "seconds": 1.25, "baseline": "plain",
        "speedup": Estimate(2.0, 1.9, 2.1), "common": 8, "identical": 8,
    }  # fmt: skip
    return SpeedRow(**(common | values))


def test_a_run_with_the_baselines_images() -> None:
    line = summary(row())
    assert line.fast == "2.00 times as fast as plain; 1.25 s per image"
    assert (line.same, line.colour) == ("8 of 8 have the tokens of plain", "good")


def test_a_different_image_a_relaxed_rule_and_a_doubt_are_marked() -> None:
    assert summary(row(identical=7)).colour == "bad"
    assert summary(row(lossless=False, same_tokens=False, identical=0)).colour == "bad"
    assert summary(row(same_tokens=False, identical=0)).colour == ""
    assert "plain (!);" in summary(row(above_tau=True)).fast


def test_runs_that_are_compared_with_nothing_say_so() -> None:
    assert summary(row(run="plain")).fast == "1.25 s per image: the baseline"
    line = summary(row(baseline=None, speedup=None, identical=None, common=None))
    assert "no baseline" in line.fast and "no baseline" in line.same
