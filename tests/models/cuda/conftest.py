"""Kernels run in Triton's interpreter, which takes half as long when it looks up names once."""

import inspect
import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def builtins_are_found_once() -> Iterator[None]:
    """For every call of a function the interpreter looks at all members of triton.language.

    It replaces the built-in ones, until a kernel ends. They are the same ones each time.
    """
    if not os.environ.get("TRITON_INTERPRET"):
        yield
        return
    from triton.language.core import is_builtin
    from triton.runtime import interpreter

    found: dict[object, list[tuple[str, object]]] = {}

    def patch(package: object, *rest: object) -> None:
        if package not in found:
            members = inspect.getmembers(package)
            found[package] = [(name, member) for name, member in members if is_builtin(member)]
        for name, member in found[package]:
            if getattr(package, name) is member:  # else a caller has replaced it
                interpreter._patch_attr(package, name, member, *rest)

    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(interpreter, "_patch_builtin", patch)
        yield
