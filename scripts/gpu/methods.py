"""The methods that are checked, by name: every one, with the trees that a GPU would verify."""

from configs.method_table import AdtSettings
from configs.methods import LanternSettings, MethodSettings

PLAIN = MethodSettings(method="ar")


def every_method(nodes: int) -> dict[str, MethodSettings]:
    """Return every method, proposal and rule by name; nodes: of a tree, at most."""
    grown = {"method": "eagle2", "depth": 5, "width": 10, "nodes": nodes}
    adt = {"nodes": nodes, "adt": AdtSettings(d_max=8, k_max=10, d_init=5, k_init=10)}
    return {
        "ar": PLAIN,
        "jacobi": MethodSettings(method="jacobi"),
        "graft": MethodSettings(method="graft", size="fixed", nodes=nodes),
        "adt": MethodSettings(method="adt", **adt),
        "adt topk": MethodSettings(method="adt", proposal="topk", **adt),
        "eagle2": MethodSettings(**grown),
        "eagle2 topk": MethodSettings(proposal="topk", **grown),
        "eagle2 topk rejection": MethodSettings(proposal="topk", verifier="rejection", **grown),
        "marginal": MethodSettings(method="marginal", size="fixed", nodes=nodes),
        "static": MethodSettings(method="static"),
        "static sampled": MethodSettings(method="static", proposal="sampled", verifier="sampled"),
        "jacobi sampled": MethodSettings(method="jacobi", proposal="sampled", verifier="sampled"),
    }


def priced_methods() -> dict[str, MethodSettings]:
    """Return the methods whose trees are as large as pays on this machine, which is measured."""
    return {
        "graft priced": MethodSettings(method="graft"),
        "marginal priced": MethodSettings(method="marginal"),
    }


def relaxed_methods(nodes: int) -> dict[str, MethodSettings]:
    """Return the relaxed rules; they need the checkpoint's table of nearest codes."""
    numbers = LanternSettings(k=100, delta=0.2)
    return {
        name: MethodSettings(method="eagle2", nodes=nodes, verifier=name, relaxed=numbers)
        for name in ("lantern", "lantern_coupled")
    }
