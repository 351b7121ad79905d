"""Refuse what `generate_images` would refuse, before the hours of a speed table.

`python -m scripts.paper.refused --runs="--config configs/tiny.yaml --prompt x --output_dir out"`
"""

import shlex

from configs.command_line import read_words
from configs.fields import mismatch
from runs.commands import run_settings
from runs.prompts import prompt_items
from runs.run_folder import RunFolder
from support.script import run_script


def refuse_runs(*, runs: str) -> None:
    """Raise a SettingsError if prompts are too few, or a folder has or gets other images.

    Args:
        runs: words of generate_images, a line per run.
    """
    folders = set()
    for line in runs.splitlines():
        settings = run_settings(read_words("generate_images", shlex.split(line)))
        if settings.output_dir in folders:
            expected = "each row and temperature once, and recipes of different names"
            raise mismatch("METHODS, TEMPERATURES", f"{settings.output_dir} twice", expected)
        folders.add(settings.output_dir)
        with RunFolder(settings) as folder:
            folder.check_prompts(prompt_items(settings))


if __name__ == "__main__":
    run_script(refuse_runs)
