"""`evaluate` from run folders to files, on the tiny domain with the shipped classifier."""

import json
from html.parser import HTMLParser

import pytest
from made_runs import settings_of, write_run

import main
from configs.evaluation import SOURCES, TINY_METRICS, EvaluateSettings
from configs.fields import SettingsError
from configs.schema import ROOT
from eval.report.evaluate import evaluate
from eval.report.run import read_runs

COUNT = 24

pytestmark = pytest.mark.usefixtures("one_thread")


class Page(HTMLParser):
    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data


def test_files_of_an_evaluation(folders, tmp_path, capsys):
    words = [
        "evaluate",
        "--output_dir",
        ",".join(map(str, folders)),
        "--ref_dir",
        str(folders[0] / "img"),
    ]
    words += [
        "--cache_dir",
        str(tmp_path / "features"),
        "--images",
        "2",
        "--report_dir",
        str(tmp_path / "out"),
    ]
    words += [
        "--metrics",
        ",".join((*TINY_METRICS, "fid", "hpsv2")),
        f"--inception_path={tmp_path}/i",
    ]
    assert main.main(words) == 0
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {
        f"{t}.{e}" for t in ("speed", "images", "sources") for e in ("md", "csv", "tex")
    } | {
        "evaluation.json",
        "report.html",
    }
    document = json.loads((tmp_path / "out/evaluation.json").read_text())
    assert (
        document["speed"][1]["speedup"]["value"] == 2.0 and document["runs"][1]["baseline"] == "ar"
    )
    price = next(
        score["price"]
        for score in document["images"]["relaxed"]
        if score["metric"] == "accuracy.shape"
    )
    assert (
        price["low"] <= price["value"] <= price["high"]
        and "shares" not in document["images"]["ar"][0]
    )
    missing = [text for text in document["remarks"] if "was not computed" in text]
    assert len(missing) == 2 and SOURCES["inception_path"] in missing[0]
    captured = capsys.readouterr()
    assert (
        "computed: speed, accuracy, tiny_fid, tiny_is, tiny_pr" in captured.out
        and missing[1] in captured.err
    )
    kinds = {score["metric"]: score for score in document["images"]["ar"]}
    assert (
        kinds["tiny_fid"]["reference"] == f"img, {COUNT} images"
        and "too few" in kinds["tiny_fid"]["warning"]
    )
    assert "attributes.safetensors [" in kinds["accuracy.shape"]["network"]
    check_page((tmp_path / "out/report.html").read_text())


def check_page(text: str) -> None:
    """Look for the pictures of two prompts, and for anything that would be loaded.

    There are both runs' images, the relaxed run's differences, one map and two plots.
    """
    page = Page(text)
    sources = [
        value for tag, own in page.tags for name, value in own.items() if name in ("src", "href")
    ]
    assert all(source.startswith("data:image/") for source in sources)
    captions = [own["alt"] for tag, own in page.tags if tag == "img"]
    assert sum("difference" in caption for caption in captions) == 2
    assert sum("accepted lengths" in caption for caption in captions) == 1
    assert len(captions) == 2 * 3 + 1
    plots = [own["aria-label"] for tag, own in page.tags if tag == "svg"]
    assert [label.split(":")[0] for label in plots] == [
        "Seconds per image",
        "Tokens per round (tau), over all images",
    ]
    ids = [own["id"] for _, own in page.tags if "id" in own]
    assert len(ids) == len(set(ids))
    assert any(own.get("name") == "viewport" for tag, own in page.tags if tag == "meta")
    assert "@media print" in text and "script" not in {tag for tag, _ in page.tags}


def test_prompts_are_text_in_the_report(tmp_path, drawn):
    prompt = """a <b>bold</b> & "quoted" <script>alert('x')</script>"""
    run = write_run(tmp_path / "a_run", drawn[0][:1], [prompt])
    evaluate(settings_of(tmp_path, run, metrics="none"), read_runs([str(run)]))
    text = (run / "evaluation/report.html").read_text()
    page = Page(text)
    assert not {"b", "script"} & {tag for tag, _ in page.tags}
    assert prompt in page.text and "a_<wbr>run" in text


@pytest.mark.parametrize("flag", ["report_dir", "cache_dir", "ref_dir"])
def test_places_are_tested_first(folders, tmp_path, flag, monkeypatch):
    monkeypatch.setattr("eval.report.evaluate.compute_scores", lambda *_: pytest.fail("computed"))
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    place = tmp_path / ("empty" if flag == "ref_dir" else "file")
    flags = {"cache_dir": str(tmp_path / "features"), flag: str(place)}
    chosen = EvaluateSettings(output_dir=str(folders[0]), **flags)
    with pytest.raises(SettingsError, match=f"--{flag}"):
        evaluate(chosen, read_runs(chosen.folders))


@pytest.mark.parametrize("file", ["speed.md", "evaluation.json", "report.html"])
def test_a_full_disk_is_one_line(folders, tmp_path, capsys, fill_disk, file):
    fill_disk(tmp_path / "out" / file)
    words = ["evaluate", "--output_dir", str(folders[0]), "--metrics", "none", "--images", "0"]
    assert main.main([*words, "--report_dir", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err == f"error: {tmp_path}/out/{file}: No space left on device\n"
    assert not list((tmp_path / "out").glob("*.tmp"))


def test_folders_that_are_no_runs_are_refused_before_the_slow_imports(tmp_path):
    import subprocess
    import sys

    code = f"import main, sys; code = main.main(['evaluate', '--output_dir', {str(tmp_path)!r}]); "
    code += "sys.exit(code if 'torch' not in sys.modules else 99)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "no run.json" in done.stderr
