"""Part 4: profiles to look at, of the tiny model and of the 7B target."""

from functools import partial

from configs.methods import MethodSettings
from decoding.flight import Job
from runs.methods import build_engine
from scripts.gpu import large
from scripts.gpu.checkpoint import open_tiny, prompt_jobs
from scripts.gpu.methods import every_method
from scripts.gpu.options import Options
from scripts.gpu.record import Figures, Pieces
from scripts.gpu.rounds import write_profile

METHODS = ("ar", "adt", "graft")


def pieces(options: Options) -> Pieces:
    """Return the profiles of this part by name."""
    methods = every_method(options.sizes.nodes)
    tiny = {f"tiny {name}": partial(profile_tiny, options, methods[name]) for name in METHODS}
    large = {f"large {name}": partial(profile_large, options, methods[name]) for name in METHODS}
    return tiny | large


def profile_tiny(options: Options, method: MethodSettings) -> Figures:
    """Profile rounds of one image of the tiny model in fp32."""
    engine = open_tiny(options.model_path, "fp32", options.device).open_engine(method)
    return write_profile(engine, prompt_jobs(1), options.output / f"profile_tiny_{method.method}")


def profile_large(options: Options, method: MethodSettings) -> Figures:
    """Profile rounds of one image of the 7B target."""
    engine = build_engine(*large.models(options), large.DISTRIBUTION, method, 1)
    place = options.output / f"profile_large_{method.method}"
    return write_profile(engine, [Job("0", "a red fox in the snow", 0)], place)
