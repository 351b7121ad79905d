"""When equal images say nothing about a method."""

import pytest

from runs.measure import inconclusive


@pytest.mark.parametrize(
    ("images", "why"),  # rounds, mean draft tokens and tau of each image
    [
        ([(12, 0.0, 1.0)], "no token was drafted"),
        ([(6, 1.0, 2.0), (12, 0.0, 1.0)], "no draft token was rejected"),
        ([(4, 3.0, 2.0)], "only 4 rounds were compared"),
        ([(6, 1.0, 2.0), (11, 1.0, 12 / 11)], None),
    ],
)
def test_equal_images_say_nothing_where_no_draft_was_rejected(images, why) -> None:
    assert inconclusive(images) == why
