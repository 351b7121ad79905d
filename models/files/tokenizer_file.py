"""tokenizer.json and text_tokenizer.json, as the library `tokenizers` writes them."""

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer in a file; ValueError names a missing or damaged one."""
    if not path.is_file():
        raise ValueError(f"missing file: {path}")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the tokenizers library raises bare Exception
        raise ValueError(f"{path} is not a tokenizer file: {error}") from error


def require_tokens(tokenizer: Tokenizer, names: Iterable[str], path: Path) -> None:
    """Raise a ValueError that names the file and all of these tokens that it lacks."""
    if missing := [name for name in names if tokenizer.token_to_id(name) is None]:
        raise ValueError(f"{path} has no token {', '.join(map(repr, missing))}")
