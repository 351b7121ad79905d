"""Which packages the machine lacks, and what cannot be done there for it."""

import importlib.util

# import name -> what needs it; the rest of the check runs without it
OPTIONAL = {
    "fire": "main.py and the scripts of scripts/tools",
    "diffusers": "pixels: the codecs, generate_images, verify",
    "open_clip": "the metrics clip, hpsv2 and aesthetic",
    "torch_fidelity": "the metric fid",
    "pytest": "the tests marked cuda",
    "triton": "compiled passes on a GPU",
    "matplotlib": "the pictures of sweeps and reports",
    "jinja2": "the report",
}
NEEDED = ("torch", "numpy", "safetensors", "tokenizers", "transformers", "yaml", "tqdm", "PIL")


def missing(names: dict[str, str] | tuple[str, ...]) -> list[str]:
    """Return those of the packages, by import name, that are not installed."""
    return [name for name in names if importlib.util.find_spec(name) is None]
