"""Folders that a command will write into."""

from pathlib import Path
from tempfile import TemporaryFile

from configs.fields import refuse


def check_writable(flag: str, folder: Path) -> None:
    """Make the folder if it is missing, and try it.

    Raises:
        SettingsError: no file can be written there; it names the flag.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL
        why = getattr(error, "strerror", None) or error
        refuse(flag, str(folder), f"a folder that can be written ({why})")
