"""SJD-PAC's own drafts (arXiv 2603.18599; code 4fbc099): `--plugin scripts.rules.pac`.

Every undecided position has `--width` drafts. Two levels below the root of a tree branch into all
of them, a chain of first drafts goes on to `--nodes`. Behind a rejection a position keeps its first
draft with probability min(1, p / q), else draws it from what its refused drafts leave of p; p is
what its drafts are judged by next. `--method pac --verifier pac` draws the other drafts from what
is left of p as well and accepts the longest path, as published code does. Its repair is
`pac_repaired`: any draft may be kept, the others come from p, the first accepted one counts. Both
draw the token after a window that was accepted as a whole from p, where the code takes any.
"""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from configs.fields import refuse, settled
from configs.methods import Method, MethodSettings, register_method
from configs.rules import Rule, register_rule
from decoding.noise import uniform_at
from decoding.policies.base import Controller, FixedController
from decoding.proposals import Proposal
from decoding.round import Round, RoundResult, TreeShape
from decoding.stopwatch import Stopwatch
from decoding.tree import DraftTree, rows_at
from decoding.verifiers.host import ImageTree, draw, residual, trees_on_host
from drafters.drafting import Drafting
from drafters.jacobi import JacobiDrafter
from models.base import ImageGrid, PromptRows
from support.constants import arange, constant

_APART = 1 << 16  # numbers of positions that draw no token
LEVELS = 2  # of branches below the root: the tree of published code has a depth of 3 with its root


class PacDrafter(JacobiDrafter):
    """Remembers the drafts of every undecided position; `repaired`: as the module says."""

    def __init__(self, parts: Drafting, repaired: bool):
        super().__init__(parts.target, "random", parts.largest)
        self.width, self.repaired = parts.largest.width, repaired

    def open(self, images: int, slots: int, watch: Stopwatch) -> None:
        super().open(images, slots, watch)
        # (images, rows, width) -1: none
        size = (*self.log_p.shape[:2], self.width)
        self.drafts = torch.full(size, -1, device=self.device)

    def prefill(self, image: int, prompt: PromptRows, hidden: Tensor, code: Tensor) -> None:
        super().prefill(image, prompt, hidden, code)
        self.drafts[image] = -1

    def kept(self, round: Round) -> Tensor:
        """Return the drafts (images, window, width) of the next positions; -1: none."""
        rows = (round.position(arange(round.shape.window, self.device)) - 1) % self.rows
        return rows_at(self.drafts, rows)

    def update(self, result: RoundResult) -> None:
        self.drafts.fill_(-1)
        inputs, verdict = result.round.inputs, result.verdict
        ends = verdict.path.gather(1, verdict.accepted[:, None])
        known = torch.cat([inputs.decided, inputs.window, inputs.stream, ends], 1).tolist()
        for image, tree in enumerate(trees_on_host(result.tree, result.log_p)):
            decided, window, stream, end = known[image]
            nodes = tree.path_to(end)
            for depth in range(len(nodes), window):
                # a branch has no node there: the chain goes on, which saw other tokens before
                node = next(iter(tree.children[nodes[-1]]), depth)
                nodes.append(node)
                position = decided + depth
                numbers = [uniform_at(stream, position + _APART, n) for n in range(2 * self.width)]
                drafts = self.redrawn(tree, node, numbers)
                row = (position - 1) % self.rows
                self.drafts[image, row, : len(drafts)] = torch.tensor(drafts, device=self.device)
                self.log_p[image, row] = result.log_p[image, node]
            self.reached[image] = decided + max(window, 1) - 1

    def redrawn(self, tree: ImageTree, node: int, numbers: list[float]) -> list[int]:
        """Return the next drafts of the position after a node; there may be less than `width`."""
        p, drafts = tree.p(node), list[int]()
        left = p
        for rank, (_, token, q) in enumerate(tree.draws(node)):
            judged = rank == 0 or self.repaired
            accepted = judged and numbers[rank] * q[token] < left[token]
            left = residual(left, q)
            if accepted:
                drafts = [token]
                break
        for number in numbers[len(drafts) - self.width :]:
            weights = (p if self.repaired and drafts else left).copy()
            weights[drafts] = 0
            if not weights.any():
                break
            drafts.append(draw(weights, number))
        return drafts


class PacTree:
    """Two levels of branches that all have their position's drafts, and a chain of first drafts."""

    name = "pac"
    reads_entropy = False

    def __init__(self, width: int, nodes: int):
        branches = sum(width**level - 1 for level in range(1, LEVELS + 1))
        if nodes < branches + LEVELS:
            refuse("nodes", nodes, f"{branches + LEVELS} or more with --width {width}")
        self.largest = TreeShape(0, width, nodes, window=nodes - branches)

    def controller(self, seed: int) -> Controller:
        return FixedController(self.largest)

    def grow(self, round: Round, drafter: PacDrafter, proposal: Proposal) -> DraftTree:
        window, root = round.shape.window, round.inputs.code
        predictions = drafter.predict_ahead(round)
        new, _ = proposal.children(
            predictions, proposal.noise(round, slice(0, window), 1), drafter.width
        )
        kept = drafter.kept(round)
        drafts = torch.where(kept[..., :1] < 0, new, kept)  # (images, window, width)
        parents, depths, ranks = (
            constant(column, root.device).expand(len(root), -1)
            for column in nodes(window, drafter.width)
        )
        tokens = drafts.flatten(1).gather(1, (depths - 1) * drafter.width + ranks)
        absent = (tokens < 0) | (depths > round.inputs.window)
        tokens = F.pad(tokens.clamp(min=0), (1, 0))
        tokens[:, 0] = root
        scores = predictions.log_q.new_zeros(absent.shape).masked_fill(absent, -torch.inf)
        parents, depths, scores = (F.pad(column, (1, 0)) for column in (parents, depths, scores))
        for _ in range(LEVELS):  # nor are the nodes behind absent ones there
            scores = scores + scores.gather(1, parents)
        log_q = rows_at(F.pad(predictions.log_q, (0, 0, 0, 1)), depths) if round.keep_q else None
        return DraftTree(tokens, parents, depths, scores, window, drafter.width, log_q)


@cache
def nodes(window: int, width: int) -> tuple[tuple[int, ...], ...]:
    """Return parents, depths and ranks among siblings: the chain first, then the other branches."""
    rows = [(depth - 1, depth, 0) for depth in range(1, window + 1)]
    level = [0]
    for depth in range(1, min(LEVELS, window) + 1):
        # the chain's node is its parent's child of rank 0
        pairs = [(node, rank) for node in level for rank in range(width)][1:]
        level = [depth, *range(len(rows) + 1, len(rows) + 1 + len(pairs))]
        rows += [(node, depth, rank) for node, rank in pairs]
    return tuple(zip(*rows, strict=True))


def drafter(parts: Drafting) -> PacDrafter:
    """Build the drafter."""
    return PacDrafter(parts, repaired=parts.method.method == "pac_repaired")


def tree(method: MethodSettings, grid: ImageGrid) -> PacTree:
    """Build the policy of --width branches and --nodes."""
    return PacTree(settled(method.width), settled(method.nodes))


_DEFAULTS = {"proposal": "sampled", "width": 3, "nodes": 63}
_JUDGES = {"pac": "rules.sjd_pac:SjdPac", "pac_repaired": "verifiers.sampled:Sampled"}
for _name, _judge in _JUDGES.items():
    register_method(
        _name,
        Method("drafts that are kept, and branches of them (SJD-PAC)", tree, drafter, _DEFAULTS),
    )
    register_rule(
        _name,
        Rule(
            "the rule of these drafts",
            f"decoding.{_judge}",
            ("sampled",),
            (_name,),
            lossless=_name == "pac_repaired",
        ),
    )
