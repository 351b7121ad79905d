"""The metrics' networks as a user's flags give them, with random weights in public layouts."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import open_clip
import pytest
import torch
import torch_fidelity as fidelity
import torchvision as vision
from browser import only_in_all
from made_runs import scenes, settings_of, write_run
from PIL import Image
from safetensors.torch import save_file

from configs.evaluation import SOURCES, EvaluateSettings
from eval.metrics import registry
from eval.metrics.base import ImageSet, Unavailable
from eval.metrics.clip import ClipScore
from eval.metrics.registry import build_metric
from eval.metrics.store import FeatureStore
from eval.metrics.weights import find_weights
from eval.report.evaluate import compute_scores
from eval.report.run import read_run, read_runs

CPU = torch.device("cpu")
PROMPTS = ("a red fox", "a blue house on a hill", "two cats", "a ship")
SMALL_CLIP = {
    "embed_dim": 16,
    "quick_gelu": True,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
}


@pytest.fixture(autouse=True)
def _fresh_networks():
    registry._network.cache_clear()
    torch.manual_seed(0)


@pytest.fixture
def images(tmp_path: Path) -> ImageSet:
    """Four pictures of 40 x 24 pixels with prompts."""
    pixels = np.random.default_rng(0).integers(0, 256, (4, 24, 40, 3), dtype=np.uint8)
    return read_run(str(write_run(tmp_path / "made", pixels, PROMPTS)), "made").images


def scores(tmp_path: Path, name: str, images: ImageSet, **flags: str):
    store = FeatureStore(tmp_path / "features", 3)
    metric = build_metric(name, EvaluateSettings(output_dir="run", **flags), store, CPU)
    return metric, metric.scores(images, images)


def write_clip(folder: Path) -> torch.nn.Module:
    """A small model as open_clip's folders on the hub."""
    model = open_clip.model.CLIP(**SMALL_CLIP).eval()
    folder.mkdir()
    state = {key: value.contiguous() for key, value in model.state_dict().items()}
    save_file(state, folder / "open_clip_model.safetensors")
    preprocess = {"interpolation": "bicubic", "resize_mode": "shortest"}
    config = {"model_cfg": SMALL_CLIP, "preprocess_cfg": preprocess}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    return model


def test_clip_score_is_the_mean_cosine(tmp_path, images):
    model, folder = write_clip(tmp_path / "clip"), str(tmp_path / "clip")
    _, (score,) = scores(tmp_path, "clip", images, clip_path=folder, clip_prefix="none")
    transform = open_clip.image_transform((32, 32), is_train=False)
    with torch.no_grad():
        seen = model.encode_image(torch.stack([transform(Image.open(p)) for p in images.paths]))
        said = model.encode_text(open_clip.SimpleTokenizer()(list(PROMPTS)))
    expected = torch.nn.functional.cosine_similarity(seen, said).mean().item()
    assert score.value == pytest.approx(expected, abs=1e-5)  # fp32, in batches of another size
    assert score.network.startswith("open_clip ") and "clip [" in score.network and score.count == 4
    _, (prefixed,) = scores(tmp_path, "clip", images, clip_path=folder)
    assert score.value != prefixed.value and "prefix 'A photo depicts '" in prefixed.network
    (tmp_path / "clip/open_clip_model.safetensors").unlink()  # open_clip would take random weights
    registry._network.cache_clear()
    with pytest.raises(Unavailable, match="--clip_path .*open_clip cannot load it"):
        scores(tmp_path, "clip", images, clip_path=folder)


@pytest.mark.parametrize(
    ("part", "entries", "message"),
    [
        ("text_cfg", {"width": 32}, "open_clip cannot load it"),
        (
            "vision_cfg",
            {"image_size": 64},
            "weights of another network than this model: visual.pos",
        ),
        ("text_cfg", {"context_length": 9}, "weights of another network than this model: pos"),
    ],
)
def test_a_file_of_another_clip_is_refused_and_takes_no_other_metric_with_it(
    tmp_path, part, entries, message
):
    """open_clip asserts one width, and stretches positions of other images and texts."""
    _, folder = write_clip(tmp_path / "clip"), tmp_path / "clip"
    other = open_clip.model.CLIP(**SMALL_CLIP | {part: SMALL_CLIP[part] | entries})
    save_file(other.state_dict(), folder / "open_clip_model.safetensors")
    chosen = settings_of(
        tmp_path,
        write_run(tmp_path / "made", *scenes(2)),
        metrics="clip,accuracy",
        clip_path=str(folder),
    )
    found, (remark,) = compute_scores(chosen, read_runs(chosen.folders))
    assert {name.partition(".")[0] for name in found["made"]} == {"accuracy"}
    assert remark.startswith("clip was not computed: --clip_path") and message in remark


def test_what_a_metric_raises_takes_no_other_with_it(tmp_path, monkeypatch):
    def broken(*_):
        raise AssertionError("some library")

    write_clip(tmp_path / "clip")
    monkeypatch.setattr(ClipScore, "scores", broken)
    flags = {"metrics": "clip,accuracy", "clip_path": str(tmp_path / "clip")}
    chosen = settings_of(tmp_path, write_run(tmp_path / "made", *scenes(2)), **flags)
    found, (remark,) = compute_scores(chosen, read_runs(chosen.folders))
    assert {name.partition(".")[0] for name in found["made"]} == {"accuracy"}
    assert remark.startswith("clip of made was not computed: AssertionError: some library")


def test_captions_that_are_cut_are_counted(tmp_path, images):
    write_clip(tmp_path / "clip")
    flags = {"clip_path": str(tmp_path / "clip"), "clip_prefix": "none"}
    _, (score,) = scores(tmp_path, "clip", images, **flags)
    assert score.warning is None
    texts = ("a", "a " * 75, "a " * 76, "a " * 200)  # with start and end: 77 fit
    _, (score,) = scores(tmp_path, "clip", replace(images, prompts=texts), **flags)
    assert score.warning == "2 texts of 4 cut after 77 tokens"


def test_weights_from_the_hub(tmp_path, images, monkeypatch):
    write_clip(tmp_path / "clip")
    asked = []

    def deliver(repository: str, file: str) -> str:
        asked.append((repository, file))
        return str(tmp_path / "clip" / file)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", deliver)
    scores(tmp_path, "clip", images, clip_path="someone/clip")
    files = ("open_clip_config.json", "open_clip_model.safetensors")
    assert asked == [("someone/clip", file) for file in files]
    assert find_weights("hpsv2_path", "xswu/HPSv2/a/b.pt") == tmp_path / "clip/a/b.pt"
    assert asked[-1] == ("xswu/HPSv2", "a/b.pt")


def test_hps_pads_the_shorter_edge(tmp_path, images, monkeypatch):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/small-hps.json").write_text(json.dumps(SMALL_CLIP))
    open_clip.add_model_config(tmp_path / "configs")
    monkeypatch.setattr(registry, "HPS_MODEL", "small-hps")
    model, path = open_clip.model.CLIP(**SMALL_CLIP).eval(), tmp_path / "HPS_v2.1_compressed.pt"
    torch.save({"epoch": 1, "state_dict": model.state_dict()}, path)
    metric, (score,) = scores(tmp_path, "hpsv21", images, hpsv21_path=str(path))
    white = metric.network.transform(Image.new("RGB", (40, 20), "white"))  # (3, 32, 32)
    top, middle, bottom = white[:, 0], white[:, 16], white[:, 31]  # (3, 32)
    assert (top == bottom).all() and (top < middle).all() and (middle[:, 0] == middle[:, 31]).all()
    assert score.resize == "longest edge, padded with zeros" and -1 <= score.value <= 1


@only_in_all  # a whole Inception v3
def test_inception_through_the_users_path(tmp_path, images, monkeypatch):
    from torch_fidelity import feature_extractor_inceptionv3 as module

    kind = module.FeatureExtractorInceptionV3
    monkeypatch.setattr(module, "load_state_dict_from_url", lambda *_, **__: {})
    monkeypatch.setattr(kind, "load_state_dict", lambda *_, **__: None)
    network = fidelity.FeatureExtractorInceptionV3("inception", ["2048"])
    monkeypatch.undo()
    path = tmp_path / "inception.pth"
    torch.save(network.state_dict(), path)
    metric, (score,) = scores(tmp_path, "fid", images, inception_path=str(path))
    assert abs(score.value) < 1e-3 and "singular" in score.warning
    square = Image.open(images.paths[0]).crop((8, 0, 32, 24))
    picture = square.resize((256, 256), Image.Resampling.LANCZOS)
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None]
    features = metric.network.features(metric.store, images)[0]
    assert features == pytest.approx(network(pixels)[0][0].numpy(), abs=1e-5)


@pytest.mark.parametrize(
    ("content", "message"), [(b"no weights", "cannot be read"), (None, "fc.weight is missing")]
)
def test_files_that_are_not_inceptions_are_refused(tmp_path, images, content, message):
    path = tmp_path / "inception.pth"
    torch.save({"other": torch.zeros(1)}, path) if content is None else path.write_bytes(content)
    with pytest.raises(Unavailable, match=rf"--inception_path .*{message}"):
        scores(tmp_path, "fid", images, inception_path=str(path))


@only_in_all  # VGG16's two large layers
def test_vgg_features_are_those_before_the_second_relu(tmp_path, images, monkeypatch):
    whole = vision.models.vgg16

    def small(**options):
        network = whole(**options)
        network.features = torch.nn.Sequential(torch.nn.Conv2d(3, 512, 1, stride=32))
        return network

    monkeypatch.setattr(vision.models, "vgg16", small)
    torch.save(small().state_dict(), tmp_path / "vgg.pth")
    metric, both = scores(tmp_path, "pr", images, vgg_path=str(tmp_path / "vgg.pth"))
    values = {score.metric: score.value for score in both}
    assert values == {"pr.precision": 1.0, "pr.recall": 1.0}
    rows = metric.network.features(metric.store, images)
    assert rows.shape == (4, 4096) and rows.min() < 0


@pytest.mark.parametrize(
    ("name", "flag"),
    [("fid", "inception_path"), ("pr", "vgg_path"), ("clip", "clip_path"), ("hpsv2", "hpsv2_path")],
)
def test_missing_weights_say_where_users_get_them(tmp_path, images, name, flag):
    with pytest.raises(Unavailable) as error:
        scores(tmp_path, name, images, **{flag: str(tmp_path / "nowhere")})
    assert f"--{flag}" in str(error.value) and SOURCES[flag] in str(error.value)


def test_features_that_are_no_numbers_are_refused_and_not_kept(tmp_path, images):
    store = FeatureStore(tmp_path / "features", 3)
    with pytest.raises(Unavailable, match="^broken: expected features, got NaN"):
        store.images("broken [0123abcd]", images, lambda batch: np.full((len(batch), 4), np.nan))
    assert not list(tmp_path.rglob("*.npy"))
