"""`evaluate` from run folders to files, on the tiny domain with the shipped classifier."""

import json
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from made_runs import settings_of, write_run
from said import without_progress

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
    flags = {"output_dir": ",".join(map(str, folders)), "ref_dir": folders[0] / "img", "images": 2}
    flags |= {"cache_dir": tmp_path / "features", "report_dir": tmp_path / "out"}
    flags |= {
        "metrics": ",".join((*TINY_METRICS, "fid", "hpsv2")),
        "inception_path": tmp_path / "i",
    }
    assert main.main(["evaluate", *(f"--{name}={value}" for name, value in flags.items())]) == 0
    names = {path.name for path in (tmp_path / "out").iterdir()}
    tables = {f"{t}.{e}" for t in ("speed", "images", "sources") for e in ("md", "csv", "tex")}
    assert names == tables | {"evaluation.json", "report.html"}
    document = json.loads((tmp_path / "out/evaluation.json").read_text())
    assert document["speed"][1]["speedup"]["value"] == 2.0
    assert document["runs"][1]["baseline"] == "ar"
    plain, relaxed = (
        {score["metric"]: score for score in document["images"][run]} for run in ("ar", "relaxed")
    )
    price = relaxed["accuracy.shape"]["price"]
    assert price["low"] <= price["value"] <= price["high"]
    assert plain["tiny_fid"]["reference"] == f"img, {COUNT} images"
    assert "too few" in plain["tiny_fid"]["warning"] and "shares" not in plain["tiny_fid"]
    assert "attributes.safetensors [" in plain["accuracy.shape"]["network"]
    missing = [text for text in document["remarks"] if "was not computed" in text]
    assert len(missing) == 2 and SOURCES["inception_path"] in missing[0]
    said = capsys.readouterr()
    assert "computed: speed, accuracy, tiny_fid, tiny_is, tiny_pr" in said.out
    assert missing[1] in said.err
    check_page((tmp_path / "out/report.html").read_text())


def check_page(text: str) -> None:
    """Look for the pictures of two prompts, and for anything that would be loaded.

    There are both runs' images, the relaxed run's differences, one map and two plots.
    """
    tags = Page(text).tags
    sources = [value for _, tag in tags for name, value in tag.items() if name in ("src", "href")]
    assert all(source.startswith("data:image/") for source in sources)
    captions = [attributes["alt"] for tag, attributes in tags if tag == "img"]
    assert sum("difference" in caption for caption in captions) == 2
    assert sum("accepted draft tokens" in caption for caption in captions) == 1
    assert len(captions) == 2 * 3 + 1
    plots = [attributes["aria-label"].split(":")[0] for tag, attributes in tags if tag == "svg"]
    assert plots == ["Seconds per image", "Tokens per round (tau), over all images"]
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids)) and "script" not in dict(tags)
    assert any(attributes.get("name") == "viewport" for _, attributes in tags)
    assert "@media print" in text


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
    said = without_progress(capsys.readouterr().err)
    assert said == f"error: {tmp_path}/out/{file}: No space left on device\n"
    assert not list((tmp_path / "out").glob("*.tmp"))


def test_folders_that_are_no_runs_are_refused_before_the_slow_imports(tmp_path):
    code = f"import main, sys; code = main.main(['evaluate', '--output_dir', {str(tmp_path)!r}]); "
    code += "sys.exit(code if 'torch' not in sys.modules else 99)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and "no run.json" in done.stderr
