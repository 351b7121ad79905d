"""The block drafter against its definition: passes over whole unpadded sequences, without cache."""

import pytest
import torch
from direct import Image, block_head, session_reading
from fakes import finished, result_of, round_of, tree_of
from memory import verdict_of
from torch import Tensor

from configs.methods import MethodSettings
from decoding.images import Job
from decoding.proposals import TopK
from decoding.round import Round, TreeShape
from decoding.sampling import SamplingDistribution
from decoding.stopwatch import Stopwatch
from drafters.block import CANDIDATES, SHARE, BlockDrafter, BlockHead, HeadPasses
from drafters.similarity import COSINE_WEIGHTS, NO_NODE, SimilarNodes, UnitEmbeddings
from drafters.state_memory import RecalledStates, StateMemory
from drafters.window import WindowDrafter, WindowPass, best_candidates, next_candidates
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
    suffixes = torch.tensor([[[1, 2, 3], [4, 1, 2], [0, 1, 2], [5, 5, 5]]])
    features = random(1, 2, 4, 3)
    tokens = torch.tensor([[[2, 1, 2], [3, 3, 3]]])
    embeddings = UnitEmbeddings.from_embeddings(3 * directions, directions.dtype)
    similar = SimilarNodes.at(torch.tensor([[5, 9]]), positions, suffixes, embeddings)
    above = random(1, 2, 2, 3)
    recalled, similarity = RecalledStates(similar, features, above).after(tokens)
    cosines = (directions[tokens[0, 0]] * directions[suffixes[0, 1:3]]).sum(-1)
    scores = cosines @ torch.tensor(COSINE_WEIGHTS, dtype=torch.float64)
    expected = torch.einsum("n,gnh->gh", scores.softmax(0), features[0, :, 1:3])
    torch.testing.assert_close(recalled[0, :, 0], expected)
    assert similarity[0, 0] == pytest.approx(scores.max().item() / sum(COSINE_WEIGHTS))
    assert similarity[0, 1] == NO_NODE and torch.equal(recalled[0, :, 1], above[0, :, 1])


def test_an_untrained_head_mixes_what_the_eagle_head_predicts(session) -> None:
    head = BlockHead.of(session.drafter)
    assert BlockHead.of(head) is head
    predicted, recalled = random(1, 2, 3, 32), random(1, 2, 3, 32)
    share = (SHARE[0] + SHARE[1] * torch.tensor([1.0, 0.5, NO_NODE])).sigmoid().double()
    expected = predicted + share[:, None] * (recalled - predicted)
    mixed = head.mix(predicted, recalled, torch.tensor([[1.0, 0.5, NO_NODE]]).double())
    torch.testing.assert_close(mixed, expected, rtol=1e-6, atol=1e-6)


def by_definition(session: Session, head: BlockHead, image: Image, passes: "Noted") -> Tensor:
    """Hidden states (guidance x positions x candidates, hidden) that a causal pass over each row's
    unpadded sequence predicts after every candidate behind the best ones before it.
    """
    first, predicted, decided = session.target.vocab.first_id, [], len(image.codes)

    def each(values: Tensor) -> Tensor:
        return values.expand(CANDIDATES, *values.shape)

    for row, features in enumerate(image.features(decided - 1)):
        features = head.fuse(features)  # the last one is that before the root
        ids = torch.tensor(image.rows[row] + image.sequence(image.codes.tolist()))[1:-1]
        codes = first + passes.window[image.row]
        for ahead in range(len(codes)):
            best = torch.cat([ids, codes[:ahead, 0]])
            tokens = torch.cat([each(best), codes[ahead, :, None]], 1)
            before = torch.cat([features, passes.states[image.row, row, :ahead]])
            context = Context(each(torch.arange(tokens.shape[1])))
            predicted.append(head(tokens, each(before), context)[:, -1])
    return torch.cat(predicted)


class Noted(HeadPasses):
    """Keeps what the latest pass has read and predicted."""

    def predict(self, codes: Tensor, states: Tensor) -> Tensor:
        Noted.window, Noted.states = codes, states
        Noted.predicted = super().predict(codes, states)
        return Noted.predicted


@pytest.mark.parametrize("guidance", [1.0, 2.0])
def test_the_pass_is_that_of_every_candidate_alone(guidance, session, monkeypatch) -> None:
    """Images of different prompts, that decide different numbers of codes in a round."""
    monkeypatch.setattr(BlockDrafter, "source", lambda *parts: Noted(*parts))
    head, checked = block_head(session), []
    method = MethodSettings(method="block", depth=3, width=2, nodes=6)
    distribution = SamplingDistribution(cfg=guidance)
    engine = build_engine(session.target, head, distribution, method, 2)

    def watch(states, result) -> None:
        if result.tree.nodes == 0:  # at the image's end nothing is drafted
            return
        for row, state in enumerate(states):
            if state is None:
                continue
            count = int(result.round.inputs.decided[row])
            image = Image(session, distribution, state.job.prompt, state.codes[:count])
            image.row = row
            predicted = Noted.predicted[row].flatten(0, 1)
            expected = by_definition(session, head, image, Noted)
            torch.testing.assert_close(predicted, expected, rtol=1e-8, atol=1e-8)
            checked.append(count)

    engine.watcher = watch
    finished(engine, [Job("0", "a cat", 3), Job("1", "three small dogs", 4)])
    assert len({*checked}) > 4


def round_at(decided: int, code: int = 0) -> Round:
    return round_of([TREE], [decided], code=code)


def test_the_window_holds_what_the_target_had_predicted(session, monkeypatch) -> None:
    """After a round whose tree held the next tokens, recalled states are the exact ones."""
    target, distribution = session.target, SamplingDistribution(cfg=1.0)
    drafter = BlockDrafter(block_head(session), target, distribution, TREE)
    drafter.open(1, 40, Stopwatch(torch.device("cpu")))
    memory, prompt = drafter.memory, target.prompt("a cat", 1)
    wide = target.features(prompt.ids, Context(torch.arange(prompt.ids.shape[1])[None]), (1,))
    drafter.prefill(0, prompt, wide[..., : (1 + len(drafter.reads)) * 32], torch.tensor([5]))
    tree, hidden = tree_of([5, 3, 7, 2], [0, 0, 1, 2]), random(1, 1, 4, 32)
    verdict = verdict_of([[0, 1]], 4, tree, (7,))
    memory.update(result_of(round_at(1), tree, None, verdict, hidden))
    assert memory.last.recent.tolist() == [[7, 3, 5]]
    source = drafter.source(round_at(3, code=7))
    log_q, states = source.first()
    torch.testing.assert_close(states[:, :, 0], hidden[:, :, 2])
    codes = best_candidates(torch.full((1, 1, CANDIDATES), 7), log_q, None)
    assert codes[0, 0].tolist() == [7] * CANDIDATES
    best = target.score(hidden[:, :, 2])[0, 0].topk(CANDIDATES).indices
    assert codes[0, 1].tolist() == best.tolist()


def test_the_next_pass_reads_a_path_through_what_the_last_one_predicted() -> None:
    codes = torch.tensor([[[5, 5, 5], [1, 2, 3], [4, 6, 7], [1, 2, 3]]])
    hidden, reads = random(1, 1, 4, 3, 32), []
    log_q = torch.zeros(1, 4, 3, 9)
    # after the root: 2, the second candidate; after that: 8, which is none; after the best one: 0
    best = {(0, 0): [2, 3, 1], (1, 1): [8, 4, 6], (2, 0): [0, 1, 2]}
    for (ahead, candidate), tokens in best.items():
        log_q[0, ahead, candidate, tokens] = torch.tensor([3.0, 2.0, 1.0])

    class Source:
        def first(self) -> tuple[Tensor, Tensor]:
            return log_q[:, :, 0], hidden[:, :, :, 0]

        def read(self, chosen: Tensor, states: Tensor) -> WindowPass:
            reads.append((chosen, states))
            return WindowPass(codes, log_q, *log_q.new_zeros(2, 1, 4, 3), hidden)

    class Drafter(WindowDrafter):
        candidates = 3

        def source(self, round: Round) -> Source:
            return Source()

    Drafter().begin(round_of([TreeShape(4, 3, 9)], code=5), TopK())
    chosen, states = reads[1]
    assert chosen[0].tolist() == [[5, 5, 5], *best.values()]
    path = torch.stack([hidden[:, :, 0, 0], hidden[:, :, 1, 1], hidden[:, :, 2, 0]], 2)
    torch.testing.assert_close(states[:, :, :3], path)
    noise = torch.zeros(1, 4, 9)
    noise[0, 0, 7] = 9.0
    seen, _ = next_candidates(codes, log_q, noise)
    assert seen[0, 1].tolist() == [7, 2, 3], "the target's noise also chooses"


def test_a_state_above_is_that_of_the_row_above(session) -> None:
    """In a grid of 4 x 4; below undecided tokens and in the first row it is the root's."""
    memory = StateMemory(session.target, 1, 1, TREE)
    decided = random(1, 1, 7, 32)
    memory.decided[:, :, :7] = decided
    positions = torch.tensor([[1, 3, 6, 8, 9, 13]])
    tokens = torch.zeros(1, 6, 3, dtype=torch.long)
    recalled, similarity = memory.at(positions, round_at(7)).after(tokens)
    torch.testing.assert_close(recalled, decided[:, :, [6, 0, 3, 5, 6, 6]])
    assert (similarity == NO_NODE).all()


@pytest.mark.parametrize("name", ["block", "recall"])
@pytest.mark.parametrize(("proposal", "coupled"), [("coupled", True), ("sampled", False)])
def test_sampled_drafts_do_not_depend_on_the_targets_noise(
    name, proposal, coupled, session
) -> None:
    """Two images of other seeds: the window behind the root, after the same first code."""
    method, windows = MethodSettings(name, proposal, depth=2, width=2, nodes=4), []
    for seed in (3, 4):
        engine = build_engine(session.target, session.drafter, SamplingDistribution(), method, 1)
        drafter = engine.speculation.drafter
        engine._open([Job("0", "a cat", seed)])
        engine.images.admit(iter([Job("0", "a cat", seed)]))
        engine.images.states[0].codes = [5]
        with torch.inference_mode():
            last = drafter.last if name == "recall" else drafter.memory.last
            last.recent.fill_(5)
            if name == "block":
                drafter.codes.fill_(5)
                drafter.memory.decided.fill_(1)
        begin = drafter.begin

        def noting(round: Round, proposal: object, begin=begin, drafter=drafter) -> None:
            begin(round, proposal)
            windows.append(drafter.window.result.codes)

        drafter.begin = noting
        engine._step()
    assert torch.equal(*windows) != coupled


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
