"""Order of the images and noise: functions of seed and step."""

from collections import Counter

import torch

from drafters.training.order import batch, captionless, feature_noise

CPU = torch.device("cpu")


def test_every_image_comes_once_before_one_comes_again() -> None:
    drawn = [image for step in range(14) for image in batch(3, step, 5, 7)]
    assert all(set(drawn[first : first + 7]) == set(range(7)) for first in range(0, 70, 7))
    assert drawn[:7] != drawn[7:14] and drawn != [
        image for step in range(14) for image in batch(4, step, 5, 7)
    ]
    assert Counter(batch(0, 0, 20, 3)).keys() == {0, 1, 2}, "a batch may be larger than the data"


def test_noise_belongs_to_places_whatever_stands_beside_them() -> None:
    whole = feature_noise(1, 2, [0, 1, 2], torch.Size((6, 4, 8)), CPU)
    assert torch.equal(feature_noise(1, 2, [1], torch.Size((2, 4, 8)), CPU), whole[2:4])
    assert not torch.equal(feature_noise(1, 3, [1], torch.Size((2, 4, 8)), CPU), whole[2:4])
    assert -1 <= whole.min() < -0.9 and 0.9 < whole.max() <= 1


def test_one_row_in_ten_has_no_caption() -> None:
    share = sum(sum(captionless(0, step, 16)) for step in range(400)) / 6400
    assert 0.08 < share < 0.12 and captionless(0, 1, 16) == captionless(0, 1, 16)
