"""The LAYOUTS of a module, and transformers' class with the same weights."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from families import SMALL, Once

from models.files.tensors import read_tensors
from models.files.weights import weight_files
from runs.session import Session

CLASSES = {
    "emu3": transformers.Emu3ForConditionalGeneration,
    "emu3_5": transformers.Qwen3ForCausalLM,
    "janus_pro": transformers.JanusForConditionalGeneration,
    "liquid": transformers.GemmaForCausalLM,
    "lumina_mgpt": transformers.ChameleonForConditionalGeneration,
}


@pytest.fixture
def folder(request, originals, tmp_path) -> Path:
    """A copy of the layout `name`, with the parts next to it, that a test may change."""
    original = originals[request.getfixturevalue("name")]
    return Path(shutil.copytree(original.parent, tmp_path / "copy")) / original.name


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    given = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if "family" in metafunc.fixturenames and "family" not in given:
        metafunc.parametrize("family", metafunc.module.LAYOUTS, indirect=True, scope="module")


@pytest.fixture(scope="module")
def family(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def original(family, originals) -> Path:
    """The checkpoint; tests read it only."""
    return originals[family]


@pytest.fixture(scope="module")
def session(family, opened) -> Session:
    return opened[family]


@pytest.fixture(scope="session")
def oracles(originals) -> dict[str, torch.nn.Module]:
    return Once(lambda model: oracle(model, originals[model]))


@pytest.fixture(scope="module")
def theirs(family, oracles) -> torch.nn.Module:
    """The oracle in fp64, from files of the layout that transformers reads."""
    return oracles[SMALL[family].model]


def oracle(model: str, folder: Path) -> torch.nn.Module:
    if model == "lumina_mgpt2":
        return chameleon(folder).double().eval()
    given = {}
    if model == "emu3_5":
        entries = json.loads((folder / "config.json").read_text())
        entries.pop("model_type")  # its authors'
        given["config"] = transformers.Qwen3Config(**entries)
    return CLASSES[model].from_pretrained(folder, dtype=torch.float64, **given).eval()


def chameleon(folder: Path) -> transformers.ChameleonForConditionalGeneration:
    """Return the class with the weights of a folder that has one norm for all heads."""
    config = transformers.ChameleonConfig.from_pretrained(folder)
    model = transformers.ChameleonForConditionalGeneration(config)
    state = {
        key: x.expand_as(model.get_parameter(key)) for key, x in read_tensors(weight_files(folder))
    }
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and all(key.startswith("model.vqmodel.") for key in missing)
    return model
