"""Run folders made before are found and continued: their identity is that of today's settings.

tests/data/identities.jsonl holds, for varied command lines, the identity of the run and those of
its settings that differ from it or are no part of it, as revision 9f14fc4 made them; {ROOT} stands
for the repository. A folder's name ends in the first 8 digits of the identity's hash.
"""

import hashlib
import json

import pytest

from configs.command_line import read_words
from configs.fields import settings_dict
from configs.gone import RENAMED_METHODS
from configs.schema import ROOT, RunSettings
from runs.commands import run_settings

TEXT = (ROOT / "tests/data/identities.jsonl").read_text()
CASES = [json.loads(line) for line in TEXT.replace("{ROOT}", str(ROOT)).splitlines()]


def settings_of(case: dict) -> RunSettings:
    if "words" in case:
        return run_settings(read_words("generate_images", case["words"]))
    return RunSettings(prompt="a cat", model=case["model"], model_path="owner/LlamaGen")


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(case.get("words", ["llamagen"])))
def test_old_run_folders_are_continued(case, monkeypatch):
    monkeypatch.chdir(ROOT)
    settings, identity = settings_of(case), case["identity"]
    assert settings.identity() == identity
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    folder = f"{case['settings'].pop('output_dir')}_{digest[:8]}"
    gone = {name: identity[name] for name in ("size", "prices")}
    now = settings_dict(settings)
    assert now.keys().isdisjoint(gone)
    method = RENAMED_METHODS.get(identity["method"], identity["method"])
    assert now | gone == identity | case["settings"] | {"method": method, "output_dir": folder}
