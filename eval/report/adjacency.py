"""Do neighbouring positions of an image accept alike? Correlations over the traces of a run.

The acceptance of a position is the number of draft tokens accepted in the round that decided it,
without the bonus token. Position 0, which the prefill decides, has none; neither have the positions
of a round whose tree was cut by the image's end. A position is compared with

    previous      the position before it, also across the start of a row
    left          the same, within a row
    upper         the position above, unless the same round decided both
    other_image   control: the same position of another image (what all images have in common)
    elsewhere     control: another position of the same image (images that are easy all over)

on two levels. Image and position of the controls are random.

`rounds` takes the first position of every round and compares its acceptance with acceptances that
are known when its tree is planned. Here `previous` is the round before, and `left` is the same
wherever two rounds meet within a row. This is what an adaptive tree can use.

`positions` takes all positions, so a round counts once per token that it decided. Neighbours that
one round decided are equal by construction, so `left` says little about images here.

Partial correlations tell what one neighbour adds to the other. Trees that never change show the
target and the drafter alone; with ADT-Tree the tree, and so the acceptance, depends on the
neighbours itself.
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
    """An image's rounds by position, arrays of (tokens,).

    Attributes:
        rounds: number of the round that decided a position, -1 at position 0.
        accepted: draft tokens accepted in that round, NaN at position 0.
        cut: whether the image's end cut that round's tree.
        top1: the target's highest probability at the position, NaN at position 0.
    """

    rounds: np.ndarray
    accepted: np.ndarray
    cut: np.ndarray
    top1: np.ndarray

    @staticmethod
    def of(lines: Sequence[Mapping[str, Any]], tokens: int) -> "ImageTrace":
        """Read an image's lines of trace.jsonl.

        Raises:
            ValueError: they do not decide every position after the first.
        """
        rounds, cut = np.full(tokens, -1), np.zeros(tokens, dtype=bool)
        accepted, top1 = np.full(tokens, np.nan), np.full(tokens, np.nan)
        position = 1
        for line in sorted(lines, key=lambda line: line["round"]):
            end = position + line["accepted"] + 1
            if line["position"] != position or end > tokens or len(line["top1"]) != end - position:
                raise ValueError(f"round {line['round']} does not continue at position {position}")
            rounds[position:end], accepted[position:end] = line["round"], line["accepted"]
            cut[position:end] = line["depth"] >= tokens - position - 1
            top1[position:end] = line["top1"]
            position = end
        if position != tokens:
            raise ValueError(f"found rounds up to position {position} of {tokens}")
        return ImageTrace(rounds, accepted, cut, top1)

    @property
    def whole(self) -> np.ndarray:
        """The accepted draft tokens (tokens,), NaN also where the tree was cut."""
        return np.where(self.cut, np.nan, self.accepted)

    @property
    def starts(self) -> np.ndarray:
        """The first position of every round."""
        return 1 + np.flatnonzero(np.diff(self.rounds))


def grid_columns(tokens: int, size: tuple[int, int]) -> int:
    """Return the image tokens per row, from the (width, height) of the image in pixels.

    Raises:
        ValueError: the tokens do not fill rows of this length.
    """
    columns = max(1, round((tokens * size[0] / size[1]) ** 0.5))
    if tokens % columns:
        raise ValueError(
            f"found {tokens} tokens for {size[0]} x {size[1]} pixels; they do not fill its rows"
        )
    return columns


@dataclass(frozen=True)
class Correlation:
    """Correlations over all pairs of positions of all images; the intervals are over images."""

    pairs: int
    pearson: Estimate
    spearman: Estimate


def correlations(
    traces: Sequence[ImageTrace], columns: int, samples: int = 2000
) -> dict[str, dict[str, Correlation | None]]:
    """Return all correlations, by level and by name of PAIRS.

    A correlation is None where it is not defined: for a constant, or too few images or pairs.

    Args:
        traces: of the images.
        columns: image tokens per row.
        samples: draws of images for the intervals.
    """
    draw = np.random.default_rng(0)
    order = draw.permutation(len(traces))
    partners = dict(zip(order, np.roll(order, 1), strict=True))  # another image, if there are two
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
    """Return the acceptances (places,) at the positions `places` and of what they compare with."""
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
    """Return the correlation of two variables, given a third if there is one.

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
    if np.isnan([figure.value for figure in figures]).any():
        return None
    return Correlation(values.shape[1], *figures)


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return the ranks (n,) of values (n,); equal values share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def _moments(table: np.ndarray) -> np.ndarray:
    """Return the sums (1 + k, 1 + k) of products of every two of: one, the variables (k, pairs)."""
    extended = np.vstack([np.ones(table.shape[1]), table])
    return extended @ extended.T


def _partial(moments: np.ndarray) -> float:
    """Return the correlation of the first two variables, given the third if there is one.

    Args:
        moments: sums (1 + k, 1 + k) of `_moments`.
    """
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
