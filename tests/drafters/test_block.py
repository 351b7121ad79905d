"""The block drafter against its definition: passes over whole unpadded sequences, without cache."""

from dataclasses import dataclass
from itertools import product

import pytest
import torch
from direct import Image, session_reading
from torch import Tensor

from configs.methods import MethodSettings
from decoding.drafter import Decided
from decoding.flight import Job
from decoding.sampling import SamplingDistribution
from decoding.tree import DraftTree
from decoding.verifiers.base import Verdict
from drafters.block import CANDIDATES, BlockDrafter, Window, foresee, visible
from drafters.block_head import SHARE, BlockHead
from drafters.likeness import REACH, SHARPNESS
from drafters.loading import LoadedDrafter
from drafters.stale import UNKNOWN, Nodes, StaleFeatures, recall
from models.base import Context
from runs.methods import build_engine
from runs.session import Session


@pytest.fixture(params=[(), (1,)], ids=["features", "hidden states too"])
def session(request: pytest.FixtureRequest, session: Session) -> Session:
    return session_reading(session, request.param)


GENERATOR = torch.Generator().manual_seed(0)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64)


def trained(session: Session) -> BlockHead:
    """A block head whose own weights are not 0."""
    head = BlockHead.of(session.drafter.network)
    head.recalled.weight.data = 0.1 * random(*head.recalled.weight.shape)
    head.steps.weight.data = 0.3 * random(*head.steps.weight.shape)
    head.gate.weight.data = 0.2 * random(*head.gate.weight.shape)
    return head


def test_nodes_are_recalled_by_similarity() -> None:
    directions = torch.nn.functional.normalize(random(6, 5), dim=-1)
    places = torch.tensor([[4, 5, 5, -1]])
    lineage = torch.tensor([[[1, 2, 3], [4, 1, 2], [0, 1, 2], [5, 5, 5]]])
    features = random(1, 2, 4, 3)
    tokens = torch.tensor([[[2, 1, 2], [3, 3, 3]]])
    found, likeness = recall(
        tokens, torch.tensor([[5, 9]]), Nodes(places, lineage, features), directions
    )
    merits = [
        sum(
            s * torch.dot(directions[tokens[0, 0, b]], directions[lineage[0, node, b]])
            for b, s in enumerate(SHARPNESS)
        )
        for node in (1, 2)
    ]
    weights = torch.stack(merits).softmax(0)
    torch.testing.assert_close(
        found[0, :, 0], weights[0] * features[0, :, 1] + weights[1] * features[0, :, 2]
    )
    assert likeness[0, 0] == pytest.approx(max(merits).item() / sum(SHARPNESS))
    assert likeness[0, 1] == UNKNOWN and not found[0, :, 1].any()


def test_the_same_tokens_have_the_similarity_of_one() -> None:
    directions = torch.nn.functional.normalize(random(6, 5), dim=-1)
    nodes = Nodes(torch.tensor([[2]]), torch.tensor([[[1, 2, 3]]]), random(1, 1, 1, 3))
    found, likeness = recall(nodes.lineage, torch.tensor([[2]]), nodes, directions)
    torch.testing.assert_close(found, nodes.features)
    assert likeness.item() == pytest.approx(1)


def test_what_slots_see() -> None:
    """Three slots for decided tokens, two steps of two candidates; two images."""
    found = visible(torch.tensor([[1], [3]]), 3, 2, 2)
    for image, count in enumerate((1, 3)):
        before_root = set(range(count - 1))
        for slot in range(3):
            assert seen(found, image, slot) == set(range(slot + 1))
        assert seen(found, image, 3) == before_root | {3}
        assert seen(found, image, 4) == before_root | {4}
        assert seen(found, image, 5) == before_root | {3, 5}
        assert seen(found, image, 6) == before_root | {3, 6}


def seen(found: Tensor, image: int, slot: int) -> set[int]:
    return set(found[image, slot].nonzero()[:, 0].tolist())


def test_an_untrained_head_mixes_what_the_eagle_head_predicts(session) -> None:
    head = BlockHead.of(session.drafter.network)
    assert BlockHead.of(head) is head
    predicted, stale = random(1, 2, 3, 32), random(1, 2, 3, 32)
    share = (SHARE[0] + SHARE[1] * torch.tensor([1.0, 0.5, UNKNOWN])).sigmoid().double()
    expected = predicted + share[:, None] * (stale - predicted)
    found = head.mix(predicted, stale, torch.tensor([[1.0, 0.5, UNKNOWN]]).double())
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def by_definition(session: Session, head: BlockHead, image: Image, round_: "Round") -> Tensor:
    """Predicted features (guidance, steps, candidates, hidden): of every candidate after the best
    ones before it, a causal pass over each row's unpadded sequence.
    """
    first, window, found = session.target.vocab.first_id, round_.window, []
    decided = len(image.codes)
    for row, features in enumerate(image.features(decided - 1)):
        features = head.fuse(features)  # the last one is that before the root
        ids = torch.tensor(image.rows[row] + image.sequence(image.codes.tolist()))[1:]
        for step, candidate in product(range(window.codes.shape[1]), range(CANDIDATES)):
            best = window.codes[round_.place, :step, 0]
            own = window.codes[round_.place, step, candidate]
            tokens = torch.cat([ids[:-1], first + best, first + own[None]])[None]
            before = torch.cat([features, window.before[round_.place, row, 1 : step + 1]])[None]
            stale = window.stale[round_.place, row]
            stale = torch.cat([stale[:step, 0], stale[step, candidate][None]])[None]
            context = Context(torch.arange(tokens.shape[1])[None])
            steps = torch.arange(step + 1)
            found.append(head.read(tokens, before, stale, steps, context)[0, -1])
    return torch.stack(found).view(round_.outputs.shape[1:])


@dataclass(frozen=True)
class Round:
    """What a drafter has read in a round. place: of the image."""

    window: Window
    outputs: Tensor
    place: int


@pytest.mark.parametrize("guidance", [1.0, 2.0])
def test_the_pass_is_that_of_every_candidate_alone(guidance, session) -> None:
    """Images of different prompts, that decide different numbers of codes in a round."""
    head, checked = trained(session), []
    method = MethodSettings(method="block", depth=3, width=2, nodes=6, window=3)
    distribution = SamplingDistribution(cfg=guidance)
    loaded = LoadedDrafter(head)
    engine = build_engine(session.target, loaded, distribution, method, 2)
    drafter = engine.speculation.drafter

    def watch(flights, verified) -> None:
        if verified.tree.nodes == 0:  # at the image's end nothing is drafted
            return
        roots = (drafter.memory.root[:, 0] - verified.verdict.accepted - 1).tolist()
        for place, (flight, root) in enumerate(zip(flights, roots, strict=True)):
            codes = flight.codes[: root + 1]
            image = Image(session, distribution, flight.job.prompt, codes)
            round_ = Round(drafter.ahead, drafter.outputs, place)
            expected = by_definition(session, head, image, round_)
            torch.testing.assert_close(drafter.outputs[place], expected, rtol=1e-8, atol=1e-8)
            checked.append(root)

    engine.watcher = watch
    for _ in engine.generate([Job("0", "a cat", 3), Job("1", "three small dogs", 4)]):
        pass
    assert len({*checked}) > 4


def test_the_window_holds_what_the_target_had_predicted(session) -> None:
    """After a round whose tree held the next tokens, stale features are the exact ones."""
    target, distribution = session.target, SamplingDistribution(cfg=1.0)
    memory = StaleFeatures(target, 1, 1, 4)
    memory.start(0, random(1, 1, 32), torch.tensor([5]))
    tree = DraftTree.root(torch.tensor([5]), torch.float64)
    for token in (3, 7, 2):
        newest = torch.tensor([[tree.nodes]])
        tree = tree.extend(newest, torch.tensor([[[token]]]), -torch.ones(1, 1, 1).double())
    features = random(1, 1, 4, 32)
    path, emitted = torch.tensor([[0, 1, 0, 0]]), torch.tensor([[3, 7, 0, 0]])
    memory.observe(tree, features, Verdict(torch.tensor([1]), path, emitted))
    memory.commit(Decided(features[:, :, :2], emitted[:, :2], [2]))
    assert memory.root.item() == 2 and memory.recent.tolist() == [[7, 3, 5]]
    torch.testing.assert_close(memory.before_root(), features[:, :, 1:2])
    window = foresee(memory, 3, lambda f: distribution(target.score(f.flatten(0, 1))), None, 2)
    assert window.codes[0, 0].tolist() == [7, 7]
    torch.testing.assert_close(window.stale[:, :, 0, 0], features[:, :, 2])
    torch.testing.assert_close(window.before[:, :, 1], features[:, :, 2])
    best = target.score(features[:, :, 2])[0, 0].topk(2).indices
    assert window.codes[0, 1].tolist() == best.tolist()


def test_a_feature_above_is_that_of_the_row_above(session) -> None:
    """In a grid of 4 x 4; below undecided tokens and in the first row it is the root's."""
    memory = StaleFeatures(session.target, 1, 1, 4)
    exact = random(1, 1, 7, 32)
    memory.exact[:, :, :7], memory.root[:] = exact, 6
    found = memory.above(torch.tensor([[1, 3, 6, 8, 9]]))
    torch.testing.assert_close(found, exact[:, :, [6, 0, 3, 5, 6]])
    torch.testing.assert_close(memory.above(torch.tensor([[13]])), exact[:, :, 6:7])


@pytest.mark.parametrize("noisy", [True, False])
def test_candidates_are_chosen_with_the_noise_that_is_heard(noisy, session) -> None:
    """`topk` and `coupled` drafts let it be heard, drafts with noise of their own do not."""
    proposal, heard = "coupled" if noisy else "sampled", []
    method = MethodSettings(method="block", proposal=proposal, depth=2, width=2, nodes=4, window=2)
    engine = build_engine(session.target, session.drafter, SamplingDistribution(), method, 1)
    engine.watcher = lambda flights, verified: heard.append(engine.speculation.drafter.noise)
    next(engine.generate([Job("0", "a cat", 3)]))
    assert (heard[0] is not None) == noisy


def test_graft_with_a_block_head_is_the_block_drafter_alone(session) -> None:
    """It mixes and foresees by itself."""
    block = LoadedDrafter(BlockHead.of(session.drafter.network))
    method = MethodSettings(method="eagle_recall")
    engine = build_engine(session.target, block, SamplingDistribution(), method, 1)
    assert isinstance(engine.speculation.drafter, BlockDrafter)


def test_an_image_of_its_own_memory(session) -> None:
    """Tables keep the images that are selected."""
    memory = StaleFeatures(session.target, 3, 2, 4)
    for image in range(3):
        memory.start(image, random(2, 1, 32), torch.tensor([image]))
    kept = memory.exact[[0, 2]].clone()
    memory.select([0, 2])
    assert memory.recent.tolist() == [[0] * REACH, [2] * REACH]
    assert torch.equal(memory.exact, kept) and len(memory.nodes.places) == 2
