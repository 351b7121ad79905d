"""What the tests of several families ask of a target: logits through a cache, and whole images."""

from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

import main
from configs.methods import MethodSettings
from configs.sampling import SamplingSettings
from decoding.cache import CacheShape, KVCache
from decoding.images import Job
from drafters.training.shards import Tokens
from models.base import TargetModel
from runs.session import Session

PROMPTS = ("a cat", "two blue dogs", "A red cat")


@torch.inference_mode()
def cached_logits(target: TargetModel, text: str, codes: list[int]) -> Tensor:
    """Return logits (2, 1 + codes, vocab) after the prompt and after every code, read one by
    one.
    """
    rows = target.prompt(text, 2)
    length = rows.ids.shape[1]
    shape = CacheShape(1, 2, length + len(codes))
    cache = KVCache(target.spec, shape, target.dtype, target.device)
    context = cache.prefill(0, length, rows.starts, rows.origins)
    features = [target.read(rows, context)[:, -1:]]
    for step, code in enumerate(codes):
        ids = torch.full((2, 1), code + target.vocab.first_id)
        view = cache.view(torch.tensor([length + step]), length + step, 1)
        context = view.open(torch.zeros(1, 1).long(), torch.ones(1, 1, 1).bool())
        features.append(target.features(ids, context))
    return target.score(torch.cat(features, 1))


def decoded(
    session: Session, method: MethodSettings, sampling: SamplingSettings | None = None
) -> list[Tensor]:
    """Return the codes of an image of every prompt, two images in flight."""
    engine = session.open_engine(method, sampling, images=2)
    jobs = [Job(str(number), text, 7 + number) for number, text in enumerate(PROMPTS)]
    found = [image for step in engine.generate(jobs) for image in step.finished]
    return [image.codes for image in sorted(found, key=lambda image: image.job.id)]


def rounds(session: Session, method: MethodSettings) -> list[int]:
    """Return how many rounds the image of every prompt takes, two images in flight."""
    engine = session.open_engine(method, images=2)
    jobs = [Job(str(number), text, 7 + number) for number, text in enumerate(PROMPTS)]
    found = [image for step in engine.generate(jobs) for image in step.finished]
    return [image.target_forwards for image in sorted(found, key=lambda image: image.job.id)]


def extracted(
    model: str, folder: Path, size: tuple[int, int], place: Path, *words: str
) -> tuple[Tensor, Tensor]:
    """Return random pixels (height, width, 3) and their codes (1, tokens), by `extract_tokens`."""
    (place / "pictures").mkdir()
    pixels = torch.randint(256, (*size, 3), generator=torch.Generator().manual_seed(1)).byte()
    Image.fromarray(pixels.numpy()).save(place / "pictures" / "a.png")
    (place / "pictures" / "a.txt").write_text("a cat")
    given = [f"--model={model}", f"--model_path={folder}", f"--data_dir={place / 'pictures'}"]
    given += [f"--output_dir={place / 'tokens'}", "--device=cpu", *words]
    assert main.main(["extract_tokens", *given]) == 0
    return pixels, Tokens.read(place / "tokens").codes([0])
