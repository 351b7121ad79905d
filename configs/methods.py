"""Which method decodes, and its settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from configs.acceptance import NUMBERS, PROPOSALS, VERIFIERS, LanternSettings
from configs.fields import (
    NUMBER,
    Settings,
    one_of,
    part,
    refuse,
    setting,
    settings_dict,
    settings_fields,
)
from configs.gone import GONE_METHODS, RENAMED_METHODS
from configs.method_table import CONTINUED, METHODS, TREES, AdtSettings

OF_YOUR_OWN = "If it is one of your own, import its module first; commands do with --plugin MODULE."


@dataclass(frozen=True)
class MethodSettings(Settings, group="Method"):
    """How images are decoded. Settings that do not apply to `method` are None."""

    method: str = setting(
        "decoding method; ar = plain decoding, the others draft",
        "adt",
        choices=METHODS,  # as it is, since a plugin may add to it
        renamed=RENAMED_METHODS,
        gone=GONE_METHODS,
        advice=OF_YOUR_OWN,
        shown="adt; of extract_tokens jacobi, which needs no drafter",
    )
    proposal: str | None = setting(
        "how draft tokens are chosen", choices=PROPOSALS, shown="coupled"
    )
    depth: int | None = setting("maximum tree depth", low=1, high=64, shown="eagle2 5, others 18")
    width: int | None = setting(
        "tree width", low=1, high=256, shown="eagle2 10, recall 5, others 4"
    )
    nodes: int | None = setting(
        "maximum draft tokens per forward pass", low=1, high=1024, shown="adt 6, others 58"
    )
    head_depth: int | None = setting(
        "levels that run the drafter; deeper ones use recall alone", low=1, high=64, shown="all"
    )
    recall_numbers: str | None = setting(
        "weights of recalled predictions; tune fits those of recall to a model",
        shown="those of tiny",
        wanted="six numbers from -20 to 20, as a/b/a/b/a/b",
        later=True,
    )
    tree: str | None = setting("tree of --method static", choices=TREES, shown="mc_sim_7b_63")
    window: int | None = setting(
        "positions drafted from the target's own earlier predictions",
        low=0,
        high=256,
        shown="16",
    )
    guess: str | None = setting(
        "first draft of a position: the code above it, the code to its left, or a random code",
        choices=("above", "left", "random"),
        shown="above",
    )
    verifier: str = setting(
        "acceptance rule; exact: the images of plain decoding; rejection, sampled, spectr, "
        "block_verification, traversal: other images of the same distribution; the rest are "
        "relaxed",
        "exact",
        choices=VERIFIERS,
        advice=OF_YOUR_OWN,
    )
    adt: AdtSettings | None = part(AdtSettings, default=None)
    relaxed: Settings | None = part(*NUMBERS, default=None)  # numbers of a relaxed rule

    def settle(self) -> None:
        rule = VERIFIERS[self.verifier]
        if self.recall_numbers is not None:
            fitted_numbers(self.recall_numbers)
        if self.window == 0 and self.method in CONTINUED:
            self.put(window=None)
        self._check_rule()
        self._refuse_idle()
        self.fill(**METHODS[self.method].defaults)
        if self.window == 0:
            refuse("window", 0, "1 to 256")
        if rule.numbers is not None:
            self.fill(relaxed=rule.numbers())

    def _check_rule(self) -> None:
        """Refuse a rule that does not go with the method and its proposal."""
        rule = VERIFIERS[self.verifier]
        proposal = self.proposal or METHODS[self.method].defaults.get("proposal")
        if not rule.fits(self.method, proposal):
            fitting = [name for name, one in VERIFIERS.items() if one.fits(self.method, proposal)]
            given = f"--method {self.method}" + (f" and --proposal {proposal}" if proposal else "")
            needs = f"--proposal {one_of(filter(None, rule.proposals))}"
            needs += f" and --method {one_of(rule.methods)}" if rule.methods else ""
            advice = f"{self.verifier} needs {needs}."
            refuse("verifier", self.verifier, f"{one_of(fitting)} with {given}", advice)

    def _refuse_idle(self) -> None:
        """Refuse a setting that the method or the rule has no use for."""
        fitting = applicable({"method": self.method, "verifier": self.verifier})
        for flag, value in self._given().items():
            methods = [name for name in METHODS if flag in _flags_of(name)]
            if flag in fitting or flag == "verifier":
                continue
            if methods:
                allowed = f"--method {one_of(methods)}, not with --method {self.method}"
            else:
                rules = [name for name, rule in VERIFIERS.items() if flag in rule.flags]
                allowed = f"--verifier {one_of(rules)}, not with --verifier {self.verifier}"
            refuse(flag, value, f"only with {allowed}")

    def _given(self) -> dict[str, Any]:
        """Return the settings that somebody may have given, by flag.

        Of the numbers of ADT-Tree and of relaxed rules these are those that are not the defaults,
        or else the first: an error about them has to name one.
        """
        given = {f.name: getattr(self, f.name) for f in settings_fields(self).values()}
        given = {flag: value for flag, value in given.items() if value is not None}
        for numbers in filter(None, (self.adt, self.relaxed)):
            values, usual = settings_dict(numbers), settings_dict(type(numbers)())
            changed = {flag: value for flag, value in values.items() if value != usual[flag]}
            given |= changed or dict([*values.items()][:1])
        return given

    @property
    def lantern(self) -> LanternSettings | None:
        """The numbers of LANTERN's rules; None with other rules."""
        return self.relaxed if isinstance(self.relaxed, LanternSettings) else None

    @property
    def speculative(self) -> bool:
        """Whether the method verifies drafts."""
        return METHODS[self.method].speculative

    @property
    def drafted(self) -> bool:
        """Whether the method needs a drafter's weights."""
        return METHODS[self.method].drafted

    @property
    def lossless(self) -> bool:
        """Whether the images have the target's own distribution."""
        return VERIFIERS[self.verifier].lossless

    def same_tokens(self, temperature: float) -> bool:
        """Return whether the images are those of plain decoding with the same seeds."""
        return VERIFIERS[self.verifier].repeats(temperature)


def fitted_numbers(text: str) -> tuple[float, ...]:
    """Return the six numbers of --recall_numbers, in the order of drafters.recall.RecallNumbers."""
    parts = text.split("/")
    numbers = [float(part) for part in parts if NUMBER.fullmatch(part)]
    # beyond 20, what is exponential in them overflows
    if len(parts) != 6 or len(numbers) != 6 or max(map(abs, numbers)) > 20:
        refuse("recall_numbers", text, "six numbers from -20 to 20, as a/b/a/b/a/b")
    return tuple(numbers)


def applicable(values: Mapping[str, Any]) -> list[str]:
    """Return the flags of methods that have an effect with the method and the rule in `values`."""
    method, rule = values.get("method", "adt"), values.get("verifier", "exact")
    flags = ["method", *_flags_of(method)] if method in METHODS else ["method"]
    if method in METHODS and METHODS[method].speculative:
        flags += ["verifier", *(VERIFIERS[rule].flags if rule in VERIFIERS else ())]
    return flags


def _flags_of(method: str) -> list[str]:
    """Return the flags that a method has with every rule."""
    defaults = METHODS[method].defaults
    return [*defaults, *(settings_fields(AdtSettings) if "adt" in defaults else ())]
