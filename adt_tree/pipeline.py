"""`Pipeline`: a loaded model that turns prompts into images."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any, NoReturn, Self, Unpack

import torch
from PIL import Image
from tqdm import tqdm

from adt_tree.output import ImageOutput, ImageStats, MethodTable
from adt_tree.sources import (
    SETTINGS,
    CallOptions,
    StepCallback,
    absolute,
    as_flags,
    call_items,
    call_jobs,
    call_settings,
    check_names,
    plain,
    python_names,
    source_values,
    tell,
    with_options,
    with_row,
)
from adt_tree.stream import StreamStep, streamed
from adt_tree.weights import Weights
from configs.fields import Values, flags_in, mismatch, refuse
from configs.gone import ALIASES
from configs.methods import MethodSettings
from configs.model import EngineSettings, SamplingSettings
from configs.recipes import listed_method, method_flags, overridden
from eval.bench.bench import Bench
from eval.bench.measurements import Measurements
from eval.bench.table import table
from runs.drawing import Drawn, image_jobs
from runs.measure import BASELINE, warm_up
from runs.opening import engine_settings
from runs.prompts import PromptItem
from runs.tuned import lacks_drafter, with_usual_method
from support.devices import pick_device
from support.output import remark
from support.progress import Progress, plural

# What another pipeline on the same weights may change.
_LIGHT = {*method_flags(), *flags_in(SamplingSettings), "batch_size", "guidance_scale"}
# Methods of pipelines and models in other libraries, and how to say the same here.
_ELSEWHERE = {
    "cuda": "to('cuda')",
    "cpu": "to('cpu')",
    "half": "to(torch.bfloat16)",
    "float": "to(torch.float32)",
    "bfloat16": "to(torch.bfloat16)",
    "double": "to(torch.float64)",
    "enable_model_cpu_offload": "from_pretrained(..., device_map='auto'), or quantize='int8'",
    "enable_sequential_cpu_offload": "from_pretrained(..., device_map='auto'), or quantize='int8'",
    "enable_attention_slicing": "from_pretrained(..., cfg_mode='sequential')",
    "enable_xformers_memory_efficient_attention": "nothing: attention saves memory already",
    "components": "Pipeline.from_pipe(pipe, method=...), which shares the weights",
    "save_pretrained": "the folder that it was read from; a pipeline changes no weights",
}
# What tqdm takes, without what a call counts.
_BAR = {*signature(tqdm.__init__).parameters} - {"self", "iterable", "total", "kwargs"}


class Pipeline:
    """A model that turns prompts into images, by any method, and says what they cost.

    Calls from several threads are safe: rounds take turns. Nothing is global, so several pipelines
    live side by side; those made by `from_pipe` share their weights.
    """

    def __init__(self, recipe: Values, given: Values, weights: Weights | None = None):
        """Load the model of values by flag; users call `from_pretrained`."""
        self._recipe, self._given = recipe, given
        self.settings: EngineSettings = engine_settings(recipe, given)
        self.weights = Weights(self.settings) if weights is None else weights
        self._bar: dict[str, Any] = {}

    @classmethod
    def from_pretrained(
        cls,
        source: str | os.PathLike = "tiny",
        *,
        method: str | None = None,
        torch_dtype: torch.dtype | str | None = None,
        device: torch.device | str | None = None,
        progress_bar: bool = True,
        **settings: Any,
    ) -> Self:
        """Load a model.

        Args:
            source: a folder, owner/name on the Hugging Face hub, a recipe's .yaml file, or the name
                of a model, such as tiny or anole.
            method: ar (plain decoding), static, eagle2, adt (default), jacobi (default of a model
                without a drafter), recall, block, eagle_recall; auto: what `adt-tree tune` found
                for this model, settings and machine, and the default if it did.
            torch_dtype: torch.float32, torch.bfloat16 or torch.float64; by default that of the
                model's recipe, whose guidance and sampling are the default as well.
            device: where it computes; by default on a GPU if there is one.
            progress_bar: whether calls show one; `set_progress_bar_config` says how.
            settings: flags of `adt-tree generate_images` that concern model, machine, sampling and
                method, such as drafter_path, batch_size, top_k, nodes or adt_beta.

        Raises:
            SettingsError: a setting is unknown or cannot be used, or a file is missing, damaged or
                does not fit; names it and says what is allowed.
        """
        named = {"method": method, "torch_dtype": torch_dtype, "device": device} | settings
        with python_names():
            check_names(named, [*SETTINGS, *ALIASES, "progress_bar"], "from_pretrained")
            given = as_flags(named)
            recipe = source_values(source, given)
            recipe, given = with_usual_method(*with_row(recipe, given), tell)
            # a drafter, or the model for another device, may be read much later
            pipe = cls(absolute(recipe), absolute(given))
        pipe.set_progress_bar_config(disable=not progress_bar)
        return pipe

    @classmethod
    def from_pipe(cls, pipe: "Pipeline", **settings: Any) -> Self:
        """Return a pipeline of another method or sampling on the weights of `pipe`.

        Raises:
            SettingsError: as `from_pretrained`; files, dtype and device are the other pipeline's.
        """
        with python_names():
            check_names(settings, _LIGHT, "from_pipe")
            # As a recipe: another method then drops what was set for the old one.
            recipe = overridden(pipe._recipe, pipe._given)
            other = cls(*with_row(recipe, as_flags(settings)), pipe.weights)
        other.set_progress_bar_config(**pipe._bar)
        return other

    def __repr__(self) -> str:
        model, dtype = self.settings.model_path, self.settings.dtype
        return f"Pipeline({model!r}, method={self.method!r}, {dtype}, {self.device})"

    @property
    def method(self) -> str:
        """The name of the method that decodes."""
        return self.settings.method.method

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return self.weights.target.device

    @property
    def dtype(self) -> torch.dtype:
        """The number type that the model computes in."""
        return self.weights.target.dtype

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of an image's tokens."""
        return self.weights.target.grid.rows, self.weights.target.grid.columns

    def __getattr__(self, name: str) -> NoReturn:
        """Raise an AttributeError, which says how other libraries' methods are called here."""
        advice = f"; use {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
        raise AttributeError(f"'Pipeline' object has no attribute {name!r}{advice}")

    def to(
        self,
        *where: torch.device | torch.dtype | str,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Self:
        """Put the model on a device or into a dtype, and return the pipeline.

        Weights are laid out for where they compute as they are read, so a change reads them again;
        other pipelines keep theirs. Nothing happens if the model is there already.
        """
        where = (*where, *(one for one in (device, dtype) if one is not None))
        values: dict[str, Any] = {
            "dtype" if isinstance(one, torch.dtype) else "device": one for one in where
        }
        with python_names():
            if len(values) < len(where):
                raise mismatch("to", repr(where), "a device, a dtype or both")
            given = self._given | as_flags(values)
            settings = engine_settings(self._recipe, given)
            same = pick_device(settings.device) == self.device
            if not same or settings.dtype != self.settings.dtype:
                self.weights = Weights(settings)
            self.settings, self._given = settings, given
        return self

    def set_progress_bar_config(self, **options: Any) -> None:
        """Set what tqdm is called with, such as disable=True or leave=False."""
        check_names(options, _BAR, "set_progress_bar_config")
        self._bar |= options

    def __call__(
        self,
        prompt: str | Sequence[str],
        *,
        num_images: int = 1,
        seed: int | Sequence[int] | None = None,
        callback_on_step_end: StepCallback | None = None,
        output_type: str = "pil",
        **options: Unpack[CallOptions],
    ) -> ImageOutput:
        """Generate images.

        Args:
            prompt: a text, or several.
            num_images: per prompt.
            seed: an image's own seed follows from it, the prompt and the image's number, as on the
                command line: the same seed gives the same tokens there. None: another each time. A
                list has the own seed of every image, as `stats` shows it.
            callback_on_step_end: called after every round; see `StepCallback`. What it raises ends
                the call.
            output_type: "pil", or "tokens" for codes without images.
            options: guidance_scale, temperature, top_k, top_p, batch_size, progress_bar.

        Raises:
            SettingsError: an argument cannot be used; names it and says what is allowed.
        """
        with python_names():
            call = call_settings(num_images=num_images, output_type=output_type)
            settings = with_options(self.settings, options)
            if not (callback_on_step_end is None or callable(callback_on_step_end)):
                refuse("callback_on_step_end", callback_on_step_end, "a function")
            items = call_items(self.weights.target, prompt, call.num_images)
            jobs = {job.id: job for job in call_jobs(items, seed)}
            made = self._made(settings, items)
            steps = self.weights.draw(settings, [jobs[id] for id in dict.fromkeys(made.values())])
        done: dict[str, Drawn] = {}
        shown = {"unit": "token", "desc": self.method} | self._bar
        total, tokens = len({*made.values()}) * self.weights.target.grid.tokens, 0
        with tqdm(total=total, **shown | {"disable": not self._shows(options)}) as bar:
            for number, step in enumerate(steps):
                # an image's first token comes with its prefill, before its first round
                new = sum(stats.accepted + 1 + (stats.round == 0) for stats in step.rounds)
                tokens += new
                bar.update(new)
                done |= {drawn.image.job.id: drawn for drawn in step.finished}
                if callback_on_step_end is not None:
                    callback_on_step_end(self, number, tokens, {"rounds": step.rounds})
        drawn = [
            replace(done[made[id]], image=replace(done[made[id]].image, job=job))
            for id, job in jobs.items()
        ]
        return ImageOutput(
            [Image.fromarray(one.pixels) for one in drawn] if call.output_type == "pil" else [],
            torch.stack([one.image.codes for one in drawn]),
            [ImageStats.of(one) for one in drawn],
        )

    def _made(self, settings: EngineSettings, items: Sequence[PromptItem]) -> dict[str, str]:
        """Return, by image, which one is generated for it: at temperature 0 one of a prompt."""
        if not settings.repeats:
            return {item.id: item.id for item in items}
        first: dict[str, str] = {}
        made = {item.id: first.setdefault(item.prompt, item.id) for item in items}
        if len(first) < len(items):
            remark("temperature 0: all images of a prompt are the same; each is generated once")
        return made

    def stream(
        self, prompt: str, *, seed: int | None = None, **options: Unpack[CallOptions]
    ) -> Iterator[StreamStep]:
        """Generate one image and yield after every round; closing the iterator stops it.

        The tokens are those of `pipe(prompt, seed=seed)`. Arguments and errors as there; errors
        come at once, not with the first round.
        """
        with python_names():
            if not isinstance(plain(prompt), str):
                refuse("prompt", prompt, "one text")
            call = call_settings(seed=seed)
            settings = with_options(self.settings, options, ["seed"])
            jobs = image_jobs(call_items(self.weights.target, prompt, 1), call.base)
            return streamed(self.weights, settings, jobs)

    def compare(
        self,
        prompt: str | Sequence[str],
        methods: Sequence[str] | None = None,
        *,
        num_images: int = 1,
        seed: int = 0,
        repeats: int = 1,
        **options: Unpack[CallOptions],
    ) -> MethodTable:
        """Measure methods on the same prompts and seeds, next to plain decoding.

        Other calls on these weights wait until it is done.

        Args:
            prompt, num_images, seed, options: as of a call.
            methods: names, or name:flag=value:..., such as adt:nodes=9; this pipeline's own method
                has its own settings. By default that method; of a pipeline with ar, adt if the
                model has a drafter, else jacobi.
            repeats: measurements per method; the table shows medians.

        Raises:
            SettingsError: as a call.
        """
        with python_names():
            call = call_settings(num_images=num_images, seed=seed, repeats=repeats)
            arguments = ("methods", "num_images", "seed", "repeats")
            settings = with_options(self.settings, options, arguments)
            items = call_items(self.weights.target, prompt, call.num_images)
            made = self._made(settings, items)
            jobs = image_jobs([item for item in items if made[item.id] == item.id], call.base)
            entries = [self._drafting()] if methods is None else methods
            settings, listed = self._compared(entries, settings)
            with self.weights.lock:
                session = self.weights.session(settings)
                what = f"measuring {plural(len(listed), 'method')} on {plural(len(jobs), 'image')}"
                total = len(listed) * len(jobs) * call.repeats
                with Progress(what, total, shown=self._shows(options)) as shown:
                    warm = partial(warm_up, jobs=jobs)
                    bench = Bench(session, Measurements(None, settings), shown, warm)
                    rows = bench.rows(listed, jobs, call.repeats)
        return MethodTable(rows, table(rows))

    def _compared(
        self, entries: Sequence[str], settings: EngineSettings
    ) -> tuple[EngineSettings, tuple[MethodSettings, ...]]:
        """Return plain decoding and the methods listed, and settings that load their drafter."""
        if isinstance(entries, str) or not entries or not all(isinstance(e, str) for e in entries):
            refuse("methods", entries, 'a list of names, such as ["ar", "adt"]')
        usual = settings.method
        listed = [usual if e == usual.method else listed_method(e, {}, "methods") for e in entries]
        drafted = next((method for method in listed if method.drafted), None)
        if drafted is not None and not usual.drafted:
            other = engine_settings(self._recipe | self._given, {"method": drafted.method})
            sampling, batch = settings.sampling, settings.batch_size
            settings = replace(other, sampling=sampling, batch_size=batch)
        return settings, tuple(dict.fromkeys([BASELINE, *listed]))

    def _drafting(self) -> str:
        """Return the pipeline's method, or for ar one that works with the files that are there."""
        if self.settings.method.speculative:
            return self.method
        return "jacobi" if lacks_drafter(self._recipe | self._given) else "adt"

    def _shows(self, options: Mapping[str, Any]) -> bool:
        return options.get("progress_bar", not self._bar.get("disable"))
