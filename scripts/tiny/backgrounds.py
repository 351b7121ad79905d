"""Where a method gains: `python -m scripts.tiny.backgrounds --runs outputs/graft,outputs/adt`.

Prints a Markdown table of tokens per round (tau) by the background that a prompt of the tiny model names.
"""

from collections import defaultdict
from collections.abc import Sequence

from configs.schema import CLASSIFIER, ROOT
from eval.metrics.attributes import AttributeClassifier, Attributes, Labels
from eval.report.runs import Run, read_runs
from runs.run_folder import Line
from support.script import run_script


def backgrounds(*, runs: str) -> None:
    """Print the table.

    Args:
        runs: folders of generate_images with the same prompts and seeds, by commas.
    """
    labels = AttributeClassifier.load(ROOT / "ckpts/tiny" / CLASSIFIER).labels
    print(table(read_runs(runs.split(",")), labels))


def table(runs: Sequence[Run], labels: Labels) -> str:
    """A row per kind of background, first the one with the greatest tau in the first run; the last row is of all."""
    groups = [by_background(run, labels) for run in runs]
    kinds = sorted(groups[0], key=lambda kind: tau(groups[0][kind]), reverse=True)
    rows = [["background", "images", *(run.name for run in runs)], ["---"] * (2 + len(runs))]
    for kind in kinds:
        rows.append(
            [kind, str(len(groups[0][kind])), *(f"{tau(group[kind]):.2f}" for group in groups)]
        )
    everything = [list(run.records.values()) for run in runs]
    rows.append(["all", str(len(everything[0])), *(f"{tau(lines):.2f}" for lines in everything)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def by_background(run: Run, labels: Labels) -> dict[str, list[Line]]:
    """The records of a run by the background that their prompts name; ValueError for other prompts."""
    groups = defaultdict(list)
    for record in run.records.values():
        groups[Attributes.from_prompt(record["prompt"], labels).background_kind].append(record)
    return groups


def tau(records: Sequence[Line]) -> float:
    """Tokens decided in rounds / rounds; the prefill decides an image's first token."""
    return sum(line["tokens"] - 1 for line in records) / sum(
        line["target_forwards"] - 1 for line in records
    )


if __name__ == "__main__":
    run_script(backgrounds)
