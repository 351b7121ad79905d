"""Functions that a compiler may take: only while it is on, and not where gradients are recorded."""

import torch

from support.compiler import compiling, fused


@fused
def doubled(x: torch.Tensor) -> torch.Tensor:
    """Return 2 x."""
    return 2 * x


def test_only_while_it_is_on() -> None:
    taken = []

    def compiler(function):
        taken.append(function.__name__)
        return function

    one = torch.ones(1)
    with torch.inference_mode():
        assert doubled(one) == 2 and not taken
        with compiling(compiler):
            assert doubled(one) == 2 and taken == ["doubled"]
            with compiling(None):
                doubled(one)
            with torch.inference_mode(False), torch.enable_grad():
                doubled(one)
        doubled(one)
    assert len(taken) == 2 and doubled.__doc__ == "Return 2 x."
