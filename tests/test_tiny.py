"""The shipped model as a user runs it: images follow prompts, and drafts change no token."""

import numpy as np
import pytest
import torch
from browser import ALL
from fakes import finished

from configs.methods import AdtSettings, MethodSettings
from configs.model import EngineSettings
from configs.schema import ROOT
from decoding.images import FinishedImage, Job
from decoding.seeds import image_seed
from runs.exactness import compare
from runs.session import Session, open_session
from scenes.attribute_classifier import AttributeClassifier, prompt_accuracy
from scenes.captions import caption
from scenes.scene import sample_scene

TINY = ROOT / "ckpts" / "tiny"
Images = dict[str, list[FinishedImage]]
INDICES = range(300, 308 if ALL else 302)  # test scenes


@pytest.fixture(scope="module")
def session() -> Session:
    return open_session(EngineSettings(batch_size=4, device="cpu"))


def decode(session: Session, method: MethodSettings, prompts: list[str]) -> list[FinishedImage]:
    jobs = [Job(str(i), prompt, image_seed(0, prompt)) for i, prompt in enumerate(prompts)]
    images = finished(session.open_engine(method), jobs)
    return [images[job.id] for job in jobs]


@pytest.fixture(scope="module")
def images(session: Session) -> Images:
    prompts = [caption(sample_scene("test", index), index) for index in INDICES]
    methods = {
        "ar": MethodSettings(method="ar"),
        "coupled": MethodSettings(method="adt"),
        "topk": MethodSettings(method="adt", proposal="topk", own=AdtSettings()),
    }
    return {name: decode(session, method, prompts) for name, method in methods.items()}


def test_it_fits_into_64_megabytes() -> None:
    assert sum(file.stat().st_size for file in TINY.rglob("*") if file.is_file()) <= 64 * 2**20


def test_drafting_changes_no_token(session: Session, images: Images) -> None:
    distribution = session.open_engine().distribution
    for name in ("coupled", "topk"):
        assert not compare(session.target, distribution, images["ar"], images[name]).wrong


def test_drafts_are_accepted_and_the_noise_helps(images: Images) -> None:
    tau = {name: np.mean([image.tau for image in found]) for name, found in images.items()}
    assert tau["ar"] == 1 and tau["topk"] > 1.15 and tau["coupled"] > tau["topk"] + 0.3


def test_backgrounds_are_what_the_prompts_say(session: Session, images: Images) -> None:
    pixels = session.target.to_image(torch.stack([image.codes for image in images["ar"]]))
    scenes = [sample_scene("test", index).attributes() for index in INDICES]
    classifier = AttributeClassifier.load(TINY / "attributes.safetensors")
    found = prompt_accuracy(pixels.numpy(), scenes, classifier)
    assert found["background"] >= 0.5, found
