"""Prompt accuracy of the tiny domain: do images show the background, colours and shapes that their prompts name?"""

from PIL import Image

from eval.attributes import Attributes, Labels, hits
from eval.metrics.base import ImageSet, Score, Unavailable
from eval.metrics.intervals import share_interval
from eval.metrics.networks import AttributeNetwork, tiny_pixels

_BATCH = 64


class Accuracy:
    """Shares of what the prompts say that the classifier sees; `exact`: nothing is missing and nothing too much."""

    def __init__(self, network: AttributeNetwork):
        self.network = network

    def scores(self, images: ImageSet, reference: ImageSet | None) -> list[Score]:
        """A score per aspect. Raises Unavailable if no prompt is one of the tiny domain."""
        classifier = self.network.classifier
        facts = [_said(prompt, classifier.labels) for prompt in images.prompts]
        chosen = [number for number, fact in enumerate(facts) if fact is not None]
        if not chosen:
            raise Unavailable("no prompt names a background and objects of the tiny domain")
        seen = []
        for start in range(0, len(chosen), _BATCH):
            batch = [Image.open(images.paths[number]).convert("RGB") for number in chosen[start : start + _BATCH]]
            seen += classifier.predict(tiny_pixels(batch))
        others = len(facts) - len(chosen)
        return [
            Score(
                f"accuracy.{aspect}",
                count=len(chosen),
                network=self.network.label,
                resize=self.network.resize,
                warning=f"{others} prompts of other images are not the tiny domain's" if others else None,
                **share_interval(counts[:, 0], counts[:, 1]),
            )
            for aspect, counts in hits(seen, [facts[number] for number in chosen]).items()
        ]


def _said(prompt: str, labels: Labels) -> Attributes | None:
    """What a prompt says; None for one that is not the tiny domain's."""
    try:
        return Attributes.from_prompt(prompt, labels)
    except ValueError:
        return None
