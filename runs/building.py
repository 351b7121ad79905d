"""From names to parts: the one place where target, drafter, policy, proposal and verifier meet in an engine."""

from dataclasses import dataclass

from torch import Tensor

from configs.methods import MethodSettings, SamplingSettings
from decoding.calibration import Calibration
from decoding.drafter import Drafter
from decoding.engine import Engine
from decoding.figures import Sources
from decoding.grow import Speculation
from decoding.policies.adaptive import AdaptiveTree
from decoding.policies.base import Shape, TreePolicy
from decoding.policies.dynamic import DynamicTree
from decoding.policies.marginal import MarginalTree, Prices
from decoding.policies.static import NAMED_TREES, StaticTree, rank_paths
from decoding.proposals import PROPOSALS
from decoding.sampling import SamplingDistribution
from decoding.verifiers.base import Verifier
from decoding.verifiers.exact import Exact
from decoding.verifiers.lantern import Lantern, LanternCoupled
from decoding.verifiers.rejection import Rejection
from decoding.verifiers.sampled import Sampled
from drafters.calibrations import UNCALIBRATED, Calibrations
from drafters.graft import GraftDrafter
from drafters.jacobi import JacobiDrafter
from drafters.loading import LoadedDrafter
from models.base import TargetModel


@dataclass(frozen=True)
class Tables:
    """What an engine reads besides the weights.

    nearest: (codes, n) the codes nearest to every code, for relaxed acceptance. prices: of nodes
    and levels, for trees that choose their size. sources: how errors name the models.
    """

    nearest: Tensor | None = None
    prices: Prices | None = None
    sources: Sources = Sources()


NO_TABLES = Tables()


def build_policy(method: MethodSettings, columns: int, prices: Prices | None = None) -> TreePolicy:
    """The policy of a drafting method; columns: image tokens per row; prices: where the method weighs them."""
    match method.method:
        case "static":
            return StaticTree(rank_paths(NAMED_TREES[method.tree]))
        case "eagle2":
            return DynamicTree(Shape(method.depth, method.width, method.nodes))
        case "jacobi":
            return DynamicTree(Shape(0, 1, method.window, method.window))
        case "graft":
            return _priced(
                Shape(method.depth, method.width, method.nodes, method.window), prices, columns
            )
        case "marginal":
            return _priced(Shape(method.depth, method.width, method.nodes), prices, columns)
        case "adt":
            return AdaptiveTree(method.adt, method.nodes, columns)
    raise AssertionError(f"{method.method} drafts no trees")


def _priced(largest: Shape, prices: Prices | None, columns: int) -> TreePolicy:
    """A tree of the size that pays for itself, or just of the largest one where there are no prices."""
    return DynamicTree(largest) if prices is None else MarginalTree(largest, prices, columns)


VERIFIERS: dict[str, Verifier] = {
    verifier.name: verifier for verifier in (Exact(), Rejection(), Sampled())
}
RELAXED: dict[str, type[Verifier]] = {
    verifier.name: verifier for verifier in (Lantern, LanternCoupled)
}


def build_verifier(method: MethodSettings, nearest: Tensor | None) -> Verifier:
    """The verifier of a method; nearest: (codes, n) the codes nearest to every code, for relaxed acceptance."""
    if method.verifier in VERIFIERS:
        return VERIFIERS[method.verifier]
    return RELAXED[method.verifier](method.lantern, nearest)


def sampling_distribution(settings: SamplingSettings) -> SamplingDistribution:
    """The law of the settings."""
    return SamplingDistribution(settings.temperature, settings.top_k, settings.top_p, settings.cfg)


def calibration_of(
    method: MethodSettings, distribution: SamplingDistribution, known: Calibrations
) -> Calibration:
    """Return the calibration that a method uses under a distribution: factors of 1 if it uses none.

    known: the calibrations of its drafter.
    """
    fitted = "topk" if method.proposal == "sampled" else method.proposal  # both estimate by q
    return known.of(distribution, fitted) if method.calibration == "drafter" else Calibration()


def build_engine(
    target: TargetModel,
    drafter: LoadedDrafter | None,
    distribution: SamplingDistribution,
    method: MethodSettings,
    images: int,
    tables: Tables = NO_TABLES,
) -> Engine:
    """Compose the engine of a method; `drafter` may be None for methods without one."""
    speculation = None
    if method.speculative:
        policy = build_policy(method, target.grid.columns, tables.prices)
        source = build_drafter(target, drafter, distribution, method, policy.largest)
        proposal = PROPOSALS[method.proposal]
        known = UNCALIBRATED if drafter is None else drafter.calibrations
        children = proposal(calibration_of(method, distribution, known))
        speculation = Speculation(source, policy, children, foreseen=proposal())
    verifier = build_verifier(method, tables.nearest)
    return Engine(target, distribution, verifier, images, speculation, tables.sources)


def build_drafter(
    target: TargetModel,
    drafter: LoadedDrafter | None,
    distribution: SamplingDistribution,
    method: MethodSettings,
    largest: Shape,
) -> Drafter:
    """Return the source of a method's drafts: a loaded drafter, stale predictions, or both.

    largest: the largest of the method's trees.
    """
    jacobi = None if method.window is None else JacobiDrafter(target, method.window, method.guess)
    if not method.drafted:
        return jacobi
    room = largest.depth * largest.width + largest.nodes
    near = drafter.open(target, distribution, room)
    return near if jacobi is None else GraftDrafter(near, jacobi)
