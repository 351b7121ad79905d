"""The small steps of a round do the same by compiled kernels as by torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from compilers import needs_compiler
from fakes import random_tree
from torch import Tensor

from configs.methods import MethodSettings
from configs.sampling import SamplingSettings
from decoding.cache import CacheShape, KVCache
from decoding.calibration import Calibration
from decoding.engine import UNNAMED
from decoding.figures import read_figures
from decoding.flight import Job
from decoding.graft import Foreseen, graft
from decoding.grow import extended
from decoding.kernels import compiled_steps, steps_for
from decoding.noise import NodeNoise
from decoding.policies.base import Shape, TreePlan
from decoding.policies.dynamic import DynamicTree
from decoding.proposals import Coupled, TopK
from decoding.sampling import SamplingDistribution
from decoding.timing import Stopwatch
from decoding.tree import DraftTree
from decoding.verifiers.base import Verdict
from decoding.verifiers.exact import Exact
from drafters.branches import Level
from drafters.graft import GraftDrafter
from drafters.jacobi import JacobiDrafter, Recalled
from drafters.similar import SimilarDrafter
from models.base import ImageGrid, ImageVocab, TransformerSpec

pytestmark = needs_compiler
CPU, SEEDS = torch.device("cpu"), range(8)
NEAR = {torch.float64: 1e-12, torch.float32: 2e-5}


def both(step: Callable[[], object]) -> tuple[object, object]:
    """What a step returns by torch, and by kernels."""
    found = []
    for on in (False, True):
        with torch.inference_mode(), compiled_steps(on):
            assert (steps_for(torch.zeros(1)) is not None) == on
            found.append(step())
    return found[0], found[1]


def same(step: Callable[[], object], near: float = 0.0) -> None:
    by_torch, by_kernels = both(step)
    torch.testing.assert_close(by_kernels, by_torch, rtol=near, atol=near, equal_nan=True)


def made(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def columns(tree: DraftTree) -> tuple:
    """What a tree is, and what it says of itself; absent nodes may be any."""
    own = (tree.tokens, tree.parents, tree.depths)
    kept = (torch.where(tree.present, column, -1) for column in own)
    worth = tree.scores if tree.worth is None else tree.worth
    return *kept, tree.scores, worth, tree.height, tree.newest, tree.drafted, tree.width or 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("cfg", [1.0, 3.0])
def test_distributions(cfg, temperature, dtype) -> None:
    distribution = SamplingDistribution(temperature, cfg=cfg)
    for seed, codes in enumerate((1, 7, 16, 33, 1024)):
        size = 3 * distribution.guidance, 5, codes
        logits = (4 * torch.randn(size, generator=made(seed))).to(dtype)
        same(lambda logits=logits: distribution(logits), 1e-12 if dtype == torch.float64 else 1e-5)


def test_a_row_without_a_distribution_is_nan() -> None:
    distribution = SamplingDistribution(cfg=1.0)
    for bad in (torch.nan, torch.inf, -torch.inf):
        logits = torch.randn(1, 3, 40, generator=made(0))
        logits[0, 1] = bad if bad == -torch.inf else logits[0, 1]
        logits[0, 1, 17] = bad
        by_torch, by_kernels = both(lambda logits=logits: distribution(logits))
        wanted = torch.tensor([False, True, False])
        assert torch.equal(by_torch.isnan().all(-1)[0], wanted)
        assert torch.equal(by_kernels.isnan().all(-1)[0], wanted)


@pytest.mark.parametrize("dtype", NEAR, ids=str)
@pytest.mark.parametrize("factor", [1.0, 0.6])
@pytest.mark.parametrize("kind", [TopK, Coupled])
def test_children(kind, factor, dtype) -> None:
    proposal = kind(Calibration((factor,)))
    for seed in SEEDS:
        generator = made(seed)
        images, k, vocab, count = 2, 3, (5, 16, 100)[seed % 3], (1, 4, 9)[seed % 3]
        log_q = torch.randn(images, k, vocab, generator=generator, dtype=dtype).log_softmax(-1)
        noise = torch.randn(
            images, (1, k)[seed % 2], (vocab, 1)[seed == 3], generator=generator, dtype=dtype
        )
        trust = torch.rand(images, k, generator=generator, dtype=dtype) if seed % 2 else None
        step = lambda q=log_q, n=noise, t=trust, c=count: proposal.children(q, n, c, 1, t)  # noqa: E731
        same(step, NEAR[dtype])
        shared = log_q[:, :1].expand(-1, k, -1)  # as of drafts by position
        same(lambda q=shared, n=noise, c=count: proposal.children(q, n, c, 1), NEAR[dtype])


def test_a_child_of_no_distribution_has_no_estimate() -> None:
    log_q = torch.randn(1, 2, 40, generator=made(0)).log_softmax(-1)
    log_q[0, 1, 30] = torch.nan
    for proposal in (TopK(), Coupled()):
        for found in both(lambda p=proposal: p.children(log_q, torch.zeros(1, 1, 1), 3, 1)):
            assert found[1].isnan().any(-1).tolist() == [[False, True]]


def test_codes_that_are_cut_are_the_last_children() -> None:
    log_q = torch.randn(1, 2, 40, generator=made(0)).log_softmax(-1)
    log_q = log_q.masked_fill(log_q < log_q.topk(3).values[..., -1:], -torch.inf)
    noise = torch.randn(1, 1, 40, generator=made(1))
    for proposal in (TopK(), Coupled()):
        for tokens, scores in both(lambda p=proposal: p.children(log_q, noise, 5, 1)):
            assert (scores > -torch.inf).sum(-1).tolist() == [[3, 3]]
            assert torch.equal(scores > -torch.inf, log_q.gather(2, tokens) > -torch.inf)


def test_what_nodes_see() -> None:
    for seed in SEEDS:
        tree = random_tree(made(seed), 3, 1 + 4 * seed, 3)
        same(lambda tree=tree: replace(tree).visible)


@pytest.mark.parametrize("uniform", [True, False])
def test_levels_are_added_within_limits(uniform) -> None:
    for seed in SEEDS:
        generator = made(seed)
        tree = replace(random_tree(generator, 2, 6, 3), height=3, newest=4, drafted=3, width=3)
        nodes = torch.stack([3 + torch.randperm(4, generator=generator)[:3] for _ in range(2)])
        tokens = torch.randint(9, (2, 3, 2), generator=generator)
        hits = -torch.rand(2, 3, 2, generator=generator, dtype=torch.float64)
        shapes = [Shape(4, 3, 9), Shape(4, 3, 9) if uniform else Shape(3 + seed % 2, 2, 5)]
        plan = TreePlan.of(shapes)
        same(lambda t=tree, p=plan, c=(nodes, tokens, hits): columns(extended(t, p, c, None)))


@pytest.mark.parametrize("policy", [DynamicTree(Shape(3, 4, 8)), DynamicTree(Shape(3, 4, 8), True)])
def test_trees_are_pruned_selected_and_ended_alike(policy) -> None:
    for seed in SEEDS:
        tree = replace(random_tree(made(seed), 2, 14, 3, absent=0.2), newest=5)
        for shapes in ([Shape(3, 4, 8)] * 2, [Shape(3, 4, 8), Shape(3, 4, 3)]):
            plan = TreePlan.of(shapes)
            same(lambda t=tree, p=plan: columns(policy.prune(t, p)))
            tied = replace(tree, scores=tree.scores.round())  # which still fall along paths
            same(lambda t=tied, p=plan: columns(policy.prune(t, p)))
            chosen = both(lambda t=tree, p=plan: policy.select(t, p, 2))
            picked = [tree.scores.gather(1, each) for each in chosen]  # absent nodes in any order
            assert torch.equal(*picked)
            if not policy.renews:
                same(lambda t=tree, p=plan: policy.ended(t, p))


def test_foreseen_tokens_continue_trees() -> None:
    for seed in SEEDS:
        generator, window = made(seed), 1 + seed
        tree = random_tree(generator, 2, seed, 4, absent=0.2 if seed % 2 else 0.0)
        tree = replace(tree, scores=tree.scores.float(), width=3 if seed else 0)
        foreseen = Foreseen(
            torch.randint(4, (2, window), generator=generator),
            -torch.rand(2, window, generator=generator),
            torch.tensor([[window], [max(window - 2, 0)]]),
        )
        same(lambda t=tree, f=foreseen: columns(graft(t, f)), 1e-5)


SPEC = TransformerSpec(
    vocab=9, hidden=32, intermediate=32, layers=2, heads=2, kv_heads=2, max_positions=40
)


def cache_of(lengths: list[int]) -> KVCache:
    cache = KVCache(SPEC, CacheShape(len(lengths), 2, 50), torch.float32, CPU)
    cache.reset(torch.tensor([0, 3] * len(lengths)), torch.tensor([0, 1] * len(lengths)))
    cache.memory[0].normal_(generator=made(1))
    cache.advance(lengths)
    return cache


@pytest.mark.parametrize("lengths", [[12], [12, 12], [12, 20, 5]])
def test_passes_are_opened_alike(lengths) -> None:
    for new, latest in ((1, 1), (4, 4), (2, 5)):
        seen = torch.rand(len(lengths), new, latest, generator=made(new)) < 0.6
        seen[..., latest - new :] |= torch.eye(new, dtype=torch.bool)
        depths = torch.randint(30, (len(lengths), new), generator=made(new))

        def opened(depths: Tensor = depths, seen: Tensor = seen) -> list[Tensor]:
            context = cache_of(lengths).open(depths, seen)
            places = context.cache.targets
            mask = context.mask.expand(2 * len(lengths), 1, depths.shape[1], -1)
            return [context.positions, mask, *(places or ())]

        same(opened)
    same(lambda: cache_of([0]).open(torch.arange(4)[None], torch.ones(1, 4, 4).bool().tril()).mask)


@pytest.mark.parametrize("lengths", [[12], [12, 12], [12, 20, 5]])
def test_slots_are_moved_alike(lengths) -> None:
    path = torch.tensor([[0, 2, 3, 7], [0, 1, 2, 3], [0, 8, 1, 2]])  # the last over a row end
    path = path[[2, 0, 1]][: len(lengths)]

    def moved() -> Tensor:
        cache = cache_of(lengths)
        cache.move(path)
        return torch.stack(
            [
                cache.memory[0][:, 2 * image : 2 * image + 2, :, : length + 4]
                for image, length in enumerate([min(lengths)] * len(lengths))
            ]
        )

    same(moved)


def verified(
    generator: torch.Generator, vocab: int, dtype: torch.dtype = torch.float32
) -> tuple[DraftTree, Tensor, Verdict]:
    """Two random trees of six nodes, predictions after them, and paths to some of their nodes."""
    tree = random_tree(generator, 2, 6, 3, absent=0.2)
    tree = replace(tree, scores=tree.scores.to(dtype))
    log_p = torch.randn(2, 7, vocab, generator=generator, dtype=dtype).log_softmax(-1)
    chance = torch.rand(2, 7, generator=generator)
    leaf = chance.masked_fill(~tree.present, -1).argmax(1, keepdim=True)
    path = tree.line(leaf).int().argsort(dim=1, descending=True, stable=True)
    emitted = torch.randint(vocab, (2, 7), generator=generator)
    return tree, log_p, Verdict(tree.depths.gather(1, leaf)[:, 0], path, emitted)


def target_of(vocab: int, dtype: torch.dtype = torch.float32) -> SimpleNamespace:
    embeddings = torch.randn(vocab, 40, generator=made(1), dtype=dtype)
    return SimpleNamespace(
        grid=ImageGrid(6, 5), vocab=ImageVocab(0, vocab), device=CPU, dtype=dtype,
        embedding=lambda: embeddings,
    )  # fmt: skip


@pytest.mark.parametrize("guess", ["above", "left", "random"])
def test_stale_predictions_are_kept_and_recalled_alike(guess) -> None:
    def run() -> list[Tensor]:
        drafter = JacobiDrafter(target_of(12), 6, guess)
        drafter.open(2, Stopwatch(CPU))
        found, generator = [], made(3)
        for _ in range(12):
            drafter.observe(*verified(generator, 12))
            found += [drafter.look_ahead(), drafter.root.clone(), drafter.reached.clone()]
        return found

    same(run)


@pytest.mark.parametrize("dtype", NEAR, ids=str)
def test_predictions_after_similar_tokens_are_recalled_alike(dtype) -> None:
    """Where the last tree stands and where it does not, within a tree and beyond its root."""
    stands = set()

    def run() -> list[Tensor]:
        drafter = SimilarDrafter(target_of(12, dtype), 6, "above")
        drafter.open(2, Stopwatch(CPU))
        for image in range(2):
            drafter.start(image, None, None, torch.tensor([image]))
        found, generator = [], made(3)
        for _ in range(12):
            tree, log_p, verdict = verified(generator, 12, dtype)
            log_p[0, :, 3] = -torch.inf  # a code that is cut
            tree.tokens[:, 0] = drafter.recent[:, 0]
            drafter.observe(tree, log_p, verdict)
            growing = DraftTree.root(drafter.recent[:, 0], dtype)
            for level in range(5):
                newest = growing.tokens.shape[1] - max(1, 3 * (level > 0))
                nodes = torch.arange(newest, growing.tokens.shape[1]).expand(2, -1)
                recalled = drafter.recall(growing, nodes)
                found += [recalled.log_q, recalled.share.expand_as(nodes), recalled.trust]
                found += [drafter.expand(growing, nodes), drafter.trust]
                here = drafter.root[:, :, None] + level == drafter.last.places[:, None]
                stands.update(here.any(2).flatten().tolist())
                tokens = torch.randint(12, (2, nodes.shape[1], 3), generator=generator)
                growing = growing.extend(nodes, tokens, torch.zeros(tokens.shape))
        return found

    same(run, NEAR[dtype])
    assert stands == {True, False}


@pytest.mark.parametrize("dtype", NEAR, ids=str)
@pytest.mark.parametrize("cut", [False, True])
def test_sources_are_mixed_alike(cut, dtype) -> None:
    near, far = SimpleNamespace(reads=()), SimpleNamespace()
    drafter = GraftDrafter(near, far, levels=4, cut=cut)
    for seed in SEEDS:
        generator = made(seed)
        own, other = (
            torch.randn(2, 5, 40, generator=generator, dtype=dtype).log_softmax(-1)
            for _ in range(2)
        )
        if cut:
            own[0, :, 3], other[1, :, 4] = -torch.inf, -torch.inf
        other = other[:, :1].expand(-1, 5, -1)
        share = torch.rand(2, 1 if seed % 2 else 5, generator=generator, dtype=dtype)
        near.expand = lambda tree, nodes, own=own: own
        far.recall = lambda tree, nodes, other=other, share=share: Recalled(other, share)
        tree = DraftTree.root(torch.zeros(2, dtype=torch.long), dtype)
        same(lambda tree=tree: drafter.expand(tree, None), NEAR[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_a_level_reads_what_its_parents_left(dtype) -> None:
    for seed in SEEDS:
        generator = made(seed)
        tree = random_tree(generator, 2, 8, 3)
        known = torch.stack([torch.randperm(8, generator=generator)[:5] + 1 for _ in range(2)])
        seen = torch.rand(2, 5, 4, generator=generator) < 0.5
        outputs = torch.randn(2, 2, 5, 6, generator=generator).to(dtype)
        children = torch.randint(5, (2, 3), generator=generator)
        tree.parents[:, 6:] = known.gather(1, children)  # the last three nodes are their children
        level, nodes = Level(known, outputs, seen), torch.tensor([[6, 7, 8], [8, 6, 7]])
        same(lambda level=level, tree=tree, nodes=nodes: vars(level.before(tree, nodes)))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("images", [1, 2])
def test_trees_are_judged_alike_in_the_call_of_their_pass(session, images, temperature) -> None:
    """The verdict and the figures of every round, against those of the rule and of log p."""
    settings = replace(
        session.settings, sampling=SamplingSettings(cfg=2.0, temperature=temperature)
    )
    assert session.target.transformer.blocks.fused
    rounds = 0
    for method in ("ar", "jacobi", "eagle2", "eagle_recall"):
        engine = session.with_settings(settings).open_engine(MethodSettings(method), images=images)

        def judged(flights, verified, engine=engine) -> None:
            nonlocal rounds
            tree, found = verified.tree, verified.verdict
            before = [
                [f.decided - int(n) - 1] for f, n in zip(flights, found.accepted, strict=True)
            ]
            noise = NodeNoise(engine.batch.noise, tree.depths, torch.tensor(before))
            wanted = Exact()(replace(tree), verified.log_p, noise)
            for name in ("accepted", "path", "emitted"):
                assert torch.equal(getattr(found, name), getattr(wanted, name)), name
            assert found.figures is not None and wanted.figures is None
            pairs = [read_figures(tree, each, verified.log_p, UNNAMED) for each in (found, wanted)]
            for own, other in zip(*pairs, strict=True):
                torch.testing.assert_close(own._asdict(), other._asdict(), rtol=1e-12, atol=1e-12)
            rounds += 1

        engine.watcher = judged
        jobs = [Job(str(seed), "a cat", seed) for seed in range(3)]
        assert sum(len(step.finished) for step in engine.generate(jobs)) == 3
    assert rounds > 40
