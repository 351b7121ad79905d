"""From what `Pipeline.from_pretrained` and a pipeline's calls are given to settings and images."""

import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import torch

from configs.fields import (
    Flag,
    Settings,
    SettingsError,
    Values,
    flags_in,
    mismatch,
    near_names,
    one_of,
    refuse,
    refusing,
    setting,
    settings_dict,
    spelled,
)
from configs.gone import ALIASES, ELSEWHERE, GONE_FLAGS
from configs.model import HALF, EngineSettings, SamplingSettings
from configs.recipes import (
    family_recipe,
    model_recipe,
    of_runs,
    overridden,
    paper_row,
    read_recipe,
)
from configs.targets import ROOT, TARGETS, model_place
from decoding.images import Job
from models.files.chameleon_parts import stored_names
from models.files.folders import checkpoint_folder
from models.files.recognition import targets_in
from models.files.weights import read_config
from models.registry import family_of
from models.target import TargetModel
from runs.drawing import image_jobs
from runs.opening import tell_family
from runs.prompt_files import text_fault
from runs.prompts import PromptItem, numbered, samples
from support.output import remark

_FROM_FLAGS = {flag: name for name, flag in ALIASES.items()} | {"samples_per_prompt": "num_images"}
SETTINGS = flags_in(EngineSettings)
_PATHS = [flag for flag, f in SETTINGS.items() if "path" in f.metadata]
CALL_ARGUMENTS = ("num_images", "seed", "output_type", "callback_on_step_end")
_NAMES = {*SETTINGS, *CALL_ARGUMENTS, "prompt", "methods", "progress_bar", "repeats"}
# What only Python's own calls have of diffusers and transformers.
_SIZE = "Use target_size=(1024, 576) when the model is loaded, if it has several sizes."
_ELSEWHERE = ELSEWHERE | {
    "height": _SIZE,
    "width": _SIZE,
    "variant": "Use torch_dtype=torch.bfloat16: files of any dtype are converted.",
    "negative_prompt": "Use negative_prompt='...' of from_pretrained, with emu3.",
    "callback": "Use callback_on_step_end=....",
    "callback_on_step_end_tensor_inputs": "Use callback_on_step_end=... alone.",
    "return_dict": "Leave it out: a call always returns an ImageOutput.",
}
_DTYPES = {"float32": "fp32", "float64": "fp64", "bfloat16": "bf16"}


@contextmanager
def python_names() -> Iterator[None]:
    """Let errors of settings name them as Python does: `cfg` or `guidance_scale`, not `--cfg`."""
    try:
        yield
    except SettingsError as error:
        error.spell = python_name
        raise


def python_name(flag: str) -> str:
    """Return what a flag is called in Python; what is none there stays a flag."""
    if flag == "config":  # the file that is given instead of a model
        return "recipe"
    return _FROM_FLAGS.get(flag, flag if flag in _NAMES else f"--{flag}")


def tell(text: str) -> None:
    """Print a remark with the names of Python."""
    remark(spelled(text, python_name))


def check_names(given: Iterable[str], allowed: Iterable[str], where: str) -> None:
    """Refuse names of settings that `where` lacks; the error says how to say the same."""
    names = sorted(allowed)
    for name in given:
        if name in names:
            continue
        if name in GONE_FLAGS:
            raise SettingsError(f"there is no such setting; {GONE_FLAGS[name]}", name)
        if name in _ELSEWHERE:
            advice = _ELSEWHERE[name]
        elif (alias := _FROM_FLAGS.get(name)) in names:
            advice = f"Use {alias}."
        elif name in CALL_ARGUMENTS:
            advice = f"Give it to a call: pipe(prompt, {name}=...)."
        elif name in SETTINGS or name in ALIASES:
            advice = "Give it to from_pretrained."
        else:
            advice = near_names(name, names) or f"It takes {one_of(names)}."
        raise SettingsError(f"{where} got an unexpected argument {name!r}. {advice}")


def as_flags(settings: Mapping[str, Any]) -> Values:
    """Return settings of Python by flag; those that are None are left out.

    dtypes and devices of torch, sizes and paths become the texts that flags take.
    """
    values: Values = {}
    names: dict[str, str] = {}  # by flag: the name that it was given by
    for name, value in settings.items():
        flag = ALIASES.get(name, name)
        if value is None:
            continue
        if flag in values:
            raise mismatch(name, f"it together with {names[flag]}", "one name of a setting")
        if isinstance(value, torch.dtype | torch.device | os.PathLike):
            value = str(value).removeprefix("torch.")
        values[flag], names[flag] = plain(value), name
    if "target_size" in values:
        values["target_size"] = _size(values["target_size"])
    if values.get("dtype") == "auto":  # the model's own
        del values["dtype"]
    if "dtype" in values:
        values["dtype"] = _dtype(values["dtype"])
    if (place := values.get("device_map", "auto")) not in ("auto", "single"):
        refuse("device_map", place, "'auto' or 'single'", f"For one device use device={place!r}.")
    return values


def _size(value: Any) -> Any:
    """Return a side, or width and height, as the flag takes them."""
    sides = value if isinstance(value, tuple | list) else (value,)
    whole = all(type(side) is int for side in sides) and 1 <= len(sides) <= 2
    return "x".join(map(str, sides)) if whole else value


def _dtype(value: Any) -> str:
    """Return what the flag calls a dtype of torch."""
    if value in _DTYPES.values():
        return value
    if value not in _DTYPES:
        advice = "Its values overflow in torch.float16; use torch.bfloat16."
        wanted = one_of(f"torch.{name}" for name in _DTYPES)
        refuse("dtype", value, wanted, advice if value in HALF else "")
    return _DTYPES[value]


def plain(value: Any) -> Any:
    """Return Python's own number or text for a single one of numpy or torch, else the value."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


def source_values(source: str | os.PathLike, given: Values) -> Values:
    """Return what a source says by flag: a target's name, a recipe's file, a folder or a hub id.

    given: the caller's own values, which may name the model.
    """
    name = str(source)
    if name in TARGETS:
        if given.get("model", name) != name:
            refuse("model", given["model"], f"{name}, as the source")
        return {"model": name} | model_recipe(name)
    if name.endswith((".yaml", ".yml")):
        recipe = read_recipe(name, of_runs())
        return family_recipe((recipe | given).get("model", "tiny")) | recipe
    if not os.path.isdir(name) and not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        expected = f"a folder, owner/name on the hub, a recipe's .yaml file, {one_of(TARGETS)}"
        raise mismatch("from_pretrained", repr(name), expected, near_names(name, TARGETS))
    model = given.get("model") or _model_in(name)
    recipe = family_recipe(model)
    tell_family(model, recipe, given, tell)
    return recipe | {"model_path": name, "model": model}


def absolute(values: Values) -> Values:
    """Return values by flag whose files here stay the same in another working folder."""
    named = {name: values[name] for name in _PATHS if isinstance(values.get(name), str)}
    paths = {name: os.path.expanduser(path) for name, path in named.items()}
    here = {name: os.path.abspath(path) for name, path in paths.items() if os.path.exists(path)}
    return values | here


def with_row(recipe: Values, given: Values) -> tuple[Values, Values]:
    """Return the values for a method that is a row of the paper, such as adt_lantern."""
    if (row := paper_row(given.get("method", ""))) is None:
        return recipe, given
    others = {name: value for name, value in given.items() if name != "method"}
    return overridden(recipe, read_recipe(row, of_runs())), others


def _model_in(path: str) -> str:
    """Return which target a folder or hub id holds, by its place, its config.json and its name."""
    for name, target in TARGETS.items():
        default = ROOT / target.folder
        same = os.path.isdir(path) and default.exists() and os.path.samefile(path, default)
        if same or f"download {path} " in target.sources["model_path"]:
            return name
    around = [name for name in TARGETS if model_place(name, path) != path]
    if len(around) == 1:  # the folder around a model's own, as `random_checkpoint` writes it
        return around[0]
    with refusing():
        folder = checkpoint_folder(path, "--model_path")
        config = read_config(folder)
    likely = targets_in(path, config, lambda: stored_names(folder))
    faults: dict[str, None] = {}  # each once
    fitting: list[str] = []
    for name in likely or TARGETS:
        try:
            family_of(name).spec(config)
            fitting.append(name)
        except ValueError as error:
            faults[str(error)] = None
    if fitting:
        others = [name for name in fitting[1:] if name != "tiny"]  # which its place tells
        if others:
            tell(f"--model {fitting[0]}: taken, though {path} may also hold {one_of(others)}")
        return fitting[0]
    if likely:
        raise SettingsError("; ".join(faults), str(folder))
    raise mismatch(path, "that of another model", f"the config.json of {one_of(TARGETS)}")


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

    num_images: int = setting("images per prompt", 1, low=1)
    seed: int | None = setting("base seed; None: another each time", low=0, high=2**63 - 1)
    output_type: str = setting(
        "what comes back",
        "pil",
        choices=("pil", "tokens"),
        advice="For arrays use np.asarray(out.images[0]); tokens are the codes of an image.",
    )
    repeats: int = setting("measurements per method", 1, low=1, high=1000)

    @property
    def base(self) -> int:
        """The base seed, drawn where none was given."""
        return secrets.randbelow(2**32) if self.seed is None else self.seed


def call_settings(**values: Any) -> CallSettings:
    """Return what a call was given; a SettingsError if it cannot be used."""
    return CallSettings.of({name: plain(value) for name, value in values.items()})


def call_jobs(items: Sequence[PromptItem], seed: Any) -> list[Job]:
    """Return the images of a call. seed: the base seed, or a list of every image's own seed."""
    if not isinstance(seed, list | tuple):
        return image_jobs(items, call_settings(seed=seed).base)
    if len(seed) != len(items):
        refuse("seed", seed, f"one seed, or a list of {len(items)}, one per image")
    seeds = [call_settings(seed=one).base for one in seed]
    return [Job(item.id, item.prompt, one) for item, one in zip(items, seeds, strict=True)]


def with_options(
    settings: EngineSettings, options: CallOptions, arguments: Iterable[str] = CALL_ARGUMENTS
) -> EngineSettings:
    """Return a pipeline's settings as a call changes them.

    arguments: names that this kind of call takes in addition to the options, for errors.
    """
    check_names(options, [*CallOptions.__annotations__, *arguments], "a call")
    if not isinstance(options.get("progress_bar", True), bool):
        refuse("progress_bar", options["progress_bar"], "True or False")
    values: Values = as_flags({k: v for k, v in options.items() if k != "progress_bar"})
    batch = values.pop("batch_size", settings.batch_size)
    sampling = settings_dict(settings.sampling) | values
    return replace(settings, batch_size=batch, sampling=SamplingSettings.of(sampling))


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
            which = f"number {number} of {len(prompts)}" if len(prompts) > 1 else ""
            raise SettingsError(str(error), Flag("prompt", which)) from error
    return samples(numbered(prompts), num_images)
