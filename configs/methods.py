"""Which method decodes, and its settings."""

from dataclasses import dataclass
from types import NoneType
from typing import ClassVar, NoReturn

from configs.acceptance import NUMBERS, PROPOSALS, VERIFIERS, LanternSettings, rules_with
from configs.fields import Settings, SettingsError, part, refuse, setting, settings_fields
from configs.method_table import METHODS, PUBLISHED, TREES, AdtSettings


@dataclass(frozen=True)
class MethodSettings(Settings):
    """How images are decoded. Settings that do not apply to `method` are None."""

    group: ClassVar[str] = "Method"
    method: str = setting(
        "adt",
        "ar: plain autoregressive decoding; the others draft trees",
        choices=tuple(METHODS),
        shown="adt; of extract_tokens jacobi, which needs no drafter",
    )
    proposal: str | None = setting(
        None, "how children are taken from the drafter", choices=PROPOSALS, shown="coupled"
    )
    calibration: str | None = setting(
        None,
        "path scores of grown trees: corrected by the drafter's calibration.json, if it has one, "
        "or as they are",
        choices=("drafter", "none"),
        shown="drafter; with topk and sampled none, as published",
    )
    depth: int | None = setting(
        None,
        "levels of a tree, at most",
        low=1,
        high=64,
        shown="eagle2 5, marginal 6, graft 1, similar 14, graft_similar, block 18, ngram 6",
    )
    width: int | None = setting(
        None, "width of a tree", low=1, high=256, shown="eagle2, ngram 10, similar 5, others 4"
    )
    nodes: int | None = setting(
        None,
        "draft tokens in a tree, at most: the target verifies them in one forward pass",
        low=1,
        high=1024,
        shown="adt 6, others 58",
    )
    head_depth: int | None = setting(
        None,
        "levels that ask the drafter; deeper ones are drafted by what is recalled alone",
        low=1,
        high=64,
        shown="all",
    )
    tree: str | None = setting(
        None, "named tree of --method static", choices=TREES, shown="mc_sim_7b_63"
    )
    size: str | None = setting(
        None,
        "how large trees grow within --depth and --nodes; priced: as far as the next draft token "
        "gains more time than it costs on this machine; fixed: always to the limits",
        choices=("priced", "fixed"),
        shown="priced; fixed with jacobi, similar and block unless --prices is given, and with "
        "rules that draw other images than ar",
    )
    prices: str | None = setting(
        None,
        "file of this machine's costs, as scripts.tools.costs writes it",
        path=True,
        shown="measured at the start and kept in ~/.cache/adt-tree",
    )
    window: int | None = setting(
        None,
        "how many positions ahead the target's own stale predictions draft; 0: none",
        low=0,
        high=256,
        shown="16",
    )
    guess: str | None = setting(
        None,
        "draft for a position that the target has not predicted yet: as the position above it, as "
        "the one to its left, or any code at random",
        choices=("above", "left", "random"),
        shown="above",
    )
    verifier: str = setting(
        "exact",
        "acceptance rule; exact draws the images of plain decoding; rejection, sampled, spectr, "
        "block and traversal others of the same distribution; the rest are relaxed",
        choices=tuple(VERIFIERS),
    )
    adt: AdtSettings | None = part(AdtSettings, default=None)
    relaxed: Settings | None = part(*NUMBERS, default=None)  # numbers of a relaxed rule

    def settle(self) -> None:
        if not isinstance(self.adt, AdtSettings | None):
            raise SettingsError(f"adt: found {self.adt!r}; allowed: AdtSettings")
        rule = VERIFIERS[self.verifier]
        own = METHODS[self.method].defaults | PUBLISHED.get((self.method, self.proposal), {})
        if own.get("size") == "priced" and not rule.same_tokens and self.prices is None:
            own["size"] = "fixed"
        for name in (*settings_fields(self), "adt"):
            always = name in ("method", "verifier")
            if not always and name not in own and getattr(self, name) is not None:
                self._refuse_idle(name)
        self.fill(**own)
        if "size" in own and own["size"] is None:
            self._settle_later_size()
        self._check_acceptance()
        self._check_size()
        self._settle_numbers()

    def _settle_later_size(self) -> None:
        """Settle the size of a method whose trees had one only before they had prices.

        None is fixed, so that the identity of older run folders stays.
        """
        if self.size is None and self.prices is not None:
            self.put(size="priced")
        if self.size == "fixed" and self.prices is None:
            self.put(size=None)

    def _refuse_idle(self, name: str) -> NoReturn:
        """Refuse a setting that the method has no use for."""
        methods = " or ".join(each for each in METHODS if name in METHODS[each].defaults)
        allowed = f"only with --method {methods}, not with --method {self.method}"
        refuse("adt_*" if name == "adt" else name, getattr(self, name), allowed)

    def _check_acceptance(self) -> None:
        """Refuse a rule that does not go with the method and its proposal."""
        if METHODS[self.method].remembers and not VERIFIERS[self.verifier].same_tokens:
            allowed = (
                f"with --method {self.method} exact: its drafts depend on earlier images, and "
            )
            refuse("verifier", self.verifier, f"{allowed}with other rules images would, too")
        fitting = [
            name for name, rule in VERIFIERS.items() if rule.fits(self.method, self.proposal)
        ]
        if self.verifier not in fitting:
            rule, own = VERIFIERS[self.verifier], f"--method {self.method}"
            own += f" and --proposal {self.proposal}" if self.proposal else ""
            wanted = f"--proposal {' or '.join(filter(None, rule.proposals))}"
            wanted += f" and --method {' or '.join(rule.methods)}" if rule.methods else ""
            allowed = f"with {own} {', '.join(fitting)}; {self.verifier} goes with {wanted}"
            refuse("verifier", self.verifier, allowed)

    def _check_size(self) -> None:
        """Refuse trees whose images nobody could repeat, and prices without effect."""
        repeatable = self.prices is not None or VERIFIERS[self.verifier].same_tokens
        if self.size == "priced" and not repeatable:
            allowed = (
                f"with --verifier {self.verifier} fixed, or with --prices: trees by measured times "
                "would make images that nobody can repeat"
            )
            refuse("size", "priced", allowed)
        if self.method == "jacobi" and self.window == 0:
            refuse("window", 0, "1 to 256 with --method jacobi")
        if self.size == "fixed" and self.prices is not None:
            refuse("prices", self.prices, "only with --size priced")

    def _settle_numbers(self) -> None:
        """Settle the numbers of a relaxed rule; refuse those of another one."""
        rule, found = VERIFIERS[self.verifier], self.relaxed
        if not isinstance(found, (*NUMBERS, NoneType)):
            raise SettingsError(f"relaxed: found {found!r}; allowed: the numbers of a relaxed rule")
        if found is not None and type(found) is not rule.numbers:
            allowed = f"only with --verifier {' or '.join(rules_with(type(found)))}"
            refuse(f"{found.prefix}*", found, f"{allowed}, not {self.verifier}")
        if rule.numbers is not None:
            self.fill(relaxed=rule.numbers())
            self._refuse_numbers_without_effect()

    def _refuse_numbers_without_effect(self) -> None:
        """Refuse what a rule lacks of the numbers that it shares with others."""
        rule = VERIFIERS[self.verifier]
        for flag, f in settings_fields(rule.numbers).items():
            value = getattr(self.relaxed, f.name)
            if flag in rule.without and value != f.default:
                rules = [n for n in rules_with(rule.numbers) if flag not in VERIFIERS[n].without]
                allowed = f"only with --verifier {' or '.join(rules)}; {self.verifier} has none"
                refuse(flag, value, allowed)

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
