"""The EAGLE drafter with cache, batches and trees against the head run over whole sequences."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from direct import Image, session_reading
from torch import Tensor

from decoding.drafter import Decided
from decoding.sampling import SamplingDistribution
from decoding.timing import Stopwatch
from decoding.tree import DraftTree
from drafters.eagle import EagleDrafter
from runs.session import Session

CPU = torch.device("cpu")
TOLERANCE = {"rtol": 0, "atol": 1e-6}  # rotations are kept in fp32


@pytest.fixture(params=[(), (1,)], ids=["features", "hidden states too"])
def session(request: pytest.FixtureRequest, session: Session) -> Session:
    return session_reading(session, request.param)


def padded_features(image: Image) -> Tensor:
    """The target's features of the padded prompt (guidance, length, hidden); those of padding are
    arbitrary.
    """
    length = image.prompt.ids.shape[1]
    rows = [
        torch.cat([torch.full((length - len(f), f.shape[1]), 9.0), f]) for f in image.features(0)
    ]
    return torch.stack(rows)


def drafter_of(
    session: Session, distribution: SamplingDistribution, images: list[Image]
) -> EagleDrafter:
    drafter = EagleDrafter(
        session.drafter.network, session.target, distribution, room=40, deepest=8
    )
    drafter.open(len(images), Stopwatch(CPU))
    for place, image in enumerate(images):
        drafter.start(place, image.prompt, padded_features(image), image.codes[:1])
    return drafter


@torch.inference_mode()
def commit(drafter: EagleDrafter, images: list[Image], done: list[int], counts: list[int]) -> None:
    """Tell the drafter the next counts[i] codes of each image, padded with nonsense to equal
    length.
    """
    new = [
        image.decided(start, start + count)
        for image, start, count in zip(images, done, counts, strict=True)
    ]
    lengths = [len(codes) for _, codes in new]
    missing = [max(lengths) - length for length in lengths]
    features = [F.pad(f, (0, 0, 0, n), value=7.0) for (f, _), n in zip(new, missing, strict=True)]
    codes = [F.pad(c, (0, n)) for (_, c), n in zip(new, missing, strict=True)]
    drafter.commit(Decided(torch.stack(features), torch.stack(codes), lengths))


def root_of(images: list[Image], done: list[int]) -> DraftTree:
    last = [image.codes[count - 1] for image, count in zip(images, done, strict=True)]
    return DraftTree.root(torch.stack(last), torch.float64)


@torch.inference_mode()
def expand(drafter: EagleDrafter, tree: DraftTree, nodes: list[list[int]]) -> Tensor:
    return drafter.expand(tree, torch.tensor(nodes))


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
    images, done = two_images(session, distribution), [1, 1]
    drafter = drafter_of(session, distribution, images)
    for counts in ([1, 1], [4, 1], [2, 3], [1, 1]):
        found = expand(drafter, root_of(images, done), [[0], [0]])
        for image, count, log_q in zip(images, done, found, strict=True):
            torch.testing.assert_close(log_q[0], image.distribution_after(count), **TOLERANCE)
        commit(drafter, images, done, counts)
        done = [a + b for a, b in zip(done, counts, strict=True)]


@pytest.mark.parametrize("counts", [[2, 2], [3, 1]], ids=["equal lengths", "ragged"])
def test_tree_levels_equal_every_path_as_a_chain(counts, session) -> None:
    distribution = SamplingDistribution()
    images, done = two_images(session, distribution), [1, 1]
    drafter = drafter_of(session, distribution, images)
    expand(drafter, root_of(images, done), [[0], [0]])
    commit(drafter, images, done, counts)
    done = [1 + count for count in counts]
    tree = root_of(images, done)
    expand(drafter, tree, [[0], [0]])
    paths: list[list[tuple[int, ...]]] = [[()], [()]]
    generator = torch.Generator().manual_seed(1)
    chosen = torch.zeros(2, 1, dtype=torch.long)
    for width in (3, 2, 2):
        tokens = torch.randint(
            session.target.vocab.size, (2, chosen.shape[1], width), generator=generator
        )
        for image in range(2):
            parents = [paths[image][node] for node in chosen[image].tolist()]
            new = zip(parents, tokens[image].tolist(), strict=True)
            paths[image] += [(*path, token) for path, row in new for token in row]
        tree = tree.extend(chosen, tokens, -torch.ones(tokens.shape, dtype=torch.float64))
        newest = torch.arange(tree.nodes + 1 - tree.newest, tree.nodes + 1)
        picks = [newest[torch.randperm(len(newest), generator=generator)[:2]] for _ in range(2)]
        chosen = torch.stack(picks)  # not in order, and different for the two images
        found = expand(drafter, tree, chosen.tolist())
        for i, image in enumerate(images):
            for log_q, node in zip(found[i], chosen[i].tolist(), strict=True):
                torch.testing.assert_close(
                    log_q, image.distribution_after(done[i], paths[i][node]), **TOLERANCE
                )


def test_a_round_without_drafts_is_caught_up_with(session) -> None:
    """Near an image's end a round may draft nothing; its codes are read in the next one."""
    distribution = SamplingDistribution()
    images, done = two_images(session, distribution), [1, 1]
    drafter = drafter_of(session, distribution, images)
    for counts in ([1, 2], [1, 1]):
        commit(drafter, images, done, counts)
        done = [a + b for a, b in zip(done, counts, strict=True)]
    found = expand(drafter, root_of(images, done), [[0], [0]])
    for image, count, log_q in zip(images, done, found, strict=True):
        torch.testing.assert_close(log_q[0], image.distribution_after(count), **TOLERANCE)


def test_a_new_image_in_an_old_place_and_a_smaller_batch(session) -> None:
    distribution = SamplingDistribution()
    images, done = two_images(session, distribution), [1, 1]
    drafter = drafter_of(session, distribution, images)
    expand(drafter, root_of(images, done), [[0], [0]])
    commit(drafter, images, done, [5, 4])
    images[1], done = Image(session, distribution, "fog", [3, 1, 4, 1, 5]), [6, 1]
    drafter.start(1, images[1].prompt, padded_features(images[1]), images[1].codes[:1])
    found = expand(drafter, root_of(images, done), [[0], [0]])
    torch.testing.assert_close(found[1, 0], images[1].distribution_after(1), **TOLERANCE)
    torch.testing.assert_close(found[0, 0], images[0].distribution_after(6), **TOLERANCE)
    commit(drafter, images, done, [1, 2])
    drafter.select([1])
    found = expand(drafter, root_of(images[1:], [3]), [[0]])
    torch.testing.assert_close(found[0, 0], images[1].distribution_after(3), **TOLERANCE)


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
