"""Functions of tensors that become few kernels where torch's compiler is asked for.

A round has many small steps, and a GPU needs longer to start most of them than to run them. What is
marked `fused` is an ordinary function. While `compiling` is on, `torch.compile` makes it one or two
kernels.
"""

import importlib.util
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import torch

from support.scope import during

_SIZES = 64  # programs of one function: for each type, and one or many images and tokens

Compiler = Callable[[Callable[..., Any]], Callable[..., Any]]
P = ParamSpec("P")
R = TypeVar("R")

# Not a global: threads that decode at the same time may differ in --compile.
_compiler: ContextVar[Compiler | None] = ContextVar("compiler", default=None)


def missing_compiler(device: torch.device) -> str | None:
    """Return what `torch.compile` lacks on this machine, None if nothing."""
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        return "the package triton is missing"
    # Inductor takes CXX or g++ (clang++ on macOS), Triton CC, gcc or clang.
    names = [os.environ.get("CXX"), "g++", "clang++", os.environ.get("CC"), "gcc", "clang"]
    if not any(shutil.which(name) for name in names if name):
        return "no C++ compiler was found"
    return None


@cache
def program(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a compiled function of tensors of any size, also of weights that change in place.

    Importing the compiler takes seconds, which only those who ask for it should wait.
    """
    return torch.compile(function, fullgraph=True, dynamic=True, options={"freezing": False})


def compiling(compiler: Compiler | None) -> AbstractContextManager[None]:
    """Let a compiler, such as `program`, run what is marked `fused`; None changes nothing."""
    return during(_compiler, compiler)


def fused(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a function of tensors, and of settings that seldom change, for the compiler."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        # inside another one it is a part of that; backward passes would be compiled as well
        compiler = _compiler.get()
        if torch.compiler.is_compiling() or compiler is None or torch.is_grad_enabled():
            return function(*args, **kwargs)
        config = torch._dynamo.config  # every thread has a limit of its own, by default 8
        config.recompile_limit = max(config.recompile_limit, _SIZES)
        return compiler(function)(*args, **kwargs)

    return run
