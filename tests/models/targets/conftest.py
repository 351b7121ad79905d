"""Small checkpoints of the LAYOUTS of a module, and transformers' class with the same weights."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from families import SMALL, Small

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


@pytest.fixture(scope="session")
def originals(tmp_path_factory) -> dict[str, Path]:
    """Whole folders by layout, each in a folder of its own; tests read them only."""
    return {name: small.write(tmp_path_factory.mktemp("family")) for name, small in SMALL.items()}


@pytest.fixture
def folder(request, originals, tmp_path) -> Path:
    """A copy of the layout `name`, with the parts next to it, that a test may change."""
    original = originals[request.getfixturevalue("name")]
    return Path(shutil.copytree(original.parent, tmp_path / "copy")) / original.name


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "family" in metafunc.fixturenames:
        metafunc.parametrize("family", metafunc.module.LAYOUTS, indirect=True, scope="module")


@pytest.fixture(scope="module")
def family(request) -> Small:
    return SMALL[request.param]


@pytest.fixture(scope="module")
def original(family, tmp_path_factory) -> Path:
    """The checkpoint; tests read it only."""
    return family.write(tmp_path_factory.mktemp("family"))


@pytest.fixture(scope="module")
def session(family, original) -> Session:
    return family.open(family.settings(original))


@pytest.fixture(scope="module")
def theirs(family, tmp_path_factory) -> torch.nn.Module:
    """The oracle in fp64, from files of the layout that transformers reads."""
    small = SMALL[family.model]
    folder = small.write(tmp_path_factory.mktemp("theirs"))
    if family.model == "lumina_mgpt2":
        return chameleon(folder).double().eval()
    given = {}
    if family.model == "emu3_5":
        entries = json.loads((folder / "config.json").read_text())
        entries.pop("model_type")  # its authors'
        given["config"] = transformers.Qwen3Config(**entries)
    model = CLASSES[family.model].from_pretrained(folder, dtype=torch.float64, **given)
    return model.eval()


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
