"""Tree policies by the name of their method."""

from configs.schema import MethodSettings
from decoding.policies.adaptive import AdaptiveTree
from decoding.policies.base import Shape, TreePolicy
from decoding.policies.dynamic import DynamicTree
from decoding.policies.marginal import MarginalTree, Prices
from decoding.policies.static import NAMED_TREES, StaticTree, rank_paths


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
            return _priced(Shape(method.depth, method.width, method.nodes, method.window), prices, columns)
        case "marginal":
            return _priced(Shape(method.depth, method.width, method.nodes), prices, columns)
        case "adt":
            return AdaptiveTree(method.adt, method.nodes, columns)
    raise AssertionError(f"{method.method} drafts no trees")


def _priced(largest: Shape, prices: Prices | None, columns: int) -> TreePolicy:
    """A tree of the size that pays for itself, or just of the largest one where there are no prices."""
    return DynamicTree(largest) if prices is None else MarginalTree(largest, prices, columns)
