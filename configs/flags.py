"""The flags of each command, and the words of a command line as their texts; nothing is converted here.

Every word is looked at before fire sees it: fire runs a command first and complains about flags afterwards,
takes `--prompt` without a value for True, fills parameters with stray words, lets the last of two values win.
"""

import difflib
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass
from typing import ClassVar, NoReturn

from configs.acceptance import LanternSettings
from configs.benchmarking import BenchmarkSettings
from configs.evaluation import EvaluateSettings
from configs.extraction import ExtractionSettings
from configs.fields import SettingsError, allowed, check_fields, kind, setting, settings_fields
from configs.methods import AdtSettings, MethodSettings, SamplingSettings
from configs.schema import RunSettings
from configs.tools import DistanceSettings, InspectSettings
from configs.training import TrainSettings


@dataclass(frozen=True)
class PaperFlags:
    """Flag names of the paper's repository, and others that stand for settings of another name."""

    group: ClassVar[str] = "Other names (those of the paper's repository)"
    model_type: str | None = setting(
        None, "base: --method ar; eagle: --method eagle2", choices=("base", "eagle"), shown="off"
    )
    peanut: bool | None = setting(None, "--method adt", shown="off")
    static_tree: bool | None = setting(None, "--method static", shown="off")
    lantern: bool | None = setting(None, "--verifier lantern", shown="off")
    precision: str | None = setting(None, "--dtype", shown="off")
    random_seed: int | None = setting(None, "--seed", shown="off")
    set_seed: bool | None = setting(
        None, "accepted; every image has a seed of its own anyway", shown="on"
    )

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class RecipeFlags:
    """The recipe."""

    group: ClassVar[str] = "Recipe"
    config: str | None = setting(
        None,
        "YAML files of `flag: value` lines, by commas; a later one and the command line win",
        shown="none",
    )


@dataclass(frozen=True)
class MethodsFlags:
    """The methods that a benchmark compares."""

    group: ClassVar[str] = "Benchmark"
    methods: str | None = setting(
        None,
        "methods to compare, name[:flag=value...], by commas; method flags go to all they apply to",
        shown="ar,eagle2:proposal=topk,eagle2,adt:proposal=topk,adt; with --method X: ar,X",
    )
    sweep: str | None = setting(
        None,
        "YAML file of a grid of methods (configs/sweeps); each is measured beside ar; the same command continues",
        shown="off",
    )
    cells: str | None = setting(
        None, "a-b: of the sweep's cells, a (counted from 0) up to, not including, b", shown="all"
    )


_SHARED = (
    RunSettings,
    MethodSettings,
    AdtSettings,
    LanternSettings,
    SamplingSettings,
    RecipeFlags,
    PaperFlags,
)
OWNERS: dict[str, tuple[type, ...]] = {
    "generate_images": _SHARED,
    "benchmark": (MethodsFlags, BenchmarkSettings, *_SHARED),
    "evaluate": (EvaluateSettings, RecipeFlags),
    "extract_tokens": (
        ExtractionSettings,
        RunSettings,
        MethodSettings,
        AdtSettings,
        SamplingSettings,
        RecipeFlags,
    ),
    "inspect": (InspectSettings,),
    "vq_distances": (DistanceSettings,),
    "train_drafter": (TrainSettings, SamplingSettings, RecipeFlags),
}
_SUMMARIES = {
    "generate_images": "generate images from prompts; the same command again continues where it stopped",
    "benchmark": "compare methods on the same prompts and seeds; prints a table and, last, one line of JSON",
    "evaluate": "tables, image metrics and a report from run folders",
    "extract_tokens": "images and captions, or the target's own samples, to token shards: what drafters are trained on",
    "inspect": "what a checkpoint holds and lacks, and the memory that it needs; loads nothing",
    "vq_distances": "make the table of nearest latents that relaxed acceptance reads",
    "train_drafter": "train a drafter for a target; the same command again continues where it stopped",
}
# Flags of a command's settings that it has no use for.
_UNUSED = {
    "extract_tokens": (
        "samples_per_prompt",
        "sample",
        "sample_seed",
        "slice",
        "overwrite",
        "trace",
        "vq_device",
    )
}
# Flags of the paper's repository, or its relatives, that have no equal here: why, and what to use.
_GONE = {
    "start_idx": "use --slice a-b",
    "end_idx": "use --slice a-b",
    "eagle_version": "use --method static (1) or --method eagle2 (2)",
    "tree_choices": "use --method static --tree NAME",
    "drafter_top_k": "use --width",
    "grid_search": "it never had an effect",
    "tokenizer_base_path": "use --tokenizer_path",
}


def flags_of(command: str) -> dict[str, Field]:
    """All flags of a command, by name; of two with the same name, the first."""
    flags: dict[str, Field] = {}
    for owner in OWNERS[command]:
        unused = (*flags, *_UNUSED.get(command, ()))
        flags |= {name: f for name, f in settings_fields(owner).items() if name not in unused}
    return flags


def read_words(command: str, words: Sequence[str]) -> dict[str, str]:
    """The texts of the flags in the words that follow a command; a SettingsError for a word out of place."""
    flags, texts, rest = flags_of(command), {}, list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or word == "--":
            _refuse_word(word)
        name, equals, text = word[2:].partition("=")
        name = name.replace("-", "_")
        negated = _negated(name, flags) if not equals else None
        name = negated or name
        check_known(name, flags)
        if negated:
            text = "false"
        elif not equals:
            text = _value(name, flags[name], rest)
        if name in texts:
            raise SettingsError(
                f"--{name}: found twice, as {texts[name]!r} and {text!r}; allowed: once"
            )
        texts[name] = text
    return texts


def check_known(name: str, known: Mapping[str, object], where: str = "") -> None:
    """A SettingsError, with the nearest names, if `name` is not in `known`; `where`: the file of a key."""
    if name in known:
        return
    shown = f"{where}: {name}" if where else f"--{name}"
    if name in _GONE:
        raise SettingsError(f"{shown}: no such flag here; {_GONE[name]}")
    near = difflib.get_close_matches(name, known, 3, 0.6)
    hint = (
        f"did you mean {' or '.join(('' if where else '--') + n for n in near)}? " if near else ""
    )
    raise SettingsError(f"{shown}: unknown flag; {hint}allowed: {', '.join(known)}")


def help_text(command: str | None = None) -> str:
    """The help of a command, or of the whole program."""
    if command is None:
        lines = [
            "ADT-Tree: exact, fast image generation with autoregressive models",
            "",
            "Commands:",
        ]
        lines += [f"  python main.py {name:16} {text}" for name, text in _SUMMARIES.items()]
        lines += ["", "Flags: python main.py <command> --help", "Example:"]
        example = (
            'python main.py generate_images --prompt "a small red circle on a grassy background"'
        )
        return "\n".join([*lines, f"  {example} --num_images 4"])
    lines = [f"python main.py {command} --flag value ...", f"  {_SUMMARIES[command]}"]
    group, known = "", flags_of(command)
    for owner in OWNERS[command]:
        lines += ["", f"{owner.group}:"] if owner.group != group else []
        group = owner.group
        lines += [
            _help_line(name, f)
            for name, f in settings_fields(owner).items()
            if known.get(name) is f
        ]
    return "\n".join(lines)


def _help_line(name: str, f: Field) -> str:
    switch = kind(f) is bool
    shown = f.metadata.get("shown") or (("off", "on")[f.default] if switch else f.default)
    choices = f" [{', '.join(f.metadata['choices'])}]" if "choices" in f.metadata else ""
    left = f"  --{name}" + ("" if switch else {int: " N", float: " X", str: " TEXT"}[kind(f)])
    text = f"{f.metadata['help']}{choices} (default: {shown})"
    return "\n".join(
        textwrap.wrap(f"{left:28} {text}", 110, subsequent_indent=" " * 29, break_on_hyphens=False)
    )


def _is_flag(word: str) -> bool:
    """Whether a word cannot be the value of the flag before it: -1 and "-5 degrees" can."""
    return re.match(r"--|-[a-zA-Z]", word) is not None


def _negated(name: str, flags: Mapping[str, Field]) -> str | None:
    """The switch that `noNAME` or `no_NAME` turns off."""
    target = name.removeprefix("no").removeprefix("_")
    is_switch = (
        name not in flags
        and name.startswith("no")
        and target in flags
        and kind(flags[target]) is bool
    )
    return target if is_switch else None


def _value(name: str, f: Field, rest: list[str]) -> str:
    """The text of a flag written without '=': the next word, which it takes off `rest`; of a switch: true."""
    if kind(f) is bool:
        return rest.pop(0) if rest and rest[0].lower() in ("true", "false") else "true"
    if not rest or _is_flag(rest[0]):
        found = f"no value but {rest[0]!r}" if rest else "no value"
        more = f"; a value that starts with a dash is written --{name}=VALUE" if rest else ""
        raise SettingsError(f"--{name}: found {found}; allowed: {allowed(f)}{more}")
    return rest.pop(0)


def _refuse_word(word: str) -> NoReturn:
    if word.startswith("-") and word not in ("-", "--"):
        raise SettingsError(
            f"{word}: unknown flag; flags are written with two dashes: --flag value or --flag=value"
        )
    raise SettingsError(
        f'{word!r}: a word without a flag; a prompt with blanks needs quotes: --prompt "a red circle"'
    )
