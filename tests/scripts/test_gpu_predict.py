"""Predicted rounds: a narrow model is counted as a wide one, and prices are plausible."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from browser import thinned

from configs.fields import SettingsError
from configs.methods import MethodSettings
from configs.model import EngineSettings, SamplingSettings
from runs.session import Session, open_session
from scripts.checkpoints import chameleon
from scripts.gpu import count
from scripts.gpu.count import KINDS, Work, count_rounds
from scripts.gpu.predict import GPUS, Row, _own_gpu, in_fp8, predict
from scripts.tools.random_checkpoint import write


def opened(folder: Path, scale: int) -> Session:
    write(model="anole", size="full", output=str(folder), scale=scale, layers=2)
    options = {"model": "anole", "dtype": "bf16", "device": "cpu", "compile": "off"}
    eagle2 = MethodSettings("eagle2")
    return open_session(EngineSettings(model_path=str(folder), method=eagle2, **options))


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random weights accept hardly a draft, so rounds are alike."""
    monkeypatch.setattr(count, "WARM", 1)
    monkeypatch.setattr(count, "ROUNDS", 1)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Session, int]]:
    """A model of four attention heads, and one of two heads that stands for it."""
    folder = tmp_path_factory.mktemp("widths")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chameleon, "IDS", 9400)  # a smaller embedding, which is fast to write
        wide, narrow = opened(folder / "wide", 8), opened(folder / "narrow", 16)
    return [(wide, 1), (narrow, 2)]


@pytest.mark.parametrize("method", thinned(["static", "ar", "jacobi"]))
def test_a_narrow_model_stands_for_a_wide_one(models, method) -> None:
    wide, narrow = (count_rounds(*model, MethodSettings(method), 1) for model in models)
    for kind in KINDS:
        kernels, moved, operations = (
            [sum(work.kernels * value(work) for work in round if work.kind == kind)
             for round in (wide, narrow)]
            for value in (lambda work: 1, lambda work: work.bytes, lambda work: work.operations)
        )  # fmt: skip
        # rounds differ a little, by the tokens that the last one has accepted
        assert kernels[0] == pytest.approx(kernels[1], rel=0.03, abs=1), kind
        assert moved[0] == pytest.approx(moved[1], rel=0.1), kind
        assert operations[0] == pytest.approx(operations[1], rel=0.1), kind


def test_plain_decoding_reads_all_weights_once(models) -> None:
    session, scale = models[0]
    work = count_rounds(session, scale, MethodSettings("ar"), 1)
    layers = sum(w.numel() for w in session.target.transformer.blocks.parameters() if w.ndim == 2)
    counted = sum(kernels.kernels * kernels.bytes for kernels in work if kernels.kind == "weights")
    assert counted == pytest.approx(2 * layers, rel=0.05)
    assert sum(kernels.kernels for kernels in work if kernels.kind == "cache") == 4, "two a layer"


def ops_of(session: Session) -> list:
    return [block.ops for block in session.target.transformer.blocks.blocks]


def test_compiled_rounds_have_the_same_products_and_fewer_kernels(models) -> None:
    session, scale = models[0]
    before = ops_of(session)
    products, kernels = [], []
    for compiles in (False, True):
        work = count_rounds(session, scale, MethodSettings("ar"), 1, compiles)
        products.append([(w.kind, w.kernels, w.bytes) for w in work if w.kind != "small"])
        kernels.append(sum(each.kernels for each in work))
    assert products[0] == products[1]
    assert kernels[1] < kernels[0]
    assert before == ops_of(session), "what is counted runs as before"


def test_tokens_are_chosen_by_two_kernels_of_which_a_cut_makes_one_longer(models) -> None:
    session, scale = models[1]
    cut = replace(session.settings, sampling=SamplingSettings(top_k=9))
    plain, longer = (
        count_rounds(replace(session, settings=settings), scale, MethodSettings("ar"), 1)
        for settings in (session.settings, cut)
    )
    assert len(plain) == len(longer)
    assert sum(work.kernels for work in longer) - sum(work.kernels for work in plain) == (
        pytest.approx(count.CUT_KERNELS - 1)
    )


def test_a_rule_with_a_kernel_costs_no_walk_and_more_with_more_children(
    models, monkeypatch
) -> None:
    session, scale = models[1]
    tree = {"proposal": "topk", "depth": 2, "width": 3, "nodes": 6}
    rejection = MethodSettings("eagle2", **tree, verifier="rejection")
    counted = []
    for longer in (0, 1):
        monkeypatch.setattr(count, "CHILD_KERNELS", longer)
        counted.append(sum(work.kernels for work in count_rounds(session, scale, rejection, 1)))
    assert 1 <= counted[1] - counted[0] <= 3, "a node has at most three"
    rows = [
        Row("", replace(rejection, verifier=name), None, [], []) for name in ("rejection", "vvs")
    ]
    assert [row.rule_ms(GPUS["h100"]) > 0 for row in rows] == [False, True]


def test_the_host_costs_less_where_rounds_begin_before_the_last_outcome_is_read() -> None:
    walking = {"method": "eagle2", "proposal": "topk", "verifier": "vvs"}
    hosts = [
        Row("", MethodSettings(**method), None, [], []).replayed(GPUS["h100"])["host"]
        for method in ({"method": "ar"}, {"method": "block"}, {"method": "adt"}, walking)
    ]
    assert hosts[0] == hosts[1] < hosts[2] / 5 < hosts[2] < hosts[3]


def test_prices_fit_what_is_public() -> None:
    """gpt-fast makes 104.9 tokens/s of Llama-2-7B in bf16 at batch 1 on an A100 (its README)."""
    products = [(4096, 12288), (4096, 4096), (4096, 22016), (11008, 4096)]
    work = [Work("weights", 32, 2 * a * b, 2 * a * b) for a, b in products]
    work += [Work("head", 1, 2 * 4096 * 32000, 0), Work("cache", 32, 2e6, 0)]
    work += [Work("small", 5 * 32 + 20, 0, 0)]  # what inductor leaves of a layer
    predicted = sum(GPUS["a100"].replayed(work).values())
    assert predicted == pytest.approx(1000 / 104.9, rel=0.2)


def test_the_shipped_model_with_measured_lengths(tmp_path, capsys) -> None:
    rows = [{"method": "jacobi", "window": 7, "tau": 2.5, "adt_beta": None}]
    adt = {"adt_d_min": 2, "adt_d_max": 8, "adt_k_min": 4, "adt_k_max": 16, "adt_beta": 0.5}
    rows += [{"method": "adt", "nodes": 20, "tau": 3.0, "mean_drafted_depth": 3.4} | adt]
    (tmp_path / "benchmark.json").write_text(json.dumps({"rows": rows}))
    predict(model="tiny", gpu="h100,4090", tau=str(tmp_path))
    page = capsys.readouterr().out
    assert page.startswith("Predicted, not measured: tiny") and "RTX 4090" in page
    assert page.count("| jacobi, window=7 |") == page.count("nodes=20") == 2
    assert "| 1.00 | 1.00 (1.00-1.00) |" in page and "whatever model made it" in page


def test_traced_rounds_are_priced_by_their_own_depth(tmp_path, capsys) -> None:
    settings = {"method": "eagle2", "proposal": "topk", "depth": 4, "width": 3, "nodes": 8}
    manifest = {"settings": settings, "identity": {}, "earlier": []}
    line = {"id": "a", "verified_depth": 1, "width": 3, "nodes": 5, "accepted": 1}
    for name, depths in {"shallow": (2, 2), "mixed": (2, 4), "deep": (4, 4)}.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "run.json").write_text(json.dumps(manifest))
        rounds = (json.dumps(line | {"drafted_depth": depth}) + "\n" for depth in depths)
        (folder / "trace.jsonl").write_text("".join(rounds))
    predict(model="tiny", gpu="h100", trace=",".join(map(str, sorted(tmp_path.iterdir()))))
    page = capsys.readouterr().out
    cells = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")][2:]
    assert [row[:4] for row in cells] == [
        ["| deep", "2.00", "4.00", "1.00"],
        ["| mixed", "2.00", "3.00", "1.00"],
        ["| shallow", "2.00", "2.00", "1.00"],
    ]
    deep, mixed, shallow = (float(row[6]) for row in cells)
    assert deep > shallow and mixed == pytest.approx((deep + shallow) / 2, abs=0.02)


@pytest.mark.parametrize(
    "card, name",
    {"A100-SXM4-80GB": "a100", "GeForce RTX 4090": "4090", "GH200 480GB": "", "L40S": ""}.items(),
)
def test_this_machines_card_has_its_own_prices_or_is_named(card, name, capsys, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: f"NVIDIA {card}")
    assert _own_gpu() == (name or "h100")
    assert (f"NVIDIA {card} is not among h100" in capsys.readouterr().out) is (not name)


def test_a_target_in_fp8_reads_half_of_its_layers() -> None:
    products = [Work("weights", 1, 200, 8)] * 4
    head, *halved, scaling = in_fp8(lambda: [*products, Work("head", 1, 50, 2)])()
    assert head == Work("head", 1, 50, 2)
    assert halved == [Work("weights", 1, 100, 4)] * 4
    assert (scaling.kind, scaling.kernels) == ("small", 1)


def test_what_cannot_be_predicted_is_refused(tmp_path) -> None:
    for flags in (
        {"quantize": "int8"},
        {"quantize": "fp8", "gpu": "a100"},
        {"gpu": "gtx"},
        {"model": "emu3"},
        {"tau": str(tmp_path / "none.json")},
    ):
        with pytest.raises((SettingsError, ValueError), match=f"--{next(iter(flags))}|none.json"):
            predict(**flags)
