"""Settings that hold while a part of a program runs, in the thread that runs it."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def during(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Let a variable have a value; an empty one, or None, changes nothing."""
    token = variable.set(value or variable.get())
    try:
        yield
    finally:
        variable.reset(token)
