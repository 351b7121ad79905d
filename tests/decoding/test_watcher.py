"""What a watcher of the engine sees: every round, its trees and the codes decided so far."""

import torch

from configs.methods import MethodSettings
from decoding.flight import Job
from runs.session import Session

JOBS = [Job("0", "a cat", 1), Job("1", "two cats", 2)]


def test_a_watcher_sees_every_round_and_changes_no_token(session: Session) -> None:
    plain = [image for step in session.open_engine(images=2).generate(JOBS)
             for image in step.finished]  # fmt: skip
    engine, seen = session.open_engine(MethodSettings("adt"), images=2), []

    def watch(flights, verified) -> None:
        for image, flight in enumerate(flights):
            codes = torch.tensor(flight.codes)
            assert len(codes) == flight.decided
            count = int(verified.verdict.accepted[image]) + 1
            assert torch.equal(codes[-count:], verified.verdict.emitted[image, :count])
            assert int(verified.tree.tokens[image, 0]) == int(codes[-count - 1])
        seen.append([flight.job.id for flight in flights])

    engine.watcher = watch
    steps = list(engine.generate(JOBS))
    assert seen == [[stats.id for stats in step.rounds] for step in steps]
    found = {image.job: image.codes for step in steps for image in step.finished}
    assert all(torch.equal(found[image.job], image.codes) for image in plain)
