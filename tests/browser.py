"""The browser that tests drive: Chromium, as Debian's package `chromium` installs it."""

import os
import shutil

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next((path for name in NAMES if (path := shutil.which(name))), None)

# `make test-all` sets ADT_TEST_ALL: without a browser these tests fail there instead.
needs_browser = pytest.mark.skipif(
    BROWSER is None and "ADT_TEST_ALL" not in os.environ,
    reason=f"no browser: none of {', '.join(NAMES)} is on PATH",
)
