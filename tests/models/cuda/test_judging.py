"""The GPU's kernel that judges nodes, in Triton's interpreter, against walks on the host."""

import os
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace
from functools import cache
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from browser import ALL, only_in_all, thinned
from fakes import codes, emitted, random_tree

from configs.methods import MethodSettings
from configs.rules import LanternSettings
from decoding.images import Job
from decoding.sampling import SamplingDistribution
from decoding.verifiers.host import Walk, trees_on_host
from decoding.verifiers.lantern import Lantern, LanternCoupled
from decoding.verifiers.nodewise import Nodewise
from decoding.verifiers.rejection import Rejection
from decoding.verifiers.sampled import Sampled
from runs.check.loaded import first_rows
from runs.methods import build_engine
from scripts.rules.rounds import Unfavourable, noise_of, one_round, outcome_counts
from scripts.rules.statistics import p_value
from scripts.rules.whole_rounds import TREES, static

judging = pytest.importorskip("models.cuda.judging", reason="needs Triton, torch's on Linux")
pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="with a GPU, scripts/gpu/check.sh runs them"
)
VOCAB = 8
PLANE = torch.rand(VOCAB, 2, generator=torch.Generator().manual_seed(0))
NEAREST = torch.cdist(PLANE, PLANE).argsort(dim=1)[:, 1:].int()
KINDS = ("near", "cut", "ties", "disjoint")
SETTINGS = [
    LanternSettings(k=3, delta=0.5),
    LanternSettings(k=4, delta=0.2, budget="per_candidate", residual="reference"),
    LanternSettings(k=4, delta=2.0, residual="reference"),
    LanternSettings(k=7, delta=1.0),
]
BORROWS = LanternSettings(k=6, delta=0.3)
TREE = {"method": "eagle2", "depth": 2, "width": 3, "nodes": 6}
WARM, GREEDY = SamplingDistribution(top_k=12), SamplingDistribution(temperature=0.0)


@cache
def laws(kind: str, vocab: int = VOCAB) -> Unfavourable:
    made = Unfavourable(kind, vocab, 5)
    made.log_p, made.log_q = made.log_p.float(), made.log_q.float()
    return made


def nodewise(walk: Walk, judge: Callable = judging.judge) -> Nodewise:
    """The kernel's form of a rule of the host."""
    borrowing = (
        (walk.settings, torch.from_numpy(walk.nearest)) if hasattr(walk, "nearest") else None
    )
    return Nodewise(walk, {"judge": judge, "substitute": judging.substitute}, borrowing)


def walks(proposal: str) -> Iterator[Walk]:
    """The rules that go with a proposal."""
    if proposal != "coupled":
        yield Sampled() if proposal == "sampled" else Rejection()
    for settings in SETTINGS:
        nearest = NEAREST[:, : settings.columns(VOCAB)]
        if proposal != "coupled":
            yield Lantern(settings, nearest)
        if proposal != "sampled" and settings.residual == "exact":
            yield LanternCoupled(settings, nearest)


CELLS = [
    (walk, tree, proposal)
    for tree, proposal in product(TREES, ("topk", "coupled", "sampled"))
    if proposal == "topk" or tree not in ("pruned", "doubled")
    for walk in walks(proposal)
]


@pytest.mark.parametrize("greedy", [False, True], ids=["T = 1", "T = 0"])
@pytest.mark.parametrize(
    "number", range(len(CELLS)) if ALL else (15, 17, 19, 23, 25, 27)
)  # siblings
def test_a_verdict_is_that_of_the_walk(number, greedy) -> None:
    (walk, tree, proposal), kind = CELLS[number], KINDS[number % len(KINDS)] if ALL else "near"
    seeds = range(3, 4 if greedy and proposal == "topk" else 8)  # else all would be the same
    given, noise = (laws(kind), TREES[tree], proposal), noise_of(seeds, 6, VOCAB, greedy)
    wanted, found = (one_round(*given, rule, noise)[1] for rule in (walk, nodewise(walk)))
    assert torch.equal(emitted(found), emitted(wanted))
    for image, accepted in enumerate(wanted.accepted.tolist()):
        ours, theirs = (verdict.path[image, : accepted + 1] for verdict in (found, wanted))
        assert torch.equal(ours, theirs)


def test_substitutes_are_those_of_the_host() -> None:
    """After every node, whatever the target chose there; all images differ."""
    generator, settings = torch.Generator().manual_seed(0), LanternSettings(k=6, delta=0.3)
    tree = random_tree(generator, 8, 4, VOCAB)
    log_p = torch.randn(8, 5, VOCAB, generator=generator).mul(0.3).log_softmax(-1)
    chosen = torch.randint(VOCAB, (8, 5), generator=generator)
    columns = tree.tokens, tree.parents, tree.depths, tree.scores
    right, choices = judging.substitute(log_p, chosen, columns, (settings, NEAREST))
    rule, certain = LanternCoupled(settings, NEAREST), torch.eye(VOCAB).log().numpy()
    for image, one in enumerate(trees_on_host(tree, log_p)):
        for node, choice in enumerate(chosen[image].tolist()):
            noise = SimpleNamespace(target=lambda depth, choice=choice: certain[choice])
            child, _ = rule.choose_child(one, node, noise)
            assert choices[image, node] == (choice if child is None else one.tokens[child])
            assert [c for c in one.children[node] if right[image, c]] == [child][
                : child is not None
            ]


METHODS = {
    "lantern": MethodSettings(**TREE, proposal="topk", verifier="lantern", numbers=BORROWS),
    "lantern, drawn": MethodSettings(
        "static", tree="chain", proposal="sampled", verifier="lantern", numbers=BORROWS
    ),
    "lantern_coupled": MethodSettings(**TREE, verifier="lantern_coupled", numbers=BORROWS),
    "rejection": MethodSettings(**TREE, verifier="rejection"),
    "sampled": MethodSettings("jacobi", proposal="sampled", verifier="sampled", window=3),
}


@pytest.mark.parametrize(
    "distribution", [WARM, pytest.param(GREEDY, marks=only_in_all)], ids=["T = 1", "T = 0"]
)
@pytest.mark.parametrize("name", thinned(thinned(METHODS)))
def test_images_are_those_of_the_walk(name, distribution, session32, monkeypatch) -> None:
    short = replace(session32, target=first_rows(session32.target, 8 if ALL else 4))
    vocab = short.target.vocab.size
    near = (torch.arange(vocab)[:, None] + torch.arange(1, 7)) % vocab
    parts = short.target, short.drafter, distribution, METHODS[name], 2, near.int()
    jobs = [Job(str(number), "a red cat", number) for number in range(3 if ALL else 2)]
    wanted, ran = codes(build_engine(*parts), jobs), []

    def counted(kernel: Callable) -> Callable:
        return lambda *args: ran.append(kernel) or kernel(*args)

    kernels = {name: counted(getattr(judging, name)) for name in ("judge", "substitute")}
    monkeypatch.setattr(short.target.transformer, "kernels", {"judging": lambda: kernels})
    engine = build_engine(*parts)
    assert engine.verifier.on_device and codes(engine, jobs) == wanted
    assert ran or (name in ("rejection", "sampled") and distribution is GREEDY)


def one_key(log_p, log_q, tree, numbers, *rest):
    """A wrong kernel: the number that judges code 0 also draws the bonus token."""
    keys, decided = numbers
    return judging.judge(log_p, log_q, tree, (keys[:, :1].repeat(1, 2), decided), *rest)


@only_in_all
def test_first_tokens_have_the_targets_distribution() -> None:
    noise, near, p_values = noise_of(range(300), 3, 4), copy(laws("near", 4)), []
    near.log_p, near.log_q = near.log_p.flip(1), near.log_q.flip(1)  # code 0 is drafted
    for judge in (judging.judge, one_key):
        given = near, static("root:1"), "sampled", nodewise(Sampled(), judge), noise
        verdict = one_round(*given)[1]
        counts = outcome_counts(verdict.emitted[:, :1], 4)
        p_values.append(p_value(counts, near.log_p[0].exp()))
    assert p_values[0] > 1e-4 > 1e-8 > p_values[1]
