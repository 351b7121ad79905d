"""Which object an image token shows, or else which comes next, and where: dense supervision for the tiny model.

A caption's colours and shapes decide a few tokens of an image; their share of the cross-entropy is lost among the
tokens of textures. So while the transformer is trained one small head reads its middle layer and names, for each token,
the colour and the shape of its object: what the caption says has to be there, for later layers to use. Another reads
the layer halfway from there and draws the object's outline within the token, whatever the colours and textures.
"""

from functools import partial

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from models.transformer import Transformer
from scenes.painting import shape_masks
from scenes.scene import IMAGE_SIZE, OBJECT_COLOURS, SHAPES, Scene, SceneObject

CELLS = 4  # cells on a side of a token, for outlines
COVERED = 0.15  # share of a token's pixels from which an object counts as shown
NONE = (len(OBJECT_COLOURS), len(SHAPES))


def object_labels(scene: Scene, side: int) -> np.ndarray:
    """Colour and shape, as indices with NONE for no object to come, per token in raster order: (side^2, 2) int64."""
    labels = np.full((side * side, 2), NONE)
    named = [
        (_tokens(o, side), (OBJECT_COLOURS.index(o.colour), SHAPES.index(o.shape)))
        for o in scene.objects
    ]
    for tokens, names in sorted(named, key=lambda pair: -pair[0][0]):
        labels[: tokens[0]] = names
    for tokens, names in named:
        labels[tokens] = names
    return labels


def near_objects(scene: Scene, side: int) -> np.ndarray:
    """Tokens in raster order whose left neighbour or one of whose three upper neighbours shows an object: (side^2,)
    bool. The tokens before tell which these are, so a loss that heeds them more has the same optimum."""
    shown = np.zeros(
        (side + 1, side + 2), bool
    )  # an empty row above, an empty column on either side
    for item in scene.objects:
        shown[1:, 1:-1] |= np.isin(np.arange(side * side), _tokens(item, side)).reshape(side, side)
    return (shown[1:, :-2] | shown[:-1, :-2] | shown[:-1, 1:-1] | shown[:-1, 2:]).ravel()


def outlines(scene: Scene, side: int) -> np.ndarray:
    """Share of each cell of each token that objects cover: (side^2, CELLS^2) float32."""
    covered = np.max([_canvas(item) for item in scene.objects], 0)
    cells = _shares(covered, side * CELLS).reshape(side, CELLS, side, CELLS)
    return cells.swapaxes(1, 2).reshape(side * side, CELLS * CELLS)


def _canvas(item: SceneObject) -> np.ndarray:
    """Coverage of every pixel of the image by the object."""
    mask = shape_masks(item.shape, item.diameter)[0]
    canvas = np.zeros((IMAGE_SIZE, IMAGE_SIZE), np.float32)
    top, left = item.y - mask.shape[0] // 2, item.x - mask.shape[1] // 2
    canvas[top : top + mask.shape[0], left : left + mask.shape[1]] = mask
    return canvas


def _shares(canvas: np.ndarray, side: int) -> np.ndarray:
    """Mean of the canvas over side x side equal squares."""
    return canvas.reshape(side, IMAGE_SIZE // side, side, IMAGE_SIZE // side).mean((1, 3))


def _tokens(item: SceneObject, side: int) -> np.ndarray:
    """Tokens that show the object, in raster order; at least the one that shows most of it."""
    share = _shares(_canvas(item), side).ravel()
    return np.flatnonzero(share >= min(COVERED, share.max()))


class ObjectReading(nn.Module):
    """A transformer and, for its training alone, the heads that name and outline objects from features within."""

    def __init__(self, transformer: Transformer):
        super().__init__()
        self.transformer = transformer
        self.names = nn.Linear(transformer.spec.hidden, sum(NONE) + 2)
        self.cells = nn.Linear(transformer.spec.hidden, CELLS * CELLS)
        self._features: dict[str, Tensor] = {}
        blocks = transformer.blocks.blocks
        blocks[(len(blocks) - 1) // 2].register_forward_hook(partial(self._keep, "names"))
        blocks[3 * (len(blocks) - 1) // 4].register_forward_hook(partial(self._keep, "cells"))

    def _keep(self, head: str, block: nn.Module, inputs: tuple, features: Tensor) -> None:
        self._features[head] = features

    def _read(self, head: str, n: int) -> Tensor:
        """Logits (images, n, ...) of a head for the last n tokens of the last forward."""
        features = self._features[head][:, -n:]
        return getattr(self, head)(F.rms_norm(features, features.shape[-1:])).float()

    def naming(self, labels: Tensor) -> Tensor:
        """Cross-entropy (nats per token, colour and shape together) of labels (images, n, 2)."""
        colour, shape = self._read("names", labels.shape[1]).split([NONE[0] + 1, NONE[1] + 1], -1)
        parts = zip((colour, shape), labels.unbind(-1), strict=True)
        return sum(F.cross_entropy(part.flatten(0, 1), label.flatten()) for part, label in parts)

    def outlining(self, shares: Tensor) -> Tensor:
        """Cross-entropy (nats, of a token's cells together) of every token's shares (images, n, CELLS^2)."""
        logits = self._read("cells", shares.shape[1])
        return F.binary_cross_entropy_with_logits(logits, shares, reduction="none").sum(-1)
