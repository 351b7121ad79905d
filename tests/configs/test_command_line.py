"""From words and recipes to settings: every text survives, the command line wins over recipes."""

import re
import shutil
from pathlib import Path

import pytest
from accelerate.commands.launch import launch_command_parser
from program import benchmark_settings, page_settings, read_words, run_settings
from stand_ins import empty_checkpoint
from torch.distributed.run import get_args_parser

import main
from adt_tree.sources import source_values
from commands import NAMES
from commands import command as named
from commands.help import command_help, program_help
from configs import fields, recipes, targets
from configs.benchmark import read_sweep
from configs.fields import SettingsError, settings_dict
from configs.methods import METHODS, applicable
from configs.recipes import listed_method, method_flags, read_recipe
from configs.schema import (
    ROOT,
    AdtSettings,
    LanternSettings,
    MethodSettings,
    RunSettings,
    SamplingSettings,
)

CONFIGS = ROOT / "configs"


def words_of(*words: str) -> dict[str, str]:
    return read_words("generate_images", words)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return empty_checkpoint(tmp_path / "model")


@pytest.fixture
def run(checkpoint):
    defaults = {"prompt": "a cat", "model_path": str(checkpoint)}
    return lambda *words: run_settings(defaults | words_of(*words)).engine


@pytest.fixture
def bench(checkpoint):
    defaults = {"prompt": "a cat", "model_path": str(checkpoint)}
    return lambda *words: benchmark_settings(defaults | read_words("benchmark", words))


@pytest.fixture
def recipe(tmp_path):
    def write(text: str, name: str = "recipe") -> str:
        path = tmp_path / f"{name}.yaml"
        path.write_text(text)
        return f"--config={path}"

    return write


def test_switches():
    for words in ("--trace", "--trace --seed 1", "--trace true"):
        assert words_of(*words.split())["trace"] == "true"
    for words in ("--trace false", "--trace=false", "--notrace", "--no-trace", "--no_trace"):
        assert words_of(*words.split())["trace"] == "false"
    assert words_of("--trace=False")["trace"] == "False"


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        ("evaluate", "output_dir"),
        ("evaluate", "metrics"),
        ("benchmark", "methods"),
        ("tune", "methods"),
        ("train_drafter", "tokens"),
        ("train_drafter", "target_layers"),
        ("generate_images", "config"),
    ],
)
def test_a_flag_that_takes_a_list_may_be_repeated(command, flag):
    words = [f"--{flag}=a,b", f"--{flag}", '"c,d"']
    assert read_words(command, words) == {flag: 'a,b,"c,d"'}


def test_values_of_recipes_are_what_is_written(recipe, checkpoint):
    """YAML alone would make 750, 20240101 and 8 of these."""
    text = "prompt: 12:30\noutput_dir: 2024_01_01\nseed: 010\ntrace: off\ntop_p: .5\n"
    settings = run_settings(words_of(recipe(text), f"--model_path={checkpoint}"))
    assert (settings.prompts.prompt, settings.output_dir, settings.prompts.seed) == (
        "12:30",
        "2024_01_01",
        10,
    )
    assert (settings.trace, settings.engine.sampling.top_p) == (False, 0.5)


def test_the_command_line_wins_over_the_recipe(run, recipe, checkpoint):
    config = recipe("method: eagle2\nproposal: topk\ndepth: 7\ncfg: 2\ntrace: yes\nslice: 0-5\n")
    words = config, "--depth=3", "--notrace", "--prompt=PartiPrompts", f"--model_path={checkpoint}"
    settings = run_settings(words_of(*words))
    assert settings.engine.method == MethodSettings("eagle2", "topk", depth=3)
    assert (settings.engine.sampling.cfg, settings.trace, settings.prompts.slice) == (
        2.0,
        False,
        "0-5",
    )
    assert run(recipe("# nothing\n")).method == MethodSettings("adt")


def test_another_method_or_rule_leaves_the_recipes_numbers_for_its_own_out(run, recipe):
    config = recipe("method: adt\nproposal: topk\nnodes: 20\nadt_beta: 0.4\n")
    written = MethodSettings("adt", "topk", nodes=20, own=AdtSettings(beta=0.4))
    assert run(config).method == written
    assert run(config, "--method=ar").method == MethodSettings("ar")
    assert run(config, "--method=eagle2").method == MethodSettings("eagle2", "topk", nodes=20)
    config = recipe("method: eagle2\nverifier: lantern\nlantern_k: 7\n")
    assert run(config).method.lantern.k == 7
    assert run(config, "--verifier=lantern_coupled").method.lantern.k == 7
    assert run(config, "--verifier=exact").method == MethodSettings("eagle2")
    assert run(config, "--method=adt").method.lantern.k == 7


def test_recipes_by_commas(run, checkpoint):
    """A target's recipe and a row of the paper: the later one wins, the command line over both."""
    anole, row = CONFIGS / "anole.yaml", CONFIGS / "paper" / "eagle2.yaml"
    paths = [f"--drafter_path={checkpoint}/drafter", f"--tokenizer_path={checkpoint}/tokenizer"]
    settings = run(f"--config={anole},{row}", *paths)
    assert (settings.model, settings.dtype) == ("anole", "bf16")
    assert settings.sampling == SamplingSettings(top_k=2000)
    assert settings.method == MethodSettings("eagle2", "topk", depth=5, width=10, nodes=58)
    assert run(f"--config={anole}", "--top_k=5", *paths).sampling.top_k == 5
    # its drafter is for methods that draft
    assert run(f"--config={anole}", "--method=ar").drafter_path is None
    with pytest.raises(SettingsError, match="--drafter_path ckpts/anole/.*: .*does not exist"):
        run(f"--config={anole}")


def test_the_method_of_a_later_recipe_leaves_the_earlier_ones_numbers_out(run, bench, recipe):
    adt, block = CONFIGS / "paper" / "adt.yaml", CONFIGS / "fast" / "block58.yaml"
    joined = MethodSettings("block", "topk", depth=18, width=4, nodes=58)
    assert run(f"--config={adt},{block}").method == joined, "proposal is a flag of both"
    assert run(f"--config={block},{adt}").method == run(f"--config={adt}").method
    assert bench(f"--config={adt},{block}").methods == (MethodSettings("ar"), joined)
    again = run(f"--config={adt},{block},{adt}", "--method=eagle2")
    assert again.method == MethodSettings("eagle2", "topk", nodes=58)
    rule = recipe("method: eagle2\nverifier: lantern\nlantern_k: 7\n", "rule")
    exact = recipe("verifier: exact\n", "exact").removeprefix("--config=")
    assert run(f"{rule},{exact}").method == MethodSettings("eagle2")


def test_the_page_takes_another_method_than_its_recipes(checkpoint):
    words = f"--config={CONFIGS}/paper/adt.yaml", "--method=eagle2", f"--model_path={checkpoint}"
    settings = page_settings(read_words("demo", words))
    assert settings.engine.method == MethodSettings("eagle2", "topk", nodes=58)
    assert "adt_beta" not in settings.given


def test_included_files_are_found_from_any_folder(tmp_path, monkeypatch, checkpoint):
    monkeypatch.chdir(tmp_path)
    recipe, prompts = "configs/fast/n58.yaml", "configs/prompts/tiny_test.txt"
    given = {"config": recipe, "prompt": prompts, "model_path": str(checkpoint)}
    settings = run_settings(given)
    assert (
        settings.engine.method == run_settings(given | {"config": str(ROOT / recipe)}).engine.method
    )
    assert settings.prompts.prompt == str(ROOT / prompts)
    (tmp_path / "configs/fast").mkdir(parents=True)
    (tmp_path / recipe).write_text("method: ar\n")
    assert run_settings(given).engine.method.method == "ar", "what is here comes first"
    with pytest.raises(SettingsError, match=rf"here or in {ROOT}. Did you mean configs/fast/n58.y"):
        run_settings(given | {"config": "configs/fast/n5.yaml"})
    with pytest.raises(SettingsError, match=r"Did you mean configs/sweeps/beta.yaml\?"):
        read_sweep("beta.yaml")
    with pytest.raises(SettingsError, match="Did you mean configs/fast/batch32.yaml?"):
        run_settings(given | {"config": "fast/batch32.yaml"})


def test_paths_of_included_recipes_are_the_checkouts_unless_they_are_here(tmp_path, monkeypatch):
    home, here = tmp_path / "checkout", tmp_path / "here"
    for folder in (home / "ckpts/own", here):
        folder.mkdir(parents=True)
    (home / "own.yaml").write_text("model_path: ckpts/own\ndrafter_path: ckpts/nowhere\n")
    for module in (fields, recipes):
        monkeypatch.setattr(module, "ROOT", home)
    monkeypatch.chdir(here)
    known = named("generate_images").known
    read = {"model_path": str(home / "ckpts/own"), "drafter_path": "ckpts/nowhere"}
    assert read_recipe("own.yaml", known) == read
    (here / "ckpts/own").mkdir(parents=True)
    assert read_recipe("own.yaml", known) == read | {"model_path": "ckpts/own"}


def test_another_model_leaves_the_recipes_files_out(recipe, checkpoint, capsys):
    paths = f"model_path: {checkpoint}\ndrafter_path: {checkpoint}/drafter\n"
    words = ["--prompt=a cat", recipe(f"model: anole\ncfg: 2\n{paths}")]
    assert run_settings(words_of(*words)).engine.model_path == str(checkpoint)
    tiny, other = ROOT / "ckpts" / "tiny", run_settings(words_of(*words, "--model=tiny"))
    assert (other.engine.sampling.cfg, other.engine.model_path) == (2.0, str(tiny))
    assert other.engine.drafter_path == str(tiny / "drafter")
    said = "is of anole, not tiny: --cfg 2.0 are taken from it, its files are not\n"
    assert capsys.readouterr().err.endswith(said)


@pytest.mark.parametrize("path", sorted((CONFIGS / "paper").glob("*.yaml")), ids=lambda p: p.stem)
def test_rows_of_the_paper(run, path):
    values = settings_dict(run(f"--config={path}"))
    renamed = {"lantern_pp": "static"}
    for rule in ("lantern", "lantern_published"):
        renamed |= {rule: "eagle2", f"adt_{rule}": "adt"}
    method = renamed.get(path.stem, path.stem)
    assert values["method"] == method
    assert values["proposal"] == ("sampled" if path.stem == "lantern_pp" else "topk")
    assert values["nodes"] == (None if method == "static" else 58)
    assert values["verifier"] == ("lantern" if "lantern" in path.stem else "exact")
    if path.stem not in METHODS:  # its name is a method wherever methods are named
        named_row = path.stem.replace("_", "-")
        assert settings_dict(run(f"--method={named_row}")) == values
        listed = settings_dict(listed_method(f"{named_row}:lantern_k=50", {}))
        assert {name: v for name, v in listed.items() if values[name] != v} == {"lantern_k": 50}
    if "lantern" in path.stem:
        assert (values["lantern_delta"] > 1) == (path.stem == "lantern_pp")
    assert read_recipe(str(path), named("generate_images").known).items() <= values.items()


@pytest.mark.parametrize("path", sorted((CONFIGS / "fast").glob("*.yaml")), ids=lambda p: p.stem)
def test_recipes_for_a_budget_of_draft_tokens_or_a_batch(run, path, checkpoint):
    settings = run(f"--config={path}")
    method, number = settings.method, int(re.search(r"\d+", path.stem)[0])
    of_a_batch = path.stem.startswith("batch")
    assert number == (settings.batch_size if of_a_batch else method.nodes) and method.lossless
    assert method.same_tokens(0.0) and method.same_tokens(1.0)
    drafter = [f"--drafter_path={checkpoint}/drafter"] if method.drafted else []
    joined = run(f"--config={CONFIGS}/anole.yaml,{path}", *drafter)
    assert joined.model == "anole" and joined.method == method
    assert source_values(path, {})["method"] == method.method


def test_training_recipes_name_their_model() -> None:
    for path in (CONFIGS / "training").glob("*.yaml"):
        assert read_recipe(str(path), named("train_drafter").known)["model"] == path.stem


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_models_recipe_is_valid_as_it_is(path):
    values = read_recipe(str(path), named("generate_images").known)
    assert RunSettings.of(values, prompt="a cat").engine.model == path.stem


def test_ids_of_the_hub(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("--model_path=owner/name", "--method=ar").model_path == "owner/name"
    assert run("--model_path=owner/name", "--drafter_path=owner/head").drafter_path == "owner/head"
    # `model` is a folder here
    for path in ("model/tyny", "./owner/name", "owner/name/more", "name", "/owner/name"):
        with pytest.raises(SettingsError, match="--model_path .*: .*path that does not exist"):
            run(f"--model_path={path}", "--method=ar")


def test_the_tokenizer_may_lie_elsewhere_and_has_all_its_files(run, checkpoint, tmp_path):
    (checkpoint / "tokenizer" / "vqgan.yaml").unlink()
    with pytest.raises(SettingsError, match=r"--model_path .*: found no vqgan\.yaml in .*/tokeniz"):
        run()
    (checkpoint / "tokenizer" / "vqgan.yaml").touch()
    (checkpoint / "tokenizer").rename(tmp_path / "elsewhere")
    assert run(f"--tokenizer_path={tmp_path}/elsewhere").tokenizer_path == f"{tmp_path}/elsewhere"
    with pytest.raises(SettingsError, match=r"--model_path .*: found no text_tokenizer\.json in"):
        run()
    (tmp_path / "chameleon").mkdir()
    (tmp_path / "elsewhere").rename(tmp_path / "chameleon" / "tokenizer")
    assert run().tokenizer_path is None  # next to the checkpoint, as in the paper's repository


def test_the_tokenizer_of_a_hub_id_lies_where_a_folder_has_it(tmp_path, monkeypatch):
    monkeypatch.setattr(targets, "ROOT", tmp_path)
    tokenizer = tmp_path / "ckpts/anole/chameleon/tokenizer"
    flags = {"prompt": "a cat", "model": "anole", "model_path": "leloy/Anole"}
    assert RunSettings.of(flags).engine.tokenizer_path is None
    tokenizer.mkdir(parents=True)
    assert RunSettings.of(flags).engine.tokenizer_path == str(tokenizer)


def test_a_checkpoint_without_a_drafter_is_decoded_by_jacobi(run, checkpoint, capsys, monkeypatch):
    assert run().method.method == "adt" and capsys.readouterr().err == ""
    monkeypatch.chdir(checkpoint.parent)
    shutil.rmtree(checkpoint / "drafter")
    for path in ("owner/name", "model"):
        words = ["--model=anole", f"--model_path={path}"]
        assert run(*words).method.method == "jacobi"
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and f"none comes with --model_path {path};" in said
        assert run(*words, "--method=ar").method.method == "ar"
        for word in ("--method=adt", "--adt_beta=0.5"):
            with pytest.raises(SettingsError, match="--drafter_path"):
                run(*words, word)


def test_a_benchmark_without_a_list(bench, recipe):
    settings = bench()
    usual = ("ar", None), ("eagle2", "topk"), ("eagle2", "coupled"), ("adt", "topk"), ("adt", None)
    assert settings.methods == tuple(MethodSettings(*pair) for pair in usual)
    assert (settings.repeats, settings.warmup, settings.output) == (3, 1, None)
    runs = [settings.run.with_method(method) for method in settings.methods]
    assert [run.engine.drafter_path is None for run in runs] == [True, False, False, False, False]
    assert bench("--method=adt").methods == (MethodSettings("ar"), MethodSettings("adt"))
    assert bench("--method=ar").methods == (MethodSettings("ar"),)
    config = recipe("method: adt\nproposal: topk\nadt_beta: 0.4\nrepeats: 2\n")
    written = MethodSettings("adt", "topk", own=AdtSettings(beta=0.4))
    assert bench(config).methods[1] == written and bench(config).repeats == 2
    assert bench(config, "--methods=ar,static").methods[1] == MethodSettings("static", "topk")


def test_method_flags_go_to_the_methods_that_have_them(bench):
    words = ["--methods=ar,eagle2:nodes=9,adt", "--nodes=20", "--depth=4", "--proposal=topk"]
    assert bench(*words).methods[1:] == (
        MethodSettings("eagle2", "topk", depth=4, nodes=9),
        MethodSettings("adt", "topk", nodes=20),
    )
    words = "--methods=ar,eagle2,adt:verifier=lantern:lantern_delta=0.2", "--lantern_k=9"
    relaxed = MethodSettings(verifier="lantern", numbers=LanternSettings(9, 0.2))
    assert bench(*words).methods == (MethodSettings("ar"), MethodSettings("eagle2"), relaxed)


def test_a_listed_recipe_is_a_row(bench, tmp_path):
    ours, other = tmp_path / "ours.yaml", tmp_path / "other.yaml"
    ours.write_text("method: adt\nproposal: topk\nadt_beta: 0.4\n")
    other.write_text("method: eagle2\nverifier: lantern\nlantern_k: 9\nproposal: topk\n")
    settings = bench(f"--methods=ar,{ours}:nodes=9,{other}", "--depth=3")
    assert settings.methods[1:] == (
        MethodSettings("adt", "topk", nodes=9, own=AdtSettings(beta=0.4)),
        MethodSettings("eagle2", "topk", depth=3, verifier="lantern", numbers=LanternSettings(9)),
    )
    exact = bench(f"--methods={other}:verifier=exact").methods[0]
    assert exact == MethodSettings("eagle2", "topk")
    for lines, message in (
        ("method: eagle2\ntemperature: 1\n", "--temperature: 1.0 works only as a flag of the com"),
        ("method: eagle2\nmethods: ar,adt\n", "methods: unknown flag"),
        ("proposal: topk\n", "--methods, in .*other.yaml: expected a line"),
        ("mehtod: adt\n", "--methods, in .*mehtod: unknown flag. Did you mean method"),
    ):
        other.write_text(lines)
        with pytest.raises(SettingsError, match=message):
            bench(f"--methods={ours},{other}")


def test_a_listed_recipe_may_be_tuned_and_name_files_of_its_model(bench, tmp_path, capsys) -> None:
    paths = [tmp_path / "one.yaml", tmp_path / "eight.yaml"]
    for path, batch in zip(paths, (1, 8), strict=True):
        best = f"{{batch_size: {batch}, method: jacobi, window: {batch}}}"
        conditions = f"tuned: {{conditions: {{}}, batches: [{best}]}}\n"
        path.write_text(
            f"model: anole\ndrafter_path: gone\nmethod: jacobi\nwindow: {batch}\n{conditions}"
        )
    listed = ",".join(map(str, paths))
    bench("--model=tiny", f"--methods=ar,{listed},eagle2", "--batch_size=2")
    said = capsys.readouterr().err
    found = re.findall("--method (.*): tuned .*batch_size: (.*) there, 2 now", said)
    assert found == [("jacobi", "1"), ("jacobi", "8")]


@pytest.mark.parametrize(
    "parser", [get_args_parser(), launch_command_parser()], ids=["torchrun", "accelerate"]
)
@pytest.mark.parametrize("command", sorted({*NAMES} - {"inspect"}))  # it runs in one process
def test_launchers_leave_every_flag_to_the_program(command, parser):
    for flag in named(command).known.flags:
        words = [command, f"--{flag}", "1"]
        parsed = parser.parse_args(["main.py", *words])
        assert (parsed.training_script, parsed.training_script_args) == ("main.py", words)


def shown_in(text: str) -> set[str]:
    return {row.split()[0][2:] for row in text.splitlines() if row.startswith("  --")}


@pytest.mark.parametrize("command", NAMES)
def test_the_help_has_every_flag(command):
    text = command_help(named(command))
    assert shown_in(text) == named(command).known.flags.keys()
    assert max(map(len, text.splitlines())) <= 110
    assert command in program_help()


@pytest.mark.parametrize("method", METHODS)
def test_help_of_a_method_has_its_flags_and_says_what_it_leaves_out(method):
    text = command_help(named("generate_images"), method)
    fitting, flags = {*applicable({"method": method})}, named("generate_images").known.flags
    kept = {name for name in flags if name not in method_flags() or name in fitting}
    assert shown_in(text) == kept
    assert f"without --method, --help has {len(flags) - len(kept)} more flags" in text


def test_words_that_ask_for_help(capsys):
    for words, flag in (
        *((words, "generate_images --prompt") for words in ("", "-h", "--help", "help")),
        ("generate_images --method adt --help", "--adt_beta X"),
        ("generate_images --method=adt -h", "--adt_beta X"),
        ("generate_images --help all", "--adt_beta X"),
        ("benchmark --prompt x -h", "--methods"),
        ("benchmark -- --help", "--methods"),
    ):
        assert main.main(words.split()) == 0
        assert flag in capsys.readouterr().out
