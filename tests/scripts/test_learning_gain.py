"""The tool that draws the same images with and without learning."""

import json

import pytest
from small import write_checkpoint

from runs import learning
from scripts.tools.learning_gain import Arm, by_span, learning_gain, same, totals


@pytest.mark.parametrize("drafter_path", [None, "new"])
def test_three_ways_draw_the_same_images(drafter_path, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(learning, "WINDOW", 4)
    prompts, output = tmp_path / "prompts.txt", tmp_path / "new" / "gain.json"
    prompts.write_text("".join(f"a {n} cat\n" for n in range(8)))
    learning_gain(prompt=str(prompts), images=14, batch_size=2, method="eagle2:depth=2:nodes=6",
                  drafter_path=drafter_path, model_path=str(write_checkpoint(tmp_path / "model")),
                  learn_share=0.9, dtype="fp64", output=str(output))  # fmt: skip
    plain, before, after = json.loads(output.read_text())
    names = [each["name"] for each in (plain, before, after)]
    assert names == ["ar", "without learning", "learning"]
    for each in (plain, before, after):
        assert each["images as ar"] == each["images as without learning"] == each["images"] == 14
    assert plain["spans"] == [] and before["learning"] == 0 < after["learning"]
    assert [span["images"] >= 4 for span in after["spans"]] == [True] * len(before["spans"])
    assert before["spans"][0]["rounds"] == after["spans"][0]["rounds"]  # nothing learned yet
    assert 0 < after["learning"] < after["seconds"]
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [row.count(" | ") for row in rows] == [4] * 5 + [5] * (2 + len(after["spans"]))


def test_images_that_differ_are_counted() -> None:
    spans = (learning.Span(32, 8160, 4080, 50.0), learning.Span(32, 8160, 2040, 25.0, 4.0))
    plain = Arm("ar", 90.0, (), {"0": (1, 2), "1": (3, 4)})
    same_head = Arm("without learning", 80.0, spans[:1] * 2, {"0": (1, 2), "1": (3, 5)})
    learns = Arm("learning", 60.0, spans, {"0": (1, 2), "1": (3, 5)})
    assert same(learns, plain) == 1 and same(learns, same_head) == 2
    assert "| learning | 60 | 4 | 1/2 | 2/2 |" in totals([plain, same_head, learns])
    assert "| 64 | 2.00 | 4.00 | 50.0 | 25.0 | 4.0 |" in by_span([plain, same_head, learns])
