"""The metrics by name: their figures, the networks below them, and the flags of their weights."""

from functools import lru_cache
from typing import NamedTuple

import torch

from configs.evaluation import EvaluateSettings
from eval.metrics.accuracy import Accuracy
from eval.metrics.clip import ClipNetwork, ClipScore
from eval.metrics.fid import Fid
from eval.metrics.metric import Metric
from eval.metrics.networks import AttributeNetwork, ImageNetwork, Inception, Vgg
from eval.metrics.precision_recall import PrecisionRecall
from eval.metrics.store import FeatureStore
from eval.metrics.weights import find_weights, fitting

HPS_MODEL = "ViT-H-14"


class Parts(NamedTuple):
    """What a metric is made of."""

    figure: type[Metric]
    network: type[ImageNetwork] | None = None
    flag: str | None = None  # of the network's weights


METRICS = {
    "accuracy": Parts(Accuracy, AttributeNetwork, "attributes_path"),
    "tiny_fid": Parts(Fid, AttributeNetwork, "attributes_path"),
    "tiny_pr": Parts(PrecisionRecall, AttributeNetwork, "attributes_path"),
    "fid": Parts(Fid, Inception, "inception_path"),
    "pr": Parts(PrecisionRecall, Vgg, "vgg_path"),
    "clip": Parts(ClipScore, ClipNetwork, "clip_path"),
    "hpsv2": Parts(ClipScore, ClipNetwork, "hpsv2_path"),
    "hpsv21": Parts(ClipScore, ClipNetwork, "hpsv21_path"),
}


def build_metric(
    name: str, settings: EvaluateSettings, store: FeatureStore, device: torch.device
) -> Metric:
    """Return a metric with its network, which metrics built one after the other share."""
    figure, network, flag = METRICS[name]
    models = {  # open_clip's model, and whether images are padded in place of cropped
        "clip_path": (settings.clip_model,),
        "hpsv2_path": (HPS_MODEL, True),
        "hpsv21_path": (HPS_MODEL, True),
    }
    loaded = None
    if network is not None:
        loaded = _network(network, flag, getattr(settings, flag), device, *models.get(flag, ()))
    return figure(name, loaded, store, settings)


@lru_cache(maxsize=1)  # the largest take 4 GB: only the latest is kept
def _network(
    kind: type[ImageNetwork], flag: str, path: str, device: torch.device, *sizes: object
) -> ImageNetwork:
    """Load a network; Unavailable if its library or weights are missing, or do not fit."""
    weights = find_weights(flag, path)
    with fitting(flag, weights, kind.fault):
        return kind(weights, device, *sizes)
