"""Flags and methods of earlier versions are refused in one line that says what to use instead."""

import hashlib
import json
import re

import pytest

from configs.command_line import listed_method, read_recipe, read_words
from configs.commands import COMMANDS, flags_of
from configs.fields import SettingsError, parse, settings_dict
from configs.gone import GONE_DRAFTERS, GONE_FLAGS, GONE_METHODS, RENAMED_METHODS, STILL_SO
from configs.help import command_help
from configs.method_table import CONTINUED, METHODS
from configs.methods import MethodSettings
from configs.schema import ROOT, RunSettings
from drafters.kinds import kind_of
from runs.commands import run_settings


@pytest.mark.parametrize("name", GONE_FLAGS)
def test_a_gone_flag_says_what_to_use(name: str) -> None:
    for command in COMMANDS:
        if name not in flags_of(command):
            message = f"--{name}: {command} has no such flag; {GONE_FLAGS[name]}"
            with pytest.raises(SettingsError, match=f"^{re.escape(message)}$"):
                read_words(command, [f"--{name}", "1"])


@pytest.mark.parametrize("name", GONE_METHODS)
def test_a_gone_method_says_what_to_use(name: str) -> None:
    assert name not in METHODS
    hint = re.escape(f"{name} is gone; {GONE_METHODS[name]}")
    with pytest.raises(SettingsError, match=f"^--method: {hint}$"):
        MethodSettings(name)
    with pytest.raises(SettingsError, match=f"^--methods: {hint}$"):
        listed_method(f"{name}:nodes=4", {})


@pytest.mark.parametrize("kind", GONE_DRAFTERS)
def test_a_gone_kind_of_head_says_what_to_use(kind: str) -> None:
    """On the command line of `train_drafter`, and in the folder of an old head."""
    hint = f"{kind} is gone; {GONE_DRAFTERS[kind]}"
    with pytest.raises(SettingsError, match=re.escape(f"--drafter: {hint}")):
        parse(flags_of("train_drafter")["drafter"], "drafter", kind)
    with pytest.raises(ValueError, match=re.escape(f"head/config.json: drafter {hint}")):
        kind_of({"drafter": kind}, "head/config.json")


@pytest.mark.parametrize("old", RENAMED_METHODS)
def test_a_renamed_method_is_the_same_in_every_form_and_continues_its_folders(old: str) -> None:
    name = RENAMED_METHODS[old]
    assert MethodSettings(old) == MethodSettings(name) == listed_method(old, {})
    run = RunSettings(prompt="a cat", method=MethodSettings(name))
    assert run.identity()["method"] == old and run.method.method == name
    assert command_help("generate_images", old) == command_help("generate_images", name)


@pytest.mark.parametrize("name", STILL_SO)
def test_an_old_recipe_may_ask_for_what_happens_anyway(name: str, tmp_path) -> None:
    recipe = tmp_path / "old.yaml"
    for value in STILL_SO[name]:
        recipe.write_text(f"cfg: 4\n{name}: {value}\n")
        assert read_recipe(str(recipe), "generate_images") == {"cfg": 4.0}
    recipe.write_text(f"cfg: 4\n{name}: other\n")
    with pytest.raises(SettingsError, match=f"{name}: generate_images has no such flag; "):
        read_recipe(str(recipe), "generate_images")


TEXT = (ROOT / "tests/data/identities.jsonl").read_text()
CASES = [json.loads(line) for line in TEXT.replace("{ROOT}", str(ROOT)).splitlines()]


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(case.get("words", ["llamagen"])))
def test_old_run_folders_are_continued(case, monkeypatch):
    monkeypatch.chdir(ROOT)
    identity = case["identity"]
    if "words" in case:
        settings = run_settings(read_words("generate_images", case["words"]))
    else:
        settings = RunSettings(prompt="a cat", model=case["model"], model_path="owner/LlamaGen")
    assert settings.identity() == identity
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    folder = f"{case['settings'].pop('output_dir')}_{digest[:8]}"
    gone = {name: identity[name] for name in ("size", "prices", "calibration")}
    now = settings_dict(settings)
    assert now.keys().isdisjoint(gone)
    if settings.method.method in CONTINUED:
        assert (now.pop("window"), identity["window"]) == (None, 16)
        gone["window"] = 16
    method = RENAMED_METHODS.get(identity["method"], identity["method"])
    assert now | gone == identity | case["settings"] | {"method": method, "output_dir": folder}
