"""Seeds: hashes of what tells images, and their streams of noise, apart. Does not import torch."""

import hashlib


def image_seed(base_seed: int, prompt: str, occurrence: int = 0, sample: int = 0) -> int:
    """Return the 63-bit seed of one image, a hash of what tells it from other images.

    Args:
        base_seed: of the command.
        prompt: its text.
        occurrence: which occurrence of the same prompt in the list, from 0.
        sample: which image of that occurrence, from 0.
    """
    return hashed("image", base_seed, prompt, occurrence, sample)


def hashed(*parts: object) -> int:
    """Return 63 bits that depend on every part."""
    # "\0" keeps the parts "a", "bc" apart from "ab", "c"; Python's own hash differs by process
    digest = hashlib.blake2b("\0".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1  # 63 bits, since torch's int64 has a sign
