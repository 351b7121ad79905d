"""Scripts' functions get their flags as their parameters are typed."""

from __future__ import annotations

import pytest

from support.script import run_script

CALLS: list[dict] = []


def script(*, output: str, runs: str | None = None, images: int = 8, thin: bool = False) -> None:
    CALLS.append({"output": output, "runs": runs, "images": images, "thin": thin})


def listed(*folders: str) -> None:
    CALLS.append({"folders": folders})


@pytest.mark.parametrize(
    ("function", "words", "found"),
    [
        (script, ["--output=2024_01_01"], {"output": "2024_01_01"}),
        (script, ["--output", "010", "--runs", "ar,adt"], {"output": "010", "runs": "ar,adt"}),
        (script, ["--output=a", "--images=3", "--thin"], {"images": 3, "thin": True}),
        (script, ["--output=a", "--nothin"], {"runs": None, "thin": False}),
        (listed, ["2024_01_01", "1e3"], {"folders": ("2024_01_01", "1e3")}),
    ],
)
def test_texts_stay_as_typed_and_numbers_are_numbers(monkeypatch, function, words, found):
    CALLS.clear()
    monkeypatch.setattr("sys.argv", ["script", *words])
    run_script(function)
    assert len(CALLS) == 1 and found.items() <= CALLS[0].items()
