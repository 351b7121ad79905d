"""The joint distribution of the first tokens: engine against enumeration (chi-square), with
controls that must fail.

Four codes, three tokens: 64 outcomes, 2,000 seeds. The tests are deterministic: the seeds are
fixed.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from fakes import p_value
from small import Sizes, randomised
from torch import Tensor

from configs.schema import MethodSettings
from decoding import noise
from decoding.images import Job
from decoding.sampling import SamplingDistribution
from drafters.eagle import EagleHead
from drafters.loading import LoadedDrafter
from models.base import Context, ImageGrid, ImageVocab, Layers, PromptRows, TransformerSpec
from models.transformer import Transformer
from runs.methods import build_engine

CODES, TOKENS, SEEDS = 4, 3, 2000
SPEC = TransformerSpec(
    vocab=CODES + 2, hidden=16, intermediate=16, layers=1, heads=2, kv_heads=2, max_positions=8
)
PLAIN = SamplingDistribution(cfg=2.0)
SIZES = Sizes(spread=1.0)


class SmallTarget:
    """The smallest target: prompt tokens 0 and 1, then one row of three tokens out of four
    codes.
    """

    name, spec, grid, vocab = "small", SPEC, ImageGrid(1, TOKENS), ImageVocab(2, CODES)
    dtype, device = torch.float32, torch.device("cpu")

    def __init__(self):
        self.transformer = randomised(Transformer(SPEC, CODES), 3, SIZES)

    def prompt(self, text: str, guidance: int) -> PromptRows:
        return PromptRows(
            torch.tensor([[0, 1], [0, 0]])[:guidance], torch.tensor([0, 1])[:guidance]
        )

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
def drafter() -> LoadedDrafter:
    return LoadedDrafter(randomised(EagleHead(SPEC), 4, SIZES))


def outcomes() -> Tensor:
    return torch.tensor(list(itertools.product(range(CODES), repeat=TOKENS)))  # (64, 3)


@torch.inference_mode()
def enumerated(target: SmallTarget, distribution: SamplingDistribution) -> Tensor:
    """The probabilities (64,) of all images, from uncached forward passes of unpadded rows."""
    codes = outcomes()
    rows = [
        torch.cat([torch.tensor(prompt).expand(len(codes), -1), codes + 2], 1)
        for prompt in ([0, 1], [0])
    ]
    logits = []
    for ids in rows:
        positions = torch.arange(ids.shape[1]).expand_as(ids)
        logits.append(target.score(target.features(ids, Context(positions)))[:, -1 - TOKENS : -1])
    log_p = distribution(torch.stack(logits, 1).flatten(0, 1))  # (64, 3, 4)
    return log_p.gather(2, codes[..., None]).sum((1, 2)).double().exp()


def sampled(
    target: SmallTarget,
    drafter: LoadedDrafter,
    distribution: SamplingDistribution,
    method: MethodSettings,
) -> Tensor:
    """How often (64,) the engine makes each image."""
    engine = build_engine(target, drafter, distribution, method, 500)
    jobs = (Job(str(i), "", noise.image_seed(0, "law", sample=i)) for i in range(SEEDS))
    images = torch.stack([image.codes for step in engine.generate(jobs) for image in step.finished])
    index = (images * torch.tensor([CODES**2, CODES, 1])).sum(1)
    return torch.bincount(index, minlength=CODES**TOKENS).double()


def test_the_distribution_to_compare_with_is_worth_comparing(target) -> None:
    p = enumerated(target, PLAIN)
    assert abs(float(p.sum()) - 1) < 1e-5
    assert 0.02 < float(p.max()) < 0.5 and int((p * SEEDS >= 5).sum()) > 20


METHODS = {
    "ranked by q": MethodSettings(method="eagle2", proposal="topk", depth=2, width=2, nodes=4),
    "coupled": MethodSettings(method="adt", nodes=3),
    "rejection": MethodSettings(method="adt", proposal="sampled", nodes=3, verifier="rejection"),
    "sampled": MethodSettings(method="static", proposal="sampled", verifier="sampled"),
    "SJD": MethodSettings(
        method="jacobi", proposal="sampled", verifier="sampled", window=2, guess="left"
    ),
}


@pytest.mark.parametrize("name", METHODS)
def test_images_have_the_targets_distribution(name, target, drafter) -> None:
    assert p_value(sampled(target, drafter, PLAIN, METHODS[name]), enumerated(target, PLAIN)) > 1e-4


def test_plain_decoding_has_the_targets_distribution(target, drafter) -> None:
    """And not the product of the same margins: the test sees dependence between positions."""
    counts, p = (
        sampled(target, drafter, PLAIN, MethodSettings(method="ar")),
        enumerated(target, PLAIN),
    )
    assert p_value(counts, p) > 1e-4
    joint = p.view(CODES, CODES, CODES)
    margins = torch.einsum("i,j,k->ijk", joint.sum((1, 2)), joint.sum((0, 2)), joint.sum((0, 1)))
    assert p_value(counts, margins.flatten()) < 1e-8


def test_truncated_distributions_too(target, drafter) -> None:
    distribution = SamplingDistribution(temperature=1.3, top_k=3, top_p=0.9, cfg=2.0)
    counts, p = (
        sampled(target, drafter, distribution, METHODS["coupled"]),
        enumerated(target, distribution),
    )
    assert not counts[p == 0].any()
    assert p_value(counts[p > 0], p[p > 0]) > 1e-4


def test_one_noise_row_for_all_positions_is_found_out(target, drafter, monkeypatch) -> None:
    def reused(seed: int, role: str, positions: Tensor, width: int) -> Tensor:
        return original(seed, role, positions * 0, width)

    original = noise.gumbel
    monkeypatch.setattr(noise, "gumbel", reused)
    assert (
        p_value(
            sampled(target, drafter, PLAIN, METHODS["coupled"]),
            enumerated(target, PLAIN),
        )
        < 1e-8
    )


def test_a_biased_temperature_is_found_out(target, drafter) -> None:
    biased = SamplingDistribution(temperature=1.2, cfg=2.0)
    assert (
        p_value(sampled(target, drafter, biased, METHODS["coupled"]), enumerated(target, PLAIN))
        < 1e-8
    )
