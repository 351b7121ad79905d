"""The recording of the page: both images grow from one picture to the next."""

from pathlib import Path

from browser import BROWSER, needs_browser, only_in_all
from PIL import Image

from scripts.tools.moving_picture import moving_picture


@needs_browser
@only_in_all
def test_a_recording_shows_every_pass_it_could(tmp_path: Path, capsys) -> None:
    output = tmp_path / "page.webp"
    prompt = "a large red circle on a plain blue background"
    moving_picture(prompt=prompt, method="jacobi", browser=str(BROWSER), output=str(output))
    assert " pictures of 256 passes" in capsys.readouterr().out
    with Image.open(output) as recording:
        assert recording.n_frames > 20
        first, last = recording.info["duration"], recording.n_frames - 1
        recording.seek(last)
        assert recording.info["duration"] == 3000 > first
