"""`inspect --run` on good checkpoints and on models that are wrong in known ways."""

import copy
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from browser import ALL, only_in_all, thinned
from damage import State, gone, weights
from small import LUMINA, write_shards

import main
from configs.methods import METHODS
from configs.model import SamplingSettings
from configs.targets import ROOT
from configs.tools import InspectSettings
from runs.check import loaded
from runs.check.loaded import CHECKS, Checkpoint, run_checks
from runs.check.report import Finding
from scripts.checkpoints.chameleon import write_checkpoint

TINY = ROOT / "ckpts" / "tiny"
SOME = ("ar", "jacobi", "recall", "adt")


def opened(**flags: str) -> Checkpoint:
    return Checkpoint(InspectSettings.of(device="cpu", run=True, **flags).engine)


def check(name: str, checkpoint: Checkpoint) -> Finding:
    with torch.inference_mode():
        return CHECKS[name](checkpoint)


@pytest.fixture(scope="module", autouse=True)
def few_methods() -> Iterator[None]:
    """In `make test` some methods stand for all; the known captions are drawn once."""
    some = METHODS if ALL else {name: METHODS[name] for name in SOME}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loaded, "METHODS", some)
        patch.setattr(loaded, "sample_captions", cache(loaded.sample_captions))
        yield


@pytest.fixture(scope="module")
def small(checkpoint) -> Checkpoint:
    """The small random checkpoint in fp64; tests leave it as it is."""
    return opened(model_path=str(checkpoint), dtype="fp64")


def changed(folder: Path, name: str, change: Callable[[State], None], place: Path) -> str:
    weights(change, name)(shutil.copytree(folder, place))
    return str(place)


def shuffle_rows(key: str) -> Callable[[State], None]:
    def change(state: State) -> None:
        order = torch.randperm(len(state[key]), generator=torch.Generator().manual_seed(0))
        state[key] = state[key][order].contiguous()

    return change


def replace_weights(state: State) -> None:
    """Fill every matrix with other values of the same scale, as another model would have them."""
    generator = torch.Generator().manual_seed(0)
    for key, value in state.items():
        if value.ndim == 2:
            noise = torch.randn(value.shape, generator=generator) * value.float().std()
            state[key] = noise.to(value.dtype)


def flip_decoder(state: State) -> None:
    for key in state:
        if key.startswith("decoder.") and state[key].ndim == 4:
            state[key] = state[key].flip(1).contiguous()


def test_the_shipped_model_passes(monkeypatch) -> None:
    some = {name: METHODS[name] for name in ("ar", "adt")}  # small models try all
    monkeypatch.setattr(loaded, "METHODS", some)
    monkeypatch.setattr(loaded, "IMAGES", 1)
    rows = {finding.part: finding for finding in run_checks(opened().settings)}
    assert tuple(rows) == ("load", *CHECKS)
    assert {row.state for row in rows.values()} == {"ok"}, rows
    (psnr,) = re.findall(r"with ([\d.]+) dB", rows["codec"].text)
    (rate,) = re.findall(r"likelier than a later one in (\d+)%", rows["codes"].text)
    apart, shuffled = re.findall(r" (0\.\d\d)", rows["drafter"].text)
    assert float(psnr) > 25 and int(rate) > 90 and float(apart) < 0.6 < 0.8 < float(shuffled)
    assert rows["tokens"].text.startswith("1 methods, the first 64 tokens of 1 images each: 1 of 1")


MODEL, CODEC = "model.safetensors", "tokenizer/vqgan.safetensors"
OTHER = "image tokenizer of another model"
FOREIGN = [
    # logits look plausible, and a codec with its codes in another order is as good as before
    *thinned([
        ("codes", MODEL, shuffle_rows("lm_head.weight"), OTHER),
        ("codes", MODEL, shuffle_rows("model.embed_tokens.weight"), OTHER),
        ("codes", CODEC, shuffle_rows("quantize.embedding.weight"), OTHER),
    ]),
    ("codec", CODEC, flip_decoder, "not of one model"),
    # sizes fit, weights are another's
    ("drafter", "drafter/model.safetensors", replace_weights, "--drafter_path"),
]  # fmt: skip


@pytest.mark.parametrize(("part", "name", "change", "cause"), FOREIGN)
def test_weights_that_do_not_belong_to_the_others(
    part, name, change, cause, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(loaded, "IMAGES", 1)
    checkpoint = opened(model_path=changed(TINY, name, change, tmp_path / "model"))
    row = check(part, checkpoint)
    assert row.state == "FAULT" and cause in row.details[0]
    assert part == "codec" or check("codec", checkpoint).state == "ok"


@only_in_all
def test_one_of_two_shards_is_of_another_model(tmp_path) -> None:
    folder = Path(shutil.copytree(TINY, tmp_path / "model"))
    weights(replace_weights, write_shards(folder, "safetensors")[1])(folder)
    checkpoint = opened(model_path=str(folder))
    row = check("codes", checkpoint)
    assert row.state == "FAULT" and "weights of several models" in row.details[0]
    assert check("drafter", checkpoint).state == "FAULT"


def inspect_run(folder: Path | str, capsys, *words: str) -> tuple[int, str, str]:
    code = main.main(["inspect", "--run", "--device=cpu", f"--model_path={folder}", *words])
    return code, *capsys.readouterr()


def test_the_report_of_a_checkpoint_without_training(checkpoint, capsys) -> None:
    """Random weights know no codes and no pictures; all else is as it should be."""
    code, out, err = inspect_run(checkpoint, capsys)
    parts = [line.split()[:2] for line in out.split("\n\n")[-1].splitlines()]
    states = dict(part for part in parts if part[1] in ("ok", "FAULT", "skipped"))
    assert code == 1 and tuple(states) == ("load", *CHECKS)
    assert {name for name, state in states.items() if state == "FAULT"} == {"codec", "codes"}
    assert out.count("likely cause") == 2
    assert "at fault: codec, codes" in err and "refuse" not in err


def test_a_checkpoint_without_a_drafter(folder) -> None:
    gone("drafter")(folder)
    subject = opened(model_path=str(folder))
    row = check("drafter", subject)
    assert row.state == "skipped" and "--drafter_path" in row.text
    assert check("tokens", subject).text.startswith("2 methods, ")


def test_weights_with_nan(checkpoint, tmp_path, capsys) -> None:
    def change(state: State) -> None:
        state["model.norm.weight"][3] = torch.nan

    folder = changed(checkpoint, "model.safetensors", change, tmp_path / "model")
    code, out, err = inspect_run(folder, capsys)
    assert code == 1 and "at fault: guidance, codec, codes, drafter, tokens" in err
    assert "NaN or infinity in the logits" in out and "checksums" in out


@pytest.mark.parametrize(("guided", "state"), [(0.2, "ok"), (1e-4, "FAULT")])
def test_the_least_that_guidance_has_to_change(guided, state, small) -> None:
    subject = copy.copy(small)
    subject.__dict__["scores"] = torch.full((4,), guided), torch.ones(4)
    assert check("guidance", subject).state == state


def test_without_guidance_there_is_one_row(checkpoint) -> None:
    subject = opened(model_path=str(checkpoint), sampling=SamplingSettings(cfg=1.0))
    assert [check(name, subject).state for name in ("guidance", "tokens")] == ["skipped", "ok"]


def test_a_method_with_other_tokens_is_named(small) -> None:
    assert check("tokens", small).state == "ok"
    adt = small.generated["adt"]
    image = adt.images[0]
    codes = image.codes.clone()
    codes[5] = (codes[5] + 1) % small.target.vocab.size
    images = [replace(image, codes=codes), *adt.images[1:]]
    wrong = copy.copy(small)
    wrong.__dict__["generated"] = small.generated | {"adt": replace(adt, images=images)}
    row, count = check("tokens", wrong), 2 * (len(loaded.METHODS) - 1)
    assert row.state == "FAULT"
    assert row.text.endswith(f"{count - 1} of {count} as by plain decoding; wrong: adt")


def test_a_method_that_drafted_nothing_proves_nothing(small) -> None:
    adt = small.generated["adt"]
    undrafted = [replace(image, mean_nodes=0.0) for image in adt.images]
    idle = copy.copy(small)
    idle.__dict__["generated"] = small.generated | {"adt": replace(adt, images=undrafted)}
    row = check("tokens", idle)
    assert row.state == "inconclusive" and row.fits
    assert row.text.endswith("; adt: no token was drafted, so equal tokens say nothing")


@pytest.mark.parametrize("size", thinned(["96x64", "64"]))
def test_lumina_with_its_row_ends(size, tmp_path) -> None:
    folder = write_checkpoint(tmp_path / "model", LUMINA)
    flags = {"model": "lumina_mgpt", "target_size": size, "dtype": "bf16"}
    subject = opened(model_path=str(folder), **flags)
    assert [check(name, subject).state for name in ("tokens", "drafter")] == ["ok"] * 2


@pytest.mark.parametrize("dtype", thinned(["bf16", "fp32"]))
def test_llamagen(dtype, llamagen) -> None:
    """In bf16 as well, the type of published models, in which target and drafter are loaded."""
    subject = opened(model="llamagen", model_path=str(llamagen), dtype=dtype)
    assert f" in {dtype} on cpu" in loaded.tell_loaded(subject).text
    assert [check(name, subject).state for name in ("tokens", "guidance")] == ["ok"] * 2
