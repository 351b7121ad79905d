"""`demo`: a page that compares plain decoding with a fast method, and the OpenAI image API."""

from collections.abc import Mapping

from commands import Command
from configs.recipes import RecipeFlags
from configs.tools import PageSettings
from runs.opening import engine_settings, lacks_drafter


def page_settings(texts: Mapping[str, str]) -> PageSettings:
    """Return the settings of the command; a SettingsError also for missing folders.

    Without --method the page begins with adt, or with jacobi where no drafter is.
    """
    values = COMMAND.values(texts)
    drafted = not lacks_drafter(values)
    usual = {"method": "adt" if drafted else "jacobi", "batch_size": PageSettings.batch_size}
    values = usual | values
    engine = engine_settings({}, values)
    return PageSettings.of(values, engine=engine, drafted=drafted, given=values)


COMMAND = Command(
    "demo",
    "serve a page that compares plain decoding with a fast method, and the OpenAI image API",
    (PageSettings, RecipeFlags),
    page_settings,
    "page.server:serve",
)
