"""Targets that are a LlamaGen of few codes."""

from dataclasses import replace
from functools import partial

import pytest

from configs.model import EngineSettings
from configs.targets import TARGETS
from models.targets.llamagen import LlamaGen
from runs.session import Session, open_session


def put_llamagen(patch: pytest.MonkeyPatch, name: str, side: int) -> None:
    """Let a target be a LlamaGen of side x side codes."""
    patch.setitem(TARGETS, name, replace(TARGETS[name], family=partial(LlamaGen, side)))


def open_llamagen(settings: EngineSettings, side: int = 4) -> Session:
    """Open a session as a command does, except for the number of codes that `llamagen` means."""
    with pytest.MonkeyPatch.context() as patch:
        put_llamagen(patch, "llamagen", side)
        return open_session(settings)
