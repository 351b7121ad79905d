"""The acceptance rules, one entry each: what a rule keeps and goes with, and where its code is.

A new rule is an entry and a module; `register_rule` adds one from outside the checkout, and adds
those of decoding/rules, which only serve comparison.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pkgutil import resolve_name
from typing import Any

from configs.fields import Settings, SettingsError, flags_in, refuse, setting

# by name: how the children of a node are taken from the drafter's distribution
PROPOSALS = {
    "topk": "decoding.proposals:TopK",
    "coupled": "decoding.proposals:Coupled",
    "sampled": "decoding.proposals:WithoutReplacement",
}
Code = str | Callable[..., Any]  # "module:name", imported when it is used, or the object itself


def loaded(code: Code) -> Callable[..., Any]:
    """Return what an entry names."""
    return resolve_name(code) if isinstance(code, str) else code


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
class Rule:
    """An acceptance rule. `exact`, for example, is lossless and has the tokens of `ar`."""

    summary: str
    # makes the verifier of its settings, if it has some; LANTERN's also of the nearest codes
    code: Code
    proposals: tuple[str | None, ...]  # it goes with these; None: with a method that has none
    methods: tuple[str, ...] | None = None  # it goes with these; None: with all
    drawing: tuple[str, ...] | None = None  # of these, with `sampled`; None: with all of them
    lossless: bool = False  # the images have the target's own distribution
    same_tokens: bool = False  # with the same seeds they are plain decoding's, also above T = 0
    settings: type[Settings] | None = None  # with its own flags
    without: tuple[str, ...] = ()  # flags of `settings` that the rule lacks
    # a GPU judges all nodes at once, by a kernel (decoding/verifiers/nodewise.py)
    nodewise: bool = False

    @property
    def flags(self) -> list[str]:
        flags = flags_in(self.settings) if self.settings else ()
        return [flag for flag in flags if flag not in self.without]

    def fits(self, method: str, proposal: str | None) -> bool:
        drawing = self.drawing if proposal == "sampled" else None
        allowed = (names is None or method in names for names in (self.methods, drawing))
        return proposal in self.proposals and all(allowed)

    def repeats(self, temperature: float) -> bool:
        """Return whether the images are those of plain decoding with the same seeds."""
        return self.same_tokens or (self.lossless and temperature == 0)


_VERIFIERS = "decoding.verifiers"
RULES: dict[str, Rule] = {
    # None: `ar`, which is this rule with an empty tree
    "exact": Rule(
        "the target's own tokens",
        f"{_VERIFIERS}.exact:Exact",
        (None, *PROPOSALS),
        lossless=True,
        same_tokens=True,
    ),
    "rejection": Rule(
        "accept or reject each child, then draw from what is left",
        f"{_VERIFIERS}.rejection:Rejection",
        tuple(PROPOSALS),
        lossless=True,
        nodewise=True,
    ),
    # other methods drop children by their values, which biases what is accepted
    "sampled": Rule(
        "the same for children that were drawn from the drafter's distribution",
        f"{_VERIFIERS}.sampled:Sampled",
        ("sampled",),
        ("static", "jacobi"),
        lossless=True,
        nodewise=True,
    ),
    "lantern": Rule(
        "drafts borrow the probability of similar codes",
        f"{_VERIFIERS}.lantern:Lantern",
        tuple(PROPOSALS),
        drawing=("static", "jacobi"),
        settings=LanternSettings,
        nodewise=True,
    ),
    "lantern_coupled": Rule(
        "the same under the noise of the exact rule",
        f"{_VERIFIERS}.lantern:LanternCoupled",
        ("topk", "coupled"),
        settings=LanternSettings,
        without=("lantern_residual",),
        nodewise=True,
    ),
}


def lossless_rules() -> list[str]:
    """Return the rules whose images have the target's own distribution."""
    return [name for name, rule in RULES.items() if rule.lossless]


def rules_help() -> str:
    """Return the help of --verifier."""
    others = [name for name in lossless_rules() if not RULES[name].same_tokens]
    return (
        f"acceptance rule; exact: the images of plain decoding; {', '.join(others)}: other images "
        "of the same distribution; the rest are relaxed"
    )


def register_rule(name: str, rule: Rule) -> None:
    """Add an acceptance rule to those of --verifier.

    The module that has the code may register the name again, as a notebook's cell does that runs
    twice; a SettingsError if the name is another module's.
    """
    claim(name, rule.code, {other: entry.code for other, entry in RULES.items()})
    RULES[name] = rule


def claim(name: str, code: Code | None, codes: Mapping[str, Code | None]) -> None:
    """Refuse a name that another module's code has: results on disk tell methods apart by it."""
    if name in codes and _module(codes[name]) != _module(code):
        raise SettingsError(f"{name!r} is taken. Choose a name other than {', '.join(codes)}")


def _module(code: Code | None) -> str:
    return code.partition(":")[0] if isinstance(code, str) else getattr(code, "__module__", "")


import_module("decoding.rules")  # registers its rules, as a plugin does
