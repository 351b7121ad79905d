"""Do the images show what their prompts say? `python -m scripts.tiny.judge --run FOLDER --split test`.

For a run over a prompt file of scripts.tiny.prompts: the prompt number in an image's id is its scene's index.
"""

import json
from pathlib import Path

import numpy as np
from PIL import Image

from eval.attributes import AttributeClassifier, prompt_accuracy
from eval.durable import read_lines
from eval.script import run_script
from scripts.tiny.captions import caption
from scripts.tiny.scenes import sample_scene


def judge(*, run: str, split: str = "test", model_dir: str = "ckpts/tiny") -> None:
    """Print one JSON line: shares of images with the right background, shares of right object colours and shapes.

    Raises:
        ValueError: a record's prompt is not the caption of its scene.
    """
    records = read_lines(Path(run) / "records.jsonl")
    images, scenes = [], []
    for record in records:
        index = int(record["id"].split("_")[0])
        scene = sample_scene(split, index)
        if record["prompt"] != caption(scene, index):
            raise ValueError(f"--split: the prompt of {record['id']} is not caption {index} of {split!r}")
        images.append(np.asarray(Image.open(Path(run) / "img" / f"{record['id']}.png").convert("RGB")))
        scenes.append(scene.attributes())
    classifier = AttributeClassifier.load(Path(model_dir) / "attributes.safetensors")
    print(json.dumps({"images": len(images)} | prompt_accuracy(np.stack(images), scenes, classifier)))


if __name__ == "__main__":
    run_script(judge)
