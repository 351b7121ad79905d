"""Names of the paper's own repository and of Python's libraries, and what to write here."""

import re
import shlex
from collections.abc import Container, Mapping, Sequence

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
# Names in Python's libraries -> flags.
ALIASES = {"guidance_scale": "cfg", "torch_dtype": "dtype"}
_SIZE = "Use --target_size=1024x576, if the model has several sizes."
# Arguments of diffusers and transformers, and how to say the same by flags; Python's names of them
# are put in there.
ELSEWHERE = {
    "generator": "Use --seed=7: every image has a generator of its own, made from the seed.",
    "num_images_per_prompt": "Use --samples_per_prompt=4.",
    "num_return_sequences": "Use --samples_per_prompt=4.",
    "height": _SIZE,
    "width": _SIZE,
    "num_inference_steps": "Leave it out: an image takes as many rounds as its tokens need.",
    "latents": "Use --seed=7 for the same image again; an image has tokens, no latents.",
    "prompt_embeds": "Use --prompt='...'.",
    "revision": "Use `hf download owner/name --revision NAME --local-dir FOLDER`, then the folder.",
    "variant": "Use --dtype=bf16: files of any dtype are converted.",
    "cache_dir": "Use HF_HOME=FOLDER in the environment.",
    "local_files_only": "Use HF_HUB_OFFLINE=1 in the environment.",
    "use_safetensors": "Leave it out: safetensors are read first, then .bin files.",
    "do_sample": "Use --temperature=0 for argmax, 1 for sampling.",
}
_ON_THE_COMMAND_LINE = (
    ELSEWHERE
    | {name: f"Use --{flag}." for name, flag in ALIASES.items()}
    | {"host": "Use --share_on."}
)
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


def said_here(name: str, flags: Container[str]) -> str:
    """Return how to say a name of Python's libraries by these flags; "" where they do not."""
    hint = _ON_THE_COMMAND_LINE.get(name, "")
    ours = re.match(r"Use --(\w+)", hint)
    return "" if ours and ours[1] not in flags else hint


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
