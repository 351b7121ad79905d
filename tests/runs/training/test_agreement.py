"""Hits and calibrations are of the distributions that a tree drafts from."""

import pytest
import torch

from configs.methods import MethodSettings
from configs.schema import RunSettings
from decoding.images import Job
from decoding.noise import gumbel
from drafters.training.agreement import draft_distributions
from drafters.training.rows import target_rows
from runs.session import open_session


@torch.inference_mode()
@pytest.mark.parametrize("depth", [1, 2])
def test_a_chain_is_accepted_where_the_fitted_distributions_say(checkpoint, depth) -> None:
    chain = MethodSettings(method="eagle2", depth=depth, width=1, nodes=depth)
    session = open_session(
        RunSettings(prompt="a", model_path=str(checkpoint), dtype="fp64", method=chain)
    )
    engine = session.open_engine()
    (image,) = [
        image for step in engine.generate([Job("0", "a red dot", 5)]) for image in step.finished
    ]
    prompt = session.target.prompt(image.job.prompt, engine.distribution.guidance)
    head = session.drafter.network
    rows = target_rows(session.target, prompt, image.codes[None], head.spec.target_layers)
    levels = draft_distributions(session.target, head, rows, engine.distribution, depth)
    positions = torch.arange(1, len(image.codes))
    noise = gumbel(image.job.seed, "target", positions, session.target.vocab.size).double()
    hits = {}  # number of the token, depth at which it is drafted -> whether it is drafted right
    for level, (log_q,) in enumerate(levels):
        drafted = (log_q + noise[level:]).argmax(-1)
        for number, hit in enumerate((drafted == image.codes[level + 1 :]).tolist(), level + 1):
            hits[number, level] = hit
    number, rounds, last = 1, 0, len(image.codes) - 1
    while number <= last:
        levels = range(min(depth, last - number))
        accepted = next((level for level in levels if not hits[number + level, level]), len(levels))
        number, rounds = number + accepted + 1, rounds + 1
    assert any(hits.values()) and not all(hits.values())
    assert rounds == image.target_forwards - 1
