"""Tree policies by the name of their method."""

from configs.schema import MethodSettings
from decoding.policies.adaptive import AdaptiveTree
from decoding.policies.base import Shape, TreePolicy
from decoding.policies.dynamic import DynamicTree
from decoding.policies.static import NAMED_TREES, StaticTree, rank_paths


def build_policy(method: MethodSettings, columns: int) -> TreePolicy:
    """The policy of a drafting method; columns: image tokens per row."""
    match method.method:
        case "static":
            return StaticTree(rank_paths(NAMED_TREES[method.tree]))
        case "eagle2":
            return DynamicTree(Shape(method.depth, method.width, method.nodes))
        case "adt":
            return AdaptiveTree(method.adt, method.nodes, columns)
    raise AssertionError(f"{method.method} drafts no trees")
