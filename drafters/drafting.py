"""What the builder of a method's drafter is given."""

from dataclasses import dataclass

from torch import nn

from configs.methods import MethodSettings
from decoding.round import TreeShape
from decoding.sampling import SamplingDistribution
from models.target import TargetModel


@dataclass(frozen=True)
class Drafting:
    """A method's settings, and the parts of its engine that are there already."""

    target: TargetModel
    loaded: nn.Module | None  # the drafter's network with its weights; None without --drafter_path
    distribution: SamplingDistribution
    method: MethodSettings
    largest: TreeShape  # the largest tree that the method's policy allows
