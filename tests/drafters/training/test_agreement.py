"""Agreement of drafter and target: what is gathered along an image."""

import torch
from fakes import finished

from configs.methods import MethodSettings
from decoding.images import Job
from decoding.noise import gumbel
from decoding.proposals import COMPARED
from drafters.training.agreement import LevelFigures, compared, draft_distributions
from drafters.training.rows import target_rows


@torch.inference_mode()
def test_drafts_are_judged_by_the_noise_of_their_image(session) -> None:
    engine, depth = session.open_engine(MethodSettings("ar")), 2
    codes = finished(engine, [Job("0", "a red dot", 5)])["0"].codes
    target, head = session.target, session.drafter
    rows = target_rows(target, target.prompt("a red dot", 2), codes[None])
    noise = gumbel(5, "target", torch.arange(1, len(codes)), target.vocab.size)
    levels = draft_distributions(target, head, rows, engine.distribution, depth)
    gathered = LevelFigures()
    gathered.add_image(target, head, rows, engine.distribution, depth, 5)
    for number, (row, log_q) in enumerate(zip(gathered.table(), levels, strict=True)):
        hits = (log_q[0] + noise[number:]).argmax(-1) == codes[number + 1 :]
        assert row["depth"] == number + 1 and row["coupled"]["hit_1"] == hits.float().mean().item()
        assert hits.any() and not hits.all()
        assert row["topk"]["hit_1"] <= row["topk"]["hit_4"] < row["topk"]["hit_10"] < 1
        assert 0 < row["total_variation"] < 1 and row["topk"]["cut"] == 0


def test_estimates_are_fitted_to_the_choices_among_what_they_compare() -> None:
    values = torch.randn(400, 12, generator=torch.Generator().manual_seed(6))
    choices = torch.arange(400) % 12
    best, which, among = compared(values, choices)
    ranks = values.argsort(-1, descending=True).argsort(-1).gather(1, choices[:, None])[:, 0]
    assert torch.equal(among, ranks < COMPARED) and among.any() and not among.all()
    assert torch.equal(which[among], ranks[among])
    assert torch.equal(best, values.topk(COMPARED).values)
