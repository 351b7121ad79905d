"""What a drafter learns from: the notes of a run are the rows that training would compute."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small import open_lumina

from configs.schema import MethodSettings
from configs.training import TrainSettings
from decoding.flight import Job
from decoding.sampling import SamplingDistribution
from drafters.learn import DEEP_EVERY, LearningDrafter, Notes, OnlineLessons, pass_on, precision_on
from drafters.training.agreement import draft_distributions, target_distribution
from drafters.training.heads import open_head
from drafters.training.losses import overlap
from drafters.training.rows import Rows, target_rows
from runs.methods import build_engine
from runs.session import Session

JOBS = [Job(str(i), "word " * (i % 3) + "a cat", 100 + i) for i in range(5)]
METHODS = {
    "eagle2": MethodSettings(method="eagle2", depth=3, width=3, nodes=8),
    "graft": MethodSettings(method="graft", size="fixed", nodes=6, window=4),
    "static": MethodSettings(method="static", tree="chain"),
}
pytestmark = pytest.mark.usefixtures("one_thread")


def drawn(
    session: Session, method: MethodSettings, guidance: float = 3.0, images: int = 2
) -> tuple[dict[str, torch.Tensor], Notes, list[str]]:
    """Codes by job, the notes, and the jobs in the order in which they were finished."""
    target = session.target
    notes = Notes(target.grid, target.vocab.first_id)
    learning = LearningDrafter(session.drafter.network, notes=notes)
    distribution = SamplingDistribution(cfg=guidance)
    engine = build_engine(target, learning, distribution, method, images)
    finished = [image for step in engine.generate(JOBS) for image in step.finished]
    return {f.job.id: f.codes for f in finished}, notes, [f.job.id for f in finished]


def expected(session: Session, codes: torch.Tensor, prompt: str, guidance: int) -> Rows:
    return target_rows(session.target, session.target.prompt(prompt, guidance), codes[None])


def check(session: Session, method: MethodSettings, guidance: float) -> None:
    codes, notes, order = drawn(session, method, guidance)
    assert len(notes) == notes.finished == len(JOBS)
    for number, name in enumerate(order):
        found = notes([number])
        wanted = expected(session, codes[name], JOBS[int(name)].prompt, 1 + (guidance != 1))
        assert found.prompt == wanted.prompt and found.drafted == wanted.drafted
        for one in ("ids", "starts", "origins"):
            assert torch.equal(getattr(found, one), getattr(wanted, one)), one
        seen = [slice(int(start), None) for start in wanted.starts]  # padding has any features
        for row, part in enumerate(seen):
            torch.testing.assert_close(found.features[row, part], wanted.features[row, part])
        assert not found.features.is_inference()


@pytest.mark.parametrize("guidance", [3.0, 1.0])
@pytest.mark.parametrize("name", METHODS)
def test_notes_are_the_rows_that_training_would_compute(name, guidance, session) -> None:
    check(session, METHODS[name], guidance)


def test_row_ends_are_noted_too(lumina_folder) -> None:
    session = open_lumina(lumina_folder, "64")
    session = session.with_settings(replace(session.settings, method=METHODS["eagle2"]))
    check(session, METHODS["eagle2"], 3.0)


def test_only_the_latest_images_are_kept(session, monkeypatch) -> None:
    everything = drawn(session, METHODS["eagle2"])[1]
    size = max(rows.features.numel() * rows.features.itemsize for rows in everything.rows)
    monkeypatch.setattr("drafters.learn._BYTES", 2 * size)
    notes = drawn(session, METHODS["eagle2"])[1]
    assert len(notes) == 2 < notes.finished == len(JOBS)
    assert torch.equal(notes([1]).ids, everything([len(JOBS) - 1]).ids)


def test_images_of_several_prompts_are_trained_on_together(session) -> None:
    notes = drawn(session, METHODS["eagle2"])[1]
    rows = notes([0, 1, 2])
    assert len({len(rows.ids) for rows in notes.rows}) == 1 and len(rows.ids) == 6
    assert int(rows.starts.max()) > 0  # prompts of different lengths end at the same slot
    picked = notes([0, 1, 2], [1, 0, 1])
    wanted = rows.ids[[1, 2, 5], rows.prompt :]
    assert len(picked.ids) == 3 and picked.drafted == rows.drafted
    assert torch.equal(picked.ids[:, picked.prompt :], wanted)


def lessons_of(session: Session, notes: Notes) -> OnlineLessons:
    settings = TrainSettings(tokens="drawn", output_dir="-", model_path=session.settings.model_path,
                             batch_size=2, ema=0.5, guidance_aware=False)  # fmt: skip
    head = open_head(settings, session.target).float()
    pass_on(head)
    return OnlineLessons(settings, session.target, head, notes)


def test_a_head_that_passes_on_drafts_from_the_last_distribution(session) -> None:
    """At every level: the one that the root was chosen from."""
    notes = drawn(session, METHODS["eagle2"])[1]
    head = lessons_of(session, notes).head.to(session.target.dtype)
    rows, distribution = notes([0, 1]), SamplingDistribution(cfg=3.0)
    log_p = target_distribution(session.target, rows, distribution)
    for log_q in draft_distributions(session.target, head, rows, distribution, 3):
        wanted = log_p[:, : log_q.shape[1] - 1]
        torch.testing.assert_close(log_q[:, 1:], wanted, rtol=1e-4, atol=1e-4)


def test_one_update_in_four_scores_the_second_level(session) -> None:
    notes = drawn(session, METHODS["eagle2"])[1]
    lessons = lessons_of(session, notes)
    lessons.images = list(range(len(notes)))
    levels = [len(lessons.update()) for _ in range(2 * DEEP_EVERY)]
    assert levels == 2 * [1, 1, 1, 2]


def test_overlap_is_what_the_total_variation_leaves() -> None:
    p, q = torch.randn(2, 5, 40, dtype=torch.float64).mul(2).softmax(-1)
    torch.testing.assert_close(overlap(p, q), 1 - (p - q).abs().sum(-1) / 2)
    torch.testing.assert_close(overlap(p, p), torch.ones(5, dtype=torch.float64))


def test_learning_multiplies_bf16_where_the_processor_does(monkeypatch) -> None:
    cpu = torch.device("cpu")
    for found, precision in [((), "fp32"), ((torch.float32,), "fp32"),
                             ((torch.float32, torch.bfloat16), "bf16")]:  # fmt: skip
        monkeypatch.setattr("drafters.learn.packed_dtypes", lambda found=found: found)
        assert precision_on(cpu) == precision
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    assert precision_on(torch.device("cuda")) == "fp32"
