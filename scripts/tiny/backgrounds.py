"""Show where a method gains: tau by the background that a prompt of the tiny model names.

`python -m scripts.tiny.backgrounds --runs outputs/graft,outputs/adt`
"""

from collections import defaultdict
from collections.abc import Sequence

from configs.schema import CLASSIFIER, ROOT
from eval.metrics.attribute_classifier import AttributeClassifier
from eval.metrics.attributes import Attributes, Labels
from eval.report.run import Run, read_runs
from eval.report.speed import tau
from support.json_files import Line
from support.script import run_script
from support.tables import Table


def backgrounds(*, runs: str) -> None:
    """Print the table in Markdown.

    Args:
        runs: folders of generate_images with the same prompts and seeds, separated by commas.
    """
    labels = AttributeClassifier.load(ROOT / "ckpts/tiny" / CLASSIFIER).labels
    print(table(read_runs(runs.split(",")), labels), end="")


def table(runs: Sequence[Run], labels: Labels) -> str:
    """Return a row per kind of background, the greatest tau of the first run first, and of all."""
    groups = [by_background(run, labels) for run in runs]
    kinds = sorted(groups[0], key=lambda kind: tau(groups[0][kind]), reverse=True)
    rows = [_row(kind, [group[kind] for group in groups]) for kind in kinds]
    rows.append(_row("all", [list(run.records.values()) for run in runs]))
    columns = ("background", "images", *(run.name for run in runs))
    return Table(columns, tuple(rows)).markdown()


def _row(name: str, records: Sequence[Sequence[Line]]) -> tuple[str, ...]:
    return (name, str(len(records[0])), *(f"{tau(own):.2f}" for own in records))


def by_background(run: Run, labels: Labels) -> dict[str, list[Line]]:
    """Return the records of a run by the background in their prompts; ValueError for other
    prompts.
    """
    groups = defaultdict(list)
    for record in run.records.values():
        groups[Attributes.from_prompt(record["prompt"], labels).background_kind].append(record)
    return groups


if __name__ == "__main__":
    run_script(backgrounds)
