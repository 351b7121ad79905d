"""Compiles kernels of Triton for a GPU that is not here; prints a line of JSON for each.

`python ahead.py CAPABILITY`: 80, 86, 89 or 90. What a launch is given decides how Triton compiles,
so this runs what launches every kernel before a first round.
"""

import json
import sys
from dataclasses import replace
from importlib import import_module
from pkgutil import iter_modules

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

import models.cuda
from models.base import ImageRope, TransformerSpec
from models.fp8 import use_fp8
from models.transformer import Transformer

CAPABILITY = int(sys.argv[1])
MODULES = [
    import_module(f"models.cuda.{found.name}") for found in iter_modules(models.cuda.__path__)
]
ANOLE = TransformerSpec(
    vocab=64, hidden=4096, intermediate=11008, layers=1, heads=32, kv_heads=32, max_positions=64
)
NETWORKS = [  # and how many codes they score
    (ANOLE, 8192),
    (replace(ANOLE, qk_norm=False, kv_heads=8, head_width=64), 16384),
    (replace(ANOLE, qk_rms=True, kv_heads=8, gelu=True, head_width=256), 32768),
    (replace(ANOLE, qk_norm=False, image_rope=ImageRope(20, 16)), 512),
]


class Absent:
    """The driver of the GPU."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", CAPABILITY, 32)


def launch_all(early: dict[str, bool]) -> None:
    """Build the kernels of all networks."""
    for module in MODULES:
        module.early = lambda device: early
    for spec, codes in NETWORKS:
        with torch.device("meta"):
            network = Transformer(spec, codes).to(models.cuda.ops.TYPE)
        if CAPABILITY >= 89:
            use_fp8(network.blocks)
        models.cuda.ops.build(network.blocks, same_bits=False)
        models.cuda.choosing.build(network)["judging"]()
    models.cuda.ops.build(network.blocks, same_bits=True)


def main() -> None:
    run, made = JITFunction.run, {}

    def ahead(kernel: JITFunction, *args: object, **options: object) -> None:
        compiled = run(kernel, *args, **options | {"warmup": True})
        made[compiled.hash] = kernel.__name__, compiled

    JITFunction.run = ahead
    driver.set_active(Absent())
    launch_all({})
    if CAPABILITY >= 90:
        launch_all({"EARLY": True, "launch_pdl": True})
    for name, compiled in made.values():
        early = "griddepcontrol.wait" in compiled.asm["ptx"]
        print(json.dumps({"name": name, "shared": compiled.metadata.shared, "early": early}))
    found = [one for module in MODULES for one in vars(module).values()]
    kernels = {
        one.__name__ for one in found if isinstance(one, JITFunction) and "tl.program_id" in one.src
    }
    print(json.dumps(sorted(kernels - {name for name, _ in made.values()})))


if __name__ == "__main__":
    main()
