"""The methods and acceptance rules, and from a method's settings to its engine.

A new method or rule has an entry at the end, and one of its settings in configs.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from configs import acceptance as acceptance_of
from configs import method_table as traits_of
from configs.acceptance import Acceptance
from configs.fields import SettingsError, mismatch
from configs.method_table import MethodTraits
from configs.methods import MethodSettings, fitted_numbers
from configs.sampling import SamplingSettings
from decoding.drafter import Drafter
from decoding.engine import Engine
from decoding.images import Speculation
from decoding.policies.adaptive import AdaptiveTree
from decoding.policies.base import TreePolicy
from decoding.policies.chain import ChainTree
from decoding.policies.dynamic import DynamicTree
from decoding.policies.static import NAMED_TREES, StaticTree, rank_paths
from decoding.proposals import PROPOSALS, Proposal
from decoding.round import Sources, TreeShape
from decoding.rules.block_verification import BlockVerification
from decoding.rules.gsd import Gsd
from decoding.rules.path_explore import PathExplore
from decoding.rules.path_relax import PathRelax
from decoding.rules.spectr import SpecTr
from decoding.rules.traversal import Traversal
from decoding.sampling import SamplingDistribution
from decoding.verifiers.base import Verifier
from decoding.verifiers.exact import Exact
from decoding.verifiers.lantern import Lantern, LanternCoupled
from decoding.verifiers.rejection import Rejection
from decoding.verifiers.sampled import Sampled
from drafters.block import BlockDrafter, BlockHead
from drafters.eagle import EagleDrafter, EagleHead
from drafters.jacobi import JacobiDrafter
from drafters.mixed import MixedDrafter
from drafters.recall import FITTED_TO_TINY, RecallDrafter, RecallNumbers
from models.base import ImageGrid
from models.target import TargetModel


def build_policy(method: MethodSettings, grid: ImageGrid) -> TreePolicy:
    """Return the policy of a drafting method; grid: of an image's tokens."""
    return METHODS[method.method].policy(method, grid)


def dynamic_tree(
    method: MethodSettings, grid: ImageGrid | None = None, refreshes: bool = False
) -> TreePolicy:
    """Return the policy of trees that always have the method's size.

    refreshes: later rounds of the drafter recall the predictions after a tree.
    """
    return DynamicTree(TreeShape(method.depth, method.width, method.nodes), refreshes)


# for drafters whose later rounds recall the predictions after a tree
_recalled_tree = partial(dynamic_tree, refreshes=True)


def sampling_distribution(settings: SamplingSettings) -> SamplingDistribution:
    return SamplingDistribution(settings.temperature, settings.top_k, settings.top_p, settings.cfg)


def build_engine(
    target: TargetModel,
    drafter: EagleHead | None,  # None for methods without weights
    distribution: SamplingDistribution,
    method: MethodSettings,
    images: int,  # most images in flight
    nearest: Tensor | None = None,  # (codes, n) the codes nearest to every code, for relaxed rules
    sources: Sources = Sources(),  # noqa: B008 (frozen); how errors name the models
    replay: bool = False,  # whether rounds are CUDA graphs
    compiles: bool = False,  # whether the small steps of rounds are compiled
) -> Engine:
    """Compose the engine of a method."""
    speculation = None
    if method.speculative:
        policy = build_policy(method, target.grid)
        proposal = PROPOSALS[method.proposal]()
        parts = Drafting(target, drafter, distribution, method, policy.largest, proposal)
        speculation = Speculation(METHODS[method.method].drafter(parts), policy, proposal)
    rule, numbers = VERIFIERS[method.verifier], method.relaxed
    verifier = rule() if numbers is None else rule(numbers, nearest)
    return Engine(target, distribution, verifier, images, speculation, sources, replay, compiles)


@dataclass(frozen=True)
class Drafting:
    target: TargetModel
    loaded: EagleHead | None  # the drafter with weights; None for methods without one
    distribution: SamplingDistribution
    method: MethodSettings
    largest: TreeShape  # the largest tree that the method's policy allows
    proposal: Proposal


def eagle_drafter(parts: Drafting) -> Drafter:
    """Return the drafter with weights that drafts level by level."""
    return EagleDrafter(parts.loaded, parts.target, parts.distribution, parts.largest)


def recall_drafter(parts: Drafting) -> Drafter:
    """Return a drafter without weights: stale predictions, recalled by similarity of tokens."""
    text = parts.method.recall_numbers
    numbers = FITTED_TO_TINY if text is None else RecallNumbers.of(fitted_numbers(text))
    return RecallDrafter(parts.target, parts.method.guess, parts.largest, numbers, parts.proposal)


def block_drafter(parts: Drafting) -> Drafter:
    """Return the drafter with weights that reads stale hidden states and drafts in three passes."""
    head = BlockHead.of(parts.loaded)
    return BlockDrafter(head, parts.target, parts.distribution, parts.largest, parts.proposal)


def eagle_recall_drafter(parts: Drafting) -> Drafter:
    """Return the drafter with weights, mixed with stale predictions recalled by similarity."""
    near, far = eagle_drafter(parts), recall_drafter(parts)
    return MixedDrafter(
        near, far, parts.method.head_depth or parts.method.depth, parts.distribution.cuts
    )


@dataclass(frozen=True)
class Method:
    """What makes the parts of a method."""

    policy: Callable[[MethodSettings, ImageGrid], TreePolicy]  # of settings and grid
    drafter: Callable[[Drafting], Drafter]


# Plain decoding, `ar`, has no entry: it drafts nothing.
METHODS: dict[str, Method] = {
    "static": Method(
        lambda method, grid: StaticTree(rank_paths(NAMED_TREES[method.tree])), eagle_drafter
    ),
    "eagle2": Method(dynamic_tree, eagle_drafter),
    "adt": Method(lambda method, grid: AdaptiveTree(method.adt, method.nodes, grid), eagle_drafter),
    "jacobi": Method(  # a chain of the target's own stale predictions
        lambda method, grid: ChainTree(method.window),
        lambda parts: JacobiDrafter(parts.target, parts.method.guess, parts.largest),
    ),
    "recall": Method(_recalled_tree, recall_drafter),
    "block": Method(_recalled_tree, block_drafter),
    "eagle_recall": Method(_recalled_tree, eagle_recall_drafter),
}
# Rules with numbers of their own are called with these and the nearest codes.
VERIFIERS: dict[str, Callable[..., Verifier]] = {
    rule.name: rule
    for rule in (
        Exact,
        Rejection,
        Sampled,
        SpecTr,
        BlockVerification,
        Traversal,
        Lantern,
        LanternCoupled,
        Gsd,
        PathExplore,
        PathRelax,
    )
}

_owners: dict[tuple[int, str], str] = {}  # modules by the table and the name that they registered


def register_method(name: str, traits: MethodTraits, method: Method) -> None:
    """Add a method to those of --method: its settings' defaults, and what makes its parts.

    The same module may register a name again, as a notebook's cell does that is run again; a
    SettingsError if the name is that of another module.
    """
    _claim(name, traits_of.METHODS)
    traits_of.METHODS[name], METHODS[name] = traits, method


def register_verifier(name: str, acceptance: Acceptance, verifier: Callable[..., Verifier]) -> None:
    """Add a rule to those of --verifier: what it keeps, what makes it; as `register_method`."""
    if acceptance.numbers not in (None, *acceptance_of.NUMBERS):
        classes = ", ".join(numbers.__name__ for numbers in acceptance_of.NUMBERS)
        raise mismatch(f"rule {name!r}: numbers", acceptance.numbers.__name__, f"{classes} or None")
    _claim(name, acceptance_of.VERIFIERS)
    acceptance_of.VERIFIERS[name], VERIFIERS[name] = acceptance, verifier


def _claim(name: str, names: Mapping[str, object]) -> None:
    """Refuse a name of another module: results on disk tell methods apart by it."""
    module = sys._getframe(2).f_globals["__name__"]  # of the caller of register_...
    if name in names and _owners.get((id(names), name)) != module:
        raise SettingsError(f"{name!r} is taken. Choose a name other than {', '.join(names)}")
    _owners[id(names), name] = module
