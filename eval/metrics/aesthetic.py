"""Aesthetic score, about 1 to 10: LAION's head on features of OpenAI's CLIP ViT-L/14."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from eval.metrics.base import ImageSet, Score, Unavailable
from eval.metrics.clip import ClipNetwork
from eval.metrics.intervals import mean_interval
from eval.metrics.store import FeatureStore
from eval.metrics.weights import read_state, require_file, weights_label


def layers(state: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Return weight and bias of the head's linear layers, in order.

    The file holds `layers.N.weight` (with nothing between the layers but dropout), or the `weight`
    of a single layer.
    """
    names = [name.removesuffix("weight") for name in state if name.endswith("weight")]
    ordered = sorted(names, key=lambda name: int("0" + "".join(filter(str.isdigit, name))))
    return [(state[f"{name}weight"].float(), state[f"{name}bias"].float()) for name in ordered]


class Aesthetic:
    """The mean score. The published head has no activations, so it is affine in the features."""

    def __init__(self, path: str, network: ClipNetwork, store: FeatureStore):
        """Read the head in the file `path`; Unavailable if it does not fit the features."""
        self.network, self.store = network, store
        weights = require_file("aesthetic_path", path)
        self.head = layers(read_state("aesthetic_path", weights))
        widths = [weight.shape for weight, _ in self.head]  # (outputs, inputs)
        if not widths or widths[0][1] != network.width or widths[-1][0] != 1:
            raise Unavailable(
                f"--aesthetic_path {path}: not a head from {network.width} features to one score"
            )
        self.label = f"{network.label}; head {weights_label(weights)}"

    def scores(self, images: ImageSet, reference: ImageSet | None) -> list[Score]:
        """Return one score."""
        rows = torch.from_numpy(self.network.features(self.store, images))  # (images, features)
        for weight, bias in self.head:
            rows = torch.nn.functional.linear(rows, weight, bias)
        figures = mean_interval(np.asarray(rows[:, 0], dtype=float))
        return [
            Score(
                "aesthetic",
                count=len(images),
                network=self.label,
                resize=self.network.resize,
                **figures,
            )
        ]
