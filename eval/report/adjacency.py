"""Do adjacent positions of an image accept alike? Definitions, and correlations over the traces of a run.

The acceptance of a position is the number of draft tokens that were accepted in the round that decided it, the bonus
token not counted. Position 0, which the prefill decides, has none, and neither have the positions of a round whose tree
the image's end has cut. A position is compared with

    previous      the position before it, also across the start of a row
    left          the same, within a row
    upper         the position above, unless the same round decided both
    other_image   control: the same position in another image, chosen at random (what all images have in common)
    elsewhere     control: another position of the same image, chosen at random (images that are easy all over)

on two levels. `rounds` takes the first position of every round: its acceptance against acceptances that are known when
its tree is planned, with `previous` that of the round before, and `left` the same wherever a border between rounds lies
within a row. This is what an adaptive tree can use. `positions` takes all positions: a round counts once per token that
it decided, and neighbours that one round decided agree by construction, so `left` there says little about images.

Partial correlations tell what one neighbour adds to the other. Trees that never change show the target and the drafter
alone; with ADT-Tree the tree, and so the acceptance, depends on the neighbours itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eval.metrics.paired import Estimate, estimate

# name -> the variables whose correlation it is: the first two, given the third
PAIRS = {name: ("own", name) for name in ("previous", "left", "upper", "other_image", "elsewhere")}
PAIRS |= {
    "upper_given_left": ("own", "upper", "left"),
    "left_given_upper": ("own", "left", "upper"),
}


@dataclass(frozen=True)
class ImageTrace:
    """An image's rounds by position, (tokens,) each: the deciding round's number (-1 at position 0) and accepted draft
    tokens, whether the image's end cut its tree, and the target's top-1 probability; NaN where there is none."""

    rounds: np.ndarray
    accepted: np.ndarray
    cut: np.ndarray
    top1: np.ndarray

    @staticmethod
    def of(lines: Sequence[Mapping[str, Any]], tokens: int) -> "ImageTrace":
        """From an image's lines of trace.jsonl; ValueError unless they decide every position after the first."""
        rounds, accepted, top1 = (
            np.full(tokens, -1),
            np.full(tokens, np.nan),
            np.full(tokens, np.nan),
        )
        cut, position = np.zeros(tokens, dtype=bool), 1
        for line in sorted(lines, key=lambda line: line["round"]):
            end = position + line["accepted"] + 1
            if line["position"] != position or end > tokens or len(line["top1"]) != end - position:
                raise ValueError(f"round {line['round']} does not continue at position {position}")
            rounds[position:end], accepted[position:end] = line["round"], line["accepted"]
            cut[position:end], top1[position:end] = (
                line["depth"] >= tokens - position - 1,
                line["top1"],
            )
            position = end
        if position != tokens:
            raise ValueError(f"found rounds up to position {position} of {tokens}")
        return ImageTrace(rounds, accepted, cut, top1)

    @property
    def whole(self) -> np.ndarray:
        """Accepted draft tokens (tokens,), NaN where the tree was cut, too."""
        return np.where(self.cut, np.nan, self.accepted)

    @property
    def starts(self) -> np.ndarray:
        """The first position of every round."""
        return 1 + np.flatnonzero(np.diff(self.rounds))


def grid_columns(tokens: int, size: tuple[int, int]) -> int:
    """Image tokens per row of an image of (width, height) pixels; ValueError if the tokens do not fill the rows."""
    columns = max(1, round((tokens * size[0] / size[1]) ** 0.5))
    if tokens % columns:
        raise ValueError(
            f"found {tokens} tokens for {size[0]} x {size[1]} pixels; they fill no grid of its shape"
        )
    return columns


@dataclass(frozen=True)
class Correlation:
    """Over all pairs of all images; the intervals are over images."""

    pairs: int
    pearson: Estimate
    spearman: Estimate


def correlations(
    traces: Sequence[ImageTrace], columns: int, samples: int = 2000
) -> dict[str, dict[str, Correlation | None]]:
    """level -> name of PAIRS -> correlation; None where it is not defined: a constant, or too few images or pairs."""
    draw = np.random.default_rng(0)
    order = draw.permutation(len(traces))
    partners = dict(
        zip(order, np.roll(order, 1), strict=True)
    )  # never the image itself, if there are two
    found: dict[str, dict[str, Correlation | None]] = {}
    for level in ("rounds", "positions"):
        rows = []
        for number, image in enumerate(traces):
            places = image.starts if level == "rounds" else np.arange(1, len(image.rounds))
            rows.append(_variables(image, traces[partners[number]], places, columns, draw))
        found[level] = {
            name: correlation([np.stack([row[key] for key in keys]) for row in rows], samples)
            for name, keys in PAIRS.items()
        }
    return found


def _variables(
    image: ImageTrace,
    other: ImageTrace,
    places: np.ndarray,
    columns: int,
    draw: np.random.Generator,
) -> dict[str, np.ndarray]:
    """The acceptances (places,) of the positions `places`, and of what they are compared with."""
    values, above = image.whole, np.maximum(places - columns, 0)  # position 0 has no acceptance
    random = draw.integers(1, len(values), len(places))
    return {
        "own": values[places],
        "previous": values[places - 1],
        "left": np.where(places % columns, values[places - 1], np.nan),
        "upper": np.where(image.rounds[above] != image.rounds[places], values[above], np.nan),
        "other_image": other.whole[places] if other is not image else np.full(len(places), np.nan),
        "elsewhere": np.where(image.rounds[random] != image.rounds[places], values[random], np.nan),
    }


def correlation(variables: Sequence[np.ndarray], samples: int = 2000) -> Correlation | None:
    """The correlation of two variables, given a third if there is one.

    Args:
        variables: per image (2 or 3, pairs); columns with a NaN are left out.
        samples: draws of images for the intervals; ranks stay those of all pairs.
    """
    complete = [table[:, ~np.isnan(table).any(0)] for table in variables]
    values = np.concatenate(complete, axis=1)
    if values.shape[1] < 4 or np.ptp(values, axis=1).min() == 0:
        return None
    borders = np.cumsum([table.shape[1] for table in complete])[:-1]
    figures = []
    for table in (values, np.stack([_ranks(row) for row in values])):
        scaled = (table - table.mean(1, keepdims=True)) / table.std(1, keepdims=True)
        moments = np.stack([_moments(part) for part in np.split(scaled, borders, axis=1)])
        figures.append(
            estimate(
                lambda counts, m=moments: _partial(np.tensordot(counts, m, 1)),
                len(moments),
                samples,
            )
        )
    return (
        None
        if np.isnan([figure.value for figure in figures]).any()
        else Correlation(values.shape[1], *figures)
    )


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks (n,) of values (n,), equal ones sharing their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def _moments(table: np.ndarray) -> np.ndarray:
    """Sums of the products of every two of: one, and the variables (k, pairs); (1 + k, 1 + k)."""
    extended = np.vstack([np.ones(table.shape[1]), table])
    return extended @ extended.T


def _partial(moments: np.ndarray) -> float:
    """The correlation of the first two variables, given the third if there is one, from sums (1 + k, 1 + k)."""
    mean = moments[0, 1:] / moments[0, 0]
    covariance = moments[1:, 1:] / moments[0, 0] - np.outer(mean, mean)
    deviation = np.sqrt(covariance.diagonal())
    with np.errstate(divide="ignore", invalid="ignore"):
        r = covariance / np.outer(deviation, deviation)
        if len(r) == 2:
            return float(r[0, 1])
        return float(
            (r[0, 1] - r[0, 2] * r[1, 2]) / np.sqrt((1 - r[0, 2] ** 2) * (1 - r[1, 2] ** 2))
        )
