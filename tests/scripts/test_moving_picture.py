"""The recording of the page: both images grow from one picture to the next."""

from pathlib import Path

from browser import BROWSER, needs_browser, only_in_all
from PIL import Image, ImageSequence

from scripts.tools.moving_picture import moving_picture


@needs_browser
@only_in_all
def test_a_recording_shows_every_pass_it_could(tmp_path: Path, capsys) -> None:
    output = tmp_path / "page.webp"
    prompt = "a large red circle on a plain blue background"
    moving_picture(prompt=prompt, method="jacobi", browser=str(BROWSER), output=str(output))
    assert " pictures of 256 passes" in capsys.readouterr().out
    with Image.open(output) as recording:
        durations = [shown(frame) for frame in ImageSequence.Iterator(recording)]
    assert len(durations) > 20 and durations[-1] == 3000 > max(durations[:-1])


def shown(picture: Image.Image) -> int:
    picture.load()  # before, the file tells no time
    return picture.info["duration"]
