"""From texts and recipes to settings: conversion, the paper's names, precedence, method lists."""

from pathlib import Path

import pytest
from stand_ins import empty_checkpoint

from configs import targets
from configs.command_line import read_recipe, read_words
from configs.fields import SettingsError, settings_dict, settings_fields
from configs.schema import (
    ROOT,
    AdtSettings,
    LanternSettings,
    MethodSettings,
    RunSettings,
    SamplingSettings,
)
from runs.commands import benchmark_settings, run_settings


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return empty_checkpoint(tmp_path / "model")


@pytest.fixture
def run(checkpoint):
    def build(*words: str) -> RunSettings:
        defaults = {"prompt": "a cat", "model_path": str(checkpoint)}
        return run_settings(defaults | read_words("generate_images", words))

    return build


@pytest.fixture
def bench(checkpoint):
    def build(*words: str):
        defaults = {"prompt": "a cat", "model_path": str(checkpoint)}
        return benchmark_settings(defaults | read_words("benchmark", words))

    return build


@pytest.fixture
def recipe(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "recipe.yaml"
        path.write_text(text)
        return f"--config={path}"

    return write


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(
            ("seed", text)
            for text in ("abc", "1e3", "1.0", "0x1", "1_000", "", " ", "None", "١", "9" * 30)
        ),
        *(
            ("temperature", text)
            for text in ("hot", "nan", "inf", "1,5", "", "1_0", "0x1p1", "1e999")
        ),
        *(("trace", text) for text in ("maybe", "", "2", "None")),
        ("dtype", "half"),
        ("batch_size", "0"),
        ("num_images", "0"),
        ("top_p", "0"),
        ("precision", "fp16"),
        ("model_type", "vllm"),
        ("set_seed", "false"),
    ],
)
def test_wrong_texts_are_refused_by_flag(run, name, text):
    flag = "dtype" if name == "precision" else name
    with pytest.raises(SettingsError, match=rf"--{flag}: found .*; allowed: "):
        run(f"--{name}={text}")


def test_right_texts_become_values(run):
    settings = run(
        "--seed=007",
        "--temperature=1e-1",
        "--cfg=.5",
        "--trace=YES",
        "--top_p=1",
        "--num_images=+3",
    )
    assert (settings.seed, settings.trace, settings.num_images) == (7, True, 3)
    assert settings.sampling == SamplingSettings(temperature=0.1, cfg=0.5)
    assert run("--adt_d_max=9", "--adt_init=vertical").method.adt == AdtSettings(
        d_max=9, init="vertical"
    )


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (["--method=ar", "--tree=chain"], "tree"),
        (["--method=ar", "--proposal=topk"], "proposal"),
        (["--method=ar", "--drafter_path=x"], "drafter_path"),
        (["--tree=chain"], "tree"),
        (["--method=eagle2", "--tree=chain"], "tree"),
        (["--method=eagle2", "--adt_beta=0.5"], "adt_beta"),
        (["--method=static", "--adt_beta=0.5"], "adt_beta"),
        (["--method=static", "--depth=3"], "depth"),
        (["--method=static", "--nodes=3"], "nodes"),
        (["--method=static", "--tree=mine"], "tree"),
        (["--method=adt", "--depth=3"], "depth"),
        (["--width=3"], "width"),
        (["--adt_d_min=7", "--adt_d_max=6"], "adt_d_min"),
        (["--method=EAGLE2", "--adt_beta=0.5"], "method"),
        (["--sample=2"], "sample"),
        (["--slice=0-1"], "slice"),
    ],
)
def test_combinations_without_effect_are_refused(run, words, flag):
    with pytest.raises(SettingsError, match=rf"--{flag}: found .*; allowed: "):
        run(*words)


@pytest.mark.parametrize(
    ("words", "method"),
    [
        ([], "adt"),
        (["--model_type=base"], "ar"),
        (["--model_type=eagle"], "eagle2"),
        (["--peanut"], "adt"),
        (["--static_tree"], "static"),
        (["--model_type=eagle", "--peanut"], "adt"),
        (["--model_type=eagle", "--static_tree"], "static"),
        (["--model_type=eagle", "--method=adt"], "adt"),
        (["--method=adt", "--peanut"], "adt"),
        (["--method=eagle2", "--nopeanut"], "eagle2"),
        (["--method=ar", "--model_type=base"], "ar"),
    ],
)
def test_names_of_the_papers_repository(run, words, method):
    assert run(*words).method == MethodSettings(method)


@pytest.mark.parametrize(
    "words",
    [
        ["--model_type=base", "--peanut"],
        ["--model_type=base", "--static_tree"],
        ["--peanut", "--static_tree"],
        ["--method=ar", "--peanut"],
        ["--method=eagle2", "--peanut"],
        ["--method=adt", "--static_tree"],
        ["--method=ar", "--model_type=eagle"],
        ["--method=adt", "--model_type=base"],
        ["--seed=1", "--random_seed=2"],
        ["--dtype=fp32", "--precision=bf16"],
    ],
)
def test_contradictions_are_refused(run, words):
    with pytest.raises(SettingsError, match="found .*; allowed: "):
        run(*words)


def test_other_names_of_values(run):
    settings = run("--precision=bf16", "--random_seed=5", "--set_seed", "--seed=5")
    assert (settings.dtype, settings.seed) == ("bf16", 5)


def test_missing_folders_and_prompt(run, checkpoint, tmp_path):
    with pytest.raises(SettingsError, match="--prompt: missing"):
        run_settings({})
    with pytest.raises(SettingsError, match="--model_path .*nowhere: found no such folder"):
        run(f"--model_path={tmp_path / 'nowhere'}")
    (checkpoint / "tokenizer" / "vqgan.yaml").unlink()
    with pytest.raises(
        SettingsError, match=r"--model_path .*: found no vqgan\.yaml in .*/tokenizer"
    ):
        run()
    (checkpoint / "tokenizer" / "vqgan.yaml").touch()
    (checkpoint / "drafter" / "config.json").unlink()
    with pytest.raises(
        SettingsError, match="--drafter_path .*: found a folder without config.json"
    ):
        run()
    assert run("--method=ar").drafter_path is None


def test_ids_of_the_hub(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("--model_path=owner/name", "--method=ar").model_path == "owner/name"
    assert run("--model_path=owner/name", "--drafter_path=owner/head").drafter_path == "owner/head"
    for path in (
        "model/tyny",
        "./owner/name",
        "owner/name/more",
        "name",
        "/owner/name",
    ):  # `model` is a folder here
        with pytest.raises(SettingsError, match="--model_path .*: found no such folder"):
            run(f"--model_path={path}", "--method=ar")


def test_command_line_wins_over_the_recipe(run, recipe):
    config = recipe(
        "method: eagle2\nproposal: topk\ndepth: 7\ncfg: 2\ntrace: yes\ntemperature: 1e-1\n"
        "slice: 0-5\n"
    )
    settings = run(config, "--depth=3", "--notrace", "--prompt=PartiPrompts")
    assert settings.method == MethodSettings("eagle2", "topk", depth=3)
    assert (settings.sampling.cfg, settings.sampling.temperature) == (2.0, 0.1)
    assert (settings.trace, settings.slice) == (False, "0-5")


def test_another_method_leaves_the_recipes_numbers_for_its_own_out(run, recipe):
    config = recipe("method: adt\nproposal: topk\nnodes: 20\nadt_beta: 0.4\n")
    assert run(config).method == MethodSettings("adt", "topk", nodes=20, adt=AdtSettings(beta=0.4))
    assert run(config, "--method=ar").method == MethodSettings("ar")
    assert (
        run(config, "--model_type=eagle").method == run(config).method
    )  # the recipe says which drafting method
    assert run(config, "--method=eagle2").method == MethodSettings("eagle2", "topk", nodes=20)
    with pytest.raises(SettingsError, match="--tree"):
        run(recipe("tree: chain\n"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dephth: 5", "recipe.yaml: dephth: unknown flag; did you mean depth"),
        ("peanut: true", "recipe.yaml: peanut: unknown flag"),
        ("config: x.yaml", "recipe.yaml: config: unknown flag"),
        ("lantern: true", "recipe.yaml: lantern: unknown flag; did you mean lantern_"),
        ("seed: 1\nseed: 2", "cannot be read: key 'seed' twice"),
        ("output_dir: ~", "cannot be read: ~ for a value"),
        ("prompt: null", "cannot be read: null for a value; a text is written in quotes"),
        ("seed: [1]", r"--seed: found \['1'\]"),
        ("seed: 1.5", "--seed: found '1.5'"),
        ("seed: abc", "--seed: found 'abc'"),
        ("seed:", "--seed: found None; allowed: one value, or no line at all"),
        ("prompt: [123]", r"--prompt: found \['123'\]"),
        ("method: no", "--method: found 'no'"),
        ("- seed", "found list; allowed: `name: value` lines"),
        ("seed", "found str; allowed"),
        ("a: b: c", "cannot be read"),
        ("sampling:\n  cfg: 3", "recipe.yaml: sampling: unknown flag"),
    ],
)
def test_recipes_that_cannot_be_used(checkpoint, recipe, text, message):
    words = {"prompt": "a cat"} if "prompt" not in text else {}
    with pytest.raises(SettingsError, match=message):
        run_settings(words | {"model_path": str(checkpoint), "config": recipe(text).split("=")[1]})


def test_recipe_files(run, recipe, tmp_path):
    assert run(recipe("# nothing\n")).method == MethodSettings("adt")
    with pytest.raises(
        SettingsError, match="--config .*nowhere.yaml: cannot be read: .*No such file"
    ):
        run(f"--config={tmp_path / 'nowhere.yaml'}")
    with pytest.raises(SettingsError, match="--config .* cannot be read"):
        run(f"--config={tmp_path}")


@pytest.mark.parametrize(
    "path", sorted((ROOT / "configs" / "paper").glob("*.yaml")), ids=lambda path: path.stem
)
def test_paper_rows(run, path):
    values = settings_dict(run(f"--config={path}"))
    method = {"lantern": "eagle2", "lantern_pp": "static", "adt_lantern": "adt"}.get(
        path.stem, path.stem
    )
    assert values["method"] == method and values["proposal"] == "topk"
    assert values["nodes"] == (None if method == "static" else 58)
    assert values["verifier"] == ("lantern" if "lantern" in path.stem else "exact")
    assert read_recipe(str(path), "generate_images").items() <= values.items()


def test_paper_rows_are_the_published_ones(run):
    eagle = run(f"--config={ROOT}/configs/paper/eagle2.yaml").method
    assert (eagle.depth, eagle.width) == (5, 10)
    adt = run(f"--config={ROOT}/configs/paper/adt.yaml").method.adt
    assert adt.d_min <= 3 and adt.d_max > 5  # from the paper's mean depths 3.86 and 5.15


def test_recipes_by_commas(run, bench, checkpoint):
    """A target's recipe and a row of the paper: the later one wins, the command line over both."""
    anole, row = ROOT / "configs" / "anole.yaml", ROOT / "configs" / "paper" / "eagle2.yaml"
    paths = [f"--drafter_path={checkpoint}/drafter", f"--tokenizer_path={checkpoint}/tokenizer"]
    settings = run(f"--config={anole},{row}", *paths)
    assert (settings.model, settings.dtype, settings.sampling) == (
        "anole",
        "bf16",
        SamplingSettings(top_k=2000),
    )
    assert settings.method == MethodSettings("eagle2", "topk", depth=5, width=10, nodes=58)
    assert settings.drafter_path == f"{checkpoint}/drafter"
    assert run(f"--config={anole}", "--top_k=5", *paths).sampling.top_k == 5
    with pytest.raises(
        SettingsError,
        match="--drafter_path ckpts/anole/trained_drafters/anole_drafter: found no such",
    ):
        run(f"--config={anole}")
    with pytest.raises(SettingsError, match="--config .*nowhere.yaml: cannot be read"):
        run(f"--config={row},{ROOT}/nowhere.yaml")


def test_a_recipes_drafter_is_for_methods_that_draft(run, bench):
    config = f"--config={ROOT / 'configs' / 'anole.yaml'}"
    assert run(config, "--method=ar").drafter_path is None
    assert bench(config, "--methods=ar").run.drafter_path is None
    with pytest.raises(
        SettingsError, match="--drafter_path: found 'x/y'; allowed: only with a method that has a d"
    ):
        run(config, "--method=ar", "--drafter_path=x/y")


def test_the_tokenizer_may_lie_elsewhere(run, checkpoint, tmp_path):
    (checkpoint / "tokenizer").rename(tmp_path / "elsewhere")
    assert run(f"--tokenizer_path={tmp_path}/elsewhere").tokenizer_path == f"{tmp_path}/elsewhere"
    with pytest.raises(
        SettingsError, match=r"--model_path .*: found no text_tokenizer\.json in .*tokenizer_path"
    ):
        run()
    with pytest.raises(
        SettingsError, match=r"--tokenizer_path .*drafter: found no text_tokenizer\.json and no "
    ):
        run(f"--tokenizer_path={checkpoint}/drafter")
    with pytest.raises(SettingsError, match="--tokenizer_path nowhere: found no such folder"):
        run("--tokenizer_path=nowhere")
    (tmp_path / "chameleon").mkdir()
    (tmp_path / "elsewhere").rename(tmp_path / "chameleon" / "tokenizer")
    assert run().tokenizer_path is None  # next to the checkpoint, as in the paper's repository


def test_default_benchmark(bench):
    settings = bench()
    assert settings.methods == (
        MethodSettings("ar"),
        MethodSettings("eagle2", "topk"),
        MethodSettings("eagle2"),
        MethodSettings("adt", "topk"),
        MethodSettings("adt"),
    )
    assert (settings.repeats, settings.warmup, settings.output, settings.run.prompt) == (
        3,
        1,
        None,
        "a cat",
    )
    runs = [settings.run.with_method(method) for method in settings.methods]
    assert [run.drafter_path is None for run in runs] == [True, False, False, False, False]


def test_listed_methods(bench):
    settings = bench(
        "--methods=ar, eagle2:depth=3:nodes=12,adt:adt_beta=0.4,static:tree=chain", "--repeats=5"
    )
    assert settings.methods[1:] == (
        MethodSettings("eagle2", depth=3, nodes=12),
        MethodSettings("adt", adt=AdtSettings(beta=0.4)),
        MethodSettings("static", tree="chain"),
    )
    assert bench("--methods=ar", "--output_dir=o").output == "o"


def test_a_listed_recipe_is_a_row_and_sets_what_all_rows_share(bench, tmp_path):
    ours, other = tmp_path / "ours.yaml", tmp_path / "other.yaml"
    ours.write_text("method: adt\nproposal: topk\nadt_beta: 0.4\ntemperature: 0.5\n")
    other.write_text("method: eagle2\nverifier: lantern\nlantern_k: 9\nproposal: topk\n")
    settings = bench(f"--methods=ar,{ours}:nodes=9,{other}", "--depth=3")
    assert settings.methods[1:] == (
        MethodSettings("adt", "topk", nodes=9, adt=AdtSettings(beta=0.4)),
        MethodSettings("eagle2", "topk", depth=3, verifier="lantern", relaxed=LanternSettings(9)),
    )
    assert settings.run.sampling.temperature == 0.5
    assert bench(f"--methods={ours}", "--temperature=0").run.sampling.temperature == 0
    exact = bench(f"--methods={other}:verifier=exact").methods[0]
    assert exact == MethodSettings("eagle2", "topk")
    for lines, message in (
        ("method: eagle2\ntemperature: 1\n", "--temperature: found 1.0; allowed: 0.5, as an earl"),
        ("method: eagle2\nmethods: ar,adt\n", "--methods: found 'ar,adt'; allowed: one method"),
        ("proposal: topk\n", "--methods, in .*other.yaml: method: missing; allowed: a line"),
        ("mehtod: adt\n", "--methods, in .*mehtod: unknown flag; did you mean method"),
    ):
        other.write_text(lines)
        with pytest.raises(SettingsError, match=message):
            bench(f"--methods={ours},{other}")


def test_method_flags_go_to_the_methods_that_have_them(bench):
    settings = bench(
        "--methods=ar,eagle2:nodes=9,adt", "--nodes=20", "--depth=4", "--proposal=topk"
    )
    assert settings.methods[1:] == (
        MethodSettings("eagle2", "topk", depth=4, nodes=9),
        MethodSettings("adt", "topk", nodes=20),
    )
    with pytest.raises(
        SettingsError, match="--tree: found 'chain'; allowed: only for a method that has it"
    ):
        bench("--methods=ar,adt", "--tree=chain")


def test_one_method_is_compared_with_plain_decoding(bench, recipe):
    assert bench("--method=adt").methods == (MethodSettings("ar"), MethodSettings("adt"))
    assert bench("--peanut").methods == bench("--method=adt").methods
    assert bench("--method=ar").methods == (MethodSettings("ar"),)
    config = recipe("method: adt\nproposal: topk\nadt_beta: 0.4\nrepeats: 2\n")
    settings = bench(config)
    assert (
        settings.methods[1] == MethodSettings("adt", "topk", adt=AdtSettings(beta=0.4))
        and settings.repeats == 2
    )
    assert bench(config, "--methods=ar,static").methods[1] == MethodSettings("static", "topk")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "--methods: found ''"),
        ("ar,,adt", "--methods: found ''"),
        ("ar,eagle", "--methods: found 'eagle'; allowed: name.*ar, static, eagle2, adt"),
        ("ar,ar", "found ar and ar, the same method"),
        (
            "adt:depth=3",
            "--methods, in 'adt:depth=3': --depth: found 3; allowed: only with --method eagle2",
        ),
        ("eagle2:depth", "--depth: found 'depth'; allowed: flag=value"),
        ("eagle2:depth=x", "--depth: found 'x'"),
        ("eagle2:depth=3:depth=4", "--depth: found 'depth=4'; allowed: flag=value, once"),
        ("eagle2:dephth=3", "--dephth: unknown flag; did you mean --depth"),
        ("eagle2:seed=3", "--seed: unknown flag"),
        ("eagle2:method=ar", "--method: unknown flag"),
        ("ar:proposal=topk", "--proposal"),
    ],
)
def test_lists_of_methods_that_cannot_be_used(bench, text, message):
    with pytest.raises(SettingsError, match=message):
        bench(f"--methods={text}")


@pytest.mark.parametrize("word", ["--method=adt", "--peanut", "--model_type=base"])
def test_a_list_and_a_method_contradict(bench, word):
    with pytest.raises(SettingsError, match="--method: found .* not together with --methods"):
        bench("--methods=ar,adt", word)


def test_wrong_benchmark_numbers(bench):
    for word in ("--repeats=0", "--warmup=-1", "--repeats=x"):
        with pytest.raises(SettingsError, match=word[:8]):
            bench(word)


def test_the_papers_command():
    """As its README has it: hub ids, all captions, the paper's names, relaxed acceptance."""
    settings = run_settings(
        {
            "model": "anole",
            "model_type": "eagle",
            "model_path": "leloy/Anole-7b-v0.1-hf",
            "drafter_path": "jadohu/anole_drafter",
            "peanut": "true",
            "prompt": "MSCOCO2017Val",
            "num_images": "-1",
            "lantern": "true",
            "lantern_k": "100",
            "lantern_delta": "0.5",
            "precision": "bf16",
            "output_dir": "out",
        }
    )
    assert (settings.model, settings.method.method, settings.dtype, settings.num_images) == (
        "anole",
        "adt",
        "bf16",
        -1,
    )
    assert settings.drafter_path == "jadohu/anole_drafter" and settings.source == "MSCOCO2017Val"
    assert (settings.method.verifier, settings.method.lantern) == (
        "lantern",
        LanternSettings(100, 0.5),
    )


@pytest.mark.parametrize(
    "path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.stem
)
def test_a_models_recipe_is_valid_as_it_is(path):
    values = read_recipe(str(path), "generate_images")
    own = {name: value for name, value in values.items() if name in settings_fields(RunSettings)}
    assert RunSettings(prompt="a cat", **own).model == path.stem
    SamplingSettings(**{name: value for name, value in values.items() if name not in own})


def test_another_model_leaves_the_recipes_files_out(recipe, checkpoint):
    words = [
        recipe(
            f"model: anole\nmodel_path: {checkpoint}\ndrafter_path: {checkpoint}/drafter\ncfg: 2"
        )
    ]
    words += ["--prompt=a cat"]
    assert run_settings(read_words("generate_images", words)).model_path == str(checkpoint)
    other = run_settings(read_words("generate_images", [*words, "--model=tiny"]))
    tiny = ROOT / "ckpts" / "tiny"
    assert (other.sampling.cfg, other.model_path, other.drafter_path) == (
        2.0,
        str(tiny),
        str(tiny / "drafter"),
    )


def test_sequential_guidance_needs_two_rows(run):
    with pytest.raises(
        SettingsError, match="--cfg_mode: found 'sequential'; allowed: parallel: with --cfg 1"
    ):
        run("--cfg=1", "--cfg_mode=sequential")


def test_the_tokenizer_of_a_hub_id_is_looked_for_where_a_folder_has_it(tmp_path, monkeypatch):
    monkeypatch.setattr(targets, "ROOT", tmp_path)
    assert (
        RunSettings(prompt="a cat", model="anole", model_path="leloy/Anole").tokenizer_path is None
    )
    (tmp_path / "ckpts/anole/chameleon/tokenizer").mkdir(parents=True)
    found = RunSettings(prompt="a cat", model="anole", model_path="leloy/Anole").tokenizer_path
    assert found == str(tmp_path / "ckpts/anole/chameleon/tokenizer")


def test_parts_lie_next_to_a_folder_without_a_path(tmp_path, monkeypatch):
    (tmp_path / "LlamaGen-T2I").mkdir()
    monkeypatch.chdir(tmp_path)
    settings = RunSettings(prompt="a cat", model="llamagen", model_path="LlamaGen-T2I")
    assert settings.text_encoder_path == str(tmp_path / "t5/flan-t5-xl")
