"""Which object an image token shows, or else which comes next: dense supervision for the tiny transformer.

A caption's colours and shapes decide a few tokens of an image, where an object begins; their share of the
cross-entropy is lost among the tokens of textures. So while the transformer is trained a small head reads its middle
layer and names, for each token, the colour and the shape of its object: what the caption says has to be there, for
later layers to use.
"""

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from models.transformer import Transformer
from scripts.tiny.painting import shape_masks
from scripts.tiny.scenes import IMAGE_SIZE, OBJECT_COLOURS, SHAPES, Scene, SceneObject

COVERED = 0.15  # share of a token's pixels from which an object counts as shown
NONE = (len(OBJECT_COLOURS), len(SHAPES))


def object_labels(scene: Scene, side: int) -> np.ndarray:
    """Colour and shape, as indices with NONE for no object to come, per token in raster order: (side^2, 2) int64."""
    labels = np.full((side * side, 2), NONE)
    named = [(_tokens(o, side), (OBJECT_COLOURS.index(o.colour), SHAPES.index(o.shape))) for o in scene.objects]
    for tokens, names in sorted(named, key=lambda pair: -pair[0][0]):
        labels[: tokens[0]] = names
    for tokens, names in named:
        labels[tokens] = names
    return labels


def near_objects(scene: Scene, side: int) -> np.ndarray:
    """Tokens in raster order whose left neighbour or one of whose three upper neighbours shows an object: (side^2,)
    bool. The tokens before tell which these are, so a loss that heeds them more has the same optimum."""
    shown = np.zeros((side + 1, side + 2), bool)  # an empty row above, an empty column on either side
    for item in scene.objects:
        shown[1:, 1:-1] |= np.isin(np.arange(side * side), _tokens(item, side)).reshape(side, side)
    return (shown[1:, :-2] | shown[:-1, :-2] | shown[:-1, 1:-1] | shown[:-1, 2:]).ravel()


def _tokens(item: SceneObject, side: int) -> np.ndarray:
    """Tokens that show the object, in raster order; at least the one that shows most of it."""
    mask = shape_masks(item.shape, item.diameter)[0]
    canvas = np.zeros((IMAGE_SIZE, IMAGE_SIZE), np.float32)
    top, left = item.y - mask.shape[0] // 2, item.x - mask.shape[1] // 2
    canvas[top : top + mask.shape[0], left : left + mask.shape[1]] = mask
    share = canvas.reshape(side, IMAGE_SIZE // side, side, IMAGE_SIZE // side).mean((1, 3)).ravel()
    return np.flatnonzero(share >= min(COVERED, share.max()))


class ObjectNaming(nn.Module):
    """A transformer and, for its training alone, the head that names objects from the features of its middle layer."""

    def __init__(self, transformer: Transformer):
        super().__init__()
        self.transformer = transformer
        self.names = nn.Linear(transformer.spec.hidden, sum(NONE) + 2)
        self._features: Tensor | None = None
        transformer.blocks.blocks[(transformer.spec.layers - 1) // 2].register_forward_hook(self._keep)

    def _keep(self, block: nn.Module, inputs: tuple, features: Tensor) -> None:
        self._features = features

    def loss(self, labels: Tensor) -> Tensor:
        """Cross-entropy (nats per token, colour and shape together) of labels (images, n, 2) for the last n tokens of
        the last forward."""
        features = self._features[:, -labels.shape[1] :]
        logits = self.names(F.rms_norm(features, features.shape[-1:])).float()
        colour, shape = logits.split([NONE[0] + 1, NONE[1] + 1], -1)
        parts = zip((colour, shape), labels.unbind(-1), strict=True)
        return sum(F.cross_entropy(part.flatten(0, 1), label.flatten()) for part, label in parts)
