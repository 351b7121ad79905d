"""The methods, one entry each, and ADT-Tree's numbers.

A new method is an entry here and a module in drafters or decoding/policies.
"""

from dataclasses import dataclass, field
from typing import ClassVar

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
class AdtSettings(Settings):
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

    def settle(self) -> None:
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
    """A way to decode: the settings that apply to it, and what makes its parts.

    defaults: the settings of MethodSettings that apply, with their defaults.
    policy, drafter: the functions that make them (runs/building.py says how they are called), as
        "module:name"; None: nothing is drafted.
    drafted: the drafter has weights.
    remembers: its drafts depend on images that were drawn before, so it goes with rules that draw
        the images of plain decoding only.
    recalls: every level recalls stale predictions by similar tokens.
    one_pass: its drafter reads all levels in one pass.
    """

    defaults: dict[str, object] = field(default_factory=dict)
    policy: str | None = None
    drafter: str | None = None
    drafted: bool = False
    remembers: bool = False
    recalls: bool = False
    one_pass: bool = False


_BUILDING = "runs.building"
_TRAINED = {"drafter": f"{_BUILDING}:trained_drafter", "drafted": True}
_GROWN = {"proposal": "coupled", "calibration": "drafter"}
_PRICED = _GROWN | {"size": "priced", "prices": None}
_SIZED = {"size": None, "prices": None}  # None: trees of fixed size, as before they had prices
_WINDOW = {"window": 16, "guess": "above"}
METHODS: dict[str, Method] = {
    "ar": Method(),
    "static": Method(
        {"proposal": "coupled", "tree": "mc_sim_7b_63"}, f"{_BUILDING}:static_tree", **_TRAINED
    ),
    "eagle2": Method(
        _GROWN | {"depth": 5, "width": 10, "nodes": 58}, f"{_BUILDING}:fixed_tree", **_TRAINED
    ),
    "adt": Method(
        _GROWN | {"nodes": 6, "adt": AdtSettings()}, f"{_BUILDING}:adaptive_tree", **_TRAINED
    ),
    "jacobi": Method(
        {"proposal": "coupled"} | _WINDOW | _SIZED,
        f"{_BUILDING}:window_tree",
        f"{_BUILDING}:jacobi_drafter",
    ),
    "marginal": Method(
        _PRICED | {"depth": 6, "width": 4, "nodes": 58}, f"{_BUILDING}:priced_tree", **_TRAINED
    ),
    "graft": Method(
        _PRICED | {"depth": 1, "width": 4, "nodes": 58} | _WINDOW,
        f"{_BUILDING}:priced_tree",
        f"{_BUILDING}:graft_drafter",
        drafted=True,
    ),
    "similar": Method(
        _SIZED | {"proposal": "coupled", "depth": 14, "width": 5, "nodes": 58} | _WINDOW,
        f"{_BUILDING}:priced_tree",
        f"{_BUILDING}:similar_drafter",
        recalls=True,
    ),
    "block": Method(
        _SIZED | _GROWN | {"depth": 18, "width": 4, "nodes": 58, "window": 16},
        f"{_BUILDING}:priced_tree",
        f"{_BUILDING}:block_drafter",
        drafted=True,
        one_pass=True,
    ),
    "ngram": Method(
        {"proposal": "coupled", "depth": 6, "width": 10, "nodes": 58},
        f"{_BUILDING}:fixed_tree",
        f"{_BUILDING}:ngram_drafter",
        remembers=True,
    ),
    "graft_similar": Method(
        _PRICED | {"depth": 18, "width": 4, "nodes": 58, "head_depth": None} | _WINDOW,
        f"{_BUILDING}:recalled_tree",
        f"{_BUILDING}:similar_graft_drafter",
        drafted=True,
        recalls=True,
    ),
}
# Other defaults of a method with a proposal: the published methods do not calibrate.
PUBLISHED = {
    (method, proposal): {"calibration": "none"}
    for method in ("eagle2", "adt")
    for proposal in ("topk", "sampled")
}
