"""What rounds cost on this machine: by the nodes that the target verifies, and by the draft.

A level that asks the head costs much more than one that recalls stale predictions, and a drafter of
one pass pays once for all levels.
"""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from configs.fields import SettingsError
from configs.method_table import METHODS
from configs.methods import MethodSettings
from decoding.policies.ways import Prices
from support.durable import replace_file
from support.json_files import read_object
from support.user_cache import cache_folder

_SLOTS = {"level": 8, "recall": 8, "block": 64}  # that a pass of the draft reads, per image


@dataclass(frozen=True)
class Costs:
    """Measured milliseconds of a round.

    nodes: numbers of verified nodes per image, ascending from 0. verify: of a round without its
    draft, for each of these. level: of one draft level that asks the head, with the growing of the
    tree. recall: of one that recalls stale predictions. block: of the one pass of a drafter that
    reads all levels at once. images: how many were decoded together; None where a file does not
    say, which then holds for any batch as it is.

    level and block are None where no such drafter was measured. recall is None in older files,
    which price any level by `level`.
    """

    nodes: tuple[float, ...]
    verify: tuple[float, ...]
    level: float | None
    images: int | None = None
    recall: float | None = None
    block: float | None = None

    def at(self, images: int) -> "Costs":
        """Return the costs of rounds of so many images.

        A pass is taken to last as long as one over the same number of tokens, however these are
        spread over images; the draft changes as a pass over as many slots does.
        """
        if self.images in (None, images):
            return self
        share = images / self.images
        verify = tuple(self._pass(share * (1 + nodes)) for nodes in self.nodes)
        draft = {
            name: getattr(self, name) * self._pass(share * slots) / self._pass(slots)
            for name, slots in _SLOTS.items()
            if getattr(self, name) is not None
        }
        return replace(self, verify=verify, images=images, **draft)

    def _pass(self, tokens: float) -> float:
        """Return the milliseconds of a pass over so many tokens per measured image.

        Below one token the first difference goes on, but a pass is not cheaper than its share.
        """
        if tokens >= 1:
            return self.round(tokens - 1)
        slope = (self.verify[1] - self.verify[0]) / (self.nodes[1] - self.nodes[0])
        return max(self.verify[0] - slope * (1 - tokens), self.verify[0] * tokens)

    def prices(self, method: MethodSettings, one_pass: bool = False) -> Prices:
        """Return the prices for the trees of a method; arguments and errors as for `draft`."""
        deepest, nodes = method.depth or 0, method.nodes or method.window
        draft = (self.draft(method, levels, one_pass) for levels in range(deepest + 1))
        alone = not (one_pass or METHODS[method.method].one_pass)
        timed = method.prices is None  # a file of prices repeats the same trees
        return Prices(self.verified(nodes), tuple(draft), alone, timed)

    def verified(self, nodes: int) -> tuple[float, ...]:
        """Return the milliseconds of rounds without their draft, by nodes, up to so many.

        Times that fall with more nodes are measurement noise, and evened out from both sides.
        """
        times = np.array([self.round(count) for count in range(nodes + 1)])
        verify = (np.maximum.accumulate(times) + np.minimum.accumulate(times[::-1])[::-1]) / 2
        return tuple(verify.tolist())

    def draft(self, method: MethodSettings, levels: float, one_pass: bool = False) -> float:
        """Return the milliseconds of a method's draft of so many levels.

        one_pass: whether the drafter reads all levels at once, whatever the method.

        Raises:
            SettingsError: the drafter was not measured.
        """
        entry, own = METHODS[method.method], method.method
        if self.recall is None:
            return self._known("level", own) * levels
        if one_pass or entry.one_pass:
            return self._known("block", own) * min(levels, 1) + self.recall * levels
        asked = min(levels, method.head_depth or levels) if entry.drafted else 0
        recalled = levels if entry.recalls else 0
        return (self._known("level", own) * asked if asked else 0.0) + self.recall * recalled

    def _known(self, name: str, method: str) -> float:
        """Return `level` or `block`; refuse costs without it."""
        if (found := getattr(self, name)) is None:
            allowed = f"for --method {method} those measured with its drafter"
            raise SettingsError(
                f"--prices, --costs: found costs without {name}; allowed: {allowed}"
            )
        return found

    def round(self, nodes: float, draft: float = 0.0) -> float:
        """Return the milliseconds of a round: linear between measured nodes, and beyond.

        draft: milliseconds of its draft, as the method `draft` returns them.
        """
        last = max(self.verify[-1] - self.verify[-2], 0) / (self.nodes[-1] - self.nodes[-2])
        beyond = max(nodes - self.nodes[-1], 0) * last
        return float(np.interp(nodes, self.nodes, self.verify)) + beyond + draft

    def speedup(self, row: Mapping[str, Any]) -> float:
        """Return the speed-up over plain decoding that a method's counts promise.

        row: of `benchmark`, with method, tau, mean_nodes, levels, draft_forwards and
        target_forwards.
        """
        rounds = row["target_forwards"] - 1
        return (
            row["tau"] * self.round(0) / self.round(row["mean_nodes"], self._drafts(row) / rounds)
        )

    def _drafts(self, row: Mapping[str, Any]) -> float:
        """Return the milliseconds of all drafts of an image, by the counts of a row.

        Rows of before levels were counted have those that asked the head.
        """
        asked, entry = row["draft_forwards"], METHODS[row["method"]]
        if self.recall is None:
            return self._known("level", row["method"]) * asked if asked else 0.0
        recalled = row.get("levels", asked) if entry.recalls or entry.one_pass else 0
        head = self._known("block" if entry.one_pass else "level", row["method"]) if asked else 0.0
        return head * asked + self.recall * recalled

    @staticmethod
    def read(path: Path) -> "Costs":
        """Return the costs that `scripts.tools.costs` wrote; a SettingsError names a fault."""
        content = read_object(path).get("costs")
        try:
            nodes, verify = (tuple(map(float, content[name])) for name in ("nodes", "verify"))
            draft = {
                name: None if content.get(name) is None else float(content[name]) for name in _SLOTS
            }
            images = content.get("images")
            costs = Costs(nodes, verify, images=None if images is None else int(images), **draft)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            found = f"found costs that cannot be read: {error!r}"
            raise SettingsError(
                f"{path}: {found}; allowed: what python -m scripts.tools.costs writes"
            ) from error
        if fault := costs.fault():
            raise SettingsError(f"{path}: found {fault}")
        return costs

    def fault(self) -> str | None:
        """Return what is wrong with the numbers, and what is allowed; None if they can be used."""
        rising = self.nodes[:1] == (0,) and list(self.nodes) == sorted(set(self.nodes))
        if not rising or not len(self.nodes) == len(self.verify) > 1:
            return "other numbers of nodes; allowed: some that rise from 0, with a time each"
        draft = [time for name in _SLOTS if (time := getattr(self, name)) is not None]
        if not all(0 < time < np.inf for time in (*self.verify, *draft)):
            return "a time that is not above 0; allowed: milliseconds above 0"
        if self.level is None and self.recall is None:
            return "neither level nor recall; allowed: the milliseconds of at least one of them"
        if self.images is not None and self.images < 1:
            return f"{self.images} images; allowed: at least 1"
        return None


def machine_costs(key: str, measure: Callable[[], Costs]) -> Costs:
    """Return the costs kept under this key in the user's cache folder, or measure and keep them.

    Costs that cannot be read are measured anew; that, and a folder that takes no file, is said on
    standard error.
    """
    path = cache_folder() / f"costs-{key}.json"
    try:
        if path.is_file():
            return Costs.read(path)
    except ValueError as error:
        print(f"{error}: measured anew", file=sys.stderr)
    costs = measure()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_costs(path, costs)
    except OSError as error:
        print(f"{path}: costs cannot be kept: {error}", file=sys.stderr)
    return costs


def write_costs(path: Path, costs: Costs) -> None:
    """Write costs to a file that `Costs.read` and --prices take."""
    replace_file(path, (json.dumps({"costs": asdict(costs)}) + "\n").encode())
