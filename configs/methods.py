"""How images are drawn and decoded: sampling law, method, ADT-Tree's numbers."""

import os
from dataclasses import dataclass
from typing import ClassVar

from configs.acceptance import PROPOSALS, RELAXED, VERIFIERS, LanternSettings
from configs.fields import SettingsError, check_fields, refuse, setting

TREES = (
    "mc_sim_7b_63",
    "mc_sim_7b_63_balanced",
    "naive_extend_57",
    "medusa_2_7b_63",
    "reverse_balanced_25",
    "chain",
)


@dataclass(frozen=True)
class SamplingSettings:
    """The sampling law: guidance, then temperature, then top-k, then top-p."""

    group: ClassVar[str] = "Sampling"
    temperature: float = setting(1.0, "0 = always the likeliest code (argmax)", low=0, high=100)
    top_k: int = setting(0, "keep the k likeliest codes; 0 = off", low=0)
    top_p: float = setting(
        1.0, "keep the likeliest codes that make up this probability; 1 = off", above=0, high=1
    )
    cfg: float = setting(3.0, "guidance scale; 1 = no guidance", low=0, high=100)

    def __post_init__(self) -> None:
        check_fields(self)
        if 0 < self.temperature < 1e-3:
            refuse("temperature", self.temperature, "0 (argmax), or 0.001 to 100")


@dataclass(frozen=True)
class AdtSettings:
    """ADT-Tree's numbers, by the symbols of arXiv 2512.21857, equation 2, which gives no values."""

    prefix: ClassVar[str] = "adt_"
    group: ClassVar[str] = "ADT-Tree (--method adt)"
    beta: float = setting(
        0.7, "acceptance from which the next tree is deeper and narrower", low=0, high=1
    )
    l_d: int = setting(1, "levels added or taken per step", low=0, high=64)
    l_k: int = setting(1, "width added or taken per step", low=0, high=64)
    d_min: int = setting(1, "least depth", low=1, high=64)
    d_max: int = setting(3, "greatest depth", low=1, high=64)
    k_min: int = setting(2, "least width", low=1, high=256)
    k_max: int = setting(4, "greatest width", low=1, high=256)
    d_init: int | None = setting(
        None, "depth of an image's first tree", low=1, high=64, shown="5, or the nearest bound"
    )
    k_init: int | None = setting(
        None, "width of an image's first tree", low=1, high=256, shown="4, or the nearest bound"
    )
    init: str = setting(
        "horizontal",
        "tree that the next one starts from",
        choices=("horizontal", "vertical", "random", "fixed"),
    )
    adapt: str = setting(
        "acceptance",
        "what is compared with beta; all but the first are controls",
        choices=("acceptance", "random", "confidence", "none"),
    )
    alpha: str = setting(
        "previous",
        "whose acceptance: the previous tree's or the initialising neighbour's",
        choices=("previous", "neighbour"),
    )

    def __post_init__(self) -> None:
        check_fields(self)
        for axis, default in (("d", 5), ("k", 4)):
            low, start, high = (getattr(self, f"{axis}_{end}") for end in ("min", "init", "max"))
            if low > high:
                refuse(f"adt_{axis}_min", low, f"at most --adt_{axis}_max, which is {high}")
            if start is None:
                object.__setattr__(self, f"{axis}_init", min(max(default, low), high))
            elif not low <= start <= high:
                refuse(
                    f"adt_{axis}_init",
                    start,
                    f"{low} to {high} (--adt_{axis}_min to --adt_{axis}_max)",
                )


_PRICED = {"proposal": "coupled", "calibration": "drafter", "size": "priced", "prices": None}
# The settings that apply to each method, with their defaults.
METHODS: dict[str, dict[str, object]] = {
    "ar": {},
    "static": {"proposal": "coupled", "tree": "mc_sim_7b_63"},
    "eagle2": {
        "proposal": "coupled",
        "calibration": "drafter",
        "depth": 5,
        "width": 10,
        "nodes": 58,
    },
    "adt": {"proposal": "coupled", "calibration": "drafter", "nodes": 6, "adt": AdtSettings()},
    "jacobi": {"proposal": "coupled", "window": 16, "guess": "above"},
    "marginal": _PRICED | {"depth": 6, "width": 4, "nodes": 58},
    "graft": _PRICED | {"depth": 1, "width": 4, "nodes": 58, "window": 16, "guess": "above"},
}
# Other defaults of a method with a proposal: the published methods do not calibrate.
PUBLISHED = {
    (method, proposal): {"calibration": "none"}
    for method in ("eagle2", "adt")
    for proposal in ("topk", "sampled")
}


@dataclass(frozen=True)
class MethodSettings:
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
        "path scores of grown trees: by the calibration.json beside the drafter, where there is one, or as they are",
        choices=("drafter", "none"),
        shown="drafter; with topk and sampled none, as published",
    )
    depth: int | None = setting(
        None, "levels of a tree, at most", low=1, high=64, shown="eagle2 5, marginal 6, graft 1"
    )
    width: int | None = setting(
        None, "width of a tree", low=1, high=256, shown="eagle2 10, others 4"
    )
    nodes: int | None = setting(
        None,
        "most nodes that one target forward verifies",
        low=1,
        high=1024,
        shown="adt 6, others 58",
    )
    tree: str | None = setting(
        None, "named tree of --method static", choices=TREES, shown="mc_sim_7b_63"
    )
    size: str | None = setting(
        None,
        "size of the tree: as many levels and nodes as pay for themselves on this machine, within --depth and "
        "--nodes; or just these",
        choices=("priced", "fixed"),
        shown="priced; fixed with rules that draw other images than ar",
    )
    prices: str | None = setting(
        None,
        "file of this machine's costs, as scripts.tools.costs writes it",
        shown="measured at the start and kept in ~/.cache/adt-tree",
    )
    window: int | None = setting(
        None,
        "how many positions ahead the target's earlier laws draft",
        low=1,
        high=256,
        shown="16",
    )
    guess: str | None = setting(
        None,
        "what stands for the law of a position that no pass has reached: that above it, to its left, any token",
        choices=("above", "left", "random"),
        shown="above",
    )
    verifier: str = setting(
        "exact",
        "acceptance rule; exact draws the images of plain decoding, rejection and sampled others of the same law",
        choices=tuple(VERIFIERS),
    )
    adt: AdtSettings | None = None
    lantern: LanternSettings | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.prices is not None:  # a shell leaves ~ alone in --flag=~/x
            object.__setattr__(self, "prices", os.path.expanduser(self.prices))
        for name, owner in (("adt", AdtSettings), ("lantern", LanternSettings)):
            if not isinstance(getattr(self, name), owner | None):
                raise SettingsError(
                    f"{name}: found {getattr(self, name)!r}; allowed: {owner.__name__}"
                )
        defaults = METHODS[self.method] | PUBLISHED.get((self.method, self.proposal), {})
        if "size" in defaults and not VERIFIERS[self.verifier].same_tokens and self.prices is None:
            defaults["size"] = "fixed"
        for name in sorted({name for settings in METHODS.values() for name in settings}):
            value = getattr(self, name)
            if value is None:
                object.__setattr__(self, name, defaults.get(name))
            elif name not in defaults:
                methods = " or ".join(method for method in METHODS if name in METHODS[method])
                flag = "adt_*" if name == "adt" else name
                refuse(
                    flag, value, f"only with --method {methods}, not with --method {self.method}"
                )
        self._check_acceptance()

    def _check_acceptance(self) -> None:
        """Refuse combinations that VERIFIERS does not have; settle the numbers of relaxed acceptance."""
        fitting = [
            name for name, rule in VERIFIERS.items() if rule.fits(self.method, self.proposal)
        ]
        if self.verifier not in fitting:
            rule, own = VERIFIERS[self.verifier], f"--method {self.method}"
            own += f" and --proposal {self.proposal}" if self.proposal else ""
            wanted = f"--proposal {' or '.join(filter(None, rule.proposals))}"
            wanted += f" and --method {' or '.join(rule.methods)}" if rule.methods else ""
            refuse(
                "verifier",
                self.verifier,
                f"with {own} {', '.join(fitting)}; {self.verifier} goes with {wanted}",
            )
        if (
            self.size == "priced"
            and self.prices is None
            and not VERIFIERS[self.verifier].same_tokens
        ):
            allowed = "fixed, or with --prices: trees by measured times would make images that nobody can repeat"
            refuse("size", "priced", f"with --verifier {self.verifier} {allowed}")
        if self.size == "fixed" and self.prices is not None:
            refuse("prices", self.prices, "only with --size priced")
        if self.verifier not in RELAXED:
            if self.lantern is not None:
                only = f"only with --verifier {' or '.join(RELAXED)}, not with --verifier {self.verifier}"
                refuse("lantern_*", self.lantern, only)
        elif self.lantern is None:
            object.__setattr__(self, "lantern", LanternSettings())
        elif self.verifier == "lantern_coupled" and self.lantern.residual != "exact":
            refuse(
                "lantern_residual",
                self.lantern.residual,
                "only with --verifier lantern; lantern_coupled has none",
            )

    @property
    def speculative(self) -> bool:
        """Whether the method verifies drafts."""
        return self.method != "ar"

    @property
    def drafted(self) -> bool:
        """Whether the method needs a drafter's weights."""
        return self.method not in ("ar", "jacobi")

    @property
    def lossless(self) -> bool:
        """Whether the images have the target's own law."""
        return VERIFIERS[self.verifier].lossless

    def same_tokens(self, temperature: float) -> bool:
        """Whether the images are those of plain decoding with the same seeds."""
        return VERIFIERS[self.verifier].repeats(temperature)
