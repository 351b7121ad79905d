"""Rounds that a block head draws, and what it predicts in them when it is trained."""

import pytest
import torch
from direct import block_head, session_reading
from small import open_lumina

from configs.methods import MethodSettings
from decoding.images import Job
from decoding.sampling import SamplingDistribution
from drafters.block import CANDIDATES
from drafters.training.losses import DraftLevels, EagleLoss
from drafters.training.rounds import RecordedPasses, RecordedRounds
from drafters.training.shards import Tokens
from drafters.training.windows import BlockLoss, pick, scored, windows_of
from drafters.window import PASSES, WindowPass
from runs.methods import build_engine
from runs.session import Session

close = torch.testing.assert_close
CAPTIONS = ["a cat", "three small dogs", "a dog"]
ENTRIES = [{"id": str(n), "caption": text, "seed": n + 3} for n, text in enumerate(CAPTIONS)]
TOKENS = Tokens({"rows": 4, "columns": 4, "vocab": 24}, ENTRIES, [])


@pytest.fixture(params=[(), (1,)], ids=["features", "hidden states too"])
def session(request: pytest.FixtureRequest, session: Session) -> Session:
    return session_reading(session, request.param)


@pytest.fixture
def kept(monkeypatch) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Hidden states (images, guidance, steps x candidates, hidden), log q, codes of all passes."""
    kept, predict, read = [], RecordedPasses.predict, RecordedPasses.read

    def predicting(passes: RecordedPasses, codes, states) -> torch.Tensor:
        passes.predicted = predict(passes, codes, states)
        return passes.predicted

    def reading(passes: RecordedPasses, codes, states) -> WindowPass:
        result = read(passes, codes, states)
        kept.append((passes.predicted.clone(), result.log_q.clone(), codes.clone()))
        return result

    monkeypatch.setattr(RecordedPasses, "predict", predicting)
    monkeypatch.setattr(RecordedPasses, "read", reading)
    return kept


@pytest.mark.parametrize("cfg", [1.0, 2.0])
def test_training_predicts_what_drafting_did(cfg, session, kept) -> None:
    """Wherever the target's choice was a candidate, in every round of an image."""
    head, distribution, compared = block_head(session), SamplingDistribution(cfg=cfg), 0
    drawn = RecordedRounds(session.target, head, TOKENS, distribution)([1])[0]
    assert len(kept) == len(drawn.passes) == PASSES * len(drawn.last_passes)
    assert len({reading.root for reading in drawn.last_passes}) == len(drawn.last_passes)
    rounds = windows_of(session.target, [drawn], [drawn.passes], False)
    with torch.inference_mode():
        found = scored(head, session.target, rounds, cfg)
    for m, (hidden, log_q, window) in enumerate(kept):
        for step, codes in enumerate(window[0].tolist()):
            true = int(rounds.true[m, step])
            if rounds.inside[m, step] and true in codes:
                expected = hidden[0, :, step * CANDIDATES + codes.index(true)]
                close(found.predicted[m, :, step], expected, rtol=1e-8, atol=1e-8)
                close(found.log_q[m, step], log_q[0, step, codes.index(true)], rtol=1e-8, atol=1e-8)
                compared += step > 0
    assert compared > 5


def test_drawn_images_are_those_of_plain_decoding(session) -> None:
    """With their features, and the distributions that chose their codes."""
    target, distribution = session.target, SamplingDistribution(cfg=2.0)
    drawn = RecordedRounds(target, block_head(session), TOKENS, distribution)([2, 0, 1])
    jobs = [Job(str(n), CAPTIONS[n], n + 3) for n in (2, 0, 1)]
    engine = build_engine(target, None, distribution, MethodSettings(method="ar"), 3)
    plain = {i.job.id: i.codes for step in engine.generate(jobs) for i in step.finished}
    picks = [pick(image.passes, torch.Generator().manual_seed(0)) for image in drawn]
    rounds = windows_of(target, drawn, picks, False)
    found = scored(block_head(session), target, rounds, distribution.cfg)
    chosen = rounds.by_image((found.log_p + rounds.noise).argmax(-1))
    goals, inside = rounds.by_image(rounds.goals), rounds.by_image(rounds.inside)
    for n, (job, image) in enumerate(zip(jobs, drawn, strict=True)):
        assert image.seed == job.seed
        assert torch.equal(torch.cat(image.codes), plain[job.id])
        assert torch.equal(chosen[n][inside[n]], plain[job.id][goals[n][inside[n]]])


def test_drawn_images_keep_what_is_asked_for(session) -> None:
    """Without the memory of the other images, and they read as if all was kept."""
    draw = RecordedRounds(
        session.target, block_head(session), TOKENS, SamplingDistribution(cfg=2.0)
    )
    kept, whole = draw([0, 1], lambda place, read: read[place::3]), draw([0, 1])
    picks = [image.passes[:3] for image in kept]
    expected = [image.passes[place::3][:3] for place, image in enumerate(whole)]
    pair = (windows_of(session.target, kept, read, False) for read in (picks, expected))
    found, wanted = (vars(windows) | vars(windows.rows) for windows in pair)
    assert all(torch.equal(found[name], wanted[name]) for name in ("best", "before", "recalled"))
    tensors = [tensor for one in picks[1] for tensor in (*vars(one.nodes).values(), one.before)]
    assert all(tensor.untyped_storage().nbytes() == tensor[0].nbytes for tensor in tensors)


def loss_of(session: Session, *weights: float) -> BlockLoss:
    levels = DraftLevels.of(session.target.grid, 2, session.target.device)
    return BlockLoss(session.target, EagleLoss(session.target, levels, 2.0, weights), False)


def test_the_loss_of_images_is_the_mean_of_each_alone(session, lumina_folder) -> None:
    """Their prompts have different lengths, so that shorter ones are padded; also with row ends."""
    if layers := session.drafter.spec.target_layers:
        session = session_reading(open_lumina(lumina_folder, "64x96"), layers)
    head, loss = block_head(session), loss_of(session, 1.0, 0.5, 2.0)
    drawn = RecordedRounds(session.target, head, TOKENS, SamplingDistribution(cfg=2.0))([1, 0, 2])
    assert len({image.prompt.ids.shape[1] for image in drawn}) > 1
    picks = [pick(image.passes, torch.Generator().manual_seed(1)) for image in drawn]
    with torch.inference_mode():
        together, parts = loss(head, drawn, picks)
        each = [loss(head, [image], [one]) for image, one in zip(drawn, picks, strict=True)]
    close(together, torch.stack([total for total, _ in each]).mean(), rtol=1e-6, atol=0)
    close(parts, torch.stack([parts for _, parts in each]).mean(0), rtol=1e-6, atol=1e-9)
    levels, steps = parts[:2], parts[2:]
    assert loss.total(parts) < together and levels.min() > 0 and len(steps) == 16
    assert loss.total(parts) > loss.total(torch.cat([0 * levels, steps]))


def test_only_sharpness_learns_from_the_choices(session32) -> None:
    """The other weights learn from distributions and features."""
    head = block_head(session32).float()
    head.requires_grad_(True)
    drawn = RecordedRounds(session32.target, head, TOKENS, SamplingDistribution(cfg=2.0))([0, 1])
    picks = [pick(image.passes, torch.Generator().manual_seed(0)) for image in drawn]
    loss_of(session32, 0.0, 0.0, 0.0)(head, drawn, picks)[0].backward()
    assert head.sharpness.grad.abs().min() > 0 and not head.share.grad.any()
    head.zero_grad()
    loss_of(session32, 1.0, 0.5, 1.0)(head, drawn, picks)[0].backward()
    assert head.share.grad.any() and head.fc.weight.grad.any()
