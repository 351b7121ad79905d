"""The methods, one entry each, and ADT-Tree's numbers.

A new method is an entry here, one in runs/methods.py and a module in drafters or decoding/policies.
"""

from dataclasses import dataclass, field

from configs.fields import Settings, refuse, setting

TREES = (
    "mc_sim_7b_63",
    "mc_sim_7b_63_balanced",
    "naive_extend_57",
    "medusa_2_7b_63",
    "reverse_balanced_25",
    "chain",
)


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
class MethodTraits:
    """What settings have to know of a way to decode; runs/methods.py has what makes its parts."""

    # the settings of MethodSettings that apply, with their defaults
    defaults: dict[str, object] = field(default_factory=dict)
    speculative: bool = True  # it drafts
    drafted: bool = False  # the drafter has weights


METHODS: dict[str, MethodTraits] = {
    "ar": MethodTraits(speculative=False),
    "static": MethodTraits({"proposal": "coupled", "tree": "mc_sim_7b_63"}, drafted=True),
    # The paper's fixed tree: five levels, ten children a node, 58 nodes (configs/paper).
    "eagle2": MethodTraits(
        {"proposal": "coupled", "depth": 5, "width": 10, "nodes": 58}, drafted=True
    ),
    # Six nodes: chosen on a CPU, where every node costs time (docs/results/adt.md).
    "adt": MethodTraits({"proposal": "coupled", "nodes": 6, "adt": AdtSettings()}, drafted=True),
    "jacobi": MethodTraits({"proposal": "coupled", "window": 16, "guess": "above"}),
    "recall": MethodTraits(
        {"proposal": "coupled", "depth": 18, "width": 5, "nodes": 58, "recall_numbers": None}
        | {"guess": "above"}
    ),
    # 18 x 4 has a tau of 6.03, 16 x 3 of 5.87 (docs/results/tokens.md)
    "block": MethodTraits(
        {"proposal": "coupled", "depth": 18, "width": 4, "nodes": 58}, drafted=True
    ),
    "eagle_recall": MethodTraits(
        {"proposal": "coupled", "depth": 18, "width": 4, "nodes": 58, "head_depth": None}
        | {"recall_numbers": None, "guess": "above"},
        drafted=True,
    ),
}
# Methods whose trees a chain of --window tokens continued, 16 by default; 0 was none, as today.
CONTINUED = "recall", "block", "eagle_recall"
