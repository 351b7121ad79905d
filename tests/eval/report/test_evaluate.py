"""`evaluate` from run folders to files, with the shipped classifier: images, references, skips."""

import html
import json
import re
import shutil
import weakref
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from browser import needs_browser, only_in_all
from made_runs import scenes, settings_of, write_pair, write_run
from PIL import Image

import main
from configs.evaluation import METRICS, SOURCES, EvaluateSettings, usual_metrics
from configs.fields import SettingsError
from configs.rules import loaded
from eval.metrics.base import Score
from eval.metrics.intervals import Estimate
from eval.report.evaluate import compute_scores, evaluate, plan_evaluation, with_prices
from eval.report.run import read_run, read_runs
from scenes.attribute_network import AttributeNetwork
from scenes.painting import rendered_scenes

COUNT = 24


@pytest.fixture(scope="module")
def drawn():
    return scenes(COUNT)


@pytest.fixture(scope="module")
def pair(drawn, tmp_path_factory) -> tuple[Path, Path]:
    return write_pair(tmp_path_factory.mktemp("pair"), *drawn, "relaxed")


@pytest.fixture
def folders(pair, tmp_path) -> tuple[Path, Path]:
    """Copies of the runs that a test may change."""
    first, second = (Path(shutil.copytree(run, tmp_path / run.name)) for run in pair)
    return first, second


def test_files_of_an_evaluation(folders, tmp_path, capsys):
    flags = {"output_dir": ",".join(map(str, folders)), "ref_dir": folders[0] / "img", "images": 2}
    flags |= {"cache_dir": tmp_path / "features", "report_dir": tmp_path / "out"}
    flags |= {"metrics": ",".join((*usual_metrics(True), "fid", "hpsv2")), "inception_path": "none"}
    assert main.main(["evaluate", *(f"--{name}={value}" for name, value in flags.items())]) == 0
    names = {path.name for path in (tmp_path / "out").iterdir()}
    tables = {f"{t}.{e}" for t in ("speed", "images", "sources") for e in ("md", "csv", "tex")}
    assert names == tables | {"evaluation.json", "report.html"}
    document = json.loads((tmp_path / "out/evaluation.json").read_text())
    assert document["speed"][1]["speedup"]["value"] == 2.0
    assert document["runs"][1]["baseline"] == "ar"
    scores = [document["images"][run] for run in ("ar", "relaxed")]
    plain, relaxed = ({score["metric"]: score for score in found} for found in scores)
    price = relaxed["accuracy.exact"]["price"]
    assert price["low"] < price["value"] < price["high"]
    assert plain["tiny_fid"]["reference"] == f"img, {COUNT} images"
    assert 0 <= plain["tiny_fid"]["value"] < 1e-4, "the reference is the run itself"
    assert plain["tiny_pr.precision"]["value"] == plain["tiny_pr.recall"]["value"] == 1
    assert "too few" in plain["tiny_fid"]["warning"] and "shares" not in plain["tiny_fid"]
    assert "attributes.safetensors [" in plain["accuracy.shape"]["network"]
    missing = [text for text in document["remarks"] if "was not computed" in text]
    assert len(missing) == 2 and SOURCES["inception_path"] in missing[0]
    said = capsys.readouterr()
    assert "computed: speed, accuracy, tiny_fid, tiny_pr" in said.out
    assert missing[1] in said.err
    check_page((tmp_path / "out/report.html").read_text())


def check_page(text: str) -> None:
    """Both runs' images of two prompts, differences, a map, two plots; nothing is loaded."""
    assert all(re.findall(r"\s(?:src|href)\s*=\s*[\"']?(data:image/)?", text))
    captions = re.findall(r'<img\s[^>]*\balt="([^"]*)"', text)
    assert sum("difference" in caption for caption in captions) == 2
    assert sum("accepted draft tokens" in caption for caption in captions) == 1
    assert len(captions) == 2 * 3 + 1
    plots = re.findall(r'<svg\s[^>]*\baria-label="([^":]*)', text)
    assert plots == ["Seconds per image", "Tokens per round (tau), over all images"]
    ids = re.findall(r'\sid="([^"]*)"', text)
    assert len(ids) == len(set(ids)) > 0 and "<script" not in text
    assert '<meta name="viewport"' in text and "@media print" in text


def test_prompts_and_names_are_text_in_the_report(tmp_path, drawn):
    prompt = """a <b>bold</b> & "quoted" <script>alert('x')</script>"""
    run = write_run(tmp_path / "a_run $\\x$", drawn[0][:1], [prompt])
    evaluate(settings_of(tmp_path, run, metrics="none"), read_runs([str(run)]))
    text = (run / "evaluation/report.html").read_text()
    assert "<b>" not in text and "<script" not in text
    assert prompt in html.unescape(text) and "a_<wbr>run" in text


def test_images_in_memory_are_those_of_a_batch(folders, tmp_path, monkeypatch):
    folder = folders[0]
    made, counts = Image.Image.__init__, Counter()

    def count(image: Image.Image) -> None:
        made(image)
        counts.update(all=1, alive=1)
        counts["most"] = max(counts["most"], counts["alive"])
        weakref.finalize(image, counts.subtract, ["alive"])

    monkeypatch.setattr(Image.Image, "__init__", count)
    words = ["evaluate", f"--output_dir={folder}", f"--cache_dir={tmp_path / 'features'}"]
    words += ["--images=4", "--metrics=accuracy", "--batch_size=8"]
    assert main.main(words) == 0
    assert counts["all"] > 3 * COUNT and 8 <= counts["most"] <= 12


def scores_of(chosen: EvaluateSettings) -> tuple[dict, list[str]]:
    return compute_scores(chosen, read_runs(chosen.folders))


def test_runs_are_compared_on_the_images_that_all_have(drawn, folders, tmp_path):
    images, prompts = drawn
    relaxed = {"verifier": "lantern"}
    short = write_run(tmp_path / "short", images[:10], prompts[:10], relaxed, lossless=False)
    scores, skipped = scores_of(settings_of(tmp_path, folders[0], short, metrics="accuracy"))
    assert scores["ar"]["accuracy.shape"].count == scores["short"]["accuracy.shape"].count == 10
    shared = "image metrics are of the 10 prompts and seeds that all runs have, of ar 24, short 10"
    assert skipped == [shared]
    shuffled = write_run(tmp_path / "shuffled", images, prompts[1:] + prompts[:1])
    scores, skipped = scores_of(settings_of(tmp_path, folders[0], shuffled, metrics="accuracy"))
    right, wrong = (scores[name]["accuracy.background"] for name in ("ar", "shuffled"))
    assert right.value > 0.95 and wrong.value < 0.5 and wrong.high < right.low
    assert right.count == COUNT and "not to be compared: ar 24, shuffled 24" in skipped[0]


def test_images_that_repeat_another_of_their_prompt_count_once(drawn, tmp_path):
    images, prompts = (part[:8] for part in drawn)
    cold = write_run(tmp_path / "cold", images * 3, prompts * 3)
    other = write_run(tmp_path / "other", images * 2 + drawn[0][8:16], prompts * 3)
    flags = {"metrics": "tiny_pr,accuracy", "ref_dir": str(write_run(tmp_path / "real", *drawn))}
    once, _ = scores_of(
        settings_of(tmp_path, write_run(tmp_path / "once", images, prompts), **flags)
    )
    for folders in ((cold,), (cold, other)):
        scores, (remark,) = scores_of(settings_of(tmp_path, *folders, **flags))
        assert scores["cold"] == once["once"] and once["once"]["tiny_pr.recall"].value > 0
        names = ", ".join(folder.name for folder in folders)
        which = "leave out 16 of 24 images, which repeat another of their prompt"
        assert remark == f"{names}: image metrics {which}"


def test_the_price_of_a_run_by_hand():
    score = Score("m", 0.0, 9, "n", "r")
    plain, dear = (replace(score, shares=((hit, 1.0),) * 9) for hit in (0.5, 0.25))
    runs = {"a": {"m": plain}, "b": {"m": dear}, "c": {"m": score}}
    scores = with_prices(runs, {"b": "a", "c": "a"})
    assert scores["b"]["m"].price == Estimate(-0.25, None, None)
    assert scores["a"]["m"].price is scores["c"]["m"].price is scores["a"]["m"].shares is None


def test_several_processes_are_refused(folders, tmp_path, monkeypatch):
    launch = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "here", "MASTER_PORT": "1"}
    for name, value in launch.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match="evaluate: expected one process, got 2 processes"):
        evaluate(settings_of(tmp_path, folders[0]), read_runs([str(folders[0])]))


def test_prompts_of_other_domains_are_counted_out(drawn, tmp_path):
    images, prompts = drawn
    mixed = write_run(tmp_path / "mixed", images, ["a red fox in the snow", *prompts[1:]])
    scores, _ = scores_of(settings_of(tmp_path, mixed, metrics="accuracy"))
    assert scores["mixed"]["accuracy.shape"].count == COUNT - 1
    foreign = write_run(tmp_path / "foreign", images, ["a red fox in the snow"] * COUNT)
    flags = {"metrics": "accuracy,tiny_fid", "ref_dir": str(foreign / "img")}
    scores, skipped = scores_of(settings_of(tmp_path, foreign, **flags))
    assert list(scores["foreign"]) == ["tiny_fid"] and "no prompt names a background" in skipped[0]


def test_features_are_computed_once_and_damaged_ones_skipped(folders, tmp_path, monkeypatch):
    flags = {"ref_dir": str(folders[0] / "img")}
    chosen = settings_of(tmp_path, folders[0], metrics="tiny_fid", **flags)
    first, _ = scores_of(chosen)
    monkeypatch.setattr(AttributeNetwork, "encode", None)  # is not computed again
    assert scores_of(chosen)[0] == first
    # by content: a copy of another image is known, too
    (folders[0] / "img/00000_0.png").write_bytes((folders[0] / "img/00001_0.png").read_bytes())
    assert scores_of(chosen)[1] == []
    next((tmp_path / "features").rglob("*.npy")).write_bytes(b"")
    chosen = settings_of(tmp_path, folders[0], metrics="tiny_fid,accuracy", **flags)
    scores, (remark,) = scores_of(chosen)
    assert "accuracy.exact" in scores["ar"] and "tiny_fid" not in scores["ar"]
    assert ".npy is damaged" in remark


def test_images_of_another_size_are_a_named_skip(tmp_path):
    images = [np.full((64, 64, 3), shade, np.uint8) for shade in range(12)]
    small = write_run(tmp_path / "small", images, ["a plain red background, a blue star"] * 12)
    scores, skipped = scores_of(settings_of(tmp_path, small, ref_dir=str(small / "img")))
    assert scores == {"small": {}} and len(skipped) == len(usual_metrics(True))
    wrong = re.compile(rf"{small}/img/\S+ has 64 x 64 pixels; images .* --ref_dir have")
    assert all(wrong.search(text) for text in skipped if "tiny_fid" in text)


def test_rendered_scenes_are_the_tiny_models_reference(folders, tmp_path, monkeypatch):
    few = partial(rendered_scenes, count=30)
    monkeypatch.setattr("eval.report.evaluate.sample_reference", few)
    runs = [read_run(str(folders[0]), "ar")]
    chosen = settings_of(tmp_path, folders[0], metrics="tiny_fid")
    scores, skipped = compute_scores(chosen, runs)
    assert not skipped and scores["ar"]["tiny_fid"].reference == "tiny_reference, 30 images"
    assert scores["ar"]["tiny_fid"].value > 0.1
    said = plan_evaluation(replace(chosen, metrics="tiny_fid,tiny_pr"), runs).notes[-1]
    assert "tiny_pr not timed" in said and "tiny_fid not timed" not in said


def test_metrics_name_code_and_flags_that_are_there():
    for metric in METRICS.values():
        assert loaded(metric.figure) and (metric.network is None or loaded(metric.network))
        assert metric.flag is None or metric.flag in SOURCES


_MEASURE = """() => ({
  wide: document.documentElement.scrollWidth,
  images: document.images.length,
  broken: [...document.images].filter(image => !image.complete || !image.naturalWidth).length,
  scrolling: [...document.querySelectorAll('.scroll')]
    .filter(box => box.scrollWidth > box.clientWidth).length,
})"""


@pytest.fixture(scope="module")
def report(drawn, tmp_path_factory):
    """Return the report of plain decoding and a relaxed run with a long name, trace and fault."""
    folder = tmp_path_factory.mktemp("report")
    images, prompts = (part[:12] for part in drawn)
    name = "adt_lantern_k100_delta02_shared_budget"
    plain, other = write_pair(folder, images, prompts, name)
    (plain / "img" / "00011_0.png").unlink()
    flags = {"output_dir": f"{plain},{other}", "ref_dir": plain / "img", "images": 2}
    flags |= {"cache_dir": folder / "features", "report_dir": folder / "out"}
    assert main.main(["evaluate", *(f"--{name}={value}" for name, value in flags.items())]) == 0
    return folder / "out/report.html"


@needs_browser
@pytest.mark.parametrize(
    ("width", "media"),
    [(1280, "screen"), (390, "screen"), (1000, "screen"), (1180, "screen"), (703, "print")],
    ids=["desk", "phone", "1000", "1180", "A4 without margins"],
)
def test_in_a_browser_nothing_overflows_or_is_broken_or_loaded(report, chromium, width, media):
    page, asked = chromium.new_page(viewport={"width": width, "height": 900}), []
    page.on("request", lambda sent: asked.append(sent.url))
    page.emulate_media(media=media)
    page.goto(report.as_uri())
    shown = page.evaluate(_MEASURE)
    assert shown == {"wide": width, "images": 2 * 3 + 1, "broken": 0, "scrolling": 0}
    assert [url for url in asked if not url.startswith("data:")] == [report.as_uri()]
    page.close()


@only_in_all  # a chart with foreign letters takes seconds
def test_names_in_other_scripts_give_no_warnings(drawn, tmp_path, recwarn):
    folder = write_run(tmp_path / "测试", *(part[:2] for part in drawn))
    evaluate(settings_of(tmp_path, folder, metrics="none"), read_runs([str(folder)]))
    assert not [one for one in recwarn if "Glyph" in str(one.message)]
    assert "测试" in (folder / "evaluation/report.html").read_text()
