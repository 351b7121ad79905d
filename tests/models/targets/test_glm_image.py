"""GLM-Image's tokens against transformers: prompts, logits in both grids, whole images."""

import json
import locale
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import diffusers
import huggingface_hub
import numpy as np
import pytest
import torch
import transformers
from browser import only_in_all, thinned
from damage import cut, gone
from fakes import finished
from families import PLAIN, PROMPTS, cached_logits, extracted, greedy
from PIL import Image
from small import shapes_of, small_settings
from small_glm_image import SIZES, codes_of, hollow_painter, write_painter
from torch import Tensor
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2.functional import resize
from transformers.models.glm_image.processing_glm_image import GlmImageProcessor

import main
from adt_tree import Pipeline
from adt_tree.sources import source_values
from commands import command, values_of
from configs.schema import SamplingSettings
from decoding.images import Job
from drafters.training.shards import Tokens, read_about
from models.base import ImageGrid
from models.codecs import glm_codec
from models.codecs.glm_codec import GlmPainter, check_schedule, vision_network
from models.files.folders import checkpoint_folder
from models.target import TargetModel
from models.targets.glm_image import GlmImage, GlmWords
from page.stage import Wish, stages
from runs.session import Session, open_session
from scripts.checkpoints.glm_image import FEW, FULL, write_glm_image
from scripts.checkpoints.parts import OPTIONS
from support.border import Failure
from support.json_lines import read_lines

GREEDY = SamplingSettings(cfg=1.0, temperature=0.0)
LAYOUTS = ["glm_image"]
TEXT = " A red <sop>cat<start>.\n"  # names of control tokens are text


@pytest.fixture(scope="module")
def session(original) -> Session:
    return open_session(small_settings(original, model="glm_image"))


def oracle(folder: Path) -> transformers.GlmImageForConditionalGeneration:
    model = transformers.GlmImageForConditionalGeneration
    return model.from_pretrained(folder, dtype=torch.float64).eval()


def their_grids(target: TargetModel) -> dict[str, Tensor]:
    grid = target.grid
    grids = [[1, grid.rows, grid.columns], [1, *grid.preview]]
    return {"image_grid_thw": torch.tensor(grids), "images_per_sample": torch.tensor([2])}


def test_the_prompt_is_the_processors(session, original) -> None:
    """Its tokens are those of transformers' template and layout, its grids those it gives."""
    target, home = session.target, original.parent / "processor"
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(home / "tokenizer.json"), bos_token="<start>", pad_token="<pad>"
    )
    message = {"role": "user", "content": [{"type": "text", "text": "a cat, 3 dogs"}]}
    template = (home / "chat_template.jinja").read_text()
    text = tokenizer.apply_chat_template([message], chat_template=template, tokenize=False)
    shape = GlmImageProcessor._get_target_shape(None, 64, 96)
    assert shape == (2, 3, *target.grid.preview) == (2, 3, 13, 19)
    text += "<sop>2 3<eop><sop>13 19<eop><start>"
    expected = tokenizer(text, add_special_tokens=False).input_ids
    rows = target.prompt("a cat, 3 dogs", 1)
    assert rows.ids.tolist() == [expected] and target.length("a cat, 3 dogs") == len(expected)
    ids = target.prompt(TEXT, 1).ids[0].tolist()
    words = target.prompts.words
    assert words["<start>"] == FEW
    assert [ids.count(words[name]) for name in ("<start>", "<sop>")] == [1, 2]


def test_the_template_is_utf8_in_any_locale(original, tmp_path) -> None:
    home = shutil.copytree(original.parent / "processor", tmp_path / "processor")
    template = home / "chat_template.jinja"
    template.write_bytes("{{ messages[0]['content'][0]['text'] }} – über".encode())
    used = locale.setlocale(locale.LC_CTYPE)
    try:
        locale.setlocale(locale.LC_CTYPE, "C")
        assert GlmWords(home).after == [" – über"]
    finally:
        locale.setlocale(locale.LC_CTYPE, used)
    template.write_bytes(b"\xff")
    with pytest.raises(ValueError, match="jinja cannot be rendered: 'utf-8'"):
        GlmWords(home)


@pytest.mark.parametrize(
    ("dtype", "bound", "share"),
    thinned([("fp64", 2e-6, 0.5), ("fp64", 2e-6, 1.0), ("fp32", 1e-4, 0.5)]),
)
def test_logits_in_both_grids(dtype, bound, share, tmp_path) -> None:
    """A prompt, then all tokens: rows of the small grid, its end, rows of the large one."""
    folder = write_glm_image(tmp_path / "vision_language_encoder", share)
    target = open_session(small_settings(folder, dtype, model="glm_image")).target
    model, ids = oracle(folder), target.prompt(TEXT, 1).ids
    size, generator = (1, target.grid.tokens), torch.Generator().manual_seed(3)
    codes = torch.randint(FEW, size, generator=generator)
    with torch.no_grad():
        read = model(input_ids=ids, **their_grids(target), use_cache=True)
        cache = read.past_key_values
        more = model(input_ids=codes, **their_grids(target), past_key_values=cache).logits
    expected = torch.cat([read.logits[:, -1:], more], 1)[..., :FEW]
    found = cached_logits(target, TEXT, codes[0].tolist(), guidance=1)
    assert expected.std() > 0.3
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=bound)


def test_a_greedy_image_is_that_of_transformers_generate(original, monkeypatch) -> None:
    """All tokens of both grids, with every id that is no code forbidden."""
    monkeypatch.setitem(SIZES, "preview", 3)  # 2 x 3 tokens of the small grid
    session = open_session(small_settings(original, model="glm_image"))
    target = session.target
    rows = target.prompt(PROMPTS[2], 1)
    forbidden = list(range(FEW, FEW + 8))
    ids = oracle(original).generate(
        rows.ids, **their_grids(target), max_new_tokens=target.grid.tokens, do_sample=False,
        suppress_tokens=forbidden,
    )  # fmt: skip
    found = greedy(session)
    assert found.tolist() == ids[0, rows.ids.shape[1] :].tolist() and len(found.unique()) > 5
    picture = target.to_image(found[None])[0]
    assert picture.shape == (2, 3, 3) and codes_of(picture).flatten().equal(found[-6:])


def test_the_published_sizes_on_the_meta_device() -> None:
    """10.1 billion weights, 1.2 of them in the vision encoder and its quantiser."""
    full = FULL["glm_image"]
    config = transformers.GlmImageConfig(text_config=full.config["text_config"])
    with torch.device("meta"):
        theirs = transformers.GlmImageForConditionalGeneration(config)
    shapes = shapes_of(theirs.state_dict())
    assert sum(map(math.prod, shapes.values())) == 10_114_245_632
    built = full.networks()[0]
    assert shapes_of(full.shapes(built)).items() <= shapes.items()
    assert built.faults(shapes) == [] and built.module.head.weight.shape == (16_384, 4096)
    seen = vision_network({"model_type": "glm_image"})
    assert seen.faults(shapes) == []
    assert sum(weight.numel() for weight in seen.module.parameters()) == 1_199_457_280


def test_the_folder_or_hub_id_of_the_whole_checkpoint_will_do(original, monkeypatch) -> None:
    root = str(original.parent)
    assert small_settings(original.parent, model="glm_image").model_path == str(original)
    named = {"model": "glm_image", "model_path": root, "cfg": 1.0}
    assert source_values(root, {}).items() >= named.items()
    monkeypatch.setattr("models.files.folders._READ", {})
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: root)
    assert checkpoint_folder("zai-org/GLM-Image", "--model_path") == original


def test_the_token_above_is_in_the_same_grid() -> None:
    grid = ImageGrid(2, 3, preview=(2, 2))
    above = [grid.above(position) for position in range(grid.tokens)]
    assert grid.tokens == 10 and grid.widest == 3
    assert [a if a >= 0 else None for a in above] == [None] * 2 + [0, 1] + [None] * 3 + [4, 5, 6]
    assert grid.above(torch.arange(10)).tolist() == above


def test_codes_of_a_picture_are_those_of_transformers(original, tmp_path) -> None:
    """Of both grids: the encoder reads a picture at half the image's size, and at the small one."""
    pixels, codes = extracted("glm_image", original, (32, 48), tmp_path, "--target_size=96x64")
    large, small = encoded(original, pixels), encoded(original, resized(pixels, (13, 19)))
    assert codes[0].tolist() == [*small, *large] and len(set(large)) > 3
    assert read_about(tmp_path / "tokens")["preview"] == [13, 19]
    lengths = GlmImage().codebook(original, OPTIONS).norm(dim=-1)
    torch.testing.assert_close(lengths, torch.ones(FEW))


@pytest.mark.parametrize("drafter", thinned(["eagle", "block"]))
def test_a_drafter_learns_from_the_targets_images(drafter, original, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(SIZES, "preview", 3)  # 2 x 3 tokens of the small grid
    (tmp_path / "prompts.txt").write_text("\n".join(f"{number} cats" for number in range(5)))
    model = f"--model glm_image --model_path {original} --target_size 96x64 --device cpu"
    tokens, out = tmp_path / "tokens", tmp_path / "out"
    words = f"extract_tokens {model} --output_dir {tokens} --from_prompts --num_images 5"
    assert main.main([*words.split(), f"--prompt={tmp_path / 'prompts.txt'}"]) == 0
    assert Tokens.read(tokens).codes([0]).shape == (1, 12)
    method = "adt" if drafter == "eagle" else "block"
    words = f"train_drafter {model} --tokens {tokens} --output_dir {out} --drafter {drafter}"
    words += f" --steps 2 --batch_size 2 --holdout 2 --eval_images 2 --eval_method {method}"
    assert main.main(words.split()) == 0
    decoding = json.loads((out / "log.jsonl").read_text().splitlines()[-1])["decoding"]
    assert decoding["identical"] == decoding["images"] == 2
    monkeypatch.undo()
    assert main.main(words.replace(str(out), f"{out}2").split()) == 2  # tokens of another grid


def test_the_page_shows_the_large_grid(original, monkeypatch) -> None:
    monkeypatch.setitem(SIZES, "preview", 3)
    pipe = Pipeline.from_pretrained(
        original, method="jacobi", target_size="96x64", dtype="fp64", device="cpu"
    )
    asked = Wish("a cat", "jacobi", 3, 1.0, guidance_scale=1.0, top_k=0, tokens=0, slow=True)
    values = list(stages(pipe, asked, pause=0.0))
    panels = [panel for value in values for panel in value["panels"]]
    plain, fast = values[-1]["panels"]
    assert plain["image"] == fast["image"] and plain["decided"] == fast["decided"] == 6
    assert len(plain["heat"]) == len(fast["heat"]) == 6 and plain["rounds"] == 11
    assert {panel["decided"] for panel in panels} <= set(range(7))
    roots = [panel["draft"]["root"] for panel in panels if panel.get("draft")]
    assert roots and min(roots) >= 0 and max(roots) < 6


def resized(pixels: Tensor, grid: tuple[int, int]) -> Tensor:
    size = [16 * side for side in grid]
    # torchvision rounds weights of uint8, so numbers are real until the end
    image = resize(pixels.permute(2, 0, 1).float(), size, InterpolationMode.BICUBIC)
    return image.permute(1, 2, 0).round().clamp(0, 255).byte()


def encoded(folder: Path, pixels: Tensor) -> list[int]:
    """The codes by transformers' classes, after the steps of the checkpoint's image processor."""
    process = transformers.GlmImageImageProcessor.from_pretrained(folder.parent / "processor")
    given = process(images=[pixels.permute(2, 0, 1)], do_resize=False, return_tensors="pt")
    model = transformers.GlmImageForConditionalGeneration.from_pretrained(folder).eval()
    grids = given["image_grid_thw"]
    with torch.no_grad():
        hidden = model.get_image_features(given["pixel_values"], grids).pooler_output
        return model.get_image_tokens(hidden, grids).tolist()


def generated(folder: Path, out: Path) -> tuple[Tensor, dict]:
    words = f"generate_images --model glm_image --model_path {folder} --target_size 96x64"
    words += f" --dtype fp64 --device cpu --temperature 0 --method jacobi --output_dir {out}"
    assert main.main([*words.split(), "--prompt", "a 'red' cat"]) == 0
    (path,) = (out / "img").iterdir()
    return torch.from_numpy(np.array(Image.open(path))), read_lines(out / "records.jsonl")[0]


def test_without_a_painter_images_are_tokens_and_no_metric_judges_them(
    original, tmp_path, capsys, monkeypatch
) -> None:
    monkeypatch.setitem(SIZES, "preview", 3)
    root = shutil.copytree(original.parent, tmp_path / "GLM-Image")
    pixels, record = generated(root / original.name, tmp_path / "out")
    said = capsys.readouterr().err
    lacks = "has no model_index.json, scheduler, tokenizer, text_encoder, transformer, vae"
    assert f"because {root} {lacks}; docs/models.md says how" in said
    assert pixels.shape == (2, 3, 3) and record["pixels"] == "tokens"
    assert main.main(["evaluate", "--output_dir", str(tmp_path / "out")]) == 2
    assert re.search("error: --metrics: .*are tokens there, not pictures", capsys.readouterr().err)
    assert main.main(f"evaluate --output_dir {tmp_path}/out --metrics none".split()) == 0


SHARD = "transformer/diffusion_pytorch_model-{}.safetensors"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (gone("vae/config.json"), "missing file: .*vae/config.json"),
        (gone(SHARD.format(1)), f"index in .* lists shards that are missing: .*{SHARD.format(1)}"),
        (cut(SHARD.format(2), 1), f"{SHARD.format(2)}: damaged or unreadable"),
    ],
)
def test_a_half_downloaded_painter_is_no_checkpoint(
    change, said, original, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(glm_codec, "find_spec", str)  # whichever diffusers is installed
    root = shutil.copytree(original.parent, tmp_path / "GLM-Image")
    hollow_painter(root)
    options = replace(OPTIONS, target_size="96x64")
    looks = (GlmImage().images, GlmImage().check_images)
    assert all(look(root / original.name, options) for look in looks)
    size = GlmPainter(root, options.device).bytes
    (root / "vae/model.backup.safetensors").write_bytes(b"a copy")
    assert GlmPainter(root, options.device).bytes == size
    change(root)
    for look in looks:
        with pytest.raises(ValueError, match=said):
            look(root / original.name, options)


@only_in_all
def test_diffusers_paints_where_the_whole_checkpoint_is(original, session, tmp_path) -> None:
    root = shutil.copytree(original.parent, tmp_path / "GLM-Image")
    write_painter(root)
    pixels, record = generated(root / original.name, tmp_path / "out")
    assert "pixels" not in record
    job = Job("0", "a 'red' cat", record["seed"])
    codes = finished(session.open_engine(PLAIN, GREEDY), [job])["0"].codes
    # every row and every column twice
    ids = codes[-6:].view(2, 3).repeat_interleave(2, 0).repeat_interleave(2, 1).flatten()
    from diffusers import GlmImagePipeline

    pipeline = GlmImagePipeline.from_pretrained(root, vision_language_encoder=None, processor=None)
    noise = torch.Generator().manual_seed(record["seed"])
    given = {"prior_token_ids": ids[None], "height": 64, "width": 96, "generator": noise}
    expected = pipeline("a 'red' cat", output_type="np", **given).images[0]
    assert pixels.shape == (64, 96, 3) and expected.std() > 0.05
    assert np.abs(pixels.numpy() - 255 * expected).max() < 1


def test_the_painters_time_steps_are_those_that_the_pipeline_gives() -> None:
    """The published scheduler shifts; after ten of 50 steps the network is told 800."""
    shifts = {"use_dynamic_shifting": True, "time_shift_type": "linear"}
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(**shifts, base_shift=0.25, max_shift=0.75)
    check_schedule(scheduler)
    steps = np.linspace(1000, 1, 51)[:-1].astype(int).astype(np.float32)
    scheduler.set_timesteps(timesteps=steps, sigmas=steps / 1000, mu=3.25)
    assert scheduler.timesteps[10] == 800

    class Shifted(diffusers.FlowMatchEulerDiscreteScheduler):
        def set_timesteps(self, timesteps=None, **given) -> None:  # as diffusers 0.40 and 0.41 do
            super().set_timesteps(**given)

    with pytest.raises(Failure, match=r"paints GLM-Image wrongly: .*, not 800\.0"):
        check_schedule(Shifted(**shifts))


def test_guidance_is_off_by_default(original) -> None:
    recipe, given = values_of({"model": "glm_image"}, command("inspect").known)
    assert given == {"model": "glm_image"}
    assert recipe == {"dtype": "bf16", "temperature": 0.9, "top_p": 0.75, "cfg": 1.0}
    known = command("vq_distances").known  # it has no such flag
    assert values_of({"model": "glm_image"}, known)[0] == {}
    pipe = Pipeline.from_pretrained(original, target_size="96x64")
    assert pipe.settings.sampling.cfg == 1
