"""The page's controls and what they do."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import gradio as gr
from gradio.components import Component

from adt_tree.page.drawing import Painter, Wish
from adt_tree.page.stage import stage_html
from configs.fields import SettingsError
from configs.method_table import METHODS

HERE = Path(__file__).parent
# The fonts are the visitor's own.
THEME = gr.themes.Base(
    primary_hue="emerald",
    neutral_hue="slate",
    radius_size="lg",
    font=["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"],
    font_mono=["ui-monospace", "SFMono-Regular", "Menlo", "monospace"],
)
RESTING = ("idle", "done", "refused")  # states in which there is nothing to stop
EXAMPLES = (
    "a large red circle on a plain blue background",
    "a small yellow star on a grassy background",
    "two green triangles on a striped background",
)
LABELS = {
    "jacobi": "jacobi: a window of drafts, no drafter",
    "recall": "recall: draft trees, no drafter",
    "eagle_recall": "eagle_recall: draft trees of drafter and recall",
    "adt": "adt: a draft tree that adapts",
    "eagle2": "eagle2: a draft tree of fixed size",
    "static": "static: a fixed draft tree",
}
_INTRO = """# The same image, in fewer passes
Plain decoding generates one token per forward pass. A fast method drafts several tokens and
verifies them in one forward pass. With the same seed, both generate the same tokens.
"""


@dataclass(frozen=True)
class Controls:
    """What a visitor sets; `wishes` in the order of the fields of `Wish`."""

    prompt: gr.Textbox
    draw: gr.Button
    stop: gr.Button
    wishes: list[Component]


def build_page(painter: Painter, drafted: bool, visitors: int) -> gr.Blocks:
    """Return the page.

    Args:
        painter: draws for it.
        drafted: whether methods with a drafter's weights can be chosen.
        visitors: how many may wait.
    """
    with gr.Blocks(analytics_enabled=False, title="ADT-Tree") as page:
        gr.Markdown(_INTRO, elem_id="intro")
        with gr.Row(equal_height=False):
            with gr.Column(scale=2, min_width=280):
                controls = _controls(painter, drafted)
            with gr.Column(scale=5, min_width=340):
                stage = gr.HTML(
                    json.dumps(painter.blank),
                    html_template=stage_html(),
                    js_on_load=(HERE / "stage.js").read_text("utf-8"),
                    apply_default_css=False,
                    elem_id="stage",
                )
        _connect(controls, stage, painter)
    # one at a time: two images at once would slow each other, and the race shows who is faster
    return page.queue(max_size=visitors, default_concurrency_limit=1)


def _controls(painter: Painter, drafted: bool) -> Controls:
    """Return the controls, placed where gradio is at."""
    prompt = gr.Textbox(EXAMPLES[0], label="Prompt", lines=2, max_lines=5)
    names = fast_methods(drafted)
    chosen = painter.pipe.method if painter.pipe.method in names else names[0]
    choices = [(LABELS.get(name, name), name) for name in names]
    method = gr.Dropdown(choices, value=chosen, label="Fast method")
    with gr.Row():
        draw = gr.Button("Generate", variant="primary", min_width=100)
        stop = gr.Button("Stop", min_width=100)
    slow = gr.Checkbox(False, label="Slow: show every round")
    with gr.Accordion("Settings", open=False):
        settings = _settings(painter)
    gr.Examples([[text] for text in EXAMPLES], [prompt], label="Examples")
    return Controls(prompt, draw, stop, [prompt, method, *settings, slow])


def fast_methods(drafted: bool) -> list[str]:
    """Return the methods to choose from. drafted: whether those with a drafter's weights are."""
    ordered = dict.fromkeys([*LABELS, *METHODS])
    fitting = [name for name in ordered if drafted or not METHODS[name].drafted]
    return [name for name in fitting if METHODS[name].speculative]


def _settings(painter: Painter) -> list[Component]:
    """Return the controls of seed, temperature, guidance scale, top-k and draft tokens."""
    usual = painter.pipe.settings.sampling
    return [
        gr.Number(0, label="Seed", precision=0, minimum=0),
        gr.Slider(0, max(2, usual.temperature), usual.temperature, step=0.05, label="Temperature"),
        gr.Slider(
            min(1, usual.cfg), max(10, usual.cfg), usual.cfg, step=0.5, label="Guidance scale"
        ),
        gr.Number(usual.top_k, label="Top-k, 0 = off", precision=0, minimum=0),
        gr.Slider(0, 64, 0, step=1, label="Draft tokens per forward pass, 0 = default"),
    ]


def _connect(controls: Controls, stage: gr.HTML, painter: Painter) -> None:
    """Let the controls draw on the stage, one visitor after the other."""
    quiet = {"show_progress": "hidden", "api_visibility": "private"}
    events = []
    for listen in (controls.draw.click, controls.prompt.submit):
        # not queued, so that a visitor who has to wait sees it at once
        waits = listen(with_state("waiting"), stage, stage, queue=False, **quiet)
        inputs = [stage, *controls.wishes]
        events.append(waits.then(drawing(painter), inputs, stage, concurrency_limit=1, **quiet))
    controls.stop.click(with_state("stopped"), stage, stage, cancels=events, queue=False, **quiet)


def with_state(state: str) -> Callable[[str], str]:
    """Return a function that shows the stage as it is, in another state."""

    def changed(value: str) -> str:
        shown = json.loads(value)
        if state == "stopped" and shown["state"] in RESTING:
            return value
        return json.dumps(shown | {"state": state, "verdict": None})

    return changed


def drawing(painter: Painter) -> Callable[..., Iterator[str]]:
    """Return the function that draws what a visitor asks for, on a stage that shows `before`."""

    def drawn(before: str, *values: object) -> Iterator[str]:
        try:
            yield from map(json.dumps, painter.draw(Wish(*values)))
        except (SettingsError, FloatingPointError) as error:
            refused = {"state": "refused", "why": str(error)}
            yield json.dumps(json.loads(before) | refused)

    return drawn
