"""The tokens of --tokens: those of this target, for training and held out."""

from configs.fields import SettingsError, refuse
from configs.training import TrainSettings
from drafters.training.shards import Tokens
from models.base import TargetModel
from models.files.folders import checkpoint_folder
from support.provenance import checkpoint_id


def read_tokens(settings: TrainSettings) -> Tokens:
    """Return the tokens of --tokens.

    Raises:
        SettingsError: they are damaged, or those of another model or checkpoint.
    """
    try:
        tokens = Tokens.joined(settings.token_folders)
        model = checkpoint_folder(settings.model_path, "--model_path")
    except ValueError as error:
        raise SettingsError(f"--tokens: {error}") from error
    for name, wanted in (("model", settings.model), ("checkpoint", checkpoint_id(model))):
        if tokens.about.get(name) != wanted:
            refuse(
                "tokens",
                settings.tokens,
                f"tokens with the {name} {wanted!r}; these have {tokens.about.get(name)!r}",
            )
    return tokens


def check_grid(settings: TrainSettings, tokens: Tokens, target: TargetModel) -> None:
    """Raise a SettingsError unless the tokens have the target's grid and codes."""
    for name, wanted in (
        ("rows", target.grid.rows),
        ("columns", target.grid.columns),
        ("vocab", target.vocab.size),
    ):
        if tokens.about[name] != wanted:
            refuse(
                "tokens",
                settings.tokens,
                f"tokens with {wanted} {name}; these have {tokens.about[name]}",
            )


def split_tokens(settings: TrainSettings, tokens: Tokens) -> tuple[list[int], list[int]]:
    """Return the numbers of the images to train on, and of those kept from it.

    Raises:
        SettingsError: there are too few images.
    """
    try:
        return tokens.split(settings.holdout, settings.train_images)
    except ValueError as error:
        flag = "--train_images" if settings.train_images else "--holdout"
        raise SettingsError(f"{flag}: {error}") from error
