"""Networks of the metrics' libraries, given by a user's flags.

Their weights are random, in the layout of the public files.
"""

import json
from pathlib import Path

import numpy as np
import open_clip
import pytest
import torch
import torch_fidelity as fidelity
import torchvision as vision
from PIL import Image

from configs.evaluation import SOURCES, EvaluateSettings
from eval.metrics import registry
from eval.metrics.base import ImageSet, Unavailable
from eval.metrics.registry import build_metric
from eval.metrics.store import FeatureStore
from eval.metrics.weights import find_weights
from eval.report.run import ImageFile, image_set

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
    random = np.random.default_rng(0)
    files = []
    for number, prompt in enumerate(PROMPTS):
        path = tmp_path / f"{number}.png"
        Image.fromarray(random.integers(0, 256, (24, 40, 3), dtype=np.uint8)).save(path)
        files.append(ImageFile(path, prompt))
    return image_set("made", files)


def scores(tmp_path: Path, name: str, images: ImageSet, **flags: str):
    store = FeatureStore(tmp_path / "features", 3)
    metric = build_metric(name, EvaluateSettings(output_dir="run", **flags), store, CPU)
    return metric, metric.scores(images, images)


def write_clip(open_clip, folder: Path) -> torch.nn.Module:
    """A small model as open_clip's folders on the hub."""
    from safetensors.torch import save_file

    model = open_clip.model.CLIP(**SMALL_CLIP).eval()
    folder.mkdir()
    save_file(
        {k: v.contiguous() for k, v in model.state_dict().items()},
        folder / "open_clip_model.safetensors",
    )
    config = {
        "model_cfg": SMALL_CLIP,
        "preprocess_cfg": {"interpolation": "bicubic", "resize_mode": "shortest"},
    }
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    return model


def test_clip_score_is_the_mean_cosine(tmp_path, images):
    model = write_clip(open_clip, tmp_path / "clip")
    _, (score,) = scores(
        tmp_path, "clip", images, clip_path=str(tmp_path / "clip"), clip_prefix="none"
    )
    transform = open_clip.image_transform((32, 32), is_train=False)
    with torch.no_grad():
        seen = model.encode_image(
            torch.stack([transform(Image.open(path)) for path in images.paths])
        )
        said = model.encode_text(open_clip.SimpleTokenizer()(list(PROMPTS)))
    expected = torch.nn.functional.cosine_similarity(seen, said).mean().item()
    assert score.value == pytest.approx(expected, abs=1e-5)  # fp32, in batches of another size
    assert score.network.startswith("open_clip ") and "clip [" in score.network and score.count == 4


def test_weights_from_the_hub(tmp_path, images, monkeypatch):
    write_clip(open_clip, tmp_path / "clip")
    asked = []

    def deliver(repository: str, file: str) -> str:
        asked.append((repository, file))
        return str(tmp_path / "clip" / file)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", deliver)
    scores(tmp_path, "clip", images, clip_path="someone/clip")
    assert asked == [
        ("someone/clip", "open_clip_config.json"),
        ("someone/clip", "open_clip_model.safetensors"),
    ]
    assert find_weights("hpsv2_path", "xswu/HPSv2/a/b.pt") == tmp_path / "clip/a/b.pt"
    assert asked[-1] == ("xswu/HPSv2", "a/b.pt")


def test_clip_prefix_changes_the_texts(tmp_path, images):
    write_clip(open_clip, tmp_path / "clip")
    plain = scores(tmp_path, "clip", images, clip_path=str(tmp_path / "clip"), clip_prefix="none")[
        1
    ][0]
    prefixed = scores(tmp_path, "clip", images, clip_path=str(tmp_path / "clip"))[1][0]
    assert plain.value != prefixed.value and "prefix 'A photo depicts '" in prefixed.network


def test_a_folder_without_weights_is_no_random_model(tmp_path, images):
    write_clip(open_clip, tmp_path / "clip")
    (tmp_path / "clip/open_clip_model.safetensors").unlink()
    with pytest.raises(Unavailable, match="--clip_path .*open_clip cannot load it"):
        scores(tmp_path, "clip", images, clip_path=str(tmp_path / "clip"))


def test_hps_pads_the_shorter_edge(tmp_path, images, monkeypatch):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/small-hps.json").write_text(json.dumps(SMALL_CLIP))
    open_clip.add_model_config(tmp_path / "configs")
    monkeypatch.setattr(registry, "HPS_MODEL", "small-hps")
    model = open_clip.model.CLIP(**SMALL_CLIP).eval()
    torch.save({"epoch": 1, "state_dict": model.state_dict()}, tmp_path / "HPS_v2.1_compressed.pt")
    metric, (score,) = scores(
        tmp_path, "hpsv21", images, hpsv21_path=str(tmp_path / "HPS_v2.1_compressed.pt")
    )
    white = metric.network.transform(Image.new("RGB", (40, 20), "white"))  # (3, 32, 32)
    top, middle, bottom = white[:, 0], white[:, 16], white[:, 31]  # (3, 32) each
    assert (top == bottom).all() and (top < middle).all() and (middle[:, 0] == middle[:, 31]).all()
    assert score.resize == "longest edge, padded with zeros" and -1 <= score.value <= 1
    with pytest.raises(Unavailable, match="--hpsv2_path .*no such file.*xswu/HPSv2"):
        scores(tmp_path, "hpsv2", images, hpsv2_path=str(tmp_path / "absent.pt"))


def test_aesthetic_heads_of_both_layouts(tmp_path, images):
    write_clip(open_clip, tmp_path / "clip")
    deep = torch.nn.ModuleDict(
        {
            "layers": torch.nn.Sequential(
                torch.nn.Linear(16, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1)
            )
        }
    ).eval()
    torch.save(deep.state_dict(), tmp_path / "deep.pth")
    flat = torch.nn.Linear(16, 1)
    torch.save(flat.state_dict(), tmp_path / "flat.pth")
    for path, head in (("deep.pth", deep["layers"]), ("flat.pth", flat)):
        flags = {
            "aesthetic_clip_path": str(tmp_path / "clip"),
            "aesthetic_path": str(tmp_path / path),
        }
        metric, (score,) = scores(tmp_path, "aesthetic", images, **flags)
        rows = torch.from_numpy(metric.network.features(metric.store, images))
        assert score.value == pytest.approx(head(rows).mean().item(), abs=1e-5)
    torch.save(torch.nn.Linear(17, 1).state_dict(), tmp_path / "wrong.pth")
    (tmp_path / "noise.pth").write_bytes(b"noise")
    for path, message in (
        ("wrong.pth", "not a head from 16 features"),
        ("noise.pth", "cannot be read as weights"),
    ):
        with pytest.raises(Unavailable, match=f"--aesthetic_path .*{message}"):
            scores(
                tmp_path, "aesthetic", images, **flags | {"aesthetic_path": str(tmp_path / path)}
            )


def test_inception_through_the_users_path(tmp_path, images, monkeypatch):
    from torch_fidelity import feature_extractor_inceptionv3 as module

    monkeypatch.setattr(module, "load_state_dict_from_url", lambda *_, **__: {})
    monkeypatch.setattr(
        module.FeatureExtractorInceptionV3, "load_state_dict", lambda *_, **__: None
    )
    network = fidelity.FeatureExtractorInceptionV3("inception", ["2048", "logits_unbiased"])
    monkeypatch.undo()
    torch.save(network.state_dict(), tmp_path / "inception.pth")
    metric, (score,) = scores(
        tmp_path, "fid", images, inception_path=str(tmp_path / "inception.pth")
    )
    assert abs(score.value) < 1e-3 and "singular" in score.warning
    picture = (
        Image.open(images.paths[0])
        .crop((8, 0, 32, 24))
        .resize((256, 256), Image.Resampling.LANCZOS)
    )
    pixels = torch.from_numpy(np.asarray(picture)).permute(2, 0, 1)[None]
    pooled, logits = network(pixels)
    assert metric.network.features(metric.store, images)[0] == pytest.approx(
        pooled[0].numpy(), abs=1e-5
    )
    expected = logits.log_softmax(dim=1)[0].numpy()
    assert metric.network.log_probabilities(metric.store, images)[0] == pytest.approx(
        expected, abs=1e-4
    )


@pytest.mark.parametrize(
    ("content", "message"), [(b"no weights", "cannot be read"), (None, "fc.weight is missing")]
)
def test_files_that_are_not_inceptions_are_refused(tmp_path, images, content, message):
    path = tmp_path / "inception.pth"
    torch.save({"other": torch.zeros(1)}, path) if content is None else path.write_bytes(content)
    with pytest.raises(Unavailable, match=rf"--inception_path .*{message}"):
        scores(tmp_path, "is", images, inception_path=str(path))


def test_vgg_features_are_those_before_the_second_relu(tmp_path, images, monkeypatch):
    whole = vision.models.vgg16

    def small(**options):
        network = whole(**options)
        network.features = torch.nn.Sequential(torch.nn.Conv2d(3, 512, 1, stride=32))
        return network

    monkeypatch.setattr(vision.models, "vgg16", small)
    network = small().eval()
    torch.save(network.state_dict(), tmp_path / "vgg.pth")
    metric, found = scores(tmp_path, "pr", images, vgg_path=str(tmp_path / "vgg.pth"))
    assert [(score.metric, score.value) for score in found] == [
        ("pr.precision", 1.0),
        ("pr.recall", 1.0),
    ]
    rows = metric.network.features(metric.store, images)
    assert rows.shape == (4, 4096) and rows.min() < 0


@pytest.mark.parametrize("name", ["fid", "pr", "clip", "aesthetic", "hpsv2"])
def test_missing_weights_say_where_users_get_them(tmp_path, images, name):
    flag = {"fid": "inception_path", "pr": "vgg_path", "aesthetic": "aesthetic_clip_path"}.get(
        name, f"{name}_path"
    )
    with pytest.raises(Unavailable) as error:
        scores(tmp_path, name, images, **{flag: str(tmp_path / "nowhere")})
    assert f"--{flag}" in str(error.value) and SOURCES[flag] in str(error.value)
