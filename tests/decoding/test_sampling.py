"""The sampling distribution against numpy, and `ar` against a loop over transformers' model."""

import itertools

import numpy as np
import pytest
import torch
from fakes import codes, finished
from torch import Tensor
from transformers import ChameleonForConditionalGeneration, ChameleonModel

from configs.schema import MethodSettings, SamplingSettings
from decoding.images import Job
from decoding.noise import stream_key, uniform
from decoding.sampling import SamplingDistribution, choose
from scripts.tools.compare_transformers import transformers_decode

JOBS = [Job("a", "a cat", 11), Job("b", "two large dogs", 12)]
CASES = [
    SamplingDistribution(temperature=t, top_k=k, top_p=p, cfg=g)
    for t, k, p, g in itertools.product((0.0, 0.7, 1.0), (0, 1, 5, 99), (1.0, 0.6), (1.0, 3.0))
]


def direct(logits: np.ndarray, distribution: SamplingDistribution) -> np.ndarray:
    """The distribution of one position, rows (guidance, vocab), as it is documented."""
    scores = logits[0]
    if distribution.cfg != 1:
        scores = logits[1] + distribution.cfg * (logits[0] - logits[1])
    kept = list(range(len(scores)))
    if distribution.temperature > 0:
        scores = scores / distribution.temperature
        kept.sort(key=lambda v: (-scores[v], v))
        if 0 < distribution.top_k < len(kept):
            last = scores[kept[distribution.top_k - 1]]
            kept = [v for v in kept if scores[v] >= last]
        p = np.exp(scores[kept]) / np.exp(scores[kept]).sum()
        crossing = np.cumsum(p) >= distribution.top_p - 1e-12
        kept = kept[: int(crossing.argmax()) + 1]
    result = np.full(len(scores), -np.inf)
    result[kept] = scores[kept] - np.log(np.exp(scores[kept]).sum())
    return result


def draw(distribution: SamplingDistribution, step: float | None = None) -> Tensor:
    generator, size = torch.Generator().manual_seed(0), (2 * distribution.guidance, 3, 12)
    logits = torch.randn(size, dtype=torch.float64, generator=generator)
    return logits if step is None else (logits / step).round() * step


@pytest.mark.parametrize("distribution", CASES, ids=str)
@pytest.mark.parametrize("step", [None, 0.5], ids=["distinct", "ties"])
def test_distribution_is_the_documented_one(distribution, step) -> None:
    logits = draw(distribution, step)
    found = distribution(logits)
    # rows of an image and position side by side: (images, n, guidance, vocab)
    rows = logits.unflatten(0, (2, distribution.guidance)).transpose(1, 2).numpy()
    expected = np.array([[direct(position, distribution) for position in image] for image in rows])
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)


def test_precision_is_fp32_or_better() -> None:
    distribution = SamplingDistribution()
    for given in (torch.bfloat16, torch.float32, torch.float64):
        expected = torch.promote_types(given, torch.float32)
        assert distribution(draw(distribution).to(given)).dtype == expected
    rounded = draw(distribution).bfloat16()
    torch.testing.assert_close(distribution(rounded), distribution(rounded.float()))


@pytest.mark.parametrize("width", [6, 1], ids=["zeros", "greedy table"])
def test_ties_go_to_the_lowest_id(width) -> None:
    log_p = torch.full((2, 4, 6), -3.0)
    log_p[..., [2, 5]] = -1.0
    assert (choose(log_p, torch.zeros(2, 4, width)) == 2).all()


@pytest.fixture(scope="module")
def theirs(checkpoint) -> ChameleonModel:
    """Read by transformers: what we write is a Chameleon checkpoint for everyone else, too."""
    kind, given = ChameleonForConditionalGeneration, {"output_loading_info": True}
    model, report = kind.from_pretrained(checkpoint, dtype=torch.float64, **given)
    assert not report["unexpected_keys"] and not report["mismatched_keys"]
    assert all(key.startswith("model.vqmodel.") for key in report["missing_keys"])
    return model.model.eval()


SAMPLINGS = [{"temperature": t, "cfg": cfg} for t in (0.0, 1.0) for cfg in (1.0, 3.0)]
SAMPLINGS += [{"temperature": 0.8, "top_k": 7, "cfg": 2.5}]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_same_tokens_as_our_baseline(sampling, session, theirs) -> None:
    engine = session.open_engine(MethodSettings("ar"), SamplingSettings(**sampling))
    ours = finished(engine, JOBS)
    for job in JOBS:
        expected = transformers_decode(theirs, session.target, job, engine.distribution)
        assert torch.equal(expected, ours[job.id].codes)
        assert len(expected.unique()) > 1


def test_same_tokens_as_formulas_written_out(session, theirs) -> None:
    """Guidance, temperature, top-k and Gumbel-max by hand, one unpadded row at a time."""
    temperature, top_k, cfg, job = 0.8, 7, 2.5, JOBS[0]
    sampling = SamplingSettings(temperature=temperature, top_k=top_k, cfg=cfg)
    engine = session.open_engine(MethodSettings("ar"), sampling)
    target, first = session.target, session.target.vocab.first_id
    prompt = target.prompt(job.prompt, 2)
    starts = prompt.starts.tolist()
    rows = [ids[start:].tolist() for ids, start in zip(prompt.ids, starts, strict=True)]
    for position, code in enumerate(codes(engine, [job])[job.id]):
        with torch.no_grad():
            read = [theirs(input_ids=torch.tensor([row]), use_cache=False) for row in rows]
        c, u = (target.score(one.last_hidden_state)[0, -1] for one in read)
        scores = (u + cfg * (c - u)) / temperature
        kept = scores.sort(descending=True).indices[:top_k]
        p = scores[kept].exp() / scores[kept].exp().sum()
        key = stream_key(job.seed, "target")
        noise = -(-uniform(key, torch.tensor([position]), target.vocab.size)[0, kept].log()).log()
        assert int(kept[(p.log() + noise).argmax()]) == code
        for row in rows:
            row.append(code + first)
