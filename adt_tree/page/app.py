"""The page's controls and what they do."""

import json
from collections.abc import Iterator
from pathlib import Path

import gradio as gr

from adt_tree.page.drawing import Painter, Wish
from configs.fields import SettingsError
from configs.method_table import METHODS

HERE = Path(__file__).parent
EXAMPLES = (
    "a large red circle on a plain blue background",
    "a small yellow star on a grassy background",
    "two green triangles on a striped background",
)
_ABOUT = {
    "graft": "graft: a tree and a window",
    "jacobi": "jacobi: a window, no drafter",
    "adt": "adt: a tree that adapts",
    "marginal": "marginal: a tree by its cost",
    "eagle2": "eagle2: a tree of fixed size",
    "static": "static: always the same tree",
}
_INTRO = """# The same image, in fewer passes
Plain decoding asks the model for one token at a time. A fast method drafts several tokens, and one
pass of the model checks all of them. Both start from the same seed, and the tokens come out equal.
"""


def stopped(value: str) -> str:
    """Return the stage's value after Stop: as it is, but no longer drawing."""
    shown = json.loads(value)
    state = shown["state"] if shown["state"] in ("idle", "done") else "stopped"
    return json.dumps(shown | {"state": state})


def build_page(painter: Painter, drafted: bool, visitors: int) -> gr.Blocks:
    """Return the page.

    Args:
        painter: draws for it.
        drafted: whether methods with a drafter's weights can be chosen.
        visitors: how many may wait.
    """
    sampling, first = painter.pipe.settings.sampling, painter.pipe.method
    names = [name for name, entry in METHODS.items() if name in _ABOUT]
    names = [name for name in _ABOUT if name in names and (drafted or not METHODS[name].drafted)]
    with gr.Blocks(analytics_enabled=False, title="ADT-Tree") as page:
        gr.Markdown(_INTRO, elem_id="intro")
        with gr.Row(equal_height=False):
            with gr.Column(scale=2, min_width=280):
                prompt = gr.Textbox(EXAMPLES[0], label="Prompt", lines=2, elem_id="prompt")
                method = gr.Dropdown(
                    [(_ABOUT[name], name) for name in names],
                    value=first if first in names else names[0],
                    label="Fast method",
                )
                with gr.Row():
                    draw = gr.Button("Draw", variant="primary", min_width=100, elem_id="draw")
                    stop = gr.Button("Stop", min_width=100, elem_id="stop")
                slow = gr.Checkbox(False, label="Slow: show every round")
                with gr.Accordion("Settings", open=False):
                    seed = gr.Number(0, label="Seed", precision=0, minimum=0)
                    temperature = gr.Slider(
                        0, 2, sampling.temperature, step=0.05, label="Temperature"
                    )
                    guidance = gr.Slider(1, 10, sampling.cfg, step=0.5, label="Guidance scale")
                    top_k = gr.Number(
                        sampling.top_k, label="Top-k, 0 = all codes", precision=0, minimum=0
                    )
                    tokens = gr.Slider(
                        0, 64, 0, step=1, label="Draft tokens per round, 0 = the method's own"
                    )
                gr.Examples([[text] for text in EXAMPLES], [prompt], label="Examples")
            with gr.Column(scale=5, min_width=340):
                stage = gr.HTML(
                    json.dumps(painter.blank),
                    html_template=(HERE / "stage.html").read_text("utf-8"),
                    js_on_load=(HERE / "stage.js").read_text("utf-8"),
                    apply_default_css=False,
                    elem_id="stage",
                )
        wishes = [prompt, method, seed, temperature, guidance, top_k, tokens, slow]

        def drawn(*values: object) -> Iterator[str]:
            """Yield the stage's values; what cannot be used is said on the page."""
            try:
                yield from map(json.dumps, painter.draw(Wish(*values)))
            except SettingsError as error:
                raise gr.Error(
                    str(error), duration=None, title="This cannot be drawn", print_exception=False
                ) from error

        options = {"concurrency_limit": 1, "show_progress": "minimal", "api_visibility": "private"}
        events = [
            listen(drawn, wishes, stage, trigger_mode="once", **options)
            for listen in (draw.click, prompt.submit)
        ]
        stop.click(
            stopped, stage, stage, cancels=events, queue=False, api_visibility="private",
        )  # fmt: skip
    return page.queue(max_size=visitors, default_concurrency_limit=1)
