"""The EAGLE drafter with cache, batches and trees against the head run over whole sequences."""

from __future__ import annotations

import pytest
import torch
from direct import Image, Rounds, session_reading

from decoding.sampling import SamplingDistribution
from runs.session import Session

TOLERANCE = {"rtol": 0, "atol": 1e-6}  # rotations are kept in fp32


@pytest.fixture(params=[(), (1,)], ids=["features", "hidden states too"])
def session(request: pytest.FixtureRequest, session: Session) -> Session:
    return session_reading(session, request.param)


def two_images(session: Session, distribution: SamplingDistribution) -> list[Image]:
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(session.target.vocab.size, (2, 12), generator=generator).tolist()
    return [
        Image(session, distribution, "a cat", codes[0]),
        Image(session, distribution, "three dogs", codes[1]),
    ]


@pytest.mark.parametrize(
    "distribution",
    [SamplingDistribution(), SamplingDistribution(cfg=1.0), SamplingDistribution(temperature=0.0)],
    ids=str,
)
def test_root_distribution_round_after_round(distribution, session) -> None:
    """Two images whose rounds decide different numbers of codes."""
    images = two_images(session, distribution)
    rounds = Rounds(session, distribution, images)
    for counts in ([1, 1], [4, 1], [2, 3], [1, 1]):
        found = rounds.expand(rounds.root(), [[0], [0]])
        for image, count, log_q in zip(images, rounds.done, found, strict=True):
            torch.testing.assert_close(log_q[0], image.distribution_after(count), **TOLERANCE)
        rounds.commit(counts)


@pytest.mark.parametrize("counts", [[2, 2], [3, 1]], ids=["equal lengths", "ragged"])
def test_tree_levels_equal_every_path_as_a_chain(counts, session) -> None:
    distribution = SamplingDistribution()
    images = two_images(session, distribution)
    rounds = Rounds(session, distribution, images)
    rounds.expand(rounds.root(), [[0], [0]])
    rounds.commit(counts)
    tree = rounds.root()
    picked = torch.zeros(2, 1, dtype=torch.long)
    rounds.expand(tree, picked.tolist())
    newest: list[list[tuple[int, ...]]] = [[()], [()]]
    generator = torch.Generator().manual_seed(1)
    for width in (3, 2, 2):
        size = 2, picked.shape[1], width
        tokens = torch.randint(session.target.vocab.size, size, generator=generator)
        for image in range(2):
            parents = [newest[image][node] for node in picked[image].tolist()]
            rows = zip(parents, tokens[image].tolist(), strict=True)
            newest[image] = [(*path, token) for path, row in rows for token in row]
        tree = tree.extend(picked, tokens, -torch.ones(tokens.shape, dtype=torch.float64))
        picks = [torch.randperm(tree.newest.nodes, generator=generator)[:2] for _ in range(2)]
        picked = torch.stack(picks)  # not in order, and different for the two images
        found = rounds.expand(tree, picked.tolist())
        for i, image in enumerate(images):
            for log_q, node in zip(found[i], picked[i].tolist(), strict=True):
                expected = image.distribution_after(rounds.done[i], newest[i][node])
                torch.testing.assert_close(log_q, expected, **TOLERANCE)


def test_a_new_image_in_an_old_row(session) -> None:
    distribution = SamplingDistribution()
    images = two_images(session, distribution)
    rounds = Rounds(session, distribution, images)
    rounds.expand(rounds.root(), [[0], [0]])
    rounds.commit([5, 4])
    fog = Image(session, distribution, "fog", [3, 1, 4, 1, 5])
    rounds.begin(1, fog)
    found = rounds.expand(rounds.root(), [[0], [0]])
    torch.testing.assert_close(found[1, 0], fog.distribution_after(1), **TOLERANCE)
    torch.testing.assert_close(found[0, 0], images[0].distribution_after(6), **TOLERANCE)


def test_the_direct_distribution_depends_on_what_it_should(session) -> None:
    """The oracle itself: features of the past, the last code and the drafted path all matter."""
    distribution = SamplingDistribution()
    image = two_images(session, distribution)[0]
    distributions = [
        image.distribution_after(2),
        image.distribution_after(3),
        image.distribution_after(2, (1,)),
        image.distribution_after(2, (1, 5)),
    ]
    for i, one in enumerate(distributions):
        assert all((one - other).abs().max() > 0.05 for other in distributions[i + 1 :])
