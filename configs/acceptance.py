"""Acceptance rules, and the numbers of the relaxed ones."""

from dataclasses import dataclass
from typing import ClassVar

from configs.fields import check_fields, refuse, setting

PROPOSALS = ("topk", "coupled", "sampled")


@dataclass(frozen=True)
class LanternSettings:
    """Relaxed acceptance: LANTERN (arXiv 2410.03355), LANTERN++ (arXiv 2502.06352)."""

    prefix: ClassVar[str] = "lantern_"
    group: ClassVar[str] = "Relaxed acceptance (--verifier lantern, lantern_coupled)"
    k: int = setting(
        1000, "nearest codes that may give their probability to a draft", low=1, high=2**16 - 1
    )
    delta: float = setting(
        0.1,
        "most probability that is moved; above 1 it is LANTERN++'s lambda, most growth of a draft's own",
        low=0,
    )
    residual: str = setting(
        "exact",
        "what a refused draft takes out of the law: the codes that it claimed, or k + 1 of them as published code does",
        choices=("exact", "reference"),
    )
    budget: str | None = setting(
        None,
        "whether siblings share delta or have it each, as published; not for lambda, which bounds every draft",
        choices=("shared", "per_candidate"),
        shown="shared",
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.delta <= 1 and self.budget is None:
            object.__setattr__(self, "budget", "shared")
        elif self.delta > 1 and self.budget is not None:
            refuse(
                "lantern_budget",
                self.budget,
                f"only with --lantern_delta up to 1, not with {self.delta:g}",
            )


@dataclass(frozen=True)
class Acceptance:
    """What an acceptance rule keeps, and what it goes with.

    lossless: the images have the target's own law. same_tokens: they are those of plain decoding with the same seeds
    also above temperature 0. proposals, methods: it goes with these; None: no proposal, all methods.
    """

    lossless: bool
    same_tokens: bool
    proposals: tuple[str | None, ...]
    methods: tuple[str, ...] | None = None

    def fits(self, method: str, proposal: str | None) -> bool:
        return proposal in self.proposals and (self.methods is None or method in self.methods)

    def repeats(self, temperature: float) -> bool:
        """Whether the images are those of plain decoding with the same seeds."""
        return self.same_tokens or self.lossless and temperature == 0


VERIFIERS: dict[str, Acceptance] = {
    "exact": Acceptance(True, True, (None, *PROPOSALS)),
    "rejection": Acceptance(True, False, PROPOSALS),
    "sampled": Acceptance(
        True, False, ("sampled",), ("static", "jacobi")
    ),  # others drop children by their values
    "lantern": Acceptance(False, False, ("topk", "coupled")),
    "lantern_coupled": Acceptance(False, False, ("topk", "coupled")),
}
RELAXED = tuple(name for name, rule in VERIFIERS.items() if not rule.lossless)
