"""`demo`: a page that compares plain decoding with a fast method, and the OpenAI image API."""

from collections.abc import Mapping

from commands import Command
from configs.fields import Values
from configs.model import on_gpu
from configs.recipes import RecipeFlags, method_flags
from configs.tools import PageSettings
from runs.opening import engine_settings, lacks_drafter


def page_settings(texts: Mapping[str, str]) -> PageSettings:
    """Return the settings of the command; a SettingsError also for missing folders.

    Without --method the page begins with adt, or with jacobi where no drafter is. On a CPU, where
    every draft token takes time, it begins with a small window.
    """
    values = COMMAND.values(texts)
    drafted = not lacks_drafter(values)
    usual: Values = {"method": "adt" if drafted else "jacobi"}
    if values.keys().isdisjoint(method_flags()) and not on_gpu(values.get("device", "auto")):
        usual = {"method": "jacobi", "window": 6}
    values = usual | {"batch_size": PageSettings.batch_size} | values
    engine = engine_settings({}, values)
    return PageSettings.of(values, engine=engine, drafted=drafted, given=values)


COMMAND = Command(
    "demo",
    "serve a page that compares plain decoding with a fast method, and the OpenAI image API",
    (PageSettings, RecipeFlags),
    page_settings,
    "page.server:serve",
)
