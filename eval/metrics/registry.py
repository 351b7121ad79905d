"""The metrics by name, and which of them need real images."""

from collections.abc import Callable
from functools import lru_cache

import torch

from configs.evaluation import EvaluateSettings
from eval.metrics.accuracy import Accuracy
from eval.metrics.aesthetic import Aesthetic
from eval.metrics.base import Metric
from eval.metrics.clip import ClipNetwork
from eval.metrics.clip_score import ClipScore
from eval.metrics.fid import Fid
from eval.metrics.inception_score import InceptionScore
from eval.metrics.networks import AttributeNetwork, Inception, Vgg
from eval.metrics.precision_recall import PrecisionRecall
from eval.metrics.store import FeatureStore

HPS_MODEL = "ViT-H-14"
NEED_REFERENCE = ("tiny_fid", "tiny_pr", "fid", "pr")
_FEATURE_METRICS = {"fid": Fid, "is": InceptionScore, "pr": PrecisionRecall}


def build_metric(
    name: str, settings: EvaluateSettings, store: FeatureStore, device: torch.device
) -> Metric:
    """Return a metric with its network, which metrics built one after the other share.

    Raises:
        Unavailable: a library or weights are missing.
    """
    return _BUILDERS[name](settings, store, device)


@lru_cache(maxsize=1)  # the largest take 4 GB: only the latest is kept
def _network(kind: Callable, *arguments: object) -> object:
    return kind(*arguments)


def _accuracy(settings: EvaluateSettings, store: FeatureStore, device: torch.device) -> Metric:
    return Accuracy(_network(AttributeNetwork, settings.attributes_path, device), store)


def _on_features(name: str, kind: Callable, flag: str) -> Callable[..., Metric]:
    def build(settings: EvaluateSettings, store: FeatureStore, device: torch.device) -> Metric:
        network = _network(kind, getattr(settings, flag), device)
        return _FEATURE_METRICS[name.removeprefix("tiny_")](name, network, store)

    return build


def _clip(settings: EvaluateSettings, store: FeatureStore, device: torch.device) -> Metric:
    network = _network(ClipNetwork, "clip_path", settings.clip_path, settings.clip_model, device)
    return ClipScore(
        "clip", network, store, "" if settings.clip_prefix == "none" else settings.clip_prefix
    )


def _aesthetic(settings: EvaluateSettings, store: FeatureStore, device: torch.device) -> Metric:
    network = _network(
        ClipNetwork,
        "aesthetic_clip_path",
        settings.aesthetic_clip_path,
        "ViT-L-14-quickgelu",
        device,
    )
    return Aesthetic(settings.aesthetic_path, network, store)


def _hps(name: str) -> Callable[..., Metric]:
    def build(settings: EvaluateSettings, store: FeatureStore, device: torch.device) -> Metric:
        path = getattr(settings, f"{name}_path")
        return ClipScore(
            name, _network(ClipNetwork, f"{name}_path", path, HPS_MODEL, device, True), store
        )

    return build


_BUILDERS: dict[str, Callable[..., Metric]] = {
    "accuracy": _accuracy,
    "tiny_fid": _on_features("tiny_fid", AttributeNetwork, "attributes_path"),
    "tiny_is": _on_features("tiny_is", AttributeNetwork, "attributes_path"),
    "tiny_pr": _on_features("tiny_pr", AttributeNetwork, "attributes_path"),
    "fid": _on_features("fid", Inception, "inception_path"),
    "is": _on_features("is", Inception, "inception_path"),
    "pr": _on_features("pr", Vgg, "vgg_path"),
    "clip": _clip,
    "aesthetic": _aesthetic,
    "hpsv2": _hps("hpsv2"),
    "hpsv21": _hps("hpsv21"),
}
