"""The figures of the ADT-Tree paper (arXiv 2512.21857) that can be read; all are of Anole."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PublishedCell:
    """A row of the paper's tables.

    Attributes:
        speedup: over its own plain decoding.
        tau: tokens per round.
        mean_depth: of the draft trees, in tokens.
        clip: CLIP score.
    """

    speedup: float
    tau: float | None = None
    mean_depth: float | None = None
    clip: float | None = None


# (model, prompts, temperature, method, whether acceptance is relaxed) -> figures
PUBLISHED = {
    ("anole", "MSCOCO2017Val", 0.0, "ar", False): PublishedCell(1.00, 1.0, clip=0.3086),
    ("anole", "MSCOCO2017Val", 0.0, "eagle2", False): PublishedCell(1.62, mean_depth=5),
    ("anole", "MSCOCO2017Val", 0.0, "eagle2", True): PublishedCell(3.03, mean_depth=5),
    ("anole", "MSCOCO2017Val", 0.0, "adt", False): PublishedCell(2.21, 3.40, 3.86, 0.3081),
    ("anole", "MSCOCO2017Val", 0.0, "adt", True): PublishedCell(3.13, 4.86, 5.15),
    ("anole", "PartiPrompts", 0.0, "adt", True): PublishedCell(3.05, 3.97, 4.31),
}


def published(settings: dict[str, object], lossless: bool) -> PublishedCell | None:
    """Return the paper's figures for a run of these settings; None where it has none."""
    model, prompt, temperature, method = (
        settings[name] for name in ("model", "prompt", "temperature", "method")
    )
    return PUBLISHED.get((model, prompt, float(temperature), method, not lossless))
