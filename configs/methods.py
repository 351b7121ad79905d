"""The methods, one entry each, and the settings that say how images are decoded.

A new method is an entry and a module that builds its tree policy and its drafter;
`register_method` adds one from outside the checkout.
"""

from collections import ChainMap, Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from configs.fields import (
    NUMBER,
    Settings,
    Values,
    flags_in,
    one_of,
    parse,
    part_in,
    refuse,
    setting,
)
from configs.rules import (
    PROPOSALS,
    RULES,
    Code,
    LanternSettings,
    claim,
    rules_help,
)

AUTO = "auto"  # the method that `tune` found
OF_YOUR_OWN = "If it is one of your own, import its module first; commands do with --plugin MODULE."
# The trees of --method static: `path:n` gives the node of that rank path n children, of ranks 0 to
# n - 1; sizes and shapes as published.
TREES = {
    "mc_sim_7b_63": "root:4 0:3 1:2 2:2 3:1 00:3 01:2 02:2 10:1 000:3 0000:2",
    "mc_sim_7b_63_balanced": "root:3 0:3 1:3 2:2 00:3 01:2 10:2 11:2 000:3 0000:2",
    "naive_extend_57": "root:5 0:4 1:3 2:3 3:2 4:1 00:4 01:3 02:3 03:2 10:2 11:1 20:1 "
    "000:4 001:3 002:2 003:1 010:2 011:1 020:1 0000:3 0001:2 0010:2 0011:1 0020:1",
    "medusa_2_7b_63": "root:10 0:10 1:5 2:2 3:2 4:1 5:1 6:1 7:1 00:9 01:4 02:2 03:1 04:1 05:1 "
    "10:3 11:1 20:1 000:4 001:1 002:1 010:1",
    "reverse_balanced_25": "root:3 0:2 1:1 2:1 00:3 01:2 10:1 000:3 001:2 0000:4 0001:3",
    "chain": "root:1 0:1 00:1 000:1 0000:1",
    # PathSpec's Grouped_Tree_2 (8a3df48)
    "two_chains": " ".join(["root:2", *(f"{i}{'0' * n}:1" for n in range(11) for i in "01")]),
}


@dataclass(frozen=True)
class AdtSettings(Settings, prefix="adt_", group="ADT-Tree (--method adt)"):
    """ADT-Tree's numbers, by the symbols of arXiv 2512.21857, equation 2, which gives no values."""

    # Defaults within 1 % of the best in one-flag sweeps with six nodes (docs/results/adt.md).
    beta: float = setting(
        "acceptance from which the next tree is deeper and narrower", 0.7, low=0, high=1
    )
    l_d: int = setting("levels added or taken per step", 1, low=0, high=64)
    l_k: int = setting("width added or taken per step", 1, low=0, high=64)
    d_min: int = setting("least depth", 1, low=1, high=64)
    d_max: int = setting("greatest depth", 3, low=1, high=64)
    k_min: int = setting("least width", 2, low=1, high=256)
    k_max: int = setting("greatest width", 4, low=1, high=256)
    d_init: int | None = setting(
        "depth of an image's first tree", low=1, high=64, shown="5, or the nearest bound"
    )
    k_init: int | None = setting(
        "width of an image's first tree", low=1, high=256, shown="4, or the nearest bound"
    )
    init: str = setting(
        "tree that the next one starts from",
        "horizontal",
        choices=("horizontal", "vertical", "random", "fixed"),
    )
    adapt: str = setting(
        "what is compared with beta; all but the first are controls",
        "acceptance",
        choices=("acceptance", "random", "confidence", "none"),
    )
    alpha: str = setting(
        "whose acceptance: the previous tree's or the initialising neighbour's",
        "previous",
        choices=("previous", "neighbour"),
    )

    def settle(self) -> None:
        # With the default bounds, a first tree of 3 levels and width 4.
        for axis, default in (("d", 5), ("k", 4)):
            low, high = getattr(self, f"{axis}_min"), getattr(self, f"{axis}_max")
            if low > high:
                refuse(f"adt_{axis}_min", low, f"at most --adt_{axis}_max, which is {high}")
            self.fill(**{f"{axis}_init": min(max(default, low), high)})
            start = getattr(self, f"{axis}_init")
            if not low <= start <= high:
                limits = f"{low} to {high} (--adt_{axis}_min to --adt_{axis}_max)"
                refuse(f"adt_{axis}_init", start, limits)


@dataclass(frozen=True)
class Method:
    """A way to decode."""

    summary: str
    policy: Code | None = None  # of MethodSettings and the grid of an image -> its TreePolicy
    # of drafters.drafting.Drafting -> a Drafter; None: the method drafts nothing
    drafter: Code | None = None
    # the flags of MethodSettings that apply, with their defaults
    defaults: Mapping[str, object] = field(default_factory=dict)
    settings: type[Settings] | None = None  # with flags of its own
    drafted: bool = False  # the drafter has weights

    @property
    def speculative(self) -> bool:
        return self.drafter is not None

    @property
    def flags(self) -> list[str]:
        """The flags that the method has with every rule, --method and --verifier apart."""
        return [*self.defaults, *(flags_in(self.settings) if self.settings else ())]


_DYNAMIC, _RECALLED = (f"decoding.policies.dynamic:{name}_tree" for name in ("dynamic", "recalled"))
_EAGLE = "drafters.eagle:eagle_drafter"
METHODS: dict[str, Method] = {
    "ar": Method("plain decoding, the baseline"),
    "static": Method(
        "one fixed tree (EAGLE-1)",
        "decoding.policies.static:static_tree",
        _EAGLE,
        {"proposal": "coupled", "tree": "mc_sim_7b_63"},
        drafted=True,
    ),
    # The paper's fixed size: five levels, ten children a node, 58 nodes (configs/paper).
    "eagle2": Method(
        "dynamic trees of one size (EAGLE-2)",
        _DYNAMIC,
        _EAGLE,
        {"proposal": "coupled", "depth": 5, "width": 10, "nodes": 58},
        drafted=True,
    ),
    # Six nodes: chosen on a CPU, where every node costs time (docs/results/adt.md).
    "adt": Method(
        "trees that adapt depth and width to neighbouring acceptance (ADT-Tree)",
        "decoding.policies.adaptive:adaptive_tree",
        _EAGLE,
        {"proposal": "coupled", "nodes": 6},
        settings=AdtSettings,
        drafted=True,
    ),
    "jacobi": Method(
        "a chain of the target's own earlier predictions (SJD)",
        "decoding.policies.chain:chain_tree",
        "drafters.jacobi:jacobi_drafter",
        {"proposal": "coupled", "window": 16, "guess": "above"},
    ),
    "recall": Method(
        "trees of earlier predictions, weighted by similar tokens",
        _RECALLED,
        "drafters.recall:recall_drafter",
        {"proposal": "coupled", "depth": 18, "width": 5, "nodes": 58, "recall_numbers": None}
        | {"guess": "above"},
    ),
    # 18 x 4 has a tau of 6.03, 16 x 3 of 5.87 (docs/results/tokens.md)
    "block": Method(
        "a drafter reads a window of earlier hidden states and drafts a tree in three passes",
        _RECALLED,
        "drafters.block:block_drafter",
        {"proposal": "coupled", "depth": 18, "width": 4, "nodes": 58},
        drafted=True,
    ),
    "eagle_recall": Method(
        "an EAGLE drafter mixed with earlier predictions",
        _RECALLED,
        "drafters.eagle_recall:eagle_recall_drafter",
        {"proposal": "coupled", "depth": 18, "width": 4, "nodes": 58, "head_depth": None}
        | {"recall_numbers": None, "guess": "above"},
        drafted=True,
    ),
}


def register_method(name: str, method: Method) -> None:
    """Add a method to those of --method; what `configs.rules.register_rule` says holds here."""
    claim(name, method.drafter, {other: entry.drafter for other, entry in METHODS.items()})
    METHODS[name] = method


def undrafted_methods() -> str:
    """Return the methods that need no drafter with weights, as a sentence lists them."""
    return one_of(name for name, method in METHODS.items() if not method.drafted)


def usual(flag: str) -> Callable[[], str]:
    """Return what says a flag's defaults by method: "eagle2 5, others 18"."""

    def text() -> str:
        of = {name: m.defaults[flag] for name, m in METHODS.items() if m.defaults.get(flag)}
        common = Counter(of.values()).most_common(1)[0][0]
        apart = [f"{name} {value}" for name, value in of.items() if value != common]
        return ", ".join([*apart, f"others {common}"]) if apart else str(common)

    return text


@dataclass(frozen=True)
class MethodSettings(Settings, group="Method"):
    """How images are decoded. Settings that do not apply to `method` are None."""

    method: str = setting(
        "decoding method; ar = plain decoding, the others draft; auto = the one that tune found",
        "adt",
        choices=ChainMap({AUTO: None}, METHODS),  # no copy, since a plugin may add to METHODS
        advice=OF_YOUR_OWN,
        shown="auto where tune has been run, else adt; without a drafter and in extract_tokens "
        "jacobi; in demo on a CPU jacobi --window 6",
    )
    proposal: str | None = setting(
        "how draft tokens are chosen", choices=PROPOSALS, shown=usual("proposal")
    )
    depth: int | None = setting("maximum tree depth", low=1, high=64, shown=usual("depth"))
    width: int | None = setting("tree width", low=1, high=256, shown=usual("width"))
    nodes: int | None = setting(
        "maximum draft tokens per forward pass", low=1, high=1024, shown=usual("nodes")
    )
    head_depth: int | None = setting(
        "levels that run the drafter; deeper ones use recall alone", low=1, high=64, shown="all"
    )
    recall_numbers: str | None = setting(
        "weights of recalled predictions; tune fits those of recall to a model",
        shown="those of tiny",
        wanted="six numbers from -20 to 20, as a/b/a/b/a/b",
    )
    tree: str | None = setting("tree of --method static", choices=TREES, shown=usual("tree"))
    window: int | None = setting(
        "positions drafted from the target's own earlier predictions",
        low=1,
        high=256,
        shown=usual("window"),
    )
    guess: str | None = setting(
        "first draft of a position: the code above it, the code to its left, or a random code",
        choices=("above", "left", "random"),
        shown=usual("guess"),
    )
    verifier: str = setting(rules_help, "exact", choices=RULES, advice=OF_YOUR_OWN)
    own: Settings | None = part_in(METHODS)  # the method's own numbers
    numbers: Settings | None = part_in(RULES)  # the rule's own

    @classmethod
    def of(cls, values: Mapping[str, Any] | None = None, /, **more: Any) -> Self:
        """Make the settings from values by flag; refuse flags that method or rule lack."""
        values = {**(values or {}), **more}
        flags = flags_in(cls)
        for flag in ("method", "verifier"):
            values[flag] = parse(flags[flag], flag, values.get(flag, flags[flag].default))
        if values["method"] == AUTO:
            refuse("method", AUTO, one_of(METHODS), "Only generate_images and Python have auto.")
        method, rule = METHODS[values["method"]], RULES[values["verifier"]]
        fitting = {"method", "verifier", *method.flags, *rule.flags}  # `settle` refuses the rule
        if idle := [flag for flag in flags if flag in values and flag not in fitting]:
            _refuse_idle(idle[0], values)
        if method.settings is not None:
            values["own"] = method.settings.of(values)
        if rule.settings is not None:
            values["numbers"] = rule.settings.of(values)
        return super().of(values)

    def settle(self) -> None:
        if self.recall_numbers is not None:
            fitted_numbers(self.recall_numbers)
        method, rule = METHODS[self.method], RULES[self.verifier]
        self.fill(**method.defaults)
        if not rule.fits(self.method, self.proposal):
            self._refuse_rule()
        self.fill(own=method.settings and method.settings())
        self.fill(numbers=rule.settings and rule.settings())

    def _refuse_rule(self) -> None:
        """Refuse a rule that does not go with the method and its proposal."""
        rule, proposal = RULES[self.verifier], self.proposal
        fitting = [name for name, one in RULES.items() if one.fits(self.method, proposal)]
        given = f"--method {self.method}" + (f" and --proposal {proposal}" if proposal else "")
        needs = f"--proposal {one_of(filter(None, rule.proposals))}"
        needs += f" and --method {one_of(rule.methods)}" if rule.methods else ""
        needs += f" (sampled: with --method {one_of(rule.drawing)})" if rule.drawing else ""
        advice = f"{self.verifier} needs {needs}."
        refuse("verifier", self.verifier, f"{one_of(fitting)} with {given}", advice)

    @property
    def lantern(self) -> LanternSettings | None:
        """The numbers of LANTERN's rules; None with other rules."""
        return self.numbers if isinstance(self.numbers, LanternSettings) else None

    @property
    def speculative(self) -> bool:
        """Whether the method verifies drafts."""
        return METHODS[self.method].speculative

    @property
    def drafts(self) -> int:
        """Most draft tokens per forward pass; 0 of methods that do not say."""
        tree = TREES[self.tree].split() if self.tree else ()
        return self.nodes or self.window or sum(int(item.partition(":")[2]) for item in tree)

    @property
    def drafted(self) -> bool:
        """Whether the method needs a drafter's weights."""
        return METHODS[self.method].drafted

    @property
    def lossless(self) -> bool:
        """Whether the images have the target's own distribution."""
        return RULES[self.verifier].lossless

    def same_tokens(self, temperature: float) -> bool:
        """Return whether the images are those of plain decoding with the same seeds."""
        return RULES[self.verifier].repeats(temperature)


def fitted_numbers(text: str) -> tuple[float, ...]:
    """Return the six numbers of --recall_numbers, in the order of drafters.recall.RecallNumbers."""
    parts = text.split("/")
    numbers = [float(part) for part in parts if NUMBER.fullmatch(part)]
    # beyond 20, what is exponential in them overflows
    if len(parts) != 6 or len(numbers) != 6 or max(map(abs, numbers)) > 20:
        refuse("recall_numbers", text, "six numbers from -20 to 20, as a/b/a/b/a/b")
    return tuple(numbers)


def applicable(values: Values) -> list[str]:
    """Return the flags of methods that have an effect with the method and the rule in `values`."""
    method, rule = values.get("method", "adt"), values.get("verifier", "exact")
    if method not in METHODS or not METHODS[method].speculative:
        return ["method"]
    rule_flags = RULES[rule].flags if rule in RULES else ()
    return ["method", *METHODS[method].flags, "verifier", *rule_flags]


def _refuse_idle(flag: str, values: Values) -> None:
    """Refuse a setting that the method or the rule has no use for."""
    names = [name for name, one in METHODS.items() if flag in one.flags]
    kind = "method" if names else "verifier"
    names = names or [name for name, rule in RULES.items() if flag in rule.flags]
    allowed = f"only with --{kind} {one_of(names)}, not with --{kind} {values[kind]}"
    refuse(flag, values[flag], allowed)
