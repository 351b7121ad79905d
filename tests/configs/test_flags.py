"""Words of a command line: every word out of place is refused, every text survives."""

import pytest
from accelerate.commands.launch import launch_command_parser
from torch.distributed.run import get_args_parser

import main
from configs.command_line import METHOD_FLAGS, read_words
from configs.commands import COMMANDS, flags_of
from configs.fields import SettingsError
from configs.help import command_help, program_help
from configs.method_table import METHODS
from configs.methods import applicable


def read(*words: str) -> dict[str, str]:
    return read_words("generate_images", words)


@pytest.mark.parametrize(
    "text",
    [
        "a, b",
        "a #1 cat",
        "'q' and \"q\"",
        "123",
        "None",
        "True",
        "{a: b}",
        "é 漢",
        "a\nb",
        " ",
        "",
        "-",
        "-5 degrees",
        "a=b",
    ],
)
def test_text_survives_in_both_forms(text):
    assert read("--prompt", text) == read(f"--prompt={text}") == {"prompt": text}


@pytest.mark.parametrize("text", ["-x", "--seed", "--", "--help"])
def test_text_with_dashes_needs_the_equals_sign(text):
    assert read(f"--prompt={text}") == {"prompt": text}
    with pytest.raises(SettingsError, match=r"--prompt: found no value but .*--prompt=VALUE"):
        read("--prompt", text)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--trace"], "true"),
        (["--trace", "--seed", "1"], "true"),
        (["--trace", "false"], "false"),
        (["--trace=False"], "False"),
        (["--notrace"], "false"),
        (["--no-trace"], "false"),
        (["--no_trace"], "false"),
    ],
)
def test_switches(words, text):
    assert read(*words)["trace"] == text


def test_negative_numbers_and_dashes_in_names():
    assert read("--num-images", "-1", "--top_k=5") == {"num_images": "-1", "top_k": "5"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sede", "3"], r"--sede: unknown flag; did you mean --seed\?"),
        (["--temprature=1"], r"did you mean --temperature"),
        (["--adt-bata=1"], r"did you mean --adt_beta"),
        (
            ["--xyzzy"],
            r"--xyzzy: unknown flag; allowed: those of `python main.py generate_images --help all`",
        ),
        (["--nocfg"], r"--nocfg: unknown flag"),
        (["--nosede"], r"--nosede: unknown flag"),
        (["--methods=ar"], r"--methods: unknown flag; did you mean --method"),
        (["--lantern_detla", "0.1"], r"did you mean --lantern_delta"),
        (["cat"], r"'cat': a word without a flag.*quotes"),
        (["--prompt", "a", "cat"], r"'cat': a word without a flag"),
        (["--trace", "maybe"], r"'maybe': a word without a flag"),
        (["-"], r"'-': a word"),
        (["--"], r"'--': a word"),
        ([""], r"'': a word"),
        (["-seed", "3"], r"-seed: unknown flag; .*two dashes"),
        (["-1"], r"-1: unknown flag"),
        (["--=3"], r"--: unknown flag"),
        (["--prompt"], r"--prompt: found no value; allowed: a text"),
        (["--seed", "--trace"], r"--seed: found no value but '--trace'; allowed: a whole number"),
        (["--seed", "1", "--seed=2"], r"--seed: found twice, as '1' and '2'"),
        (["--trace", "--notrace"], r"--trace: found twice"),
    ],
)
def test_words_out_of_place(words, message):
    with pytest.raises(SettingsError, match=message):
        read(*words)


@pytest.mark.parametrize(
    "parser", [get_args_parser(), launch_command_parser()], ids=["torchrun", "accelerate"]
)
@pytest.mark.parametrize("command", COMMANDS)
def test_launchers_leave_every_flag_to_the_program(command, parser):
    for flag in flags_of(command):
        words = [command, f"--{flag}", "1"]
        read = parser.parse_args(["main.py", *words])
        assert (read.training_script, read.training_script_args) == ("main.py", words)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_every_flag_on_narrow_lines(command):
    text = command_help(command, everything=True)
    assert all(f"--{name} " in text for name in flags_of(command))
    assert max(map(len, text.splitlines())) <= 110
    assert command in program_help()


@pytest.mark.parametrize("method", METHODS)
def test_help_of_a_method_has_its_flags_and_says_what_it_leaves_out(method):
    text = command_help("generate_images", method)
    own, flags = {*applicable({"method": method})}, flags_of("generate_images")
    kept = {name for name in flags if name not in METHOD_FLAGS or name in own}
    assert {name for name in flags if f"\n  --{name} " in text} == kept
    assert f"{len(flags) - len(kept)} flags are left out" in text
    assert max(map(len, text.splitlines())) <= 110


def test_help_of_no_method_names_the_methods(capsys):
    for words in (["--method", "adt"], ["--method=adt"]):
        assert main.main(["generate_images", *words, "--help"]) == 0
        assert "--adt_beta X" in capsys.readouterr().out
    assert main.main(["generate_images", "--method", "adx", "--help"]) == 2
    assert "--method: found 'adx'; allowed: ar, static" in capsys.readouterr().err
    assert "left out" not in command_help("inspect", "adt")
