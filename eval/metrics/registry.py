"""The metrics by name: their figures, the networks below them, and the flags of their weights."""

from functools import lru_cache
from pkgutil import resolve_name
from typing import NamedTuple

import torch

from configs.evaluation import EvaluateSettings
from eval.metrics.metric import Metric
from eval.metrics.networks import ImageNetwork
from eval.metrics.store import FeatureStore
from eval.metrics.weights import find_weights, fitting

HPS_MODEL = "ViT-H-14"


class Parts(NamedTuple):
    """What a metric is made of, as `module:name`, imported when it is used."""

    figure: str  # a Metric
    network: str | None = None  # an ImageNetwork
    flag: str | None = None  # of the network's weights
    needs_reference: bool = False  # whether it compares with real images


_ATTRIBUTES = "scenes.attribute_network:AttributeNetwork", "attributes_path"
_CLIP = "eval.metrics.clip:ClipScore", "eval.metrics.clip:ClipNetwork"
_FID, _PR = "eval.metrics.fid:Fid", "eval.metrics.precision_recall:PrecisionRecall"
METRICS = {
    "accuracy": Parts("scenes.accuracy:Accuracy", *_ATTRIBUTES),
    "tiny_fid": Parts(_FID, *_ATTRIBUTES, needs_reference=True),
    "tiny_pr": Parts(_PR, *_ATTRIBUTES, needs_reference=True),
    "fid": Parts(_FID, "eval.metrics.networks:Inception", "inception_path", needs_reference=True),
    "pr": Parts(_PR, "eval.metrics.networks:Vgg", "vgg_path", needs_reference=True),
    "clip": Parts(*_CLIP, "clip_path"),
    "hpsv2": Parts(*_CLIP, "hpsv2_path"),
    "hpsv21": Parts(*_CLIP, "hpsv21_path"),
}


def build_metric(
    name: str, settings: EvaluateSettings, store: FeatureStore, device: torch.device
) -> Metric:
    """Return a metric with its network, which metrics built one after the other share."""
    entry = METRICS[name]
    flag = entry.flag
    models = {  # open_clip's model, and whether images are padded in place of cropped
        "clip_path": (settings.clip_model,),
        "hpsv2_path": (HPS_MODEL, True),
        "hpsv21_path": (HPS_MODEL, True),
    }
    loaded = None
    if entry.network is not None:
        path, kind = getattr(settings, flag), resolve_name(entry.network)
        loaded = _network(kind, flag, path, device, *models.get(flag, ()))
    return resolve_name(entry.figure)(name, loaded, store, settings)


@lru_cache(maxsize=1)  # the largest take 4 GB: only the latest is kept
def _network(
    kind: type[ImageNetwork], flag: str, path: str, device: torch.device, *sizes: object
) -> ImageNetwork:
    """Load a network; Unavailable if its library or weights are missing, or do not fit."""
    weights = find_weights(flag, path)
    with fitting(flag, weights, kind.fault):
        return kind(weights, device, *sizes)
