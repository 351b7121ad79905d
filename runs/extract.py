"""`extract_tokens`: images with captions, or prompts, in; shards of image codes out."""

import io
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from hashlib import sha256
from itertools import count, islice
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import torch
from PIL import Image

from configs.downloads import failed_download
from configs.extraction import ExtractionSettings
from configs.fields import Flag, mismatch, refusing, settings_dict, settled
from drafters.training.shards import Example, ShardWriter, Tokens, read_skipped, shard_paths
from models.codecs.codec import Codec
from models.registry import load_codec
from runs.captioned_images import Captioned, Fault, captioned_images
from runs.drawing import image_jobs
from runs.generate import refuse_spread, tell_quotes
from runs.made_of import Files, files_now, made_of, refuse_changed
from runs.prompts import PromptItem, numbered, prompt_items
from runs.samples import sample_captions
from runs.session import open_session, target_options
from support.border import Failure
from support.devices import pick_device
from support.durable import make_writable
from support.output import remark
from support.pictures import as_rgb
from support.processes import Processes, launched
from support.progress import DecodingProgress, Progress, plural
from support.provenance import CONTENT

SCENES = 60_000  # in the tiny model's training split
Item = TypeVar("Item", Captioned, PromptItem)
_ENLARGED = 2.0  # pictures that would have to be enlarged more are left out
_KEPT = 0.5  # the share of a picture that cutting it to the model's shape must leave
# What an image's codes depend on.
_CODEC = ("model", "model_path", "tokenizer_path", "vq_path", "target_size")


def extract_tokens(
    settings: ExtractionSettings, processes: Processes | None = None, size: int = 256
) -> None:
    """Add the codes that the output folder lacks, and print how many it holds.

    A Failure if not one image could be used. processes: those that share the work; by default the
    launcher's, or this one alone. size: images of a shard.
    """
    processes = processes or launched()
    run = settings.run
    refuse_spread(run.engine, processes)
    if processes.rank == 0:
        tell_quotes(settings.output_dir, "train_drafter --tokens")
    prompts: list[PromptItem] | None = None  # the first sample of each
    pictures: Iterable[Captioned] = ()
    samples: Iterable[PromptItem] = ()
    if not settings.from_prompts:
        pictures = captioned_images(Path(settled(settings.data_dir)))
    else:
        captions = settings.prompt is None  # of the tiny model's own training
        wanted = min(settled(settings.num_images), SCENES)
        prompts = (
            numbered(sample_captions("train", wanted)) if captions else prompt_items(run.prompts)
        )
        # one sample of every prompt, then a second one of each, and so on
        several = (replace(item, sample=sample) for sample in count() for item in prompts)
        samples = islice(several, _different_samples(settings, len(prompts)))
    before = files_now(settings_dict(run))
    with refusing():
        options = target_options(run.engine, torch.float32, pick_device(run.engine.device))
        codec = load_codec(run.engine.model, run.engine.model_path, options)
    about = _about(settings, codec, prompts)
    refuse_changed(settings_dict(run), before)
    with _opened(settings, about, processes, size) as writer:
        if prompts is None:
            what = f"encoding the images of {settings.data_dir} into {settings.output_dir}"
            with Progress(what, shown=processes.rank == 0) as progress:
                new = _encode(_missing(pictures, writer, processes), codec, writer, progress)
        else:
            new = _draw(settings, _missing(samples, writer, processes), codec, writer, before)
    new = sum(processes.gather(new))
    if processes.rank == 0:
        images, summary = _summary(Path(settings.output_dir), new)
        if not images:
            folder, listed = f"--data_dir {settings.data_dir}", f"--prompt {run.prompts.prompt}"
            source = folder if prompts is None else listed
            raise Failure(f"{source}: found nothing that can be used: {summary}")
        print(summary)


def _missing(images: Iterable[Item], writer: ShardWriter, processes: Processes) -> Iterator[Item]:
    """Yield what this process has to do."""
    # shares are cut before what is done is left out, so that they never overlap
    share = islice(images, processes.rank, None, processes.count)
    return (image for image in share if image.id not in writer.done)


def _different_samples(settings: ExtractionSettings, prompts: int) -> int:
    """Return how many images to make: at temperature 0 a prompt has one, whatever its seed."""
    wanted = settled(settings.num_images)
    if settings.run.engine.sampling.temperature > 0 or wanted <= prompts:
        return wanted
    which = f"{plural(prompts, 'image')} instead of {wanted}"
    remark(f"--temperature 0: {which}, since all samples of a prompt have the same tokens")
    return prompts


def _about(
    settings: ExtractionSettings, codec: Codec, prompts: Sequence[PromptItem] | None
) -> dict[str, Any]:
    """Return about.json, which is the same for any number of images and processes."""
    run, kept = settings.run, settings.run.identity()
    if prompts is None:
        kept = {name: kept[name] for name in _CODEC if name in kept}
    kept |= (made := made_of(kept).files)
    if prompts is None:
        # relative, so that a project may move
        kept["data_dir"] = os.path.relpath(
            os.path.realpath(settled(settings.data_dir)), os.path.realpath(settings.output_dir)
        )
    elif settings.prompt is not None:  # a list that has changed is another one
        texts = repr([item.prompt for item in prompts])
        kept["prompt"] = CONTENT + sha256(texts.encode()).hexdigest()[:16]
    (width, height), grid = codec.size, codec.grid
    small = {} if grid.preview is None else {"preview": grid.preview}
    return small | {
        "origin": "images" if prompts is None else "own",
        "model": run.engine.model,
        "checkpoint": made["model_path"].removeprefix(CONTENT),
        "rows": grid.rows,
        "columns": grid.columns,
        "vocab": codec.vocab,
        "width": width,
        "height": height,
        "law": None if prompts is None else settings_dict(run.engine.sampling),
        "settings": kept,
    }


@contextmanager
def _opened(
    settings: ExtractionSettings, about: dict[str, Any], processes: Processes, size: int
) -> Iterator[ShardWriter]:
    """Open the folder, the first process before the others; errors name --output_dir."""
    if processes.count > 1:
        place, expected = settings.output_dir, "the same settings and files in all processes"
        processes.agree("output_dir", place, (about, _listed(settings)), expected)
    try:
        make_writable("output_dir", Path(settings.output_dir))
        for turn in (processes.rank == 0, processes.rank > 0):
            if turn:
                with refusing(Flag("output_dir")):
                    writer = ShardWriter(settings.output_dir, about, processes.rank, size)
            # waits, so that the first process has claimed the folder when the others come
            processes.wait()
    except BlockingIOError as error:
        source = Flag("output_dir", settings.output_dir)
        raise mismatch(source, "another command using it", "one command per folder") from error
    with closing(writer):
        first = Path(settings.output_dir) / ".lock.0"
        processes.agree_on_folder("output_dir", settings.output_dir, first)
        yield writer


def _listed(settings: ExtractionSettings) -> str:
    """Return a hash of the images that every process takes its share of."""
    place = settings.data_dir
    ids = [] if place is None else [image.id for image in captioned_images(Path(place))]
    return sha256(repr(ids).encode()).hexdigest()


def _encode(
    images: Iterable[Captioned], codec: Codec, writer: ShardWriter, progress: Progress
) -> int:
    """Add the codes of pictures; returns how many."""
    progress.begin()
    skipped = 0
    for image in images:
        try:
            caption, content = image.load()
            _check_caption(caption, codec)
            codes = codec.encode(_picture(content, codec.size))
        except Fault as fault:
            writer.skip(image.id, str(fault))
            skipped += 1
            progress.update(0, f"{skipped} skipped")
        else:
            writer.add(Example(image.id, caption, codes))
            progress.update(1, f"{skipped} skipped")
    return progress.done


def _check_caption(caption: str, codec: Codec) -> None:
    try:
        codec.length(caption)
    except ValueError as error:
        raise Fault(f"caption cannot be read: {error}") from error


def _picture(content: bytes, size: tuple[int, int]) -> Image.Image:
    """Return the picture in a file, upright, in RGB.

    A Fault says that it cannot be read, or does not suit the model's width and height, `size`.
    """
    try:
        with Image.open(io.BytesIO(content)) as opened:
            image = as_rgb(opened)
    except Exception as error:  # decoders raise errors of many kinds
        why = failed_download(content) or type(error).__name__
        raise Fault(f"image cannot be read: {why}") from error
    # the picture must cover the model's shape both ways; what sticks out is cut off
    scale = max(wanted / side for wanted, side in zip(size, image.size, strict=True))
    pixels = f"{image.width} x {image.height} pixels"
    if scale > _ENLARGED:
        raise Fault(f"image too small: {pixels}, enlarged {scale:.1f} times")
    if (kept := prod(size) / (prod(image.size) * scale**2)) < _KEPT:
        raise Fault(f"image too narrow: cropping keeps only {kept:.0%} of its {pixels}")
    return image


def _draw(
    settings: ExtractionSettings,
    prompts: Iterable[PromptItem],
    codec: Codec,
    writer: ShardWriter,
    before: Files,
) -> int:
    """Add the target's own samples; returns how many. The target is loaded if one is missing.

    before: its files, as `refuse_changed` takes them.
    """
    fitting, skipped, done = [], 0, len(writer.done)
    for item in prompts:
        try:
            _check_caption(item.prompt, codec)
            fitting.append(item)
        except Fault as fault:
            writer.skip(item.id, str(fault))
            skipped += 1
    if not fitting:
        return 0
    run = settings.run
    method, model = run.engine.method.method, run.engine.model
    what = f"generating {plural(len(fitting), 'image')} with {method} ({model}) "
    what += f"into {settings.output_dir}" + (f"; {done} are done already" if done else "")
    what += f"; {skipped} skipped" if skipped else ""
    with DecodingProgress(what, len(fitting), shown=writer.rank == 0) as progress:
        engine = open_session(run.engine).open_engine()
        refuse_changed(settings_dict(run), before)
        progress.begin(codec.grid.tokens)
        for step in engine.generate(image_jobs(fitting, run.prompts.seed)):
            for image in step.finished:
                writer.add(Example(image.job.id, image.job.prompt, image.codes, image.job.seed))
            progress.show(step)
    return len(fitting)


def _summary(folder: Path, new: int) -> tuple[int, str]:
    """Return the number of images in the folder, and a line that says what was skipped and why."""
    entries = read_skipped(folder)
    reasons = Counter(str(entry.get("reason")).partition(":")[0] for entry in entries).most_common()
    images = len(Tokens.read(folder)) if shard_paths(folder) else 0
    listed = "".join(f", {number} {reason}" for reason, number in reasons)
    skipped = f"{len(entries)} skipped{listed and ':' + listed[1:]}"
    return images, f"{plural(images, 'image')} in {folder} ({new} new), {skipped}"
