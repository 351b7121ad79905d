"""LlamaGen against plain references:
prompt rows, rotation, one full forward, the drafter, and exact decoding.
"""

from __future__ import annotations

from pathlib import Path

import llamagen_reference as reference
import pytest
import torch
from browser import ALL
from counted import CountedCache
from direct import Known, Rounds
from small_llamagen import LlamaGenSizes, llamagen_settings, open_llamagen, write_llamagen
from torch import Tensor
from transformers import AutoTokenizer, T5EncoderModel

from configs.schema import MethodSettings
from decoding.cache import CacheShape
from decoding.images import Job
from decoding.sampling import SamplingDistribution
from models.base import ImageRope
from models.rotary import RotaryGrid, rotate_pairs
from runs.exactness import gap
from runs.methods import build_engine
from runs.session import Session

CPU = torch.device("cpu")
SIZES = LlamaGenSizes()
TEXT, CODES = "A red Cat on the mat.", [3, 20, 7, 0, 11, 23, 5]
TOLERANCE = {"rtol": 0, "atol": 1e-5}  # rotations are kept in fp32


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_llamagen(tmp_path_factory.mktemp("llamagen"))


@pytest.fixture(scope="module")
def session(folder) -> Session:
    return open_llamagen(llamagen_settings(folder))


def t5_features(folder: Path, text: str, slots: int) -> tuple[Tensor, Tensor]:
    """Features (slots, width) and mask (slots,) by the recipe's own calls."""
    path = folder.parent / "t5" / "flan-t5-xl"
    tokens = AutoTokenizer.from_pretrained(path)(
        text, max_length=slots, padding="max_length", truncation=True, return_tensors="pt"
    )
    encoder = T5EncoderModel.from_pretrained(path, dtype=torch.bfloat16)
    with torch.no_grad():
        features = encoder(
            **{name: tokens[name] for name in ("input_ids", "attention_mask")}
        ).last_hidden_state
    return features[0], tokens["attention_mask"][0].bool()


def test_caption_stands_at_the_right_end_and_the_table_after_the_same_padding(
    folder, session
) -> None:
    prompt = session.target.prompt(TEXT, 2)
    features, mask = t5_features(folder, "a red cat on the mat.", SIZES.slots)
    n = int(mask.sum())
    assert n == 8 and prompt.starts.tolist() == [1, 1] and prompt.origins.tolist() == [0, 0]
    assert torch.equal(prompt.condition[0, -n:], features[:n].double())
    assert not prompt.condition[0, :-n].any()
    table = reference.weights(folder / "model.safetensors")["model.cls_embedding.uncond_embedding"]
    assert torch.equal(prompt.condition[1], table)
    assert prompt.ids.tolist() == [[0] * SIZES.slots] * 2
    alone = session.target.prompt(TEXT, 1)
    assert torch.equal(alone.condition, prompt.condition[:1]) and alone.starts.tolist() == [1]


def test_a_long_caption_loses_its_end(folder, session) -> None:
    """As in the recipe: the tokenizer cuts it, and keeps the end token."""
    prompt = session.target.prompt("a cat on the mat and a dog and two cats on the mat", 1)
    features, mask = t5_features(
        folder, "a cat on the mat and a dog and two cats on the mat", SIZES.slots
    )
    assert mask.all() and prompt.starts.tolist() == [0]
    assert torch.equal(prompt.condition[0], features.double())


def test_rotation_by_row_and_column_and_zero_vectors_in_the_prompt() -> None:
    rotary = RotaryGrid(16, 5 + 9 + 2, 10000.0, ImageRope(5, 3))
    x = torch.randn(1, 16, 2, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = rotate_pairs(x, *rotary(torch.arange(16)[None], x.dtype))
    assert not found[:, :5].any() and not found[:, 14:].any()
    turn = reference.turns(5, 3, 16)
    expected = torch.view_as_complex(x[:, :14].unflatten(-1, (-1, 2))) * turn[None, :, None]
    torch.testing.assert_close(found[:, :14], torch.view_as_real(expected).flatten(-2), **TOLERANCE)
    torch.testing.assert_close(found[0, 5], x[0, 5])  # cell (0, 0)
    torch.testing.assert_close(
        found[0, 5 + 3 + 2, :, :2], rotated(x[0, 10, :, :2], 1.0), **TOLERANCE
    )  # row 1
    torch.testing.assert_close(
        found[0, 5 + 3 + 2, :, 8:10], rotated(x[0, 10, :, 8:10], 2.0), **TOLERANCE
    )  # column 2


def rotated(pair: Tensor, angle: float) -> Tensor:
    cos, sin = (
        torch.tensor(angle, dtype=pair.dtype).cos(),
        torch.tensor(angle, dtype=pair.dtype).sin(),
    )
    return torch.stack(
        [pair[:, 0] * cos - pair[:, 1] * sin, pair[:, 1] * cos + pair[:, 0] * sin], -1
    )


def expected_features(folder: Path, session: Session, text: str, codes: list[int]) -> Tensor:
    """Features (2, slots + codes, hidden) by the plain reference."""
    w, prompt = reference.weights(folder / "model.safetensors"), session.target.prompt(text, 2)
    padding = int(prompt.starts[0])
    rows = [
        reference.target_features(w, row, padding, codes, SIZES.side) for row in prompt.condition
    ]
    return torch.stack(rows)


@torch.inference_mode()
@pytest.mark.parametrize("text", [TEXT, "dog", "two red dogs and a blue cat on the mat"])
def test_prompt_and_codes_equal_the_plain_reference(text, folder, session) -> None:
    """The prompt in one pass, then codes one by one and in a bunch."""
    target, prompt = session.target, session.target.prompt(text, 2)
    cache = CountedCache(target.spec, CacheShape(1, 2, 40), torch.float64, CPU)
    cache.begin(prompt.starts, prompt.origins)
    parts = [target.read(prompt, cache.chain(SIZES.slots))]
    cache.advance([SIZES.slots])
    for codes in (CODES[:1], CODES[1:2], CODES[2:]):
        context = cache.chain(len(codes))
        parts.append(target.features(torch.tensor([codes, codes]), context))
        cache.advance([len(codes)])
    features, expected = torch.cat(parts, 1), expected_features(folder, session, text, CODES)
    torch.testing.assert_close(features, expected, **TOLERANCE)
    head = reference.weights(folder / "model.safetensors")["lm_head.weight"]
    torch.testing.assert_close(target.score(features), expected @ head.T, **TOLERANCE)
    assert (expected[0] - expected[1])[SIZES.slots :].abs().max() > 0.05, (
        "the caption has to matter"
    )


def test_codes_depend_on_the_caption_and_on_their_cell(folder, session) -> None:
    """The oracle itself."""
    one, other = (expected_features(folder, session, text, CODES) for text in (TEXT, "two dogs"))
    assert (one - other)[0, -1].abs().max() > 0.01
    moved = expected_features(folder, session, TEXT, [*CODES[1:], CODES[0]])
    assert (one - moved)[:, -1].abs().max() > 0.01


@torch.inference_mode()
def test_drafter_equals_the_plain_reference(folder, session) -> None:
    """At the root, round after round, and at a drafted node; all padding is visible to it."""
    distribution, target = SamplingDistribution(), session.target
    prompt, w = target.prompt("dog", 2), reference.weights(folder / "drafter" / "pytorch_model.bin")
    assert prompt.starts[0] > 3
    features = expected_features(folder, session, "dog", CODES)
    image = Known(prompt, features, torch.tensor(CODES), target.grid)
    rounds = Rounds(session, distribution, [image])
    for count in (1, 3, 2):
        (done,) = rounds.done
        known = features[:, : SIZES.slots + done - 1]
        drafted = [
            reference.drafted_features(w, row, CODES[:done], SIZES.slots, SIZES.side)
            for row in known
        ]
        expected, root = distribution(target.score(torch.stack(drafted)[:, -1:])), rounds.root()
        torch.testing.assert_close(rounds.expand(root, [[0]]), expected, **TOLERANCE)
        zero = torch.zeros(1, 1, dtype=torch.long)
        tree = root.extend(zero, zero[None] + 5, -torch.ones(1, 1, 1, dtype=torch.float64))
        after = [
            reference.drafted_features(
                w, torch.cat([row, out[-1:]]), [*CODES[:done], 5], SIZES.slots, SIZES.side
            )[-1:]
            for row, out in zip(known, drafted, strict=True)
        ]  # fmt: skip
        expected = distribution(target.score(torch.stack(after)))
        torch.testing.assert_close(rounds.expand(tree, [[0]]), expected, **TOLERANCE)
        rounds.commit([count])


JOBS = [
    Job(str(i), text, 100 + i)
    for i, text in enumerate(["a cat", "two red dogs and a blue cat on the mat", "dog"])
]
METHODS = {
    "static": MethodSettings(method="static"),
    "eagle2": MethodSettings(method="eagle2"),
    "eagle2 topk": MethodSettings(method="eagle2", proposal="topk", depth=3, width=4, nodes=7),
    "adt": MethodSettings(method="adt"),
    "graft": MethodSettings(method="eagle_recall", nodes=10, window=6),
}


def decode(
    session: Session, distribution: SamplingDistribution, method: MethodSettings, images: int
) -> dict[str, list[int]]:
    engine = build_engine(session.target, session.drafter, distribution, method, images)
    found = [image for step in engine.generate(JOBS) for image in step.finished]
    assert method.method == "ar" or sum(image.tau for image in found) > 1.2 * len(found), (
        "nothing is accepted"
    )
    return {image.job.id: image.codes.tolist() for image in found}


@pytest.mark.parametrize(
    "distribution",
    [
        SamplingDistribution(),
        SamplingDistribution(temperature=0.0),
        SamplingDistribution(cfg=1.0, top_k=10),
    ],
    ids=str,
)
def test_every_method_and_batch_gives_the_tokens_of_plain_decoding(distribution, session) -> None:
    truth = decode(session, distribution, MethodSettings(method="ar"), 1)
    assert len({tuple(codes) for codes in truth.values()}) == len(JOBS)
    assert decode(session, distribution, MethodSettings(method="ar"), 3) == truth
    for number, (name, method) in enumerate(METHODS.items()):
        for images in (1, 3) if ALL else (1 + 2 * (number % 2),):
            assert decode(session, distribution, method, images) == truth, (name, images)


@torch.inference_mode()
def test_greedy_tokens_are_those_of_the_plain_reference(folder, session) -> None:
    distribution = SamplingDistribution(temperature=0.0)
    found = decode(session, distribution, MethodSettings(method="adt"), 1)["0"]
    head, codes = reference.weights(folder / "model.safetensors")["lm_head.weight"], []
    for _ in range(SIZES.side**2):
        conditional, empty = (
            expected_features(folder, session, JOBS[0].prompt, codes)[:, -1] @ head.T
        )
        codes.append(int((empty + distribution.cfg * (conditional - empty)).argmax()))
    assert found == codes


def test_the_gap_of_two_tokens_is_that_of_the_plain_reference(folder, session) -> None:
    """What judges near-ties reads LlamaGen's prompts, too."""
    distribution = SamplingDistribution(temperature=0.0)
    engine = build_engine(session.target, None, distribution, MethodSettings(method="ar"), 1)
    image = next(image for step in engine.generate(JOBS[:1]) for image in step.finished)
    head = reference.weights(folder / "model.safetensors")["lm_head.weight"]
    for position in (0, 5):
        codes = image.codes[: position + 1].clone()
        codes[-1] = (codes[-1] + 1) % SIZES.codes
        features = expected_features(folder, session, JOBS[0].prompt, codes[:-1].tolist())
        conditional, empty = features[:, -1] @ head.T
        guided = empty + distribution.cfg * (conditional - empty)
        expected = float((guided[image.codes[position]] - guided[codes[-1]]).abs())
        assert gap(session.target, distribution, image, codes) == pytest.approx(expected, abs=1e-5)


def test_images_are_those_of_the_codec(session) -> None:
    codes = torch.randint(
        SIZES.codes, (2, SIZES.side**2), generator=torch.Generator().manual_seed(0)
    )
    pixels = session.target.to_image(codes)
    assert pixels.shape == (2, 8, 8, 3) and pixels.dtype == torch.uint8
    assert torch.equal(pixels[1:], session.target.images.decode(codes[1:]))


def test_all_parts_next_to_the_transformer_are_placed(folder) -> None:
    target = open_llamagen(llamagen_settings(folder)).target
    target.place(torch.device("meta"))
    parts = (target.prompts.caption, target.prompts.text.model, target.images.model)
    assert {weight.device.type for part in parts for weight in part.parameters()} == {"meta"}
    assert target.device.type == "meta" and target.transformer.head.weight.device == CPU
