"""`evaluate` from run folders to files, on the tiny domain with the shipped classifier."""

import errno
import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from made_runs import scenes, write_run

import main
from configs.evaluation import GENERAL_METRICS, SOURCES, TINY_METRICS, EvaluateSettings
from configs.fields import SettingsError
from configs.schema import ROOT
from eval.metrics import registry
from eval.metrics.base import Score, Unavailable
from eval.metrics.networks import AttributeNetwork
from eval.metrics.paired import Estimate
from eval.metrics.store import FeatureStore
from eval.report.evaluate import evaluate
from eval.report.figures import compute_scores, with_prices
from eval.report.run import read_run, read_runs
from runs.commands import evaluate_settings
from support import durable
from support.processes import Processes

COUNT = 24

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def drawn():
    return scenes(COUNT)


@pytest.fixture
def folders(tmp_path, drawn) -> tuple[Path, Path]:
    images, prompts = drawn
    plain = write_run(tmp_path / "ar", images, prompts)
    noisy = [np.clip(image.astype(int) + 3, 0, 255).astype(np.uint8) for image in images]
    relaxed = {"lossless": False, "seconds": 1.0, "tau": 2.0, "target_forwards": 128}
    other = write_run(
        tmp_path / "relaxed", noisy, prompts, {"method": "adt", "verifier": "lantern"}, **relaxed
    )
    rounds = {"id": "00000_0", "accepted": 2, "depth": 2, "top1": [0.5] * 3}
    lines = [rounds | {"round": n, "position": 1 + 3 * n} for n in range(85)]
    (other / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return plain, other


def settings(tmp_path: Path, *folders: Path, **flags) -> EvaluateSettings:
    return EvaluateSettings(
        ",".join(map(str, folders)), cache_dir=str(tmp_path / "features"), device="cpu", **flags
    )


def scores_of(chosen: EvaluateSettings) -> tuple[dict, list[str]]:
    runs = read_runs(chosen.folders)
    scores, skipped = compute_scores(
        chosen, runs, lambda folder: pytest.fail("a reference was given")
    )
    return {name: {score.metric: score for score in own} for name, own in scores.items()}, skipped


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
    """Two prompts: each image twice, a difference for the relaxed run, one map; two plots. Nothing is loaded."""
    page = Page(text)
    sources = [
        value for tag, own in page.tags for name, value in own.items() if name in ("src", "href")
    ]
    assert all(source.startswith("data:image/") for source in sources)
    captions = [own["alt"] for tag, own in page.tags if tag == "img"]
    assert sum("difference" in caption for caption in captions) == 2
    assert sum("accepted lengths" in caption for caption in captions) == 1
    assert len(captions) == 2 + 2 * 3 + 1
    assert any(own.get("name") == "viewport" for tag, own in page.tags if tag == "meta")
    assert "@media print" in text and "script" not in {tag for tag, _ in page.tags}


def test_prompts_are_text_in_the_report(tmp_path, drawn):
    prompt = """a <b>bold</b> & "quoted" <script>alert('x')</script>"""
    run = write_run(tmp_path / "a_run", drawn[0][:1], [prompt])
    evaluate(settings(tmp_path, run, metrics="none"), read_runs([str(run)]))
    text = (run / "evaluation/report.html").read_text()
    page = Page(text)
    assert not {"b", "script"} & {tag for tag, _ in page.tags}
    assert prompt in page.text and "a_<wbr>run" in text


def test_identical_folders_have_distance_zero_and_the_same_manifold(folders, tmp_path):
    scores, skipped = scores_of(
        settings(tmp_path, folders[0], ref_dir=str(folders[0] / "img"), metrics="tiny_fid,tiny_pr")
    )
    assert not skipped
    assert abs(scores["ar"]["tiny_fid"].value) < 1e-4
    assert scores["ar"]["tiny_pr.precision"].value == scores["ar"]["tiny_pr.recall"].value == 1


def test_shuffled_prompts_lower_the_accuracy(drawn, folders, tmp_path):
    images, prompts = drawn
    shuffled = write_run(tmp_path / "shuffled", images, prompts[1:] + prompts[:1])
    scores, _ = scores_of(settings(tmp_path, folders[0], shuffled, metrics="accuracy"))
    right, wrong = (scores[name]["accuracy.background"] for name in ("ar", "shuffled"))
    assert right.value > 0.95 and wrong.value < 0.5 and wrong.high < right.low


def test_runs_are_compared_on_the_images_that_all_have(drawn, folders, tmp_path):
    images, prompts = drawn
    shorter = write_run(
        tmp_path / "short", images[:10], prompts[:10], {"verifier": "lantern"}, lossless=False
    )
    scores, skipped = scores_of(settings(tmp_path, folders[0], shorter, metrics="accuracy"))
    assert scores["ar"]["accuracy.shape"].count == scores["short"]["accuracy.shape"].count == 10
    assert skipped == [
        "image metrics are of the 10 prompts and seeds that all runs have, of ar 24, short 10"
    ]
    strange = write_run(tmp_path / "strange", images, [f"{prompt} again" for prompt in prompts])
    scores, skipped = scores_of(settings(tmp_path, folders[0], strange, metrics="accuracy"))
    assert (
        scores["ar"]["accuracy.shape"].count == COUNT
        and "not to be compared: ar 24, strange 24" in skipped[0]
    )


def test_the_price_of_a_run_by_hand():
    plain, own = (Score("m", 0.0, 9, "n", "r", shares=((hit, 1.0),) * 9) for hit in (0.5, 0.25))
    other = Score("m", 0.0, 9, "n", "r")
    scores = with_prices({"a": [plain], "b": [own], "c": [other]}, {"b": "a", "c": "a"})
    assert scores["b"][0].price == Estimate(-0.25, -0.25, -0.25)
    assert scores["a"][0].price is scores["c"][0].price is scores["a"][0].shares is None


def test_what_one_process_lacks_is_skipped_by_all(folders, tmp_path):
    lacks = Unavailable("the other has no library")
    other = Processes(0, 2, lambda value: [value, lacks])
    chosen = settings(
        tmp_path, folders[0], ref_dir=str(folders[0] / "img"), metrics="tiny_is,tiny_fid"
    )
    scores, skipped = compute_scores(
        chosen, read_runs(chosen.folders), lambda folder: folder, other
    )
    assert (
        scores == {"ar": []} and len(skipped) == 2 and all("no library" in text for text in skipped)
    )


@pytest.mark.parametrize("flag", ["report_dir", "cache_dir", "ref_dir"])
def test_places_are_tested_first(folders, tmp_path, flag, monkeypatch):
    monkeypatch.setattr("eval.report.evaluate.compute_scores", lambda *_: pytest.fail("computed"))
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    place = tmp_path / ("empty" if flag == "ref_dir" else "file")
    flags = {"cache_dir": str(tmp_path / "features"), flag: str(place)}
    chosen = EvaluateSettings(str(folders[0]), **flags)
    with pytest.raises(SettingsError, match=f"--{flag}"):
        evaluate(chosen, read_runs(chosen.folders))


@pytest.mark.parametrize("file", ["speed.md", "evaluation.json", "report.html"])
def test_a_full_disk_is_one_line(folders, tmp_path, capsys, monkeypatch, file):
    flush = durable.flush_to_disk

    def full(open_file):
        if f".{file}." in open_file.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        flush(open_file)

    monkeypatch.setattr(durable, "flush_to_disk", full)
    words = ["evaluate", "--output_dir", str(folders[0]), "--metrics", "none", "--images", "0"]
    assert main.main([*words, "--report_dir", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err == f"error: {tmp_path}/out/{file}: No space left on device\n"
    assert not list((tmp_path / "out").glob("*.tmp"))


def test_prompts_of_other_domains_are_counted_out(drawn, tmp_path):
    images, prompts = drawn
    mixed = write_run(tmp_path / "mixed", images, ["a red fox in the snow", *prompts[1:]])
    scores, _ = scores_of(settings(tmp_path, mixed, metrics="accuracy"))
    assert scores["mixed"]["accuracy.shape"].count == COUNT - 1
    foreign = write_run(tmp_path / "foreign", images, ["a red fox in the snow"] * COUNT)
    scores, skipped = scores_of(settings(tmp_path, foreign, metrics="accuracy,tiny_is"))
    assert list(scores["foreign"]) == ["tiny_is"] and "no prompt names a background" in skipped[0]


def test_features_are_computed_once_by_content(folders, tmp_path, monkeypatch):
    chosen = settings(tmp_path, folders[0], metrics="tiny_is")
    first, _ = scores_of(chosen)
    monkeypatch.setattr(
        AttributeNetwork, "encode", lambda self, images: pytest.fail("computed again")
    )
    assert scores_of(chosen)[0] == first
    (folders[0] / "img/00000_0.png").write_bytes((folders[0] / "img/00001_0.png").read_bytes())
    scores_of(chosen)


def test_damaged_features_are_a_named_skip(folders, tmp_path):
    chosen = settings(tmp_path, folders[0], metrics="tiny_is,accuracy")
    store = FeatureStore(tmp_path / "features", 8)
    AttributeNetwork(chosen.attributes_path, torch.device("cpu")).features(
        store, read_run(str(folders[0]), "ar").images
    )
    next((tmp_path / "features").rglob("*.npy")).write_bytes(b"")
    scores, (remark,) = scores_of(chosen)
    assert (
        "tiny_is" not in scores["ar"]
        and "accuracy.exact" in scores["ar"]
        and ".npy is damaged" in remark
    )


def test_images_of_another_size_are_a_named_skip(tmp_path):
    small = write_run(
        tmp_path / "small",
        [np.zeros((64, 64, 3), np.uint8)] * 12,
        ["a plain red background, a blue star"] * 12,
    )
    scores, skipped = scores_of(settings(tmp_path, small, ref_dir=str(small / "img")))
    assert scores == {"small": {}}
    assert len(skipped) == len(TINY_METRICS) and all(
        "64 x 64 pixels" in text for text in skipped if "tiny_is" in text
    )


def test_rendered_scenes_are_the_tiny_models_reference(folders, tmp_path):
    from scenes.pictures import rendered_scenes

    runs = [read_run(str(folders[0]), "ar")]
    chosen = settings(tmp_path, folders[0], metrics="tiny_fid")
    scores, skipped = compute_scores(chosen, runs, lambda folder: rendered_scenes(folder, 30))
    assert not skipped and scores["ar"][0].reference == "tiny_reference, 30 images"
    assert scores["ar"][0].value > 0.1


def test_metrics_are_those_of_the_settings():
    assert tuple(registry._BUILDERS) == TINY_METRICS + GENERAL_METRICS


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({}, "--output_dir: found ''; allowed: run folders"),
        ({"output_dir": "a,,b"}, "--output_dir: found 'a,,b'; allowed: folder names between"),
        (
            {"output_dir": "a", "metrics": "fid,clap"},
            "--metrics: found 'fid,clap'; allowed: all, none, or some of accuracy",
        ),
        ({"output_dir": "a", "metrics": "fid,fid"}, "--metrics: .* each once"),
        (
            {"output_dir": "a", "batch_size": "0"},
            "--batch_size: found 0; allowed: a whole number at least 1",
        ),
        (
            {"output_dir": "a", "ref_dir": "nowhere"},
            "--ref_dir: found 'nowhere'; allowed: a folder",
        ),
        ({"output_dir": "a", "device": "tpu"}, "--device: found 'tpu'"),
    ],
)
def test_flags_are_refused_by_name(flags, message):
    with pytest.raises(SettingsError, match=message):
        evaluate_settings(flags)


def test_folders_that_are_no_runs_are_refused_before_the_slow_imports(tmp_path):
    import subprocess
    import sys

    code = f"import main, sys; code = main.main(['evaluate', '--output_dir', {str(tmp_path)!r}]); "
    code += "sys.exit(code if 'torch' not in sys.modules else 99)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "no run.json" in done.stderr


def test_a_folder_given_twice_is_one_run(tmp_path):
    chosen = EvaluateSettings(f"{tmp_path}/a, {tmp_path}/b,{tmp_path}/a/", baseline=f"{tmp_path}/b")
    assert len(chosen.folders) == 2
