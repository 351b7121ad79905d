"""What a watcher of the engine sees: every round, its trees and the codes decided so far."""

import torch

from configs.methods import MethodSettings
from decoding.images import Job
from runs.session import Session

JOBS = [Job("0", "a cat", 1), Job("1", "two cats", 2)]


def test_a_watcher_sees_every_round_and_changes_no_token(session: Session) -> None:
    plain = [image for step in session.open_engine(images=2).generate(JOBS)
             for image in step.finished]  # fmt: skip
    engine, seen = session.open_engine(MethodSettings("adt"), images=2), []

    def watch(states, result) -> None:
        for image, state in enumerate(states):
            if state is None:
                continue
            codes = torch.tensor(state.codes)
            assert len(codes) == state.decided
            count = int(result.verdict.accepted[image]) + 1
            assert torch.equal(codes[-count:], result.verdict.emitted[image, :count])
            assert int(result.tree.tokens[image, 0]) == int(codes[-count - 1])
        seen.append([state.job.id for state in states if state is not None])

    engine.watcher = watch
    steps = list(engine.generate(JOBS))
    assert seen == [[stats.id for stats in step.rounds] for step in steps]
    found = {image.job: image.codes for step in steps for image in step.finished}
    assert all(torch.equal(found[image.job], image.codes) for image in plain)
