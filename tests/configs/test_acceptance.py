"""Which acceptance rules go with which methods and proposals; the numbers of relaxed ones."""

import itertools

import pytest
from stand_ins import empty_checkpoint

from configs.acceptance import PROPOSALS, VERIFIERS
from configs.command_line import read_words
from configs.fields import SettingsError
from configs.method_table import METHODS
from configs.schema import ROOT, LanternSettings, MethodSettings
from runs.commands import benchmark_settings, run_settings

RELAXED = ("lantern", "lantern_coupled", "gsd", "path_explore", "path_relax")


@pytest.fixture
def run(tmp_path):
    defaults = {"prompt": "a cat", "model_path": str(empty_checkpoint(tmp_path / "model"))}
    return lambda *words: run_settings(defaults | read_words("generate_images", words))


@pytest.fixture
def bench(tmp_path):
    defaults = {"prompt": "a cat", "model_path": str(empty_checkpoint(tmp_path / "model"))}
    return lambda *words: benchmark_settings(defaults | read_words("benchmark", words)).methods


def test_every_combination_is_allowed_or_refused_by_name() -> None:
    drafted = [method for method in METHODS if "proposal" in METHODS[method].defaults]
    for method, proposal, verifier in itertools.product(drafted, PROPOSALS, VERIFIERS):
        allowed = {
            "exact": True,
            "rejection": True,
            "sampled": method in ("static", "jacobi") and proposal == "sampled",
            "spectr": method == "static" and proposal == "sampled",
            "block": method in ("static", "jacobi") and proposal == "sampled",
            "traversal": method in ("static", "jacobi") and proposal == "sampled",
            "gsd": method in ("static", "jacobi") and proposal == "sampled",
            "path_explore": method == "static" and proposal == "sampled",
            "path_relax": method == "static" and proposal == "sampled",
            "lantern": proposal != "sampled",
            "lantern_coupled": proposal != "sampled",
        }[verifier]
        if allowed:
            assert MethodSettings(method, proposal, verifier=verifier).lossless == (
                verifier not in RELAXED
            )
            continue
        own = f"--method {method} and --proposal {proposal}"
        message = rf"--verifier: found '{verifier}'; allowed: with {own} exact, .*"
        with pytest.raises(SettingsError, match=message + f"; {verifier} goes with --proposal "):
            MethodSettings(method, proposal, verifier=verifier)


@pytest.mark.parametrize("verifier", [name for name in VERIFIERS if name != "exact"])
def test_plain_decoding_has_its_own_rule(verifier) -> None:
    with pytest.raises(
        SettingsError, match=f"'{verifier}'; allowed: with --method ar exact; {verifier} goes with"
    ):
        MethodSettings("ar", verifier=verifier)


def test_which_rules_draw_the_images_of_plain_decoding() -> None:
    found = {
        name: (
            rule.lossless,
            rule.same_tokens,
            MethodSettings("static", rule.proposals[-1], verifier=name),
        )
        for name, rule in VERIFIERS.items()
    }
    assert [name for name, (lossless, _, _) in found.items() if lossless] == [
        "exact",
        "rejection",
        "sampled",
        "spectr",
        "block",
        "traversal",
    ]
    assert [name for name, (_, _, method) in found.items() if method.same_tokens(1.0)] == ["exact"]
    assert [name for name, (_, _, method) in found.items() if method.same_tokens(0.0)] == [
        "exact",
        "rejection",
        "sampled",
        "spectr",
        "block",
        "traversal",
    ]


def test_numbers_of_relaxed_acceptance() -> None:
    assert MethodSettings(verifier="lantern").lantern == LanternSettings(
        1000, 0.1, "exact", "shared"
    )
    assert LanternSettings(delta=2.0).budget is None
    assert MethodSettings().lantern is None
    assert MethodSettings(proposal="sampled").calibration == "none"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--lantern_k=5"],
            "--lantern_k: found 5; allowed: only with --verifier lantern or .*, not .*exact",
        ),
        (
            ["--lantern", "--verifier=rejection"],
            "--lantern: found True; allowed: only with --verifier l.*, not rej",
        ),
        (
            ["--lantern", "--method=ar"],
            "--verifier: found 'lantern'; allowed: with --method ar exact; lantern goes with ",
        ),
        (["--lantern", "--lantern_k=0"], "--lantern_k: found 0"),
        (["--lantern", "--lantern_delta=-0.1"], "--lantern_delta: found -0.1"),
        (
            ["--lantern", "--lantern_residual=none"],
            "--lantern_residual: found 'none'; allowed: exact, reference",
        ),
        (
            ["--lantern", "--lantern_delta=2", "--lantern_budget=shared"],
            "--lantern_budget: .*--lantern_delta up to 1",
        ),
        (
            ["--verifier=lantern_coupled", "--lantern_residual=reference"],
            "--lantern_residual: .*only with --verifier",
        ),
        (
            ["--verifier=sampled", "--method=static"],
            "sampled goes with --proposal sampled and --method static or j",
        ),
        (
            ["--gsd_reach=5"],
            "--gsd_reach: found 5; allowed: only with --verifier gsd, not with --verifier exact",
        ),
        (
            ["--verifier=gsd", "--method=jacobi", "--proposal=sampled", "--path_delta=0.1"],
            "--path_delta: found 0.1; allowed: only with --verifier path_relax, not with .*gsd",
        ),
        (["--verifier=lossy"], "--verifier: found 'lossy'; allowed: exact, rejection"),
    ],
)
def test_flags_that_have_no_effect_are_refused(run, words, message) -> None:
    with pytest.raises(SettingsError, match=message):
        run(*words)


def test_the_papers_switch(run) -> None:
    method = run("--lantern", "--peanut", "--lantern_k", "100", "--lantern_delta", "0.5").method
    assert method == MethodSettings(verifier="lantern", relaxed=LanternSettings(100, 0.5))
    assert run("--nolantern").method == MethodSettings()


def test_another_rule_or_method_leaves_the_recipes_numbers_out(run, tmp_path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("method: eagle2\nverifier: lantern\nlantern_k: 7\n")
    config = f"--config={path}"
    assert run(config).method.lantern.k == 7
    assert run(config, "--verifier=lantern_coupled").method.lantern.k == 7
    assert run(config, "--verifier=exact").method == MethodSettings("eagle2")
    assert run(config, "--method=ar").method == MethodSettings("ar")
    assert run(config, "--method=adt").method == MethodSettings(
        verifier="lantern", relaxed=LanternSettings(7)
    )


def test_a_benchmarks_methods(bench) -> None:
    relaxed = MethodSettings(verifier="lantern", relaxed=LanternSettings(9, 0.2))
    words = "--methods=ar,eagle2,adt:verifier=lantern:lantern_delta=0.2", "--lantern_k=9"
    assert bench(*words) == (MethodSettings("ar"), MethodSettings("eagle2"), relaxed)
    assert bench("--methods=ar,adt", "--verifier=rejection")[1] == MethodSettings(
        verifier="rejection"
    )
    with pytest.raises(
        SettingsError, match="--lantern_k: found 9; allowed: only for a method that has it"
    ):
        bench("--methods=ar,adt", "--lantern_k=9")


@pytest.mark.parametrize("name", ["lantern", "lantern_pp", "adt_lantern"])
def test_recipes(run, name) -> None:
    settings = run(f"--config={ROOT}/configs/paper/{name}.yaml")
    assert settings.method.verifier == "lantern" and settings.method.proposal == "topk"
    assert (settings.method.lantern.delta > 1) == (name == "lantern_pp")
