"""Flags of the paper's own repository, and what to write here."""

import shlex
from collections.abc import Mapping, Sequence

from configs.fields import SettingsError

_RENAMED = {
    "precision": "dtype",
    "random_seed": "seed",
    "tree_choices": "tree",
    "drafter_top_k": "width",
    "tokenizer_base_path": "tokenizer_path",
}
GONE_FLAGS = {flag: f"use --{ours}" for flag, ours in _RENAMED.items()} | {
    "model_type": "use --method NAME: base is ar, eagle is eagle2",
    "peanut": "use --method adt",
    "static_tree": "use --method static",
    "lantern": "use --verifier lantern --proposal topk",
    "set_seed": "leave it out: every image has a seed of its own",
    "start_idx": "use --slice start-stop",
    "end_idx": "use --slice start-stop",
    "eagle_version": "use --method static (1) or --method eagle2 (2)",
    "tree_choices": "use --method static --tree NAME",
    "grid_search": "it never had an effect",
}
# The flag that stands for them here, and its values by theirs; a later one wins.
_VALUES: dict[str, tuple[str, Mapping[str, str]]] = {
    "model_type": ("method", {"base": "ar", "eagle": "eagle2"}),
    "eagle_version": ("method", {"1": "static", "2": "eagle2"}),
}
_SWITCHES = {
    "static_tree": {"method": "static"},
    "peanut": {"method": "adt"},
    "lantern": {"verifier": "lantern", "proposal": "topk"},  # its drafts
}


def refuse_theirs(command: str, words: Sequence[str]) -> None:
    """Refuse the words of a command that have a flag of the paper's repository; say ours."""
    given: dict[str, str | None] = {}  # None: a switch
    name = ""
    for word in words:
        if word.startswith("--"):
            name, equals, given_text = word[2:].partition("=")
            name = name.replace("-", "_")
            given[name] = given_text if equals else None
        elif name:
            given[name] = word if given[name] is None else f"{given[name]} {word}"
    if given.keys().isdisjoint(GONE_FLAGS):
        return
    flags = {
        _RENAMED.get(n, n): text
        for n, text in given.items()
        if n in _RENAMED or n not in GONE_FLAGS
    }
    for name, (flag, values) in _VALUES.items():
        if (text := given.get(name)) is not None:
            flags[flag] = values.get(text, text)
    for name, values in _SWITCHES.items():
        if name in given and (given[name] or "true").lower() == "true":
            flags |= values
    if "start_idx" in given or "end_idx" in given:
        flags["slice"] = f"{given.get('start_idx') or 0}-{given.get('end_idx') or 'END'}"
    pairs = ([f"--{n}"] if text is None else [f"--{n}", text] for n, text in flags.items())
    line = shlex.join(word for pair in pairs for word in pair)
    text = "flags of the paper's repository are others here. Type this"
    raise SettingsError(f"{text}: `python main.py {command} {line}`")
