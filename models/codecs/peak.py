"""The most memory that a computation takes, by the shapes of its tensors."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

META_DEVICE = torch.device("meta")  # tensors there have shapes and bytes, but no memory


class Peak(TorchDispatchMode):
    """Counts the bytes of all tensors on META_DEVICE that are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, int] = {}  # bytes by storage
        self.most = 0

    def __torch_dispatch__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        result = function(*args, **kwargs or {})
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.is_meta:
                storage = tensor.untyped_storage()
                if storage._cdata not in self.alive:
                    self.alive[storage._cdata] = storage.nbytes()
                    weakref.finalize(storage, self.alive.pop, storage._cdata)
        self.most = max(self.most, sum(self.alive.values()))
        return result
