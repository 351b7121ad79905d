"""How many operations the host launches per round: a GPU waits for them, and so does a small model.

The ceilings are the figures of the day they were written. Lower them when a round gets shorter.
"""

from collections import Counter

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from configs.schema import MethodSettings
from decoding.images import Job
from runs.session import Session

pytestmark = pytest.mark.usefixtures("plain_blocks")

# Most operations of one round, two layers, batch of one image.
CEILINGS = {
    MethodSettings(method="ar"): 72,
    MethodSettings(method="jacobi", window=6): 106,
    MethodSettings(method="static", tree="chain"): 325,
    MethodSettings(method="eagle2", depth=3, width=3, nodes=8): 262,
    MethodSettings(method="adt"): 215,
    MethodSettings(method="recall", depth=6, width=3, nodes=8): 370,
    MethodSettings(method="eagle_recall", depth=6, width=3, nodes=8): 690,
    MethodSettings(method="block", depth=6, width=3, nodes=8): 571,
}
WAITS = ("aten::item", "aten::is_nonzero", "aten::equal", "aten::_local_scalar_dense")


class Launches(TorchDispatchMode):
    """Counts the operations that reach a device, by name; views of a tensor do not."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        returns = [value.alias_info for value in function._schema.returns]
        if not any(alias is not None and not alias.is_write for alias in returns):
            self.count[function._schema.name] += 1
        return function(*args, **(kwargs or {}))


def rounds(session: Session, method: MethodSettings) -> list[Counter[str]]:
    """The operations of every round of a second image: the first makes constants."""
    engine = session.open_engine(method)
    list(engine.generate([Job("0", "a cat", 3)]))
    steps = engine.generate([Job("0", "a cat", 3)])
    next(steps)  # the prompt and the first round
    counts = []
    while True:
        with Launches() as launches:
            if next(steps, None) is None:
                return counts
        counts.append(launches.count)


@pytest.mark.parametrize("method", CEILINGS, ids=lambda method: method.method)
def test_a_round_launches_no_more_than_before_and_reads_no_number(method, session) -> None:
    """A number read from a tensor is a wait for the device. (`tolist` is not seen here.)"""
    counts = rounds(session, method)
    assert len(counts) > 2 and max(count.total() for count in counts) <= CEILINGS[method]
    assert not any(count[name] for count in counts for name in WAITS)
