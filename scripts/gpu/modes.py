"""The ways to run a forward pass: eager or compiled, and either of them as one CUDA graph."""

from collections.abc import Callable

import torch
from torch import Tensor

from models.base import Context, TransformerSpec
from models.compiled import missing_compiler
from scripts.gpu.record import Skipped

Pass = Callable[[], Tensor]


class FixedCache:
    """A cache whose new tokens always go to the same slots, with a tensor of its own per layer.

    Compilers copy what they cannot tell apart: the views of one tensor that `KVCache` hands out.
    """

    def __init__(self, layers: list[tuple[Tensor, Tensor]], new: int):
        """layers: keys and values, (rows, kv_heads, slots, head_dim); the last `new` are written.

        A pass sees all slots.
        """
        self.layers, self.first = layers, layers[0][0].shape[2] - new

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        for memory, added in zip(self.layers[layer], (keys, values), strict=True):
            memory[:, :, self.first :] = added
        return self.layers[layer]


def fixed_context(context: Context, spec: TransformerSpec, dtype: torch.dtype) -> Context:
    """Return a context with the same positions and mask, over random keys and values.

    context: of a cache's `open`.
    """
    rows, new = context.positions.shape
    size = (rows, spec.kv_heads, context.mask.shape[-1], spec.head_dim)
    device = context.positions.device
    layers = [
        (
            torch.randn(size, dtype=dtype, device=device),
            torch.randn(size, dtype=dtype, device=device),
        )
        for _ in range(spec.layers)
    ]
    return Context(context.positions.clone(), context.mask.clone(), FixedCache(layers, new))


def compiled(run: Pass, device: torch.device) -> Pass:
    """Return a pass that is compiled for its shapes.

    Where the engine compiles its rounds itself, its own passes belong here, in place of
    `torch.compile`.

    Raises:
        Skipped: a compiler is missing.
    """
    if missing := missing_compiler(device):
        raise Skipped(missing)
    torch.compiler.reset()  # beyond eight shapes of one function it would go on without compiling
    return torch.compile(run, dynamic=False, fullgraph=True)


def graphed(run: Pass) -> Pass:
    """Return a pass that replays what `run` launches, captured once, as one CUDA graph.

    run: warmed up.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = run()

    def replay() -> Tensor:
        graph.replay()
        return output

    return replay
