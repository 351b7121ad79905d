"""`verify` on good checkpoints and on folders that are wrong in known ways."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from small import LUMINA, write_checkpoint, write_shards
from small_emu3 import AUTHORS, BEFORE, Emu3Sizes, write_emu3
from small_janus import write_janus
from small_llamagen import write_llamagen
from torch import Tensor

import main
from configs.method_table import METHODS
from configs.targets import ROOT
from configs.tools import VerifySettings
from eval.verify import methods, reference
from eval.verify.codec import check_codec
from eval.verify.drafter import check_drafter
from eval.verify.lines import Line, as_table
from eval.verify.methods import Decoded, check_tokens, tell_cost, tell_estimate
from eval.verify.network import (
    Reading,
    check_guidance,
    check_logits,
    check_picture,
    order_rates,
    read_pictures,
)
from eval.verify.reference import check_reference
from eval.verify.subject import Subject
from eval.verify.verify import examine
from models.registry import FAMILIES, TARGETS
from models.targets.llamagen import LlamaGen
from models.targets.llamagen_files import llamagen_family
from runs.session import open_session

TINY = ROOT / "ckpts" / "tiny"
CHECKS = ("files", "logits", "guidance", "codec", "codes", "drafter", "tokens", "speed")
CHECKS += ("estimate", "transformers")
State = dict[str, Tensor]


def subject_of(**flags: str) -> Subject:
    """Open a checkpoint for single checks."""
    settings = VerifySettings(device="cpu", **flags)
    return Subject(settings, open_session(settings.engine))


@pytest.fixture(scope="module")
def small(checkpoint) -> Subject:
    """The small random checkpoint in fp64; tests leave it as it is."""
    return subject_of(model_path=str(checkpoint), dtype="fp64")


@pytest.fixture(scope="module")
def shipped(one_thread) -> list[Line]:
    """All lines about ckpts/tiny, as on an idle machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(methods, "BUSY", 0.0)
        return examine(VerifySettings(device="cpu", num_images=100))


def changed(folder: Path, name: str, change: Callable[[State], None], place: Path) -> str:
    """Return a copy of a checkpoint in which one weight file differs."""
    shutil.copytree(folder, place)
    state = load_file(place / name)
    change(state)
    save_file(state, place / name)
    return str(place)


def shuffle_rows(key: str) -> Callable[[State], None]:
    """Return a change that brings a matrix's rows into another order."""

    def change(state: State) -> None:
        order = torch.randperm(len(state[key]), generator=torch.Generator().manual_seed(0))
        state[key] = state[key][order].contiguous()

    return change


def replace_weights(state: State) -> None:
    """Draw every matrix anew, as another model would have it, at the same scale."""
    generator = torch.Generator().manual_seed(0)
    for key, value in state.items():
        if value.ndim == 2:
            noise = torch.randn(value.shape, generator=generator) * value.float().std()
            state[key] = noise.to(value.dtype)


def test_the_shipped_model_passes(shipped) -> None:
    assert tuple(line.check for line in shipped) == CHECKS
    assert {line.state for line in shipped} == {"ok"}, as_table(shipped)
    figures = {line.check: line.figures for line in shipped}
    assert figures["codec"]["psnr"] > 25 and figures["codes"]["rate"] > 0.9
    first, _ = figures["drafter"]["levels"]
    shuffled = figures["drafter"]["shuffled"]
    assert first["total_variation"] < 0.6 < 0.8 < shuffled["total_variation"]
    assert figures["tokens"]["gaps"].keys() == METHODS.keys() - {"ar"}
    assert figures["tokens"]["tau"]["adt"] > 1.4
    seconds = figures["speed"]["seconds_per_token"]["ar"]
    assert figures["estimate"]["hours"]["ar"] == pytest.approx(100 * 256 * seconds / 3600)
    assert 15 < len(as_table(shipped).splitlines()) < 25


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("model.safetensors", shuffle_rows("lm_head.weight")),
        ("model.safetensors", shuffle_rows("model.embed_tokens.weight")),
        ("tokenizer/vqgan.safetensors", shuffle_rows("quantize.embedding.weight")),
    ],
    ids=["head", "embedding", "codebook"],
)
def test_codes_that_the_model_does_not_know(name, change, tmp_path, one_thread) -> None:
    """Logits look plausible, and a codec with its codes in another order is as good as before."""
    subject = subject_of(model_path=changed(TINY, name, change, tmp_path / "model"))
    readings = read_pictures(subject)
    line = check_picture(subject, readings)
    assert line.state == "failed" and "image tokenizer of another model" in line.cause
    assert line.figures["rate"] < 0.6
    assert check_codec(subject).state == "ok"


def test_one_of_two_shards_is_of_another_model(tmp_path, one_thread) -> None:
    folder = Path(shutil.copytree(TINY, tmp_path / "model"))
    shard = folder / write_shards(folder, "safetensors")[1]
    state = load_file(shard)
    replace_weights(state)
    save_file(state, shard)
    subject = subject_of(model_path=str(folder))
    line = check_picture(subject, read_pictures(subject))
    assert line.state == "failed" and "weights of several models" in line.cause
    assert check_drafter(subject).state == "failed"


def test_a_codec_of_mixed_parts(tmp_path, one_thread) -> None:
    def change(state: State) -> None:
        for key in state:
            if key.startswith("decoder.") and state[key].ndim == 4:
                state[key] = state[key].flip(1).contiguous()

    name = "tokenizer/vqgan.safetensors"
    line = check_codec(subject_of(model_path=changed(TINY, name, change, tmp_path / "model")))
    assert line.state == "failed" and "not of one model" in line.cause
    assert line.figures["psnr"] < 18


def test_another_drafter(tmp_path, one_thread) -> None:
    """The target is well; the drafter's sizes fit, its weights are another's."""
    place = tmp_path / "drafter"
    folder = changed(TINY / "drafter", "model.safetensors", replace_weights, place)
    subject = subject_of(drafter_path=folder)
    line = check_drafter(subject)
    assert line.state == "failed" and "--drafter_path" in line.cause
    first = line.figures["levels"][0]["total_variation"]
    assert first == pytest.approx(line.figures["shuffled"]["total_variation"], abs=0.03)


def test_the_report_of_a_checkpoint_without_training(checkpoint, capsys) -> None:
    """Random weights know no codes and no pictures; all else is as it should be."""
    assert main.main(["verify", "--json", "--model_path", str(checkpoint), "--device=cpu"]) == 1
    said = capsys.readouterr()
    document = json.loads(said.out)
    lines = {line["check"]: line for line in document["lines"]}
    assert tuple(lines) == CHECKS and not document["ok"]
    assert {name for name, line in lines.items() if line["state"] == "failed"} == {"codec", "codes"}
    assert all((line["cause"] is None) == (line["state"] != "failed") for line in lines.values())
    assert "failed: codec, codes" in said.err
    assert lines["transformers"]["figures"]["largest"] < 1e-3


def test_a_checkpoint_without_a_drafter(checkpoint, tmp_path) -> None:
    folder = Path(shutil.copytree(checkpoint, tmp_path / "model"))
    shutil.rmtree(folder / "drafter")
    subject = subject_of(model_path=str(folder))
    line = check_drafter(subject)
    assert line.state == "skipped" and "--drafter_path" in line.text
    assert check_tokens(Decoded(subject)).figures["gaps"].keys() == {
        name for name, entry in METHODS.items() if entry.speculative and not entry.drafted
    }


def test_weights_with_nan(checkpoint, tmp_path, capsys) -> None:
    def change(state: State) -> None:
        state["model.norm.weight"][3] = torch.nan

    folder = changed(checkpoint, "model.safetensors", change, tmp_path / "model")
    assert main.main(["verify", "--json", "--model_path", folder, "--device=cpu"]) == 1
    out = capsys.readouterr().out
    assert "NaN" not in out.replace("NaN or infinity", "")  # which is no JSON
    lines = {line["check"]: line for line in json.loads(out)["lines"]}
    assert lines["logits"]["state"] == "failed" and "checksums" in lines["logits"]["cause"]
    assert lines["tokens"]["state"] == "skipped" and lines.keys() == set(CHECKS)


def test_a_missing_shard_is_the_only_line(checkpoint, tmp_path, capsys) -> None:
    folder = Path(shutil.copytree(checkpoint, tmp_path / "model"))
    name = write_shards(folder, "safetensors")[0]
    (folder / name).unlink()
    assert main.main(["verify", "--model_path", str(folder), "--device=cpu"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("files  failed") and name in out and "main.py inspect" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model_path=/no/such"], "--model_path /no/such: found no such folder"),
        (["--drafter_path=/no/such"], "--drafter_path /no/such: found no such folder"),
        (["--num_images=0"], "--num_images: found 0"),
        (["--method=adt"], "--method: unknown flag"),
        (["--cfg_mode=sequential"], "--cfg_mode: unknown flag"),
    ],
)
def test_settings_are_checked_first(words, message, capsys) -> None:
    assert main.main(["verify", *words]) == 2
    said = capsys.readouterr()
    assert said.out == "" and message in said.err


def reading(entropy: float = 2.0, guided: float = 0.2) -> Reading:
    """A reading of four positions."""
    values = torch.full((4,), entropy), torch.full((4,), guided)
    return Reading(True, *values, torch.full((4,), 0.9))


@pytest.mark.parametrize(("entropy", "state"), [(2.0, "ok"), (3.17, "failed"), (0.01, "failed")])
def test_uniform_logits_and_point_masses_fail(entropy, state, small) -> None:
    assert check_logits(small, [reading(entropy)]).state == state


@pytest.mark.parametrize(("guided", "state"), [(0.2, "ok"), (1e-4, "failed")])
def test_guidance_has_to_change_something(guided, state, small) -> None:
    assert check_guidance(small, [reading(guided=guided)]).state == state
    sampling = replace(small.settings.sampling, cfg=1.0)
    unguided = Subject(replace(small.settings, sampling=sampling), small.session)
    assert check_guidance(unguided, []).state == "skipped"


def test_without_guidance_there_is_one_row(checkpoint) -> None:
    settings = VerifySettings(model_path=str(checkpoint), device="cpu")
    settings = replace(settings, sampling=replace(settings.sampling, cfg=1.0))
    lines = {line.check: line.state for line in examine(settings)}
    assert lines["guidance"] == "skipped" and lines["tokens"] == lines["transformers"] == "ok"


def test_order_rates_compare_codes_that_are_new() -> None:
    """Codes 5, 7, 5, 8, 9: new after the first are 7, 8 and 9, at places 1, 3 and 4."""
    log_p = torch.zeros(4, 10)
    log_p[0, 7], log_p[0, 8], log_p[0, 9] = 1.0, 2.0, 0.0  # 7 is likelier than 9, not than 8
    log_p[2, 8], log_p[2, 9] = 2.0, 1.0
    log_p[1, 5] = 9.0  # seen before: not compared
    assert order_rates(log_p, torch.tensor([5, 7, 5, 8, 9])).tolist() == [0.5, 1.0]


def test_a_method_with_other_tokens_is_named(small) -> None:
    decoded = Decoded(small)
    assert check_tokens(decoded).state == "ok"
    adt = decoded.by_method["adt"]
    image = adt.images[0]
    codes = image.codes.clone()
    codes[5] = (codes[5] + 1) % small.target.vocab.size
    images = [replace(image, codes=codes), *adt.images[1:]]
    wrong = Decoded(small)
    wrong.__dict__["by_method"] = decoded.by_method | {"adt": replace(adt, images=images)}
    line = check_tokens(wrong)
    images = 2 * (len(METHODS) - 1)
    assert line.state == "failed" and line.text.endswith(
        f"{images - 1} of {images} as by plain decoding; wrong: adt"
    )


def occupied(decoded: Decoded, share: float, images: int = 5000) -> Decoded:
    """The same measurements by a process that had a share of the processor."""
    subject = Subject(replace(decoded.subject.settings, num_images=images), decoded.subject.session)
    copy = Decoded(subject)
    copy.__dict__["by_method"] = {
        name: replace(one, cpu_seconds=(share * sum(image.seconds for image in one.images),))
        for name, one in decoded.by_method.items()
    }
    return copy


def test_an_estimate_grows_with_the_images(small) -> None:
    decoded = Decoded(small)
    lines = [tell_estimate(occupied(decoded, 1.0, images)) for images in (5000, 50_000)]
    hours = [line.figures["hours"]["jacobi"] for line in lines]
    assert hours[1] == pytest.approx(10 * hours[0])


def test_nothing_is_estimated_on_a_busy_machine(small) -> None:
    decoded = Decoded(small)
    busy, idle = occupied(decoded, 0.5), occupied(decoded, 0.97)
    assert "ran for only 50% of the time" in tell_cost(busy).text
    assert tell_estimate(busy).state == "skipped"
    assert tell_cost(idle).figures["doubt"] is None and tell_estimate(idle).state == "ok"


def test_bf16_is_allowed_to_round(checkpoint) -> None:
    subject = subject_of(model_path=str(checkpoint), dtype="bf16")
    assert check_tokens(Decoded(subject)).state == "ok"
    assert check_reference(subject).state == "ok"


def test_logits_that_are_not_those_of_transformers(checkpoint) -> None:
    subject = subject_of(model_path=str(checkpoint))
    assert check_reference(subject).state == "ok"
    subject.target.transformer.norm.weight.data[::2].mul_(1.5)
    assert check_reference(subject).state == "failed"


def test_transformers_is_skipped_without_memory(small, monkeypatch) -> None:
    monkeypatch.setattr(reference, "_free_bytes", lambda _: 1000)
    line = check_reference(small)
    assert line.state == "skipped" and "free are 1.0 KiB" in line.text


@pytest.mark.parametrize(
    ("model", "layout"),
    [
        ("janus_pro", "transformers"),
        ("janus_pro", "authors"),
        ("emu3", "new"),
        ("emu3", "old"),
        ("emu3", "authors"),
    ],
)
def test_other_families_logits_are_those_of_transformers(model, layout, tmp_path) -> None:
    folder, more = tmp_path / "model", {}
    if model == "janus_pro":
        write_janus(folder, authors=layout == "authors")
    else:
        sizes = Emu3Sizes(positions=700, words=AUTHORS if layout == "authors" else BEFORE)
        write_emu3(folder, sizes, layout)
        more = {"target_size": "40x32"}
    subject = subject_of(model=model, model_path=str(folder), dtype="fp64", **more)
    line = check_reference(subject)
    assert line.state == "ok", line.text
    subject.target.transformer.norm.weight.data[::2].mul_(1.5)
    assert check_reference(subject).state == "failed"


@pytest.mark.parametrize("size", ["64", "96x64"])
def test_lumina_with_its_row_ends(size, tmp_path) -> None:
    folder = write_checkpoint(tmp_path / "model", LUMINA)
    settings = VerifySettings(
        model="lumina_mgpt", target_size=size, model_path=str(folder), device="cpu"
    )
    lines = {line.check: line for line in examine(settings)}
    assert {lines[name].state for name in ("tokens", "drafter", "transformers")} == {"ok"}


def test_llamagen(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(FAMILIES, "llamagen", llamagen_family(4))
    monkeypatch.setitem(TARGETS, "llamagen", partial(LlamaGen.load, side=4))
    folder = write_llamagen(tmp_path / "LlamaGen-T2I")
    settings = VerifySettings(model="llamagen", model_path=str(folder), device="cpu")
    lines = {line.check: line for line in examine(settings)}
    assert lines["tokens"].state == lines["guidance"].state == "ok"
    assert "no class for --model llamagen" in lines["transformers"].text
