"""The tiny model without its codec: decoding to codes needs none, and diffusers may be missing."""

from functools import cache
from pathlib import Path

import torch

from configs.methods import MethodSettings
from configs.model import INDUCTOR, EngineSettings
from configs.schema import RunSettings
from configs.targets import ROOT
from decoding.flight import Job
from drafters.loading import load_drafter
from models.base import ImageGrid, TargetOptions, TransformerSpec
from models.codecs.vqgan_config import read_config
from models.compiled import missing_compiler
from models.files.chameleon_parts import find_tokenizer
from models.files.names import VQGAN_CONFIG
from models.files.tokenizer_file import load_tokenizer
from models.targets.chameleon import Chameleon, ChameleonVocab
from runs.fusing import kernels_for
from runs.jobs import image_jobs
from runs.prompts import prompt_items
from runs.session import DTYPES, Session
from scripts.gpu.record import Skipped

PROMPTS = ROOT / "configs" / "prompts" / "tiny_test.txt"
SEED = 9
KINDS = {"": None, ", replayed": "on", ", inductor": INDUCTOR}  # of rounds, by --compile


class Codeless(Chameleon):
    """A Chameleon target that cannot turn codes into pixels."""

    @classmethod
    def _parts(
        cls, folder: Path, spec: TransformerSpec, options: TargetOptions
    ) -> tuple[ChameleonVocab, None, ImageGrid]:
        files = find_tokenizer(folder)
        words = ChameleonVocab(load_tokenizer(files.text))
        sizes = read_config(files.vqgan / VQGAN_CONFIG)
        return words, None, cls.check_parts(files, words, sizes, spec, options)


@cache
def open_tiny(
    model_path: str, dtype: str, device: torch.device, compile: str | None = None
) -> Session:
    """Return target and drafter of a checkpoint folder, without the codec.

    compile: of KINDS; None launches torch's kernels one by one.

    Raises:
        ValueError: a file is missing or damaged; names it.
        Skipped: `compile` asks for graphs, which the device does not have, or for a compiler, which
            is missing.
    """
    if compile is not None and device.type != "cuda":
        raise Skipped("only a CUDA device has graphs")
    if compile == INDUCTOR and (missing := missing_compiler(device)):
        raise Skipped(missing)
    settings = EngineSettings(
        model_path=model_path,
        dtype=dtype,
        device=str(device),
        method=MethodSettings(method="eagle2"),
        compile=compile,
    )
    target = Codeless.load(Path(model_path), TargetOptions(DTYPES[dtype], device))
    drafter = load_drafter(settings.drafter_path, target)
    if compile is not None:
        kernels_for(settings)(target.transformer, drafter.network)
    return Session(settings, target, drafter)


def prompt_jobs(count: int) -> list[Job]:
    """Return the first test prompts, with the seeds of `benchmark --seed 9`."""
    settings = RunSettings(prompt=str(PROMPTS), num_images=count, seed=SEED)
    return image_jobs(prompt_items(settings), SEED)
