"""`inspect --run` on good checkpoints and on models that are wrong in known ways."""

import copy
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from browser import only_in_all, thinned
from damage import State, entries, gone, weights
from families import SMALL
from small import FLAGS, GUIDANCE, LUMINA, write_checkpoint, write_shards

import main
from configs.method_table import METHODS
from configs.sampling import SamplingSettings
from configs.targets import ROOT
from configs.tools import InspectSettings
from runs.check import loaded
from runs.check.loaded import CHECKS, Checkpoint, PictureScores, run_checks
from runs.check.report import Finding

TINY = ROOT / "ckpts" / "tiny"


def opened(**flags: str) -> Checkpoint:
    return Checkpoint(InspectSettings(device="cpu", run=True, **flags))


def check(name: str, checkpoint: Checkpoint) -> Finding:
    with torch.inference_mode():
        return CHECKS[name](checkpoint)


def ran(**flags: str) -> dict[str, Finding]:
    settings = InspectSettings(device="cpu", run=True, **flags)
    return {finding.part: finding for finding in run_checks(settings)}


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
    some = {name: METHODS[name] for name in ("ar", "jacobi", "adt")}  # small models try all
    monkeypatch.setattr(loaded, "METHODS", some)
    rows = ran()
    assert tuple(rows) == ("load", *CHECKS)
    assert {row.state for row in rows.values()} == {"ok"}, rows
    figures = {name: row.figures for name, row in rows.items()}
    assert figures["codec"]["psnr"] > 25 and figures["codes"]["rate"] > 0.9
    assert figures["drafter"]["total_variation"] < 0.6 < 0.8 < figures["drafter"]["shuffled"]
    assert figures["tokens"]["identical"].keys() == {"jacobi", "adt"}
    assert figures["tokens"]["tau"]["adt"] > 1.4


SHUFFLED = [
    ("model.safetensors", "lm_head.weight"),
    ("model.safetensors", "model.embed_tokens.weight"),
    ("tokenizer/vqgan.safetensors", "quantize.embedding.weight"),
]


@pytest.mark.parametrize(("name", "key"), thinned(SHUFFLED))
def test_codes_that_the_model_does_not_know(name, key, tmp_path) -> None:
    """Logits look plausible, and a codec with its codes in another order is as good as before."""
    folder = changed(TINY, name, shuffle_rows(key), tmp_path / "model")
    checkpoint = opened(model_path=folder)
    row = check("codes", checkpoint)
    assert row.state == "FAULT" and "image tokenizer of another model" in row.details[0]
    assert row.figures["rate"] < 0.6
    assert check("codec", checkpoint).state == "ok"


@only_in_all
def test_one_of_two_shards_is_of_another_model(tmp_path) -> None:
    folder = Path(shutil.copytree(TINY, tmp_path / "model"))
    weights(replace_weights, write_shards(folder, "safetensors")[1])(folder)
    checkpoint = opened(model_path=str(folder))
    row = check("codes", checkpoint)
    assert row.state == "FAULT" and "weights of several models" in row.details[0]
    assert check("drafter", checkpoint).state == "FAULT"


def test_a_codec_of_mixed_parts(tmp_path) -> None:
    name = "tokenizer/vqgan.safetensors"
    row = check("codec", opened(model_path=changed(TINY, name, flip_decoder, tmp_path / "model")))
    assert row.state == "FAULT" and "not of one model" in row.details[0]
    assert row.figures["psnr"] < 18


def test_another_drafter(tmp_path) -> None:
    """The target is well; the drafter's sizes fit, its weights are another's."""
    place = tmp_path / "drafter"
    folder = changed(TINY / "drafter", "model.safetensors", replace_weights, place)
    row = check("drafter", opened(drafter_path=folder))
    assert row.state == "FAULT" and "--drafter_path" in row.details[0]
    assert row.figures["total_variation"] == pytest.approx(row.figures["shuffled"], abs=0.03)


def inspect_run(folder: Path | str, capsys, *words: str) -> tuple[int, str, str]:
    code = main.main(["inspect", "--run", "--device=cpu", f"--model_path={folder}", *words])
    return code, *capsys.readouterr()


def test_the_report_of_a_checkpoint_without_training(checkpoint, capsys) -> None:
    """Random weights know no codes and no pictures; all else is as it should be."""
    code, out, err = inspect_run(checkpoint, capsys, "--json")
    document = json.loads(out)
    rows = {row["part"]: row for row in document["checks"]}
    assert code == 1 and tuple(rows) == ("load", *CHECKS) and not document["fits"]
    assert {name for name, row in rows.items() if row["state"] == "FAULT"} == {"codec", "codes"}
    assert all(bool(row["details"]) == (row["state"] == "FAULT") for row in rows.values())
    assert "at fault: codec, codes" in err and "refuse" not in err
    assert rows["transformers"]["figures"]["largest"] < 1e-3


def test_a_checkpoint_without_a_drafter(folder) -> None:
    gone("drafter")(folder)
    subject = opened(model_path=str(folder))
    row = check("drafter", subject)
    assert row.state == "skipped" and "--drafter_path" in row.text
    assert check("tokens", subject).figures["identical"].keys() == {
        name for name, entry in METHODS.items() if entry.speculative and not entry.drafted
    }


def test_weights_with_nan(checkpoint, tmp_path, capsys) -> None:
    def change(state: State) -> None:
        state["model.norm.weight"][3] = torch.nan

    folder = changed(checkpoint, "model.safetensors", change, tmp_path / "model")
    code, out, _ = inspect_run(folder, capsys, "--json")
    assert code == 1 and "NaN" not in out.replace("NaN or infinity", "")  # which is no JSON
    rows = {row["part"]: row for row in json.loads(out)["checks"]}
    assert rows["logits"]["state"] == "FAULT" and "checksums" in rows["logits"]["details"][0]
    assert rows["tokens"]["state"] == "skipped" and rows.keys() == {"load", *CHECKS}


@pytest.mark.parametrize(
    ("name", "figures", "state"),
    [
        ("logits", {}, "ok"),
        ("logits", {"entropy": 3.17}, "FAULT"),  # uniform
        ("logits", {"entropy": 0.01}, "FAULT"),  # a point mass
        ("guidance", {}, "ok"),
        ("guidance", {"guided": 1e-4}, "FAULT"),
    ],
)
def test_limits_of_what_the_target_predicts(name, figures, state, small) -> None:
    values = {"entropy": 2.0, "guided": 0.2, "order": 0.9} | figures
    scores = PictureScores(True, **{key: torch.full((4,), x) for key, x in values.items()})
    subject = copy.copy(small)
    subject.__dict__["scores"] = [scores]
    assert check(name, subject).state == state


def test_without_guidance_there_is_one_row(checkpoint) -> None:
    rows = ran(model_path=str(checkpoint), sampling=SamplingSettings(cfg=1.0))
    states = [rows[name].state for name in ("guidance", "tokens", "transformers")]
    assert states == ["skipped", "ok", "ok"]


def test_a_method_with_other_tokens_is_named(small) -> None:
    assert check("tokens", small).state == "ok"
    adt = small.generated["adt"]
    image = adt.images[0]
    codes = image.codes.clone()
    codes[5] = (codes[5] + 1) % small.target.vocab.size
    images = [replace(image, codes=codes), *adt.images[1:]]
    wrong = copy.copy(small)
    wrong.__dict__["generated"] = small.generated | {"adt": replace(adt, images=images)}
    row, count = check("tokens", wrong), 2 * (len(METHODS) - 1)
    assert row.state == "FAULT"
    assert row.text.endswith(f"{count - 1} of {count} as by plain decoding; wrong: adt")


def test_transformers_is_skipped_without_memory(small, monkeypatch) -> None:
    monkeypatch.setattr(loaded, "free_memory", lambda _: 1000)
    row = check("transformers", small)
    assert row.state == "skipped" and "free are 1.0 KiB" in row.text


FP64 = ("janus_pro", "janus_pro of the authors", "emu3", "emu3 of today", "emu3_5", "liquid")
FP64 += ("lumina_mgpt2", "glm_image")
SHORT = {"emu3": "text_config", "emu3_5": "", "liquid": "", "lumina_mgpt2": ""}  # of positions


@pytest.mark.parametrize(
    ("name", "dtype"), [("tiny", "bf16"), ("tiny", "fp32"), *((name, "fp64") for name in FP64)]
)
def test_logits_are_those_of_transformers(name, dtype, tmp_path) -> None:
    folder, model = SMALL[name].write(tmp_path), SMALL[name].model
    if model in SHORT:
        entries(SHORT[model], max_position_embeddings=700)(folder)
    sampling = SamplingSettings(cfg=GUIDANCE.get(model, 3.0))
    flags = {"dtype": dtype, "sampling": sampling, **FLAGS.get(model, {})}
    subject = opened(model=model, model_path=str(folder), **flags)
    row = check("transformers", subject)
    assert row.state == "ok", row.text
    if dtype == "bf16":  # rounds by more than the damage below
        assert check("tokens", subject).state == "ok"
        return
    subject.target.transformer.norm.weight.data[::2].mul_(1.5)
    assert check("transformers", subject).state == "FAULT"


@pytest.mark.parametrize("size", thinned(["96x64", "64"]))
def test_lumina_with_its_row_ends(size, tmp_path) -> None:
    folder = write_checkpoint(tmp_path / "model", LUMINA)
    rows = ran(model="lumina_mgpt", target_size=size, model_path=str(folder))
    assert {rows[name].state for name in ("tokens", "drafter", "transformers")} == {"ok"}


def test_llamagen(llamagen) -> None:
    rows = ran(model="llamagen", model_path=str(llamagen))
    assert rows["tokens"].state == rows["guidance"].state == "ok"
    assert "no class for --model llamagen" in rows["transformers"].text
