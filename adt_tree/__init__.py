"""Exact, fast image generation with autoregressive models, from Python.

from adt_tree import Pipeline

pipe = Pipeline.from_pretrained("tiny", method="adt")
pipe("a large red circle on a plain blue background").images[0].save("red.png")
"""

from importlib.util import find_spec
from pathlib import Path

_HOME = Path(__file__).resolve().parent.parent
for _name in ("support", "configs", "models", "decoding", "drafters", "runs", "eval"):
    _found = getattr(find_spec(_name), "origin", None)
    if _found is None or Path(_found).resolve() != _HOME / _name / "__init__.py":
        # otherwise an import deep inside would fail
        raise ImportError(
            f"adt_tree: {_found or 'a module without a file'} hides the package {_name!r} of "
            f"{_HOME}. Rename it, or import adt_tree from a folder that has no {_name!r}."
        )

from support.threads import prepare_threads

prepare_threads()  # before torch is loaded

from adt_tree.output import ImageOutput, ImageStats, MethodTable
from adt_tree.pipeline import Pipeline
from adt_tree.sources import StepCallback
from adt_tree.stream import Draft, StreamStep
from configs.fields import SettingsError
from configs.methods import Method, register_method
from configs.rules import Rule, register_rule
from support.provenance import program_version

__version__ = program_version()

__all__ = [
    "Draft",
    "ImageOutput",
    "ImageStats",
    "Method",
    "MethodTable",
    "Pipeline",
    "Rule",
    "SettingsError",
    "StepCallback",
    "StreamStep",
    "register_method",
    "register_rule",
]
