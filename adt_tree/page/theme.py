"""Colours and fonts of the page's controls; the fonts are the visitor's own."""

import gradio as gr

THEME = gr.themes.Base(
    primary_hue="emerald",
    neutral_hue="slate",
    radius_size="lg",
    font=["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"],
    font_mono=["ui-monospace", "SFMono-Regular", "Menlo", "monospace"],
)
