"""tokenizer.json and text_tokenizer.json, as the library `tokenizers` writes them."""

from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer

from configs.downloads import damage


def load_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer in a file; ValueError names a missing or damaged one."""
    if not path.is_file():
        raise ValueError(f"missing file: {path}")
    try:
        return with_literal_texts(Tokenizer.from_file(str(path)))
    except Exception as error:  # the tokenizers library raises bare Exception
        raise ValueError(f"{path} is not a tokenizer file: {damage(path, error)}") from error


def with_literal_texts(tokenizer: Tokenizer) -> Tokenizer:
    """Let the tokenizer encode the name of a control token in a text letter by letter.

    Otherwise a prompt could begin a second image or end a row. Control tokens around a prompt are
    added by id (`row_ids`).
    """
    hidden = [
        AddedToken(token.content, normalized=token.normalized, special=True)
        for token in tokenizer.get_added_tokens_decoder().values()
        # Some files do not mark control tokens as special. Single letters stay as they are: in
        # DeepSeek's files they complete the alphabet.
        if not token.special and len(token.content.strip()) > 1
    ]
    tokenizer.add_special_tokens(hidden)
    tokenizer.encode_special_tokens = True
    return tokenizer


def row_ids(tokenizer: Tokenizer, *pieces: str | int) -> list[int]:
    """Return the ids of texts and of control tokens, which are given by id.

    Neighbouring texts are encoded as one, because merges cross the border between them.
    """
    ids, text = [], ""
    for piece in (*pieces, None):
        if isinstance(piece, str):
            text += piece
            continue
        ids += tokenizer.encode(text, add_special_tokens=False).ids if text else []
        ids += [] if piece is None else [piece]
        text = ""
    return ids


def require_tokens(tokenizer: Tokenizer, names: Iterable[str], path: Path) -> None:
    """Raise a ValueError that names the file and all of these tokens that it lacks."""
    if missing := [name for name in names if tokenizer.token_to_id(name) is None]:
        raise ValueError(f"{path} has no token {', '.join(map(repr, missing))}")
