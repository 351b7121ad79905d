"""The checkpoint that `verify` looks at: loaded parts, known pictures, and what it has decoded."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from configs.tools import VerifySettings
from decoding.flight import Job
from decoding.noise import image_seed
from drafters.training.rows import Rows, join_prompts, target_rows
from models.base import Layers, TargetModel
from models.codecs.codec import Codec
from models.registry import load_codec
from runs.measure import BASELINE, Measurement, measure
from runs.session import DTYPES, Session, target_options
from scenes.captions import caption
from scenes.painting import render_scene
from scenes.scene import sample_scene

SCENES = (301, 304, 305)  # of the test split: clouds and a plain ground, with large shapes
TOKENS, IMAGES = 64, 2  # that every method decodes


class FirstRows:
    """A target whose images end after their first rows; prompts are those of whole images."""

    def __init__(self, target: TargetModel, tokens: int):
        """tokens: an image has at least so many, if the whole one does."""
        self.target = target
        rows = min(math.ceil(tokens / target.grid.columns), target.grid.rows)
        self.grid = replace(target.grid, rows=rows)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)


@dataclass(frozen=True)
class Subject:
    """A loaded checkpoint. session: on the target that draws whole images."""

    settings: VerifySettings
    session: Session

    @property
    def target(self) -> TargetModel:
        """The target that draws whole images."""
        return self.session.target

    @cached_property
    def first(self) -> Session:
        """The same checkpoint, drawing only the first rows of an image."""
        return replace(self.session, target=FirstRows(self.target, TOKENS))

    @cached_property
    def captions(self) -> list[str]:
        """Captions of the known pictures."""
        return [caption(sample_scene("test", index), index) for index in SCENES]

    @cached_property
    def jobs(self) -> list[Job]:
        """An image of each of the first captions."""
        return [
            Job(str(number), text, image_seed(0, text))
            for number, text in enumerate(self.captions[:IMAGES])
        ]

    @cached_property
    def plain(self) -> Measurement:
        """The first rows of the images by plain decoding."""
        return measure(self.first.open_engine(BASELINE), self.jobs)

    @cached_property
    def pictures(self) -> Tensor:
        """The known pictures at the model's size, uint8 (pictures, height, width, 3)."""
        codec = self._codec
        scenes = [Image.fromarray(render_scene(sample_scene("test", i))) for i in SCENES]
        fitted = [codec.fit(enlarged(scene, codec.size), codec.size) for scene in scenes]
        return torch.stack(
            [
                torch.frombuffer(bytearray(p.tobytes()), dtype=torch.uint8).view(
                    p.height, p.width, 3
                )
                for p in fitted
            ]
        )

    @cached_property
    def codes(self) -> Tensor:
        """The codes of the known pictures, (pictures, tokens)."""
        return self._codec.images.encode(self.pictures)

    @cached_property
    def _codec(self) -> Codec:
        options = target_options(self.settings, DTYPES[self.settings.dtype], self.target.device)
        return load_codec(self.settings.model, self.settings.model_path, options)

    def rows(
        self, target: TargetModel, prompts: Sequence[str], codes: Tensor, layers: Layers = ()
    ) -> Rows:
        """Return the target's features after these prompts and codes (images, tokens).

        layers: whose hidden states stand behind them.
        """
        guidance = self.settings.sampling.guidance
        prompt = join_prompts([target.prompt(text, guidance) for text in prompts])
        return target_rows(target, prompt, codes, layers)


def enlarged(picture: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Return a picture that covers a size (width, height), smoothly enlarged where it is less."""
    scale = max(1.0, size[0] / picture.width, size[1] / picture.height)
    wanted = math.ceil(picture.width * scale), math.ceil(picture.height * scale)
    return picture.resize(wanted, Image.Resampling.BICUBIC)
