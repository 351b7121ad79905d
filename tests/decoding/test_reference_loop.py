"""Our `ar` against the same loop over transformers' ChameleonModel, in fp64: the same tokens."""

from __future__ import annotations

import pytest
import torch
from fakes import codes, finished
from transformers import ChameleonForConditionalGeneration, ChameleonModel

from configs.schema import MethodSettings, SamplingSettings
from decoding.images import Job
from decoding.noise import stream_key, uniform
from scripts.tools.compare_transformers import transformers_decode

JOBS = [Job("a", "a cat", 11), Job("b", "two large dogs", 12)]


@pytest.fixture(scope="module")
def theirs(checkpoint) -> ChameleonModel:
    kind = ChameleonForConditionalGeneration
    return kind.from_pretrained(checkpoint, dtype=torch.float64).model.eval()


@pytest.mark.parametrize("cfg", [1.0, 3.0])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_same_tokens_as_our_baseline(temperature, cfg, session, theirs) -> None:
    sampling = SamplingSettings(temperature=temperature, cfg=cfg)
    engine = session.open_engine(MethodSettings("ar"), sampling)
    ours = finished(engine, JOBS)
    for job in JOBS:
        expected = transformers_decode(theirs, session.target, job, engine.distribution)
        assert torch.equal(expected, ours[job.id].codes)
        assert len(expected.unique()) > 1


def test_same_tokens_as_formulas_written_out(session, theirs) -> None:
    """Guidance, temperature, top-k and the Gumbel-max choice by hand, one unpadded row after the
    other.
    """
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
