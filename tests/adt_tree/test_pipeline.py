"""The pipeline on a small checkpoint: the command line's tokens, batches, threads, errors."""

import copy
import itertools
import multiprocessing
import os
import pickle
import re
import shutil
import tomllib
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from browser import thinned
from PIL import Image
from torch import Tensor

import adt_tree
import main
from adt_tree import Pipeline, SettingsError
from adt_tree.sources import python_names
from configs.targets import ROOT
from models.files.identity import checkpoint_id
from support.constants import _constant
from support.json_lines import read_lines
from support.provenance import CONTENT

PROMPTS = ["a cat", "two cats", "a cat"]
OPTIONS = {"torch_dtype": torch.float64, "device": "cpu", "progress_bar": False}


@pytest.fixture(scope="module")
def pipe(checkpoint: Path) -> Pipeline:
    return Pipeline.from_pretrained(checkpoint, **OPTIONS)


def digest(codes: Tensor) -> str:
    return sha256(codes.numpy().astype("<i4").tobytes()).hexdigest()


def generated(checkpoint: Path, folder: Path, *words: str) -> list[dict]:
    """The records of images that the command makes in a folder, in order."""
    flags = [f"--model_path={checkpoint}", "--dtype=fp64", "--device=cpu", f"--output_dir={folder}"]
    assert main.main(["generate_images", *flags, *words]) == 0
    return sorted(read_lines(folder / "records.jsonl"), key=lambda line: line["id"])


@pytest.mark.parametrize("method", thinned(["adt", "ar", "jacobi"]))
def test_tokens_and_pictures_are_those_of_the_command_line(checkpoint, pipe, tmp_path, method):
    (tmp_path / "p.txt").write_text("\n".join(PROMPTS))
    words = [f"--method={method}", "--seed=7", "--temperature=0.9", "--top_k=9", "--cfg=2"]
    words += [f"--prompt={tmp_path / 'p.txt'}", "--samples_per_prompt=2"]
    lines = generated(checkpoint, tmp_path, *words)
    own = Pipeline.from_pipe(pipe, method=method, top_k=9)
    out = own(PROMPTS, num_images=2, seed=7, temperature=0.9, guidance_scale=2)
    assert [digest(codes) for codes in out.tokens] == [line["tokens_sha256"] for line in lines]
    found = [(s.prompt, s.seed, s.forwards, s.accepted_length) for s in out.stats]
    keys = ("prompt", "seed", "target_forwards", "tau")
    assert found == [tuple(line[key] for key in keys) for line in lines]
    for line, image in zip(lines, out.images, strict=True):
        with Image.open(tmp_path / f"img/{line['id']}.png") as saved:
            assert np.array_equal(np.asarray(saved), np.asarray(image))


def test_the_images_of_one_text_are_those_of_the_command_line(checkpoint, pipe, tmp_path):
    lines = generated(checkpoint, tmp_path, "--prompt=a cat", "--num_images=3")
    out = pipe("a cat", num_images=3, seed=0, output_type="tokens")
    assert [digest(codes) for codes in out.tokens] == [line["tokens_sha256"] for line in lines]
    assert out.images == []


def test_batches_and_methods_change_no_token(pipe):
    one = pipe(PROMPTS, num_images=2, seed=0)
    many = pipe(PROMPTS, num_images=2, seed=0, batch_size=4)
    plain = Pipeline.from_pipe(pipe, method="ar")(PROMPTS, num_images=2, seed=0, batch_size=3)
    assert torch.equal(one.tokens, many.tokens) and torch.equal(one.tokens, plain.tokens)
    assert [stats.seed for stats in one.stats] == [stats.seed for stats in many.stats]
    assert len({stats.seed for stats in one.stats}) == 6
    assert all(stats.accepted_length == 1 for stats in plain.stats)


def test_own_seeds_repeat_any_of_the_images(pipe):
    out = pipe(PROMPTS, num_images=2, seed=3)
    one = pipe("two cats", seed=[out.stats[3].seed])
    assert torch.equal(one.tokens, out.tokens[3:4]) and one.stats[0].seed == out.stats[3].seed
    same = pipe(PROMPTS, num_images=2, seed=[stats.seed for stats in out.stats], batch_size=4)
    assert torch.equal(same.tokens, out.tokens)


def test_at_temperature_0_a_prompt_is_generated_once(pipe, capsys):
    rounds = []
    out = pipe(
        PROMPTS, num_images=2, temperature=0, callback_on_step_end=lambda *step: rounds.append(step)
    )
    assert {stats.id for *_, step in rounds for stats in step["rounds"]} == {"00000_0", "00001_0"}
    assert "all images of a prompt are the same" in capsys.readouterr().err
    assert len(out.images) == 6 and len({stats.seed for stats in out.stats}) == 6
    alone = [pipe(text, temperature=0, seed=5).tokens[0] for text in PROMPTS]
    for number, codes in enumerate(out.tokens):
        assert torch.equal(codes, alone[number // 2])


def _use(act) -> None:
    try:
        act()
    except RuntimeError as error:
        os._exit(7 if "a Pipeline cannot be used in a process that was forked" in str(error) else 8)
    os._exit(0)


def test_a_forked_process_is_told_instead_of_waiting_for_ever(pipe, checkpoint, monkeypatch):
    """As gunicorn --preload, Celery and workers of a DataLoader do."""
    stream = pipe.stream("a cat")
    next(stream)
    paint = pipe.weights.paint
    uses = [lambda: pipe("a cat"), lambda: next(stream), lambda: pipe.compare("a cat", ["ar"])]
    uses += [
        lambda: paint(torch.zeros(3, dtype=torch.int64)),
        lambda: Pipeline.from_pipe(pipe)("a"),
    ]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    uses.append(lambda: Pipeline.from_pretrained(checkpoint, **OPTIONS))
    for use in uses:
        process = multiprocessing.get_context("fork").Process(target=_use, args=(use,))
        process.start()
        process.join(60)
        assert process.exitcode == 7


def test_a_stream_is_the_call_round_by_round(pipe):
    out = pipe("a cat", seed=3)
    steps = list(pipe.stream("a cat", seed=3))
    assert torch.equal(steps[-1].tokens, out.tokens[0])
    assert np.array_equal(np.asarray(steps[-1].image), np.asarray(out.images[0]))
    first, last = pickle.loads(pickle.dumps([steps[0], steps[-1]]))
    assert torch.equal(first.tokens, steps[0].tokens) and last.image == steps[-1].image
    with pytest.raises(RuntimeError, match="a pickled or copied StreamStep has no"):
        _ = first.image
    assert [step.finished for step in steps] == [False] * (len(steps) - 1) + [True]
    last, stats, position = steps[-1], out.stats[0], 1
    assert last.forwards == stats.forwards and last.accepted_length == stats.accepted_length
    for number, step in enumerate(steps):
        assert (step.round, step.position, step.total) == (number, position, 16)
        position += step.accepted + 1
        assert step.decided == position and torch.equal(step.tokens, out.tokens[0][:position])
        draft = step.draft
        assert draft.root == step.position - 1 and len(draft.accepted) == step.accepted
        for node, parent in enumerate(draft.parents[1:], 1):
            assert parent < node and draft.depths[node] == draft.depths[parent] + 1
        path = [0, *draft.accepted]
        assert all(draft.parents[b] == a for a, b in itertools.pairwise(path))
    assert max(len(step.draft.parents) for step in steps) > 3
    seconds = [step.seconds for step in steps]
    assert seconds == sorted(seconds) and seconds[0] > 0


def test_the_image_so_far_is_grey_where_nothing_is_decided(pipe):
    stream = pipe.stream("a cat", seed=0)
    step = next(step for step in stream if 4 < step.decided < 12)
    stream.close()  # which leaves the pipeline free
    whole = np.asarray(pipe("a cat", seed=0).images[0])
    pixels = np.asarray(step.image)
    assert pixels.shape == whole.shape
    side = whole.shape[0] // 4
    for position in range(16):
        row, column = (side * number for number in divmod(position, 4))
        cell = pixels[row : row + side, column : column + side]
        assert (cell == 128).all() == (position >= step.decided)


def test_threads_and_streams_next_to_each_other_get_their_own_images(pipe):
    wanted = {seed: pipe("a cat", seed=seed).tokens for seed in range(3)}
    one, other = pipe.stream("a cat", seed=0), Pipeline.from_pipe(pipe, method="jacobi")
    latest = [next(one)]
    with ThreadPoolExecutor(len(wanted)) as pool:
        calls = {seed: pool.submit(pipe, "a cat", seed=seed) for seed in wanted}
        for step in other.stream("a cat", seed=1):
            second = step.tokens
            latest = [next(one, latest[0])]
    first = [*latest, *one][-1].tokens
    assert torch.equal(first, wanted[0][0]) and torch.equal(second, wanted[1][0])
    assert all(torch.equal(calls[seed].result().tokens, wanted[seed]) for seed in wanted)


@pytest.mark.parametrize(
    ("setting", "method"),
    thinned(
        itertools.product(["dtype", "autocast", "device"], ["ar", "adt", "eagle_recall", "jacobi"])
    ),
)
def test_what_a_caller_sets_in_torch_changes_no_image(checkpoint, setting, method):
    options = OPTIONS | {"torch_dtype": torch.float32, "method": method}
    wanted = Pipeline.from_pretrained(checkpoint, **options)("a cat", seed=3)
    _constant.cache_clear()
    if setting == "dtype":
        torch.set_default_dtype(torch.float64)
    contexts = {"autocast": torch.autocast("cpu", torch.bfloat16), "device": torch.device("meta")}
    try:
        with contexts.get(setting, nullcontext()):
            own = Pipeline.from_pretrained(checkpoint, **options)
            found, *_, last = own("a cat", seed=3), *own.stream("a cat", seed=3)
            own.weights.paint(last.tokens[:-1])
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(found.tokens, wanted.tokens) and torch.equal(last.tokens, wanted.tokens[0])
    assert np.array_equal(np.asarray(found.images[0]), np.asarray(wanted.images[0]))


def test_pipelines_share_weights_or_not(checkpoint, pipe):
    other = Pipeline.from_pipe(pipe, method="eagle2", nodes=5, depth=2)
    assert other.weights is pipe.weights and other.settings.method.nodes == 5
    assert (pipe.method, other.method) == ("adt", "eagle2")
    own = Pipeline.from_pretrained(str(checkpoint), method="ar", device="cpu", progress_bar=False)
    assert own.weights is not pipe.weights and own.dtype == torch.float32
    drafted = Pipeline.from_pipe(own, method="adt")  # its drafter is loaded now
    assert drafted("a cat", seed=0).stats[0].accepted_length > 1


def test_files_are_found_from_another_working_folder(checkpoint, pipe, tmp_path, monkeypatch):
    monkeypatch.chdir(checkpoint.parent)
    shutil.copytree(checkpoint / "drafter", tmp_path / "mine")
    (tmp_path / "own.yaml").write_text(f"model_path: {checkpoint.name}\n")
    own = Pipeline.from_pretrained(checkpoint.name, method="ar", **OPTIONS)
    recipe = Pipeline.from_pretrained(tmp_path / "own.yaml", method="ar", **OPTIONS)
    monkeypatch.chdir(tmp_path)
    drafted = Pipeline.from_pretrained(checkpoint, drafter_path="mine", **OPTIONS)
    monkeypatch.chdir("/")
    for plain in (own, recipe):
        found = Pipeline.from_pipe(plain, method="adt")("a cat", seed=3)
        assert torch.equal(found.tokens, pipe("a cat", seed=3).tokens)
        plain.to(torch.float32)
    drafted.to(torch.float32)


def test_a_method_in_place_of_the_recipes_keeps_no_number_of_its_own(checkpoint, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"method: adt\nproposal: topk\nadt_beta: 0.5\nmodel_path: {checkpoint}\n")
    own = Pipeline.from_pretrained(recipe, method="jacobi", device="cpu", progress_bar=False)
    assert Pipeline.from_pipe(own, temperature=0.5).settings.method == own.settings.method


def test_to_moves_only_what_has_to_move(checkpoint):
    pipe = Pipeline.from_pretrained(checkpoint, method="ar", progress_bar=False)
    weights = pipe.weights
    if pipe.device.type == "cpu":
        assert pipe.to("cpu") is pipe and pipe.weights is weights
    assert pipe.to(torch.float64, "cpu").dtype == torch.float64 and pipe.weights is not weights
    assert pipe.to("cpu").dtype == torch.float64
    with pytest.raises(SettingsError, match="to: expected a device, a dtype or both"):
        pipe.to("cpu", "cpu")
    with pytest.raises(ValueError, match="device: .*got 'tpu'"):
        pipe.to("tpu")


def test_the_callback_sees_every_round_and_may_end_the_call(pipe):
    seen = []

    def note(own, step, tokens, values):
        seen.append((own, step, tokens, [stats.id for stats in values["rounds"]]))

    out = pipe(PROMPTS, batch_size=2, callback_on_step_end=note)
    assert [number for _, number, *_ in seen] == list(range(len(seen)))
    assert seen[-1][2] == out.tokens.numel() and all(own is pipe for own, *_ in seen)
    assert seen[0][3] == ["00000_0", "00001_0"]

    def stop(own, step, tokens, values):
        raise InterruptedError(step)

    with pytest.raises(InterruptedError):
        pipe("a cat", callback_on_step_end=stop)


def test_the_bar_can_be_switched_off(checkpoint, pipe, capsys):
    pipe("a cat")
    pipe.compare("a cat", ["ar"])
    assert capsys.readouterr() == ("", "")
    pipe("a cat", progress_bar=True)
    assert "16/16" in capsys.readouterr().err
    shown = Pipeline.from_pretrained(checkpoint, method="ar", device="cpu")
    shown.set_progress_bar_config(desc="painting")
    shown("a cat")
    assert "painting: 100%" in capsys.readouterr().err
    shown("a cat", progress_bar=False)
    assert capsys.readouterr().err == ""


def test_methods_are_compared_on_the_same_seeds(checkpoint, pipe):
    own = Pipeline.from_pretrained(checkpoint, method="ar", **OPTIONS)
    found = own.compare(PROMPTS, ["adt:nodes=3", "jacobi"], seed=4)
    assert [row["method"] for row in found.rows] == ["ar", "adt", "jacobi"]
    assert [row["identical"] for row in found.rows] == [3, 3, 3] and found.rows[1]["nodes"] == 3
    assert str(found).startswith("| method |") and "3/3" in str(found)
    assert own.method == "ar"
    assert [row["method"] for row in own.compare("a cat").rows] == ["ar", "adt"]
    greedy = own.compare(PROMPTS, ["jacobi"], num_images=2, temperature=0)
    assert [row["images"] for row in greedy.rows] == [2, 2], "others are the same images again"
    nine = Pipeline.from_pipe(pipe, nodes=9)
    assert nine.compare("a cat", ["adt"]).rows[1]["nodes"] == 9  # its own method, its own settings


def test_a_listed_recipe_sets_a_methods_flags_only(pipe, tmp_path):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("method: jacobi\ntemperature: 0\n")
    with pytest.raises(SettingsError, match=r"mine.yaml': temperature: 0\.0 works only as a flag"):
        pipe.compare("a cat", [str(recipe)])
    recipe.write_text("method: jacobi\nwindow: 4\n")
    rows = pipe.compare("a cat", [str(recipe)], temperature=0).rows
    assert [row["window"] for row in rows] == [None, 4]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"nods": 3}, r"from_pretrained got an unexpected argument 'nods'. Did you mean nodes\?"),
        ({"prompt": "a"}, "from_pretrained got an unexpected argument 'prompt'"),
        ({"nodes": 0}, "nodes: expected a whole number from 1 to 1024, got 0"),
        ({"method": "ar", "nodes": 3}, "nodes: 3 works only with method"),
        ({"guidance_scale": 0}, "guidance_scale: expected 1 for no guidance.*got 0.0"),
        ({"guidance_scale": 2.0, "cfg": 2.0}, "cfg: .*got it together with guidance_scale"),
        ({"seed": 1}, "unexpected argument 'seed'. Give it to a call"),
        (
            {"torch_dtype": torch.float16},
            r"torch_dtype: expected torch\.float32, .*use torch\.bfloat16",
        ),
        ({"device": "tpu"}, "device: .*got 'tpu'"),
        ({"device_map": "cuda"}, "device_map: .*got 'cuda'. For one device use device='cuda'."),
        ({"target_size": (512, 384)}, "target_size: '512x384' works only with"),
        ({"target_size": 512}, "target_size: '512' works only with"),
        ({"target_size": (1, 2, 3)}, r"target_size: .*got \(1, 2, 3\)"),
        ({"drafter_path": "nowhere"}, "drafter_path nowhere: .*got a path that does not exist"),
        ({"model": "llamagen"}, "text_encoder_path "),
        ({"method": "mine"}, "got 'mine'. If it is one of your own, import its module first"),
        ({"method": "auto"}, "method: 'auto' works only with a recipe of `tune` for this model"),
        ({"revision": "main"}, "'revision'. Use `hf download owner/name --revision NAME"),
    ],
)
def test_settings_that_cannot_be_used_are_named(checkpoint, settings, message):
    with pytest.raises(SettingsError, match=message):
        Pipeline.from_pretrained(checkpoint, **settings)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt": ""}, "prompt: .*got ''"),
        ({"prompt": ["a", 3]}, "prompt: .*got 3"),
        ({"prompt": "\ud800"}, "This is not UTF-8"),
        ({"prompt": ["a cat", "word " * 300]}, "number 2 of 2: the prompt is [0-9]+ tokens"),
        ({"num_images": 0}, "num_images: .*got 0"),
        ({"seed": -1}, "seed: .*got -1"),
        ({"temprature": 3}, r"a call got an .*'temprature'. Did you mean temperature\?"),
        ({"generator": 3}, "unexpected argument 'generator'. Use seed=7"),
        ({"method": "ar"}, "unexpected argument 'method'. Give it to from_pretrained."),
        ({"output_type": "np"}, r"output_type: expected pil or tokens, got 'np'.*np.asarray\(out"),
        ({"num_images_per_prompt": 4}, "'num_images_per_prompt'. Use num_images=4.$"),
        ({"num_inference_steps": 9}, "'num_inference_steps'. Leave it out: an image takes"),
        ({"cfg": 2.0}, "unexpected argument 'cfg'. Use guidance_scale."),
        ({"seed": [1, 2]}, "seed: expected one seed, or a list of 1, one per image, got .1, 2."),
        ({"seed": [-1]}, "seed: .*got -1"),
        ({"guidance_scale": 0}, "guidance_scale: expected 1 for no guidance.*got 0.0"),
        ({"progress_bar": "no"}, "^progress_bar: expected True or False.*got 'no'"),
        ({"callback_on_step_end": 3}, "callback_on_step_end: expected a function.*got 3"),
        *(
            ({"prompt": prompt}, "expected a text, or a list of texts, got")
            for prompt in (None, 5, {"prompt": "a cat"}, {"a cat"}, b"a cat", [["a cat"]], ["\0"])
        ),
    ],
)
def test_arguments_that_cannot_be_used_are_named(pipe, arguments, message):
    with pytest.raises(SettingsError, match=message):
        pipe(**{"prompt": "a cat"} | arguments)


def test_numbers_and_texts_of_numpy_are_pythons(pipe):
    plain = pipe(PROMPTS, seed=3, temperature=0.5, top_k=9, num_images=2)
    options = {"temperature": np.float32(0.5), "top_k": torch.tensor(9), "num_images": np.int64(2)}
    assert torch.equal(pipe(np.array(PROMPTS), seed=np.uint8(3), **options).tokens, plain.tokens)
    assert torch.equal(pipe(np.array("a cat"), seed=0).tokens, pipe("a cat", seed=0).tokens)


def test_without_a_seed_every_call_has_other_images_and_says_their_seeds(pipe):
    first, second = pipe("a cat", num_images=2), pipe("a cat")
    assert len(first) == 2 and first[0] is first.images[0] and list(second) == second.images
    assert not torch.equal(first.tokens[0], second.tokens[0])
    again = pipe("a cat", seed=[second.stats[0].seed])
    assert torch.equal(again.tokens, second.tokens)
    assert next(pipe.stream("a cat")).total == 16


def test_an_output_is_shown_in_one_line(pipe):
    out = pipe("a cat", num_images=2)
    assert repr(out) == "ImageOutput(2 images of 16 tokens: .images, .tokens, .stats)"


def test_the_version_is_the_projects():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert adt_tree.__version__ == project["version"]


def test_methods_of_other_libraries_are_answered_with_what_to_write(pipe):
    for name, words in (("cuda", "to('cuda')"), ("half", "to(torch.bfloat16)")):
        with pytest.raises(AttributeError, match=re.escape(f"'{name}'; use {words}")):
            getattr(pipe, name)()
    with pytest.raises(AttributeError, match="use Pipeline.from_pipe"):
        pipe.components  # noqa: B018
    with pytest.raises(AttributeError, match="use nothing: attention saves memory already"):
        pipe.enable_xformers_memory_efficient_attention()
    with pytest.raises(AttributeError, match="no attribute 'magic'$"):
        pipe.magic()
    assert pipe.to(device="cpu") is pipe and pipe.to(dtype=torch.float64) is pipe


@pytest.mark.parametrize("how", [pickle.dumps, copy.deepcopy])
def test_copies_are_refused_with_what_to_do_instead(pipe, how):
    with pytest.raises(TypeError, match=r"in each process with .*from_pretrained.*from_pipe"):
        how([pipe, next(pipe.stream("a cat"))])


def test_commands_in_errors_keep_their_dashes(checkpoint, tmp_path):
    with pytest.raises(SettingsError, match="^model_path .*`python main.py inspect --model tiny "):
        Pipeline.from_pretrained(checkpoint, model_path=tmp_path / "x", method="ar")
    with pytest.raises(SettingsError, match="^a `a --cfg 1` guidance_scale$"), python_names():
        raise SettingsError("a `a --cfg 1` --cfg")


@pytest.mark.parametrize(
    ("settings", "method"), [({}, "jacobi"), ({"window": 4}, "jacobi"), ({"method": "ar"}, "ar")]
)
def test_a_model_without_a_drafter_is_decoded_without_one(
    checkpoint, tmp_path, capsys, settings, method
):
    bare = shutil.copytree(checkpoint, tmp_path / "bare", ignore=lambda *_: ["drafter"])
    own = Pipeline.from_pretrained(bare, device="cpu", progress_bar=False, **settings)
    assert own.method == method and own("a cat").stats[0].tokens == 16
    note = f"method jacobi: chosen, .* with model_path {bare}; drafter_path names one"
    assert bool(re.search(note, capsys.readouterr().err)) == (method == "jacobi")
    plain = Pipeline.from_pipe(own, method="ar")
    assert [row["method"] for row in plain.compare("a cat").rows] == ["ar", "jacobi"]
    with pytest.raises(SettingsError, match="drafter"):
        Pipeline.from_pretrained(bare, nodes=4)


def test_what_was_tuned_goes_with_a_drafter_from_elsewhere(folder, tmp_path, monkeypatch):
    drafter = (folder / "drafter").rename(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    (place := Path("outputs/tuned")).mkdir(parents=True)
    best = "[{batch_size: '2', method: eagle2, nodes: '9'}]"
    files = f"model_path: {CONTENT}{checkpoint_id(folder)}"
    (place / "ours_0123abcd.yaml").write_text(
        f"tuned: {{conditions: {{{files}}}, batches: {best}}}\n"
    )
    (place / "other_0123abcd.yaml").write_text("method: jacobi\n")
    own = Pipeline.from_pretrained(folder, method="auto", drafter_path=drafter, **OPTIONS)
    assert (own.method, own.settings.method.nodes) == ("eagle2", 9)


def test_other_entrances_refuse_the_same(pipe):
    with pytest.raises(SettingsError, match="expected one text"):
        pipe.stream(["a cat"])
    with pytest.raises(SettingsError, match="the prompt is [0-9]+ tokens"):
        pipe.stream("word " * 300)  # at once, before a round is asked for
    with pytest.raises(SettingsError, match="methods: .*got 'warp'"):
        pipe.compare("a cat", ["warp"])
    with pytest.raises(SettingsError, match="methods: .*got 'ar'"):
        pipe.compare("a cat", "ar")
    with pytest.raises(SettingsError, match="from_pipe got an unexpected argument 'device'"):
        Pipeline.from_pipe(pipe, device="cpu")
    for name in ("total", "iterable", "lenght"):
        with pytest.raises(
            SettingsError, match=f"set_progress_bar_config got .* argument '{name}'"
        ):
            pipe.set_progress_bar_config(**{name: 3})
