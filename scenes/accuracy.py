"""Prompt accuracy of the tiny domain: do the images show what their prompts name?"""

from eval.metrics.base import ImageSet, Score, Unavailable
from eval.metrics.intervals import share_interval
from eval.metrics.metric import Metric
from scenes.attribute_classifier import Attributes, hits


class Accuracy(Metric):
    """Shares of what the prompts say that the classifier sees.

    `exact` counts images that show all that was said and nothing else.
    """

    def scores(self, images: ImageSet, reference: ImageSet | None) -> list[Score]:
        """Return a score per aspect; Unavailable if no prompt is one of the tiny domain."""
        labels = self.network.classifier.labels
        said = [Attributes.from_prompt(prompt, labels) for prompt in images.prompts]
        others = said.count(None)
        if others == len(said):
            raise Unavailable("no prompt names a background and objects of the tiny domain")
        seen = self.network.attributes(self.store, images)
        pairs = [pair for pair in zip(seen, said, strict=True) if pair[1] is not None]
        warning = f"{others} prompts of other images are not the tiny domain's" if others else None
        return [
            self.score(len(pairs), f".{aspect}", warning=warning, **share_interval(*counts.T))
            for aspect, counts in hits(*zip(*pairs, strict=True)).items()
        ]
