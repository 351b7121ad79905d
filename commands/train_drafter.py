"""`train_drafter`: a drafter for a target."""

from importlib.util import find_spec
from pathlib import Path

from commands import Command
from configs.fields import Values, flags_in, refuse
from configs.methods import MethodSettings
from configs.model import EngineSettings, SamplingSettings
from configs.recipes import RecipeFlags, listed_method, overridden
from configs.training import OF_TARGET, TrainSettings
from models.files.folders import check_files, check_folder
from runs.opening import check_device
from support.extras import install


def train_settings(recipe: Values, given: Values) -> TrainSettings:
    """Return the settings of the command; a SettingsError also for missing folders."""
    values = overridden(recipe, given)
    usual = "block" if values.get("drafter") == "block" else TrainSettings.eval_method
    values = {"eval_method": usual} | values
    method = listed_method(values["eval_method"], {}, "--eval_method")
    of_engine = {flag: value for flag, value in values.items() if flag in _OF_ENGINE}
    engine = EngineSettings.of(of_engine, method=MethodSettings("ar"))
    settings = TrainSettings.of(values, engine=engine, evaluated=method)
    for folder in settings.token_folders:
        if not (Path(folder) / "about.json").is_file():
            refuse("tokens", folder, "a folder with about.json, which extract_tokens wrote")
    if settings.tensorboard is not None and find_spec("tensorboard") is None:
        needed = f"only with the package tensorboard: {install('tensorboard')}"
        refuse("tensorboard", settings.tensorboard, needed)
    check_files(engine)
    check_device(engine.device)
    check_folder("start_from", settings.start_from, engine.model)
    return settings


_OF_ENGINE = (*OF_TARGET, *flags_in(SamplingSettings))
COMMAND = Command(
    "train_drafter",
    "train a drafter for a target; run it again to resume",
    (TrainSettings, RecipeFlags),
    train_settings,
    "runs.training.train:train",
    "runs.training.train:plan_training",
    without=tuple(flags_in(EngineSettings).keys() - {*_OF_ENGINE, "batch_size"}),
    resumes=True,
)
