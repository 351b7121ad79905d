"""Settings made from Python: types are checked, what does not apply is refused, defaults fit."""

import dataclasses

import pytest

from configs.benchmark import BenchmarkSettings
from configs.evaluation import EvaluateSettings
from configs.fields import SettingsError, settings_dict
from configs.method_table import METHODS
from configs.schema import (
    ROOT,
    AdtSettings,
    LanternSettings,
    MethodSettings,
    RunSettings,
    SamplingSettings,
)


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (SamplingSettings, "temperature", -0.1),
        (SamplingSettings, "temperature", float("nan")),
        (SamplingSettings, "temperature", float("inf")),
        (SamplingSettings, "temperature", True),
        (SamplingSettings, "temperature", None),
        (SamplingSettings, "top_k", -1),
        (SamplingSettings, "top_k", 1.0),
        (SamplingSettings, "top_p", 1.01),
        (SamplingSettings, "cfg", -1),
        (AdtSettings, "d_min", 0),
        (AdtSettings, "k_min", 9),
        (AdtSettings, "init", "diagonal"),
        (AdtSettings, "adapt", "off"),
        (AdtSettings, "alpha", "next"),
        (MethodSettings, "method", "eagle"),
        (MethodSettings, "nodes", 0),
        (MethodSettings, "relaxed", {"k": 5}),
        (MethodSettings, "depth", 5),  # the default method, adt, sets its own
        (MethodSettings, "adt", {"beta": 0.5}),
    ],
)
def test_a_wrong_value_is_refused_by_name(owner, name, value):
    with pytest.raises(
        SettingsError, match=rf"{name}.*: (expected .*, got .*|.* works only with)"
    ) as error:
        owner(**{name: value})
    assert isinstance(error.value, ValueError)


@pytest.mark.parametrize(
    "flags",
    [
        {"prompt": " \n"},
        {"prompt": 123},
        {"prompt": None},
        {"prompt": "\udcff"},
        {"num_images": -2},
        {"num_images": 2.0},
        {"num_images": True},
        {"samples_per_prompt": 0},
        {"seed": 2**63},
        {"vq_device": "cuda"},
        {"cfg_mode": "both"},
        {"model_path": " "},
        {"overwrite": "maybe"},
        {"trace": 1},
        {"output_dir": ""},
    ],
)
def test_a_run_of_one_text_refuses(flags):
    with pytest.raises(
        SettingsError, match=rf"--({'|'.join(flags)}): (expected .*, got .*|.* works only with)"
    ):
        RunSettings(**{"prompt": "a cat"} | flags)


@pytest.mark.parametrize(
    "text", ["5", "5-", "-5", "5-5", "6-5", "a-b", "1-2-3", "0x1-2", "1.0-2", "１-２"]
)
def test_a_slice_is_two_rising_numbers(text):
    with pytest.raises(SettingsError, match="--slice: expected .*, got "):
        RunSettings(prompt="PartiPrompts", slice=text)


def test_numbers_of_another_rule_are_refused():
    allowed = "only with --verifier lantern or lantern_coupled, not with --verifier exact"
    with pytest.raises(SettingsError, match=f"--lantern_k: 1000 works {allowed}"):
        MethodSettings(relaxed=LanternSettings())


def test_defaults_of_the_methods():
    assert MethodSettings() == MethodSettings("adt", "coupled", nodes=6, adt=AdtSettings())
    eagle = MethodSettings("eagle2")
    assert (eagle.proposal, eagle.depth, eagle.width, eagle.nodes) == ("coupled", 5, 10, 58)
    assert MethodSettings("static").tree == "mc_sim_7b_63"
    assert MethodSettings("ar").proposal is None
    assert all(MethodSettings(name).lossless for name in METHODS)
    undrafted = [name for name in METHODS if not MethodSettings(name).drafted]
    assert undrafted == ["ar", "jacobi", "recall"]


@pytest.mark.parametrize("method", METHODS)
def test_what_a_method_does_not_use_is_refused(method):
    values = {"proposal": "topk", "depth": 3, "width": 3, "nodes": 9, "tree": "chain"}
    for name, value in [*values.items(), ("adt", AdtSettings())]:
        if name in METHODS[method].defaults:
            MethodSettings(method, **{name: value})
        else:
            match = f"--{name}.*only with --method .*, not with --method {method}"
            with pytest.raises(SettingsError, match=match):
                MethodSettings(method, **{name: value})


def test_first_adt_tree_stays_within_given_bounds():
    assert AdtSettings(d_max=3).d_init == 3
    assert AdtSettings(k_min=6, k_max=8).k_init == 6
    assert (AdtSettings().d_init, AdtSettings().k_init) == (3, 4)


@pytest.mark.parametrize(
    ("flags", "images", "samples"),
    [
        ({"prompt": "a cat"}, 1, 1),
        ({"prompt": "a cat", "num_images": 3}, 3, 3),
        ({"prompt": "a cat", "num_images": -1}, 1, 1),
        ({"prompt": "a cat", "samples_per_prompt": 4}, 4, 4),
        ({"prompt": "a cat", "num_images": -1, "samples_per_prompt": 4}, 4, 4),
        ({"prompt": "PartiPrompts"}, 10, 1),
        ({"prompt": "PartiPrompts", "slice": "0-5"}, -1, 1),
        ({"prompt": "PartiPrompts", "sample": 5, "num_images": -1}, -1, 1),
        ({"prompt": "my.TXT", "samples_per_prompt": 2}, -1, 2),
    ],
)
def test_counts(flags, images, samples):
    settings = RunSettings(**flags)
    assert (settings.num_images, settings.samples_per_prompt) == (images, samples)


def test_whole_numbers_in_float_fields_are_the_same_settings():
    assert SamplingSettings(temperature=1, cfg=3) == SamplingSettings()
    assert isinstance(SamplingSettings(cfg=3).cfg, float)


def test_settings_survive_a_second_birth():
    for flags in ({"num_images": 2}, {"prompt": "PartiPrompts", "sample": 3}, {"prompt": "x.txt"}):
        settings = RunSettings(**{"prompt": "a cat"} | flags)
        assert dataclasses.replace(settings) == settings


def test_with_method_gives_and_takes_the_drafter():
    run = RunSettings(prompt="a cat")
    plain = run.with_method(MethodSettings("ar"))
    assert plain.drafter_path is None
    assert plain.with_method(MethodSettings("eagle2")).drafter_path == run.drafter_path
    own = RunSettings(prompt="a cat", drafter_path="d").with_method(MethodSettings("static"))
    assert own.drafter_path == "d"


def test_the_dictionary_is_flat_and_by_flag():
    values = settings_dict(RunSettings(prompt="a cat"))
    assert {"prompt", "temperature", "method", "adt_beta", "adt_k_init"} <= values.keys()
    plain = settings_dict(RunSettings(prompt="a cat", method=MethodSettings("ar")))
    assert plain["proposal"] is None and not [name for name in plain if name.startswith("adt")]


def test_fingerprint_follows_what_an_image_is_and_nothing_else():
    base = {"prompt": "PartiPrompts"}
    first = RunSettings(**base).fingerprint()
    free = {"num_images": 3, "slice": "0-3", "batch_size": 4, "trace": True, "output_dir": "o"}
    free |= {"overwrite": True, "samples_per_prompt": 2, "prompt_file": "p.tsv"}
    same = [{"sample": 3, "sample_seed": 2}, *({name: value} for name, value in free.items())]
    assert {RunSettings(**base, **flags).fingerprint() for flags in same} == {first}
    own = {"seed": 1, "dtype": "bf16", "device": "cpu", "model_path": "m", "drafter_path": "d"}
    other = [{name: value} for name, value in own.items()]
    other += [{"sampling": SamplingSettings(cfg=2)}, {"method": MethodSettings("adt", "topk")}]
    other += [{"method": MethodSettings(adt=AdtSettings(beta=0.4))}]
    prints = [RunSettings(**base, **flags).fingerprint() for flags in other]
    assert len({first, *prints}) == len(other) + 1


def test_output_folder_is_named_after_the_settings():
    first, second = RunSettings(prompt="a cat!"), RunSettings(prompt="a cat?")
    assert first.output_dir.startswith("outputs/tiny_adt_a-cat_")
    assert first.output_dir != second.output_dir
    assert RunSettings(prompt="猫").output_dir.startswith("outputs/tiny_adt_prompt_")
    assert RunSettings(prompt="a/../../b").output_dir.count("/") == 1


def test_a_folder_given_twice_is_one_run(tmp_path):
    folders = f"{tmp_path}/a, {tmp_path}/b,{tmp_path}/a/"
    chosen = EvaluateSettings(output_dir=folders, baseline=f"{tmp_path}/b")
    assert len(chosen.folders) == 2


def test_home_is_written_out(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    settings = RunSettings(prompt="a cat", output_dir="~/out", model_path="~/m")
    assert (settings.output_dir, settings.drafter_path) == (
        "/home/someone/out",
        "/home/someone/m/drafter",
    )


def test_benchmark_settings_refuse_twins():
    run = RunSettings(prompt="a cat")
    with pytest.raises(SettingsError, match="--methods"):
        BenchmarkSettings(run, (MethodSettings("ar"), MethodSettings("ar")))
    with pytest.raises(SettingsError, match="--repeats"):
        BenchmarkSettings(run, (MethodSettings("ar"),), repeats=0)


def test_default_model_folder_does_not_depend_on_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert RunSettings(prompt="a cat").model_path == str(ROOT / "ckpts/tiny")
