"""The tiny model's text tokenizer: Chameleon's special and image tokens, then byte-level BPE.

Layout of the ids: 0..3 special, 4..1027 image codes, 1028..1031 special, then 256 byte symbols,
then merges, then reserved names up to a multiple of 64. The special and image tokens are entries of
the BPE vocabulary that no merge makes. They are not "added tokens", so `<s>` or `IMGIMGAZ` inside a
prompt is read as plain text.
"""

import json
from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

IMAGE_CODES = 1024
MAX_MERGES = 400  # training stops before when every word is one token
MULTIPLE = 64  # of the size of the vocabulary
LEADING_NAMES = ("<s>", "<pad>", "</s>", "<unk>")
CLOSING_NAMES = ("<eoss>", "<racm3:break>", "<reserved08706>", "<reserved08707>")
_DIGIT_LETTERS = str.maketrans("0123456789", "ABCDEFGHIJ")


def image_token_name(code: int) -> str:
    """Return Chameleon's name of an image code, with letters for digits: 53 is IMGIMGFDZ."""
    return f"IMGIMG{str(code).translate(_DIGIT_LETTERS)}Z"


def build_tokenizer(captions: Iterable[str]) -> Tokenizer:
    """Train byte-level BPE on the captions; returns a tokenizer with the ids described above."""
    merges = _learn_merges(captions)
    names = [*LEADING_NAMES, *map(image_token_name, range(IMAGE_CODES)), *CLOSING_NAMES]
    # all bytes, so that any text has tokens
    names += sorted(pre_tokenizers.ByteLevel.alphabet())
    # two merges may make the same word, which needs one id
    names += dict.fromkeys(first + second for first, second in merges)
    names += [f"<reserved{i:05d}>" for i in range(-len(names) % MULTIPLE)]
    vocab = {name: i for i, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    make_byte_level(tokenizer)
    tokenizer.normalizer = normalizers.Lowercase()  # as all captions are
    return tokenizer


def _learn_merges(captions: Iterable[str]) -> list[tuple[str, str]]:
    """Return pairs of byte-level symbols in the order in which BPE merges them."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    learner = Tokenizer(models.BPE())
    make_byte_level(learner)
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + MAX_MERGES,
        initial_alphabet=alphabet,
        min_frequency=2,
        show_progress=False,
    )
    learner.train_from_iterator(captions, trainer)
    return [(first, second) for first, second in json.loads(learner.to_str())["model"]["merges"]]


def make_byte_level(tokenizer: Tokenizer) -> None:
    """Let a tokenizer read and write texts as bytes."""
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
