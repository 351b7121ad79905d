"""The settings of learning while drawing, of `generate_images`."""

from dataclasses import dataclass
from typing import ClassVar

from configs.acceptance import VERIFIERS
from configs.fields import refuse, setting
from configs.model import EngineSettings

NEW = "new"  # what --drafter_path says for a head that has learned nothing
SHARE = 0.25


@dataclass(frozen=True)
class LearningSettings(EngineSettings):
    """Whether the drafter learns from the images that it helps to draw."""

    group: ClassVar[str] = "Learning"
    learn: bool | None = setting(
        None,
        "train the drafter while images are drawn, on what their verification computes; images "
        f"stay the same; --drafter_path {NEW} begins with a head that has learned nothing",
        shown="off",
        later=True,
    )
    learn_share: float | None = setting(
        None,
        "share of the time that learning takes, at most",
        above=0,
        high=0.9,
        shown=f"{SHARE:g}",
        later=True,
    )

    def settle(self) -> None:
        if not self.learn:
            self.put(learn=None)
            if self.learn_share is not None:
                refuse("learn_share", self.learn_share, "only with --learn")
            if self.drafter_path == NEW:
                allowed = (
                    f"only with --learn, for a head that has learned nothing; ./{NEW} is a folder"
                )
                refuse("drafter_path", NEW, allowed)
            return
        self.fill(learn_share=SHARE)
        if not self.method.drafted:
            allowed = "only with a method that has a drafter with weights, not with --method "
            refuse("learn", True, allowed + self.method.method)
        if not VERIFIERS[self.method.verifier].same_tokens:
            allowed = "only with --verifier exact: with other rules the images would depend on it"
            refuse("learn", True, allowed)
        if self.compile == "on" and self.device != "cpu":
            refuse("compile", "on", "off or auto with --learn, whose rounds are not recorded")
        if self.device_map == "auto":
            refuse("device_map", "auto", "single with --learn")
