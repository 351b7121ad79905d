"""What the tests of several families ask of a target: its small files, logits, whole images."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from counted import CountedCache
from fakes import finished
from PIL import Image
from small import FLAGS, LUMINA, small_settings
from small_glm_image import open_glm_image
from small_llamagen import open_llamagen
from torch import Tensor

import main
from configs.methods import MethodSettings
from configs.model import EngineSettings, SamplingSettings
from decoding.cache import CacheShape
from decoding.engine import Engine
from decoding.images import FinishedImage, Job
from decoding.noise import gumbel
from drafters.training.shards import Tokens
from models.target import TargetModel
from runs.exactness import uncached_logits
from runs.session import Session, open_session
from scripts.checkpoints.chameleon import write_checkpoint
from scripts.checkpoints.emu3 import write_emu3
from scripts.checkpoints.emu3_5 import write_emu3_5
from scripts.checkpoints.glm_image import write_glm_image
from scripts.checkpoints.image_gpt import write_image_gpt
from scripts.checkpoints.janus import write_janus
from scripts.checkpoints.liquid import write_liquid
from scripts.checkpoints.llamagen import write_llamagen
from scripts.checkpoints.lumina2 import write_lumina2

PROMPTS = ("a cat", "two blue dogs", "A red cat")
PLAIN = MethodSettings("ar")


@dataclass(frozen=True)
class Small:
    """Small checkpoints of a layout."""

    model: str
    write: Callable[[Path], Path]  # into a new folder; returns the target's
    open: Callable[[EngineSettings], Session] = open_session

    def settings(self, folder: Path, dtype: str = "fp64") -> EngineSettings:
        return small_settings(folder, dtype, self.model)

    def load(self, folder: Path, method: MethodSettings = PLAIN, dtype: str = "fp64") -> Session:
        return self.open(self.settings(folder, dtype).with_method(method))


SMALL = {
    "tiny": Small("tiny", lambda root: write_checkpoint(root / "tiny")),
    "emu3": Small("emu3", lambda root: write_emu3(root / "Emu3-Gen-hf", layout="old")),
    "emu3 of today": Small("emu3", lambda root: write_emu3(root / "Emu3-Gen-hf")),
    "emu3_5": Small("emu3_5", lambda root: write_emu3_5(root / "Emu3.5-Image")),
    "janus_pro": Small("janus_pro", lambda root: write_janus(root / "Janus-Pro")),
    "janus_pro of the authors": Small(
        "janus_pro", lambda root: write_janus(root / "Janus-Pro", authors=True)
    ),
    "liquid": Small("liquid", lambda root: write_liquid(root / "Liquid_V1_7B")),
    "lumina_mgpt": Small(
        "lumina_mgpt", lambda root: write_checkpoint(root / "Lumina-mGPT", LUMINA)
    ),
    "lumina_mgpt2": Small("lumina_mgpt2", lambda root: write_lumina2(root / "Lumina-mGPT-2.0")),
    "glm_image": Small(
        "glm_image",
        lambda root: write_glm_image(root / "vision_language_encoder"),
        open_glm_image,
    ),
    "image_gpt": Small("image_gpt", lambda root: write_image_gpt(root / "image_gpt")),
    "llamagen": Small(
        "llamagen", lambda root: write_llamagen(root / "LlamaGen-T2I"), open_llamagen
    ),
}


class Once(dict):
    """Makes the value of a name when a test first asks for it."""

    def __init__(self, make: Callable[[str], object]):
        super().__init__()
        self.make = make

    def __missing__(self, name: str) -> object:
        return self.setdefault(name, self.make(name))


def size_flag(model: str) -> list[str]:
    """The flag of the size of a small checkpoint's images, where the model has one."""
    return [f"--target_size={FLAGS[model]['target_size']}"] if model in FLAGS else []


def same_weights(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)


@torch.inference_mode()
def cached_logits(target: TargetModel, text: str, codes: list[int], guidance: int = 2) -> Tensor:
    """Return logits (guidance, 1 + codes, vocab) after the prompt and every code, one by one."""
    rows = target.prompt(text, guidance)
    length = rows.ids.shape[1]
    shape = CacheShape(1, guidance, length + len(codes))
    cache = CountedCache(target.spec, shape, target.dtype, target.device)
    cache.begin(rows.starts, rows.origins)
    features = [target.read(rows, cache.chain(length))[:, -1:]]
    cache.advance([length])
    for code in codes:
        ids = torch.full((guidance, 1), code + target.vocab.first_id)
        features.append(target.features(ids, cache.chain(1)))
        cache.advance([1])
    return target.score(torch.cat(features, 1))


def images_of(
    session: Session, method: MethodSettings, sampling: SamplingSettings | None = None
) -> list[FinishedImage]:
    """Generate an image of every prompt, two images in flight."""
    engine = session.open_engine(method, sampling, images=2)
    jobs = [Job(str(number), text, 7 + number) for number, text in enumerate(PROMPTS)]
    images = finished(engine, jobs)
    return [images[job.id] for job in jobs]


def decoded(
    session: Session, method: MethodSettings = PLAIN, sampling: SamplingSettings | None = None
) -> list[Tensor]:
    """Return the codes of these images."""
    return [image.codes for image in images_of(session, method, sampling)]


def greedy(session: Session) -> Tensor:
    """Return the codes of the last prompt's image at temperature 0; some of them differ."""
    sampling = replace(session.settings.sampling, temperature=0.0)
    codes = decoded(session, PLAIN, sampling)[2]
    assert len(codes.unique()) > 2
    return codes


def assert_chosen(engine: Engine, image: FinishedImage) -> None:
    """Every code is chosen by the logits of an uncached pass, by which near-ties are judged."""
    law, noise = engine.distribution, 0.0
    for position, code in enumerate(image.codes):
        log_p = law(uncached_logits(engine.target, law.guidance, image, position))[0]
        if not law.greedy:
            numbers = torch.tensor([position]), engine.target.vocab.size
            noise = gumbel(image.job.seed, "target", *numbers)
        assert (log_p + noise).argmax() == code, position


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
