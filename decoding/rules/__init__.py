"""Acceptance rules that only serve comparison, registered as a plugin registers its own.

Does not import torch: help and refusals read these entries.
"""

from dataclasses import dataclass

from configs.fields import Settings, setting
from configs.rules import Rule, register_rule


@dataclass(frozen=True)
class GsdSettings(Settings, prefix="gsd_", group="Relaxed acceptance (--verifier gsd)"):
    """Grouped speculative decoding (arXiv 2508.07747); the defaults are those of its code."""

    reach: int = setting(
        "cluster: this many less likely tokens, and one less that are likelier than the draft",
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
class CoolSettings(Settings, prefix="cool_", group="Relaxed acceptance (--verifier cool_sd)"):
    """COOL-SD (arXiv 2601.09212); the default is the paper's smaller number."""

    delta: float = setting("how much likelier the first draft is accepted", 1.1, low=1)


@dataclass(frozen=True)
class VvsSettings(Settings, prefix="vvs_", group="Relaxed acceptance (--verifier vvs)"):
    """VVS (arXiv 2511.13587); the default is that of its script."""

    interval: int = setting("one round in this many is not verified", 5, low=1, high=2**16 - 1)


_STATIC, _CHAINS = ("static",), ("static", "jacobi")
register_rule(
    "spectr",
    Rule(
        "K-SEQ: one threshold for all children (SpecTr)",
        "decoding.rules.spectr:SpecTr",
        ("sampled",),
        _STATIC,
        lossless=True,
    ),
)
register_rule(
    "block_verification",
    Rule(
        "judges a chain as one block",
        "decoding.rules.block_verification:BlockVerification",
        ("sampled",),
        _CHAINS,
        lossless=True,
    ),
)
register_rule(
    "traversal",
    Rule(
        "judges the tree from its leaves",
        "decoding.rules.traversal:Traversal",
        ("sampled",),
        _CHAINS,
        lossless=True,
    ),
)
register_rule(
    "gsd",
    Rule(
        "tokens of similar probability stand in for each other",
        "decoding.rules.gsd:Gsd",
        ("sampled",),
        _CHAINS,
        settings=GsdSettings,
    ),
)
register_rule(
    "path_explore",
    Rule(
        "accepts the longest of the accepted paths",
        "decoding.rules.path_explore:PathExplore",
        ("sampled",),
        _STATIC,
    ),
)
register_rule(
    "path_relax",
    Rule(
        "drafts borrow probability from the other paths",
        "decoding.rules.path_relax:PathRelax",
        ("sampled",),
        _STATIC,
        settings=PathSettings,
    ),
)
register_rule(
    "sjd_pac",
    Rule(
        "judges siblings in turn, accepts the longest path (SJD-PAC)",
        "decoding.rules.sjd_pac:SjdPac",
        ("sampled",),
        _STATIC,
    ),
)
register_rule(
    "cool_sd",
    Rule(
        "drafts are accepted more easily the nearer they are (COOL-SD)",
        "decoding.rules.cool_sd:CoolSd",
        ("sampled",),
        _CHAINS,
        settings=CoolSettings,
    ),
)
register_rule(
    "vvs",
    Rule(
        "some rounds are not verified (VVS)",
        "decoding.rules.vvs:Vvs",
        ("topk",),
        settings=VvsSettings,
    ),
)
