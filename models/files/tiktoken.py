"""Tokenizers that are published as ranks of byte strings (tiktoken), as Emu3's authors do."""

import base64
from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers.convert_slow_tokenizer import bytes_to_unicode

from configs.downloads import damage
from models.files.tokenizer_file import with_literal_texts


def read_ranks(path: Path) -> dict[bytes, int]:
    """Return the byte strings of a .tiktoken file with their ranks, which are their ids.

    A ValueError names a missing or damaged file.
    """
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
    """Return the byte-pair tokenizer of these ranks.

    Two neighbours are merged where the lowest rank comes out, as tiktoken does: the merges are all
    ways to cut a token in two tokens, in the order of the ranks.

    Args:
        ranks: of byte strings.
        pattern: a regular expression of the words in which the text is cut first.
        special: tokens that are never cut; their ids follow the ranks.
    """
    ordered = sorted(ranks, key=ranks.__getitem__)
    merges = [
        (_text(token[:cut]), _text(token[cut:])) for token in ordered for cut in _cuts(token, ranks)
    ]
    vocab = {_text(token): rank for token, rank in ranks.items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    words = pre_tokenizers.Split(Regex(pattern), "isolated")
    # use_regex=False: `pattern` has cut the words already
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, letters])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in special])
    return with_literal_texts(tokenizer)


def _cuts(token: bytes, ranks: dict[bytes, int]) -> list[int]:
    """Return where a token may be cut in two, best first: the parts' ranks decide."""
    cuts = [cut for cut in range(1, len(token)) if token[:cut] in ranks and token[cut:] in ranks]
    return sorted(cuts, key=lambda cut: (ranks[token[:cut]], ranks[token[cut:]]))


_LETTER = bytes_to_unicode()  # that stands for every byte in a byte-level tokenizer (GPT-2)


def _text(token: bytes) -> str:
    return "".join(map(_LETTER.__getitem__, token))
