"""Refuse what `generate_images` would refuse, before the hours of a speed table.

`python -m scripts.paper.refused --runs="--config configs/tiny.yaml --prompt x --output_dir out"`
"""

import shlex

from configs.command_line import read_words
from runs.commands import run_settings
from runs.prompts import prompt_items
from runs.run_folder import RunFolder
from support.script import run_script


def refuse_runs(*, runs: str) -> None:
    """Raise a SettingsError if there are fewer prompts, or other images in a folder.

    Args:
        runs: words of generate_images, a line per run.
    """
    for line in runs.splitlines():
        settings = run_settings(read_words("generate_images", shlex.split(line)))
        with RunFolder(settings) as folder:
            folder.check_prompts(prompt_items(settings))


if __name__ == "__main__":
    run_script(refuse_runs)
