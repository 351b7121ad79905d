"""PathRelax (arXiv 2606.10492): PathExplore, where a draft borrows from the other paths.

To p(x) it adds a share of the mean probability of the other paths' drafts at that position.
"""

from decoding.rules import PathSettings
from decoding.rules.path_explore import PathExplore
from decoding.verifiers.host import Array, ImageTree


class PathRelax(PathExplore):
    """Judges the proposal `sampled`, in trees of fixed shape."""

    name = "path_relax"

    def __init__(self, settings: PathSettings):
        self.settings = settings

    def mass(self, tree: ImageTree, node: int, p: Array) -> float:
        present = [child for children in tree.children for child in children]
        depth = tree.depths[node]
        others = [tree.tokens[n] for n in present if tree.depths[n] == depth and n != node]
        mean = p[others].mean() if others else 0.0
        return super().mass(tree, node, p) + self.settings.delta * mean
