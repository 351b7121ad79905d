"""A checkpoint with random weights in its public layout, to try or time what is not downloaded:
`python -m scripts.tools.random_checkpoint --model janus_pro --size small --output work/janus_pro`.
"""

import shlex
from importlib import import_module
from pathlib import Path

from configs.fields import one_of, refuse
from configs.targets import TARGETS
from scripts.checkpoints.chameleon import LAYERS, anole_config, write_parts
from scripts.checkpoints.published import Published, Writer
from support.script import run_script

MODELS = [name for name in TARGETS if name != "tiny"]
# modules of scripts/checkpoints that are not named as the model
_MODULES = {
    "anole": "chameleon",
    "lumina_mgpt": "chameleon",
    "lumina_mgpt2": "lumina2",
    "llamagen2": "llamagen",
    "janus_pro": "janus",
}
SIZES = ("small", "full")


def write(
    *, model: str, output: str, size: str = "small", scale: int = 1, layers: int = LAYERS
) -> None:
    """Write target and drafter with the tokenizer and image codec that they need.

    Args:
        model: anole, lumina_mgpt, lumina_mgpt2, llamagen, llamagen2, janus_pro, emu3, emu3_5,
            liquid, glm_image or image_gpt.
        output: a folder, which --model_path takes.
        size: small (seconds, megabytes), or full (the published sizes in bf16, with a narrow codec:
            Anole takes 15 GB of disk, up to 1 GB of memory per core and a minute or two; Emu3.5
            takes 70 GB of disk).
        scale: 1, 2, 4, 8, 16 or 32: divisor of the widths and heads of a full Anole.
        layers: of a full Anole.
    """
    if model not in MODELS:
        refuse("model", model, one_of(MODELS))
    if size not in SIZES:
        refuse("size", size, one_of(SIZES))
    if scale not in (1, 2, 4, 8, 16, 32):
        refuse("scale", scale, "1, 2, 4, 8, 16 or 32")
    writer = writer_of(model, size)
    if (scale, layers) != (1, LAYERS):
        if (model, size) != ("anole", "full"):
            flag, value = ("scale", scale) if scale != 1 else ("layers", layers)
            refuse(flag, value, "none, except with --model anole --size full")
        writer = Published(model, anole_config(scale, layers), write_parts)
    folder = target_folder(model, Path(output))
    if any((folder / name).exists() for name in ("config.json", "model.ckpt")):
        refuse("output", output, "a folder without a checkpoint")  # whose weights would stay
    writer(folder)
    given = f"--model {model} --model_path {shlex.quote(output)}"
    print(f'python main.py generate_images {given} --method adt --prompt "a red cat"')


def writer_of(model: str, size: str) -> Writer:
    """Return what writes a model's files into the target's folder and next to it."""
    # here, since most need transformers, which loads for seconds
    module = import_module(f"scripts.checkpoints.{_MODULES.get(model, model)}")
    return getattr(module, size.upper())[model]


def target_folder(model: str, output: Path) -> Path:
    """Return the target's folder, named as the public one, so that its name tells the model."""
    return output / Path(TARGETS[model].folder).name


if __name__ == "__main__":
    run_script(write)
