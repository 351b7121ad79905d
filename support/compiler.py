"""Functions of tensors that become few kernels where torch's compiler is asked for.

A round has many small steps, and a GPU needs longer to start most of them than to run them. What is
marked `fused` is an ordinary function. While `compiling` is on, `torch.compile` makes it one or two
kernels.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import torch

_SIZES = 64  # programs of one function: for each network, type, and one or many rows and tokens

Compiler = Callable[[Callable[..., Any], bool], Callable[..., Any]]
P, R = ParamSpec("P"), TypeVar("R")

# Not a global: threads that decode at the same time may differ in --compile.
_compiler: ContextVar[Compiler | None] = ContextVar("compiler", default=None)


@cache
def program(function: Callable[..., Any], any_size: bool) -> Callable[..., Any]:
    """Return a compiled function; of weights, too, so that a drafter may change its own in place.

    Importing the compiler takes seconds, which only those who ask for it should wait.

    any_size: whether a program takes tensors of any size, but for 1. Else it takes those that it
    saw first, and other sizes in dimensions that are marked so.
    """
    dynamic = True if any_size else None
    return torch.compile(function, fullgraph=True, dynamic=dynamic, options={"freezing": False})


@contextmanager
def compiling(compiler: Compiler | None) -> Iterator[None]:
    """Let a compiler, such as `program`, run what is marked `fused`; None changes nothing."""
    token = None if compiler is None else _compiler.set(compiler)
    try:
        yield
    finally:
        if token is not None:
            _compiler.reset(token)


def compiled(function: Callable[P, R], any_size: bool = False) -> Callable[P, R]:
    """Return a function as the compiler that is on makes it, or as `program` does."""
    config = torch._dynamo.config  # every thread has a limit of its own, by default 8
    config.recompile_limit = max(config.recompile_limit, _SIZES)
    return (_compiler.get() or program)(function, any_size)


def fused(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a function of tensors, and of settings that seldom change, for the compiler."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        # inside another one it is a part of that; backward passes would be compiled as well
        if torch.compiler.is_compiling() or _compiler.get() is None or torch.is_grad_enabled():
            return function(*args, **kwargs)
        return compiled(function, any_size=True)(*args, **kwargs)

    return run
