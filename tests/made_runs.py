"""Run folders and scenes for the tests of `evaluate`, made without a model."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from configs.evaluation import EvaluateSettings
from configs.model import TIMED
from scenes.captions import caption
from scenes.painting import render_scene
from scenes.scene import sample_scene


def scenes(count: int, first: int = 0) -> tuple[list[np.ndarray], list[str]]:
    """Return rendered scenes of the validation split and their captions."""
    drawn = [sample_scene("validation", first + index) for index in range(count)]
    return [render_scene(scene) for scene in drawn], [
        caption(scene, index) for index, scene in enumerate(drawn)
    ]


def write_run(
    folder: Path,
    images: Sequence[np.ndarray],
    prompts: Sequence[str],
    settings: dict | None = None,
    **record: object,
) -> Path:
    """Write a run folder with one image per prompt.

    settings, record: what differs from plain decoding in 2 s per image.
    """
    method = {"model": "tiny", "method": "ar", "proposal": None, "verifier": "exact"}
    shared = {"prompt": "p.txt", "temperature": 1.0, "dtype": "fp32", **TIMED}
    chosen = method | shared | (settings or {})
    (folder / "img").mkdir(parents=True)
    identity = {name: value for name, value in chosen.items() if name not in TIMED}
    manifest = {
        "settings": chosen,
        "identity": identity,
        "revision": None,
        "earlier": [],
        "processes": 1,
    }
    manifest |= {"hardware": {"device": "cpu"}, "versions": {"torch": "x"}}
    (folder / "run.json").write_text(json.dumps(manifest))
    lines = []
    for number, (image, prompt) in enumerate(zip(images, prompts, strict=True)):
        name = f"{number:05d}_0"
        Image.fromarray(image).save(folder / "img" / f"{name}.png")
        tokens = hashlib.sha256(image.tobytes()).hexdigest()
        lines.append(made_record(name, prompt, seed=number, tokens_sha256=tokens) | record)
    write_records(folder, lines)
    return folder


def write_pair(
    folder: Path, images: Sequence[np.ndarray], prompts: Sequence[str], name: str
) -> tuple[Path, Path]:
    """Write a run by plain decoding and a relaxed one, with other images and a trace of one."""
    plain = write_run(folder / "ar", images, prompts)
    noisy = [np.clip(image.astype(int) + 3, 0, 255).astype(np.uint8) for image in images]
    relaxed = {"lossless": False, "seconds": 1.0, "tau": 2.0, "target_forwards": 128}
    flags = {"method": "adt", "verifier": "lantern"}
    other = write_run(folder / name, noisy, prompts, flags, **relaxed)
    rounds = [{"id": "00000_0"} | entry for entry in rounds_of([2] * 85)]
    (other / "trace.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in rounds))
    return plain, other


def rounds_of(accepted: Sequence[int]) -> list[dict]:
    """Return the rounds of a trace that accept so many draft tokens."""
    starts = np.cumsum([1, *(count + 1 for count in accepted)]).tolist()
    return [
        {"round": i, "position": starts[i], "accepted": a, "top1": [0.5] * (a + 1)}
        for i, a in enumerate(accepted)
    ]


def made_record(name: str, prompt: str, **values: object) -> dict:
    figures = {"tokens": 256, "target_forwards": 256, "seconds": 2.0}
    names = ("mean_drafted_depth", "mean_verified_depth", "mean_nodes")
    figures |= {"tau": 1.0} | dict.fromkeys(names, 0.0)
    return {"id": name, "prompt": prompt, "method": "ar", "lossless": True} | figures | values


def write_records(folder: Path, lines: Sequence[dict]) -> None:
    """Write records.jsonl; records without a hash of their image get that of its file."""
    saved = {path.stem: hashlib.sha256(content).hexdigest() for path, content in _images(folder)}
    lines = [{"image_sha256": saved.get(line["id"], "none"), **line} for line in lines]
    (folder / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def _images(folder: Path) -> list[tuple[Path, bytes]]:
    return [(path, path.read_bytes()) for path in (folder / "img").iterdir()]


def pictures(folder: Path) -> dict[str, bytes]:
    return {path.name: content for path, content in _images(folder)}


def settings_of(tmp_path: Path, *folders: Path, **flags) -> EvaluateSettings:
    return EvaluateSettings(
        output_dir=",".join(map(str, folders)),
        cache_dir=str(tmp_path / "features"),
        device="cpu",
        **flags,
    )
