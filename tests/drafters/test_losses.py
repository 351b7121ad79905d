"""Training losses: the slots and laws that decoding uses, and what a perfect drafter would score."""

from __future__ import annotations

import pytest
import torch
from direct import Image
from torch import Tensor

from decoding.sampling import SamplingLaw
from drafters.losses import Row, agreement, eagle_loss, guided, unroll
from models.base import Context

CFG, TOKENS, IMAGES = 3.0, 16, 2
LAW = SamplingLaw(cfg=CFG)


@pytest.fixture(scope="module")
def images(session32) -> list[Image]:
    codes = torch.randint(24, (IMAGES, TOKENS), generator=torch.Generator().manual_seed(0)).tolist()
    return [Image(session32, LAW, "a cat", row) for row in codes]


@pytest.fixture(scope="module")
def rows(session32, images) -> list[Row]:
    """Both guidance rows of two images of the same prompt, unpadded, as training has them."""
    first = session32.target.vocab.first_id
    found = []
    for g, prompt in enumerate(images[0].rows):
        ids = torch.stack([torch.cat([torch.tensor(prompt), image.codes[:-1] + first]) for image in images])
        features = torch.stack([image.features(TOKENS - 1)[g] for image in images])
        found.append(Row(ids, features.clone(), len(prompt)))
    return found


@pytest.fixture(scope="module")
def quiet(rows) -> list[Tensor]:
    return [torch.zeros_like(row.features[:, :-1]) for row in rows]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_training_computes_what_decoding_computes(depth, session32, images, rows) -> None:
    """Output j of depth d is the prediction behind code j when the last d - 1 codes are drafted, the others decided."""
    predicted = [unroll(session32.head, row, depth)[-1] for row in rows]
    assert [p.shape for p in predicted] == [(IMAGES, TOKENS - 1, 32)] * 2
    trained = guided(session32.target.transformer, predicted, CFG).log_softmax(-1)
    for number, image in enumerate(images):
        for j in range(depth - 1, TOKENS - 1):
            decided = j + 2 - depth
            expected = image.law_behind(decided, tuple(image.codes[decided : j + 1].tolist()))
            torch.testing.assert_close(trained[number, j], expected, rtol=0, atol=1e-4)


def test_noise_spares_deeper_levels(rows) -> None:
    seen = []

    def head(ids: Tensor, inputs: Tensor, context: Context) -> Tensor:
        seen.append(inputs)
        return torch.zeros_like(inputs)

    row = rows[0]
    unroll(head, row, 2, torch.full_like(row.features[:, :-1], 0.25))
    n = seen[0].shape[1]
    assert torch.equal(seen[0], row.features[:, :-1] + 0.25) and torch.equal(seen[1][:, :n], seen[0])
    assert not seen[1][:, n + row.prompt :].any(), "below the root the head reads its own features"


class Perfect:
    """A head that knows the features to come; `wrong` is added to its prediction of slot prompt - 1."""

    def __init__(self, rows: list[Row], wrong: float = 0.0):
        self.features = {}
        for row in rows:
            features = row.features[:, 1:].clone()
            features[:, row.prompt - 1] += wrong
            self.features[features.shape[1]] = features

    def __call__(self, ids: Tensor, inputs: Tensor, context: Context) -> Tensor:
        sizes = [n for n in self.features if ids.shape[1] % n == 0]  # depths stand one behind the other
        return self.features[sizes[0]].repeat(1, ids.shape[1] // sizes[0], 1)


def test_a_perfect_drafter(session32, rows, quiet) -> None:
    """No distance to the target, its first coupled candidate always hits, and no drafter has a smaller loss."""
    transformer = session32.target.transformer
    figures = agreement(transformer, Perfect(rows), rows, CFG)
    assert figures["total_variation"] < 1e-6
    assert figures["hit_coupled_1"] == figures["hit_coupled_10"] == 1.0
    assert figures["hit_topk_1"] < figures["hit_topk_4"] <= 1.0
    best = eagle_loss(transformer, Perfect(rows), rows, CFG, quiet)
    law = guided(transformer, [row.features[:, row.prompt :] for row in rows], CFG).softmax(-1)
    torch.testing.assert_close(best, 0.2 * torch.special.entr(law).sum(-1).mean())
    assert eagle_loss(transformer, session32.head, rows, CFG, quiet) > best + 0.1


def test_the_first_slot_that_decoding_uses_gets_loss(session32, rows, quiet) -> None:
    transformer = session32.target.transformer
    best, worse = (eagle_loss(transformer, Perfect(rows, wrong), rows, CFG, quiet) for wrong in (0.0, 2.0))
    assert worse > best + 2 * 1.5 / (TOKENS - 1) * 0.9, "two rows, smooth L1 of 2 is 1.5"


def test_figures_of_a_random_drafter_are_between(session32, rows) -> None:
    figures = agreement(session32.target.transformer, session32.head, rows, CFG)
    assert 0.05 < figures["total_variation"] < 1
    for name in ("topk", "coupled"):
        assert 0 <= figures[f"hit_{name}_1"] <= figures[f"hit_{name}_4"] <= figures[f"hit_{name}_10"] <= 1
