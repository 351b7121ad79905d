"""Text tokenizers: in the files of the library `tokenizers`, or as Emu3's authors publish theirs.

These are ranks of byte strings (tiktoken).
"""

import base64
import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from configs.downloads import damage


def load_tokenizer(path: Path, words: str = "") -> Tokenizer:
    """Return the tokenizer in a file; words: as `with_literal_texts` takes them."""
    if not path.is_file():
        raise ValueError(f"missing file: {path}")
    try:
        return with_literal_texts(Tokenizer.from_file(str(path)), words)
    except Exception as error:  # the tokenizers library raises bare Exception
        raise ValueError(f"{path} is not a tokenizer file: {damage(path, error)}") from error


def with_literal_texts(tokenizer: Tokenizer, words: str = "") -> Tokenizer:
    """Let the tokenizer encode the name of a control token in a text letter by letter.

    Otherwise a prompt could begin a second image or end a row. Control tokens around a prompt are
    added by id (`row_ids`). words: a pattern of added tokens that stand for text, such as `<b>`.
    """
    hidden = [
        AddedToken(token.content, normalized=token.normalized, special=True)
        for token in tokenizer.get_added_tokens_decoder().values()
        # Some files do not mark control tokens as special. Single letters stay as they are: in
        # DeepSeek's files they complete the alphabet.
        if not token.special
        and len(token.content.strip()) > 1
        and not re.fullmatch(words, token.content)
    ]
    tokenizer.add_special_tokens(hidden)
    tokenizer.encode_special_tokens = True
    # files keep what a training cut texts to or filled them up with
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def row_ids(tokenizer: Tokenizer, *pieces: str | int) -> list[int]:
    """Return the ids of texts and of control tokens, which are given by id."""
    ids: list[int] = []
    # Neighbouring texts are encoded as one, because merges cross the border between them.
    for _, group in groupby(pieces, type):
        texts = []
        for piece in group:
            if isinstance(piece, int):
                ids.append(piece)
            else:
                texts.append(piece)
        if text := "".join(texts):
            ids += tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def require_tokens(tokenizer: Tokenizer, names: Iterable[str], path: Path) -> None:
    """Raise a ValueError that names the file and all of these tokens that it lacks."""
    if missing := [name for name in names if tokenizer.token_to_id(name) is None]:
        raise ValueError(f"{path} has no token {', '.join(map(repr, missing))}")


def read_ranks(path: Path) -> dict[bytes, int]:
    """Return the byte strings of a .tiktoken file with their ranks, which are their ids."""
    try:
        entries = path.read_bytes().splitlines()
        pairs = (entry.split() for entry in entries if entry)
        # validate: base64 skips foreign characters otherwise
        ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in pairs}
        if not ranks:
            raise ValueError("no tokens")
        return ranks
    except FileNotFoundError as error:
        raise ValueError(f"missing file: {path}") from error
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{path} is not a file of tokens and ranks: {damage(path, error)}"
        ) from error


def tokenizer_of(ranks: dict[bytes, int], pattern: str, special: Sequence[str]) -> Tokenizer:
    """Return the byte-pair tokenizer of these ranks; pattern: of words, in which it cuts first.

    Two neighbours are merged where the lowest rank comes out, as tiktoken does: the merges are all
    ways to cut a token in two, in the order of the ranks. special: tokens that are never cut.
    """
    from transformers.convert_slow_tokenizer import bytes_to_unicode  # takes a second to load

    letters = bytes_to_unicode()  # that stand for bytes in a byte-level tokenizer (GPT-2)
    texts = {token: "".join(letters[byte] for byte in token) for token in ranks}
    ordered = sorted(ranks, key=ranks.__getitem__)
    merges = [
        (texts[token[:cut]], texts[token[cut:]]) for token in ordered for cut in _cuts(token, ranks)
    ]
    vocab = {texts[token]: rank for token, rank in ranks.items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    words = pre_tokenizers.Split(Regex(pattern), "isolated")
    # use_regex=False: `pattern` has cut the words already
    by_letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, by_letters])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in special])
    return with_literal_texts(tokenizer)


def _cuts(token: bytes, ranks: dict[bytes, int]) -> list[int]:
    """Return where a token may be cut in two, best first: the parts' ranks decide."""
    cuts = [cut for cut in range(1, len(token)) if token[:cut] in ranks and token[cut:] in ranks]
    return sorted(cuts, key=lambda cut: (ranks[token[:cut]], ranks[token[cut:]]))
