"""From a method's settings to its engine."""

from torch import Tensor

from configs.fields import refuse, settled
from configs.methods import METHODS, TREES, MethodSettings
from configs.model import SamplingSettings
from configs.rules import PROPOSALS, RULES, loaded
from decoding.engine import Engine
from decoding.images import Sources, Speculation
from decoding.policies.base import TreePolicy
from decoding.sampling import SamplingDistribution
from decoding.verifiers.base import Verifier
from decoding.verifiers.nodewise import Nodewise
from drafters.drafting import Drafting
from drafters.eagle import EagleHead
from models.base import ImageGrid
from models.target import TargetModel
from support.kernels import NO_KERNELS, Kernels


def build_policy(method: MethodSettings, grid: ImageGrid) -> TreePolicy:
    """Build the policy of a drafting method; grid: of an image's tokens."""
    code = METHODS[method.method].policy
    assert code is not None, "plain decoding has none"
    return loaded(code)(method, grid)


def build_verifier(
    method: MethodSettings, nearest: Tensor | None = None, kernels: Kernels = NO_KERNELS
) -> Verifier:
    """Build the rule of a method.

    nearest: (codes, n) the codes nearest to every code. kernels: the target's.
    """
    entry, lantern, borrowing = RULES[method.verifier], method.lantern, None
    rule = loaded(entry.code)
    if lantern is not None and nearest is not None:
        borrowing = lantern, nearest
        walk = rule(*borrowing)
    else:
        walk = rule() if method.numbers is None else rule(method.numbers)
    judging = kernels["judging"]() if entry.nodewise and "judging" in kernels else NO_KERNELS
    return Nodewise(walk, judging, borrowing) if judging else walk


def sampling_distribution(settings: SamplingSettings) -> SamplingDistribution:
    """Return the distribution that the settings describe."""
    return SamplingDistribution(**vars(settings))


def _check_tree(method: MethodSettings, codes: int) -> None:
    """Refuse a static tree with nodes that have more children than the model has codes."""
    entries = TREES[method.tree].split() if method.tree is not None else ()
    if (most := max((int(entry.partition(":")[2]) for entry in entries), default=0)) > codes:
        refuse("tree", method.tree, f"a tree of at most {codes} children a node, not {most}")


def build_engine(  # noqa: PLR0913 (the parts of a loop)
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
    if (drafter_of := METHODS[method.method].drafter) is not None:
        _check_tree(method, target.vocab.size)
        policy = build_policy(method, target.grid)
        proposal = loaded(PROPOSALS[settled(method.proposal)])()
        parts = Drafting(target, drafter, distribution, method, policy.largest)
        speculation = Speculation(loaded(drafter_of)(parts), policy, proposal)
    verifier = build_verifier(method, nearest, target.transformer.kernels)
    return Engine(target, distribution, verifier, images, speculation, sources, replay, compiles)
