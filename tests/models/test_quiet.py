"""Harmless warnings of libraries are kept back, all others pass."""

import logging
import sys

import pytest
from ran import ran

from models import HARMLESS


@pytest.mark.parametrize("name", HARMLESS)
def test_the_harmless_warning_is_kept_back_and_others_are_not(name) -> None:
    logger = logging.getLogger(name)
    record = logging.LogRecord(name, logging.WARNING, "", 0, "something else", None, None)
    assert logger.filter(record)
    record.msg = f"<enum 'X'> {HARMLESS[name]}"
    assert not logger.filter(record)


def test_torchao_says_nothing_on_our_screens() -> None:
    pytest.importorskip("torchao")
    code = "import models, diffusers, transformers; diffusers.VQModel, transformers.T5EncoderModel"
    done = ran([sys.executable, "-c", code])
    assert done.returncode == 0 and done.stderr == "" and done.stdout == ""
