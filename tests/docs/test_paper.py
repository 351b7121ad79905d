"""The paper's figures on its page are those that the report shows."""

from markdown_pages import read

from eval.report.speed import PUBLISHED

ROWS = {("ar", False): "ar", ("eagle2", False): "eagle2", ("eagle2", True): "lantern"}
ROWS |= {("adt", False): "adt", ("adt", True): "adt_lantern"}
PROMPTS = {"MSCOCO2017Val": "coco", "PartiPrompts": "parti"}


def test_the_page_has_every_published_figure() -> None:
    lines = read("docs/paper.md").splitlines()
    for (_, prompts, _, method, relaxed), cell in PUBLISHED.items():
        figures = (cell.speedup, cell.tau, cell.mean_depth)
        shown = ["-" if figure is None else f"{figure:.2f}" for figure in figures]
        shown.append("-" if cell.clip is None else f"{cell.clip:.4f}")
        names = f"`{PROMPTS[prompts]}` | `{ROWS[method, relaxed]}`"
        assert f"| {names} | {' | '.join(shown)} |" in lines
