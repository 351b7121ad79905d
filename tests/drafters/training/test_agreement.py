"""Agreement of drafter and target: what is gathered is what a tree's rounds draft and accept."""

import torch
from fakes import finished

from configs.methods import MethodSettings
from configs.schema import RunSettings
from decoding.images import Job
from decoding.noise import gumbel
from decoding.proposals import COMPARED
from drafters.training.agreement import Gathered, compared, draft_distributions
from drafters.training.rows import target_rows
from runs.session import open_session


@torch.inference_mode()
def test_a_chain_is_accepted_where_the_fitted_distributions_say(checkpoint) -> None:
    depth = 2
    chain = MethodSettings(method="eagle2", depth=depth, width=1, nodes=depth)
    given = {"prompt": "a", "model_path": str(checkpoint), "dtype": "fp64"}
    session = open_session(RunSettings(**given, method=chain))
    engine = session.open_engine()
    image = finished(engine, [Job("0", "a red dot", 5)])["0"]
    target, head = session.target, session.drafter
    rows = target_rows(target, target.prompt("a red dot", 2), image.codes[None])
    noise = gumbel(5, "target", torch.arange(1, len(image.codes)), target.vocab.size)
    levels = draft_distributions(target, head, rows, engine.distribution, depth)
    hits = {}  # number of the token, depth at which it is drafted -> whether it is drafted right
    for level, log_q in enumerate(levels):
        drafted = (log_q[0] + noise[level:]).argmax(-1)
        for number, hit in enumerate((drafted == image.codes[level + 1 :]).tolist(), level + 1):
            hits[number, level] = hit
    gathered = Gathered()
    gathered.judge(target, head, rows, engine.distribution, depth, 5)
    for row, log_q in zip(gathered.table(), levels, strict=True):
        level, drafted = row["depth"], log_q[0] + noise[row["depth"] - 1 :]
        right = (drafted.argmax(-1) == image.codes[level:]).float().mean().item()
        assert row["coupled"]["hit_1"] == right, "by the image's own noise"
        assert row["topk"]["hit_1"] <= row["topk"]["hit_4"] < row["topk"]["hit_10"] < 1
        assert 0 < row["total_variation"] < 1 and row["topk"]["cut"] == 0
    number, rounds, last = 1, 0, len(image.codes) - 1
    while number <= last:
        levels = range(min(depth, last - number))
        accepted = next((level for level in levels if not hits[number + level, level]), len(levels))
        number, rounds = number + accepted + 1, rounds + 1
    assert any(hits.values()) and not all(hits.values())
    assert rounds == image.target_forwards - 1


def test_estimates_are_fitted_to_the_choices_among_what_they_compare() -> None:
    values = torch.randn(400, 12, generator=torch.Generator().manual_seed(6))
    choices = torch.arange(400) % 12
    best, which, among = compared(values, choices)
    ranks = values.argsort(-1, descending=True).argsort(-1).gather(1, choices[:, None])[:, 0]
    assert torch.equal(among, ranks < COMPARED) and among.any() and not among.all()
    assert torch.equal(which[among], ranks[among])
    assert torch.equal(best, values.topk(COMPARED).values)
