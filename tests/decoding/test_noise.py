"""Noise is a function of seed, role, position and token, distributed right and independent."""

import math

import pytest
import torch

from decoding import noise
from decoding.noise import gumbel, stream_key, uniform
from decoding.seeds import hashed, image_seed

CPU = torch.device("cpu")
MASK = 2**64 - 1
KNOWN_SEED, KNOWN_UNIFORM = 232780579909015152, 0.8484972212429419
KNOWN = [0.1885619780055315, -1.3872787207918473, 0.9015024309133224,
         -0.3062734363816873, 0.026932203735784244, 1.4520031327798117]  # fmt: skip


def splitmix(x: int) -> int:
    """SplitMix64's output function (Steele et al., OOPSLA 2014) on unbounded integers."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def test_bits_are_the_published_splitmix_of_the_counter() -> None:
    # the reference generator's first outputs for the seed 1234567
    outputs = [splitmix(1234567 + i * 0x9E3779B97F4A7C15 & MASK) for i in (1, 2)]
    assert outputs == [6457827717110365317, 3203168211198807973]
    positions = torch.tensor([0, 1, 255, 4095])
    found = noise.random_bits(stream_key(123456789, "target"), positions, 3)
    key = hashed("stream", 123456789, "target")
    for row, position in zip(found.tolist(), positions.tolist(), strict=True):
        for token, bits in enumerate(row):
            counter = (position << 32) + token
            assert bits & MASK == splitmix((counter * 0x9E3779B97F4A7C15 + key) & MASK)


def test_known_answers() -> None:
    """Images must not change with the library or the machine."""
    assert image_seed(0, "a red circle") == KNOWN_SEED
    numbers = gumbel(KNOWN_SEED, "target", torch.tensor([0, 77]), 3).flatten().tolist()
    assert numbers == pytest.approx(KNOWN, rel=1e-13)
    assert uniform(stream_key(1, "accept"), torch.tensor([5]), 1).item() == KNOWN_UNIFORM


def test_numbers_are_standard_gumbel() -> None:
    sample = gumbel(3, "target", torch.arange(400), 500).flatten()
    n = len(sample)
    assert abs(sample.mean() - 0.5772156649) < 5 * math.pi / math.sqrt(6 * n)
    assert abs(sample.var() - math.pi**2 / 6) < 0.03
    quantiles = torch.exp(-torch.exp(-sample)).sort().values  # their distribution is uniform
    deviation = (quantiles - (torch.arange(n) + 0.5) / n).abs().max()
    assert deviation < 1.95 / math.sqrt(n), "Kolmogorov-Smirnov at 0.1 %"


@pytest.mark.parametrize(
    ("seeds", "roles", "shift"),
    [((1, 2), ("target", "target"), (0, 0)), ((1, 1), ("target", "draft"), (0, 0)),
     ((1, 1), ("target",) * 2, (1, 0)),
     ((1, 1), ("target",) * 2, (0, 1)), ((0, 2**62), ("target",) * 2, (0, 0))],
    ids=["seed", "role", "position", "token", "high bit of the seed"],
)  # fmt: skip
def test_streams_are_uncorrelated(seeds, roles, shift) -> None:
    keys = map(stream_key, seeds, roles)
    one, other = (uniform(key, torch.arange(301), 301) for key in keys)
    one, other = one[:300, :300], other[shift[0] : shift[0] + 300, shift[1] : shift[1] + 300]
    pair = torch.stack([one.flatten(), other.flatten()])
    assert abs(torch.corrcoef(pair)[0, 1]) < 4.5 / math.sqrt(pair.shape[1])
    best = [table.argmax(1) for table in (one, other)]
    assert (best[0] == best[1]).float().mean() < 0.03


def test_uniform_numbers_are_never_0_or_1(monkeypatch) -> None:
    extremes = torch.tensor([[0, -1, 2**63 - 1, -(2**63), 1, -(2**12)]])
    monkeypatch.setattr(noise, "random_bits", lambda *_: extremes)
    numbers = uniform(stream_key(0, "target"), torch.tensor([0]), 6)
    assert bool(((numbers > 0) & (numbers < 1)).all())
    found = gumbel(0, "target", torch.tensor([0]), 6)
    assert found.isfinite().all() and found.float().isfinite().all()


def test_image_seeds_differ_in_every_argument() -> None:
    base = (0, "a cat", 0, 0)
    others = [(1, "a cat", 0, 0), (0, "a cat ", 0, 0), (0, "a cat", 1, 0), (0, "a cat", 0, 1),
              (0, "", 0, 0)]  # fmt: skip
    seeds = {image_seed(*arguments) for arguments in [base, *others]}
    assert len(seeds) == 6
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert image_seed(*base) == image_seed(0, "a cat")
