"""What a call of a pipeline may be given, checked."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, TypedDict

from adt_tree.sources import CALL_ARGUMENTS, as_flags, check_names, plain
from configs.fields import Settings, Values, build, mismatch, refuse, setting, settings_dict
from configs.model import EngineSettings
from configs.sampling import SamplingSettings
from decoding.images import Job
from models.target import TargetModel
from runs.drawing import image_jobs
from runs.prompt_files import text_fault
from runs.prompts import PromptItem, numbered, samples

# Called after every round with the pipeline, the round's number from 0, how many tokens of all
# images are decided, and {"rounds": a RoundStats per image in flight}. What it returns is ignored.
StepCallback = Callable[[Any, int, int, dict[str, Any]], object]


class CallOptions(TypedDict, total=False):
    """What every call may change for itself; what is left out is the pipeline's."""

    guidance_scale: float
    temperature: float
    top_k: int
    top_p: float
    batch_size: int
    progress_bar: bool


@dataclass(frozen=True)
class CallSettings(Settings):
    """How many images, of which seeds, and how they come back."""

    num_images: int = setting(1, "images per prompt", low=1)
    seed: int = setting(0, "base seed", low=0, high=2**63 - 1)
    output_type: str = setting(
        "pil",
        "what comes back",
        choices=("pil", "tokens"),
        advice="For arrays use np.asarray(out.images[0]); tokens are the codes of an image.",
    )
    repeats: int = setting(1, "measurements per method", low=1, high=1000)


def call_settings(**values: Any) -> CallSettings:
    """Return what a call was given; a SettingsError if it cannot be used."""
    return build(CallSettings, {name: plain(value) for name, value in values.items()})


def call_jobs(items: Sequence[PromptItem], seed: Any) -> list[Job]:
    """Return the images of a call. seed: the base seed, or a list of every image's own seed."""
    if not isinstance(seed, list | tuple):
        return image_jobs(items, call_settings(seed=seed).seed)
    if len(seed) != len(items):
        refuse("seed", seed, f"one seed, or a list of {len(items)}, one per image")
    seeds = [call_settings(seed=one).seed for one in seed]
    return [Job(item.id, item.prompt, one) for item, one in zip(items, seeds, strict=True)]


def with_options(
    settings: EngineSettings, options: CallOptions, arguments: Iterable[str] = CALL_ARGUMENTS
) -> EngineSettings:
    """Return a pipeline's settings as a call changes them.

    arguments: names that this kind of call takes besides the options, for errors.
    """
    check_names(options, [*CallOptions.__annotations__, *arguments], "a call")
    if not isinstance(options.get("progress_bar", True), bool):
        refuse("progress_bar", options["progress_bar"], "True or False")
    values: Values = as_flags({k: v for k, v in options.items() if k != "progress_bar"})
    batch = values.pop("batch_size", settings.batch_size)
    sampling = settings_dict(settings.sampling) | values
    return replace(settings, batch_size=batch, sampling=build(SamplingSettings, sampling))


def call_items(
    target: TargetModel, prompt: str | Iterable[str], num_images: int
) -> list[PromptItem]:
    """Return the images of a call, as a command line with a list of these prompts numbers them."""
    prompt = plain(prompt)
    texts = [prompt] if isinstance(prompt, str) else prompt
    # The number of a prompt names its images, and a set has no order.
    if not isinstance(texts, Iterable) or isinstance(texts, Mapping | Set | bytes):
        refuse("prompt", prompt, "a text, or a list of texts")
    prompts = [plain(text) for text in texts]
    if not prompts:
        refuse("prompt", prompt, "a text, or a list of texts")
    for number, text in enumerate(prompts, 1):
        if fault := text_fault(text):
            refuse("prompt", text, "a text, or a list of texts", f"This is {fault}.")
        try:
            target.length(text)
        except ValueError as error:
            which = f", number {number} of {len(prompts)}" if len(prompts) > 1 else ""
            raise mismatch(f"prompt{which}", str(error), "a shorter prompt") from error
    return samples(numbered(prompts), num_images)
