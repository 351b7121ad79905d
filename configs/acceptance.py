"""The acceptance rules: one entry each, and the numbers of the relaxed ones.

A new rule is an entry here, one in runs/methods.py and a module in decoding/rules.
"""

from dataclasses import dataclass

from configs.fields import Settings, refuse, setting, settings_fields

PROPOSALS = ("topk", "coupled", "sampled")


@dataclass(frozen=True)
class LanternSettings(
    Settings, prefix="lantern_", group="Relaxed acceptance (--verifier lantern, lantern_coupled)"
):
    """Relaxed acceptance: LANTERN (arXiv 2410.03355), LANTERN++ (arXiv 2502.06352)."""

    # k and delta: the defaults of LANTERN's code
    # high: a table of nearest codes has at most 65,535 columns (models/codecs/codebook.py)
    k: int = setting(
        "how many nearest codes may lend a draft their probability", 1000, low=1, high=2**16 - 1
    )
    delta: float = setting(
        "up to 1: how much probability a draft may borrow (LANTERN's delta); above 1: how many "
        "times its own probability a draft may reach (LANTERN++'s lambda)",
        0.1,
        low=0,
    )
    residual: str = setting(
        "what a refused draft takes out of the distribution: exact: the codes it borrowed from; "
        "reference: its k + 1 nearest codes, as published code does",
        "exact",
        choices=("exact", "reference"),
    )
    budget: str | None = setting(
        "of a delta up to 1: shared by the drafts for one position, or given to each, as published",
        choices=("shared", "per_candidate"),
        shown="shared",
    )

    def settle(self) -> None:
        if self.delta <= 1:
            self.fill(budget="shared")
        elif self.budget is not None:
            allowed = f"only with --lantern_delta up to 1, not with {self.delta:g}"
            refuse("lantern_budget", self.budget, allowed)

    def columns(self, codes: int) -> int:
        """Return how wide the table of nearest codes has to be, for a model with so many codes."""
        if self.k >= codes:
            allowed = f"1 to {codes - 1}, since the model has {codes} image codes"
            refuse("lantern_k", self.k, allowed)
        # published code removes one more
        return min(self.k + (self.residual == "reference"), codes - 1)


@dataclass(frozen=True)
class GsdSettings(Settings, prefix="gsd_", group="Relaxed acceptance (--verifier gsd)"):
    """Grouped speculative decoding (arXiv 2508.07747); the defaults are those of its code.

    That code takes 7 less likely, but only 6 likelier tokens.
    """

    reach: int = setting(
        "cluster: this many ranks above and below the draft token",
        7,
        low=0,
        high=2**16 - 1,
    )
    gap: float = setting("cluster: largest difference in probability", 0.15, low=0, high=1)


@dataclass(frozen=True)
class PathSettings(Settings, prefix="path_", group="Relaxed acceptance (--verifier path_relax)"):
    """PathRelax (arXiv 2606.10492); the default is that of its code."""

    delta: float = setting(
        "how much a draft may borrow from other paths, as a share of their mean probability",
        0.01,
        low=0,
        high=1,
    )


@dataclass(frozen=True)
class Acceptance:
    """An acceptance rule: what it keeps and goes with; runs/methods.py has its verifier."""

    lossless: bool  # the images have the target's own distribution
    # they are those of plain decoding with the same seeds also above temperature 0
    same_tokens: bool
    proposals: tuple[str | None, ...]  # it goes with these; None: with none
    methods: tuple[str, ...] | None = None  # it goes with these; None: with all
    # the settings class of its own flags; of a rule from a plugin one of `NUMBERS`
    numbers: type[Settings] | None = None
    without: tuple[str, ...] = ()  # the flags of it that the rule lacks

    @property
    def flags(self) -> list[str]:
        flags = settings_fields(self.numbers) if self.numbers else ()
        return [flag for flag in flags if flag not in self.without]

    def fits(self, method: str, proposal: str | None) -> bool:
        return proposal in self.proposals and (self.methods is None or method in self.methods)

    def repeats(self, temperature: float) -> bool:
        """Return whether the images are those of plain decoding with the same seeds."""
        return self.same_tokens or self.lossless and temperature == 0


VERIFIERS: dict[str, Acceptance] = {
    # None: `ar`, which is this rule with an empty tree
    "exact": Acceptance(True, True, (None, *PROPOSALS)),
    "rejection": Acceptance(True, False, PROPOSALS),
    # other methods drop children by their values, which biases what is accepted
    "sampled": Acceptance(True, False, ("sampled",), ("static", "jacobi")),
    "spectr": Acceptance(True, False, ("sampled",), ("static",)),
    "block_verification": Acceptance(True, False, ("sampled",), ("static", "jacobi")),
    "traversal": Acceptance(True, False, ("sampled",), ("static", "jacobi")),
    "lantern": Acceptance(False, False, ("topk", "coupled"), numbers=LanternSettings),
    "lantern_coupled": Acceptance(
        False, False, ("topk", "coupled"), numbers=LanternSettings, without=("lantern_residual",)
    ),
    "gsd": Acceptance(False, False, ("sampled",), ("static", "jacobi"), numbers=GsdSettings),
    "path_explore": Acceptance(False, False, ("sampled",), ("static",)),
    "path_relax": Acceptance(False, False, ("sampled",), ("static",), numbers=PathSettings),
}
# The settings classes of the rules with numbers.
NUMBERS = tuple(dict.fromkeys(rule.numbers for rule in VERIFIERS.values() if rule.numbers))
