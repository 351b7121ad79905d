"""`demo`: a page that compares plain decoding with a fast method, and the OpenAI image API."""

from commands import Command
from configs.fields import Values
from configs.model import on_gpu
from configs.recipes import RecipeFlags, method_flags, overridden
from configs.tools import PageSettings
from runs.opening import engine_settings
from runs.tuned import lacks_drafter


def page_settings(recipe: Values, given: Values) -> PageSettings:
    """Return the settings of the command; a SettingsError also for missing folders.

    Without --method the page begins with adt, or with jacobi where no drafter is. On a CPU, where
    every draft token takes time, it begins with a small window.
    """
    values = overridden(recipe, given)
    drafted = not lacks_drafter(values)
    usual: Values = {"method": "adt" if drafted else "jacobi"}
    if values.keys().isdisjoint(method_flags()) and not on_gpu(values.get("device", "auto")):
        usual = {"method": "jacobi", "window": 6}
    values = usual | {"batch_size": PageSettings.batch_size} | values
    engine = engine_settings({}, values)
    return PageSettings.of(values, engine=engine, drafted=drafted, given=values)


COMMAND = Command(
    "demo",
    "serve OpenAI's image API at /v1, and a page that compares plain decoding with a fast method",
    (PageSettings, RecipeFlags),
    page_settings,
    "page.server:serve",
)
