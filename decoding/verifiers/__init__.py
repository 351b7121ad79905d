"""Verifiers by name."""

from decoding.verifiers.base import Verifier
from decoding.verifiers.exact import Exact

VERIFIERS: dict[str, Verifier] = {verifier.name: verifier for verifier in (Exact(),)}
