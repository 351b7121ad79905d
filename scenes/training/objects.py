"""Dense supervision for the tiny model: which object an image token shows, and where in it.

A caption's colours and shapes decide only a few tokens of an image, and their share of the
cross-entropy is lost among the tokens of textures. So two small heads are trained with the
transformer. One reads the middle layer and names, for each token, the colour and shape of its
object, or of the next object to come: so the layer must hold what the caption says, and later
layers can use it. The other reads a layer at three quarters of the depth and draws the object's
outline within the token, whatever the colours and textures.
"""

from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.transformer import Transformer
from scenes.painting import shape_masks
from scenes.scene import IMAGE_SIZE, OBJECT_COLOURS, SHAPES, Scene, SceneObject

CELLS = 4  # cells on a side of a token, for outlines
COVERED = 0.15  # share of a token's pixels from which an object counts as shown
NONE = (len(OBJECT_COLOURS), len(SHAPES))


def object_labels(scene: Scene, side: int) -> np.ndarray:
    """Return the indices of colour and shape per token in raster order, (side^2, 2) int64.

    They are of the object that the token shows, or of the next one; NONE if no object follows.
    """
    labels = np.full((side * side, 2), NONE)
    named = [
        (_tokens(o, side), (OBJECT_COLOURS.index(o.colour), SHAPES.index(o.shape)))
        for o in scene.objects
    ]
    # from the last object on, so that every token ends with the nearest one after it
    for tokens, names in sorted(named, key=lambda pair: -pair[0][0]):
        labels[: tokens[0]] = names
    for tokens, names in named:
        labels[tokens] = names
    return labels


def near_objects(scene: Scene, side: int) -> np.ndarray:
    """Return which tokens are next to an object, (side^2,) bool in raster order.

    Their left or one of their three upper neighbours shows it. The tokens before tell which these
    are, so weighting them more leaves the optimum of the loss unchanged.
    """
    # with an empty row above and an empty column on either side
    shown = np.zeros((side + 1, side + 2), bool)
    for item in scene.objects:
        shown[1:, 1:-1] |= np.isin(np.arange(side * side), _tokens(item, side)).reshape(side, side)
    return (shown[1:, :-2] | shown[:-1, :-2] | shown[:-1, 1:-1] | shown[:-1, 2:]).ravel()


def outlines(scene: Scene, side: int) -> np.ndarray:
    """Return how much of each cell of each token objects cover, (side^2, CELLS^2) float32."""
    covered = np.max([_canvas(item) for item in scene.objects], 0)
    cells = _shares(covered, side * CELLS).reshape(side, CELLS, side, CELLS)
    return cells.swapaxes(1, 2).reshape(side * side, CELLS * CELLS)


def _canvas(item: SceneObject) -> np.ndarray:
    """Return how much of every pixel of the image the object covers."""
    mask = shape_masks(item.shape, item.diameter)[0]
    canvas = np.zeros((IMAGE_SIZE, IMAGE_SIZE), np.float32)
    top, left = item.y - mask.shape[0] // 2, item.x - mask.shape[1] // 2
    canvas[top : top + mask.shape[0], left : left + mask.shape[1]] = mask
    return canvas


def _shares(canvas: np.ndarray, side: int) -> np.ndarray:
    """Return the means of the canvas over side x side equal squares."""
    return canvas.reshape(side, IMAGE_SIZE // side, side, IMAGE_SIZE // side).mean((1, 3))


def _tokens(item: SceneObject, side: int) -> np.ndarray:
    """Return the tokens that show the object, in raster order; at least the one with most of it."""
    share = _shares(_canvas(item), side).ravel()
    return np.flatnonzero(share >= min(COVERED, share.max()))


class ObjectReading(nn.Module):
    """A transformer with the heads that name and outline objects, for its training only."""

    def __init__(self, transformer: Transformer):
        super().__init__()
        self.transformer = transformer
        # 2: no object, as a colour and as a shape
        self.names = nn.Linear(transformer.spec.hidden, sum(NONE) + 2)
        self.cells = nn.Linear(transformer.spec.hidden, CELLS * CELLS)
        self._features: dict[str, Tensor] = {}
        blocks = transformer.blocks.blocks
        blocks[(len(blocks) - 1) // 2].register_forward_hook(partial(self._keep, "names"))
        blocks[3 * (len(blocks) - 1) // 4].register_forward_hook(partial(self._keep, "cells"))

    def _keep(self, head: str, block: nn.Module, inputs: tuple, summands: tuple) -> None:
        self._features[head] = sum(summands)

    def _read(self, head: str, n: int) -> Tensor:
        """Return a head's logits (images, n, ...) for the last n tokens of the last pass."""
        features = self._features[head][:, -n:]
        # without weights of its own: the residual stream grows from layer to layer
        return getattr(self, head)(F.rms_norm(features, features.shape[-1:])).float()

    def naming(self, labels: Tensor) -> Tensor:
        """Return the cross-entropy of labels (images, n, 2): nats per token, colour plus shape."""
        colour, shape = self._read("names", labels.shape[1]).split([NONE[0] + 1, NONE[1] + 1], -1)
        heads = zip((colour, shape), labels.unbind(-1), strict=True)
        losses = [F.cross_entropy(x.flatten(0, 1), label.flatten()) for x, label in heads]
        return torch.stack(losses).sum()

    def outlining(self, shares: Tensor) -> Tensor:
        """Return the cross-entropy of shares (images, n, CELLS^2): nats, the sum of the cells."""
        logits = self._read("cells", shares.shape[1])
        return F.binary_cross_entropy_with_logits(logits, shares, reduction="none").sum(-1)
