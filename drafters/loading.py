"""Drafters from their folders: config.json and weights in the public layout.

The weights are in pytorch_model.bin or model.safetensors, with the keys of the drafter's kind
(`drafters.kinds`); all other code holds the network and does not know of which kind it is.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from configs.fields import mismatch
from drafters.eagle import EagleHead
from drafters.kinds import kind_of, target_layers
from models.base import TransformerSpec
from models.files.folders import open_folder
from models.files.network import Network, fitting_config
from models.files.weights import folder_shapes
from models.target import TargetModel
from models.targets.family import Family


@dataclass(frozen=True)
class FoundDrafter:
    """A drafter's folder whose files fit the target; its weights are not read yet."""

    folder: Path
    network: Network[EagleHead]

    def load(self, target: TargetModel, dtype: torch.dtype | None = None) -> EagleHead:
        """Return the network with its weights, on the target's device, in its dtype or another one.

        A file without `embed_tokens.weight` takes the target's own embedding, with which drafters
        are trained.
        """
        if self.network.fill(self.folder, dtype or target.dtype, target.device):
            self.network.module.embedding.weight = target.embedding()
        return self.network.module


def find_drafter(path: str, family: Family, target: TransformerSpec) -> FoundDrafter:
    """Return the folder of --drafter_path, checked against a target of this family and these sizes.

    Raises:
        ValueError: a file is missing, damaged or of another target; names it. Weights are judged
            by their headers.
    """
    drafter = _find(path, lambda config: family.drafter(config, target), target)
    drafter.network.check(folder_shapes(drafter.folder), str(drafter.folder))
    return drafter


def load_drafter(path: str, target: TargetModel, dtype: torch.dtype | None = None) -> EagleHead:
    """Return the drafter in a folder; ValueError names what is missing or does not fit."""
    return _find(path, target.drafter_spec, target.spec).load(target, dtype)


def _find(
    path: str, sizes: Callable[[dict], TransformerSpec], target: TransformerSpec
) -> FoundDrafter:
    """Return a drafter's folder; sizes: config.json -> the drafter's."""
    folder = open_folder("drafter_path", path, None).path
    config, spec = fitting_config(folder, sizes)
    network = drafter_network(config, spec, target, str(folder / "config.json"))
    return FoundDrafter(folder, network)


def drafter_network(
    config: dict, spec: TransformerSpec, target: TransformerSpec, name: str
) -> Network[EagleHead]:
    """Return the drafter that a config.json describes, and its public keys.

    Args:
        config: the parsed config.json.
        spec: the drafter's sizes in it.
        target: of the model that it drafts for.
        name: of the file, for errors.

    Raises:
        ValueError: if the drafter is another target's.
    """
    bias = config.get("bias", True)
    if not isinstance(bias, bool):
        raise mismatch(f"{name}: bias", repr(bias), "true or false")
    if (spec.hidden, spec.vocab) != (target.hidden, target.vocab):
        expected = f"the target's {target.hidden} and {target.vocab}"
        got = f"{spec.hidden} and {spec.vocab}"
        raise mismatch(f"{name}: hidden_size and vocab_size", got, expected)
    kind = kind_of(config, name)
    spec = replace(spec, target_layers=target_layers(config, target, name))
    # sizes alone: `Network.read` allocates memory once, in the final type and place
    with torch.device("meta"):
        network = kind.network(spec, bias)
    keys = kind.keys(spec, bias)
    return Network(network, keys, optional=("embed_tokens.weight",))
