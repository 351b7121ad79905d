"""Functions of tensors of which a GPU may have kernels of its own."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from support.scope import during

Kernels = Mapping[str, Callable[..., Any]]  # by the name of the function that each replaces
P = ParamSpec("P")
R = TypeVar("R")

NO_KERNELS: Kernels = {}
# Not a global: threads that decode at the same time may run models on different devices.
_kernels: ContextVar[Kernels] = ContextVar("kernels", default=NO_KERNELS)


def running(kernels: Kernels) -> AbstractContextManager[None]:
    """Let kernels run instead of the functions that they replace; none change nothing."""
    return during(_kernels, kernels)


def replaceable(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a function of which there may be a kernel."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        return _kernels.get().get(function.__name__, function)(*args, **kwargs)

    return run
