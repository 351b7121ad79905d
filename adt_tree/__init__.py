"""Exact, fast image generation with autoregressive models, from Python.

from adt_tree import Pipeline

pipe = Pipeline.from_pretrained("tiny", method="graft")
pipe("a large red circle on a plain blue background").images[0].save("red.png")
"""

from adt_tree.output import Draft, ImageOutput, ImageStats, MethodTable, StreamStep
from adt_tree.pipeline import Pipeline
from configs.fields import SettingsError

__all__ = [
    "Draft",
    "ImageOutput",
    "ImageStats",
    "MethodTable",
    "Pipeline",
    "SettingsError",
    "StreamStep",
]
