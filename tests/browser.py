"""The browser that tests drive: Chromium, as Debian's package `chromium` installs it."""

import os
import shutil

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next((path for name in NAMES if (path := shutil.which(name))), None)

ALL = "ADT_TEST_ALL" in os.environ  # `make test-all` sets it

# In `make test-all` these tests fail without a browser instead.
needs_browser = pytest.mark.skipif(
    BROWSER is None and not ALL, reason=f"no browser: none of {', '.join(NAMES)} is on PATH"
)
only_in_all = pytest.mark.skipif(not ALL, reason="only in make test-all")


def thinned(cases):
    """Return every third of many like cases; in `make test-all` all of them."""
    return list(cases)[:: 1 if ALL else 3]
