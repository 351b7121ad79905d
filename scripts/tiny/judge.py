"""Do the images of a run show what their prompts say? `python -m scripts.tiny.judge --run FOLDER`."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

from eval.attributes import AttributeClassifier, Attributes, compare
from eval.durable import read_lines
from eval.script import run_script


def judge(*, run: str, model_dir: str = "ckpts/tiny") -> None:
    """Print one JSON line: shares of images with the right background, shares of right object colours and shapes.

    Raises:
        ValueError: a record's prompt is not one of the tiny model's kind.
    """
    classifier = AttributeClassifier.load(Path(model_dir) / "attributes.safetensors")
    records = read_lines(Path(run) / "records.jsonl")
    said = [Attributes.from_prompt(record["prompt"], classifier.labels) for record in records]
    pictures = [Image.open(Path(run) / "img" / f"{record['id']}.png").convert("RGB") for record in records]
    seen = classifier.predict(np.stack([np.asarray(picture) for picture in pictures]))
    print(json.dumps({"images": len(records)} | compare(seen, said)))


if __name__ == "__main__":
    run_script(judge)
