"""The block drafter against its definition: passes over whole unpadded sequences, without cache."""

import pytest
import torch
from direct import Image, block_head, session_reading
from fakes import finished, result_of, round_of, tree_of
from memory import verdict_of
from torch import Tensor

from configs.methods import MethodSettings
from decoding.images import Job
from decoding.round import Round, TreeShape
from decoding.sampling import SamplingDistribution
from drafters.block import (
    CANDIDATES,
    SHARE,
    BlockDrafter,
    BlockHead,
    Drafted,
    Window,
    choose_next,
    choose_window,
)
from drafters.hidden_states import Stale, StaleHiddenStates
from drafters.similarity import SHARPNESS, UNKNOWN, Directions, Recollection
from drafters.window import WindowDrafts
from models.base import Context
from runs.methods import build_engine
from runs.session import Session

TREE = TreeShape(3, 2, 6)
GENERATOR = torch.Generator().manual_seed(0)


@pytest.fixture(params=[(), (1,)], ids=["features", "hidden states too"])
def session(request: pytest.FixtureRequest, session: Session) -> Session:
    return session_reading(session, request.param)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64)


def test_nodes_are_recalled_by_similarity() -> None:
    directions = torch.nn.functional.normalize(random(6, 5), dim=-1)
    positions = torch.tensor([[4, 5, 5, -1]])
    lineage = torch.tensor([[[1, 2, 3], [4, 1, 2], [0, 1, 2], [5, 5, 5]]])
    features = random(1, 2, 4, 3)
    tokens = torch.tensor([[[2, 1, 2], [3, 3, 3]]])
    similar = Directions.from_embeddings(3 * directions, directions.dtype)  # of any length
    recollection = Recollection.at(torch.tensor([[5, 9]]), positions, lineage, similar)
    above = random(1, 2, 2, 3)
    found, similarity = Stale(recollection, features, above).after(tokens)
    cosines = (directions[tokens[0, 0]] * directions[lineage[0, 1:3]]).sum(-1)
    merits = cosines @ torch.tensor(SHARPNESS, dtype=torch.float64)
    expected = torch.einsum("n,gnh->gh", merits.softmax(0), features[0, :, 1:3])
    torch.testing.assert_close(found[0, :, 0], expected)
    assert similarity[0, 0] == pytest.approx(merits.max().item() / sum(SHARPNESS))
    assert similarity[0, 1] == UNKNOWN and torch.equal(found[0, :, 1], above[0, :, 1])
    assert recollection.known.tolist() == [[True, False]]


def test_an_untrained_head_mixes_what_the_eagle_head_predicts(session) -> None:
    head = BlockHead.of(session.drafter)
    assert BlockHead.of(head) is head
    predicted, stale = random(1, 2, 3, 32), random(1, 2, 3, 32)
    share = (SHARE[0] + SHARE[1] * torch.tensor([1.0, 0.5, UNKNOWN])).sigmoid().double()
    expected = predicted + share[:, None] * (stale - predicted)
    found = head.mix(predicted, stale, torch.tensor([[1.0, 0.5, UNKNOWN]]).double())
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def by_definition(
    session: Session, head: BlockHead, image: Image, window: Window, image_row: int
) -> Tensor:
    """Hidden states (guidance x steps x candidates, hidden) that a causal pass over each row's
    unpadded sequence predicts after every candidate behind the best ones before it.
    """
    first, predicted, decided = session.target.vocab.first_id, [], len(image.codes)

    def each(values: Tensor) -> Tensor:
        return values.expand(CANDIDATES, *values.shape)

    for row, features in enumerate(image.features(decided - 1)):
        features = head.fuse(features)  # the last one is that before the root
        ids = torch.tensor(image.rows[row] + image.sequence(image.codes.tolist()))[1:-1]
        codes = first + window.codes[image_row]
        for step in range(len(codes)):
            tokens = torch.cat([each(torch.cat([ids, codes[:step, 0]])), codes[step, :, None]], 1)
            before = torch.cat([features, window.before[image_row, row, 1 : step + 1]])
            context = Context(each(torch.arange(tokens.shape[1])))
            predicted.append(head(tokens, each(before), context)[:, -1])
    return torch.cat(predicted)


class Reading(BlockDrafter):
    """Keeps what it has read and predicted in the latest round."""

    def _mixed(self, predicted, window, round):
        self.predicted, self.window = predicted, window
        return super()._mixed(predicted, window, round)


@pytest.mark.parametrize("guidance", [1.0, 2.0])
def test_the_pass_is_that_of_every_candidate_alone(guidance, session, monkeypatch) -> None:
    """Images of different prompts, that decide different numbers of codes in a round."""
    monkeypatch.setattr("drafters.block.BlockDrafter", Reading)
    head, checked = block_head(session), []
    method = MethodSettings(method="block", depth=3, width=2, nodes=6)
    distribution = SamplingDistribution(cfg=guidance)
    engine = build_engine(session.target, head, distribution, method, 2)
    drafter = engine.speculation.drafter

    def watch(states, result) -> None:
        if result.tree.nodes == 0:  # at the image's end nothing is drafted
            return
        for row, state in enumerate(states):
            if state is None:
                continue
            count = int(result.round.inputs.decided[row])
            image = Image(session, distribution, state.job.prompt, state.codes[:count])
            predicted = drafter.predicted[row].flatten(0, 1)
            expected = by_definition(session, head, image, drafter.window, row)
            torch.testing.assert_close(predicted, expected, rtol=1e-8, atol=1e-8)
            checked.append(count)

    engine.watcher = watch
    finished(engine, [Job("0", "a cat", 3), Job("1", "three small dogs", 4)])
    assert len({*checked}) > 4


def round_at(decided: int) -> Round:
    return round_of([TREE], [decided])


def test_the_window_holds_what_the_target_had_predicted(session) -> None:
    """After a round whose tree held the next tokens, stale hidden states are the exact ones."""
    target, distribution = session.target, SamplingDistribution(cfg=1.0)
    memory = StaleHiddenStates(target, 1, 1, TREE)
    memory.prefill(0, random(1, 1, 32), torch.tensor([5]))
    tree, hidden = tree_of([5, 3, 7, 2], [0, 0, 1, 2]), random(1, 1, 4, 32)
    verdict = verdict_of([[0, 1]], 4, tree, (7,))
    memory.update(result_of(round_at(1), tree, None, verdict, hidden))
    round = round_at(3)
    assert memory.last.recent.tolist() == [[7, 3, 5]]
    torch.testing.assert_close(memory.before_root(round), hidden[:, :, 1:2])

    def score(states: Tensor) -> Tensor:
        return distribution(target.score(states.flatten(0, 1)))

    known = memory.at(torch.tensor([[2, 3, 4]]), round)
    window = choose_window(memory, known, round, score, noise=None)
    assert window.codes[0, 0].tolist() == [7] * CANDIDATES
    torch.testing.assert_close(window.stale[:, :, 0, 0], hidden[:, :, 2])
    torch.testing.assert_close(window.before[:, :, 1], hidden[:, :, 2])
    best = target.score(hidden[:, :, 2])[0, 0].topk(CANDIDATES).indices
    assert window.codes[0, 1].tolist() == best.tolist()


def test_the_next_pass_reads_a_path_through_what_the_last_one_predicted(session) -> None:
    memory, round = StaleHiddenStates(session.target, 1, 1, TREE), round_at(1)
    memory.prefill(0, random(1, 1, 32), torch.tensor([5]))
    known = memory.at(torch.tensor([[0, 1, 2, 3]]), round)
    codes = torch.tensor([[[5, 5, 5], [1, 2, 3], [4, 6, 7], [1, 2, 3]]])
    stale, hidden = random(1, 1, 4, 3, 32), random(1, 1, 4, 3, 32)
    window = Window(codes, random(1, 1, 4, 32), stale, torch.zeros(1, 4, 3))
    log_q = torch.zeros(1, 4, 3, 9)
    # after the root: 2, the second candidate; after that: 8, which is none; after the best one: 0
    best = {(0, 0): [2, 3, 1], (1, 1): [8, 4, 6], (2, 0): [0, 1, 2]}
    for (step, candidate), tokens in best.items():
        log_q[0, step, candidate, tokens] = torch.tensor([3.0, 2.0, 1.0])
    drafted = Drafted(window, hidden, log_q, torch.ones(1, 4, 3))
    again = choose_next(drafted, known, memory.last.recent, noise=None)
    assert again.codes[0].tolist() == [[5, 5, 5], *best.values()]
    path = torch.stack([hidden[:, :, 0, 0], hidden[:, :, 1, 1], hidden[:, :, 2, 0]], 2)
    torch.testing.assert_close(again.before[:, :, 1:], path)
    torch.testing.assert_close(again.before[:, :, :1], window.before[:, :, :1])
    noise = torch.zeros(1, 4, 9)
    noise[0, 0, 7] = 9.0
    seen = choose_next(drafted, known, memory.last.recent, noise)
    assert seen.codes[0, 1].tolist() == [7, 2, 3], "the target's noise chooses, too"


def test_a_state_above_is_that_of_the_row_above(session) -> None:
    """In a grid of 4 x 4; below undecided tokens and in the first row it is the root's."""
    memory = StaleHiddenStates(session.target, 1, 1, TREE)
    exact = random(1, 1, 7, 32)
    memory.exact[:, :, :7] = exact
    positions = torch.tensor([[1, 3, 6, 8, 9, 13]])
    tokens = torch.zeros(1, 6, 3, dtype=torch.long)
    found, similarity = memory.at(positions, round_at(7)).after(tokens)
    torch.testing.assert_close(found, exact[:, :, [6, 0, 3, 5, 6, 6]])
    assert (similarity == UNKNOWN).all()


@pytest.mark.parametrize("name", ["block", "recall"])
@pytest.mark.parametrize(("proposal", "coupled"), [("coupled", True), ("sampled", False)])
def test_sampled_drafts_do_not_depend_on_the_targets_noise(
    name, proposal, coupled, session, monkeypatch
) -> None:
    made, init = [], WindowDrafts.__init__

    def noting(drafts: WindowDrafts, *parts: object) -> None:
        init(drafts, *parts)
        made.append(drafts)

    monkeypatch.setattr(WindowDrafts, "__init__", noting)
    method = MethodSettings(method=name, proposal=proposal, depth=2, width=2, nodes=4)
    for seed in (3, 4):
        engine = build_engine(session.target, session.drafter, SamplingDistribution(), method, 1)
        drafter = engine.speculation.drafter
        engine._open([Job("0", "a cat", seed)])
        engine.images.admit(iter([Job("0", "a cat", seed)]))
        with torch.inference_mode():
            last = drafter.last if name == "recall" else drafter.memory.last
            last.recent.fill_(5)  # the same first code in both images
            if name == "block":
                drafter.memory.exact.fill_(1)
        engine._step()
    first, second = made
    assert torch.equal(first.codes, second.codes) != coupled


@pytest.mark.parametrize("name", ["eagle2", "eagle_recall"])
def test_methods_that_draft_by_levels_read_a_block_head_as_an_eagle_head(session, name) -> None:
    """What a block head has in addition is for windows."""
    method = MethodSettings(method=name, depth=3, width=2, nodes=5)
    taus = []
    for network in (session.drafter, block_head(session)):
        parts = session.target, network, SamplingDistribution()
        images = finished(build_engine(*parts, method, 1), [Job("0", "a cat", 3)])
        taus.append(images["0"].tau)
    assert taus[0] == taus[1] > 1
