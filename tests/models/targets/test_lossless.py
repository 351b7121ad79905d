"""Lossless rules with every method and proposal repeat plain decoding's tokens in eight families,
in fp64: across row ends (Emu3, Emu3.5, Lumina-mGPT 2.0) and into a second grid (GLM-Image).
"""

from collections.abc import Callable
from functools import cache
from itertools import product

import pytest
import torch
from browser import thinned
from families import SMALL, decoded
from torch import Tensor

from configs.methods import METHODS, MethodSettings
from configs.rules import PROPOSALS, RULES
from configs.sampling import SamplingSettings
from runs.session import Session

FAMILIES = (
    "janus_pro",
    "emu3",
    "emu3_5",
    "liquid",
    "lumina_mgpt2",
    "glm_image",
    "image_gpt",
    "llamagen",
)
CASES = [
    (name, method, proposal)
    for name, rule in RULES.items()
    if rule.lossless
    for method, entry in METHODS.items()
    for proposal in PROPOSALS
    if entry.speculative and rule.fits(method, proposal)
]
Images = dict[float, list[Tensor]]


@pytest.fixture(scope="module")
def opened(tmp_path_factory) -> Callable[[str], tuple[Session, Images]]:
    """Opens a family once; a fixture of each family would be made anew for every case."""

    @cache
    def open_family(model: str) -> tuple[Session, Images]:
        small = SMALL[model]
        session = small.open(small.settings(small.write(tmp_path_factory.mktemp("lossless"))))
        plain = {t: decoded(session, MethodSettings("ar"), at(session, t)) for t in (0.0, 1.0)}
        assert not all(map(torch.equal, plain[0.0], plain[1.0]))
        return session, plain

    return open_family


def at(session: Session, temperature: float) -> SamplingSettings:
    return SamplingSettings(cfg=session.settings.sampling.cfg, temperature=temperature)


@pytest.mark.parametrize(("model", "case"), thinned(product(FAMILIES, CASES)), ids=str)
def test_tokens_are_those_of_plain_decoding(model, case, opened) -> None:
    verifier, name, proposal = case
    session, plain = opened(model)
    method = MethodSettings(name, verifier=verifier, proposal=proposal)
    found = [t for t in (0.0, 1.0) if method.same_tokens(t)]
    assert found == ([0.0, 1.0] if verifier == "exact" else [0.0])
    for temperature in found:
        images = decoded(session, method, at(session, temperature))
        assert all(map(torch.equal, images, plain[temperature])), temperature
