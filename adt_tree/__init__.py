"""Exact, fast image generation with autoregressive models, from Python.

from adt_tree import Pipeline

pipe = Pipeline.from_pretrained("tiny", method="adt")
pipe("a large red circle on a plain blue background").images[0].save("red.png")
"""

from support.threads import prepare_threads

prepare_threads()  # before torch is loaded

from adt_tree.output import ImageOutput, ImageStats, MethodTable
from adt_tree.pipeline import Pipeline
from adt_tree.sources import StepCallback
from adt_tree.stream import Draft, StreamStep
from configs.fields import SettingsError
from configs.methods import Method, register_method
from configs.rules import Rule, register_rule

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
