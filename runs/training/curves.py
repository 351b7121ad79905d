"""The curves of a training, from its log: a picture, and scalars for TensorBoard."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from support.json_lines import Line

PANELS = ("loss", "hit_rate", "tau")  # of the picture: curves whose names begin so
YARDSTICK = "tau/jacobi"
_OF_LINE = {"loss": "loss/training", "held_out_loss": "loss/held_out", "lr": "lr"}


def scalars(line: Line) -> dict[str, float]:
    """Return the figures of a line of the log, by the name of their curve."""
    found = {name: line[key] for key, name in _OF_LINE.items() if key in line}
    for level in line.get("levels", ())[:1]:
        found["hit_rate/first_level"] = level["topk"]["hit_1"]
        found["total_variation"] = level["total_variation"]
    if decoding := line.get("decoding"):
        found |= {"tau/drafter": decoding["tau"], YARDSTICK: decoding["tau_jacobi"]}
        found["speed_up"] = decoding["speedup"]
    return found


def draw_curves(lines: Iterable[Line], output: Path) -> None:
    """Draw the lines of a log; output: a file without its ending, for .png and .pdf."""
    from support.figures import Figure, save_figure  # matplotlib is an extra's

    curves: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for line in lines:
        for name, value in scalars(line).items():
            curves[name][line["step"]] = value
    shown = {title: [n for n in curves if n.startswith(f"{title}/")] for title in PANELS}
    shown = {title: names for title, names in shown.items() if names}
    figure = Figure(figsize=(3.2 * len(shown), 2.8))
    panels = figure.subplots(1, len(shown), squeeze=False, sharex=True)[0]
    for panel, (title, names) in zip(panels, shown.items(), strict=True):
        for number, name in enumerate(names):
            steps, values = zip(*curves[name].items(), strict=True)
            label, color = name.removeprefix(f"{title}/").replace("_", " "), f"C{number}"
            if name == YARDSTICK:
                panel.axhline(values[-1], ls="--", lw=1, color=color, label=label)
            else:
                marks = "-" if name == "loss/training" else "o-"
                panel.plot(steps, values, marks, lw=1, ms=3, color=color, label=label)
        panel.set(xlabel="step", ylabel=title.replace("_", " "))
        panel.legend(fontsize=6)
    losses = panels[0]
    losses.set_yscale("log")  # since the first ones are large
    losses.yaxis.set_major_formatter("{x:g}")
    losses.yaxis.set_minor_formatter("{x:g}")
    losses.tick_params(axis="y", which="minor", labelsize=6)
    save_figure(figure, output)


class Board:
    """Writes the figures of a log into a folder for TensorBoard."""

    def __init__(self, folder: Path, lines: Iterable[Line]):
        """lines: of earlier commands; TensorBoard shows them instead of what these wrote."""
        from torch.utils.tensorboard import SummaryWriter  # tensorboard is an extra's

        self.writer = SummaryWriter(str(folder), purge_step=0)
        for line in lines:
            self.add(line)

    def add(self, line: Line) -> None:
        """Write a line at once, so that a kill leaves nothing unwritten."""
        for name, value in scalars(line).items():
            self.writer.add_scalar(name, value, line["step"], line.get("time"))
        self.writer.flush()
