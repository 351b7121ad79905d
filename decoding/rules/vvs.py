"""VVS: some rounds decide without verification (arXiv 2511.13587; code 7790173, policy `uniform`).

Published code skips every fifth round: it decides a random path of the tree, cut to the mean length
of all paths, whose last token is the next tree's root. Here a round is skipped with that frequency,
by a number of its own, and the others are judged as EAGLE-2 does; the published script adds
LANTERN. Its target does not run in a skipped round: it reads the path together with the next tree,
and drafts go on from stale features. A rule sees trees that the target has scored, so here drafts
are better than there, and accepted lengths are to be counted per verified round.
"""

from decoding.noise import HostNoise
from decoding.rules import VvsSettings
from decoding.verifiers.host import Array, ImageTree, point_mass
from decoding.verifiers.rejection import Rejection


class Vvs(Rejection):
    """Judges all but some rounds."""

    name = "vvs"
    lossless = False

    def __init__(self, settings: VvsSettings):
        self.settings = settings

    def judge(self, tree: ImageTree, noise: HostNoise) -> tuple[list[int], Array]:
        return self.unverified(tree, noise) or super().judge(tree, noise)

    def judge_greedily(self, tree: ImageTree, noise: HostNoise) -> tuple[list[int], Array]:
        return self.unverified(tree, noise) or super().judge_greedily(tree, noise)

    def unverified(self, tree: ImageTree, noise: HostNoise) -> tuple[list[int], Array] | None:
        """Return the part of a random path that a skipped round decides; None if it is verified."""
        present = sorted(child for children in tree.children for child in children)
        leaves = [node for node in present if not tree.children[node]]
        vocab = tree.log_p.shape[1]  # the columns below it judge tokens
        if not leaves or not noise.accept(0, vocab) * self.settings.interval < 1:
            return None
        number = noise.accept(0, vocab + 1) * len(leaves)
        chosen = next((leaf for i, leaf in enumerate(leaves[:-1], 1) if number < i), leaves[-1])
        mean = sum(tree.depths[leaf] + 1 for leaf in leaves) // len(leaves)
        path = tree.path_to(chosen)[: max(mean, 2)]
        return path[:-1], point_mass(tree.tokens[path[-1]], vocab)
