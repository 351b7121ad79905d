"""`extract_tokens` on small checkpoints: codes of pictures and own samples, faults, resumption."""

import hashlib
import io
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from browser import thinned
from PIL import Image
from program import extraction_settings, run_settings
from ran import without_progress
from together import Together

import main
from configs.extraction import ExtractionSettings
from configs.fields import SettingsError
from drafters.training import shards
from drafters.training.shards import Tokens
from models.codecs.vqgan_files import llamagen_vq, load_vqgan
from models.registry import load_codec
from models.targets.chameleon import Chameleon
from runs import extract
from runs.extract import extract_tokens
from runs.generate import generate_images
from support.json_lines import read_lines
from support.processes import Processes

SIDE = 8  # pixels of the small checkpoints' images, but for Lumina's


@pytest.fixture(scope="module", autouse=True)
def read_once() -> Iterator[None]:
    """All commands share a codec."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extract, "load_codec", cache(load_codec))
        yield


def pixels(number: int, size: tuple[int, int] = (SIDE, SIDE)) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)


def packed(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def png(number: int, size: tuple[int, int] = (SIDE, SIDE)) -> bytes:
    return packed(Image.fromarray(pixels(number, size)))


def write_folder(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def images(tmp_path) -> Path:
    pictures = {f"{n}.png": png(n) for n in range(9)}
    captions = {f"{n}.txt": b"picture %d" % n for n in range(9)}
    return write_folder(tmp_path / "images", pictures | captions)


def settings(out: Path, checkpoint: Path, **flags: object) -> ExtractionSettings:
    texts = {"output_dir": out, "model_path": checkpoint, "device": "cpu"} | flags
    return extraction_settings({name: str(value) for name, value in texts.items()})


def run(chosen: ExtractionSettings, processes: Processes | None = None) -> None:
    extract_tokens(chosen, processes, 2)


def content(folder: Path) -> tuple[list, list, list, list, list]:
    tokens = Tokens.read(folder)
    skipped = shards.read_skipped(folder)
    skipped = sorted((line["id"], line["reason"]) for line in skipped)
    codes = tokens.codes(range(len(tokens))).tolist()
    return tokens.ids, tokens.captions, tokens.seeds, codes, skipped


def encoded(checkpoint: Path, *pictures: np.ndarray) -> list[list[int]]:
    pixels = torch.from_numpy(np.stack(pictures))
    return load_vqgan(checkpoint / "tokenizer").encode(pixels).tolist()


def by_caption(folder: Path) -> dict[str, list[int]]:
    _, captions, _, codes, _ = content(folder)
    return dict(zip(captions, codes, strict=True))


def test_a_folder_and_a_list_give_the_same_codes(checkpoint, images, tmp_path, monkeypatch, capsys):
    """Without the weights of the transformer."""
    monkeypatch.setattr(Chameleon, "load", lambda *arguments: pytest.fail("loaded"))
    lines = [{"file_name": f"{n}.png", "caption": [f"picture {n}", "other"]} for n in range(9)]
    (images / "list").mkdir()
    listed = images / "list" / "all.jsonl"
    lines = [line | {"image": f"../{line['file_name']}"} for line in lines]
    listed.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = []
    for name, place in (("folder", images), ("list", listed)):
        run(settings(tmp_path / name, checkpoint, data_dir=place))
        found.append(by_caption(tmp_path / name))
    assert found[0] == found[1] and len(found[0]) == 9
    assert capsys.readouterr().out.splitlines() == [
        f"9 images in {tmp_path / name} (9 new), 0 skipped" for name in ("folder", "list")
    ]
    expected = encoded(checkpoint, *map(pixels, range(9)))
    assert [found[0][f"picture {n}"] for n in range(9)] == expected
    sizes = {"rows": 4, "columns": 4, "vocab": 24, "width": 8, "height": 8}
    described = {"origin": "images", "model": "tiny", "law": None} | sizes
    about = Tokens.read(tmp_path / "list").about
    assert {name: about[name] for name in described} == described


def test_pictures_are_scaled_and_cut_in_the_middle(checkpoint, tmp_path):
    wide = Image.fromarray(pixels(1, (24, 16)))
    files = {"a.png": png(1, (24, 16)), "a.txt": b"wide"}
    run(settings(tmp_path / "out", checkpoint, data_dir=write_folder(tmp_path / "in", files)))
    small = np.asarray(wide.resize((12, 8), Image.Resampling.LANCZOS))[:, 2:10]
    assert [by_caption(tmp_path / "out")["wide"]] == encoded(checkpoint, small)


def test_lumina_has_its_own_size(lumina_folder, tmp_path):
    files = {"a.png": png(1, (130, 70)), "a.txt": b"a cat"}
    place = write_folder(tmp_path / "in", files)
    flags = {"model": "lumina_mgpt", "target_size": "64x32", "data_dir": place}
    run(settings(tmp_path / "lumina", lumina_folder, **flags))
    half = Image.fromarray(pixels(1, (130, 70))).resize((65, 35), Image.Resampling.BOX)
    scaled = half.resize((64, 34), Image.Resampling.BICUBIC).crop((0, 1, 64, 33))
    tokens = Tokens.read(tmp_path / "lumina")
    assert (tokens.about["rows"], tokens.about["columns"], tokens.about["width"]) == (2, 4, 64)
    assert tokens.codes([0]).tolist() == encoded(lumina_folder, np.asarray(scaled))


def test_llamagen_has_its_own_codec(llamagen, tmp_path):
    place = write_folder(tmp_path / "square", {"a.png": png(2), "a.txt": b"a red cat " * 100})
    run(settings(tmp_path / "codes", llamagen, model="llamagen", data_dir=place))
    codec = llamagen_vq(llamagen.parent / "vq_ds16_t2i.pt", 4).load()
    expected = codec.encode(torch.from_numpy(pixels(2))[None])
    assert torch.equal(Tokens.read(tmp_path / "codes").codes([0]), expected)


def test_what_cannot_be_used_is_counted_by_reason(checkpoint, images, tmp_path, capsys):
    clear = packed(Image.new("RGBA", (SIDE, SIDE), (255, 0, 0, 0)))
    for name, picture, caption in (
        ("broken", png(1)[:60], "a cat"),
        ("text", b"no image", "a cat"),
        ("silent", png(1), " "),
        ("long", png(1), "a cat " * 50),
        ("small", png(1, (3, 3)), "a cat"),
        ("narrow", png(1, (40, 8)), "a cat"),
        ("clear", clear, "white"),
        ("mute", png(1), None),
    ):
        (images / f"{name}.png").write_bytes(picture)
        if caption is not None:
            (images / f"{name}.txt").write_text(caption)
    for _ in range(2):  # the second time nothing is left to do, and nothing is listed again
        run(settings(tmp_path / "out", checkpoint, data_dir=images))
    ids, _, _, _, skipped = content(tmp_path / "out")
    reasons = {Path(name).stem: reason.partition(":")[0] for name, reason in skipped}
    assert len(ids) == 10 and reasons == {
        "broken": "image cannot be read", "text": "image cannot be read", "silent": "empty caption",
        "long": "caption cannot be read", "small": "image too small", "narrow": "image too narrow",
        "mute": "no caption",
    }  # fmt: skip
    said = capsys.readouterr().out.splitlines()
    skips = "7 skipped: 2 image cannot be read, 1 "
    for line, new in zip(said, (10, 0), strict=True):
        assert line.startswith(f"10 images in {tmp_path / 'out'} ({new} new), {skips}")
    white = np.full((SIDE, SIDE, 3), 255, np.uint8)
    assert [by_caption(tmp_path / "out")["white"]] == encoded(checkpoint, white)
    (images / "mute.txt").write_text("mended")
    (tmp_path / "out/skipped.jsonl").unlink()  # so that they are tried again (docs/training.md)
    run(settings(tmp_path / "out", checkpoint, data_dir=images))
    ids, captions, _, _, skipped = content(tmp_path / "out")
    assert len(ids) == 11 and "mended" in captions and len(skipped) == 6


def test_names_and_captions_in_no_encoding_do_not_stop_it(checkpoint, images, tmp_path):
    shutil.copy(images / "1.png", os.fsencode(images) + b"/\xff.png")
    (images / "all.jsonl").write_bytes(
        b'{"image": "1.png", "caption": "\\ud800"}\n{"image": "2.png", "caption": "good"}\n'
        b'{"image": "\\udcff.png", "caption": "odd"}\n'
    )
    run(settings(tmp_path / "out", checkpoint, data_dir=images))
    ids, captions, _, _, skipped = content(tmp_path / "out")
    assert (ids, captions) == (["2.png", "\\udcff.png"], ["good", "odd"])
    assert skipped == [("1.png", "no caption: it is not UTF-8")]


@pytest.fixture
def prompts(tmp_path) -> Path:
    (tmp_path / "prompts.txt").write_text("a red cat\na blue cat\na small cat\na red cat\na fox\n")
    return tmp_path / "prompts.txt"


def drawn(out: Path, checkpoint: Path, **flags: object) -> ExtractionSettings:
    shared = {"from_prompts": True, "num_images": 7, "batch_size": 2}
    return settings(out, checkpoint, **shared | flags)


def test_own_samples_are_the_images_of_generate_images(checkpoint, prompts, tmp_path, monkeypatch):
    chosen = drawn(tmp_path / "own", checkpoint, prompt=prompts, top_k=9, seed=3)
    run(chosen)
    texts = {"prompt": prompts, "model_path": checkpoint, "device": "cpu", "method": "ar"}
    texts |= {"top_k": 9, "seed": 3, "samples_per_prompt": 2, "output_dir": tmp_path / "run"}
    generate_images(run_settings({name: str(value) for name, value in texts.items()}))
    tokens, lines = Tokens.read(tmp_path / "own"), read_lines(tmp_path / "run/records.jsonl")
    records = {line["id"]: line for line in lines}
    images = "0_0 0_1 1_0 1_1 2_0 3_0 4_0"  # two of the first prompts
    assert tokens.ids == [f"0000{name}" for name in images.split()]
    for index, name in enumerate(tokens.ids):
        packed = tokens.codes([index])[0].numpy().astype("<i4").tobytes()
        assert records[name]["tokens_sha256"] == hashlib.sha256(packed).hexdigest()
        named = records[name]["prompt"], records[name]["seed"]
        assert named == (tokens.captions[index], tokens.seeds[index])
    assert tokens.about["origin"] == "own"
    assert tokens.about["law"] == {"temperature": 1.0, "top_k": 9, "top_p": 1.0, "cfg": 3.0}
    before = content(tmp_path / "own")
    monkeypatch.setattr(extract, "open_session", lambda settings: pytest.fail("loaded"))
    run(chosen)  # nothing is missing
    assert content(tmp_path / "own") == before


def test_own_samples_of_the_tiny_world_and_other_methods(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(extract, "SCENES", 2)
    captions = {"train": ["a red dot", "a blue dot", "x" * 500]}
    monkeypatch.setattr(extract, "sample_captions", lambda split, count: captions[split][:count])
    for method in ("jacobi", "eagle2"):
        extract_tokens(drawn(tmp_path / method, checkpoint, method=method, num_images=3))
    assert content(tmp_path / "jacobi") == content(tmp_path / "eagle2")
    assert Tokens.read(tmp_path / "jacobi").captions == ["a red dot", "a red dot", "a blue dot"]
    monkeypatch.setattr(extract, "SCENES", 3)
    extract_tokens(drawn(tmp_path / "long", checkpoint, num_images=3))
    (line,) = read_lines(tmp_path / "long/skipped.jsonl")
    told = "caption cannot be read: the prompt is 503 tokens"
    assert line["id"] == "00002_0" and line["reason"].startswith(told)


@pytest.fixture(params=["images", "own"])
def flags(request, images, prompts) -> dict[str, object]:
    """What tokens are made of."""
    own = {"from_prompts": True, "num_images": 6, "prompt": prompts}
    return own if request.param == "own" else {"data_dir": images}


@pytest.mark.parametrize("killed", thinned([True, False]))
def test_interrupted_and_continued(checkpoint, images, flags, tmp_path, monkeypatch, killed):
    (images / "0.txt").write_text(" ")
    run(settings(tmp_path / "whole", checkpoint, **flags))
    with monkeypatch.context() as patch:
        added = []

        def add(self, example, add=shards.ShardWriter.add):
            if len(added) == 5:
                if killed:  # which leaves no time to write them
                    self._examples = []
                raise KeyboardInterrupt
            added.append(example.id)
            add(self, example)

        patch.setattr(shards.ShardWriter, "add", add)
        with pytest.raises(KeyboardInterrupt):
            run(settings(tmp_path / "parts", checkpoint, **flags))
    assert len(Tokens.read(tmp_path / "parts")) == (4 if killed else 5)
    run(settings(tmp_path / "parts", checkpoint, **flags))
    assert content(tmp_path / "parts") == content(tmp_path / "whole")


def test_two_processes_write_what_one_writes(checkpoint, images, flags, tmp_path, capsys):
    (images / "3.txt").write_text(" ")
    run(settings(tmp_path / "one", checkpoint, **flags))
    chosen = settings(tmp_path / "two", checkpoint, **flags)
    assert Together(2).run(lambda processes: run(chosen, processes)) == [None, None]
    assert content(tmp_path / "two") == content(tmp_path / "one")
    assert {path.name.split("-")[1] for path in (tmp_path / "two").glob("tokens-*")} == {"0", "1"}
    said = capsys.readouterr().out
    assert said.count(f"in {tmp_path / 'two'}") == 1  # the first process speaks for all
    run(chosen)
    assert content(tmp_path / "two") == content(tmp_path / "one")


def test_a_project_that_moves_goes_on(checkpoint, images, prompts, tmp_path, monkeypatch):
    """Also with copies that a user keeps in the folder, which count for nothing."""
    home, moved = tmp_path / "home", tmp_path / "moved"
    shutil.copytree(images, home / "images")
    shutil.copy(prompts, home / "p.txt")
    kinds = {"codes": {"data_dir": "images"}}
    kinds["own"] = {"from_prompts": True, "num_images": 2, "prompt": "p.txt"}
    monkeypatch.chdir(home)
    for name, flags in kinds.items():
        run(settings(Path(name), checkpoint, **flags))
        for copy in ("tokens-0-00000-old.safetensors", "tokens-mine-00000.safetensors"):
            shutil.copy(home / name / "tokens-0-00000.safetensors", home / name / copy)
        (home / name / "skipped.old.jsonl").write_text("mine")
    before = [content(home / name) for name in kinds]
    home.rename(moved)
    monkeypatch.chdir(moved)
    for name, flags in kinds.items():
        run(settings(Path(name), checkpoint, **flags))
    assert [content(moved / name) for name in kinds] == before


def test_folders_that_are_not_shared_are_noticed(checkpoint, images, tmp_path):
    def work(processes: Processes) -> None:
        run(settings(tmp_path / "ab"[processes.rank], checkpoint, data_dir=images), processes)

    faults = [fault for fault in Together(2).run(work) if isinstance(fault, SettingsError)]
    assert faults and all("a folder that all processes share" in str(fault) for fault in faults)


def test_processes_that_see_other_images_are_noticed(checkpoint, images, tmp_path):
    """Each of two machines has its own folder of that name, or other flags."""
    others = shutil.copytree(images, tmp_path / "b" / "images")
    (others / "8.png").rename(others / "9.png")

    def work(processes: Processes) -> None:
        place = (images, others)[processes.rank]
        run(settings(place.parent / "out", checkpoint, data_dir=place), processes)

    faults = [fault for fault in Together(2).run(work) if isinstance(fault, SettingsError)]
    assert faults and all("the same settings and files in all" in str(fault) for fault in faults)
    assert not (tmp_path / "out").exists()


def test_at_temperature_0_a_prompt_has_one_sample(checkpoint, prompts, tmp_path, capsys):
    run(drawn(tmp_path / "own", checkpoint, prompt=prompts, num_images=9, temperature=0))
    captions = Tokens.read(tmp_path / "own").captions
    assert len(captions) == 5 and "--temperature 0: " in capsys.readouterr().err


def test_grey_of_16_bits_has_the_codes_of_8(checkpoint, tmp_path):
    shades = np.arange(256, dtype=np.uint16).reshape(16, 16).repeat(2, 0).repeat(2, 1)
    for name, pixels in (("wide", shades * 257), ("usual", shades.astype(np.uint8))):
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "PNG")
        write_folder(tmp_path / name, {"a.png": buffer.getvalue(), "a.txt": b"grey"})
        run(settings(tmp_path / f"of_{name}", checkpoint, data_dir=tmp_path / name))
    assert content(tmp_path / "of_wide") == content(tmp_path / "of_usual")


def test_other_settings_in_the_same_folder_are_refused(checkpoint, images, prompts, tmp_path):
    out, own = tmp_path / "out", tmp_path / "own"
    other = write_folder(tmp_path / "other", {"a.png": png(1), "a.txt": b"x"})
    run(settings(out, checkpoint, data_dir=images))
    with pytest.raises(SettingsError, match=r"--output_dir.*--data_dir: .*s there, .*other now"):
        run(settings(out, checkpoint, data_dir=other))
    run(drawn(own, checkpoint, prompt=prompts, num_images=1))
    with pytest.raises(SettingsError, match="other settings: --top_k: 0 there, 5 now"):
        run(drawn(own, checkpoint, prompt=prompts, top_k=5))
    prompts.write_text("a dog\n")
    with pytest.raises(SettingsError, match="got those with other settings: --prompt"):
        run(drawn(own, checkpoint, prompt=prompts))


def test_a_folder_in_use_and_a_checkpoint_without_files_are_refused(checkpoint, images, tmp_path):
    about = {"rows": 1, "columns": 1, "vocab": 1, "settings": {}}
    writer = shards.ShardWriter(tmp_path / "out", about)
    with pytest.raises(SettingsError, match="--output_dir.*another command using it"):
        run(settings(tmp_path / "out", checkpoint, data_dir=images))
    writer.close()
    chosen = settings(tmp_path / "out", checkpoint, data_dir=images)
    other = write_folder(tmp_path / "copy", {"config.json": b"{}"})
    with pytest.raises(SettingsError, match="--model_path .*copy"):
        engine = replace(chosen.run.engine, model_path=str(other))
        run(replace(chosen, run=replace(chosen.run, engine=engine)))


JUNK = {
    "c.jsonl": b"[" * 100_000,
    "d.jsonl": b'{"image": "a\\u0000b.png", "caption": "a cat"}',
    "e.jsonl": b'{"image": "%s.png", "caption": "a cat"}' % (b"x" * 300),
}


@pytest.mark.parametrize("name", JUNK)
def test_a_place_without_one_usable_image_fails_with_the_reason(checkpoint, tmp_path, capsys, name):
    place = write_folder(tmp_path / "data", {name: JUNK[name]}) / name
    words = ["extract_tokens", f"--data_dir={place}", f"--output_dir={tmp_path / 'out'}"]
    assert main.main([*words, f"--model_path={checkpoint}", "--device=cpu"]) == 1
    said = capsys.readouterr()
    error = without_progress(said.err)
    assert said.out == "" and error.startswith(f"error: --data_dir {place}: found nothing")
    assert "1 skipped: 1 " in error and len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("skipped.jsonl", "hello\n{}\n", ", line 1: .*got 'hello'"),
        ("skipped.1.jsonl", '{"id": 7}\n{}\n', ", line 1: "),
        ("about.json", '{"name": "mine"}', ""),
        ("tokens-0-00000.safetensors", "junk", ": damaged shard"),
    ],
)
def test_damaged_files_are_named_and_stay(checkpoint, images, tmp_path, name, text, message):
    chosen = settings(tmp_path / "out", checkpoint, data_dir=images)
    run(chosen)
    path = tmp_path / "out" / name
    path.write_text(text)
    with pytest.raises(SettingsError, match=f"--output_dir.*{name}{message}"):
        run(chosen)
    assert path.read_text() == text
