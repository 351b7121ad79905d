"""The EAGLE drafter with cache, batches and trees against the head run over whole sequences."""

from collections.abc import Sequence

import pytest
import torch
from browser import only_in_all
from direct import Image, Rounds, session_reading
from fakes import Path
from small import open_lumina

from decoding.sampling import SamplingDistribution
from runs.session import Session

PLAIN = SamplingDistribution()
DISTRIBUTIONS = [PLAIN, SamplingDistribution(cfg=1.0)]
TOLERANCE = {"rtol": 0, "atol": 1e-6}  # rotations are kept in fp32


@pytest.fixture(params=[(), (1,)], ids=["features", "hidden states too"])
def session(request: pytest.FixtureRequest, session: Session) -> Session:
    return session_reading(session, request.param)


def two_images(
    session: Session, distribution: SamplingDistribution = PLAIN, codes: int = 12
) -> list[Image]:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(session.target.vocab.size, (2, codes), generator=generator).tolist()
    texts = "a cat", "three dogs"
    return [Image(session, distribution, *pair) for pair in zip(texts, rows, strict=True)]


def check_levels(session: Session, rounds: Rounds, levels: Sequence[int]) -> None:
    """Grow a random tree: after root and nodes q is that after each path as a chain."""
    generator = torch.Generator().manual_seed(1)
    tree, picked = rounds.root(), torch.zeros(2, 1, dtype=torch.long)
    paths: list[list[Path]] = [[()], [()]]
    for children in (*levels, None):
        found = rounds.expand(tree, picked.tolist())
        for i, image in enumerate(rounds.images):
            for log_q, node in zip(found[i], picked[i].tolist(), strict=True):
                expected = image.distribution_after(rounds.done[i], paths[i][node])
                torch.testing.assert_close(log_q, expected, **TOLERANCE)
        if children is None:
            return
        size = 2, picked.shape[1], children
        tokens = torch.randint(session.target.vocab.size, size, generator=generator)
        for i in range(2):
            rows = zip(picked[i].tolist(), tokens[i].tolist(), strict=True)
            paths[i] = [(*paths[i][node], token) for node, row in rows for token in row]
        tree = tree.extend(picked, tokens, -torch.ones(tokens.shape, dtype=torch.float64))
        # not in order, and different for the two images
        nodes = tree.newest.tokens.shape[1]
        picks = [torch.randperm(nodes, generator=generator)[:2] for _ in range(2)]
        picked = torch.stack(picks)


@pytest.mark.parametrize(
    "distribution",
    [*DISTRIBUTIONS, pytest.param(SamplingDistribution(temperature=0.0), marks=only_in_all)],
    ids=str,
)
def test_tree_levels_equal_every_path_as_a_chain(distribution, session) -> None:
    """Round after round, in which two images decide equal or different numbers of codes."""
    rounds = Rounds(session, distribution, two_images(session, distribution))
    for counts in ([1, 1], [4, 1], [2, 3], [2, 2]):
        check_levels(session, rounds, (3, 2, 2))
        rounds.commit(counts)


@pytest.mark.parametrize("counts", [[2, 2], [5, 1]], ids=["equal lengths", "ragged"])
def test_the_drafter_reads_row_ends(counts, lumina_folder) -> None:
    """Also in a batch in which only one image ends a row."""
    session = open_lumina(lumina_folder, "64")
    rounds = Rounds(session, PLAIN, two_images(session, codes=14))
    for _ in range(2):
        rounds.expand(rounds.root(), [[0], [0]])
        rounds.commit(counts)
        check_levels(session, rounds, (2, 1, 1, 1))
