"""Make the finished example of the page: `python -m scripts.tools.page_example`.

It is what `main.py demo` shows before a visitor generates an image.
"""

import base64
import json
from pathlib import Path

from adt_tree import Pipeline
from page.stage import HERE, Wish, stages, words
from support.script import run_script


def page_example(*, prompt: str, seed: int = 0, method: str = "adt", folder: str = "") -> None:
    """Write `example.json` and `example.png`, on which both methods agree, by the included model.

    Args:
        prompt: what the image shows.
        seed: of the image.
        method: the fast method.
        folder: where to write; the page's own by default.
    """
    pipe = Pipeline.from_pretrained("tiny", method=method, device="cpu", progress_bar=False)
    usual = pipe.settings.sampling
    settings = (usual.temperature, usual.cfg, usual.top_k)
    # slow, so that the verdict has no seconds: they would be those of this machine
    wish = Wish(prompt, method, seed, *settings, tokens=0, slow=True)
    *_, value = stages(pipe, wish, pause=0.0)
    images = {panel.pop("image") for panel in value["panels"]}
    if not value["verdict"]["same"] or len(images) > 1:
        raise ValueError(f"expected the same image from {method} and plain decoding")
    for panel in value["panels"]:
        for name in ("seconds", "words"):
            del panel[name]
    value["verdict"]["text"] += (
        f" The example's fast method: {words(method)}. Press Generate to run the chosen one here."
    )
    value |= {"state": "example", "seed": seed}
    del value["link"]
    target = Path(folder) if folder else HERE
    (target / "example.png").write_bytes(base64.b64decode(images.pop().split(",")[1]))
    (target / "example.json").write_text(json.dumps(value) + "\n", "utf-8")
    print(f"{target / 'example.json'}: {value['verdict']['title']}")


if __name__ == "__main__":
    run_script(page_example)
