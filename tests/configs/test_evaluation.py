"""Flags of `evaluate`."""

import pytest

from configs.evaluation import EvaluateSettings
from configs.fields import SettingsError
from runs.commands import evaluate_settings


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({}, "--output_dir: missing; allowed: run folders"),
        ({"output_dir": "a,,b"}, "--output_dir: found 'a,,b'; allowed: folder names between"),
        (
            {"output_dir": "a", "metrics": "fid,clap"},
            "--metrics: found 'fid,clap'; allowed: all, none, or some of accuracy",
        ),
        ({"output_dir": "a", "metrics": "fid,fid"}, "--metrics: .* each once"),
        (
            {"output_dir": "a", "batch_size": "0"},
            "--batch_size: found 0; allowed: a whole number at least 1",
        ),
        (
            {"output_dir": "a", "ref_dir": "nowhere"},
            "--ref_dir: found 'nowhere'; allowed: a folder",
        ),
        ({"output_dir": "a", "device": "tpu"}, "--device: found 'tpu'"),
    ],
)
def test_flags_are_refused_by_name(flags, message):
    with pytest.raises(SettingsError, match=message):
        evaluate_settings(flags)


def test_a_folder_given_twice_is_one_run(tmp_path):
    chosen = EvaluateSettings(
        output_dir=f"{tmp_path}/a, {tmp_path}/b,{tmp_path}/a/", baseline=f"{tmp_path}/b"
    )
    assert len(chosen.folders) == 2
