"""The first tokens' joint distribution: engine against enumeration, controls that must fail.

Four codes, the first three tokens: 64 outcomes. The tests are deterministic: the seeds are fixed.
"""

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from unittest.mock import patch

import pytest
import torch
from browser import ALL, only_in_all
from fakes import finished
from small import small_settings
from torch import Tensor

from configs import methods
from configs.methods import TREES
from configs.rules import RULES
from configs.schema import MethodSettings
from decoding import noise
from decoding.images import Job
from decoding.sampling import SamplingDistribution
from decoding.seeds import image_seed
from models.base import Context
from models.target import TargetModel
from runs.methods import build_engine
from runs.session import Session, open_session
from scripts.checkpoints.chameleon import Sizes, write_checkpoint
from scripts.rules.rounds import outcome_counts
from scripts.rules.statistics import p_value

CODES, TOKENS = 4, 3
SEEDS = 4000 if ALL else 1000
LAW = SamplingDistribution(cfg=2.0)


@pytest.fixture(scope="module")
def session(tmp_path_factory) -> Session:
    """Images of 2 x 2 tokens, of which the first three are compared."""
    sizes = Sizes(side=2, codes=CODES, hidden=16, layers=1)
    folder = write_checkpoint(tmp_path_factory.mktemp("law") / "checkpoint", sizes, seed=1)
    return open_session(small_settings(folder, "fp32"))


@torch.inference_mode()
def enumerated(target: TargetModel, distribution: SamplingDistribution) -> Tensor:
    """The probabilities (64,) of all outcomes, from uncached forward passes of unpadded rows."""
    codes = torch.cartesian_prod(*[torch.arange(CODES)] * TOKENS)  # (64, 3)
    logits, prompt = [], target.prompt("", 2)
    for row, start in zip(prompt.ids, prompt.starts.tolist(), strict=True):
        code_ids = codes + target.vocab.first_id
        ids = torch.cat([row[start:].expand(len(codes), -1), code_ids], 1)
        positions = torch.arange(ids.shape[1]).expand_as(ids)
        logits.append(target.score(target.features(ids, Context(positions)))[:, -1 - TOKENS : -1])
    log_p = distribution(torch.stack(logits, 1).flatten(0, 1))  # (64, 3, 4)
    return log_p.gather(2, codes[..., None]).sum((1, 2)).double().exp()


Sampled = Callable[..., Tensor]


@pytest.fixture(scope="module")
def sampled(session) -> Sampled:
    """How often (64,) the engine's images begin with each outcome."""

    def counts(method: MethodSettings, distribution: SamplingDistribution = LAW) -> Tensor:
        engine = build_engine(session.target, session.drafter, distribution, method, 500)
        jobs = (Job(str(i), "", image_seed(0, "law", sample=i)) for i in range(SEEDS))
        images = [image.codes[:TOKENS] for image in finished(engine, jobs).values()]
        return outcome_counts(torch.stack(images), CODES)

    return counts


@pytest.fixture(scope="module")
def p(session) -> Tensor:
    return enumerated(session.target, LAW)


def test_the_distribution_to_compare_with_is_worth_comparing(p) -> None:
    assert abs(float(p.sum()) - 1) < 1e-5
    assert 0.02 < float(p.max()) < 0.5 and int((p * SEEDS >= 5).sum()) > 20


METHODS = {
    "ranked by q": MethodSettings("eagle2", proposal="topk", depth=2, width=2, nodes=4),
    "coupled": MethodSettings("adt", nodes=3),
    "rejection": MethodSettings("adt", proposal="sampled", nodes=3, verifier="rejection"),
    "SJD": MethodSettings("jacobi", proposal="sampled", verifier="sampled", window=2, guess="left"),
    "block_verification": MethodSettings(
        "jacobi", proposal="sampled", verifier="block_verification", window=2
    ),
    # in these trees a refused position is judged again, by the next sibling
    "sampled": MethodSettings("static", proposal="sampled", verifier="sampled"),
    "traversal": MethodSettings("static", proposal="sampled", verifier="traversal"),
    "spectr": MethodSettings("static", proposal="sampled", verifier="spectr"),
}


def test_coupled_images_have_the_targets_distribution(sampled, p, session) -> None:
    """And not that of another temperature; few images tell a greater difference only."""
    coupled = sampled(METHODS["coupled"])
    assert p_value(coupled, p) > 1e-4
    warmer = SamplingDistribution(temperature=1.2 if ALL else 1.5, cfg=2.0)
    assert p_value(coupled, enumerated(session.target, warmer)) < 1e-8


# the other rules are enumerated as well
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n == "SJD" else only_in_all) for n in METHODS if n != "coupled"],
)
def test_images_have_the_targets_distribution(name, sampled, p, monkeypatch) -> None:
    monkeypatch.setitem(TREES, "mc_sim_7b_63", "root:2 0:2 1:1")
    assert p_value(sampled(METHODS[name]), p) > 1e-4


@pytest.fixture
def plugins() -> Iterator[None]:
    """What the plugins register is forgotten afterwards."""
    names = "scripts.rules.scd", "scripts.rules.pac"
    with patch.dict(methods.METHODS), patch.dict(RULES):
        for name in names:
            import_module(name)
        yield
    for name in names:
        sys.modules.pop(name)


@pytest.mark.parametrize(
    ("name", "size"), [("scd", {"window": 3}), ("pac_repaired", {"nodes": 13})]
)
def test_methods_of_plugins_have_it_too(name, size, plugins, sampled, p) -> None:
    method = MethodSettings(name, verifier=name, **size)
    assert method.proposal == "sampled" and p_value(sampled(method), p) > 1e-4


def test_plain_decoding_has_the_targets_distribution(sampled, p) -> None:
    """And not the product of the same margins: the test sees dependence between positions."""
    counts = sampled(MethodSettings("ar"))
    assert p_value(counts, p) > 1e-4
    joint = p.view(CODES, CODES, CODES)
    margins = torch.einsum("i,j,k->ijk", joint.sum((1, 2)), joint.sum((0, 2)), joint.sum((0, 1)))
    assert p_value(counts, margins.flatten()) < 1e-8


def test_truncated_distributions_too(sampled, session) -> None:
    distribution = SamplingDistribution(temperature=1.3, top_k=3, top_p=0.9, cfg=2.0)
    counts = sampled(METHODS["coupled"], distribution)
    assert p_value(counts, enumerated(session.target, distribution)) > 1e-4


def test_one_noise_row_for_all_positions_is_found_out(sampled, p, monkeypatch) -> None:
    def reused(seed: int, role: str, positions: Tensor, width: int) -> Tensor:
        return original(seed, role, positions * 0, width)

    original = noise.gumbel
    monkeypatch.setattr("decoding.noise_table.gumbel", reused)
    assert p_value(sampled(METHODS["coupled"]), p) < 1e-8
