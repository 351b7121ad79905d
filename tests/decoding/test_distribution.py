"""The first tokens' joint distribution: engine against enumeration, controls that must fail.

Four codes, three tokens: 64 outcomes. The tests are deterministic: the seeds are fixed.
"""

import itertools
from collections.abc import Callable

import pytest
import torch
from browser import ALL
from fakes import finished, p_value
from small import Sizes, randomised
from torch import Tensor

from configs.schema import MethodSettings
from decoding import noise
from decoding.images import Job
from decoding.policies import static
from decoding.sampling import SamplingDistribution
from drafters.eagle import EagleHead
from models.base import Context, ImageGrid, ImageVocab, Layers, PromptRows, TransformerSpec
from models.transformer import Transformer
from runs.methods import build_engine

CODES, TOKENS = 4, 3
SEEDS = 4000 if ALL else 1000
SPEC = TransformerSpec(
    vocab=CODES + 2, hidden=16, intermediate=16, layers=1, heads=2, kv_heads=2, max_positions=8
)
PLAIN = SamplingDistribution(cfg=2.0)
SIZES = Sizes(spread=1.0)


class SmallTarget:
    """A prompt of tokens 0 and 1, then one row of three tokens out of four codes."""

    name, spec, grid, vocab = "small", SPEC, ImageGrid(1, TOKENS), ImageVocab(2, CODES)
    dtype, device = torch.float32, torch.device("cpu")

    def __init__(self):
        self.transformer = randomised(Transformer(SPEC, CODES), 3, SIZES)

    def prompt(self, text: str, guidance: int) -> PromptRows:
        ids, starts = torch.tensor([[0, 1], [0, 0]]), torch.tensor([0, 1])
        return PromptRows(ids[:guidance], starts[:guidance])

    def length(self, text: str) -> int:
        return 2

    def read(self, prompt: PromptRows, context: Context, layers: Layers = ()) -> Tensor:
        return self.features(prompt.ids, context, layers)

    def features(self, ids: Tensor, context: Context, layers: Layers = ()) -> Tensor:
        return self.transformer(ids, context, layers)

    def score(self, features: Tensor) -> Tensor:
        return self.transformer.score(features)


@pytest.fixture(scope="module")
def target() -> SmallTarget:
    return SmallTarget()


@pytest.fixture(scope="module")
def drafter() -> EagleHead:
    return randomised(EagleHead(SPEC), 4, SIZES)


def outcomes() -> Tensor:
    return torch.tensor(list(itertools.product(range(CODES), repeat=TOKENS)))  # (64, 3)


@torch.inference_mode()
def enumerated(target: SmallTarget, distribution: SamplingDistribution) -> Tensor:
    """The probabilities (64,) of all images, from uncached forward passes of unpadded rows."""
    codes, logits = outcomes(), []
    for prompt in ([0, 1], [0]):
        ids = torch.cat([torch.tensor(prompt).expand(len(codes), -1), codes + 2], 1)
        positions = torch.arange(ids.shape[1]).expand_as(ids)
        logits.append(target.score(target.features(ids, Context(positions)))[:, -1 - TOKENS : -1])
    log_p = distribution(torch.stack(logits, 1).flatten(0, 1))  # (64, 3, 4)
    return log_p.gather(2, codes[..., None]).sum((1, 2)).double().exp()


Sampled = Callable[..., Tensor]


@pytest.fixture
def sampled(target, drafter) -> Sampled:
    """How often (64,) the engine makes each image."""

    def counts(method: MethodSettings, distribution: SamplingDistribution = PLAIN) -> Tensor:
        engine = build_engine(target, drafter, distribution, method, 500)
        jobs = (Job(str(i), "", noise.image_seed(0, "law", sample=i)) for i in range(SEEDS))
        images = torch.stack([image.codes for image in finished(engine, jobs).values()])
        index = (images * torch.tensor([CODES**2, CODES, 1])).sum(1)
        return torch.bincount(index, minlength=CODES**TOKENS).double()

    return counts


@pytest.fixture(scope="module")
def p(target) -> Tensor:
    return enumerated(target, PLAIN)


def test_the_distribution_to_compare_with_is_worth_comparing(p) -> None:
    assert abs(float(p.sum()) - 1) < 1e-5
    assert 0.02 < float(p.max()) < 0.5 and int((p * SEEDS >= 5).sum()) > 20


METHODS = {
    "ranked by q": MethodSettings("eagle2", proposal="topk", depth=2, width=2, nodes=4),
    "coupled": MethodSettings("adt", nodes=3),
    "rejection": MethodSettings("adt", proposal="sampled", nodes=3, verifier="rejection"),
    "SJD": MethodSettings("jacobi", proposal="sampled", verifier="sampled", window=2, guess="left"),
    "block": MethodSettings("jacobi", proposal="sampled", verifier="block", window=2),
    # in these trees a refused position is judged again, by the next sibling
    "sampled": MethodSettings("static", proposal="sampled", verifier="sampled"),
    "traversal": MethodSettings("static", proposal="sampled", verifier="traversal"),
    "spectr": MethodSettings("static", proposal="sampled", verifier="spectr"),
}


@pytest.mark.parametrize("name", METHODS)
def test_images_have_the_targets_distribution(name, sampled, p, monkeypatch) -> None:
    monkeypatch.setitem(static.NAMED_TREES, "mc_sim_7b_63", "root:2 0:2 1:1")
    assert p_value(sampled(METHODS[name]), p) > 1e-4


def test_plain_decoding_has_the_targets_distribution(sampled, p) -> None:
    """And not the product of the same margins: the test sees dependence between positions."""
    counts = sampled(MethodSettings("ar"))
    assert p_value(counts, p) > 1e-4
    joint = p.view(CODES, CODES, CODES)
    margins = torch.einsum("i,j,k->ijk", joint.sum((1, 2)), joint.sum((0, 2)), joint.sum((0, 1)))
    assert p_value(counts, margins.flatten()) < 1e-8


def test_truncated_distributions_too(sampled, target) -> None:
    distribution = SamplingDistribution(temperature=1.3, top_k=3, top_p=0.9, cfg=2.0)
    counts = sampled(METHODS["coupled"], distribution)
    assert p_value(counts, enumerated(target, distribution)) > 1e-4


def test_one_noise_row_for_all_positions_is_found_out(sampled, p, monkeypatch) -> None:
    def reused(seed: int, role: str, positions: Tensor, width: int) -> Tensor:
        return original(seed, role, positions * 0, width)

    original = noise.gumbel
    monkeypatch.setattr("decoding.positional_noise.gumbel", reused)
    assert p_value(sampled(METHODS["coupled"]), p) < 1e-8


def test_a_biased_temperature_is_found_out(sampled, p) -> None:
    # few images show a greater bias only
    biased = SamplingDistribution(temperature=1.2 if ALL else 1.5, cfg=2.0)
    assert p_value(sampled(METHODS["coupled"], biased), p) < 1e-8
