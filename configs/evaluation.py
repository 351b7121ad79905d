"""Settings of `evaluate`: which runs, which figures, and where the networks of the metrics lie."""

import os
from collections.abc import Iterable
from dataclasses import MISSING, dataclass

from configs.fields import Settings, flags_in, refuse, setting, split_list
from configs.model import device_setting
from configs.rules import Code
from configs.targets import ROOT


@dataclass(frozen=True)
class MetricParts:
    """What a metric is made of."""

    figure: Code  # an eval.metrics.metric.Metric
    network: Code | None = None  # an eval.metrics.networks.ImageNetwork
    flag: str | None = None  # of the network's weights
    needs_reference: bool = False  # whether it compares with real images
    tiny: bool = False  # whether it is for the included model's images alone


_ATTRIBUTES = "scenes.attribute_network:AttributeNetwork", "attributes_path"
_CLIP_SCORE = "eval.metrics.clip:ClipScore", "eval.metrics.clip:ClipNetwork"
_FID, _PR = "eval.metrics.fid:Fid", "eval.metrics.precision_recall:PrecisionRecall"
_INCEPTION, _VGG = "eval.metrics.networks:Inception", "eval.metrics.networks:Vgg"
METRICS: dict[str, MetricParts] = {
    "accuracy": MetricParts("scenes.accuracy:Accuracy", *_ATTRIBUTES, tiny=True),
    "tiny_fid": MetricParts(_FID, *_ATTRIBUTES, needs_reference=True, tiny=True),
    "tiny_pr": MetricParts(_PR, *_ATTRIBUTES, needs_reference=True, tiny=True),
    "fid": MetricParts(_FID, _INCEPTION, "inception_path", needs_reference=True),
    "pr": MetricParts(_PR, _VGG, "vgg_path", needs_reference=True),
    "clip": MetricParts(*_CLIP_SCORE, "clip_path"),
    "hpsv2": MetricParts(*_CLIP_SCORE, "hpsv2_path"),
    "hpsv21": MetricParts(*_CLIP_SCORE, "hpsv21_path"),
}


def usual_metrics(tiny: bool) -> tuple[str, ...]:
    """Return the metrics that suit runs of the included model, or of others."""
    return tuple(name for name, metric in METRICS.items() if metric.tiny == tiny)


_CLIP = "hf download timm/{0} open_clip_config.json open_clip_model.safetensors"
_TO_METRICS = "--local-dir ckpts/metrics"


def _weights(name: str, text: str, source: str) -> str:
    """Declare where a metric's weights lie: a file or folder of ckpts/metrics by default."""
    shown = f"ckpts/metrics/{name}"
    return setting(text, str(ROOT / shown), path=True, shown=shown, source=source.format(name))


@dataclass(frozen=True)
class EvaluateSettings(Settings, group="Evaluation"):
    """What to evaluate. The lists are written with commas."""

    output_dir: str = setting(
        "run folders of generate_images, by commas; one+two is a run whose slices two machines "
        "made; in double quotes if a name has a comma",
        MISSING,
        wanted="run folders that generate_images wrote, by commas",
        many=True,
    )
    baseline: str | None = setting(
        "run folder that speed-ups are relative to",
        path=True,
        shown="per run, one of --method ar with the same sampling flags",
    )
    ref_dir: str | None = setting(
        "folder of real images (.png, .jpg) for FID, precision and recall",
        path=True,
        shown="tiny: 1,000 rendered scenes",
    )
    report_dir: str | None = setting(
        "folder for tables and report", path=True, shown="<first run>/evaluation"
    )
    metrics: str | None = setting(
        lambda: f"metrics, by commas; all; none; or of {', '.join(METRICS)}",
        shown=lambda: (
            f"{','.join(usual_metrics(tiny=True))} for runs of the tiny model, the "
            "others for other runs"
        ),
        many=True,
    )
    images: int = setting("prompts in the report's comparison", 8, low=0, high=1000)
    cache_dir: str = setting(
        "folder of the images' features, by content", "outputs/features", path=True
    )
    device: str = device_setting()
    batch_size: int = setting("images per forward pass of a metric's network", 16, low=1, high=4096)
    attributes_path: str = setting(
        "the tiny domain's classifier",
        str(ROOT / "ckpts/tiny/attributes.safetensors"),
        path=True,
        shown="ckpts/tiny/attributes.safetensors",
        source="part of the repository: ckpts/tiny/attributes.safetensors",
    )
    inception_path: str = _weights(
        "weights-inception-2015-12-05-6726825d.pth",
        "torch-fidelity's Inception v3",
        "https://github.com/toshas/torch-fidelity/releases/download/v0.2.0/{0}",
    )
    vgg_path: str = _weights(
        "vgg16-397923af.pth",
        "torchvision's VGG16, of precision and recall",
        "https://download.pytorch.org/models/{0}",
    )
    clip_path: str = _weights(
        "vit_base_patch32_clip_224.openai",
        "CLIP score: an open_clip folder or hub id, or a file of --clip_model",
        f"{_CLIP} {_TO_METRICS}/{{0}}",
    )
    clip_model: str = setting(
        "open_clip's name of the model in the file --clip_path", "ViT-B-32-quickgelu"
    )
    clip_prefix: str = setting(
        "text before prompts, as in LANTERN's evaluation; none = nothing", "A photo depicts "
    )
    hpsv2_path: str = _weights(
        "HPS_v2_compressed.pt",
        "HPSv2's weights, a file of open_clip's ViT-H-14",
        f"hf download xswu/HPSv2 {{0}} {_TO_METRICS}",
    )
    hpsv21_path: str = _weights(
        "HPS_v2.1_compressed.pt",
        "HPSv2.1's weights, likewise",
        f"hf download xswu/HPSv2 {{0}} {_TO_METRICS}",
    )

    def settle(self) -> None:
        _ = self.folders, self.chosen_metrics("tiny")  # refuses lists that cannot be used

    @property
    def folders(self) -> tuple[str, ...]:
        """The run folders, in the order given, each once; the baseline's among them."""
        names = [os.path.expanduser(name) for name in split_list(self.output_dir)]
        if not all(names):
            refuse("output_dir", self.output_dir, "folder names between the commas")
        names += [] if self.baseline is None else [self.baseline]
        return distinct_runs(names)

    def chosen_metrics(self, model: str) -> tuple[str, ...]:
        """Return the names in --metrics, or those that suit the runs' model."""
        everything = tuple(METRICS)
        if self.metrics is None:
            return usual_metrics(model == "tiny")
        if self.metrics in ("all", "none"):
            return everything if self.metrics == "all" else ()
        names = tuple(name.strip() for name in self.metrics.split(","))
        if not set(names) <= set(everything) or len(set(names)) != len(names):
            expected = f"all, none, or some of {', '.join(everything)}, each once, by commas"
            refuse("metrics", self.metrics, expected)
        return names


# Where users get the files, by flag.
SOURCES = {
    flag: f.metadata["source"]
    for flag, f in flags_in(EvaluateSettings).items()
    if "source" in f.metadata
}


def run_parts(name: str) -> list[str]:
    """Return the folders that `one+two` joins to one run; what exists may have a + in its name."""
    words, folders = name.split("+"), list[str]()
    while words:
        places = [os.path.expanduser("+".join(words[:n])) for n in range(len(words), 0, -1)]
        folders.append(next(filter(os.path.exists, places), places[-1]))
        words = words[len(words) - places.index(folders[-1]) :]
    return folders


def run_places(name: str) -> tuple[str, ...]:
    """Return where a run's folders are, which tells runs apart however they are spelled."""
    return tuple(map(os.path.realpath, run_parts(name)))


def distinct_runs(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names without those of a run that an earlier one names."""
    kept: dict[tuple[str, ...], str] = {}
    for name in names:
        kept.setdefault(run_places(name), name)
    return tuple(kept.values())
