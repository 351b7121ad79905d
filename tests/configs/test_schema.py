"""Settings made from Python: types are checked, what does not apply is refused, defaults fit."""

import pytest

from configs.evaluation import EvaluateSettings
from configs.fields import SettingsError
from configs.methods import METHODS
from configs.schema import AdtSettings, MethodSettings, RunSettings, SamplingSettings


def test_defaults_of_the_methods():
    assert MethodSettings() == MethodSettings("adt", "coupled", nodes=6, own=AdtSettings())
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
    for name, value in [*values.items(), ("adt_beta", 0.5)]:
        given = {"method": method, name: value}
        if name in METHODS[method].flags:
            MethodSettings.of(given)
        else:
            match = f"--{name}.*only with --method .*, not with --method {method}"
            with pytest.raises(SettingsError, match=match):
                MethodSettings.of(given)


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
    settings = RunSettings.of(flags)
    assert (settings.prompts.num_images, settings.prompts.samples_per_prompt) == (images, samples)


def test_whole_numbers_in_float_fields_are_the_same_settings():
    assert SamplingSettings(temperature=1, cfg=3) == SamplingSettings()
    assert isinstance(SamplingSettings(cfg=3).cfg, float)


def test_fingerprint_follows_what_an_image_is_and_nothing_else():
    base = {"prompt": "PartiPrompts"}
    first = RunSettings.of(base).fingerprint()
    free = {"num_images": 3, "slice": "0-3", "batch_size": 4, "trace": True, "output_dir": "o"}
    free |= {"overwrite": True, "samples_per_prompt": 2, "prompt_file": "p.tsv"}
    same = [{"sample": 3, "sample_seed": 2}, *({name: value} for name, value in free.items())]
    assert {RunSettings.of(base | flags).fingerprint() for flags in same} == {first}
    own = {"seed": 1, "dtype": "bf16", "device": "cpu", "model_path": "m", "drafter_path": "d"}
    other = [{name: value} for name, value in own.items()]
    other += [{"sampling": SamplingSettings(cfg=2)}, {"method": MethodSettings("adt", "topk")}]
    other += [{"method": MethodSettings(own=AdtSettings(beta=0.4))}]
    prints = [RunSettings.of(base | flags).fingerprint() for flags in other]
    assert len({first, *prints}) == len(other) + 1


def test_output_folder_is_named_after_the_settings():
    first, second = RunSettings.of(prompt="a cat!"), RunSettings.of(prompt="a cat?")
    assert first.output_dir.startswith("outputs/tiny_adt_a-cat_")
    assert first.output_dir != second.output_dir
    assert RunSettings.of(prompt="猫").output_dir.startswith("outputs/tiny_adt_prompt_")
    assert RunSettings.of(prompt="a/../../b").output_dir.count("/") == 1


def test_a_folder_given_twice_is_one_run(tmp_path):
    folders = f"{tmp_path}/a, {tmp_path}/b,{tmp_path}/a/"
    chosen = EvaluateSettings(output_dir=folders, baseline=f"{tmp_path}/b")
    assert len(chosen.folders) == 2
    slices = f"{tmp_path}/a+{tmp_path}/b"
    chosen = EvaluateSettings(output_dir=slices, baseline=f"{tmp_path}/a/+{tmp_path}/b/../b")
    assert chosen.folders == (slices,)


def test_home_is_written_out(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    settings = RunSettings.of(prompt="a cat", output_dir="~/out", model_path="~/m")
    written = (settings.output_dir, settings.engine.drafter_path)
    assert written == ("/home/someone/out", "/home/someone/m/drafter")


@pytest.mark.parametrize(
    ("device", "sees", "dtype"),
    [
        ("cpu", True, "fp32"),
        ("cuda:1", False, "bf16"),
        ("auto", True, "bf16"),
        ("auto", False, "fp32"),
    ],
)
def test_numbers_are_bf16_on_a_gpu(device, sees, dtype, monkeypatch):
    monkeypatch.setattr("configs.model.sees_gpu", lambda: sees)
    assert RunSettings.of(prompt="a cat", device=device).engine.dtype == dtype
    assert RunSettings.of(prompt="a cat", device=device, dtype="fp64").engine.dtype == "fp64"
