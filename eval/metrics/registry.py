"""From a metric's name to its figure and its network, which metrics share."""

from functools import lru_cache
from typing import Any

import torch

from configs.evaluation import METRICS, EvaluateSettings
from configs.rules import loaded
from eval.metrics.metric import Metric
from eval.metrics.networks import ImageNetwork
from eval.metrics.store import FeatureStore
from eval.metrics.weights import find_weights, fitting

HPS_MODEL = "ViT-H-14"


def build_metric(
    name: str, settings: EvaluateSettings, store: FeatureStore, device: torch.device
) -> Metric:
    """Return a metric with its network, which metrics built one after the other share."""
    entry = METRICS[name]
    flag = entry.flag or ""
    # open_clip's model, and whether images are padded instead of cropped
    models: dict[str, tuple[Any, ...]] = {
        "clip_path": (settings.clip_model,),
        "hpsv2_path": (HPS_MODEL, True),
        "hpsv21_path": (HPS_MODEL, True),
    }
    network = None
    if entry.network is not None:
        path, kind = getattr(settings, flag), loaded(entry.network)
        network = _network(kind, flag, path, device, *models.get(flag, ()))
    return loaded(entry.figure)(name, network, store, settings)


@lru_cache(maxsize=1)  # the largest take 4 GB: only the latest is kept
def _network(kind: Any, flag: str, path: str, device: torch.device, *sizes: Any) -> ImageNetwork:
    """Load a network; Unavailable if its library or weights are missing, or do not fit."""
    weights = find_weights(flag, path)
    with fitting(flag, weights, kind.fault):
        return kind(weights, device, *sizes)
