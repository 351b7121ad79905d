"""The GPU's kernels that choose codes, in Triton's interpreter, against torch's operations."""

import os
from dataclasses import replace
from itertools import product

import pytest
import torch
from browser import ALL, only_in_all, thinned
from fakes import codes as codes_of
from torch import Tensor

from configs.methods import MethodSettings
from configs.model import SamplingSettings
from decoding import sampling
from decoding.images import Job
from decoding.sampling import SamplingDistribution
from decoding.verifiers.nodewise import Nodewise
from models.base import TransformerSpec
from models.transformer import Transformer
from runs.check.loaded import first_rows
from runs.methods import build_verifier
from support.kernels import running

choosing = pytest.importorskip("models.cuda.choosing", reason="needs Triton, torch's on Linux")
pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="with a GPU, scripts/gpu/check.sh runs them"
)
KERNELS = {"log_p_of": choosing.log_p_of, "best": choosing.best}
DISTRIBUTIONS = [
    SamplingDistribution(),
    SamplingDistribution(temperature=0.0, top_k=5),
    SamplingDistribution(top_k=20),
    SamplingDistribution(temperature=0.7, cfg=1),
    SamplingDistribution(top_p=0.8),
    SamplingDistribution(top_k=1),
    SamplingDistribution(temperature=1.3, top_k=30, top_p=0.6, cfg=0),
    SamplingDistribution(top_k=100, top_p=1e-9),
]


def logits_of(images: int, guidance: int, vocab: int, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(images * guidance, 3, vocab, generator=random)).half()


def both(distribution: SamplingDistribution, logits: Tensor) -> tuple[Tensor, Tensor]:
    with running(KERNELS):
        found = distribution(logits)
    return found, distribution(logits)


# a third has both vocabularies and every kind of distribution
@pytest.mark.parametrize(("distribution", "vocab"), thinned(product(DISTRIBUTIONS, [128, 100])))
def test_distributions_have_the_same_codes_and_nearly_the_same_values(distribution, vocab) -> None:
    found, wanted = both(distribution, logits_of(1, distribution.guidance, vocab))
    assert found.shape == wanted.shape and found.dtype == wanted.dtype
    assert torch.equal(found.isfinite(), wanted.isfinite())
    assert torch.allclose(found, wanted, rtol=0, atol=4e-6)


def test_ties_are_cut_as_torch_cuts_them() -> None:
    """Top-k keeps all that equal the last one; top-p the first ones, until their mass reaches p."""
    logits = torch.tensor([0.0, 2, -0.0, 2, 0, 2, 2, -3]).half()[None, None]
    for k, p in ((2, 1.0), (4, 1.0), (5, 1.0), (7, 1.0), (0, 0.1), (0, 0.3), (0, 0.9), (4, 0.5)):
        found, wanted = both(SamplingDistribution(top_k=k, top_p=p, cfg=1), logits)
        assert torch.equal(found.isfinite(), wanted.isfinite()), (k, p)
    equal = torch.zeros(1, 1, 64).half()
    for count in (1, 16, 33, 63):  # shares of 1/64 have no rounding
        found, wanted = both(SamplingDistribution(top_p=count / 64, cfg=1), equal)
        assert found.isfinite()[0, 0].tolist() == [code < count for code in range(64)]
        assert torch.equal(found, wanted)


def test_a_row_of_other_strides_and_another_of_nan() -> None:
    logits = logits_of(1, 2, 128)
    wider = torch.full((2, 5, 200), torch.nan).half()
    wider[:, 1:4, :128] = logits
    wider[0, 2, 7] = -torch.nan
    for distribution in (SamplingDistribution(), SamplingDistribution(top_k=9, top_p=0.7)):
        found, wanted = both(distribution, wider[:, 1:4, :128])
        assert torch.allclose(found, wanted, atol=4e-6, rtol=0, equal_nan=True)
        assert found.isnan().all(-1).tolist() == [[False, True, False]]


def values_of(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    "noise",
    {
        "none": None,
        "zeros": torch.zeros(2, 3, 1),
        "of every row": values_of(2, 3, 40, seed=1),
        "shared by an image's nodes": values_of(2, 1, 40, seed=1),
        "of some positions": values_of(2, 9, 40, seed=1)[:, 2:5],
    }.items(),
    ids=lambda case: case[0],
)
def test_the_best_codes_are_torchs(noise) -> None:
    log_p = values_of(2, 3, 40)
    for count in (1, 4):
        found, wanted = choosing.best(log_p, noise[1], count), sampling.best(log_p, noise[1], count)
        assert all(map(torch.equal, found, wanted)), count


def test_of_windows_and_parts_of_tables() -> None:
    log_q, noise = values_of(2, 5, 3, 40), values_of(2, 7, 40, seed=1)[:, :5, None]
    for part in (slice(None), slice(0, 2)):
        case = log_q[:, part], noise[:, part], 3
        assert all(map(torch.equal, choosing.best(*case), sampling.best(*case)))


def test_no_more_codes_come_than_there_are() -> None:
    case = values_of(1, 2, 9), None, 20
    assert all(map(torch.equal, choosing.best(*case), sampling.best(*case)))


def test_equal_codes_come_in_their_order_and_none_comes_twice() -> None:
    log_p = torch.full((1, 1, 6), -torch.inf)
    log_p[0, 0, [2, 4]] = -1.0
    tokens, values = choosing.best(log_p, None, 5)
    assert tokens.tolist() == [[[2, 4, 0, 1, 3]]]
    assert values[0, 0, :2].tolist() == [-1, -1] and (values[0, 0, 2:] == -torch.inf).all()


def test_nan_comes_first_as_with_torch() -> None:
    log_p = values_of(1, 2, 40)
    log_p[0, 1, 5] = torch.nan
    for count in (1, 3):
        found, wanted = choosing.best(log_p, None, count), sampling.best(log_p, None, count)
        assert torch.equal(found[0], wanted[0])
        assert torch.equal(found[1].isnan(), wanted[1].isnan())


@pytest.mark.parametrize("name", ["jacobi", pytest.param("block", marks=only_in_all)])
def test_methods_decode_the_tokens_that_they_decode_by_torch(name, session32, monkeypatch) -> None:
    short = replace(session32, target=first_rows(session32.target, 12 if ALL else 4))
    sampling = SamplingSettings(cfg=2.0, top_k=30, top_p=0.9)
    method = MethodSettings(name, **{"window": 3} if name == "jacobi" else {"nodes": 6})
    engine = short.open_engine(method, sampling, 1)
    jobs = [Job("0", "a red cat", 1), Job("1", "two boats", 2)]
    wanted = codes_of(engine, jobs)
    ran = []

    def counted(kernel_name):
        def run(*args):
            ran.append(kernel_name)
            return KERNELS[kernel_name](*args)

        return run

    monkeypatch.setattr(short.target.transformer, "kernels", {k: counted(k) for k in KERNELS})
    assert codes_of(engine, jobs) == wanted
    assert {*ran} == {*KERNELS}


def test_kernels_that_judge_are_built_once_and_with_a_rule_that_needs_them(
    monkeypatch, caplog
) -> None:
    """Where they cannot be compiled, the others run."""
    tried = []

    def fails(log_p: Tensor) -> None:
        tried.append(log_p)
        raise RuntimeError("out of resource: shared memory\nRequired: 300000")

    target = Transformer(TransformerSpec(8, 64, 64, 2, 1, 1, 8), 8).half()
    assert set(choosing.build(target)["judging"]()) == {"judge", "substitute"}
    monkeypatch.setattr(choosing.judging, "build", fails)
    kernels = choosing.build(target)
    for rule, count in (("exact", 0), ("rejection", 1), ("lantern_coupled", 1)):
        method, near = MethodSettings("eagle2", verifier=rule), torch.zeros(8, 7).int()
        verifier = build_verifier(method, near, kernels)
        assert not isinstance(verifier, Nodewise) and len(tried) == count
    assert caplog.messages == [
        "Drafts are judged on the host, which is slower: out of resource: shared memory"
    ]
