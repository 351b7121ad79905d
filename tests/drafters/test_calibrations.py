"""calibration.json: which factors it gives for which distribution, and what of it is refused."""

import json

import pytest

from configs.fields import SettingsError
from decoding.proposals import Calibration
from decoding.sampling import SamplingDistribution
from drafters.calibrations import FILE, Calibrations, distribution_key

PLAIN = SamplingDistribution()


def test_a_file_serves_its_distributions_and_proposals_only(tmp_path) -> None:
    (tmp_path / FILE).write_text(json.dumps({distribution_key(PLAIN): {"coupled": [0.8, 0.7]}}))
    read = Calibrations.read(tmp_path)
    assert read.of(PLAIN, "coupled") == Calibration((0.8, 0.7))
    assert read.of(PLAIN, "topk") == Calibration()
    assert read.of(SamplingDistribution(cfg=2.0), "coupled") == Calibration()
    assert Calibrations.read(tmp_path / "none") == Calibrations()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[1]", r"\[1\]"),
        ('{"a distribution": 3}', "a distribution: expected .*, got 3"),
        ('{"a distribution": {"topk": [0]}}', r"a distribution, topk: expected .*, got \[0\]"),
        ('{"a distribution": {"topk": ["a"]}}', r"topk: expected .*, got \['a'\]"),
        ('{"a distribution": {"topk": [true]}}', r"topk: expected .*, got \[True\]"),
        ('{"a distribution": {"topk": 1}}', "a distribution, topk: expected .*, got 1"),
        ('{"a distribution": {"topk": [NaN]}}', "no JSON"),
    ],
    ids=range(9),
)
def test_a_damaged_file_is_named(tmp_path, text, fault) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(SettingsError, match=f"{FILE}: .*{fault}"):
        Calibrations.read(tmp_path)


def test_a_folder_in_the_place_of_the_file_is_named(tmp_path) -> None:
    (tmp_path / FILE).mkdir()
    with pytest.raises(SettingsError, match=f"{FILE}.*cannot be read"):
        Calibrations.read(tmp_path)


def test_at_temperature_0_the_cuts_of_the_distribution_do_not_count() -> None:
    cut = SamplingDistribution(temperature=0, top_k=5, top_p=0.5)
    assert distribution_key(cut) == distribution_key(SamplingDistribution(temperature=0))
    assert distribution_key(SamplingDistribution(top_k=5)) != distribution_key(PLAIN)
