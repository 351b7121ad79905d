"""Verifiers by name."""

from torch import Tensor

from configs.schema import MethodSettings
from decoding.verifiers.base import Verifier
from decoding.verifiers.exact import Exact
from decoding.verifiers.lantern import Lantern, LanternCoupled
from decoding.verifiers.rejection import Rejection
from decoding.verifiers.sampled import Sampled

VERIFIERS: dict[str, Verifier] = {verifier.name: verifier for verifier in (Exact(), Rejection(), Sampled())}
RELAXED: dict[str, type[Verifier]] = {verifier.name: verifier for verifier in (Lantern, LanternCoupled)}


def build_verifier(method: MethodSettings, nearest: Tensor | None) -> Verifier:
    """The verifier of a method; nearest: (codes, n) the codes nearest to every code, for relaxed acceptance."""
    if method.verifier in VERIFIERS:
        return VERIFIERS[method.verifier]
    return RELAXED[method.verifier](method.lantern, nearest)
