"""`vq_distances`: the table of nearest codes for relaxed acceptance."""

from pathlib import Path

from commands import Command
from configs.fields import Values, flags_in, refuse
from configs.methods import MethodSettings
from configs.model import EngineSettings
from configs.recipes import overridden
from configs.tools import DistanceSettings
from models.files.folders import check_folder, is_hub_id

_OF_CODEC = ("model", "model_path", "tokenizer_path", "vq_path")


def distance_settings(recipe: Values, given: Values) -> DistanceSettings:
    """Return the settings of the command; a SettingsError for a folder that is not there."""
    values = overridden(recipe, given)
    engine = EngineSettings.of(values, method=MethodSettings("ar"))
    if not Path(engine.model_path).is_dir() and not is_hub_id(engine.model_path):
        refuse("model_path", engine.model_path, "a folder, or owner/name")
    check_folder("tokenizer_path", engine.tokenizer_path, engine.model)
    return DistanceSettings.of(values, engine=engine)


COMMAND = Command(
    "vq_distances",
    "write the table of nearest codes for relaxed acceptance",
    (DistanceSettings,),
    distance_settings,
    "runs.distances:make_distances",
    without=tuple(flags_in(EngineSettings).keys() - set(_OF_CODEC)),
)
