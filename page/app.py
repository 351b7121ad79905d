"""The page's controls and what they do."""

import json
import secrets
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from itertools import chain
from math import inf
from typing import Any

import gradio as gr
import torch
from gradio.components import Component

from adt_tree.pipeline import Pipeline
from configs.fields import SettingsError
from configs.methods import METHODS
from page.stage import HERE, WORDS, Wish, example, stage_html, stages, words

# The fonts are the visitor's own.
THEME = gr.themes.Base(
    primary_hue="emerald",
    neutral_hue="slate",
    radius_size="lg",
    font=["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"],
    font_mono=["ui-monospace", "SFMono-Regular", "Menlo", "monospace"],
).set(  # white text on it has a contrast of 5.5
    button_primary_background_fill="*primary_700",
    button_primary_background_fill_dark="*primary_700",
    button_primary_background_fill_hover="*primary_800",
    button_primary_background_fill_hover_dark="*primary_800",
)
BUSY = ("waiting", "drawing")  # states in which there is something to stop
EXAMPLES = (
    "a large red circle on a plain blue background",
    "a yellow star above a green square on a grassy green background",
    "a dotted yellow star on a checkered blue background",
)
# Settings as the page calls them, by flag.
LABELS = {
    "prompt": "Prompt",
    "seed": "Seed",
    "temperature": "Temperature",
    "cfg": "Guidance scale",
    "top_k": "Top-k",
    "nodes": "Draft tokens",
    "window": "Draft tokens",
}
_QUIET: Any = {"show_progress": "hidden", "api_visibility": "private"}
# gradio may send a value older than the one that the stage shows.
_LATEST = "(value, ...rest) => [document.querySelector('.stage').latest ?? value, ...rest]"
# The address of an image shows that image, as if its visitor had pressed Generate.
_SHOW_LINKED = """() => {
  if (new URLSearchParams(location.search).has('prompt'))
    document.getElementById('generate').click();
}"""
_INTRO = """# The same image, in fewer passes
Plain decoding generates one token per forward pass. A fast method drafts several tokens and
verifies them in one forward pass. With the same seed, both generate the same tokens.
"""


def build_page(pipe: Pipeline, drafted: bool, visitors: int) -> gr.Blocks:
    """Return the page. drafted: offers methods with a drafter; visitors: how many may wait."""
    # The latest runs that visitors have stopped. gradio's own `cancels` fails on the page between a
    # click on Generate and the server's answer: Stop would do nothing then.
    stops = deque[str](maxlen=1000)
    with gr.Blocks(analytics_enabled=False, title="ADT-Tree: the same image, sooner") as page:
        gr.Markdown(_INTRO, elem_id="intro")
        with gr.Row(equal_height=False, elem_id="main"):
            with gr.Column(scale=2, min_width=280, elem_id="controls"):
                # of one line, so that Enter generates; it grows with its text
                prompt = gr.Textbox(EXAMPLES[0], label="Prompt", lines=1, max_lines=5)
                method = _method(pipe.method, fast_methods(drafted))
                with gr.Row(elem_id="buttons"):
                    generate = gr.Button(
                        "Generate", variant="primary", min_width=100, elem_id="generate"
                    )
                    stop = gr.Button("Stop", min_width=100, elem_id="stop")
                with gr.Accordion("Settings", open=False):
                    settings = _settings(pipe)
                gr.Examples([[text] for text in EXAMPLES], [prompt], label="Example prompts")
            with gr.Column(scale=5, min_width=340, elem_id="result"):
                stage = gr.HTML(
                    json.dumps(example()),
                    html_template=stage_html(),
                    js_on_load=(HERE / "stage.js").read_text("utf-8"),
                    apply_default_css=False,
                    elem_id="stage",
                )
        wishes = [prompt, method, *settings]
        # not queued, so that a visitor who has to wait sees it at once
        asked = [generate.click, prompt.submit]
        waits = gr.on(asked, started, stage, stage, queue=False, **_QUIET)
        # also while the visitor's stopped run is still in the queue
        several: Any = {"trigger_mode": "multiple", "js": _LATEST}
        waits.then(partial(draw, pipe, stops), [stage, *wishes], stage, **several, **_QUIET)
        stop.click(partial(stop_run, stops), stage, stage, queue=False, js=_LATEST, **_QUIET)
        set_controls = page.load(linked(wishes), None, wishes, queue=False, **_QUIET)
        set_controls.then(None, js=_SHOW_LINKED, **_QUIET)
    # one at a time: two images at once would slow each other, and the race shows who is faster
    return page.queue(max_size=visitors, default_concurrency_limit=1)


def _method(chosen: str, names: Sequence[str]) -> gr.Dropdown:
    """Return the choice of a fast method, which begins with the pipeline's."""
    choices = [(f"{words(n)} ({n})" if n in WORDS else n, n) for n in names]
    value = chosen if chosen in names else names[0]
    return gr.Dropdown(choices, value=value, label="Fast method", elem_id="method")


def fast_methods(drafted: bool) -> list[str]:
    """Return the methods to choose from. drafted: whether those with a drafter's weights are."""
    ordered = {name: METHODS[name] for name in (*WORDS, *METHODS)}
    return [n for n, m in ordered.items() if m.speculative and (drafted or not m.drafted)]


def _settings(pipe: Pipeline) -> list[Component]:
    """Return the controls of seed, sampling, draft tokens and pace, in the order of `Wish`."""
    usual = pipe.settings.sampling
    low, high = min(1, usual.cfg), max(10, usual.cfg)
    return [
        gr.Number(example()["seed"], label="Seed", precision=0, minimum=0),
        gr.Slider(0, max(2, usual.temperature), usual.temperature, step=0.05, label="Temperature"),
        gr.Slider(low, high, usual.cfg, step=0.5, label="Guidance scale"),
        gr.Number(usual.top_k, label="Top-k, 0 = off", precision=0, minimum=0),
        gr.Slider(0, 64, 0, step=1, label="Draft tokens per forward pass, 0 = default"),
        gr.Checkbox(False, label="Slow: show every round"),
    ]


def started(value: str) -> str:
    """Return the stage of a new run that waits for the machine."""
    return json.dumps(json.loads(value) | {"state": "waiting", "run": uuid.uuid4().hex})


def stop_run(stops: deque[str], value: str) -> object:
    """Stop the run on the stage, if there is one."""
    shown = json.loads(value)
    if shown["state"] not in BUSY:
        return gr.skip()  # the stage may show something newer by now
    stops.append(shown["run"])
    return json.dumps(shown | {"state": "stopped"})


def draw(pipe: Pipeline, stops: deque[str], before: str, *values: Any) -> Iterator[str]:
    """Draw what a visitor asks for, on a stage that shows `before`."""
    prompt, method, seed, *others = values
    # a field without a number: one seed for both images
    seed = secrets.randbelow(2**32) if seed is None else seed
    shown, wish = json.loads(before), Wish(prompt, method, seed, *others)
    run = shown["run"]
    try:
        if not wish.prompt.strip():
            raise SettingsError("Enter a prompt first.")
        # one value in any case: gradio empties the stage of a run without any
        for value in chain([shown], stages(pipe, wish)):
            shown = value | {"run": run}
            if run in stops:
                yield json.dumps(shown | {"state": "stopped"})
                return
            yield json.dumps(shown)
    except (SettingsError, FloatingPointError) as error:
        if isinstance(error, SettingsError):
            error.spell = lambda flag: LABELS.get(flag, flag)
        yield json.dumps(shown | {"state": "refused", "why": str(error)})
    except torch.OutOfMemoryError:
        why = "Out of memory: try a smaller tree, or plain decoding."
        yield json.dumps(shown | {"state": "refused", "why": why})


def linked(controls: list[Component]) -> Callable[[gr.Request], list[object]]:
    """Return the function that sets the controls as the page's address says (`Wish.link`).

    What the address leaves out, or what a control does not take, stays as it is.
    """

    def values(request: gr.Request) -> list[object]:
        given = dict(request.query_params)
        pairs = zip(fields(Wish), controls, strict=True)
        return [_fitting(control, f.type, given.get(f.name)) for f, control in pairs]

    return values


def _fitting(control: Any, kind: Any, text: str | None) -> object:
    """Return a text of the address as the control's value, or an update that changes nothing."""
    if text is None:
        return gr.skip()
    if kind is bool:
        return text == "1"
    if kind is str:
        choices = getattr(control, "choices", [(text, text)])
        return text if text in (name for _, name in choices) else gr.skip()
    try:
        number = kind(text)
    except ValueError:
        return gr.skip()
    high = inf if control.maximum is None else control.maximum
    return number if control.minimum <= number <= high else gr.skip()
